"""Formulations in Pyomo, their compilation to arrays, and what their answers mean."""

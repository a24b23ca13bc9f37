"""Formulations in Pyomo, their compilation to arrays, and the decoding of their solutions."""

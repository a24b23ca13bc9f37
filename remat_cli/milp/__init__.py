"""Formulations, as arrays or (the paper's) in Pyomo, and the decoding of their solutions."""

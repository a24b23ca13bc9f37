"""Runs plans: exported functions in the order of a plan, and arrays let go where it says."""

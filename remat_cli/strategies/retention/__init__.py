"""Engines over the retention MILP."""

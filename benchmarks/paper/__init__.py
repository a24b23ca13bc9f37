"""Reproduces tables and figures of published papers with this program: ``python -m benchmarks.paper``."""

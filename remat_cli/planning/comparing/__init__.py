"""Compares strategies at several budgets on one graph; one judge checks all plans."""

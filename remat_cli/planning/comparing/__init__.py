"""Compares strategies at several budgets on one graph; every plan is replayed by the same checker."""

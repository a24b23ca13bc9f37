"""Strategies against budgets on one graph, under one judge."""

"""Strategies: a graph and a budget in, a sequence of computes and a bound out."""

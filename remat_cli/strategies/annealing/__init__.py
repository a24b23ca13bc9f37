"""Simulated annealing of the sequence of computes."""

"""Capturing: from a user's step to a graph."""

"""Sharded training steps: how well one plan for gathers and recomputation does."""

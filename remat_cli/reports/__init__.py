"""Results for people and pipelines: made from results only."""

"""Reports for people and programs, made from results only."""

"""Training: steps of the user that run by plan."""

"""What stages and constants of the search are worth."""

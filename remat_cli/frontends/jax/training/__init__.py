"""Training steps by plan, in the user's own program."""

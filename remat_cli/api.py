"""What the command line and a notebook call."""

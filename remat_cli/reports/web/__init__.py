"""Pages for a browser: each one a file that needs nothing else."""

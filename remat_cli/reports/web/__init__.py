"""Pages for a browser, each one a self-contained file."""

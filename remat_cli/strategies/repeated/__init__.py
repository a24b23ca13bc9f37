"""Training steps whose forward part is a chain of blocks, many of them equal: one solution for all equal blocks."""

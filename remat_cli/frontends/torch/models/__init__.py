"""Models written in PyTorch, one file per family; imported only when they are built."""

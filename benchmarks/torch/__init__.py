"""Training in PyTorch, side by side with other ways to save memory."""

"""The checkpointing policies of PyTorch, JAX and Keras: whole modules or layers, and operations by name."""

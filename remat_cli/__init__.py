"""remat: fit the training of neural networks into the memory at hand by recomputing values."""

__version__ = "0.1.0.dev0"

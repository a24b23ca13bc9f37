"""PyTorch's CUDA build without a GPU: its host side as it is, over a runtime that only keeps account of memory."""

"""Runs PyTorch's CUDA build without a GPU: its unchanged host side, on a runtime that only counts memory."""

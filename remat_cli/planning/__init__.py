"""Searches above one solve: runs, curves, batches, the least peak, comparisons."""

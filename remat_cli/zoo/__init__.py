"""Architectures as graphs: shape inference, FLOPs, backward rules; one file per family."""

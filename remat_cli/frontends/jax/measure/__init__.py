"""Runs plans and single operations to measure time and memory."""

"""Measuring: memory and time of plans and operations on a device."""

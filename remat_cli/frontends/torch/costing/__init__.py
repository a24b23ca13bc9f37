"""Costs of operations before they are measured one by one: FLOPs, and times by the rates of a device."""

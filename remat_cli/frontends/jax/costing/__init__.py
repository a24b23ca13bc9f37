"""How fast the device at hand is."""

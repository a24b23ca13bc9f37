"""Methods that give a first plan within milliseconds or seconds."""

"""Plans that other tools can carry out: what recomputing whole modules can express."""

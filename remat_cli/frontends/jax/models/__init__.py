"""Models of the zoo, in plain JAX."""

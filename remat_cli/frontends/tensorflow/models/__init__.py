"""Models of the zoo, written with Keras."""

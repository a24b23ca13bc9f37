"""What running by plan costs beyond the operations that it computes again, on TensorFlow and JAX."""

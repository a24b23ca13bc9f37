"""Plans on TensorFlow: predicted against measured peaks, equality, and the time that running by plan takes."""

"""Steps with regions in parts, beside ways to divide the loss by hand and by compiler."""

"""Training by plan through ``torch.compile``: a backend for given plans, and ``fit``, which makes them."""

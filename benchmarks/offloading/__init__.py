"""Recompute or copy to the host: captured training steps at several budgets and bandwidths."""

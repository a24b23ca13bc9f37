"""Searches for several budgets, or with several seeds for one, spread over a cluster; they share what they find."""

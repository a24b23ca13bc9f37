"""From a graph and a budget to a replayed plan: one solve, several budgets, the least peak, batches, comparisons."""

"""From a user's module to a graph: the joint graph of a training step, its placeholders, operations and costs."""

"""From a loss function to a graph: jaxpr, flat equations, contraction, costs, exported functions."""

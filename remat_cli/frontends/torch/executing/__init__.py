"""From a plan to functions that run it, and what they need: generated code, random inputs, equality of graphs."""

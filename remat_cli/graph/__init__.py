"""Graphs: the model, its documents, and what can be read off them without solving anything."""

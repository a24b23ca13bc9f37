"""Graphs: the model, its documents, and facts that follow without solving anything."""

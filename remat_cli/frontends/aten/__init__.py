"""Graphs of ATen operators that PyTorch wrote down: archives of torch.export, dumps of torch.fx. Read without PyTorch.

Nothing in such a file is run: archives are read as zip and JSON, dumps through Python's syntax tree.
"""

"""The layer language: functions that take tensors, add a layer to their network, and return its output.

``common`` has what every network uses, ``image`` what works on (batch, channels, height, width), ``sequence`` what
works on (batch, length, features). A new layer is a new function: it computes the output's shape and the cost, and
says what its derivative reads.

Costs: two FLOPs per multiply-accumulate; a bias or an activation that is part of a layer rides along. Everything else
costs a small number of FLOPs per element, never nothing: it moves data.
"""

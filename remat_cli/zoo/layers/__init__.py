"""The layer language: functions that take tensors, add a layer to their network, and return its output.

``common`` has layers for every network, ``image`` layers on (batch, channels, height, width), ``sequence`` layers on
(batch, length, features). A new layer is a new function: it computes the output's shape and the cost, and states which
values its derivative reads.

Costs: two FLOPs per multiply-accumulate; a bias or an activation that is part of a layer is free. Every other layer
costs a small number of FLOPs per element, never zero, because it moves data.
"""

"""The effect of every numeric constant of the search: each off, halved and doubled."""

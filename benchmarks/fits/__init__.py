"""How well ``remat fits`` predicts the memory of training, and other tools beside it: ``make truth``."""

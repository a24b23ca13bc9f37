"""The commands, one module each: ``command`` in ``NAME.py``, which loads when NAME is used, completed or explained.

What takes long to import (numpy, and with it the strategies and solvers) loads when a command runs, inside its
function. Everything else is imported at the top.
"""

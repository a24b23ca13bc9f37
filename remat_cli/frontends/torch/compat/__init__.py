"""All undocumented names of PyTorch that this frontend uses, by subject. No other module uses such names.

Each function here is small and has a test of its own (``tests/frontends/test_torch_compat_*.py``). If a new version of
PyTorch moves or changes a name, the test says which, before any plan goes wrong. What is patched is patched within a
context, or comes with what undoes it. ``docs/pytorch-internals.md`` tells which of remat's rules rests on which name.
"""

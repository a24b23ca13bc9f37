"""All undocumented names of PyTorch that this frontend uses, by subject. No other module uses such names.

Each function here is small and has a test of its own (``tests/frontends/test_torch_compat_*.py``). If a new version of
PyTorch moves or changes a name, the test says which, before any plan goes wrong. What is patched is patched within a
context, or comes with what undoes it. The docstring of a function says what remat needs it for, and what it rests on,
where its name and code do not. ``docs/pytorch-internals.md`` says what to do when a new version of PyTorch comes.
"""

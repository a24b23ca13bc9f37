"""Tests with the libraries that people train with. They need these, pinned in ``requirements.txt`` beside this file.

``make integrations`` runs them in an environment of its own; ``make test`` leaves the folder out.
"""

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()

"""What tests with torch.compile share: a compiler without a past, and a collector that looks at what is new only."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="session")
def _settled():
    """PyTorch's own half a million objects, looked through after every test, would take half of the time of all."""

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def fresh_compiler(_settled):
    """Nothing that was compiled before is left, and nothing of this test will be."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    gc.collect()

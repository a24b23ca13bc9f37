"""What tests with torch.compile share: a compiler without a past, and nothing that is slow and tests nothing."""

import gc
import sys

import pytest

from remat_cli.frontends.captured.installed import installed_version, numbers
from remat_cli.frontends.torch.installed import INDUCTOR_OLDEST


def pytest_collection_modifyitems(config, items):
    """Where plans for Inductor are refused, their tests are left out, but not those of ``compat``."""
    version = installed_version("torch")
    if version is None or numbers(version) >= INDUCTOR_OLDEST:
        return
    apart = [item for item in items if "inductor" in item.nodeid and "test_torch_compat" not in item.nodeid]
    config.hook.pytest_deselected(items=apart)
    items[:] = [item for item in items if item not in apart]


def _settle():
    """Collect what is dead, and look at what lives no more: PyTorch's own million objects would take a fifth of all."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _thawed():
    """In the end everything is looked through once more, for errors that only show when objects die."""
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def _untimed_guards():
    """PyTorch times the guards of every function that it compiles, 20 ms with emptied caches, for a debug log alone."""
    if "torch" not in sys.modules:
        yield
        return
    from torch._dynamo import guards

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "profile_guard_manager", lambda *args: 0.0, raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def _settled(_thawed, _untimed_guards):
    _settle()


@pytest.fixture
def fresh_compiler():
    """Nothing that was compiled before is left, and nothing of this test will be."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    _settle()


@pytest.fixture(scope="session")
def archives(tmp_path_factory):
    from aten_models import Archives

    return Archives(tmp_path_factory.mktemp("archives"))

"""What holds for all tests."""

import contextlib
import os
import signal
from pathlib import Path

with contextlib.suppress(ImportError):  # environments of frameworks go without
    from hypothesis import HealthCheck, settings

    # On a busy machine examples take long, and that is no failure.
    settings.register_profile("remat", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("remat")

# A shell's background jobs and nohup start pytest with SIGINT ignored. Children inherit that, and Python then installs
# no handler: Ctrl-C would do nothing to the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Costs must not depend on the machine, and no test waits for the measurement of one.
os.environ["REMAT_RATES"] = str(Path(__file__).parent / "rates.json")

APART = ("integrations", "jax_frontend", "keras2_frontend", "named_models", "tensorflow_frontend")
"""Folders of tests that have an environment of their own."""


def pytest_ignore_collect(collection_path, config):
    """Leave out what needs other libraries, unless it is named, as by ``make integrations`` and ``make test-jax``."""
    inside = [collection_path, *collection_path.parents]
    apart = next((Path(__file__).parent / name for name in APART if Path(__file__).parent / name in inside), None)
    if apart is None:
        return None
    named = [(config.invocation_params.dir / str(argument).partition("::")[0]).resolve() for argument in config.args]
    return None if any(apart in [path, *path.parents] for path in named) else True


LONG = {
    "test_fits.py": ["its_numbers[images]"],
    "test_fits_ranks.py": [
        "predicted[grad-build]",
        "predicted[none-build",
        "predicted[full-build]",
        "answer[keep-all]",
    ],
    "test_limits.py": ["a_longer_limit"],
    "test_torch_blocks.py": [
        *("[list-every-third-26]", "captured[indexed-equal]", "captured[growing-equal]"),
        *("model[sequential-equal-13]", "model[numbered-equal-12]", "model[shared-equal-12]"),
    ],
    "test_torch_distributed.py": ["one_plan[batch-fit(DDP)]", "one_plan[first call-fit(DDP)]"],
    "test_torch_fitted_ranks.py": ["one_plan[both-4"],
    "test_torch_fully_sharded.py": [
        *("steps[bfloat16]", "steps[equal]", "steps[reduced in bfloat16]", "steps[kept]"),
        "steps[more parameters than activations]",
    ],
    "test_torch_inductor.py": ["of_the_plan[Dense", "of_the_plan[Experts", "of_the_plan[Weights"],
    "test_torch_sharded.py": ["together[both-4]", "of_a_rank[both-4-"],
    "test_torch_sizes.py": ["proven_one[1]", "proven_one[3]"],
}
"""By file, parts of the names of tests that took over 20 seconds, which only ``make test-long`` runs.

The limit keeps all of CI within its 90 minutes; other parameters of the same tests stay in ``make test``.
"""


def pytest_addoption(parser):
    """Add ``--long``."""
    parser.addoption("--long", action="store_true", help="run the long tests, and no others")


def pytest_collection_modifyitems(config, items):
    """Keep the long tests apart from the others."""
    kept, left = [], []
    for item in items:
        is_long = any(part in item.name for part in LONG.get(item.path.name, ()))
        (kept if is_long == config.getoption("--long", False) else left).append(item)
    if left:
        items[:] = kept
        config.hook.pytest_deselected(items=left)

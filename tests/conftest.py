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

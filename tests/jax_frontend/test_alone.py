"""Documents alone on standard output, and what is said where JAX, or what it needs, is missing."""

import alone
import jax_models
import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return alone.exported(tmp_path_factory.mktemp("alone"), jax_models.__file__, "jax:train.py:deep")


def test_documents_are_all_that_commands_print(folder):
    alone.require_documents(folder)


@pytest.mark.parametrize("hidden", ["jax", "flatbuffers"])
@pytest.mark.parametrize(
    "line",
    ["export jax:train.py:deep", "export zoo:jax/vgg16", "profile step.json -o measured.json", "run step.plan.json"],
)
def test_the_error_names_the_extra(folder, hidden, line):
    alone.require_named(folder, {hidden}, line, "jax")

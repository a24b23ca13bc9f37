"""Documents alone on standard output, and what is said where TensorFlow is missing."""

import alone
import pytest
import steps

PACKAGES = {"tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return alone.exported(tmp_path_factory.mktemp("alone"), steps.__file__, "tf:train.py:cnn", silent=False)


def test_documents_are_all_that_commands_print(folder):
    alone.require_documents(folder)


@pytest.mark.parametrize(
    "line",
    ["export tf:train.py:cnn", "export zoo:tf/vgg16{batch=1}", "profile step.json -o x.json", "run step.plan.json"],
)
def test_the_error_names_the_extra(folder, line):
    assert "TensorFlow, which is not installed" in alone.require_named(folder, PACKAGES, line, "tensorflow")

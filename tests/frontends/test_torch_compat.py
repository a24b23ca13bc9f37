"""What PyTorch does not document, and this frontend needs: all in one folder, and each as its module says."""

import ast
import re
from pathlib import Path

import pytest

import remat_cli.frontends.torch

FOLDER = Path(remat_cli.frontends.torch.__file__).parent

PRIVATE = re.compile(
    r"torch(\.\w+)*\._(?!_)|functorch|\._(cdata|schema|boxed_call)\b|kineto|torch\.multiprocessing|flop_count"
)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_only_one_folder_uses_what_is_not_documented(path):
    if path.parent.name == "compat":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    code = [
        ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Import | ast.ImportFrom)
    ]
    assert not [text for text in code if PRIVATE.search(text.replace("from ", "").replace(" import ", "."))]


@pytest.mark.parametrize("path", sorted((FOLDER / "compat").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_every_function_has_a_test(path):
    """Named after it, so that a failure says what moved."""
    functions = {
        node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)
    }
    text = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_torch_compat_*.py"))
    assert functions == {name for name in functions if re.search(rf"\b{path.stem}\.{name}[(,)]", text)}


PAGE = FOLDER.parents[2] / "docs" / "pytorch-internals.md"


def undocumented(function):
    """The names of PyTorch in a function that need a row: what it imports from PyTorch, and what has an underscore."""
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in {"torch", "functorch"}:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            yield node.attr


def test_the_page_on_internals_has_every_name_and_only_what_there_is():
    """So whoever changes ``compat``, moves a file or renames a test also tells the reader."""
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    named = {}
    for row in rows:
        if row.startswith("| Rule |"):
            continue
        assert row.count(" | ") == 3, row
        _, rests, code, test = row.strip("| ").split(" | ")
        file, *functions = re.findall(r"`([^`]+)`", code)
        assert (FOLDER / file).is_file(), row
        assert "::" in test, row
        named.setdefault(file, {}).update(dict.fromkeys(functions, rests))
    tests = {path.name: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_torch_*.py")}
    for file, name in re.findall(r"`(test_\w+\.py)::(test_\w+)`", text):
        assert f"\ndef {name}(" in tests[file], f"{file}::{name}"
    for path in sorted((FOLDER / "compat").glob("[a-z]*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        assert named[f"compat/{path.name}"].keys() == {name for name in functions if not name.startswith("_")}
        for name, function in functions.items():
            missing = [word for word in undocumented(function) if not re.search(rf"\b{word}\b", text)]
            assert not missing, f"{path.name}: {name}"

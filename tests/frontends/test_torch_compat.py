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


@pytest.mark.parametrize("path", sorted((FOLDER / "compat").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_every_function_says_what_it_is_for(path):
    """Also private ones: nothing else says what remat needs them for, and what they rest on."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    methods = [node for one in body if isinstance(one, ast.ClassDef) for node in one.body]
    functions = [node for node in [*body, *methods] if isinstance(node, ast.FunctionDef)]
    assert functions
    assert not [node.name for node in functions if not ast.get_docstring(node)]


ROOT = FOLDER.parents[2]
PAGE = ROOT / "docs" / "pytorch-internals.md"


def test_the_page_on_internals_has_every_module_and_only_what_there_is():
    """So whoever adds a module to ``compat``, moves a file or renames a test also tells the reader."""
    text = PAGE.read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `compat/")]
    modules = [path.stem for path in sorted((FOLDER / "compat").glob("[a-z]*.py"))]
    assert [(row[0], row[-1]) for row in rows] == [(f"`compat/{m}.py`", f"`test_torch_compat_{m}.py`") for m in modules]
    tests = Path(__file__).parent
    named = re.findall(r"`([\w./]+\.(?:py|toml))(?:::(\w+))?`", text)
    assert len(named) > 3 * len(modules), "hardly any file was seen"
    for name, test in named:
        files = [path for folder in (FOLDER, tests, ROOT) if (path := folder / name).is_file()]
        assert files, name
        assert not test or f"\ndef {test}(" in files[0].read_text(encoding="utf-8"), f"{name}::{test}"

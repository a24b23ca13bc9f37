"""What JAX and TensorFlow do not document is used in ``compat.py`` alone, where each function has a test."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRIVATE = {
    "jax": re.compile(r"\bjax\._(?!_)|\bjax\.(extend|core\.Tracer)|\.(source_info|ctx|_impl)\b"),
    "tensorflow": re.compile(r"\btensorflow\.python\b|\btf\.__internal__|\._(numpy_internal|handle|jit_compile)\b"),
}


@pytest.mark.parametrize("framework", sorted(PRIVATE))
def test_only_one_file_uses_what_is_not_documented(framework):
    for path in sorted((ROOT / "remat_cli/frontends" / framework).rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        code = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute | ast.Import | ast.ImportFrom)]
        names = [text.replace("from ", "").replace(" import ", ".") for text in code]
        private = [name for name in names if PRIVATE[framework].search(name)]
        assert bool(private) == (path.name == "compat.py"), (path, private)


@pytest.mark.parametrize("framework", sorted(PRIVATE))
def test_every_function_has_a_test_that_names_it(framework):
    code = (ROOT / "remat_cli/frontends" / framework / "compat.py").read_text(encoding="utf-8")
    tests = (ROOT / f"tests/{framework}_frontend/test_compat.py").read_text(encoding="utf-8")
    functions = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
    assert functions == {name for name in functions if re.search(rf"\bcompat\.{name}\b", tests)}

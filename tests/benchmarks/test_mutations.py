"""Planted mistakes: the list is one that can be planted here, and what becomes of each is told truly."""

import os
from collections import Counter
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.mutations.__main__ import MUTATIONS, Mutation, page, tried


def test_every_mistake_can_be_planted_in_one_place():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "remat_cli").rglob("*.py")]
    counts = {m.name: sum(text.count(m.old) for text in texts) for m in MUTATIONS}
    assert {name: count for name, count in counts.items() if count != 1} == {}
    assert all(m.old != m.new for m in MUTATIONS)
    assert max(Counter(m.name for m in MUTATIONS).values()) == 1
    assert all((ROOT / test).exists() for m in MUTATIONS for test in m.tests)


def test_a_mistake_is_caught_survives_or_is_not_there(tmp_path: Path):
    (tmp_path / "remat_cli").mkdir()
    (tmp_path / "tests").mkdir()
    module = tmp_path / "remat_cli" / "sums.py"
    module.write_text("def both(a, b):\n    return a + b\n", encoding="utf-8")
    (tmp_path / "remat_cli" / "__init__.py").touch()
    text = """
import os
import pytest
from remat_cli.sums import both

@pytest.mark.parametrize("a", [2], ids=["two - or - so"])
def test_sum(a):
    assert both(a, 3) == 5

def test_zero():
    assert both(0, 0) == 0
"""
    (tmp_path / "tests" / "test_sums.py").write_text(text, encoding="utf-8")
    (tmp_path / "tests" / "test_broken.py").write_text("def test_no():\n    assert False\n", encoding="utf-8")

    def outcome(old: str, new: str, tests: str) -> dict[str, object]:
        return tried(tmp_path, Mutation("m", "", old, new, [tests]))

    before = module.stat().st_mtime_ns - 10**10
    os.utime(module, ns=(before, before))  # Python takes what it compiled for a file of the same size and second
    caught = outcome("a + b", "a - b", "tests/test_sums.py")
    assert caught["outcome"] == "caught"
    assert str(caught["test"]).startswith("tests/test_sums.py::test_sum[two")
    assert outcome("a + b", "b + a", "tests/test_sums.py")["outcome"] == "survived"
    assert outcome("a + b", "a - b", "tests/test_broken.py")["outcome"] == "fails anyway"
    assert outcome("a * b", "a", "tests/test_sums.py")["outcome"] == "not there"
    assert module.read_text(encoding="utf-8") == "def both(a, b):\n    return a + b\n"
    assert module.stat().st_mtime_ns == before


def test_the_page_has_a_column_for_each_state(tmp_path: Path):
    name = MUTATIONS[0].name
    (tmp_path / "after.json").write_text(
        f'{{"{name}": {{"outcome": "caught", "test": "tests/plan/test_a.py::test_b[0]"}}}}', encoding="utf-8"
    )
    (tmp_path / "before.json").write_text(f'{{"{name}": {{"outcome": "survived"}}}}', encoding="utf-8")
    text = page(tmp_path)
    assert "| before | after |" in text
    assert "| **survived** | caught: test_a.py `test_b` |" in text
    assert "before: 0 of 1 caught." in text

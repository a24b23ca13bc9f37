"""The pages of docs/ and the commands in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
APART = {DOCS / "jax.md": "jax_frontend", DOCS / "tensorflow.md": "tensorflow_frontend"}
"""Pages whose commands need a framework with an environment of its own, and the tests that run them."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, and its text."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(*found.groups()) for found in _FENCE.finditer(page.read_text(encoding="utf-8"))]


def commands_of(block: Block) -> list[tuple[str, str | None]]:
    """The commands of a block, with what each prints where the block says that.

    ``sh`` blocks are commands, one after the other, which have to succeed. ``console`` blocks are commands behind
    ``$ ``, each with what it prints; a line ``...`` in that stands for any lines.
    """
    if block.language == "sh":
        return [(block.text, None)]
    told: list[tuple[str, str | None]] = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        told.append((command, output))
    return told


def fits(output: str, told: str) -> bool:
    """Whether ``output`` is what a page tells of it."""
    lines = (line.rstrip() for line in told.rstrip("\n").split("\n"))
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in lines)
    shown = "".join(line.rstrip() + "\n" for line in output.rstrip("\n").split("\n"))
    return re.fullmatch(pattern, shown) is not None

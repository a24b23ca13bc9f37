"""The models: what they are, whose they are, and what builds them; read from ``suite.toml`` and ``foreign.toml``."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMIT_S = 10.0
"""Seconds for each search, unless another number is asked for."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A model.

    Attributes:
        name: Its name, which is the name of the function that builds it.
        family: What it is.
        library: The library that has it.
        file: The file of that function.
        make: What :mod:`benchmarks.models.builders` makes it from; empty for a function written by hand.
    """

    name: str
    family: str
    library: str
    file: Path
    make: Mapping[str, Any] = field(compare=False, repr=False)


def _listed(file: str) -> Iterator[Listed]:
    """The models of a file, in its order; ``options`` are whole."""
    document = tomllib.loads((HERE / file).read_text(encoding="utf-8"))
    for group in document["groups"]:
        defaults = group.get("defaults", {})
        for name, model in group["models"].items():
            make: dict[str, Any] = {}
            if model:
                make = defaults | model
                options: dict[str, Any] = {}
                for sizes in make.get("sizes", ()):
                    options |= document["sizes"][sizes]
                options |= defaults.get("options", {}) | model.get("options", {})
                make["options"] = {key: value for key, value in options.items() if key not in make.get("without", ())}
            source = HERE / ("builders.py" if make else group["by_hand"])
            yield Listed(name, group["family"], group["library"], source, make)


MODELS = tuple(_listed("suite.toml"))
"""In the order in which they are measured and shown."""
FOREIGN = tuple(_listed("foreign.toml"))
"""A hundred models that are not in the suite, whose losses the loop computes: ``make foreign``."""

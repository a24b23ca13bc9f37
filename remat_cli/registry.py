"""Tables of classes by name, loaded on demand: strategies, solvers, architectures.

A table maps a name to ``"module:Class"``; nothing is imported until the name is used. Other packages add
entries through an entry-point group. If two packages own one name, that is an error that names both.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Generic, TypeVar, cast

from remat_cli.errors import UsageError

T_co = TypeVar("T_co", covariant=True)


def suggestion(name: str, known: list[str]) -> str:
    """``did you mean "x"?`` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else ""


@dataclass(frozen=True)
class Registry(Generic[T_co]):
    """A lazy table of classes of one kind.

    Attributes:
        kind: The kind of the entries, for messages: ``strategy``.
        table: Name to ``"module:Class"``.
        group: Entry-point group that other packages use.
    """

    kind: str
    table: Mapping[str, str]
    group: str

    @cached_property
    def entries(self) -> dict[str, str]:
        """All entries, those of other packages included, sorted by name.

        Raises:
            UsageError: If two packages, or a package and remat, use the same name.
        """
        from importlib.metadata import entry_points  # 30 ms, and most commands never need it

        entries = dict(self.table)
        owner = dict.fromkeys(entries, "remat")
        for point in entry_points(group=self.group):
            distribution = point.dist.name if point.dist is not None else point.value
            if point.name in entries:
                raise UsageError(
                    f'the {self.kind} name "{point.name}" is claimed by both {owner[point.name]} and {distribution}',
                    hint=f"uninstall one of them, or ask the author of {distribution} for another name",
                )
            entries[point.name] = point.value
            owner[point.name] = distribution
        return dict(sorted(entries.items()))

    def names(self) -> list[str]:
        """All names, sorted."""
        return list(self.entries)

    def load(self, name: str) -> type[T_co]:
        """The class behind ``name``.

        Raises:
            UsageError: If there is no such name (the hint gives the closest one, or all of them), or if an entry of
                another package cannot be loaded.
        """
        target = self.entries.get(name)
        if target is None:
            known = self.names()
            raise UsageError(
                f'there is no {self.kind} "{name}"',
                hint=suggestion(name, known) or f"known: {', '.join(known)}",
            )
        module, _, attribute = target.partition(":")
        try:
            return cast("type[T_co]", getattr(import_module(module), attribute))
        except (ImportError, AttributeError) as error:
            if name in self.table:  # remat's own: a defect, so the traceback matters
                raise
            raise UsageError(
                f'the {self.kind} "{name}" ({target}) cannot be loaded: {error}',
                hint="reinstall or remove the package that provides it",
            ) from error

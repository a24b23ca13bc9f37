"""Short texts of large objects: one line for a prompt or a debugger, a small table for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape


class Brief:
    """Gives a class a ``__repr__`` and a ``_repr_html_`` of a few facts. It has no data of its own."""

    __slots__ = ()

    def _brief(self) -> Mapping[str, str]:
        """The facts by name. The first one says what the object is about, such as the name of its graph."""
        raise NotImplementedError

    def _rows(self) -> Sequence[Sequence[str]]:
        """The rows of another table for a notebook, the heads of its columns first; none by default."""
        return ()

    def __repr__(self) -> str:
        subject, *others = self._brief().items()
        line = f"{subject[1]}: {', '.join(f'{name} {fact}' for name, fact in others)}"
        # Names from documents may contain line breaks.
        return f"<{type(self).__name__} {line if line.isprintable() else line.encode('unicode_escape').decode()}>"

    def _repr_html_(self) -> str:
        subject, *others = self._brief().items()
        tables = [[(type(self).__name__, subject[1]), *others], self._rows()]
        return "".join(_table(rows) for rows in tables if rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [("th", head), *(("td", cells) for cells in body)]
    told = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) for tag, cells in lines)
    return f"<table>{''.join(f'<tr>{cells}</tr>' for cells in told)}</table>"

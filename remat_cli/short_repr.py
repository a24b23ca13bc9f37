"""Short texts of large objects: one line for a prompt or a debugger, a small table for a notebook."""

from collections.abc import Mapping, Sequence
from html import escape

from remat_cli.printable import printable


class ShortRepr:
    """Gives a class a ``__repr__`` and a ``_repr_html_`` of a few facts. It has no data of its own."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, str]:
        """The facts by name. The first one says what the object is about, such as the name of its graph."""
        raise NotImplementedError

    def _table_rows(self) -> Sequence[Sequence[str]]:
        """The rows of another table for a notebook, the heads of its columns first; none by default."""
        return ()

    def __repr__(self) -> str:
        (_, subject), *facts = self._facts().items()
        line = f"{subject}: {', '.join(f'{name} {fact}' for name, fact in facts)}"
        # Names from documents may contain line breaks.
        return f"<{type(self).__name__} {printable(line)}>"

    def _repr_html_(self) -> str:
        (_, subject), *facts = self._facts().items()
        tables = [[(type(self).__name__, subject), *facts], self._table_rows()]
        return "".join(_html_table(rows) for rows in tables if rows)


def _html_table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    tagged = [("th", head), *(("td", cells) for cells in body)]
    lines = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) for tag, cells in tagged)
    return f"<table>{''.join(f'<tr>{cells}</tr>' for cells in lines)}</table>"

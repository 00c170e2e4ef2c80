"""Tables and lines for people, as plain text and as HTML: what `repr` and notebooks show.

Owns the form alone: what is in a table is for its caller to say. Whatever is shown in HTML is escaped.
"""

from collections.abc import Sequence
from html import escape

__all__ = ["html_lines", "html_table", "text_table"]

_APART = "  "


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns apart by two spaces; the first `left` of them flush left, the last too, the others right."""
    table = [list(columns), *map(list, rows)]
    widths = [max(len(row[k]) for row in table) for k in range(len(columns))]

    def cell(text: str, k: int) -> str:
        if k == len(columns) - 1:
            return text
        return text.ljust(widths[k]) if k < left else text.rjust(widths[k])

    return "\n".join(_APART.join(cell(text, k) for k, text in enumerate(row)).rstrip() for row in table)


def html_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    bold: int = -1,
) -> str:
    """A table under a title, the row `bold` emphasised, with notes below."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = []
    for k, row in enumerate(rows):
        cells = "".join(f"<td>{escape(text)}</td>" for text in row)
        lines.append(f'<tr style="font-weight: bold">{cells}</tr>' if k == bold else f"<tr>{cells}</tr>")
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f"<p><b>{escape(title)}</b></p>{body}" + "".join(f"<p>{escape(note)}</p>" for note in notes)


def html_lines(title: str, lines: Sequence[str]) -> str:
    """A title and a list."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<p><b>{escape(title)}</b></p>" + (f"<ul>{items}</ul>" if items else "")

"""Tables and paragraphs as lines of text, for any width.

Words are never broken: an id, a path or a digest that is longer than its column stands on a line
of its own, so that a terminal gives it back in one piece. Without a width nothing is folded.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final, TextIO

USUAL_WIDTH: Final = 80
LEAST_WIDTH: Final = 20
"""Columns; what says that a terminal has fewer does not know."""

_SHORT: Final = 12  # a cell of so few characters is not folded: a number and its unit, say
_GAPS: Final = (3, 2)  # between columns; the narrow one where the wide one does not fit
_SHARES: Final = (2, 3, 4, 5)  # parts of the width that a word may need before it is too long


def given_width() -> int | None:
    """Return the width that the variable ``COLUMNS`` gives; None: none that can be meant."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdecimal() and int(text) >= LEAST_WIDTH else None


def terminal_width(stream: TextIO) -> int:
    """Return the width of the terminal behind a stream."""
    given = given_width()
    if given is not None:
        return given
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):  # no terminal, closed, or replaced
        return USUAL_WIDTH
    return columns if columns >= LEAST_WIDTH else USUAL_WIDTH


def wrap(text: str, width: int | None) -> list[str]:
    """Return the lines of a paragraph, one at least; words are never broken."""
    if width is None:
        return [text]
    lines = textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def table(
    header: Sequence[str] | None, rows: Sequence[Sequence[str]], width: int | None
) -> tuple[list[str], list[str]]:
    """Return the lines of a header, with a rule below it, and those of the rows.

    Where the columns do not fit side by side, each row is a block of names and values.

    Args:
        header: Names of the columns; None: there is no header.
        rows: Their cells; a row may be shorter than others.
        width: Columns of the terminal; None: there is no limit.
    """
    margin = 0 if header is None else 1
    cells = [*([] if header is None else [header]), *rows]
    room = None if width is None else width - margin
    natural = _natural(cells)
    gaps = _GAPS[-1:] if header is None else _GAPS
    fitting = (g for g in gaps if room is None or sum(natural) + g * (len(natural) - 1) <= room)
    gap = next(fitting, gaps[-1])
    widths = _widths(cells, room, gap)
    if widths is None:
        return [], list(_blocks(header, rows, width))
    lines = [line for row in rows for line in _row(row, widths, gap)]
    if header is None:
        return [], lines
    top = _row(header, widths, gap)
    rule = "─" * (sum(widths) + gap * (len(widths) - 1))
    return [" " * margin + line for line in [*top, rule]], [" " * margin + line for line in lines]


def _natural(cells: Sequence[Sequence[str]]) -> list[int]:
    count = max((len(row) for row in cells), default=0)
    return [max(len(row[k]) for row in cells if k < len(row)) for k in range(count)]


def _widths(cells: Sequence[Sequence[str]], room: int | None, gap: int) -> list[int] | None:
    """Return the widths of columns; None: they do not fit side by side."""
    widths = _natural(cells)
    if room is None or not widths:
        return widths
    room -= gap * (len(widths) - 1)
    for share in _SHARES:
        least = [
            max(_least(row[k], room // share) for row in cells if k < len(row))
            for k in range(len(widths))
        ]
        if sum(least) <= room:
            while sum(widths) > room:  # the widest of those that may be narrower gives way
                _, k = max((widths[k], k) for k in range(len(widths)) if widths[k] > least[k])
                widths[k] -= 1
            return widths
    return None


def _least(cell: str, longest: int) -> int:
    """Return how narrow the column of a cell may be; longer words than this do not count."""
    if len(cell) <= _SHORT:
        return len(cell)
    return max((len(word) for word in cell.split() if len(word) <= longest), default=_SHORT)


def _row(cells: Sequence[str], widths: Sequence[int], gap: int) -> list[str]:
    """Return the lines of a row; cells after a word that is too long begin below it."""
    lines: list[str] = []
    top = at = 0
    for cell, width in zip(cells, widths, strict=False):
        parts = wrap(cell, width)
        for number, part in enumerate(parts, start=top):
            lines += [""] * (number + 1 - len(lines))
            if part:
                lines[number] = lines[number].ljust(at) + part
        top += max((k + 1 for k, part in enumerate(parts) if len(part) > width), default=0)
        at += width + gap
    return lines or [""]


def _blocks(
    header: Sequence[str] | None, rows: Sequence[Sequence[str]], width: int | None
) -> Iterator[str]:
    for number, row in enumerate(rows):
        if header is None:
            yield row[0]
            for cell in row[1:]:
                yield from (
                    "  " + line for line in wrap(cell, None if width is None else width - 2)
                )
            continue
        if number:
            yield ""
        yield from table(None, list(zip(header, row, strict=False)), width)[1]


def definitions(rows: Sequence[tuple[str, str]], width: int, *, term: int) -> list[str]:
    """Return names, each with its text beside it, or below it where the name is too long.

    Args:
        rows: Name and text.
        width: Columns in all.
        term: Columns of a name at most.
    """
    widest = max((len(name) for name, _ in rows if len(name) <= term), default=0)
    widths = (widest, max(width - widest - 4, LEAST_WIDTH))
    return ["  " + line if line else "" for row in rows for line in _row(row, widths, 2)]

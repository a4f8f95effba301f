"""Tables and paragraphs as lines of text, for any width.

Words are never broken: an id, a path or a digest that is longer than its column stands on a line
of its own, further left if it has to, so that a terminal gives it back in one piece. Without a
width nothing is folded. A command that is folded can still be pasted into a shell.
"""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final, TextIO

USUAL_WIDTH: Final = 80
LEAST_WIDTH: Final = 20
"""Columns; what says that a terminal has fewer does not know."""

_SHORT: Final = 12  # a cell of so few characters is not folded: a number and its unit, say
_GAPS: Final = (3, 2)  # between columns; the narrow one where the wide one does not fit
_GOES_ON: Final = " \\"  # ends a line of a command that goes on below
_INDENT: Final = "  "
_SHARES: Final = (2, 3, 4, 5)  # parts of the width that a word may need before it is too long


class CommandText(str):
    """A command line for a shell; where it is folded, its lines end with a backslash."""

    __slots__ = ()


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
    if isinstance(text, CommandText):
        return _command_lines(text, width)
    lines = textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def _command_lines(text: CommandText, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    try:
        words = [shlex.quote(word) for word in shlex.split(text)]
    except ValueError:  # a file told it, and it is no command line
        return wrap(str(text), width)
    room = width - len(_GOES_ON)
    lines = [""]
    for number, word in enumerate(words):
        value = words[number + 1 : number + 2] if word.startswith("--") else []
        # An option and its value stay together where they fit.
        both = word if not value or value[0].startswith("--") else f"{word} {value[0]}"
        wanted = both if len(both) + len(_INDENT) <= room else word
        if lines[-1].strip() and len(lines[-1]) + 1 + len(wanted) > room:
            lines[-1] += _GOES_ON
            lines.append(_INDENT + word)
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return lines


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
        assert width is not None  # else there is room for all columns
        return [], list(_blocks(header, rows, width))
    lines = [line for row in rows for line in _row(row, widths, gap, room)]
    if header is None:
        return [], lines
    top = _row(header, widths, gap, room)
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


def _row(cells: Sequence[str], widths: Sequence[int], gap: int, room: int | None) -> list[str]:
    """Return the lines of a row.

    A word that is longer than its column begins further left where it would not fit into ``room``
    otherwise. Cells after such a word begin below it.
    """
    lines: list[str] = []
    top = at = 0
    for cell, width in zip(cells, widths, strict=False):
        number = top
        for part in wrap(cell, width):
            start = at if room is None else max(min(at, room - len(part)), 0)
            if start < at:
                while any(len(line) + gap > start for line in lines[number : number + 1] if line):
                    number += 1
            lines += [""] * (number + 1 - len(lines))
            if part:
                lines[number] = lines[number].ljust(start) + part
            number += 1
            if len(part) > width:
                top = number
        at += width + gap
    return lines or [""]


def _blocks(
    header: Sequence[str] | None, rows: Sequence[Sequence[str]], room: int
) -> Iterator[str]:
    for number, row in enumerate(rows):
        if header is None:
            yield row[0]
            for cell in row[1:]:
                yield from _row(("", cell), (0, room - 2), 2, room)
            continue
        if number:
            yield ""
        yield from table(None, list(zip(header, row, strict=False)), room)[1]


def definitions(rows: Sequence[tuple[str, str]], width: int, *, term: int) -> list[str]:
    """Return names, each with its text beside it, or below it where the name is too long.

    Args:
        rows: Name and text.
        width: Columns in all.
        term: Columns of a name at most; fewer where texts would have no room beside it.
    """
    term = min(term, width - LEAST_WIDTH - 4)
    widest = max((len(name) for name, _ in rows if len(name) <= term), default=0)
    widths = (widest, max(width - widest - 4, LEAST_WIDTH))
    lines: list[str] = []
    for name, text in rows:
        beside = name if len(name) <= widest else ""
        lines += [] if beside else wrap(name, width - 2)
        lines += _row((beside, text), widths, 2, width - 2)
    return ["  " + line if line else "" for line in lines]

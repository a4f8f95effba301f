"""What a page shows, as data: sections of charts, tables and films."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

MOST_POINTS: Final = 10_000
"""Of one series in one chart; what is more is thinned, and the chart says so."""

TOGETHER: Final = -1
"""In place of a source's number: a series of several sources, which is always shown."""

_MOST_TOGETHER = 30_000  # points of a chart of many series
_FEWEST = 50  # points of a series that are kept however many series there are
_DIGITS = 6
Style = Literal["points", "stars", "line", "band", "histogram"]


def spread(values: NDArray[Any], most: int) -> NDArray[np.int64]:
    """Return at most so many rows of values (n,), ascending: the extremes and evenly between.

    >>> spread(np.array([5.0, 1.0, 4.0, 2.0, 3.0]), 3).tolist()
    [0, 1, 4]
    """
    if len(values) <= most:
        return np.arange(len(values))
    places = np.linspace(0, len(values) - 1, most).round().astype(np.int64)
    return np.sort(np.argsort(values, kind="stable")[places])


@dataclass(frozen=True)
class Series:
    """Points of one source, or a line through them.

    Attributes:
        name: What a legend calls it; the source's name is added.
        source: Number of the source on the page; :data:`TOGETHER` where it is of several.
        x: (n,).
        y: (n,); of a histogram it is not looked at.
        style: How it is drawn. A band is drawn from ``more["low"]`` to ``more["high"]`` around
            its line.
        value: (n,) return by which the page filters, and colours where the chart has a scale.
        quantity: What that is, with its unit; the page has a filter for each.
        index: (n,) number of the policy or episode.
        more: (n,) arrays by what they are called, which a reader sees beside a point.
    """

    name: str
    source: int
    x: NDArray[Any]
    y: NDArray[Any]
    style: Style = "points"
    value: NDArray[np.float64] | None = None
    quantity: str | None = None
    index: NDArray[np.int64] | None = None
    more: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def kept(self, most: int) -> NDArray[np.int64]:
        """Return the rows that the page holds: of lines evenly along them, else by value."""
        if self.style in ("line", "band"):
            return spread(np.arange(len(self.x)), most)
        return spread(self.x if self.value is None else self.value, most)

    def to_dict(self, most: int) -> dict[str, Any]:
        """Return the JSON form of the rows kept."""
        rows = self.kept(most)

        def numbers(values: NDArray[Any] | None) -> list[float | None] | None:
            return None if values is None else [_number(v) for v in values[rows].tolist()]

        return {
            "name": self.name,
            "source": self.source,
            "style": self.style,
            "x": numbers(self.x),
            "y": None if self.style == "histogram" else numbers(self.y),
            "value": numbers(self.value),
            "quantity": self.quantity,
            "index": numbers(self.index),
            "more": {name: numbers(values) for name, values in self.more.items()},
        }


@dataclass(frozen=True)
class Guide:
    """A line to read a chart by.

    Attributes:
        axis: Which axis ``at`` is on; ``both``: where x and y are equal.
        at: Where it is.
        text: What it means.
    """

    axis: Literal["x", "y", "both"]
    text: str
    at: float = 0.0


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        title: What it shows.
        x: Title of the axis, with the unit.
        y: Likewise.
        series: What is drawn.
        colour: Title of the colour scale; None: colours tell sources apart.
        unit: What one point is: ``policy``, ``episode``, …
        guides: Lines to read it by.
        log: Whether the vertical axis is logarithmic.
        ticks: Names on the horizontal axis, at 0, 1, …
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    colour: str | None = None
    unit: str = "point"
    guides: Sequence[Guide] = ()
    log: bool = False
    ticks: Sequence[str] = ()

    @property
    def most(self) -> int:
        """Points of each series that the page holds."""
        share = _MOST_TOGETHER // max(1, len(self.series))
        return max(_FEWEST, min(MOST_POINTS, share))

    @property
    def notes(self) -> list[str]:
        """What the dashed lines are, and what was left out."""
        known = [f"{g.text} {g.at:g}" if g.axis == "y" else g.text for g in self.guides]
        lines = [f"Dashed: {', '.join(known)}."] if known else []
        thinned: dict[str, list[int]] = {}
        for series in self.series:
            if len(series.x) > self.most:
                thinned.setdefault(series.name, []).append(len(series.x))
        return lines + [
            f"{len(counts) * self.most:,} of {sum(counts):,} are shown ({name}): the extremes and "
            "evenly between; filters act on what is shown."
            for name, counts in thinned.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **{name: getattr(self, name) for name in ("title", "x", "y", "colour", "unit", "log")},
            "series": [series.to_dict(self.most) for series in self.series],
            "guides": [vars(guide) for guide in self.guides],
            "ticks": list(self.ticks),
        }


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        title: What it shows.
        header: Names of the columns.
        rows: Cells.
        marked: Rows whose cells differ.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Film:
    """A film.

    Attributes:
        title: What it shows.
        data: An MP4 file.
    """

    title: str
    data: bytes


@dataclass(frozen=True)
class Section:
    """A part of the page; one that shows nothing is left out.

    Attributes:
        title: Its heading.
        text: How to read it.
        charts: Its charts.
        tables: Its tables.
        films: Its films.
        notes: What could not be shown, and why.
    """

    title: str
    text: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    films: Sequence[Film] = ()
    notes: Sequence[str] = ()

    def __bool__(self) -> bool:
        return any((self.charts, self.tables, self.films, self.notes))


def _number(value: float) -> float | None:
    """Return a number as the page holds it; None where it is not finite."""
    if isinstance(value, int):
        return value
    return float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None

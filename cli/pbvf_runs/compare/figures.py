"""Figures: how they are made and written, and those of learning curves and comparisons."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pbvf_offline.errors import PbvfError, UsageError, counted, shorten
from pbvf_offline.exchange.output import already_written, refuse_foreign
from pbvf_offline.io.durable import write_file
from pbvf_offline.io.reading import read_file
from pbvf_runs.compare.learning_curves import METRICS
from pbvf_runs.compare.statistics import FEWEST, STATISTICS

if TYPE_CHECKING:
    from pbvf_runs.compare.panels import Group, Panel
    from pbvf_runs.compare.policies import Comparison

BLUE, ORANGE, GREEN, RED = "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728"
PALETTE: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours that colour-blind readers can tell apart (Okabe and Ito), but for yellow on white."""
COLUMN: Final = 3.4
"""Width of a column of a paper, in inches."""
_LINE: Final = 64  # characters of 7 points in it; what is wider is cut off
_STYLES: Final = ("-", "--", "-.", ":")  # so that lines differ in print without colours too
_MOST_COLUMNS: Final = 3
FORMATS: Final = (".png", ".svg", ".pdf")
_MAKER: Final = "pbvf-offline"
_METADATA: Final[dict[str, dict[str, str | None]]] = {
    ".png": {"Software": _MAKER},
    ".svg": {"Date": None, "Creator": _MAKER},
    ".pdf": {"CreationDate": None, "Creator": _MAKER, "Producer": None},
}
_OWN: Final = re.compile(
    rb"\x89PNG\r\n\x1a\n.{0,100}tEXtSoftware\0pbvf-offline"
    rb"|<\?xml.*<dc:title>pbvf-offline<"
    rb"|%PDF-.*/Creator \(pbvf-offline\)",
    re.DOTALL,
)
_WHAT: Final = f"figure made by {_MAKER}"
_LARGEST: Final = 2**28
"""A figure has fewer bytes than this."""


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of so many inches."""
    # The object interface: no global state, no display, nothing for other code to trip over.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def is_figure(path: Path) -> bool:
    """Return whether a file is a figure that was made here, as its metadata say."""
    with contextlib.suppress(PbvfError):
        return _OWN.match(read_file(path, _LARGEST)) is not None
    return False


def check_figure(path: Path) -> None:
    """Check, before any work, that a figure can take a place, whose name says its format.

    Raises:
        UsageError: It does not.
        ConflictError: Something else is there than a figure that was made here.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"figures end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
            where=path,
            remedy="choose such a name",
        )
    refuse_foreign(path, is_figure, _WHAT)


def check_figures(folder: Path, *names: str) -> None:
    """Check, before hours of work, that what is in a folder may be replaced by figures.

    Args:
        folder: Where they are to be; it may not exist yet.
        names: Their names, in which ``*`` stands for anything.

    Raises:
        ConflictError: Something else is there than a figure that was made here, such as one of
            version 0.1.0, which bears no mark of its maker.
    """
    for path in (path for name in names for path in folder.glob(name)):
        refuse_foreign(path, is_figure, _WHAT)


def figure_image(figure: Any, suffix: str = ".png", *, dpi: int = 120) -> bytes:
    """Return a figure as the bytes of a file; equal figures give equal bytes.

    Args:
        figure: The figure.
        suffix: One of :data:`FORMATS`.
        dpi: Pixels an inch of a PNG.
    """
    from matplotlib import rc_context

    image = io.BytesIO()
    # Names inside an SVG are drawn by chance otherwise; journals want fonts of that type in a PDF.
    with rc_context({"svg.hashsalt": "pbvf", "pdf.fonttype": 42}):
        figure.savefig(image, format=suffix[1:], dpi=dpi, metadata=_METADATA[suffix])
    return image.getvalue()


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG, whole or not at all; equal figures give equal bytes.

    Raises:
        ConflictError: Something else is there than a figure that was made here.
        ResourceError: The disk or a permission refuses.
    """
    refuse_foreign(path, is_figure, _WHAT)
    write_file(path, figure_image(figure))


def keep_figure(figure: Any, path: Path, *, overwrite: bool) -> bool:
    """Write a figure in the format that its name says; return whether it was there already.

    Raises:
        UsageError: The name says none.
        ConflictError: Something else is there, and it is not to be overwritten.
        ResourceError: The disk or a permission refuses.
    """
    check_figure(path)
    image = figure_image(figure, path.suffix.lower(), dpi=200)
    if already_written(path, image, overwrite=overwrite, is_own=is_figure, what=_WHAT):
        return True
    write_file(path, image)
    return False


def legend_below(
    axes: Any, *, columns: int = 2, fontsize: float = 7, markerscale: float = 1
) -> None:
    """Put the legend of axes below them, where it hides nothing."""
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=columns,
        fontsize=fontsize,
        markerscale=markerscale,
        frameon=False,
    )


def shared_legend(figure: Any, axes: Any, *, columns: int, fontsize: float = 8) -> None:
    """Put the legend of axes that stands for all of a figure below it."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        fontsize=fontsize,
        frameon=False,
    )


def thousands(axes: Any) -> None:
    """Write steps on the horizontal axis of axes as 200,000, not as 0.2 with 1e6 beside it."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def draw_learning_curves(panels: Sequence[Panel], metric: str, statistic: str) -> Any:
    """Return a figure of learning curves, a panel an environment, as wide as a paper's column.

    With five runs or more a line is the statistic over them, with its 95 % bootstrap interval as
    a band; with fewer each run is a thin line too.

    Args:
        panels: What to draw.
        metric: A name of :data:`pbvf_runs.compare.learning_curves.METRICS`.
        statistic: A name of :data:`pbvf_runs.compare.statistics.STATISTICS`.
    """
    shown = METRICS[metric]
    columns = min(_MOST_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    most = max(len(panel.groups) for panel in panels)
    height = 2.3 + 0.15 * (most if most > 1 else 0)
    figure = new_figure(COLUMN * columns, height * rows + 0.25)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    # A label looks the same in every panel; a line alone in its panel has none.
    labels = dict.fromkeys(group.label for panel in panels for group in panel.groups)
    looks = {label: index for index, label in enumerate(filter(None, labels))}
    for axes, panel in zip(grid, panels, strict=False):
        counts = {len(group.curves) for group in panel.groups}
        equal = f" ({counted(counts.pop(), 'seed')})" if len(counts) == 1 else ""
        for group in panel.groups:
            n = "" if equal else counted(len(group.curves), "seed")
            label = ", ".join(filter(None, (group.label, n)))
            _draw_group(axes, group, looks.get(group.label, 0), label)
        axes.set_title(fill(f"{shorten(panel.title, 120)}{equal}", 46), fontsize=8)
        axes.set_xlabel(shown.axis, fontsize=8)
        axes.set_ylabel(shown.label, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.margins(x=0.02)
        thousands(axes)
        if len(panel.groups) > 1:
            legend_below(axes, columns=1)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    if text := _explanation(panels, statistic):
        figure.suptitle(fill(text, _LINE * columns), fontsize=7)
    return figure


def _draw_group(axes: Any, group: Group, index: int, label: str) -> None:
    color, style = PALETTE[index % len(PALETTE)], _STYLES[index % len(_STYLES)]
    found = group.estimate
    if found.low is not None and found.high is not None:
        axes.fill_between(group.steps, found.low, found.high, color=color, alpha=0.2, linewidth=0)
    elif len(group.curves) > 1:
        axes.plot(group.steps, group.values.T, color=color, alpha=0.4, linewidth=0.6)
    dot = {"marker": "o", "markersize": 3} if len(group.steps) == 1 else {}
    axes.plot(
        group.steps, found.value, color=color, linestyle=style, linewidth=1.4, label=label, **dot
    )


def _explanation(panels: Sequence[Panel], statistic: str) -> str:
    """Return what lines and bands are, for the title of a figure."""
    groups = [group for panel in panels for group in panel.groups]
    parts = []
    if any(len(group.curves) > 1 for group in groups):
        parts.append(f"line: {STATISTICS[statistic][0]} over the seeds")
    if any(group.estimate.low is not None for group in groups):
        parts.append("band: 95 % bootstrap interval")
    if any(1 < len(group.curves) < FEWEST for group in groups):
        parts.append("thin: each seed")
    return "; ".join(parts)


def draw_comparison(comparison: Comparison, names: tuple[str, str], title: str) -> Any:
    """Return a figure of two sets of policies: a dot a policy, and the interquartile mean.

    Args:
        comparison: What was measured of them.
        names: What the two are called, the first above.
        title: The environment and what was played.
    """
    sides = (comparison.first, comparison.second)
    figure = new_figure(COLUMN, 2.2)
    axes = figure.subplots()
    for place, (side, name, color) in enumerate(zip(sides, names, PALETTE, strict=False)):
        y, means = -float(place), np.sort(side.means)
        # Beside each other in the order of their returns, so that equal ones do not hide.
        below = y - 0.3 - 0.13 * (np.arange(len(means)) % 3)
        axes.scatter(means, below, s=14, color=color, alpha=0.6, linewidth=0)
        if side.iqm.low is not None and side.iqm.high is not None:
            axes.plot([side.iqm.low, side.iqm.high], [y, y], color=color, linewidth=5, alpha=0.35)
        mark = {"linestyle": "", "marker": "|", "markersize": 9, "markeredgewidth": 2}
        label = f"{shorten_left(name)}, {counted(len(means), 'policy')}"
        axes.plot([side.iqm.value], [y], color=color, label=label, **mark)
    axes.set_yticks([])
    axes.set_ylim(-1.75, 0.35)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xlabel("mean return of a policy", fontsize=8)
    bar = "" if all(s.iqm.low is None for s in sides) else "; bar: 95 % bootstrap interval"
    title = fill(shorten(title, 200), _LINE)
    figure.suptitle(f"{title}\nmark: interquartile mean{bar}; dot: a policy", fontsize=7)
    shared_legend(figure, axes, columns=1, fontsize=7)
    return figure


def shorten_left(text: str, limit: int = 50) -> str:
    """Return the end of a text, which tells paths apart.

    >>> shorten_left("runs/a/policy.safetensors", 20)
    '…/policy.safetensors'
    """
    return text if len(text) <= limit else f"…{text[1 - limit :]}"

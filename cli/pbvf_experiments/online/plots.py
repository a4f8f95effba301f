"""Figures of the online experiments, drawn from result files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_experiments.online.cells import OnlineCell, leaves_bonus_out, stored_runs
from pbvf_experiments.plots import SHADING, draw_band, seeds_in_words
from pbvf_runs.compare.figures import (
    BLUE,
    GREEN,
    ORANGE,
    legend_below,
    new_figure,
    save_figure,
    shared_legend,
    thousands,
)

_COLUMNS = 4
_PERCENTILES = (10, 25, 75, 90)


def curves(
    cell: OnlineCell, runs: Mapping[int, Mapping[str, Any]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return evaluation steps (E,) and mean returns (seeds, E) of finished runs of a cell.

    Without the survival bonus where the tables leave it out.
    """
    key = "returns_without_survival" if leaves_bonus_out(cell) else "returns"
    first = next(iter(runs.values()))["evaluations"]
    steps = np.array([e["step"] for e in first], np.int64)
    values = [
        [np.mean(e[key] or e["returns"]) for e in run["evaluations"]] for run in runs.values()
    ]
    return steps, np.array(values)


def draw_curves(
    panels: Mapping[str, Mapping[str, OnlineCell]],
    out: Path,
    seeds: Sequence[int],
    path: Path,
    *,
    fewest: int = 1,
) -> bool:
    """Draw learning curves: mean over seeds, and from the lowest to the highest seed.

    Args:
        panels: Title to line label to cell.
        out: Folder of the results; lines without a finished run are left out.
        seeds: Seeds to look for.
        path: The PNG to write.
        fewest: Lines that a panel must have: a comparison needs two.

    Returns:
        Whether there was anything to draw.
    """
    found = {
        title: {
            label: (cell, runs)
            for label, cell in lines.items()
            if (runs := stored_runs(out, cell, seeds))
        }
        for title, lines in panels.items()
    }
    found = {title: lines for title, lines in found.items() if len(lines) >= fewest}
    if not found:
        return False
    most = max(len(lines) for lines in found.values())
    figure, panel_axes = _grid(len(found), 2.7 + 0.16 * -(-most // 2))
    figure.suptitle(f"{SHADING}; n: number of seeds", fontsize=9)
    for axes, (title, lines) in zip(panel_axes, found.items(), strict=True):
        for label, (cell, runs) in lines.items():
            steps, values = curves(cell, runs)
            draw_band(axes, steps, values, label=f"{label}, n = {len(runs)}")
        axes.set_title(title, fontsize=9)
        axes.set_ylabel("return", fontsize=8)
        legend_below(axes)
    save_figure(figure, path)
    return True


def draw_sensitivity(
    panels: Mapping[str, Mapping[str, OnlineCell]], out: Path, seeds: Sequence[int], path: Path
) -> bool:
    """Draw percentiles over all learning curves of a tuning grid, the median as a line.

    Arguments and result as for :func:`draw_curves`.
    """
    found = {}
    for title, lines in panels.items():
        parts = [
            curves(cell, runs) for cell in lines.values() if (runs := stored_runs(out, cell, seeds))
        ]
        if parts:
            found[title] = (parts[0][0], np.concatenate([values for _, values in parts]))
    if not found:
        return False
    figure, panel_axes = _grid(len(found), 2.7)
    for axes, (title, (steps, values)) in zip(panel_axes, found.items(), strict=True):
        low, lower, upper, high = np.percentile(values, _PERCENTILES, axis=0)
        axes.fill_between(steps, low, high, color=BLUE, alpha=0.15, lw=0, label="10 to 90 %")
        axes.fill_between(steps, lower, upper, color=BLUE, alpha=0.3, lw=0, label="25 to 75 %")
        axes.plot(steps, np.median(values, axis=0), color=BLUE, label="median")
        axes.set_title(f"{title}, {len(values)} runs", fontsize=9)
        axes.set_ylabel("return", fontsize=8)
    shared_legend(figure, panel_axes[0], columns=3)
    save_figure(figure, path)
    return True


def draw_zero_shot(results: Mapping[int, Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw figure ``fig:scratch`` anew, means over seeds.

    Above: the learned policy and the best perturbed policy so far, while training. Below, one
    small plot a snapshot: policies grown by plain ascent through the frozen critic, the marks of
    the learned and the best perturbed policy, and the policies grown in the trust region.
    """
    seeds = sorted(results)
    snapshots = results[seeds[0]]["snapshots"]
    figure = new_figure(max(7.0, 2.6 * len(snapshots)), 6.6)
    figure.suptitle(f"{title}\n{seeds_in_words(len(seeds))}", fontsize=10)
    grid = figure.add_gridspec(2, len(snapshots))
    top = figure.add_subplot(grid[0, :])
    steps = [p["step"] for p in results[seeds[0]]["learning_curve"]]
    learned = np.array([[p["return"] for p in results[s]["learning_curve"]] for s in seeds])
    draw_band(top, steps, learned, color=BLUE, label="learned policy")
    best = np.array([_latest(results[s]["best_noisy"], steps) for s in seeds])
    draw_band(top, steps, best, color=ORANGE, label="best perturbed policy so far")
    for k, snapshot in enumerate(snapshots):
        label = "critic taken here, see below" if k == 0 else None
        top.axvline(snapshot["step"], color="grey", linestyle=":", linewidth=1, label=label)
    thousands(top)
    top.set_xlabel("environment steps")
    top.set_ylabel("return")
    legend_below(top, columns=3, fontsize=8)
    first = None
    for column, snapshot in enumerate(snapshots):
        axes = figure.add_subplot(grid[1, column], sharey=first)
        first = first or axes
        here = [results[s]["snapshots"][column] for s in seeds]
        along = [p["step"] for p in snapshot["plain"]["curve"]]
        grown = np.array([[np.mean(p["returns"]) for p in h["plain"]["curve"]] for h in here])
        draw_band(axes, along, grown, color=BLUE, label="grown, plain ascent")
        marks = {
            "grown, trust region (mean)": (
                np.mean([np.mean(h["region"]["returns"]) for h in here]),
                "--",
                BLUE,
            ),
            "learned policy (mean)": (np.mean([h["learned"] for h in here]), ":", "black"),
            "best perturbed (mean)": (np.mean([h["best_noisy"] for h in here]), "-", ORANGE),
            "nearest in the replay (mean)": (
                np.mean([np.mean(h["plain"]["closest"]) for h in here]),
                "-.",
                GREEN,
            ),
        }
        for label, (value, style, color) in marks.items():
            axes.axhline(value, color=color, linestyle=style, linewidth=1.2, label=label)
        axes.set_title(f"after {snapshot['step']:,} steps", fontsize=9)
        axes.set_xlabel("gradient step")
        if column == 0:
            axes.set_ylabel("return")
    shared_legend(figure, first, columns=3)
    save_figure(figure, path)


def draw_zero_shot_model(results: Mapping[int, Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw what grew through critics of imagined returns, a column of dots a seed.

    On the left their true returns, beside the run's learned policy, its best perturbed one, and
    what grew through its own critic; on the right imagined against true return, with the 90 %
    intervals of the models' members.
    """
    seeds = sorted(results)
    grown = [results[seed]["imagined"]["grown"] for seed in seeds]
    ends = [results[seed]["snapshots"][-1] for seed in seeds]
    figure = new_figure(10, 4.6)
    figure.suptitle(f"{title}\n{seeds_in_words(len(seeds), shaded=False)}", fontsize=10)
    left, right = figure.subplots(1, 2)
    places = np.arange(len(seeds))
    for k in range(len(grown[0]["returns"])):
        label = "grown, imagined returns" if k == 0 else None
        left.scatter(places, [g["returns"][k] for g in grown], color=BLUE, alpha=0.6, label=label)
    online = [np.mean(end["region"]["returns"]) for end in ends]
    left.scatter(places, online, color=GREEN, marker="x", label="grown, the run's critic (mean)")
    for name, label, color in (
        ("learned", "learned policy", "black"),
        ("best_noisy", "best perturbed", ORANGE),
    ):
        left.scatter(places, [end[name] for end in ends], color=color, marker="_", label=label)
    left.set_xticks(places, [str(seed) for seed in seeds])
    left.set_xlabel("seed")
    left.set_ylabel("return")
    legend_below(left)
    true = np.concatenate([g["returns"] for g in grown])
    imagined = np.concatenate([g["imagined"] for g in grown])
    errors = None
    if all(g["interval"] is not None for g in grown):
        low, high = np.concatenate([np.array(g["interval"], float) for g in grown], axis=1)
        errors = np.stack([imagined - low, high - imagined])  # NaN: no line
    label = "a grown policy" + ("" if errors is None else ", with the networks' 90 % interval")
    right.errorbar(
        imagined, true, xerr=errors, fmt="o", color=BLUE, alpha=0.6, linewidth=0.6, label=label
    )
    ends_of = [float(min(true.min(), imagined.min())), float(max(true.max(), imagined.max()))]
    right.plot(ends_of, ends_of, color="grey", linestyle=":", linewidth=1, label="imagined = true")
    legend_below(right)
    right.set_xlabel("imagined return")
    right.set_ylabel("true return")
    save_figure(figure, path)


def _latest(points: Sequence[Mapping[str, float]], steps: Sequence[int]) -> list[float]:
    """Return the value of the last point at or before each step; NaN before the first."""
    at = np.searchsorted([p["step"] for p in points], steps, side="right") - 1
    return [points[k]["return"] if k >= 0 else float("nan") for k in at]


def _grid(count: int, height: float) -> tuple[Any, Sequence[Any]]:
    """Return a figure and ``count`` axes of so many inches over environment steps in it."""
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    figure = new_figure(max(3.6 * columns, 5.0), height * rows + 0.3)
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for axes in grid[:count]:
        axes.tick_params(labelsize=7)
        thousands(axes)
        axes.set_xlabel("environment steps", fontsize=8)
    for axes in grid[count:]:
        axes.set_visible(False)
    return figure, grid[:count]

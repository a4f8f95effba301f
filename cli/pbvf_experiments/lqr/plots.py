"""Figures of the LQR experiment, drawn from its results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_experiments.lqr.figure import EXTENT, from_lines
from pbvf_runs.compare.figures import BLUE, RED, new_figure, save_figure, shared_legend

LOWEST = 0.1
"""Quantile of the true returns below which colours stop."""

_PREDICTIONS = {
    "pssvf": r"PSSVF $V_w(\theta)$",
    "psvf": r"PSVF $V_w(s_0, \theta)$",
    "pavf": r"PAVF $Q_w(s_0, \pi_\theta(s_0), \theta)$",
}
_ABOVE, _BELOW, _OUTSIDE = "#f4b6d2", "#1d2b26", "#eeeeee"
_TICKS = (-10, -100, -500, -1_000, -2_000, -4_000, -7_000, -10_000)


def draw_lqr(results: Mapping[str, Mapping[str, Any]], out: Path) -> list[Path]:
    """Draw figures ``fig:lqr_pvf``, ``fig:lqr_psvf`` and ``fig:lqr_pavf`` anew.

    For each critic one PNG of its first seed, true return and prediction at both stages,
    and one of all seeds at the second stage where there are several. Returns the PNGs.

    Raises:
        ResourceError: The disk or a permission refuses.

    Returns:
        The PNGs.
    """
    figures = []
    for name, result in results.items():
        figures.append(out / f"fig-lqr-{name}.png")
        _draw_stages(name, result, figures[-1])
        if len(result["runs"]) > 1:
            figures.append(out / f"fig-lqr-{name}-seeds.png")
            _draw_seeds(name, result, figures[-1])
    return figures


def _draw_stages(name: str, result: Mapping[str, Any], path: Path) -> None:
    seed, run = next(iter(result["runs"].items()))
    truth = from_lines(result["truth"]["returns"])
    figure = new_figure(11, 10.1)
    panels = figure.subplots(len(run["stages"]), 2, sharex=True, sharey=True)
    limit = _limit([run])
    image = None
    for row, stage in zip(panels, run["stages"], strict=True):
        count = stage["episodes"]
        for axes, values in zip(row, (truth, from_lines(stage["prediction"])), strict=True):
            image = _draw_map(axes, values, truth)
            _draw_points(axes, run, count)
            _draw_path(axes, run, count, result["look"], width=0.006)
            _mark_best(axes, result)
            _frame(axes, limit)
        row[0].set_title(f"true return; learned policy: {_number(stage['return'])}")
        row[1].set_title(f"{_PREDICTIONS[result['look']['kind']]} after {count:,} episodes")
        row[0].set_ylabel(f"after {count:,} episodes\n\nbias")
    for axes in panels[-1]:
        axes.set_xlabel("weight")
    shared_legend(figure, panels[0][0], columns=3)
    _colour_bar(figure, image, panels)
    figure.suptitle(
        f"{_title(name)}, seed {seed} of n = {len(result['runs'])}; "
        f"an arrow is {result['look']['arrow']} policy updates\n"
        f"{_colours_in_words(image, limit)}",
        fontsize=11,
    )
    save_figure(figure, path)


def _draw_seeds(name: str, result: Mapping[str, Any], path: Path) -> None:
    runs = result["runs"]
    truth = from_lines(result["truth"]["returns"])
    columns = min(3, len(runs) + 1)
    rows = -(-(len(runs) + 1) // columns)
    figure = new_figure(3.4 * columns + 1.2, 3.5 * rows + 0.4)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels = [grid[k // columns, k % columns] for k in range(rows * columns)]
    limit = _limit(list(runs.values()))
    image = _draw_map(panels[0], truth, truth)
    panels[0].set_title("true return", fontsize=10)
    episodes = result["look"]["episodes"][-1]
    for axes, (seed, run) in zip(panels[1:], runs.items(), strict=False):
        stage = run["stages"][-1]
        _draw_map(axes, from_lines(stage["prediction"]), truth)
        _draw_path(axes, run, episodes, result["look"], width=0.009)
        axes.set_title(f"seed {seed}; learned policy: {_number(stage['return'])}", fontsize=10)
    used = panels[: len(runs) + 1]
    for axes in used:
        _mark_best(axes, result)
        _frame(axes, limit)
    for axes in panels[len(used) :]:
        axes.set_axis_off()
    for axes in grid[-1]:
        axes.set_xlabel("weight")
    for axes in grid[:, 0]:
        axes.set_ylabel("bias")
    _colour_bar(figure, image, panels)
    kind = result["look"]["kind"]
    prediction = _PREDICTIONS[kind] + _title(name).removeprefix(kind.upper())
    figure.suptitle(
        f"{prediction} after {episodes:,} episodes, "
        f"n = {len(runs)} seeds; arrows: learned policy, star: best\n"
        f"{_colours_in_words(image, limit)}",
        fontsize=10,
    )
    save_figure(figure, path)


def _draw_map(axes: Any, values: NDArray[np.float64], truth: NDArray[np.float64]) -> Any:
    """Draw a grid of returns in colours that span the truth's own range.

    Returns span four orders of magnitude, so colours follow the square root of what is
    missing to the best. What no policy can reach has a colour of its own.
    """
    from matplotlib import colormaps
    from matplotlib.colors import FuncNorm

    best = float(truth.max())
    norm = FuncNorm(
        (
            lambda value: np.sign(value - best) * np.sqrt(np.abs(value - best)),
            lambda height: best + np.sign(height) * np.square(height),
        ),
        vmin=float(np.quantile(truth, LOWEST)),
        vmax=best,
    )
    colours = colormaps["YlGn_r"].with_extremes(over=_ABOVE, under=_BELOW)
    half = EXTENT / (len(values) - 1)  # pixels are centred on the grid's policies
    reach = EXTENT + half
    return axes.imshow(
        values,
        origin="lower",
        extent=(-reach, reach, -reach, reach),
        cmap=colours,
        norm=norm,
        interpolation="nearest",
    )


def _draw_points(axes: Any, run: Mapping[str, Any], count: int) -> None:
    points = from_lines(run["points"])[:count]
    axes.scatter(
        *points[:, :2].T,
        s=9,
        color=BLUE,
        edgecolor="white",
        linewidth=0.3,
        label="perturbed policies learned from",
    )


def _draw_path(
    axes: Any, run: Mapping[str, Any], count: int, look: Mapping[str, Any], width: float
) -> None:
    path = from_lines(run["path"])
    rounds = (len(path) - 1) * count // look["episodes"][-1]
    every = max(1, look["arrow"] // run["updates_per_round"])
    kept = path[[*range(0, rounds, every), rounds]]
    axes.plot(*kept.T, color=RED, linewidth=1, label="learned policy")
    axes.quiver(
        *kept[:-1].T,
        *np.diff(kept, axis=0).T,
        color=RED,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=width,
        minlength=0.1,
        zorder=3,
    )


def _mark_best(axes: Any, result: Mapping[str, Any]) -> None:
    axes.scatter(
        *result["truth"]["best"]["theta"], marker="*", s=90, color="black", zorder=4, label="best"
    )


def _limit(runs: Sequence[Mapping[str, Any]]) -> float:
    """Return the limit of both axes: the grid's, or what the learned policies need."""
    return max(EXTENT, *(float(np.abs(from_lines(run["path"])).max()) + 0.5 for run in runs))


def _frame(axes: Any, limit: float) -> None:
    axes.set_xlim(-limit, limit)
    axes.set_ylim(-limit, limit)
    axes.set_aspect("equal")
    axes.set_facecolor(_OUTSIDE)


def _colour_bar(figure: Any, image: Any, panels: Any) -> None:
    low, high = image.norm.vmin, image.norm.vmax
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    bar = figure.colorbar(image, ax=panels, extend="both", ticks=ticks, shrink=0.9, aspect=35)
    bar.ax.set_yticklabels([f"{tick:,}" for tick in ticks])
    bar.set_label("return, square root scale")


def _colours_in_words(image: Any, limit: float) -> str:
    return (
        f"dark: below the {LOWEST:.0%} quantile of the true returns, "
        f"{_number(image.norm.vmin)}; pink: above the best, {_number(image.norm.vmax)}"
        + ("; grey: not computed" if limit > EXTENT else "")
    )


def _title(name: str) -> str:
    """Return a critic's name as people write it.

    >>> _title("psvf-relu")
    'PSVF with ReLU'
    """
    kind, _, activation = name.partition("-")
    return kind.upper() + (" with ReLU" if activation == "relu" else f" {activation}".rstrip())


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

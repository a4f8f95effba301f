"""Figures, drawn from result files alone."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pbvf_offline.io.durable import write_file

BLUE, ORANGE, GREEN, RED = "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728"


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of so many inches."""
    # The object interface: no global state, no display, nothing for other code to trip over.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG, whole or not at all; equal figures give equal bytes.

    Raises:
        ResourceError: The disk or a permission refuses.
    """
    image = io.BytesIO()
    figure.savefig(image, dpi=120, metadata={"Software": None})
    write_file(path, image.getvalue())


def draw_synthesis(result: Mapping[str, Any], path: Path, title: str) -> None:
    """Draw the return of synthesized policies along the ascent beside the dataset's marks.

    Args:
        result: ``curve`` (``step``, ``returns``), ``returns``, ``chosen_step``,
            ``best_episode`` and ``closest``.
        path: The PNG to write.
        title: The figure's title.

    Raises:
        ResourceError: The disk or a permission refuses.
    """
    figure = new_figure(7.5, 4.5)
    axes = figure.subplots()
    steps = [point["step"] for point in result["curve"]]
    returns = np.array([point["returns"] for point in result["curve"]])
    for k in range(returns.shape[1]):
        label = "policies grown from random weights" if k == 0 else None
        axes.plot(steps, returns[:, k], color=BLUE, alpha=0.45, linewidth=1.2, label=label)
    axes.plot(steps, returns.mean(axis=1), color=BLUE, linewidth=2.5, label="their mean")
    axes.scatter(
        result["chosen_step"],
        result["returns"],
        color=BLUE,
        edgecolor="black",
        zorder=5,
        label="at the step that the critic chose",
    )
    axes.axhline(result["best_episode"], color=ORANGE, label="best episode in the dataset")
    axes.axhline(
        float(np.mean(result["closest"])),
        color=GREEN,
        linestyle="--",
        label="nearest dataset policies (mean)",
    )
    axes.set_xlabel("gradient step through the frozen critic")
    axes.set_ylabel("undiscounted return")
    axes.set_title(title)
    axes.legend(fontsize=8)
    save_figure(figure, path)


def draw_offline(results: Mapping[int, Mapping[str, Any]], path: Path) -> None:
    """Draw figure ``fig:offline`` anew: TD error above, small return curves below.

    Means over dataset seeds. The band of the TD error spans the seeds, those of the returns
    are one standard deviation over them.

    Raises:
        ResourceError: The disk or a permission refuses.
    """
    seeds = sorted(results)
    keys = [k for k in results[seeds[0]]["paper"] if k.startswith("plain_")]
    figure = new_figure(2.3 * len(keys), 6)
    grid = figure.add_gridspec(2, len(keys))
    top = figure.add_subplot(grid[0, :])
    losses = np.array([[loss for _, loss in results[s]["paper"]["loss"]] for s in seeds])
    updates = [update for update, _ in results[seeds[0]]["paper"]["loss"]]
    top.plot(updates, losses.mean(axis=0), color=GREEN)
    top.fill_between(
        updates, losses.min(axis=0), losses.max(axis=0), color=GREEN, alpha=0.2, linewidth=0
    )
    if losses.size:
        top.set_yscale("log")
    top.set_xlabel("updates of the PSVF (one-step TD)")
    top.set_ylabel("mean squared TD error")
    best = np.mean([results[s]["best_episode"] for s in seeds])
    policy = np.mean([results[s]["best_policy"] for s in seeds])
    first = None
    for column, key in enumerate(keys):
        axes = figure.add_subplot(grid[1, column], sharey=first)
        first = first or axes
        curves = np.array(
            [
                [np.mean(point["returns"]) for point in results[s]["paper"][key]["curve"]]
                for s in seeds
            ]
        )
        steps = [point["step"] for point in results[seeds[0]]["paper"][key]["curve"]]
        mean, spread = curves.mean(axis=0), curves.std(axis=0)
        axes.plot(steps, mean, color=BLUE, label="from scratch")
        axes.fill_between(steps, mean - spread, mean + spread, color=BLUE, alpha=0.2, linewidth=0)
        axes.axhline(best, color=ORANGE, label="best episode")
        axes.axhline(policy, color=RED, linestyle="--", label="best policy, whole episodes")
        axes.set_title(f"{int(key.removeprefix('plain_')):,} updates", fontsize=9)
        axes.set_xlabel("gradient step")
        if column == 0:
            axes.set_ylabel("return")
            axes.legend(fontsize=7)
    save_figure(figure, path)

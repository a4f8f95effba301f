"""Everything that ``pbvf reproduce`` can make: a table from names to functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pbvf_experiments.cells import choose_cells
from pbvf_experiments.online.cells import (
    OnlineCell,
    measured_cells,
    run_cells,
    stochastic_cells,
    table_cells,
)
from pbvf_experiments.online.plots import (
    draw_curves,
    draw_sensitivity,
    draw_zero_shot,
    draw_zero_shot_model,
)
from pbvf_experiments.online.tables import Row, agreement, as_markdown, table_rows
from pbvf_experiments.online.variants import (
    Panels,
    ablation_panels,
    learning_curve_panels,
    panel_cells,
    sensitivity_panels,
)
from pbvf_experiments.plots import draw_offline
from pbvf_offline.errors import UsageError
from pbvf_offline.io.durable import write_file
from pbvf_runs.compare.figures import check_figures

Rows = Sequence[Mapping[str, float | str | None]]
Note = Callable[[str], None]
Wanted = Sequence[tuple[OnlineCell, Sequence[int]]]
_SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        out: Folder of results and figures; runs go to its ``work`` folder.
        seeds: Seeds; None: the experiment's own.
        cells: Comma-separated patterns of cell names; None: the experiment's own choice.
        workers: Number of runs, or of processes that run episodes, at once.
        run: Whether to run what is missing; else what is there is shown.
        note: Told of each finished stage.
    """

    out: Path
    seeds: tuple[int, ...] | None
    cells: str | None
    workers: int
    run: bool
    note: Note


@dataclass(frozen=True)
class Reproduction:
    """What came of it.

    Attributes:
        rows: A table, one mapping a row with the same keys.
        figures: The PNGs drawn.
    """

    rows: Rows
    figures: tuple[Path, ...]


def _offline(request: Request) -> Reproduction:
    from pbvf_experiments.offline.experiment import run_offline, summary
    from pbvf_experiments.offline.plots import draw_estimates, draw_recipes
    from pbvf_experiments.offline.settings import EVALUATION, OfflineSettings, parse_recipes

    settings = OfflineSettings(workers=request.workers, recipes=parse_recipes(request.cells))
    seeds = list(range(10)) if request.seeds is None else list(request.seeds)
    _must_run(request, "fig-offline")
    drawn = {
        "fig-offline.png": draw_offline if "paper" in settings.recipes else None,
        "recipes.png": draw_recipes,
        "estimates.png": draw_estimates if EVALUATION in settings.recipes else None,
    }
    check_figures(request.out, *(name for name, draw in drawn.items() if draw is not None))
    results = run_offline(settings, seeds, request.out, request.note)
    figures = []
    for name, draw in drawn.items():
        if draw is not None:
            figures.append(request.out / name)
            draw(results, figures[-1])
    return Reproduction(summary(results), tuple(figures))


def _environments(request: Request) -> Reproduction:
    from pbvf_experiments.offline.environments import CELLS, run_environments, summary

    _must_run(request, "environments")
    results = run_environments(
        choose_cells(CELLS, request.cells),
        _SEEDS if request.seeds is None else request.seeds,
        request.out,
        request.note,
        workers=request.workers,
    )
    return Reproduction(summary(results), ())


def _lqr(request: Request) -> Reproduction:
    from pbvf_experiments.lqr.figure import LqrSettings, run_lqr, summary
    from pbvf_experiments.lqr.plots import draw_lqr

    _must_run(request, "fig-lqr")
    seeds = _SEEDS if request.seeds is None else request.seeds
    kinds = None if request.cells is None else tuple(request.cells.split(","))
    check_figures(request.out, "fig-lqr-*.png")
    results = run_lqr(LqrSettings(), list(seeds), request.out, request.note, kinds=kinds)
    return Reproduction(summary(results), tuple(draw_lqr(results, request.out)))


def _zero_shot(request: Request) -> Reproduction:
    from pbvf_experiments.online.zero_shot import (
        choose_zero_shot,
        run_zero_shot_seeds,
        zero_shot_rows,
    )

    _must_run(request, "fig-zero-shot")
    seeds = tuple(range(10)) if request.seeds is None else request.seeds
    rows: list[Mapping[str, float | str | None]] = []
    figures = []
    cells = choose_zero_shot(request.cells)
    check_figures(request.out, *(f"{cell.name}.png" for cell in cells))
    for cell in cells:
        results = run_zero_shot_seeds(
            cell, seeds, request.out, workers=request.workers, note=request.note
        )
        rows += [{"cell": cell.name, **row} for row in zero_shot_rows(results)]
        figures.append(request.out / f"{cell.name}.png")
        draw = draw_zero_shot_model if cell.model else draw_zero_shot
        draw(results, figures[-1], cell.title)
    names = dict.fromkeys(name for row in rows for name in row)
    return Reproduction([{name: row.get(name) for name in names} for row in rows], tuple(figures))


def _table(request: Request) -> Reproduction:
    wanted = _wanted(request, [*table_cells(), *stochastic_cells()])
    _run(request, wanted)
    rows = table_rows(request.out, wanted)
    if request.cells is None:
        write_file(request.out / "table.md", as_markdown(rows).encode())
    agree, counted = agreement(rows)
    if counted:
        request.note(
            f"{agree} of {counted} cells agree with the paper (Reacher aside; an unfinished "
            "cell counts as one that does not)"
        )
    return Reproduction(rows, ())


def _learning_curves(request: Request) -> Reproduction:
    wanted = _wanted(request, [*table_cells(), *stochastic_cells()])
    panels = learning_curve_panels([cell for cell, _ in wanted])
    figures = _drawn(request, "fig-learning-curves", wanted, panels, draw_curves)
    return Reproduction(table_rows(request.out, wanted), figures)


def _ablations(request: Request) -> Reproduction:
    panels = ablation_panels()
    wanted = _wanted(request, panel_cells(panels), measured=False)
    draw = functools.partial(draw_curves, fewest=2 if request.cells is None else 1)
    figures = _drawn(request, "fig-ablations", wanted, panels, draw)
    return Reproduction(_begun(request, wanted), figures)


def _sensitivity(request: Request) -> Reproduction:
    panels = sensitivity_panels()
    wanted = _wanted(request, panel_cells(panels), measured=False)
    figures = _drawn(request, "fig-sensitivity", wanted, panels, draw_sensitivity)
    return Reproduction(_begun(request, wanted), figures)


def _drawn(
    request: Request, name: str, wanted: Wanted, panels: Panels, draw: Callable[..., bool]
) -> tuple[Path, ...]:
    """Run what is wanted and draw those lines of panels; return the figure, if there is one."""
    path = request.out / f"{name}.png"
    check_figures(request.out, path.name)
    _run(request, wanted)
    cells = {cell.name for cell, _ in wanted}
    shown = {
        title: kept
        for title, lines in panels.items()
        if (kept := {label: cell for label, cell in lines.items() if cell.name in cells})
    }
    seeds = sorted({seed for _, seeds in wanted for seed in seeds})
    return (path,) if draw(shown, request.out, seeds, path) else ()


def _begun(request: Request, wanted: Wanted) -> list[Row]:
    """Return the rows of cells; of the many that nobody ran, only how many they are."""
    rows = table_rows(request.out, wanted)
    if request.run:
        return rows
    begun = [row for row in rows if row["return"] is not None]
    if len(begun) < len(rows):
        request.note(f"{len(rows) - len(begun):,} cells without a finished run are left out")
    return begun or rows[:1]


REPRODUCTIONS: dict[str, Callable[[Request], Reproduction]] = {
    "fig-lqr": _lqr,
    "fig-learning-curves": _learning_curves,
    "fig-zero-shot": _zero_shot,
    "fig-offline": _offline,
    "environments": _environments,
    "fig-ablations": _ablations,
    "fig-sensitivity": _sensitivity,
    "table": _table,
}


def _must_run(request: Request, name: str) -> None:
    """Refuse to show without running where results are not kept run by run.

    Raises:
        UsageError: It is asked for.
    """
    if not request.run:
        raise UsageError(f"{name} has nothing to show without its runs", where="--no-run")


def _wanted(request: Request, cells: list[OnlineCell], *, measured: bool = True) -> Wanted:
    """Return the cells asked for, each with its seeds."""
    own = {cell.name: count for cell, count in measured_cells()}
    named = {cell.name: cell for cell in cells}
    if measured:
        named |= {cell.name: cell for cell, _ in measured_cells()}
    if request.cells is None and measured:
        chosen = [cell for cell, _ in measured_cells()]
    else:
        chosen = choose_cells(list(named.values()), request.cells)
    return [
        (cell, request.seeds or tuple(range(own.get(cell.name, len(_SEEDS))))) for cell in chosen
    ]


def _run(request: Request, wanted: Wanted) -> None:
    if request.run:
        work = [(cell, seed) for cell, seeds in wanted for seed in seeds]
        run_cells(work, request.out, workers=request.workers, note=request.note)

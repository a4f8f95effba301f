"""Tables of the online experiments, made from result files alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pbvf_experiments.online.cells import (
    OURS,
    OnlineCell,
    compared_return,
    has_bonus,
    stored_runs,
)
from pbvf_experiments.paper_results import agrees, paper_result
from pbvf_runs.compare.statistics import interval

Row = dict[str, float | str | None]


def _is_the_papers(cell: OnlineCell) -> bool:
    """Return whether the paper's result tables have this cell."""
    return not (cell.stochastic or cell.biased or cell.changes or cell.steps is not None)


def table_rows(out: Path, wanted: Iterable[tuple[OnlineCell, Sequence[int]]]) -> list[Row]:
    """Return one row a cell: what was measured beside what the paper has.

    ``return``: mean over seeds of the metric that the cell's hyperparameters are best for;
    ``agrees``: above the paper's mean, or below it by no more than the larger of its standard
    deviation and 5 % of the task's range.

    Args:
        out: Folder of the experiment.
        wanted: Cells and the seeds wanted of each; unfinished ones stay in the table.
    """
    rows: list[Row] = []
    for cell, seeds in wanted:
        runs = stored_runs(out, cell, seeds)
        row: Row = {
            "cell": cell.name,
            "seeds": f"{len(runs)}/{len(seeds)}",
            "return": None,
            "std": None,
            "low": None,
            "high": None,
            "values": None,
            "last fifth": None,
            "perturbed": None,
            "with bonus": None,
            "paper": None,
            "paper std": None,
            "agrees": None,
        }
        if runs:
            measured = interval([compared_return(cell, r, cell.metric) for r in runs.values()])
            row |= {
                "return": measured.mean,
                "std": measured.std,
                "low": measured.low,
                "high": measured.high,
            }
            if measured.low is None:
                row["values"] = "; ".join(_text(value) for value in measured.values)
            late = [compared_return(cell, r, "last") for r in runs.values()]
            row["last fifth"] = interval(late).mean
            if has_bonus(cell):
                key = "average_return" if cell.metric == "avg" else "last20_return"
                row["with bonus"] = interval([float(r[key]) for r in runs.values()]).mean
            if cell.algorithm in OURS:
                row["perturbed"] = _perturbed_mean(list(runs.values()))
        paper = None
        if _is_the_papers(cell):
            paper = paper_result(cell.algorithm, cell.env, cell.hidden, cell.metric)
        if paper is not None:
            row |= {"paper": paper.mean, "paper std": paper.std}
            if len(runs) < len(seeds):
                row["agrees"] = "unfinished"
            else:
                mean = row["return"]
                good = isinstance(mean, float) and agrees(
                    mean, cell.algorithm, cell.env, cell.hidden, cell.metric
                )
                row["agrees"] = "yes" if good else "no"
                other = row["with bonus"]
                if (
                    not good
                    and isinstance(other, float)
                    and agrees(other, cell.algorithm, cell.env, cell.hidden, cell.metric)
                ):
                    row["agrees"] = "only with the bonus"
        rows.append(row)
    return rows


def _perturbed_mean(runs: Sequence[dict[str, object]]) -> float:
    """Return the mean training return of the perturbed policies, window by window."""
    means = []
    for run in runs:
        windows = run["perturbed"]
        values = [w for w in windows if w is not None] if isinstance(windows, list) else []
        means.append(sum(values) / len(values) if values else float("nan"))
    return sum(means) / len(means)


def agreement(rows: Sequence[Row]) -> tuple[int, int]:
    """Return how many cells agree and how many the paper has, Reacher left aside.

    An unfinished cell counts as one that does not.
    """
    counted = [r for r in rows if r["agrees"] is not None and "Reacher" not in str(r["cell"])]
    return sum(r["agrees"] == "yes" for r in counted), len(counted)


def as_markdown(rows: Sequence[Row]) -> str:
    """Return a table of cells as a Markdown page."""
    agree, counted = agreement(rows)
    lines = [
        "# Online training beside the paper's tables",
        "",
        "Mean and standard deviation over seeds of the undiscounted return of the unperturbed",
        "policy, over the evaluations of a whole run; *last fifth*: over those of its last 20 % of",
        "steps; *perturbed*: what the perturbed policies got in training, a mean of each hundredth",
        "of the steps and then over these, so weighted by steps and not by episodes. On Hopper,",
        "PBVFs without the survival bonus, but for *perturbed* and *with bonus*. *Interval*: 95 %",
        "percentile bootstrap of the mean over seeds, which is too narrow for five (it holds about",
        "84 %); of fewer than five seeds the values themselves.",
        "",
        "| cell | seeds | return | interval or values | last fifth | perturbed | with bonus "
        "| paper | agrees |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        span = f"{_text(row['low'])} to {_text(row['high'])}"
        interval_ = str(row["values"] or "-") if row["low"] is None else span
        paper = "-" if row["paper"] is None else f"{row['paper']:g} ± {row['paper std']:g}"
        spread = "" if row["std"] is None else f" ± {_text(row['std'])}"
        parts = [
            str(row["cell"]),
            str(row["seeds"]),
            _text(row["return"]) + spread,
            interval_,
            _text(row["last fifth"]),
            _text(row["perturbed"]),
            _text(row["with bonus"]),
            paper,
            str(row["agrees"] or "-"),
        ]
        lines.append("| " + " | ".join(parts) + " |")
    lines += [
        "",
        f"{agree} of {counted} cells agree (Reacher aside, unfinished cells counting against).",
        "",
    ]
    return "\n".join(lines)


def _text(value: float | str | None) -> str:
    if not isinstance(value, float | int):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"

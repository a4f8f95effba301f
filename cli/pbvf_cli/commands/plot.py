"""``pbvf plot``: learning curves of training runs and fits."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pbvf_cli.shared import values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_runs.compare.learning_curves import Curve
    from pbvf_runs.compare.panels import Group, Panel


_EITHER = "95 % interval, or of each seed"


class Statistic(StrEnum):
    """What a line is, over the runs of a group."""

    IQM = "iqm"
    MEAN = "mean"
    MEDIAN = "median"


_WORDS = {Statistic.IQM: "interquartile mean", Statistic.MEAN: "mean", Statistic.MEDIAN: "median"}


class MetricName(StrEnum):
    """What is drawn."""

    RETURN = "return"
    WITHOUT_SURVIVAL = "return-without-survival"
    PERTURBED = "perturbed-return"
    LOSS = "loss"
    CAUTIOUS = "cautious"
    OBJECTIVE = "objective"
    GROWN = "grown-return"


@command(
    "pbvf plot runs/pendulum --out curve.png",
    "pbvf plot runs/pssvf runs/psvf --statistic mean --out curves.pdf",
    "pbvf plot runs/pendulum --metric perturbed-return --out perturbed.svg --json",
    "pbvf plot logs/critic --out loss.png",
)
def plot(
    runs: Annotated[
        list[Path],
        argument("RUN…", "Folders of runs, of several seeds, or of the --log-dir of fits."),
    ],
    *,
    out: Annotated[Path, option("--out", "The figure: .png, .svg or .pdf.", "FILE")],
    metric: Annotated[
        MetricName | None,
        option(
            "--metric",
            "What is drawn: of runs the returns of evaluations, the same without survival bonus, "
            "or those of the perturbed policies; of fits the loss, of fits to imagined episodes "
            "the cautious return of each round, of syntheses the objective or the measured return.",
            "NAME",
            default="return; of fits loss, cautious or objective",
        ),
    ] = None,
    statistic: Annotated[
        Statistic | None,
        option(
            "--statistic",
            "A line over several seeds: iqm is the interquartile mean.",
            default=Statistic.IQM,
        ),
    ] = None,
    overwrite: Annotated[bool, option("--overwrite", "Replace the figure.")] = False,
    sink: Sink,
) -> None:
    """Draw learning curves: a line for runs with equal settings, a panel for each environment.

    With five seeds or more a line has its 95 % bootstrap interval, with fewer each seed is drawn.
    """
    from pbvf_runs.compare.figures import check_figure, draw_learning_curves, keep_figure
    from pbvf_runs.compare.learning_curves import curve_folders, natural_metric, read_curve
    from pbvf_runs.compare.panels import panels

    check_figure(values.output_file(out))
    folders = curve_folders(runs)
    table = SettingsTable()
    table.show("runs", tuple(map(str, runs)))
    name = table.choose("metric", metric, lambda: MetricName(natural_metric(folders)))
    statistic = table.choose("statistic", statistic, Statistic.IQM)
    table.show("out", out)
    sink.settings("pbvf plot", table.settings)
    curves = [read_curve(folder, name) for folder in folders]
    drawn = [curve for curve in curves if len(curve.steps)]
    _note_unfinished(sink, curves)
    if not drawn:
        raise UsageError(
            "nothing was measured yet", where=folders[0], remedy="let it go on, and try again"
        )
    shown = panels(drawn, name, statistic)
    figure = draw_learning_curves(shown, name, statistic)
    complete = keep_figure(figure, out, overwrite=overwrite)
    _print(sink, out, shown, name, statistic, already_complete=complete)


def _note_unfinished(sink: Sink, curves: list[Curve]) -> None:
    for curve in curves:
        if not len(curve.steps):
            sink.note(f"note: {curve.folder}: nothing was measured yet, so it is left out")
        elif not curve.finished:
            sink.note(
                f"note: {curve.folder}: not finished; its line ends at step {curve.steps[-1]:,}"
            )


def _print(
    sink: Sink,
    out: Path,
    shown: list[Panel],
    metric: str,
    statistic: str,
    *,
    already_complete: bool,
) -> None:
    payload = {
        "out": out,
        "metric": metric,
        "statistic": statistic,
        "panels": [
            {"title": panel.title, "groups": [_group(group) for group in panel.groups]}
            for panel in shown
        ],
        "already_complete": already_complete,
    }
    known = {_interval(group) is not None for panel in shown for group in panel.groups}
    last = _EITHER if len(known) > 1 else "95 % interval" if True in known else "of each seed"
    value = f"{_WORDS[Statistic(statistic)]} at that step"
    header = ("panel", "line", "seed numbers", "last step", value, last)
    lines = [
        (
            panel.title,
            group.label or "-",
            ",".join(str(curve.seed) for curve in group.curves),
            f"{group.steps[-1]:,}",
            number(float(group.estimate.value[-1])),
            _interval(group) or "; ".join(number(v) for v in group.values[:, -1].tolist()),
        )
        for panel in shown
        for group in panel.groups
    ]
    rows = [("figure", str(out)), ("metric", metric)]
    sink.result(payload, rows, table=(header, lines), place=out)


def _interval(group: Group) -> str | None:
    """Return the interval at the last step; None where there are too few seeds for one."""
    found = group.estimate
    if found.low is None or found.high is None:
        return None
    return f"{number(float(found.low[-1]))} to {number(float(found.high[-1]))}"


def _group(group: Group) -> dict[str, Any]:
    return {
        "label": group.label,
        "differs": group.differs,
        "settings": group.settings,
        "seeds": [curve.seed for curve in group.curves],
        "runs": [curve.folder for curve in group.curves],
        "finished": [curve.finished for curve in group.curves],
        "steps": group.steps,
        "values": group.values,
        **group.estimate.to_dict(),
    }

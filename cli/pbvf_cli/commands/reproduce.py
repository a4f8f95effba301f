"""``pbvf reproduce``: the paper's figures and tables, measured again."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import DeviceName, argument, option
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_experiments.offline.settings import RECIPES
from pbvf_offline.errors import ConflictError, UsageError

_OF_RESULTS = {"raw", "work", "table.md"}


class Name(StrEnum):
    """What can be reproduced."""

    FIG_LQR = "fig-lqr"
    FIG_LEARNING_CURVES = "fig-learning-curves"
    FIG_ZERO_SHOT = "fig-zero-shot"
    FIG_OFFLINE = "fig-offline"
    ENVIRONMENTS = "environments"
    FIG_ABLATIONS = "fig-ablations"
    FIG_SENSITIVITY = "fig-sensitivity"
    TABLE = "table"


@command(
    "pbvf reproduce fig-offline --seeds 0-9 --out docs/results/fig-offline",
    "pbvf reproduce fig-zero-shot --workers 2 --out docs/results/fig-zero-shot",
    "pbvf reproduce table --cells 'pssvf-linear-*' --seeds 0-4 --workers 2 "
    "--out docs/results/table",
    "pbvf reproduce environments --cells 'Hopper-v5-*,*-linear' --seeds 0-4 "
    "--out docs/results/environments",
    "pbvf reproduce table --no-run --out docs/results/table",
    continues=True,
)
def reproduce(
    name: Annotated[Name, argument("NAME", f"One of {', '.join(n.value for n in Name)}.")],
    *,
    out: Annotated[
        Path,
        option(
            "--out",
            "Folder of results and figures; runs, datasets and critics go to its 'work' "
            "folder. The table and the learning curves can share one.",
            "DIR",
        ),
    ],
    seeds: Annotated[
        str | None,
        option(
            "--seeds",
            "Seeds of each cell.",
            "0-4",
            default="10 for fig-offline and fig-zero-shot, else 5 or 3 a cell",
        ),
    ] = None,
    cells: Annotated[
        str | None,
        option(
            "--cells",
            "Which cells, by name, separated by commas; * stands for anything. "
            f"fig-offline: {', '.join(RECIPES)}. fig-lqr: pssvf, psvf, pavf. "
            "environments: ENV-linear and ENV-64x64.",
            "NAMES",
            default="those of the results page; all of the ablations and the grid",
        ),
    ] = None,
    run: Annotated[
        bool,
        option("--run/--no-run", "Run what is missing, or show what is there (runs of a table)."),
    ] = True,
    workers: Annotated[
        int | None,
        options.counting(
            "--workers",
            "Processes at once; results do not change.",
            most=options.MOST_WORKERS,
            show_default="1",
        ),
    ] = None,
    ray: options.Ray = None,
    device: options.Device = DeviceName.AUTO,
    sink: Sink,
) -> None:
    """Run an experiment cell by cell; finished cells are read back, others continue.

    Every random number of a cell comes from its seed.
    """
    devices.runs_on_cpu(device, sink)
    out = values.output_folder(out)
    if not run:
        _check_results(out)

    from pbvf_experiments.reproductions import REPRODUCTIONS, Request
    from pbvf_runs.seeds import parse_seeds

    chosen = None if seeds is None else tuple(parse_seeds(seeds))
    with devices.units(workers, ray, SettingsTable(), shared=out) as at_once:
        request = Request(out, chosen, cells, at_once, run, sink.note)
        done = REPRODUCTIONS[name.value](request)
    header = list(done.rows[0])

    def shown(value: float | str | None) -> str:
        return value if isinstance(value, str) else number(value, 4)

    figures = [str(path) for path in done.figures]
    sink.result(
        {
            "results": out,
            "figure": figures[0] if figures else None,
            "figures": figures,
            "table": list(done.rows),
        },
        [("results", str(out)), *(("figure", path) for path in figures or ["-"])],
        table=(header, [[shown(row[column]) for column in header] for row in done.rows]),
    )


def _check_results(out: Path) -> None:
    """Check that a folder which is only to be looked at is one of results.

    Raises:
        UsageError: It does not exist.
        ConflictError: It holds other things and no results.
    """
    if not out.is_dir():
        raise UsageError(
            "does not exist",
            where=out,
            remedy="give the --out of an earlier 'pbvf reproduce', or leave --no-run out",
        )
    names = {path.name for path in out.iterdir()}
    if names and not names & _OF_RESULTS:
        raise ConflictError(
            "holds other things and no results",
            where=out,
            remedy="give the --out of an earlier 'pbvf reproduce'",
        )

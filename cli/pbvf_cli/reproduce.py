"""``pbvf reproduce``: the paper's figures and tables, measured again."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pbvf_cli import options
from pbvf_cli.output import Sink, number

EXAMPLES = """Examples:

pbvf reproduce fig-offline --seeds 0-9 --out docs/results/fig-offline"""


class Name(StrEnum):
    """What can be reproduced."""

    FIG_OFFLINE = "fig-offline"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("reproduce", epilog=EXAMPLES)(reproduce)


def reproduce(
    name: Annotated[Name, typer.Argument(metavar="NAME", help="What to reproduce: fig-offline.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder of results and figure; datasets and critics go to its 'work' folder.",
        ),
    ],
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="0-4", help="Dataset seeds; each is one cell.")
    ] = "0-9",
    cells: Annotated[
        str | None,
        typer.Option(
            "--cells",
            metavar="default,paper",
            help="Which critics: this project's default recipe, the paper's.",
            show_default="default,paper",
        ),
    ] = None,
    workers: options.Workers = 1,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Run an experiment cell by cell; finished cells are read back, others continue.

    Every random number of a cell comes from its seed.
    """
    del debug, name  # the error boundary looks for it; there is one experiment so far
    sink = Sink(json_only=json_only, quiet=quiet)

    from pbvf_experiments.cells import parse_seeds
    from pbvf_experiments.offline import OfflineSettings, parse_recipes, run_offline, summary
    from pbvf_experiments.plots import draw_offline

    settings = OfflineSettings(workers=workers, recipes=parse_recipes(cells))
    results = run_offline(settings, parse_seeds(seeds), out, sink.note)
    table = summary(results)
    figure = None
    if "paper" in settings.recipes:
        figure = out / "fig-offline.png"
        draw_offline(results, figure)
    header = list(table[0])

    def shown(value: float | str) -> str:
        return value if isinstance(value, str) else number(value, 4)

    sink.result(
        {"results": out, "figure": figure, "table": table},
        [("results", str(out)), ("figure", "-" if figure is None else str(figure))],
        table=(
            header,
            [[shown(row[column]) for column in header] for row in table],
        ),
    )

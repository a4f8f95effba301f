"""``pbvf info``: what is in anything that this project writes."""

from __future__ import annotations

from typing import Annotated

from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument
from pbvf_cli.shared.terminal.output import Sink


@command(
    "pbvf info lab/swimmer-v0", "pbvf info critic.safetensors --json", "pbvf info runs/pendulum"
)
def info(
    path: Annotated[
        str,
        argument(
            "PATH",
            "A dataset's id or folder, a critic, model, policies or checkpoint file, an exported "
            "policy, the folder of a run or of several, an archive or a signature.",
        ),
    ],
    *,
    sink: Sink,
) -> None:
    """Show what something holds, what it was made from and with what settings.

    What it is, its content tells. Nothing in it is run. 'pbvf verify' checks it.
    """
    from pbvf_cli.shared.kinds import KINDS
    from pbvf_runs.kinds import kind_of

    kind, found = kind_of(path)
    shown = KINDS[kind].show(found)
    sink.result({"kind": kind, **shown.payload}, [("kind", kind), *shown.rows], table=shown.table)

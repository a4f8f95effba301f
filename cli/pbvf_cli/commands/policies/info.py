"""``pbvf policies info``: what a policies file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument
from pbvf_cli.shared.terminal.output import Sink


@command(
    "pbvf policies info policies.safetensors", "pbvf policies info policies.safetensors --json"
)
def info(
    policies: Annotated[Path, argument("POLICIES", "A policies file.")], *, sink: Sink
) -> None:
    """Show what a policies file holds; nothing in it is run, and no environment is built."""
    from pbvf_cli.shared.inputs.data import refuse_folder
    from pbvf_cli.shared.kinds import show
    from pbvf_runs.records import POLICY_FILE

    refuse_folder(policies, "policies", POLICY_FILE)
    shown = show("policies", policies)
    sink.result(shown.payload, shown.rows, table=shown.table)

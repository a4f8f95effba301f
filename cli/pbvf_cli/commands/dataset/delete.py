"""``pbvf dataset delete``."""

from __future__ import annotations

import sys
from typing import Annotated

from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.terminal.output import Sink, folded, is_terminal, size_text
from pbvf_offline.errors import UsageError


@command(
    "pbvf dataset delete lab/old-v0 lab/older-v0",
    "pbvf dataset delete lab/begun-v0 --unfinished --yes",
)
def delete(
    datasets: Annotated[list[str], argument("DATASET", "Ids or folders.")],
    *,
    unfinished: Annotated[
        bool, option("--unfinished", "Not the datasets, but what was begun and is not finished.")
    ] = False,
    yes: Annotated[bool, option("--yes", "Do not ask.")] = False,
    sink: Sink,
) -> None:
    """Delete datasets for good, after asking.

    A folder that holds anything but a dataset's own files is refused, and so is one that another
    process writes or that is a link; then nothing is deleted.
    """
    from pbvf_datasets.write.delete import delete as delete_one
    from pbvf_datasets.write.delete import plan_deletion

    found = [plan_deletion(name, unfinished=unfinished) for name in datasets]
    deletions = list({one.folders: one for one in reversed(found)}.values())[::-1]
    size = sum(one.size for one in deletions)
    names = ", ".join(str(folder) for one in deletions for folder in one.folders)
    if not yes and not _agreed(f"delete {names} ({size_text(size)})? [y/N]"):
        sink.note("nothing was deleted")
        deletions = []
    for one in deletions:
        delete_one(one)
    payload = [
        {"dataset": one.dataset, "folders": one.folders, "bytes": one.size} for one in deletions
    ]
    gone = [(folder, one.size) for one in deletions for folder in one.folders]
    rows = [("deleted", f"{folder} ({size_text(size)})") for folder, size in gone]
    sink.result({"deleted": payload}, rows or [("deleted", "nothing")])


def _agreed(question: str) -> bool:
    """Ask the person at the terminal.

    Raises:
        UsageError: There is nobody to ask.
    """
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise UsageError(
            "is missing, and there is no terminal to ask at whether to delete for good",
            where="--yes",
            remedy="give it",
        )
    sys.stderr.write(f"{folded(question)} ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")

"""Training one run, or several that differ in their seed, with progress and clean interrupts."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pbvf_cli.shared.errors import signals
from pbvf_cli.shared.output import Sink, number
from pbvf_cli.shared.progress import Bar

if TYPE_CHECKING:
    from pbvf_runs.records import RunResult
    from pbvf_runs.seeds import SeedJob, SeedRun


def parse_run_seeds(text: str, run: Path) -> list[int]:
    """Read ``--seeds``, whose runs go into one folder.

    Raises:
        UsageError: The seeds are malformed or out of range.
        ConflictError: The folder is that of a single run.
    """
    from pbvf_offline.errors import ConflictError
    from pbvf_offline.seeding import check_seed
    from pbvf_runs.records import CONFIG_FILE
    from pbvf_runs.seeds import parse_seeds

    seeds = [check_seed(seed) for seed in parse_seeds(text)]
    if (run / CONFIG_FILE).exists():
        raise ConflictError(
            "is the folder of a single run", where=run, remedy="choose another --run for --seeds"
        )
    return seeds


def train(
    job: SeedJob, runs: Sequence[SeedRun], *, workers: int, name_seeds: bool, sink: Sink
) -> list[RunResult]:
    """Train runs; returns their results in order.

    Args:
        job: What they have in common.
        runs: The runs.
        workers: Processes that train.
        name_seeds: Say in the progress which seed is under way.
        sink: Where words go.

    Raises:
        PbvfError: A run failed, after all others were finished.
    """
    from pbvf_runs.seeds import train_seeds

    alone = workers == 1 or len(runs) == 1
    with (
        Bar("training", "steps" if alone else "runs", sink=sink) as bar,
        # Workers are stopped at once and go on from their last checkpoints.
        signals.held() if alone else contextlib.nullcontext(),
    ):

        def told(done: int, total: int, seed: int | None, last: float | None) -> None:
            words = [f"seed {seed}"] if name_seeds and alone else []
            words += [] if last is None else [f"last evaluation {number(last, 4)}"]
            bar.update(done, total, ", ".join(words))

        return train_seeds(
            job,
            runs,
            workers=workers,
            progress=told,
            stop_soon=signals.check,  # between episodes, so that what is kept is whole
            note=sink.note,
        )

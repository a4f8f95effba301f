"""Training runs that differ in their seed, one after the other or several at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pbvf_offline.errors import PbvfError, UsageError
from pbvf_offline.rollout.workers import is_done_here, ordered_map
from pbvf_runs.loggers import DEFAULT
from pbvf_runs.records import RunConfig, RunResult
from pbvf_runs.train import train_run

if TYPE_CHECKING:
    import torch

_MOST_SEEDS = 10_000


@dataclass(frozen=True)
class SeedRun:
    """One run: what decides it, and its folder."""

    config: RunConfig
    folder: Path

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.config.settings.seed


@dataclass(frozen=True)
class Outcome:
    """How one run ended: its result or its error, and its notes."""

    run: SeedRun
    result: RunResult | None
    error: PbvfError | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SeedJob:
    """Trains runs in one process.

    Attributes:
        steps: Environment steps of each.
        snapshots: Steps at which critic and policy are kept too.
        device: Where tensors are.
        overwrite: Start over whatever is there.
        loggers: Loggers of episodes and evaluations.
        threads: Threads that compute.
    """

    steps: int
    snapshots: tuple[int, ...]
    device: torch.device
    overwrite: bool
    loggers: tuple[str, ...] = DEFAULT
    threads: int = 1

    def start(self) -> Callable[[SeedRun], Outcome]:
        """Return the function from a run to its outcome."""
        from gymnasium import logger

        logger.min_level = logger.ERROR  # its remarks would be repeated by every process
        _use_threads(self.threads)
        return self.outcome

    def outcome(
        self,
        run: SeedRun,
        *,
        tick: Callable[[int, float | None], None] | None = None,
        stop_soon: Callable[[], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Outcome:
        """Train one run; its error is an outcome too, so that it stops no other run.

        Notes are told at once where somebody listens, else they are part of the outcome.
        """
        notes: list[str] = []
        try:
            result = train_run(
                run.config,
                run.folder,
                self.steps,
                snapshots=self.snapshots,
                device=self.device,
                overwrite=self.overwrite,
                loggers=self.loggers,
                tick=tick,
                stop_soon=stop_soon,
                note=note or notes.append,
            )
        except PbvfError as error:
            return Outcome(run, None, error, tuple(notes))
        return Outcome(run, result, None, tuple(notes))


def _use_threads(threads: int) -> None:
    """Have this process compute on so many threads, whatever the machine has.

    The order of a sum, and with it the last bits of every result, depends on the number of
    threads: a run must not depend on how many others share the machine.
    """
    import torch

    torch.set_num_threads(threads)


def train_seeds(
    job: SeedJob,
    runs: Sequence[SeedRun],
    *,
    workers: int = 1,
    progress: Callable[[int, int, int | None, float | None], None] | None = None,
    stop_soon: Callable[[], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> list[RunResult]:
    """Train runs, each in its folder; returns their results in the order of ``runs``.

    Args:
        job: What they have in common.
        runs: The runs.
        workers: Processes; with one, everything happens in this process.
        progress: Told ``(done, total, seed, last)``: steps over all runs, the current seed
            and the mean return of its last evaluation with one worker, else finished runs and
            None twice.
        stop_soon: With one worker called at the end of each episode; what it raises stops
            there, after a checkpoint.
        note: Told what the user should know.

    Raises:
        PbvfError: One or more runs failed, after all others were finished. It is the error
            of the first of them.
    """
    said = note or (lambda _: None)
    advanced = progress or (lambda *_: None)

    def tell(run: SeedRun, text: str) -> None:
        said(f"seed {run.seed}: {text}" if len(runs) > 1 else text)

    def outcomes_here() -> Iterator[Outcome]:
        _use_threads(job.threads)
        for k, run in enumerate(runs):

            def tick(step: int, last: float | None, k: int = k, seed: int = run.seed) -> None:
                advanced(k * job.steps + step, len(runs) * job.steps, seed, last)

            told = functools.partial(tell, run)
            yield job.outcome(run, tick=tick, stop_soon=stop_soon, note=told)

    def outcomes_elsewhere(at_once: int) -> Iterator[Outcome]:
        advanced(0, len(runs), None, None)
        # Long items: none may wait behind another, and none is taken for hung.
        done = ordered_map(job, runs, at_once, hang_seconds=math.inf, queued=1)
        for finished, outcome in enumerate(done, start=1):
            yield outcome
            advanced(finished, len(runs), None, None)

    at_once = min(workers, len(runs))
    outcomes = []
    for outcome in outcomes_here() if is_done_here(at_once) else outcomes_elsewhere(at_once):
        outcomes.append(outcome)
        for text in outcome.notes:
            tell(outcome.run, text)
        if outcome.error is not None and len(runs) > 1:
            tell(outcome.run, f"failed: {outcome.error}")
    return _results(outcomes)


def _results(outcomes: Sequence[Outcome]) -> list[RunResult]:
    failed = [(o.run.seed, o.error) for o in outcomes if o.error is not None]
    if failed:
        seed, error = failed[0]
        if len(outcomes) == 1:
            raise error
        what = f"seed {seed}: {error.what} ({len(failed)} of {len(outcomes)} seeds failed)"
        raise type(error)(what, where=error.where, remedy=error.remedy) from error
    return [o.result for o in outcomes if o.result is not None]


def parse_seeds(text: str) -> list[int]:
    """Parse seeds as users type them.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]

    Raises:
        UsageError: The text is not numbers and ranges, or has one twice.
    """
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            more = range(int(first), int(last if dash else first) + 1)
            if not 1 <= len(more) <= _MOST_SEEDS:
                raise ValueError
            seeds.extend(more)
    except ValueError:
        seeds = []
    if "_" in text or not text.isascii() or not seeds:
        raise UsageError(
            f"seeds {text!r} are not understood", where="--seeds", remedy="give 0-4 or 0,3,7"
        )
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"{text!r} has a seed twice", where="--seeds", remedy="give each once")
    return seeds

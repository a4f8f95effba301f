"""Verify: whether the folder of a training run is whole and its files belong together."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from pbvf_datasets.format.recompute import action_error
from pbvf_datasets.format.statistics import Ends
from pbvf_datasets.inspect.findings import (
    FOUND,
    Findings,
    Status,
    Verification,
    check_environment,
)
from pbvf_datasets.inspect.verify_file import verify_file
from pbvf_offline.errors import DamagedError, ResourceError
from pbvf_offline.io.reading import file_digest
from pbvf_offline.io.tensor_file import decode, read_tensor_file
from pbvf_offline.rollout.episodes import stack_episodes
from pbvf_runs.data import READINGS, checked_episodes, run_config, run_state, runs_in
from pbvf_runs.episodes import missing_file
from pbvf_runs.records import (
    CHECKPOINT_FILE,
    CONFIG_FILE,
    CRITIC_FILE,
    POLICY_FILE,
    RESULT_FILE,
    KeptRun,
    StoredConfig,
    StoredResult,
)

Progress = Callable[[int, int], None]

_SNAPSHOT: Final = re.compile(r"(critic|policy)-(\d{7,})\.safetensors")
_WORST_FIRST: Final[tuple[Status, ...]] = ("unsafe", "damaged", "unverified", "intact")


def verify_run(folder: Path, *, progress: Progress | None = None) -> Verification:
    """Check the folder of a run, finished or not.

    Every file by its own digest; that configuration, checkpoint, episodes, critic, policy and
    result are of one run; and that the actions of the episodes are those of their policies. A run
    that goes on meanwhile is read again.

    Args:
        folder: The run's folder.
        progress: Told the steps checked and the steps in all.

    Raises:
        ResourceError: A file cannot be read, or memory is short.
    """
    for reading in range(READINGS):
        before = run_state(folder)
        check = _Check(folder, progress)
        try:
            check.run()
        except MemoryError as error:
            raise ResourceError("there is not enough memory to check it", where=folder) from error
        if not check.found.problems or run_state(folder) == before or reading + 1 == READINGS:
            break
    return check.verification()


def verify_runs(folder: Path, *, progress: Progress | None = None) -> Verification:
    """Check every run in a folder of several.

    Raises:
        ResourceError: A file cannot be read, or memory is short.
    """
    parts = [verify_run(run, progress=progress) for run in runs_in(folder)]
    return Verification(
        path=folder,
        kind="runs",
        status=next(s for s in _WORST_FIRST if any(part.status == s for part in parts)),
        problems=tuple(problem for part in parts for problem in part.problems),
        warnings=tuple(warning for part in parts for warning in part.warnings),
        counts={
            "runs": len(parts),
            **{name: sum(p.counts.get(name, 0) for p in parts) for name in ("episodes", "steps")},
        },
        ends=_together([part.ends for part in parts if part.ends is not None]),
    )


def _together(parts: Sequence[Ends]) -> Ends:
    terminated = sum(part.terminated or 0 for part in parts)
    return Ends(sum(part.episodes for part in parts), terminated, sum(part.cut for part in parts))


class _Check:
    """One pass over the folder of a run."""

    def __init__(self, folder: Path, progress: Progress | None) -> None:
        self.found = Findings()
        self._folder, self._progress = folder, progress
        self._counts: dict[str, int] = {}
        self._ends: Ends | None = None
        self._digest: str | None = None
        self._warnings: list[str] = []

    def verification(self) -> Verification:
        """Return what became of it."""
        return Verification(
            path=self._folder,
            kind="run",
            status=self.found.status(verified=True),
            problems=tuple(self.found.problems),
            warnings=tuple(self._warnings),
            digest=None if self.found.problems else self._digest,
            counts=self._counts,
            ends=self._ends,
        )

    def run(self) -> None:
        """Check everything; what is wrong goes to the findings."""
        config = self._try(lambda: run_config(self._folder))
        result = self._try(lambda: StoredResult.read(self._folder))
        if config is None:
            return  # nothing says what the rest should be
        where = f"{self._folder / CONFIG_FILE}: environment"
        self._try(lambda: check_environment(config.environment.to_dict(), where))
        kept = self._try(lambda: self._checkpoint(config))
        self._try(lambda: self._episodes(config, result))
        for path in sorted(self._folder.iterdir()):
            if match := _SNAPSHOT.fullmatch(path.name):
                self._file(path, config, int(match[2]))
        if result is not None:
            self._digest = config.source(result.steps)
            self._result(config, result, kept)
        elif not self.found.problems:
            self._warnings.append(f"{self._folder}: the run is not finished")

    def _try(self, check: Callable[[], Any]) -> Any:
        """Return the answer of a check; None where it found something wrong."""
        try:
            return check()
        except FOUND as error:
            self.found.add(error)
            return None

    def _checkpoint(self, config: StoredConfig) -> KeptRun | None:
        """Check the checkpoint as a run that goes on does, and return what it says of the run."""
        import torch

        from pbvf_offline.online.checkpoint import KIND, decode_checkpoint

        path = self._folder / CHECKPOINT_FILE
        if not path.exists():
            return None
        image = read_tensor_file(path)
        replay = decode(KIND, image, str(path))[1].get("replay/obs")
        training, extra = decode_checkpoint(
            image,
            config.settings,
            config.spec,
            obs_dtype=np.dtype(np.float64) if replay is None else replay.dtype,
            device=torch.device("cpu"),
            where=str(path),
            look=True,
        )
        return KeptRun.of(training.steps, training.episodes, extra, path)

    def _episodes(self, config: StoredConfig, result: StoredResult | None) -> None:
        """Check the stored episodes, and count them.

        Raises:
            DamagedError: A file is missing or damaged, an episode malformed, or one too many or
                too few.
        """
        whole = cut = terminated = steps = 0
        for index, episode in enumerate(checked_episodes(self._folder, config.spec)):
            single = stack_episodes(config.spec, [episode])
            error = action_error(single, f"{self._folder} episode {index}")
            if error is not None:
                self.found.add(error)
            whole, cut = whole + (episode.cut == "none"), cut + (episode.cut != "none")
            terminated += bool(episode.terminated[-1])
            steps += len(episode.rewards)
            if self._progress is not None:
                self._progress(steps, max(steps, 0 if result is None else result.steps))
        self._counts = {"episodes": whole, "steps": steps}
        self._ends = Ends(whole + cut, terminated, cut)
        kept = config.settings.normalization != "per-step"
        if result is not None and kept and (whole, steps) != (result.episodes, result.steps):
            raise DamagedError(
                f"tells of {result.episodes:,} whole episodes and {result.steps:,} steps, and "
                f"{whole:,} and {steps:,} are stored",
                where=self._folder / RESULT_FILE,
            )

    def _result(self, config: StoredConfig, result: StoredResult, kept: KeptRun | None) -> None:
        """Compare the result with the checkpoint and with the files that it names."""
        where = self._folder / RESULT_FILE
        for name in ("evaluations", "training_returns"):
            known = getattr(kept, name, ())
            if getattr(result, name)[: len(known)] != known:
                what = f"its {name.replace('_', ' ')} are not those in the checkpoint"
                self.found.add(DamagedError(what, where=where))
        for name in (CRITIC_FILE, POLICY_FILE):
            path = self._folder / name
            if not path.exists():
                self.found.add(missing_file(path))
            elif file_digest(path) != result.files.get(name):
                what = f"does not belong to the {RESULT_FILE} beside it"
                self.found.add(DamagedError(what, where=path))
            else:
                self._file(path, config, result.steps)

    def _file(self, path: Path, config: StoredConfig, steps: int) -> None:
        """Check a critic or a policies file, and that it is of the run's first steps."""
        part = verify_file(path)
        for problem in part.problems:
            self.found.add(problem)
        if not part.problems and _run_named_by(path) != config.source(steps):
            what = f"is not of this run's first {steps:,} steps"
            self.found.add(DamagedError(what, where=path))


def _run_named_by(path: Path) -> object:
    """Return the digest by which a good critic or policies file names its run."""
    from pbvf_offline.fit.critic_file import load_critic
    from pbvf_offline.policies.files import load_policies

    if path.name.startswith("critic"):
        return load_critic(path).context.dataset
    return load_policies(path).origin.get("run")

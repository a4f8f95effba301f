"""The training episodes of a run as data to learn from, without a dataset in between."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
from gymnasium.spaces import Box

from pbvf_datasets.write.incoming import IncomingEpisodes
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError, DivergedError, IncompatibleError, UsageError, counted
from pbvf_offline.io.reading import MAX_SMALL, read_file
from pbvf_offline.io.strict_json import canonical_json
from pbvf_offline.policies.spaces import action_space
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode, Trajectories, stack_episodes
from pbvf_runs.episodes import missing_file, stored_episodes
from pbvf_runs.folder import is_run
from pbvf_runs.records import (
    CHECKPOINT_FILE,
    CONFIG_FILE,
    RESULT_FILE,
    Evaluation,
    KeptRun,
    StoredConfig,
    StoredResult,
)

_NAMED: Final = 5  # runs that a message names
READINGS: Final = 3
"""How often a run that goes on meanwhile is read anew before what is wrong with it counts."""


@dataclass(frozen=True)
class RunData:
    """What a run has on disk to learn from.

    Attributes:
        trajectories: Its training episodes; a policy has its own normaliser in each.
        environment: The environment.
        digest: SHA-256 of environment, policies and steps: equal data, equal digest.
        finished: Whether the run was finished, and these are all of its steps.
    """

    trajectories: Trajectories
    environment: EnvReference
    digest: str
    finished: bool


@dataclass(frozen=True)
class RunProgress:
    """What a run has come to.

    Attributes:
        steps: Environment steps.
        episodes: Whole training episodes.
        evaluations: Those made so far.
        training_returns: ``(step, raw return)`` of each whole training episode.
        files: Digests of the files of a finished run.
        finished: Whether it is.
    """

    steps: int
    episodes: int
    evaluations: tuple[Evaluation, ...]
    training_returns: tuple[tuple[int, float], ...]
    files: Mapping[str, str]
    finished: bool


def runs_in(folder: Path) -> list[Path]:
    """Return the folders of the training runs that a folder holds, in the order of their names."""
    return sorted(child for child in folder.iterdir() if is_run(child))


def runs_text(runs: Sequence[Path]) -> str:
    """Return what a folder that holds these runs holds, for a message."""
    names = ", ".join(run.name for run in runs[:_NAMED]) + (", …" if len(runs) > _NAMED else "")
    return f"{counted(len(runs), 'run')} ({names})"


def run_config(folder: Path) -> StoredConfig:
    """Return what decides the run in a folder.

    Raises:
        DamagedError: It is missing or malformed.
        IncompatibleError: A newer version made it.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        raise missing_file(path)
    return StoredConfig.parse(read_file(path, MAX_SMALL), path)


def run_progress(folder: Path) -> RunProgress:
    """Return what a run has come to: finished, or up to its last checkpoint.

    Raises:
        DamagedError: Result or checkpoint is damaged.
    """
    result = StoredResult.read(folder)
    if result is not None:
        return RunProgress(
            result.steps,
            result.episodes,
            result.evaluations,
            result.training_returns,
            result.files,
            finished=True,
        )
    kept = KeptRun.read(folder)
    if kept is None:
        return RunProgress(0, 0, (), (), {}, finished=False)
    returns = kept.training_returns
    return RunProgress(kept.steps, kept.episodes, kept.evaluations, returns, {}, finished=False)


def load_run(folder: Path) -> RunData:
    """Return the training episodes that a run has on disk, also of one that is not finished.

    A run stores what is finished every so many steps, and when it is stopped. It needs no lock: a
    run that goes on meanwhile is read as its last checkpoint has it. Every episode is checked as
    one that a dataset takes in.

    Raises:
        UsageError: There is no finished episode on disk yet.
        IncompatibleError: The run normalised step by step, so that no episode has one policy; or
            a newer version made it.
        DamagedError: A file is missing or damaged, or does not belong to the others.
    """
    config = run_config(folder)
    if config.settings.normalization == "per-step":
        raise IncompatibleError(
            "a run with --normalization per-step has no policies that could be named",
            where=folder,
            remedy="train with --normalization episode",
        )
    for reading in range(READINGS):
        before = run_state(folder)
        try:
            episodes = list(checked_episodes(folder, config.spec))
        except DamagedError:
            if reading + 1 < READINGS and run_state(folder) != before:
                continue  # the run went on
            raise
        break
    if not episodes:
        raise UsageError(
            "the run has no finished episode on disk yet",
            where=folder,
            remedy="let it go on, or stop it with Ctrl-C, which keeps what is finished",
        )
    trajectories = stack_episodes(config.spec, episodes)
    return RunData(
        trajectories,
        config.environment,
        episodes_digest(trajectories, config.environment),
        finished=before[1] is not None,
    )


def run_state(folder: Path) -> tuple[bytes | None, bytes | None]:
    """Return digests of a run's checkpoint and result, which name its other files; None: missing.

    A run that goes on while it is read changes them.
    """

    def digest(name: str) -> bytes | None:
        try:
            return hashlib.sha256(read_file(folder / name)).digest()
        except UsageError:
            return None

    return digest(CHECKPOINT_FILE), digest(RESULT_FILE)


def checked_episodes(folder: Path, spec: PolicySpec) -> Iterator[Episode]:
    """Yield the stored episodes of a run, each checked as one that a dataset takes in.

    Raises:
        DamagedError: One is malformed.
    """
    incoming: IncomingEpisodes | None = None
    for index, episode in enumerate(stored_episodes(folder)):
        if incoming is None:
            observations = np.asarray(episode.observations)
            box = Box(-np.inf, np.inf, (spec.obs_dim,), observations.dtype.type)
            incoming = IncomingEpisodes(spec, (box, action_space(spec.actions)))
        try:
            yield incoming.check(episode, f"{folder} episode {index}")
        except (UsageError, DivergedError) as error:
            raise DamagedError(error.what, where=error.where) from error


def episodes_digest(data: Trajectories, environment: EnvReference) -> str:
    """Return a digest of environment, policies and steps: equal data, equal digest."""
    about = {"environment": environment.to_dict(), "spec": data.policies.spec.to_dict()}
    digest = hashlib.sha256(canonical_json(about))
    arrays = {f.name: getattr(data, f.name) for f in fields(data) if f.name != "policies"}
    for name in ("theta", "obs_mean", "obs_std"):
        arrays[name] = getattr(data.policies, name)
    for name, array in sorted(arrays.items()):
        if array is not None:
            digest.update(canonical_json([name, str(array.dtype), list(array.shape)]))
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()

"""Configuration and result of a training run, and the names of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta

from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.errors import DamagedError, UsageError
from pbvf_offline.io.formats import check_version
from pbvf_offline.io.reading import MAX_SMALL, read_file
from pbvf_offline.io.strict_json import canonical_json, parse_json
from pbvf_offline.io.tensor_file import decode, read_tensor_file
from pbvf_offline.online.settings import OnlineSettings, check_base
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.records import Record, since
from pbvf_runs.settings import RunEvaluation

CONFIG_FILE: Final = "config.json"
CHECKPOINT_FILE: Final = "checkpoint.safetensors"
PENDING_FILE: Final = "pending.safetensors"
TAIL_FILE: Final = "tail.safetensors"
EPISODES_FOLDER: Final = "episodes"
CRITIC_FILE: Final = "critic.safetensors"
POLICY_FILE: Final = "policy.safetensors"
RESULT_FILE: Final = "result.json"


@dataclass(frozen=True)
class StoredConfig(Record):
    """What ``config.json`` holds beside the format version; see :class:`RunConfig`.

    Attributes:
        base: SHA-256 of the policies file that the run starts from; None: from a fresh policy.
    """

    environment: EnvReference
    spec: PolicySpec
    settings: OnlineSettings
    evaluations: int
    evaluation_episodes: int
    base: Annotated[str | None, since(2)] = None

    @classmethod
    def parse(cls, data: bytes, path: Path) -> StoredConfig:
        """Read the bytes of ``config.json``.

        Raises:
            DamagedError: It is no run's configuration.
            IncompatibleError: A newer version wrote it.
        """
        value = parse_json(data, path)
        if isinstance(value, dict):
            check_version(value.pop("version", 1), path)
        return cls.from_dict(value, path)

    def contents(self) -> dict[str, Any]:
        """Return what ``config.json`` holds: with the format version from version 2 on."""
        version = self.format_version
        return ({} if version == 1 else {"version": version}) | self.to_dict()

    @property
    def evaluation_words(self) -> str:
        """How often it is measured, as words of a command line: going on takes the same."""
        episodes = f"--evaluation-episodes {self.evaluation_episodes}"
        return f"--evaluations {self.evaluations} {episodes}"

    @property
    def digest(self) -> str:
        """SHA-256 of the JSON form, in hex."""
        return hashlib.sha256(canonical_json(self.contents())).hexdigest()

    def source(self, steps: int) -> str:
        """Return the digest by which files made of the run's first steps name it, in hex."""
        return hashlib.sha256(f"{self.digest} {steps}".encode()).hexdigest()


@dataclass(frozen=True)
class RunConfig:
    """What decides a run, apart from its length.

    Attributes:
        env: The environment.
        spec: Architecture of the policies.
        settings: The training.
        evaluations: Number of evaluations of the learned policy in a run.
        evaluation_episodes: Episodes of each.
        base: The one policy that it starts from, in its own normaliser, which stays; None: a
            fresh one.

    Raises:
        UsageError: A number is out of range, or the base does not go with the settings.
        IncompatibleError: The base is of another spec.
    """

    env: EnvConfig
    spec: PolicySpec
    settings: OnlineSettings
    evaluations: int = 100
    evaluation_episodes: int = 10
    base: PoliciesFile | None = None

    def __post_init__(self) -> None:
        _ = self.evaluation  # checks the ranges
        if self.base is not None:
            check_base(self.base.policies, self.spec, self.settings)

    @property
    def evaluation(self) -> RunEvaluation:
        """How the learned policy is measured."""
        return RunEvaluation(self.evaluations, self.evaluation_episodes)

    @property
    def stored(self) -> StoredConfig:
        """What of it ``config.json`` holds."""
        return StoredConfig(
            self.env.reference(),
            self.spec,
            self.settings,
            self.evaluations,
            self.evaluation_episodes,
            None if self.base is None else hashlib.sha256(self.base.encode()).hexdigest(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, as ``config.json`` holds it."""
        return self.stored.contents()


@dataclass(frozen=True)
class Evaluation(Record):
    """Returns of the unperturbed learned policy at one step, its statistics frozen.

    Attributes:
        step: Environment steps of the run.
        returns: Undiscounted returns, one an episode.
        returns_without_survival: The same without the bonus, where there is one.
    """

    step: int
    returns: Annotated[tuple[float, ...], Meta(min_length=1)]
    returns_without_survival: tuple[float, ...] | None


@dataclass(frozen=True)
class KeptRun(Record):
    """What a checkpoint says of its run, beside the training.

    Attributes:
        steps: Environment steps.
        episodes: Whole training episodes: those in shards, and those that wait for the next one.
        evaluations: Those made so far.
        training_returns: As of :class:`RunResult`.
        shards: Names of the shards of episodes, in order.
        pending: Digest of the file of waiting episodes; None where there are none.
    """

    steps: Annotated[int, Meta(ge=0)]
    episodes: Annotated[int, Meta(ge=0)]
    evaluations: tuple[Evaluation, ...]
    training_returns: tuple[tuple[int, float], ...]
    shards: tuple[str, ...]
    pending: str | None

    @classmethod
    def of(cls, steps: object, episodes: object, extra: object, where: Path) -> KeptRun:
        """Take it from what the header of a checkpoint holds.

        Raises:
            DamagedError: It is not there, or malformed.
        """
        if not isinstance(extra, dict):
            raise DamagedError("is not the checkpoint of a run", where=where)
        return cls.from_dict({**extra, "steps": steps, "episodes": episodes}, where)

    @classmethod
    def read(cls, folder: Path) -> KeptRun | None:
        """Read it from the checkpoint of the run in a folder; None: it has none.

        Raises:
            DamagedError: It is no run's checkpoint.
            IncompatibleError: A newer version made it.
        """
        path = folder / CHECKPOINT_FILE
        if not path.exists():
            return None
        content = decode("checkpoint", read_tensor_file(path), str(path))[0]
        return cls.of(content.get("steps"), content.get("episodes"), content.get("extra"), path)


@dataclass(frozen=True)
class StoredResult(Record):
    """What ``result.json`` of a finished run holds; see :class:`RunResult`.

    Attributes:
        tail: Digest of the file of the episode that the step budget cut, if it cut one.
        files: Digests of the critic's and the policy's file, and of no other.

    Raises:
        UsageError: A value has another type or is out of range.
    """

    steps: Annotated[int, Meta(ge=1)]
    episodes: Annotated[int, Meta(ge=0)]
    evaluations: tuple[Evaluation, ...]
    training_returns: tuple[tuple[int, float], ...]
    tail: str | None
    files: dict[str, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if set(self.files) != {CRITIC_FILE, POLICY_FILE}:
            what = f"these are not {CRITIC_FILE} and {POLICY_FILE} alone"
            raise UsageError(what, where="files")

    @classmethod
    def read(cls, folder: Path) -> StoredResult | None:
        """Read the result of the run in a folder; None: it is not finished.

        Raises:
            DamagedError: It is no run's result.
        """
        path = folder / RESULT_FILE
        if not path.exists():
            return None
        try:
            return cls.from_dict(parse_json(read_file(path, MAX_SMALL), path), path)
        except DamagedError as error:
            remedy = "remove it and run again"
            raise DamagedError(error.what, where=error.where, remedy=remedy) from error


@dataclass(frozen=True)
class RunResult:
    """Result of a run.

    Attributes:
        folder: Its folder.
        config: What decided it.
        steps: Environment steps.
        episodes: Finished training episodes.
        evaluations: At i N / count.
        training_returns: ``(step, raw return)`` of every finished training episode: what the
            perturbed policies got.
        snapshots: Critic files of the snapshots.
        seconds: Time spent now; 0 when it was complete before.
        already_complete: Whether nothing had to be done.
        exported: Folder of the exported dataset, if one was asked for.
    """

    folder: Path
    config: RunConfig
    steps: int
    episodes: int
    evaluations: tuple[Evaluation, ...]
    training_returns: tuple[tuple[int, float], ...]
    snapshots: tuple[Path, ...] = ()
    seconds: float = 0.0
    already_complete: bool = False
    exported: Path | None = None

    @property
    def cut(self) -> int:
        """Number of episodes (0 or 1) that the step budget cut, not counted in ``episodes``."""
        return int(self.steps > max((step for step, _ in self.training_returns), default=0))

    @property
    def critic(self) -> Path:
        """The critic's file."""
        return self.folder / CRITIC_FILE

    @property
    def policy(self) -> Path:
        """The learned policy's file."""
        return self.folder / POLICY_FILE

    def average_return(self, *, last: float = 1.0, without_survival: bool = False) -> float | None:
        """Return the mean over evaluations of the mean return.

        Args:
            last: Only evaluations in the last such fraction of the run's steps.
            without_survival: Leave the survival bonus out.
        """
        return average_return(
            self.evaluations, self.steps, last=last, without_survival=without_survival
        )


def average_return(
    evaluations: Iterable[Evaluation],
    steps: int,
    *,
    last: float = 1.0,
    without_survival: bool = False,
) -> float | None:
    """Return :meth:`RunResult.average_return` of the evaluations of a run of so many steps."""
    values = []
    for evaluation in evaluations:
        if evaluation.step > (1.0 - last) * steps:
            returns = evaluation.returns
            if without_survival and evaluation.returns_without_survival is not None:
                returns = evaluation.returns_without_survival
            values.append(float(np.mean(returns)))
    return float(np.mean(values)) if values else None


AVERAGES: Final = {
    "average_return": "average return",
    "last20_return": "return over the last fifth",
    "average_return_without_survival": "average without the survival bonus",
    "last20_return_without_survival": "last fifth without the survival bonus",
}
"""What people read in place of the names of :func:`average_returns`."""


def average_returns(evaluations: Sequence[Evaluation], steps: int) -> dict[str, float | None]:
    """Return all averages over the evaluations of a run of so many steps, as results name them."""
    return {
        f"{name}_return{suffix}": average_return(
            evaluations, steps, last=last, without_survival=bool(suffix)
        )
        for suffix in ("", "_without_survival")
        for name, last in (("average", 1.0), ("last20", 0.2))
    }


def snapshot_files(folder: Path, step: int) -> tuple[Path, Path]:
    """Return where a snapshot's critic and policy go."""
    return folder / f"critic-{step:07d}.safetensors", folder / f"policy-{step:07d}.safetensors"

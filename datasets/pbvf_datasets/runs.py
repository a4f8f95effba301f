"""Training runs as folders: safe to kill, resumable, extendable, exportable as datasets.

A run's folder holds

- ``config.json``: what decides the run; compared before anything is touched,
- ``checkpoint.safetensors``: the state at the end of an episode,
- ``episodes/``: every finished training episode, in immutable shards; what is not yet in
  one is in ``pending.safetensors`` beside the last checkpoint, and an episode that the
  step budget cut is in ``tail.safetensors``,
- ``critic.safetensors`` and ``policy.safetensors`` of the finished run, and of snapshots,
- ``result.json``: the evaluations of the finished run,
- ``metrics.jsonl`` and ``tensorboard/``, derived and never read back.

Shards and checkpoints are written at steps that the run alone decides, so a run that was
killed ends with the bytes of an undisturbed one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pbvf_datasets.columns import (
    columns_to_image,
    image_to_columns,
    pack_columns,
    unpack_columns,
)
from pbvf_datasets.durable import make_folders, remove_tree, resource_errors, write_durably
from pbvf_datasets.run_log import EVENTS_FOLDER, METRICS_FILE, RunLog
from pbvf_datasets.writer import DatasetWriter, peek
from pbvf_offline.batches import Episode
from pbvf_offline.envs import EnvConfig, close_env, make_env, time_limit
from pbvf_offline.errors import ConflictError, DamagedError, IncompatibleError, UsageError
from pbvf_offline.files import (
    MAX_SMALL,
    file_digest,
    locked,
    read_file,
    read_tensor_file,
    refuse_difference,
)
from pbvf_offline.policies import PolicySpec
from pbvf_offline.policy_files import PoliciesFile
from pbvf_offline.rollout import evaluate_policies
from pbvf_offline.strict_json import canonical_json, parse_json

if TYPE_CHECKING:
    import torch

    from pbvf_offline.online import EpisodeRecord, OnlineSettings, Training

CONFIG_FILE: Final = "config.json"
CHECKPOINT_FILE: Final = "checkpoint.safetensors"
PENDING_FILE: Final = "pending.safetensors"
TAIL_FILE: Final = "tail.safetensors"
EPISODES_FOLDER: Final = "episodes"
CRITIC_FILE: Final = "critic.safetensors"
POLICY_FILE: Final = "policy.safetensors"
RESULT_FILE: Final = "result.json"
SHARD_STEPS: Final = 20_000
_BRING_BACK = "bring it back, or start anew with --overwrite"
_SNAPSHOT = re.compile(r"(critic|policy)-\d{7,}\.safetensors")
_CUT_OFF = re.compile(r"\.(?:tmp-(.+)|(.+)\.tmp)")
_OURS: Final = (
    CONFIG_FILE,
    PENDING_FILE,
    TAIL_FILE,
    EPISODES_FOLDER,
    CRITIC_FILE,
    POLICY_FILE,
    METRICS_FILE,
    EVENTS_FOLDER,
    RESULT_FILE,
    CHECKPOINT_FILE,  # removed from here backwards: what names other files goes before them
)


@dataclass(frozen=True)
class RunConfig:
    """What decides a run, apart from its length.

    Attributes:
        env: The environment.
        spec: Architecture of the policies.
        settings: The training.
        evaluations: Number of evaluations of the learned policy in a run.
        evaluation_episodes: Episodes of each.
    """

    env: EnvConfig
    spec: PolicySpec
    settings: OnlineSettings
    evaluations: int = 100
    evaluation_episodes: int = 10

    def __post_init__(self) -> None:
        if not 0 <= self.evaluations <= 1_000_000:
            raise UsageError(f"{self.evaluations} is not 0 or more", where="--evaluations")
        if self.evaluation_episodes < 1:
            raise UsageError(
                f"{self.evaluation_episodes} is not at least 1", where="--evaluation-episodes"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, as ``config.json`` holds it."""
        return {
            "environment": self.env.reference().to_dict(),
            "spec": self.spec.to_dict(),
            "settings": self.settings.to_dict(),
            "evaluations": self.evaluations,
            "evaluation_episodes": self.evaluation_episodes,
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the JSON form, in hex."""
        return hashlib.sha256(canonical_json(self.to_dict())).hexdigest()


@dataclass(frozen=True)
class Evaluation:
    """Returns of the unperturbed learned policy at one step, its statistics frozen.

    Attributes:
        step: Environment steps of the run.
        returns: Undiscounted returns, one an episode.
        returns_without_survival: The same without the bonus, where there is one.
    """

    step: int
    returns: tuple[float, ...]
    returns_without_survival: tuple[float, ...] | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        without = self.returns_without_survival
        return {
            "step": self.step,
            "returns": list(self.returns),
            "returns_without_survival": None if without is None else list(without),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Evaluation:
        """Read the JSON form."""
        without = data["returns_without_survival"]
        return cls(
            int(data["step"]),
            tuple(float(r) for r in data["returns"]),
            None if without is None else tuple(float(r) for r in without),
        )


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

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
        values = []
        for evaluation in self.evaluations:
            if evaluation.step > (1.0 - last) * self.steps:
                returns = evaluation.returns
                if without_survival and evaluation.returns_without_survival is not None:
                    returns = evaluation.returns_without_survival
                values.append(float(np.mean(returns)))
        return float(np.mean(values)) if values else None


@dataclass
class _Kept:
    """Episodes that are on disk, and those that wait for the next shard."""

    shards: list[str] = field(default_factory=list)
    waiting: list[Episode] = field(default_factory=list)

    @property
    def waiting_steps(self) -> int:
        return sum(len(episode) for episode in self.waiting)


def stored_run_seed(folder: Path) -> int | None:
    """Return the seed of the run in a folder, if there is one."""
    try:
        config = parse_json(read_file(folder / CONFIG_FILE, MAX_SMALL), str(folder))
        seed = config["settings"]["seed"]
    except Exception:
        return None
    return seed if type(seed) is int else None


def snapshot_files(folder: Path, step: int) -> tuple[Path, Path]:
    """Return where a snapshot's critic and policy go."""
    return folder / f"critic-{step:07d}.safetensors", folder / f"policy-{step:07d}.safetensors"


def train_run(
    config: RunConfig,
    folder: Path,
    steps: int,
    *,
    snapshots: Sequence[int] = (),
    device: torch.device | None = None,
    overwrite: bool = False,
    tick: Callable[[int, float | None], None] | None = None,
    stop_soon: Callable[[], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> RunResult:
    """Train in a folder; the same call continues, and finds a finished run complete.

    More steps extend a run, with the result of an uninterrupted one. Where that one's
    evaluations or snapshots lie at steps which this one has passed, the way is gone over
    again.

    Args:
        config: What decides the run.
        folder: The run's folder.
        steps: Environment steps in all.
        snapshots: Steps at which the critic and the policy are kept too.
        device: Where tensors are; the CPU when None.
        overwrite: Start anew whatever is there.
        tick: Called often with the environment steps done and the mean return of the last
            evaluation made now, for progress. What it raises
            stops the run at its last checkpoint.
        stop_soon: Called at the end of each episode. What it raises stops the run there,
            after a checkpoint.
        note: Told what the user should know.

    Raises:
        UsageError: A number is out of range, or an episode may never end.
        IncompatibleError: The critic cannot evaluate such policies.
        ConflictError: The folder holds a run with other settings or more steps, or
            something else; or another process writes it.
        DamagedError: A file in it is damaged, or one that another names is missing.
        DivergedError: Training diverged; the last checkpoint is kept.
        ResourceError: The disk or a permission refuses.
    """
    if steps < 1:
        raise UsageError(f"{steps} is not at least 1", where="--steps")
    wanted = tuple(sorted(set(snapshots)))
    if wanted and not 1 <= wanted[0] <= wanted[-1] <= steps:
        raise UsageError(f"snapshots {list(wanted)} are not in 1 … {steps}", where="--snapshots")
    with (
        locked(folder, look=True) as refusal,
        resource_errors(folder, lambda: "make room and run the command again"),
    ):
        claimed = False
        # Making the runner refuses settings, before anything is cleared or claimed for them.
        runner = _Runner(config, folder, steps, wanted, device, tick, stop_soon, note)
        try:
            with contextlib.closing(runner):
                if refusal is not None:  # no lock, so nothing may be written
                    done = None
                    if not overwrite and _is_of(config, folder):
                        done = _finished(config, folder, steps, wanted)
                    if done is None:
                        raise refusal
                    return done
                _sweep(folder)
                # A run may share its folder with its user's notes; they stay beside the new one.
                shared = overwrite and (folder / CONFIG_FILE).exists()
                if overwrite:
                    if not shared:
                        _refuse_foreign(folder)
                    _clear(folder, keep_config=shared)  # what says that the folder is a run's
                claimed = _claim(config, folder, shared=shared)
                return _finished(config, folder, steps, wanted) or runner.run()
        except (UsageError, IncompatibleError):
            # Only the first steps showed that the settings do not fit; others may have the folder.
            if claimed and not (folder / CHECKPOINT_FILE).exists():
                _clear(folder)
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise


def _claim(config: RunConfig, folder: Path, *, shared: bool = False) -> bool:
    """Make the folder this run's, or refuse one that is not; return whether it was free.

    Raises:
        ConflictError: It is another run's, or no run's.
    """
    if not shared and _is_of(config, folder):
        return False
    if not shared:
        _refuse_foreign(folder)
    make_folders(folder / EPISODES_FOLDER)
    text = json.dumps(config.to_dict(), indent=1, allow_nan=False)
    write_durably(folder / CONFIG_FILE, text.encode() + b"\n")
    return True


def _is_of(config: RunConfig, folder: Path) -> bool:
    """Return whether a folder holds this run; False when it holds none.

    Raises:
        ConflictError: It holds another one.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        return False
    there = parse_json(read_file(path, MAX_SMALL), str(path))
    if not isinstance(there, dict):
        raise DamagedError("is not a run's configuration", where=path)
    refuse_difference(_flat(there), _flat(config.to_dict()), folder, "--run")
    return True


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that is no run's and holds something.

    Raises:
        ConflictError: It is one.
    """
    if folder.exists() and not _is_free(folder):
        raise ConflictError(
            "is a folder with other things in it", where=folder, remedy="choose another --run"
        )


def _is_free(folder: Path) -> bool:
    """Return whether a folder is empty, or as a first call that was killed leaves it."""
    if not folder.is_dir() or any(path.name != EPISODES_FOLDER for path in folder.iterdir()):
        return False
    episodes = folder / EPISODES_FOLDER
    return not episodes.exists() or (episodes.is_dir() and not any(episodes.iterdir()))


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with its settings side by side, for comparing and naming them."""
    flat: dict[str, Any] = json.loads(json.dumps(config))
    for part in ("settings", "spec", "environment"):
        inner = flat.pop(part, None)
        if isinstance(inner, dict):
            flat |= {f"{part} {key}" if part != "settings" else key: inner[key] for key in inner}
    return flat


def _sweep(folder: Path) -> None:
    """Remove what writes that were cut off left beside their targets."""
    for path in folder.glob(".*"):
        cut = _CUT_OFF.fullmatch(path.name)
        name = None if cut is None else cut[1] or cut[2]
        if name is not None and (name in _OURS or _SNAPSHOT.fullmatch(name)):
            remove_tree(path)


def _clear(folder: Path, *, keep_config: bool = False) -> None:
    """Remove what a run left in its folder, and nothing else; the configuration goes last."""
    if folder.is_dir():
        for path in folder.iterdir():
            if _SNAPSHOT.fullmatch(path.name):
                path.unlink()
    for name in reversed(_OURS):
        if name != CONFIG_FILE or not keep_config:
            remove_tree(folder / name)


def _finished(
    config: RunConfig, folder: Path, steps: int, snapshots: tuple[int, ...]
) -> RunResult | None:
    """Return the result of a run that is complete.

    Raises:
        ConflictError: It has more steps than are asked for.
        DamagedError: Its result file is malformed.
    """
    path = folder / RESULT_FILE
    if not path.exists():
        return None
    stored = parse_json(read_file(path, MAX_SMALL), str(path))
    try:
        done = int(stored["steps"])
        if done > steps:
            raise _longer(folder, done, steps)
        files = [path for step in snapshots for path in snapshot_files(folder, step)]
        files += [folder / CRITIC_FILE, folder / POLICY_FILE]
        if done < steps or not all(path.exists() for path in files):
            return None
        # What was damaged since is made again from the checkpoint.
        if any(file_digest(folder / n) != d for n, d in stored.get("files", {}).items()):
            return None
        return RunResult(
            folder,
            config,
            done,
            int(stored["episodes"]),
            tuple(Evaluation.from_dict(e) for e in stored["evaluations"]),
            tuple((int(s), float(r)) for s, r in stored["training_returns"]),
            tuple(snapshot_files(folder, step)[0] for step in snapshots),
            already_complete=True,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"is not a run's result: {error}", where=path, remedy="remove it and run again"
        ) from error


def _longer(folder: Path, done: int, steps: int) -> ConflictError:
    return ConflictError(
        f"the run has {done:,} steps, {steps:,} were asked for",
        where=folder,
        remedy="choose another --run, or start anew with --overwrite",
    )


class _Runner:
    """One call of :func:`train_run`.

    Raises:
        UsageError: The environment cannot be built, or an episode may never end.
        IncompatibleError: The critic cannot evaluate such policies.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        steps: int,
        snapshots: tuple[int, ...],
        device: torch.device | None,
        tick: Callable[[int, float | None], None] | None,
        stop_soon: Callable[[], None] | None,
        note: Callable[[str], None] | None,
    ) -> None:
        import torch

        from pbvf_offline.online import evaluation_steps, fresh_critic

        fresh_critic(config.spec, config.settings)
        self.config, self.folder, self.steps, self.snapshots = config, folder, steps, snapshots
        self.device = torch.device("cpu") if device is None else device
        self.tick, self.stop_soon, self.note = tick, stop_soon, note
        self.env = make_env(config.env)
        limit = time_limit(self.env)
        if limit is None:
            close_env(self.env)
            raise UsageError(
                "this environment has no time limit, so an episode may never end",
                where=config.env.name,
                remedy="give --max-episode-steps",
            )
        self.limit = limit
        count = config.evaluations
        self.evaluate_at = evaluation_steps(steps, count) if count else ()
        # Per-step statistics cannot be told from the stored episodes, so none are stored.
        self.keep = config.settings.normalization != "per-step"
        self.evaluations: dict[int, Evaluation] = {}
        self.returns: list[tuple[int, float]] = []
        self.kept = _Kept()
        self.last: bytes | None = None
        self.log: RunLog | None = None
        self.last_return: float | None = None

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
        close_env(self.env)

    # --------------------------------------------------------------------------- going on

    def run(self) -> RunResult:
        """Train to the end and leave the folder complete."""
        from pbvf_offline.online import Hooks, train

        started = time.perf_counter()
        training = self._resume()
        if training is None:
            # First of all: a checkpoint must not outlive the episodes that it names.
            remove_tree(self.folder / CHECKPOINT_FILE)
            training = self._fresh()
        self._tidy()
        self.log = RunLog(self.folder, training.steps)
        hooks = Hooks(
            watch=self._watch,
            at=(*self.evaluate_at, *self.snapshots),
            episode=self._episode,
            keep=self.keep,
            tick=self._tick,
        )
        tail = train(training, self.env, self.steps, hooks)
        seconds = time.perf_counter() - started
        return self._complete(training, tail, seconds)

    def _fresh(self) -> Training:
        from pbvf_offline.online import start_training

        self.evaluations, self.returns, self.kept, self.last = {}, [], _Kept(), None
        return start_training(
            self.config.spec,
            self.config.settings,
            obs_dtype=self.env.observation_space.dtype,
            device=self.device,
        )

    def _resume(self) -> Training | None:
        """Return the run as its last checkpoint has it; None where it must start anew."""
        from pbvf_offline.checkpoint import decode_checkpoint

        path = self.folder / CHECKPOINT_FILE
        if not path.exists():
            return None
        image = read_tensor_file(path)
        training, extra = decode_checkpoint(
            image,
            self.config.settings,
            self.config.spec,
            obs_dtype=self.env.observation_space.dtype,
            device=self.device,
            where=str(path),
        )
        if training.steps > self.steps:
            raise _longer(self.folder, training.steps, self.steps)
        self.evaluations = {e["step"]: Evaluation.from_dict(e) for e in extra["evaluations"]}
        passed = [step for step in self.evaluate_at if step <= training.steps]
        taken = [step for step in self.snapshots if step <= training.steps]
        missing = [step for step in passed if step not in self.evaluations] + [
            step
            for step in taken
            if not all(path.exists() for path in snapshot_files(self.folder, step))
        ]
        if missing:
            if self.note is not None:
                self.note(
                    "note: this asks for steps that the run has passed already; it is gone over "
                    "again from its start"
                )
            return None
        self.returns = [(int(s), float(r)) for s, r in extra["training_returns"]]
        self.kept = _Kept(list(extra["shards"]), self._pending(extra["pending"]))
        for name in self.kept.shards:
            if not (self.folder / EPISODES_FOLDER / name).exists():
                raise _missing(self.folder / EPISODES_FOLDER / name)
        self.last = image
        return training

    def _pending(self, digest: str | None) -> list[Episode]:
        if digest is None:
            return []
        path = self.folder / PENDING_FILE
        data = _read_kept(path)
        episodes = unpack_columns(image_to_columns(data, path)[0], path)
        if hashlib.sha256(data).hexdigest() == digest:
            return episodes
        # A call that was killed before its checkpoint may have added episodes to these.
        for count in range(len(episodes) - 1, 0, -1):
            if hashlib.sha256(_episodes_image(episodes[:count])).hexdigest() == digest:
                return episodes[:count]
        raise DamagedError(
            "does not belong to the checkpoint beside it",
            where=path,
            remedy="start anew with --overwrite",
        )

    def _tidy(self) -> None:
        """Remove what an interrupted call or a shorter run left and this one makes again."""
        known = set(self.kept.shards)
        for path in sorted((self.folder / EPISODES_FOLDER).glob("*")):
            if path.name not in known:
                remove_tree(path)
        for name in (RESULT_FILE, CRITIC_FILE, POLICY_FILE, TAIL_FILE):
            remove_tree(self.folder / name)

    # -------------------------------------------------------------------------- watching

    def _tick(self, step: int) -> None:
        if self.tick is not None:
            self.tick(step, self.last_return)

    def _watch(self, training: Training) -> None:
        step = training.steps
        if step in self.evaluate_at:
            self.evaluations[step] = self._evaluate(training, step)
            self.last_return = float(np.mean(self.evaluations[step].returns))
        if step in self.snapshots:
            critic, policy = snapshot_files(self.folder, step)
            write_durably(critic, self._critic_image(training))
            write_durably(policy, self._policy_image(training))

    def _evaluate(self, training: Training, step: int) -> Evaluation:
        from pbvf_offline.online import evaluation_seed

        returns, without = evaluate_policies(
            self.config.env,
            training.policy,
            episodes=self.config.evaluation_episodes,
            seed=evaluation_seed(self.config.settings.seed, step),
            without_survival=True,
        )
        # The two are added up in different ways: only more than rounding is a bonus.
        bonus = not np.allclose(returns, without, rtol=1e-9, atol=1e-9)
        result = Evaluation(
            step,
            tuple(returns[0].tolist()),
            tuple(without[0].tolist()) if bonus else None,
        )
        if self.log is not None:
            values: dict[str, Any] = {"mean_return": float(returns.mean()), **result.to_dict()}
            if bonus:
                values["mean_return_without_survival"] = float(without.mean())
            del values["step"]
            self.log.add("evaluation", step, values)
            self.log.flush()
        return result

    def _episode(self, training: Training, record: EpisodeRecord, episode: Episode | None) -> None:
        self.returns.append((record.end, record.total))
        if self.log is not None:
            self.log.add(
                "episode",
                record.end,
                {
                    "episode": record.index,
                    "length": record.steps,
                    "return": record.total,
                    "return_learned_from": record.learned,
                    "critic_loss": record.loss,
                    "actor_objective": record.objective,
                    "effective_sample_fraction": record.effective_samples,
                },
            )
        if episode is not None:
            self.kept.waiting.append(episode)
        if training.steps // SHARD_STEPS > (training.steps - record.steps) // SHARD_STEPS:
            self._shard(training)
        elif self.steps - training.steps < self.limit:
            # Perhaps the last finished episode: what an extension goes on from.
            self.last = self._checkpoint_image(training)
        if self.stop_soon is not None:
            try:
                self.stop_soon()
            except BaseException:
                self._save_checkpoint(self._checkpoint_image(training))
                raise

    def _shard(self, training: Training) -> None:
        """Put the waiting episodes on disk as one immutable shard, then the state after them."""
        if self.kept.waiting:
            index = len(self.kept.shards)
            image = _episodes_image(self.kept.waiting)
            digest = hashlib.sha256(image).hexdigest()[:16]
            name = f"shard-{index:06d}-{digest}.safetensors"
            write_durably(self.folder / EPISODES_FOLDER / name, image)
            self.kept = _Kept([*self.kept.shards, name])
        self.last = self._checkpoint_image(training)
        self._save_checkpoint(self.last)
        if self.log is not None:
            self.log.flush()

    def _checkpoint_image(self, training: Training) -> bytes:
        from pbvf_offline.checkpoint import encode_checkpoint

        waiting = self.kept.waiting
        digest = hashlib.sha256(_episodes_image(waiting)).hexdigest() if waiting else None
        done = [s for s in self.evaluate_at if s <= training.steps]
        extra = {
            "evaluations": [self.evaluations[step].to_dict() for step in done],
            "training_returns": [[step, total] for step, total in self.returns],
            "shards": self.kept.shards,
            "pending": digest,
        }
        return encode_checkpoint(training, extra)

    def _save_checkpoint(self, image: bytes) -> None:
        # The pending episodes first: a checkpoint that is there can be gone on from.
        path = self.folder / PENDING_FILE
        if self.kept.waiting:
            write_durably(path, _episodes_image(self.kept.waiting))
        write_durably(self.folder / CHECKPOINT_FILE, image)
        if not self.kept.waiting:
            remove_tree(path)

    # ------------------------------------------------------------------------- finishing

    def _complete(self, training: Training, tail: Episode | None, seconds: float) -> RunResult:
        """Leave the last checkpoint, the critic, the policy and the result."""
        if self.last is not None:
            self._save_checkpoint(self.last)
        tail_digest = None
        if tail is not None:
            image = _episodes_image([tail])
            tail_digest = hashlib.sha256(image).hexdigest()
            write_durably(self.folder / TAIL_FILE, image)
        images = {
            CRITIC_FILE: self._critic_image(training),
            POLICY_FILE: self._policy_image(training),
        }
        for name, image in images.items():
            write_durably(self.folder / name, image)
        evaluations = tuple(self.evaluations[step] for step in self.evaluate_at)
        content = {
            "steps": self.steps,
            "episodes": training.episodes,
            "evaluations": [e.to_dict() for e in evaluations],
            "training_returns": [[step, total] for step, total in self.returns],
            "tail": tail_digest,
            "files": {name: hashlib.sha256(i).hexdigest() for name, i in images.items()},
        }
        text = json.dumps(content, allow_nan=False)
        write_durably(self.folder / RESULT_FILE, text.encode() + b"\n")
        return RunResult(
            self.folder,
            self.config,
            self.steps,
            training.episodes,
            evaluations,
            tuple(self.returns),
            tuple(snapshot_files(self.folder, step)[0] for step in self.snapshots),
            seconds,
        )

    def _critic_image(self, training: Training) -> bytes:
        from pbvf_offline.checkpoint import critic_file

        return critic_file(training, self.config.env.reference(), self._source(training)).encode()

    def _policy_image(self, training: Training) -> bytes:
        origin = {"run": self._source(training), "steps": training.steps, **self.config.to_dict()}
        return PoliciesFile(training.policy, self.config.env.reference(), origin).encode()

    def _source(self, training: Training) -> str:
        text = f"{self.config.digest} {training.steps}"
        return hashlib.sha256(text.encode()).hexdigest()


def _missing(path: Path) -> DamagedError:
    return DamagedError(
        "is missing, and another file of the run needs it", where=path, remedy=_BRING_BACK
    )


def _read_kept(path: Path) -> bytes:
    """Read a file that another file of the run names.

    Raises:
        DamagedError: It is missing.
    """
    if not path.exists():
        raise _missing(path)
    return read_file(path)


def _episodes_image(episodes: Sequence[Episode]) -> bytes:
    return columns_to_image(pack_columns(episodes), {"episodes": len(episodes)})


def stored_episodes(folder: Path) -> Iterator[Episode]:
    """Yield a finished run's training episodes in order, a shard in memory at a time.

    Raises:
        DamagedError: A file is missing, or its bytes are not those that were written.
    """
    from pbvf_offline.checkpoint import KIND
    from pbvf_offline.files import decode

    def strayed(where: Path, beside: str) -> DamagedError:
        return DamagedError(
            f"does not belong to the {beside} beside it", where=where, remedy=_BRING_BACK
        )

    path = folder / RESULT_FILE
    result = parse_json(read_file(path, MAX_SMALL), str(path))
    if not isinstance(result, dict):
        raise DamagedError("is not a run's result", where=path, remedy="remove it and run again")
    path = folder / CHECKPOINT_FILE
    if path.exists():
        content, _ = decode(KIND, read_tensor_file(path), str(path))
        for name in content["extra"]["shards"]:
            shard = folder / EPISODES_FOLDER / name
            data = _read_kept(shard)
            if hashlib.sha256(data).hexdigest()[:16] not in name:
                raise DamagedError(
                    "its bytes do not match its name", where=shard, remedy=_BRING_BACK
                )
            yield from unpack_columns(image_to_columns(data, shard)[0], shard)
        digest = content["extra"]["pending"]
        if digest is not None:
            pending = folder / PENDING_FILE
            data = _read_kept(pending)
            if hashlib.sha256(data).hexdigest() != digest:
                raise strayed(pending, "checkpoint")
            yield from unpack_columns(image_to_columns(data, pending)[0], pending)
    elif result.get("episodes"):
        raise _missing(path)
    digest = result.get("tail")
    if digest is not None:
        tail = folder / TAIL_FILE
        data = _read_kept(tail)
        if hashlib.sha256(data).hexdigest() != digest:
            raise strayed(tail, "result")
        yield from unpack_columns(image_to_columns(data, tail)[0], tail)


def check_export(
    config: RunConfig,
    steps: int,
    dataset: str,
    *,
    license: str | None = None,
    authors: Sequence[str] = (),
) -> None:
    """Refuse, before a run, what its export would come up against.

    Raises:
        UsageError: The run normalises step by step, so that no episode has one policy.
        ConflictError: The dataset exists and was made otherwise.
    """
    if config.settings.normalization == "per-step":
        raise UsageError(
            "a run with --normalization per-step has no policies that a dataset could name",
            where="--export-dataset",
            remedy="train with --normalization episode",
        )
    found = peek(dataset)
    if found is None:
        return
    wanted = {
        "settings": _export_settings(config, steps),
        "environment": config.env.reference().to_dict(),
        "spec": config.spec.to_dict(),
        "seed": config.settings.seed,
        "license": license,
        "authors": list(authors),
    }
    there = {key: found[key] for key in wanted}
    if canonical_json(there) != canonical_json(json.loads(json.dumps(wanted))):
        different = [key for key in wanted if there[key] != json.loads(json.dumps(wanted[key]))]
        raise ConflictError(
            f"the dataset exists and was made otherwise ({', '.join(different)} differ)",
            where=dataset,
            remedy="give another --export-dataset; --overwrite would train the run anew too",
        )


def _export_settings(config: RunConfig, steps: int) -> dict[str, Any]:
    return {"made by": "train-online", "steps": steps, **config.to_dict()}


def export_dataset(
    result: RunResult,
    dataset: str,
    *,
    license: str | None = None,
    authors: Sequence[str] = (),
    command: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Make a dataset of all training episodes of a finished run; returns its folder.

    Raises:
        UsageError: The run normalised step by step, so that no episode has one policy.
        ConflictError: The dataset exists and was made otherwise.
    """
    config = result.config
    if not overwrite:
        check_export(config, result.steps, dataset, license=license, authors=authors)
    env = make_env(config.env)
    try:
        with DatasetWriter(
            dataset,
            config.spec,
            env=env,
            environment=config.env.reference().to_dict(),
            settings=_export_settings(config, result.steps),
            seed=config.settings.seed,
            license=license,
            authors=authors,
            command=command,
            overwrite=overwrite,
        ) as writer:
            if not writer.complete:
                done = writer.episodes_done
                for index, episode in enumerate(stored_episodes(result.folder)):
                    if index >= done:
                        writer.add(episode)
                writer.finish()
            return writer.path
    finally:
        close_env(env)

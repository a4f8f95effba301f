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

Shards, and the checkpoints of a finished run, are written at steps that the run alone decides;
a checkpoint in between, after a minute, leaves no trace in it. So a run that was killed ends with
the bytes of an undisturbed one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pbvf_offline.envs.make import close_env, make_env, time_limit
from pbvf_offline.errors import (
    DivergedError,
    IncompatibleError,
    PbvfError,
    UsageError,
    naming,
)
from pbvf_offline.io.durable import remove_tree, resource_errors, write_durably
from pbvf_offline.io.lock import locked
from pbvf_offline.io.tensor_file import read_tensor_file
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.policies.spaces import check_spaces_fit, spec_for_env
from pbvf_offline.rollout.episodes import Episode
from pbvf_runs.episodes import RunEpisodes
from pbvf_runs.folder import (
    claim,
    clear,
    finished_run,
    is_of,
    is_run,
    longer,
    refuse_foreign,
    sweep,
)
from pbvf_runs.loggers import DEFAULT
from pbvf_runs.measurements import Measurements
from pbvf_runs.records import (
    CHECKPOINT_FILE,
    CRITIC_FILE,
    POLICY_FILE,
    RESULT_FILE,
    TAIL_FILE,
    KeptRun,
    RunConfig,
    RunResult,
    StoredResult,
    snapshot_files,
)

if TYPE_CHECKING:
    import torch

    from pbvf_offline.online.loop import EpisodeRecord
    from pbvf_offline.online.training import Training

SHARD_STEPS: Final = 20_000
CHECKPOINT_SECONDS: Final = 60.0
"""A checkpoint is written after so long too: a kill costs no more work of a slow simulator."""
_CHECKPOINT_SHARE: Final = 0.05  # of the time, where a checkpoint takes long to write


def train_run(
    config: RunConfig,
    folder: Path,
    steps: int,
    *,
    snapshots: Sequence[int] = (),
    device: torch.device | None = None,
    overwrite: bool = False,
    loggers: Sequence[str] = DEFAULT,
    tick: Callable[[int, float | None], None] | None = None,
    stop_soon: Callable[[], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> RunResult:
    """Train in a folder; the same call continues, and finds a finished run complete.

    More steps extend a run, with the result of an uninterrupted one. Where that one's
    evaluations or snapshots lie at steps which this one has passed, the run is repeated
    from its start.

    Args:
        config: What decides the run.
        folder: The run's folder.
        steps: Environment steps in all.
        snapshots: Steps at which the critic and the policy are kept too.
        device: Where tensors are; the CPU when None.
        overwrite: Start over whatever is there.
        loggers: Loggers of episodes and evaluations, by their names in
            :data:`pbvf_runs.loggers.LOGGERS`.
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
        resource_errors(folder),
    ):
        claimed = False
        # Making the runner refuses settings, before anything is cleared or claimed for them.
        runner = _Runner(config, folder, steps, wanted, device, loggers, tick, stop_soon, note)
        try:
            with contextlib.closing(runner):
                if refusal is not None:  # no lock, so nothing may be written
                    done = None
                    if not overwrite and is_of(config, folder):
                        done = finished_run(config, folder, steps, wanted)
                    if done is None:
                        raise refusal
                    return done
                sweep(folder)
                # A run may share its folder with its user's notes; they stay beside the new one.
                shared = overwrite and is_run(folder, surely=True)
                if overwrite:
                    if not shared:
                        refuse_foreign(folder)
                    clear(folder, keep_config=shared)  # what says that the folder is a run's
                claimed = claim(config, folder, shared=shared)
                with naming(folder, DivergedError):
                    return finished_run(config, folder, steps, wanted) or runner.run()
        except (UsageError, IncompatibleError):
            # Only the first steps showed that the settings do not fit; others may have the folder.
            if claimed and not (folder / CHECKPOINT_FILE).exists():
                clear(folder)
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise


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
        loggers: Sequence[str],
        tick: Callable[[int, float | None], None] | None,
        stop_soon: Callable[[], None] | None,
        note: Callable[[str], None] | None,
    ) -> None:
        import torch

        from pbvf_offline.online.loop import evaluation_steps
        from pbvf_offline.online.training import fresh_critic

        fresh_critic(config.spec, config.settings)
        self.config, self.folder, self.steps, self.snapshots = config, folder, steps, snapshots
        self.device = torch.device("cpu") if device is None else device
        self.loggers, self.tick, self.stop_soon, self.note = loggers, tick, stop_soon, note
        self.env = make_env(config.env)
        try:
            self.limit = self._checked_limit()
        except PbvfError:
            close_env(self.env)
            raise
        count = config.evaluations
        self.evaluate_at = evaluation_steps(steps, count) if count else ()
        if self.evaluate_at and config.base is not None:
            self.evaluate_at = (0, *self.evaluate_at)  # what there is to improve on
        # Per-step statistics cannot be told from the stored episodes, so none are stored.
        self.keep = config.settings.normalization != "per-step"
        self.measured = Measurements(config, folder)
        self.kept = RunEpisodes(folder)
        self.last: bytes | None = None
        self.next_checkpoint = time.monotonic() + CHECKPOINT_SECONDS

    def _checked_limit(self) -> int:
        """Return the environment's time limit.

        Raises:
            UsageError: It has none.
            IncompatibleError: The policy that the run starts from cannot act in it.
        """
        spec, name = self.config.spec, self.config.env.name
        if self.config.base is not None:
            check_spaces_fit(spec, spec_for_env(self.env, spec.hidden), name)
        limit = time_limit(self.env)
        if limit is None:
            raise UsageError(
                "this environment has no time limit, so an episode may never end",
                where=name,
                remedy="give --max-episode-steps",
            )
        return limit

    def close(self) -> None:
        self.measured.close()
        close_env(self.env)

    # ------------------------------------------------------------------------ continuing

    def run(self) -> RunResult:
        """Train to the end and leave the folder complete."""
        from pbvf_offline.online.loop import Hooks, train

        started = time.perf_counter()
        training = self._resume()
        if training is None:
            # First of all: a checkpoint must not outlive the episodes that it names.
            remove_tree(self.folder / CHECKPOINT_FILE)
            training = self._fresh()
        self._remove_stale()
        self.measured.open_log(training.steps, self.loggers)
        if training.steps == 0 and 0 in self.evaluate_at:
            self.measured.evaluate(training.policy, 0)
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
        from pbvf_offline.online.training import start_training

        self.measured.clear()
        self.last = None
        self.kept = RunEpisodes(self.folder)
        return start_training(
            self.config.spec,
            self.config.settings,
            obs_dtype=self.env.observation_space.dtype,
            device=self.device,
            base=None if self.config.base is None else self.config.base.policies,
        )

    def _resume(self) -> Training | None:
        """Return the run as its last checkpoint has it; None where it must start over."""
        from pbvf_offline.online.checkpoint import decode_checkpoint

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
            raise longer(self.folder, training.steps, self.steps)
        kept = KeptRun.of(training.steps, training.episodes, extra, path)
        self.measured.resume(kept)
        passed = [step for step in self.evaluate_at if step <= training.steps]
        taken = [step for step in self.snapshots if step <= training.steps]
        missing = [step for step in passed if step not in self.measured.evaluations] + [
            step
            for step in taken
            if not all(path.exists() for path in snapshot_files(self.folder, step))
        ]
        if missing:
            if self.note is not None:
                self.note(
                    "note: this asks for steps that the run has passed already; it runs again "
                    "from step 0"
                )
            return None
        # No checkpoint has a shorter run's last measurement: it is of after the cut episode.
        ended = StoredResult.read(self.folder)
        last = () if ended is None else (one.step for one in ended.evaluations)
        gone = sorted({*self.measured.evaluations, *last} - set(self.evaluate_at))
        if gone and self.note is not None:
            steps = ", ".join(f"{step:,}" for step in gone[:3]) + (" …" if gone[3:] else "")
            self.note(
                f"note: what was measured at step {steps} is left out: --evaluations "
                f"{self.config.evaluations} of {self.steps:,} steps are at others"
            )
        self.kept.resume(kept)
        self.last = image
        return training

    def _remove_stale(self) -> None:
        """Remove what an interrupted call or a shorter run left and this one makes again."""
        self.kept.remove_others()
        for name in (RESULT_FILE, CRITIC_FILE, POLICY_FILE, TAIL_FILE):
            remove_tree(self.folder / name)

    # -------------------------------------------------------------------------- watching

    def _tick(self, step: int) -> None:
        if self.tick is not None:
            self.tick(step, self.measured.last_return)

    def _watch(self, training: Training) -> None:
        step = training.steps
        if step in self.evaluate_at:
            self.measured.evaluate(training.policy, step)
        if step in self.snapshots:
            critic, policy = snapshot_files(self.folder, step)
            write_durably(critic, self._critic_image(training))
            write_durably(policy, self._policy_image(training))

    def _episode(self, training: Training, record: EpisodeRecord, episode: Episode | None) -> None:
        self.measured.episode(record)
        if episode is not None:
            self.kept.waiting.append(episode)
        if training.steps // SHARD_STEPS > (training.steps - record.steps) // SHARD_STEPS:
            self._shard(training)
        else:
            if self.steps - training.steps < self.limit:
                # Perhaps the last finished episode: what an extension continues from.
                self.last = self._checkpoint_image(training)
            if time.monotonic() >= self.next_checkpoint:
                self._keep(training)
        if self.stop_soon is not None:
            try:
                self.stop_soon()
            except BaseException:
                self._keep(training)
                raise

    def _keep(self, training: Training) -> None:
        """Write the state between two shards, with the episodes that wait for the next one.

        Nothing of a finished run depends on when that was.
        """
        started = time.monotonic()
        self.kept.write_checkpoint(self._checkpoint_image(training))
        self._schedule_checkpoint(time.monotonic() - started)

    def _schedule_checkpoint(self, seconds: float) -> None:
        """Choose the time of the next checkpoint after one that took so long to write."""
        pause = max(CHECKPOINT_SECONDS, seconds / _CHECKPOINT_SHARE)
        self.next_checkpoint = time.monotonic() + pause

    def _shard(self, training: Training) -> None:
        """Put the waiting episodes on disk as one immutable shard, then the state after them."""
        started = time.monotonic()
        self.kept.write_shard()
        self.last = self._checkpoint_image(training)
        self.kept.write_checkpoint(self.last)
        self._schedule_checkpoint(time.monotonic() - started)
        self.measured.flush()

    def _checkpoint_image(self, training: Training) -> bytes:
        from pbvf_offline.online.checkpoint import encode_checkpoint

        done = [s for s in self.evaluate_at if s <= training.steps]
        extra = {
            **self.measured.stored(done),
            "shards": self.kept.shards,
            "pending": self.kept.pending_digest,
        }
        return encode_checkpoint(training, extra)

    # ------------------------------------------------------------------------- finishing

    def _complete(self, training: Training, tail: Episode | None, seconds: float) -> RunResult:
        """Leave the last checkpoint, the critic, the policy and the result."""
        if self.last is not None:
            self.kept.write_checkpoint(self.last)
        tail_digest = self.kept.write_tail(tail)
        images = {
            CRITIC_FILE: self._critic_image(training),
            POLICY_FILE: self._policy_image(training),
        }
        for name, image in images.items():
            write_durably(self.folder / name, image)
        content = {
            "steps": self.steps,
            "episodes": training.episodes,
            **self.measured.stored(self.evaluate_at),
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
            tuple(self.measured.evaluations[step] for step in self.evaluate_at),
            tuple(self.measured.returns),
            tuple(snapshot_files(self.folder, step)[0] for step in self.snapshots),
            seconds,
        )

    def _critic_image(self, training: Training) -> bytes:
        from pbvf_offline.online.checkpoint import critic_file

        return critic_file(training, self.config.env.reference(), self._source(training)).encode()

    def _policy_image(self, training: Training) -> bytes:
        origin = {"run": self._source(training), "steps": training.steps, **self.config.to_dict()}
        return PoliciesFile(training.policy, self.config.env.reference(), origin).encode()

    def _source(self, training: Training) -> str:
        return self.config.stored.source(training.steps)

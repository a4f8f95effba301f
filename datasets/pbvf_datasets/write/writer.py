"""Write a dataset so that a crash at any moment loses at most the last few episodes.

Work goes on in the dot-folder ``.<name>-vN.collecting`` beside the dataset (Minari's
listing skips dot-folders): ``plan.json`` says what is being made, immutable shards hold
the finished episodes, ``lock`` keeps other processes out. :meth:`DatasetWriter.finish`
lays the dataset out in ``build`` in there and moves it to its name with one rename. A
kill at any point leaves either a folder that the same call resumes or the dataset.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbvf_datasets.format.environment import (
    env_reference,
    env_spec_text,
    safe_env_spec,
    safe_environment,
)
from pbvf_datasets.format.identity import (
    START_ANEW,
    dataset_work,
    identity_of,
    parse_plan,
    plan_of,
    refuse_other,
    stored_settings,
)
from pbvf_datasets.format.manifest import parse_manifest, read_plain, verify_files
from pbvf_datasets.format.names import new_dataset_path
from pbvf_datasets.format.schema import DATASET_FILES, FIELDS, MANIFEST_FILE
from pbvf_datasets.format.spaces import check_spaces
from pbvf_datasets.format.statistics import total_reward
from pbvf_datasets.write.build import DatasetFacts, lay_out
from pbvf_datasets.write.incoming import IncomingEpisodes
from pbvf_datasets.write.shards import Shards
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    PbvfError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.durable import (
    path_exists,
    remove_tree,
    resource_errors,
    write_durably,
)
from pbvf_offline.io.strict_json import canonical_json
from pbvf_offline.io.work_folder import refuse_foreign, same_settings
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Cut, Episode

if TYPE_CHECKING:
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec

DEFAULT_SHARD_STEPS: Final = 20_000
MAX_SHARD_BYTES: Final = 64 * 2**20
"""A shard is also closed at this size: wide policies fill memory before 20,000 steps do."""
MAX_SHARD_SECONDS: Final = 30.0
"""So is one that began so long ago: a kill costs no more work of a slow simulator than that."""


@dataclass
class _Entry:
    """What is remembered of an episode; its arrays only until they are on disk.

    Attributes:
        steps_so_far: Steps of all episodes up to this one.
        bytes_so_far: Bytes of their arrays.
        episode: The episode, until it is on disk.
    """

    steps_so_far: int
    bytes_so_far: int
    episode: Episode | None


_NONE: Final = _Entry(0, 0, None)


class DatasetWriter:
    """Writes one dataset, episode by episode; safe to kill, resumes where it stopped.

    With only an id, a spec and an environment:

    >>> with DatasetWriter("lab/mine-v0", spec, env=env) as writer:  # doctest: +SKIP
    ...     for i in range(writer.episodes_done, 100):
    ...         writer.add(my_episode(env, i))
    ...     writer.finish()

    Leaving the ``with`` block without :meth:`finish` keeps what is done; the same call
    goes on from there. If the dataset is there already, made with equal settings,
    :attr:`complete` is True and nothing is changed.

    With ``overwrite`` work starts over, and a dataset of that name stays until the new
    one replaces it in :meth:`finish`. The same call without ``overwrite`` goes on where
    such a replacement was interrupted.

    Args:
        dataset_id: ``namespace/name-vN``.
        spec: Architecture of all policies in the dataset.
        env: Environment to take spaces, spec and reference from, where not given below.
        observation_space: A one-dimensional Box.
        action_space: A one-dimensional Box or Discrete.
        environment: ``{"id", "module", "kwargs", "withheld"}``: what a reader may rebuild; the
            module, which registers it, is for people to read. Of ``env`` it is that of its entry
            point.
            Arguments that are not scalars or look like paths are withheld.
        env_spec_json: ``EnvSpec.to_json()`` for stock Minari; stored without path-like
            arguments.
        settings: All that must be equal for the same dataset, as JSON.
        seed: Seed of the whole collection, or None when there is none.
        warmup_steps: Steps run for the normaliser and not stored. An integer
            ``warmup_steps`` in the state (:meth:`set_state`) goes before it.
        license: SPDX identifier, or None.
        authors: Names.
        command: A command line that makes the same dataset, for the card and the manifest.
        sources: The datasets that this one is made of, as the manifest holds them; equal
            settings must mean equal sources.
        root: Folder of datasets; default ``MINARI_DATASETS_PATH``, else Minari's own.
        overwrite: Start over.
        shard_steps: Steps after which finished episodes are put on disk; they are after half a
            minute too.
        expected_bytes: Rough size of the dataset, to find a full disk before the first step.

    Attributes:
        dataset_id: As given.
        spec: As given.
        path: The dataset's folder, whether it exists yet or not.
        manifest: The manifest of the complete dataset, else None.

    Raises:
        UsageError: A malformed id, unsupported spaces, or a spec that does not fit them.
        ConflictError: The dataset exists, or was begun, with other settings; or another
            process is writing it.
        DamagedError: The existing dataset is damaged.
        UnsafeError: It holds a link, or its manifest names files elsewhere.
        ResourceError: The folder cannot be written, or the disk is too full.
    """

    def __init__(
        self,
        dataset_id: str,
        spec: PolicySpec,
        *,
        env: gym.Env[Any, Any] | None = None,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        env_spec_json: str | None = None,
        settings: Mapping[str, Any] | None = None,
        seed: int | None = None,
        warmup_steps: int = 0,
        license: str | None = None,
        authors: Sequence[str] = (),
        command: str | None = None,
        sources: Sequence[Mapping[str, Any]] = (),
        root: Path | None = None,
        overwrite: bool = False,
        shard_steps: int = DEFAULT_SHARD_STEPS,
        expected_bytes: int | None = None,
    ) -> None:
        if env is not None:
            if observation_space is None:
                observation_space = env.observation_space
            if action_space is None:
                action_space = env.action_space
            if env.spec is not None:
                if environment is None:
                    environment = _reference(env.spec, dataset_id, root)
                env_spec_json = env_spec_json or env_spec_text(env)
        if observation_space is None or action_space is None:
            raise UsageError("spaces are missing", remedy="give env=, or both spaces")
        self.dataset_id = dataset_id
        self.spec = spec
        self.path = new_dataset_path(dataset_id, root)
        self.manifest: dict[str, Any] | None = None
        self._spaces = check_spaces(observation_space, action_space)
        self._incoming = IncomingEpisodes(spec, self._spaces)
        self._env_spec = None if env_spec_json is None else safe_env_spec(env_spec_json)
        identity = {
            "settings": dict(settings or {}),
            "environment": None if environment is None else safe_environment(environment),
            "spec": spec.to_dict(),
            "seed": seed,
            "license": license,
            "authors": list(authors),
        }
        self._identity: dict[str, Any] = json.loads(canonical_json(identity))
        self._warmup_steps = warmup_steps
        self._sources: list[Any] = json.loads(canonical_json(list(sources)))
        self._shard_steps = shard_steps
        self._work = dataset_work(self.path)
        self._shards = Shards(self._work.folder)
        self._fresh = False
        self._plan: dict[str, Any] = {}
        self._entries: list[_Entry] = []
        self._flushed = time.monotonic()
        plan = plan_of(self._identity, command, overwrite=overwrite)
        if self._is_complete(overwrite):
            if not path_exists(self._work.plan) or self._is_planned():
                self._work.remove_leftovers()  # and no attempt with other settings
        else:
            self._begin(plan, expected_bytes)

    # ------------------------------------------------------------------ what is there

    @property
    def complete(self) -> bool:
        """Whether the dataset is there under its own name."""
        return self.manifest is not None

    @property
    def state(self) -> dict[str, Any] | None:
        """What :meth:`set_state` stored, also in an earlier process; None if nothing."""
        state: dict[str, Any] | None = self._plan.get("state")
        return state

    @property
    def episodes_done(self) -> int:
        """Number of episodes added so far, those of earlier processes included."""
        if self.manifest is not None:
            done: int = self.manifest["provenance"]["stats"]["episodes"]
            return done
        return len(self._entries)

    @property
    def episodes_safe(self) -> int:
        """Number of episodes on disk: what a kill right now would leave."""
        return self._shards.episodes

    @property
    def steps_done(self) -> int:
        """Number of steps added so far."""
        return self._last.steps_so_far

    @property
    def where_safe(self) -> str:
        """What to say where writing fails: what is safe and how to go on, or ""."""
        if not self.episodes_safe:
            return ""
        safe = f"{self.episodes_safe} finished episodes are safe in {self._work.folder}"
        return f"{safe}; without --overwrite they are kept" if self._plan.get("overwrite") else safe

    # ------------------------------------------------------------------------ writing

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Store once, before the first episode, what later processes must know.

        Floats come back exactly. Storing the same again does nothing.

        Raises:
            UsageError: Another state is stored, or episodes are, or the dataset is complete.
            ResourceError: The disk refuses.
        """
        given = json.loads(canonical_json(dict(state)))
        if self.state is not None and canonical_json(self.state) == canonical_json(given):
            return
        self._check_open()
        if self.state is not None or self._entries:
            raise UsageError(
                "the state can be set only once and before the first episode",
                where=self.dataset_id,
            )
        with self._resources():
            self._write_plan({**self._plan, "state": given})

    def mark_not_repeatable(self) -> None:
        """Record that an episode, played again from its seed, came out otherwise.

        Manifest and card will say so.

        Raises:
            UsageError: The writer is closed, or the dataset complete.
            ResourceError: The disk refuses.
        """
        self._check_open()
        with self._resources():
            version = max(self._plan["version"], 2)
            self._write_plan({**self._plan, "version": version, "repeatable": False})

    def first_stored(self) -> Episode | None:
        """Return the first episode that is on disk, read again; None if there is none.

        Raises:
            DamagedError: It was changed on disk.
        """
        return next(iter(self._shards), None)

    def add(self, episode: Episode) -> None:
        """Take in one finished episode; it is on disk after a few more, or :meth:`flush`.

        Arrays are copied. Values are cast to the format's dtypes where that loses nothing.

        Raises:
            UsageError: Shapes, dtypes or values contradict the spec or the spaces.
            DivergedError: Values are NaN or infinite.
            ResourceError: The disk refuses; the message says what is safe.
        """
        self._check_open()
        checked = self._incoming.check(episode, f"{self.dataset_id} episode {self.episodes_done}")
        self._remember(checked, keep=True)
        safe = self._entries[self.episodes_safe - 1] if self.episodes_safe else _NONE
        if (
            self._last.steps_so_far - safe.steps_so_far >= self._shard_steps
            or self._last.bytes_so_far - safe.bytes_so_far >= MAX_SHARD_BYTES
            or time.monotonic() - self._flushed >= MAX_SHARD_SECONDS
        ):
            self.flush()

    def add_arrays(
        self,
        *,
        observations: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        terminated: bool,
        theta: ArrayLike,
        segment: ArrayLike | None = None,
        obs_mean: ArrayLike | None = None,
        obs_std: ArrayLike | None = None,
        seed: int | None = None,
        cut: Cut = "none",
        reward_survive: ArrayLike | None = None,
        pre_action: ArrayLike | None = None,
    ) -> None:
        """Take in one finished episode from plain arrays or lists.

        Args:
            observations: (T + 1, obs_dim), the final one included.
            actions: (T, act_dim), or (T,) for discrete actions.
            rewards: (T,).
            terminated: Whether the task ended at the last step; else it was truncated.
            theta: (D,) for one policy, or (S, D) with ``segment``.
            segment: (T,) or (T + 1,), the row of theta that acted.
            obs_mean: (obs_dim,) or (S, obs_dim); default zeros.
            obs_std: (obs_dim,) or (S, obs_dim); default ones.
            seed: What ``env.reset`` was seeded with.
            cut: ``budget`` when a step budget ended the episode early.
            reward_survive: (T + 1,), see :class:`pbvf_offline.rollout.episodes.Episode`.
            pre_action: (T + 1, act_dim), stochastic continuous policies only.

        Raises:
            UsageError: As :meth:`add`.
            DivergedError: As :meth:`add`.
            ResourceError: As :meth:`add`.
        """
        steps = np.asarray(rewards).size
        rows = np.atleast_2d(np.asarray(theta))
        row: NDArray[Any] = np.zeros(steps, np.int32) if segment is None else np.asarray(segment)
        if row.shape == (steps,) and steps:
            row = np.append(row, row[-1])
        shape = (rows.shape[0], self.spec.obs_dim)
        try:
            mean = np.broadcast_to(np.asarray(0.0 if obs_mean is None else obs_mean), shape)
            std = np.broadcast_to(np.asarray(1.0 if obs_std is None else obs_std), shape)
        except ValueError as error:
            raise UsageError(
                f"the normaliser does not fit {shape[0]} policies of {shape[1]} observations",
                where=f"{self.dataset_id} episode {self.episodes_done}",
            ) from error
        last = np.arange(steps) == steps - 1
        self.add(
            Episode(
                observations=np.asanyarray(observations),  # a mask must not be lost unseen
                actions=np.asanyarray(actions),
                rewards=np.asanyarray(rewards),
                terminated=last & terminated,
                truncated=last & (not terminated),
                theta=rows,
                segment=row,
                obs_mean=mean,
                obs_std=std,
                seed=seed,
                cut=cut,
                reward_survive=None if reward_survive is None else np.asarray(reward_survive),
                pre_action=None if pre_action is None else np.asarray(pre_action),
            )
        )

    def flush(self) -> None:
        """Put all episodes added so far on disk, as one immutable shard.

        Raises:
            UsageError: The writer is closed.
            ResourceError: The disk refuses; the episodes stay in memory.
        """
        waiting = self._entries[self.episodes_safe :]
        if self.complete or not waiting:
            return
        self._check_open()
        with self._resources():
            self._shards.append([e.episode for e in waiting if e.episode is not None])
        self._flushed = time.monotonic()
        for entry in waiting:
            entry.episode = None

    def finish(self) -> dict[str, Any]:
        """Make the dataset from all episodes added, by one rename, and return its manifest.

        Raises:
            UsageError: There is no episode, or the writer is closed.
            ConflictError: Something else has taken the dataset's name meanwhile.
            ResourceError: The disk refuses; the episodes are safe and finish can be repeated.
            DamagedError: A shard was changed on disk since it was written.
        """
        if self.manifest is not None:
            return self.manifest
        self._check_open()
        if not self._entries:
            raise UsageError("there are no episodes to make a dataset of", where=self.dataset_id)
        self.flush()
        try:
            with self._resources():
                manifest = lay_out(self._work.build, self._facts(), self._shards)
        except ResourceError:
            with contextlib.suppress(OSError):
                remove_tree(self._work.build)  # so that the space it took is free again
            raise
        with self._resources():
            self._work.publish(replace=bool(self._plan["overwrite"]))
        self.manifest = manifest
        return manifest

    def discard(self) -> None:
        """Forget the episodes added so far, on disk too, and close: they are of no use.

        Raises:
            UsageError: The writer is closed, or the dataset complete.
            ResourceError: The disk refuses.
        """
        self._check_open()
        with self._resources():
            self._work.remove()
        self._work.close()

    def close(self) -> None:
        """Release the lock. A work folder that this object made and never used is removed."""
        try:
            if self._work.held and self._fresh and not self.episodes_safe and self.state is None:
                with contextlib.suppress(OSError):
                    self._work.remove()
        finally:
            self._work.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if self._work.held and error is None:
                self.flush()
            elif self._work.held:
                # The first error is the one worth reporting.
                with contextlib.suppress(PbvfError, OSError):
                    self.flush()
        finally:
            self.close()

    # ---------------------------------------------------------------- opening, resuming

    def _begin(self, plan: dict[str, Any], expected_bytes: int | None) -> None:
        def another() -> str:
            return "MINARI_DATASETS_PATH can name another folder"

        with resource_errors(self._work.folder, another):
            self._work.hold()
        try:
            with resource_errors(self._work.folder, another):
                if self._is_complete(plan["overwrite"]):
                    self._work.remove()
                    self._work.close()
                    return
                self._work.refuse_foreign()
                if plan["overwrite"] or not self._resume():
                    self._work.clear()
                    self._fresh = True
                    self._write_plan(plan)
                if expected_bytes is not None:
                    # Shards and the finished file are on disk together for a moment.
                    self._work.require_space(2 * expected_bytes)
        except BaseException:
            self.close()
            raise

    def _is_complete(self, overwrite: bool) -> bool:
        """Whether the dataset that is to be made is there already, intact.

        Raises:
            ConflictError: Something else has its name and is not to be replaced.
            DamagedError: A dataset of that name is damaged.
        """
        if overwrite or not path_exists(self.path) or self._was_replacing():
            return False
        self._take_complete()
        return True

    def _was_replacing(self) -> bool:
        """Whether an interrupted run with these settings has yet to replace the dataset."""
        if self._work.replacing:
            return False  # it has: only the old one's removal was cut off
        return self._is_planned(overwriting=True)

    def _is_planned(self, *, overwriting: bool = False) -> bool:
        """Whether there is unfinished work with these settings (begun with ``overwrite``)."""
        with contextlib.suppress(PbvfError, OSError):
            plan = parse_plan(read_plain(self._work.plan), self._work.plan)
            same = same_settings(plan["identity"], self._identity)
            return same and (plan["overwrite"] is True or not overwriting)
        return False

    def _take_complete(self) -> None:
        """Accept the dataset of this name, if it is intact and the same."""
        where = self.path / MANIFEST_FILE
        try:
            manifest = parse_manifest(read_plain(where), where)
            there = identity_of(manifest["provenance"])
            refuse_other(there, self._identity, self.path)
            verify_files(self.path, manifest)
        except DamagedError as error:
            raise DamagedError(error.what, where=error.where, remedy=START_ANEW) from error
        except UnsafeError as error:
            remedy = error.remedy or START_ANEW
            raise UnsafeError(error.what, where=error.where, remedy=remedy) from error
        except (FileNotFoundError, NotADirectoryError) as error:
            refuse_foreign(self.path, DATASET_FILES)
            raise ConflictError(
                "it exists and has no manifest, so this program did not write it",
                where=self.path,
                remedy=START_ANEW,
            ) from error
        except OSError as error:
            raise ResourceError(
                f"cannot read: {error.strerror}", where=where, remedy="check its permissions"
            ) from error
        self.manifest = manifest

    def _resume(self) -> bool:
        """Take up the work found in the folder; False when there is none."""
        where = self._work.plan
        if not where.exists():
            return False
        plan = parse_plan(read_plain(where), where)
        refuse_other(plan["identity"], self._identity, self._work.folder)
        self._plan = plan
        remove_tree(self._work.build)
        self._shards.recover(self._recovered)
        return True

    def _recovered(self, episode: Episode, name: str) -> None:
        self._remember(self._incoming.check(episode, name), keep=False)

    def _remember(self, episode: Episode, *, keep: bool) -> None:
        total_reward(episode.rewards)  # refused now, and not when all episodes are laid out
        arrays = (getattr(episode, field.attribute) for field in FIELDS)
        size = sum(array.nbytes for array in arrays if array is not None)
        last = self._last
        self._entries.append(
            _Entry(
                last.steps_so_far + len(episode),
                last.bytes_so_far + size,
                episode if keep else None,
            )
        )

    @property
    def _last(self) -> _Entry:
        return self._entries[-1] if self._entries else _NONE

    def _check_open(self) -> None:
        if self.complete:
            raise UsageError("the dataset is complete; nothing can be added", where=self.dataset_id)
        if not self._work.held:
            raise UsageError("the writer is closed", where=self.dataset_id)

    def _facts(self) -> DatasetFacts:
        warmup = (self.state or {}).get("warmup_steps")
        return DatasetFacts(
            dataset_id=self.dataset_id,
            spec=self.spec,
            spaces=self._spaces,
            identity=self._identity,
            env_spec=self._env_spec,
            sources=self._sources,
            warmup_steps=warmup if type(warmup) is int else self._warmup_steps,
            command=self._plan["command"],
            repeatable=self._plan.get("repeatable", True),
        )

    def _write_plan(self, plan: dict[str, Any]) -> None:
        write_durably(self._work.plan, canonical_json(plan) + b"\n")
        self._plan = plan

    def _resources(self) -> contextlib.AbstractContextManager[None]:
        return resource_errors(self._work.folder, lambda: self.where_safe)


def _reference(spec: EnvSpec, dataset_id: str, root: Path | None) -> dict[str, Any]:
    """Return what names an environment; without its module where the same dataset has none.

    Datasets that were begun or made before modules were found out go on.
    """
    reference = env_reference(spec)
    there = (stored_settings(dataset_id, root) or {}).get("environment")
    if there == safe_environment({**reference, "module": None}):
        reference["module"] = None
    return reference

"""Write a dataset so that a crash at any moment loses at most the last few episodes.

Work goes on in the dot-folder ``.<name>-vN.collecting`` beside the dataset (Minari's
listing skips dot-folders): ``plan.json`` says what is being made, immutable shards hold
the finished episodes, ``lock`` keeps other processes out. :meth:`DatasetWriter.finish`
lays the dataset out in ``build`` in there and moves it to its name with one rename. A
kill at any point leaves either a folder that the same call resumes or the dataset.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbvf_datasets.card import card_text
from pbvf_datasets.columns import (
    columns_to_image,
    image_to_columns,
    pack_columns,
    unpack_columns,
)
from pbvf_datasets.durable import (
    TEMPORARY,
    make_folders,
    remove_tree,
    resource_errors,
    sync_folder,
    write_durably,
)
from pbvf_datasets.manifest import (
    build_manifest,
    manifest_bytes,
    parse_manifest,
    tool_version,
    verify_files,
    versions,
)
from pbvf_datasets.schema import (
    CARD_FILE,
    DATA_FILE,
    FIELDS,
    MANIFEST_FILE,
    METADATA_FILE,
    OBS_DTYPES,
    canonical_json,
    check_dataset_id,
    check_spaces,
    check_version,
    dataset_path,
    datasets_root,
    field_dtype,
    field_shape,
    parse_json,
    serialize_space,
)
from pbvf_offline.batches import Cut, Episode
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    DivergedError,
    IncompatibleError,
    PbvfError,
    ResourceError,
    UsageError,
)
from pbvf_offline.policies import BoxActions, DiscreteActions, PolicySpec

if TYPE_CHECKING:
    import gymnasium as gym

PLAN_VERSION: Final = 1
DEFAULT_SHARD_STEPS: Final = 20_000
MAX_SHARD_BYTES: Final = 64 * 2**20
"""A shard is also closed at this size: wide policies fill memory before 20,000 steps do."""

_PLAN_FILE = "plan.json"
_LOCK_FILE = "lock"
_BUILD_FOLDER = "build"
_SHARD = re.compile(r"shard-([0-9]{6,})-([0-9a-f]{16})\.safetensors")
_OVERWRITE = "give another --dataset, or --overwrite to start anew"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

JSON = Any


@dataclass(frozen=True)
class _Record:
    """What is remembered of an episode once its arrays are on disk."""

    steps: int
    total: float
    cut: bool
    policies: tuple[bytes, ...]


@dataclass(frozen=True)
class _Progress:
    """Replaced as a whole, so that an interrupt between two statements cannot split it."""

    shards: tuple[str, ...] = ()
    stored: tuple[_Record, ...] = ()
    buffer: tuple[tuple[Episode, _Record], ...] = ()

    def records(self) -> Iterator[_Record]:
        yield from self.stored
        for _, record in self.buffer:
            yield record


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

    Args:
        dataset_id: ``namespace/name-vN``.
        spec: Architecture of all policies in the dataset.
        env: Environment to take spaces, spec and reference from, where not given below.
        observation_space: A one-dimensional Box.
        action_space: A one-dimensional Box or Discrete.
        environment: ``{"id", "module", "kwargs", "withheld"}``: what a reader may rebuild.
            Arguments that are not scalars or look like paths are withheld.
        env_spec_json: ``EnvSpec.to_json()`` for stock Minari; stored without path-like
            arguments.
        settings: All that must be equal for the same dataset, as JSON.
        seed: Seed of the whole collection, or None when there is none.
        warmup_steps: Steps run for the normaliser and not stored. An integer
            ``warmup_steps`` in the state (:meth:`set_state`) goes before it.
        license: SPDX identifier, or None.
        authors: Names.
        command: A command line that makes the same dataset, for the card.
        root: Folder of datasets; default ``MINARI_DATASETS_PATH``, else Minari's own.
        overwrite: Start anew; an existing dataset is replaced when the new one is complete.
        shard_steps: Steps after which finished episodes are put on disk.
        expected_bytes: Rough size of the dataset, to find a full disk before the first step.

    Raises:
        UsageError: A malformed id, unsupported spaces, or a spec that does not fit them.
        ConflictError: The dataset exists, or was begun, with other settings; or another
            process is writing it.
        DamagedError: The existing dataset is damaged.
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
        environment: Mapping[str, JSON] | None = None,
        env_spec_json: str | None = None,
        settings: Mapping[str, JSON] | None = None,
        seed: int | None = None,
        warmup_steps: int = 0,
        license: str | None = None,
        authors: Sequence[str] = (),
        command: str | None = None,
        root: Path | None = None,
        overwrite: bool = False,
        shard_steps: int = DEFAULT_SHARD_STEPS,
        expected_bytes: int | None = None,
    ) -> None:
        if env is not None:
            observation_space = observation_space or env.observation_space
            action_space = action_space or env.action_space
            if env.spec is not None:
                environment = environment or {"id": env.spec.id, "kwargs": env.spec.kwargs}
                env_spec_json = env_spec_json or _env_spec_text(env)
        if observation_space is None or action_space is None:
            raise UsageError("spaces are missing", remedy="give env=, or both spaces")
        spaces = check_spaces(observation_space, action_space)
        _check_spec(spec, *spaces)
        namespace, _, _ = check_dataset_id(dataset_id)
        root = datasets_root() if root is None else root
        self.dataset_id = dataset_id
        self.spec = spec
        self.path = dataset_path(dataset_id, root)
        self.manifest: dict[str, Any] | None = None
        self._spaces = spaces
        self._env_spec = None if env_spec_json is None else safe_env_spec(env_spec_json)
        self._command = command
        self._warmup_steps = warmup_steps
        self._identity: dict[str, JSON] = json.loads(
            canonical_json(
                {
                    "settings": dict(settings or {}),
                    "environment": None if environment is None else safe_environment(environment),
                    "spec": spec.to_dict(),
                    "seed": seed,
                    "license": license,
                    "authors": list(authors),
                }
            )
        )
        self._shard_steps = shard_steps
        self._work = self.path.with_name(f".{self.path.name}.collecting")
        self._aside = self.path.with_name(f".{self.path.name}.replaced")
        self._overwrite = overwrite
        self._lock: _Lock | None = None
        self._plan: dict[str, JSON] = {}
        self._progress = _Progress()
        self._obs_dtype: np.dtype[Any] | None = None
        self._optional: dict[str, bool] | None = None
        _check_neighbours(root, namespace, dataset_id)
        if not overwrite and _exists(self.path):
            self._take_complete()
            self._tidy()
            return
        self._begin(expected_bytes)

    # ------------------------------------------------------------------ what is there

    @property
    def complete(self) -> bool:
        """Whether the dataset stands under its own name."""
        return self.manifest is not None

    @property
    def state(self) -> dict[str, JSON] | None:
        """What :meth:`set_state` stored, also in an earlier process; None if nothing."""
        state: dict[str, JSON] | None = self._plan.get("state")
        return state

    @property
    def episodes_done(self) -> int:
        """Number of episodes added so far, those of earlier processes included."""
        return len(self._progress.stored) + len(self._progress.buffer)

    @property
    def episodes_safe(self) -> int:
        """Number of episodes on disk: what a kill right now would leave."""
        return len(self._progress.stored)

    @property
    def lengths_done(self) -> list[int]:
        """Steps of each episode added so far."""
        return [record.steps for record in self._progress.records()]

    @property
    def steps_done(self) -> int:
        """Number of steps added so far."""
        return sum(self.lengths_done)

    @property
    def cut_done(self) -> int:
        """Number of episodes that a step budget cut short."""
        return sum(record.cut for record in self._progress.records())

    @property
    def returns_done(self) -> list[float]:
        """Undiscounted return of each whole episode added so far (cut ones left out)."""
        return [record.total for record in self._progress.records() if not record.cut]

    @property
    def policies_done(self) -> int:
        """Number of distinct policies that acted so far."""
        return len({key for record in self._progress.records() for key in record.policies})

    # ------------------------------------------------------------------------ writing

    def set_state(self, state: Mapping[str, JSON]) -> None:
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
        if self.state is not None or self.episodes_done:
            raise UsageError("the state can be set only once and before the first episode")
        with self._resources():
            self._write_plan({**self._plan, "state": given})

    def add(self, episode: Episode) -> None:
        """Take in one finished episode; it is on disk after a few more, or :meth:`flush`.

        Arrays are copied. Values are cast to the format's dtypes where that loses nothing.

        Raises:
            UsageError: Shapes, dtypes or values contradict the spec or the spaces.
            DivergedError: Observations, rewards or actions hold NaN or infinite values.
            ResourceError: The disk refuses; the message says what is safe.
        """
        self._check_open()
        checked = self._checked(episode)
        record = _record(checked)
        progress = self._progress
        buffer = (*progress.buffer, (checked, record))
        self._progress = _Progress(progress.shards, progress.stored, buffer)
        if (
            sum(r.steps for _, r in buffer) >= self._shard_steps
            or sum(_nbytes(e) for e, _ in buffer) >= MAX_SHARD_BYTES
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
            reward_survive: (T + 1,), see :class:`pbvf_offline.batches.Episode`.
            pre_action: (T + 1, act_dim), stochastic continuous policies only.

        Raises:
            UsageError: As :meth:`add`.
            DivergedError: As :meth:`add`.
            ResourceError: As :meth:`add`.
        """
        steps = len(np.asarray(rewards))
        if steps == 0:
            raise UsageError("an episode needs at least one step", where=self._label("rewards"))
        rows = np.atleast_2d(np.asarray(theta))
        row: NDArray[Any] = np.zeros(steps, np.int32) if segment is None else np.asarray(segment)
        if row.shape == (steps,):
            row = np.append(row, row[-1])
        last = np.arange(steps) == steps - 1
        width = (rows.shape[0], self.spec.obs_dim)
        try:
            mean = np.broadcast_to(np.asarray(0.0 if obs_mean is None else obs_mean), width)
            std = np.broadcast_to(np.asarray(1.0 if obs_std is None else obs_std), width)
        except ValueError as error:
            raise UsageError(
                f"the normaliser does not fit {width[0]} policies of {width[1]} observations"
            ) from error
        self.add(
            Episode(
                observations=np.asarray(observations),
                actions=np.asarray(actions),
                rewards=np.asarray(rewards),
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
            ResourceError: The disk refuses; the episodes stay in memory.
        """
        progress = self._progress
        if self.complete or not progress.buffer:
            return
        self._check_open()
        index = len(progress.shards)
        meta = {
            "shard": index,
            "first": len(progress.stored),
            "episodes": len(progress.buffer),
        }
        with self._resources():
            image = columns_to_image(pack_columns([e for e, _ in progress.buffer]), meta)
            digest = hashlib.sha256(image).hexdigest()[:16]
            name = f"shard-{index:06d}-{digest}.safetensors"
            for other in self._work.glob(f"shard-{index:06d}-*.safetensors"):
                # An interrupt fell between an earlier rename and this object's memory of it.
                if other.name != name:
                    os.unlink(other)
            write_durably(self._work / name, image)
        self._progress = _Progress(
            (*progress.shards, name), (*progress.stored, *(r for _, r in progress.buffer))
        )

    def finish(self) -> dict[str, Any]:
        """Make the dataset from all episodes added, by one rename, and return its manifest.

        Raises:
            UsageError: There is no episode.
            ConflictError: Something else has taken the dataset's name meanwhile.
            ResourceError: The disk refuses; the episodes are safe and finish can be repeated.
            DamagedError: A shard was changed on disk since it was written.
        """
        if self.manifest is not None:
            return self.manifest
        self._check_open()
        if self.episodes_done == 0:
            raise UsageError("there are no episodes to make a dataset of", where=self.dataset_id)
        self.flush()
        build = self._work / _BUILD_FOLDER
        try:
            with self._resources():
                remove_tree(build)
                manifest = self._build(build)
        except ResourceError:
            with contextlib.suppress(OSError):
                remove_tree(build)  # so that the space it took is free again
            raise
        with self._resources():
            self._publish(build)
        self.manifest = manifest
        # The dataset stands; a work folder that cannot be removed is tidied the next time.
        with contextlib.suppress(OSError):
            self._remove_work()
        return manifest

    def close(self) -> None:
        """Release the lock. A work folder that holds nothing yet is removed."""
        if self._lock is None:
            return
        empty = not self._progress.shards and self.state is None and not self.complete
        if empty and not _exists(self._work / _BUILD_FOLDER):
            with contextlib.suppress(OSError):
                self._remove_work()
        self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._lock is not None:
                if error is None:
                    self.flush()
                else:
                    # The first error is the one worth reporting.
                    with contextlib.suppress(PbvfError, OSError):
                        self.flush()
        finally:
            self.close()

    # ---------------------------------------------------------------- opening, resuming

    def _begin(self, expected_bytes: int | None) -> None:
        with resource_errors(self._work, lambda: "choose a folder that can be written"):
            make_folders(self._work.parent)
            self._lock = _Lock(self._work, self.dataset_id)
        try:
            with self._resources():
                self._recover()
                if not self._overwrite and _exists(self.path):
                    self._take_complete()
                    self._remove_work()
                    self._unlock()
                    return
                if self._overwrite:
                    remove_tree(self._work, keep=_LOCK_FILE)
                self._resume()
                self._check_space(expected_bytes)
        except BaseException:
            self.close()
            raise

    def _recover(self) -> None:
        """Undo or complete a replacement that was killed between its two renames."""
        if not _exists(self._aside):
            return
        if not _exists(self.path):
            build = self._work / _BUILD_FOLDER
            try:
                manifest = parse_manifest(_read(build / MANIFEST_FILE), build / MANIFEST_FILE)
                verify_files(build, manifest)
            except (PbvfError, OSError):
                os.rename(self._aside, self.path)
                sync_folder(self.path.parent)
                return
            os.rename(build, self.path)
            sync_folder(self.path.parent)
        remove_tree(self._aside)

    def _take_complete(self) -> None:
        """Accept the dataset that stands under the name, if it is intact and the same."""
        where = self.path / MANIFEST_FILE
        try:
            data = _read(where)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConflictError(
                "it exists and has no manifest, so this program did not write it",
                where=self.path,
                remedy=_OVERWRITE,
            ) from error
        except OSError as error:
            raise ResourceError(f"cannot read: {error.strerror}", where=where) from error
        try:
            manifest = parse_manifest(data, where)
            self._compare(_identity(manifest["provenance"]), self.path)
            verify_files(self.path, manifest)
        except DamagedError as error:
            raise DamagedError(error.what, where=error.where, remedy=_OVERWRITE) from error
        self.manifest = manifest
        stats = manifest["provenance"]["stats"]
        self._warmup_steps = manifest["provenance"]["warmup_steps"]
        del stats

    def _tidy(self) -> None:
        """Remove what a kill after the final rename left behind; never essential."""
        if _exists(self._work) or _exists(self._aside):
            with contextlib.suppress(OSError, PbvfError):
                self._lock = _Lock(self._work, self.dataset_id)
                remove_tree(self._aside)
                self._remove_work()
            self._unlock()

    def _resume(self) -> None:
        for entry in sorted(os.listdir(self._work)):
            if entry.startswith(TEMPORARY):
                os.unlink(self._work / entry)
        where = self._work / _PLAN_FILE
        if not where.exists():
            remove_tree(self._work, keep=_LOCK_FILE)
            self._write_plan(
                {
                    "version": PLAN_VERSION,
                    "identity": self._identity,
                    "command": self._command,
                    "state": None,
                }
            )
            return
        plan = _parse_plan(_read(where), where)
        self._compare(plan["identity"], self._work)
        self._plan = plan
        self._command = plan["command"]
        remove_tree(self._work / _BUILD_FOLDER)
        shards: list[str] = []
        stored: list[_Record] = []
        found = sorted(n for n in os.listdir(self._work) if _SHARD.fullmatch(n))
        for name in found:
            episodes = self._intact(name, len(shards), len(stored))
            if episodes is None:
                # What follows a damaged shard would no longer be in order.
                for late in found[len(shards) :]:
                    os.unlink(self._work / late)
                sync_folder(self._work)
                break
            shards.append(name)
            for episode in episodes:
                self._check_uniform(episode)
                stored.append(_record(episode))
        self._progress = _Progress(tuple(shards), tuple(stored))

    def _intact(self, name: str, index: int, first: int) -> list[Episode] | None:
        match = _SHARD.fullmatch(name)
        path = self._work / name
        try:
            data = _read(path)
            if match is None or int(match[1]) != index:
                return None
            if hashlib.sha256(data).hexdigest()[:16] != match[2]:
                return None
            columns, meta = image_to_columns(data, path)
            episodes = unpack_columns(columns, path)
        except DamagedError:
            return None
        expected = {"shard": index, "first": first, "episodes": len(episodes)}
        return episodes if meta == expected else None

    def _compare(self, found: Mapping[str, JSON], where: Path) -> None:
        """Raise ConflictError where something exists that was made with other settings."""
        given, stored = _labels(self._identity), _labels(found)
        texts = [
            f"{label} is {_show(stored.get(label))} there and {_show(given.get(label))} here"
            for label in dict.fromkeys([*stored, *given])
            if stored.get(label) != given.get(label)
        ]
        if texts:
            raise ConflictError(
                f"it exists with other settings: {'; '.join(texts)}",
                where=where,
                remedy=_OVERWRITE,
            )

    def _check_space(self, expected_bytes: int | None) -> None:
        if expected_bytes is None:
            return
        free = shutil.disk_usage(self._work).free
        # Shards and the finished file are on disk together for a moment.
        if free < 2 * expected_bytes:
            raise ResourceError(
                f"about {2 * expected_bytes / 1e6:,.0f} MB are needed and "
                f"{free / 1e6:,.0f} MB are free",
                where=self._work.parent,
                remedy="free space or choose another disk with MINARI_DATASETS_PATH",
            )

    # ------------------------------------------------------------------------ checking

    def _checked(self, episode: Episode) -> Episode:
        steps, segments = _lengths(episode, self._label)
        values: dict[str, Any] = {}
        for field in FIELDS:
            array = getattr(episode, field.attribute)
            if array is None:
                if field.required:
                    raise UsageError("it is missing", where=self._label(field.attribute))
                continue
            label = self._label(field.attribute)
            array = np.asarray(array)
            shape = field_shape(field, self.spec, steps, segments)
            if array.shape != shape:
                raise UsageError(
                    f"it has shape {array.shape}; {shape} is expected ({field.rows} rows, "
                    f"T = {steps}, S = {segments})",
                    where=label,
                )
            dtype = field_dtype(field, self.spec) or self._obs_dtype or array.dtype
            if str(dtype) not in OBS_DTYPES and dtype != np.bool_:
                raise UsageError(f"dtype {array.dtype} is not supported", where=label)
            if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
                at = np.argwhere(~np.isfinite(array.reshape(array.shape[0], -1)))[0, 0]
                unit = "segment" if field.rows == "S" else "step"
                raise DivergedError(
                    f"NaN or infinite values at {unit} {int(at)}",
                    where=label,
                    remedy="the environment or the policy diverged; try a smaller sigma",
                )
            values[field.attribute] = _cast(array, dtype, label)
        result = Episode(**values, seed=episode.seed, cut=episode.cut)
        self._check_values(result)
        self._check_uniform(result)
        return result

    def _check_values(self, episode: Episode) -> None:
        terminated, truncated = episode.terminated, episode.truncated
        if terminated[:-1].any() or truncated[:-1].any():
            raise UsageError(
                "it goes on after a step that is marked terminated or truncated",
                where=self._label(),
            )
        if not (terminated[-1] or truncated[-1]):
            raise UsageError(
                "its last step is neither terminated nor truncated",
                where=self._label(),
                remedy="mark it truncated when your loop stopped it",
            )
        if episode.cut not in ("none", "budget"):
            raise UsageError(f"cut is {episode.cut!r}, not 'none' or 'budget'", where=self._label())
        if episode.cut == "budget" and terminated[-1]:
            raise UsageError(
                "an episode that the budget cut cannot be terminated", where=self._label()
            )
        seed = episode.seed
        if seed is not None and not 0 <= seed < 2**63:
            raise UsageError(f"seed {seed} is not in 0 … 2**63 - 1", where=self._label("seed"))
        segment, rows = episode.segment, episode.theta.shape[0]
        if segment.min() < 0 or segment.max() >= rows or segment[-1] != segment[-2]:
            raise UsageError(
                f"its entries must be rows of theta (0 … {rows - 1}) and the last must repeat "
                "the one before",
                where=self._label("segment"),
            )
        if len(np.unique(segment)) != rows:
            raise UsageError(
                f"it uses {len(np.unique(segment))} of {rows} thetas; only those that acted "
                "may be stored",
                where=self._label("segment"),
            )
        if np.any(episode.obs_std <= 0):
            raise UsageError("it holds values that are not positive", where=self._label("obs_std"))
        actions = self.spec.actions
        if isinstance(actions, BoxActions):
            space = self._spaces[1]
            low, high = space.low, space.high  # type: ignore[union-attr]
            bad = np.any((episode.actions < low) | (episode.actions > high), axis=1)
        else:
            low, high = actions.start, actions.start + actions.n - 1
            bad = (episode.actions < low) | (episode.actions > high)
        if bad.any():
            step = int(np.argmax(bad))
            raise UsageError(
                f"the action {_show(episode.actions[step].tolist())} of step {step} is outside "
                f"the action space ({_show(np.asarray(low).tolist())} to "
                f"{_show(np.asarray(high).tolist())})",
                where=self._label("actions"),
            )
        if episode.pre_action is not None and not (
            self.spec.stochastic and isinstance(actions, BoxActions)
        ):
            raise UsageError(
                "only stochastic policies over continuous actions have it",
                where=self._label("pre_action"),
            )

    def _check_uniform(self, episode: Episode) -> None:
        """Remember dtype and optional arrays of the first episode; hold the others to them."""
        optional = {
            f.attribute: getattr(episode, f.attribute) is not None for f in FIELDS if not f.required
        }
        if self._optional is None:
            self._optional, self._obs_dtype = optional, episode.observations.dtype
            return
        for name, present in optional.items():
            if present != self._optional[name]:
                raise UsageError(
                    f"the first episode {'lacks' if present else 'has'} it and this one "
                    f"{'has' if present else 'lacks'} it; all or none may carry it",
                    where=self._label(name),
                )

    def _label(self, name: str = "") -> str:
        return f"{self.dataset_id} episode {self.episodes_done}{' ' if name else ''}{name}"

    def _check_open(self) -> None:
        if self.complete:
            raise UsageError("the dataset is complete; nothing can be added", where=self.dataset_id)
        if self._lock is None:
            raise UsageError("the writer is closed", where=self.dataset_id)

    # ------------------------------------------------------------------------ finishing

    def _episodes(self) -> Iterator[Episode]:
        first = 0
        for index, name in enumerate(self._progress.shards):
            episodes = self._intact(name, index, first)
            if episodes is None:
                raise DamagedError(
                    "this shard changed after it was written",
                    where=self._work / name,
                    remedy="run the same command again: it makes those episodes anew",
                )
            first += len(episodes)
            yield from episodes

    def _build(self, build: Path) -> dict[str, Any]:
        from pbvf_datasets.hdf5 import write_episodes

        data = build / "data"
        os.mkdir(build)
        os.mkdir(data)
        write_episodes(build / DATA_FILE, self._episodes(), self.spec)
        provenance = self._provenance()
        write_durably(build / METADATA_FILE, self._metadata((build / DATA_FILE).stat().st_size))
        card = card_text(
            self.dataset_id,
            provenance,
            spec=self.spec,
            returns=self.returns_done,
            command=self._command,
        )
        write_durably(build / CARD_FILE, card.encode("utf-8"))
        manifest = build_manifest(build, provenance)
        write_durably(build / MANIFEST_FILE, manifest_bytes(manifest))
        sync_folder(data)
        sync_folder(build)
        sync_folder(self._work)
        return manifest

    def _publish(self, build: Path) -> None:
        replaced = self._overwrite and _exists(self.path)
        if replaced:
            os.rename(self.path, self._aside)
        elif _exists(self.path):
            raise ConflictError(
                "something else took this name while the dataset was being made",
                where=self.path,
                remedy="move it away and run the same command again",
            )
        os.rename(build, self.path)
        sync_folder(self.path.parent)
        if replaced:
            remove_tree(self._aside)

    def _remove_work(self) -> None:
        """Remove the work folder, the lock last, so that no other process slips in before."""
        remove_tree(self._work, keep=_LOCK_FILE)
        os.unlink(self._work / _LOCK_FILE)
        os.rmdir(self._work)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _provenance(self) -> dict[str, Any]:
        state = self.state or {}
        warmup = state.get("warmup_steps")
        returns = self.returns_done
        return {
            "tool": tool_version(),
            **self._identity,
            "versions": versions(),
            "warmup_steps": warmup if type(warmup) is int else self._warmup_steps,
            "stats": {
                "episodes": self.episodes_done,
                "steps": self.steps_done,
                "policies": self.policies_done,
                "cut": self.cut_done,
                "return": return_stats(returns),
            },
        }

    def _metadata(self, size: int) -> bytes:
        """Return ``metadata.json`` as stock Minari wants it."""
        metadata: dict[str, Any] = {
            "total_episodes": self.episodes_done,
            "total_steps": self.steps_done,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "observation_space": serialize_space(self._spaces[0]),
            "action_space": serialize_space(self._spaces[1]),
            "dataset_id": self.dataset_id,
            "minari_version": versions()["minari"],
            "dataset_size": round(size / 1e6, 1),
            "algorithm_name": tool_version(),
            "description": (
                f"{self.policies_done} {'stochastic' if self.spec.stochastic else 'deterministic'}"
                f" {self.spec.arch} policies; infos hold the parameters that acted at each step."
            ),
        }
        if self._identity["authors"]:
            metadata["author"] = self._identity["authors"]
        if self._env_spec is not None:
            metadata["env_spec"] = self._env_spec
        return canonical_json(metadata)

    def _write_plan(self, plan: dict[str, JSON]) -> None:
        write_durably(self._work / _PLAN_FILE, canonical_json(plan) + b"\n")
        self._plan = plan

    def _resources(self) -> contextlib.AbstractContextManager[None]:
        return resource_errors(self._work, self._remedy)

    def _remedy(self) -> str:
        safe = self.episodes_safe
        kept = f"{safe} finished episodes are safe in {self._work}; " if safe else ""
        return f"{kept}free space or fix the folder and run the same command again"


def peek(dataset_id: str, root: Path | None = None) -> dict[str, Any] | None:
    """Return with what settings a complete or partial dataset of this id was made.

    Nothing is checked beyond the little file that is read; :class:`DatasetWriter` does.

    Args:
        dataset_id: ``namespace/name-vN``.
        root: Folder of datasets; default as for :class:`DatasetWriter`.

    Returns:
        ``{"complete": bool, "settings", "environment", "spec", "seed", "license",
        "authors"}``, or None when there is nothing, or nothing that can be read.

    Raises:
        UsageError: The id is malformed.
    """
    path = dataset_path(dataset_id, root)
    try:
        where = path / MANIFEST_FILE
        return {
            "complete": True,
            **_identity(parse_manifest(_read(where), where)["provenance"]),
        }
    except (PbvfError, OSError):
        pass
    try:
        where = path.with_name(f".{path.name}.collecting") / _PLAN_FILE
        return {"complete": False, **_parse_plan(_read(where), where)["identity"]}
    except (PbvfError, OSError):
        return None


def return_stats(returns: Sequence[float]) -> dict[str, float] | None:
    """Return mean, min and max of whole episodes' returns, or None without any."""
    if not returns:
        return None
    # Divided first where the sum would overflow; fsum does not depend on the order.
    return {
        "mean": math.fsum(r / len(returns) for r in returns),
        "min": min(returns),
        "max": max(returns),
    }


# ------------------------------------------------------------------ environment references

_PATH_LIKE = re.compile(r"[/\\~]|\.[A-Za-z]\w{0,7}$")
_PATH_NAME = re.compile(r"(^|_)(file|path|folder|dir|directory|root|xml|url|uri)(_|$|s$)")


def safe_kwargs(kwargs: Mapping[str, Any]) -> tuple[dict[str, JSON], list[str]]:
    """Split arguments of an environment into those that files may hold and the others.

    Kept are finite numbers, booleans, None and texts that do not look like a path.
    ``render_mode`` is dropped: it changes no data.

    Returns:
        The arguments kept and the sorted names of those withheld.
    """
    kept: dict[str, JSON] = {}
    withheld: list[str] = []
    for key, value in kwargs.items():
        if key == "render_mode":
            continue
        scalar = value is None or isinstance(value, bool | int | float | str)
        if isinstance(value, float) and not math.isfinite(value):
            scalar = False
        if isinstance(value, str) and (_PATH_LIKE.search(value) or _PATH_NAME.search(key)):
            scalar = False
        if scalar:
            kept[key] = value
        else:
            withheld.append(key)
    return kept, sorted(withheld)


def safe_environment(environment: Mapping[str, Any]) -> dict[str, JSON]:
    """Return a reference to an environment without anything that is not for others.

    Raises:
        UsageError: It has no id.
    """
    name = environment.get("id")
    if not isinstance(name, str) or not name:
        raise UsageError(f"the environment has the id {name!r}; a name is expected")
    kept, withheld = safe_kwargs(environment.get("kwargs") or {})
    return {
        "id": name,
        "module": environment.get("module"),
        "kwargs": kept,
        "withheld": sorted({*withheld, *(environment.get("withheld") or ())}),
    }


def safe_env_spec(text: str) -> str:
    """Return ``EnvSpec.to_json()`` text without arguments that look like paths.

    Raises:
        UsageError: The text is not such JSON.
    """
    try:
        spec = parse_json(text, "env_spec_json", allow_infinity=True)
        kwargs, wrappers = spec["kwargs"], spec["additional_wrappers"]
        spec["kwargs"] = _without_paths(kwargs)
        # A wrapper with a path (a video recorder, say) is of this machine only.
        spec["additional_wrappers"] = [
            w for w in wrappers if _without_paths(w.get("kwargs") or {}) == (w.get("kwargs") or {})
        ]
        return json.dumps(spec)
    except (DamagedError, KeyError, TypeError, AttributeError) as error:
        raise UsageError("env_spec_json is not what EnvSpec.to_json() returns") from error


def _without_paths(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    def clean(value: object) -> bool:
        if isinstance(value, str):
            return _PATH_LIKE.search(value) is None
        if isinstance(value, dict):
            return all(isinstance(k, str) and clean(k) and clean(v) for k, v in value.items())
        return all(map(clean, value)) if isinstance(value, list) else True

    return {
        k: v
        for k, v in kwargs.items()
        if k != "render_mode" and clean(v) and not (isinstance(v, str) and _PATH_NAME.search(k))
    }


def _env_spec_text(env: gym.Env[Any, Any]) -> str | None:
    try:
        return None if env.spec is None else env.spec.to_json()
    except (TypeError, ValueError):
        return None  # an argument or entry point that no file can hold


# ------------------------------------------------------------------------------- helpers


def _check_spec(
    spec: PolicySpec,
    observations: gym.spaces.Box,
    actions: gym.spaces.Box | gym.spaces.Discrete,
) -> None:
    problem = None
    if spec.obs_dim != observations.shape[0]:
        problem = f"{spec.obs_dim} observations, the space {observations.shape[0]}"
    elif isinstance(spec.actions, DiscreteActions):
        given = (spec.actions.n, spec.actions.start)
        found = (getattr(actions, "n", None), getattr(actions, "start", None))
        if given != found:
            problem = f"discrete actions (n, start) = {given}, the space is {actions}"
    elif not hasattr(actions, "low"):
        problem = f"continuous actions, the space is {actions}"
    else:
        dtype = np.dtype(spec.actions.dtype)
        low, high = np.array(spec.actions.low, dtype), np.array(spec.actions.high, dtype)
        if (
            actions.shape != low.shape
            or actions.dtype != dtype
            or np.any(low < actions.low)
            or np.any(high > actions.high)
        ):
            problem = (
                f"{dtype} actions from {_show(low.tolist())} to {_show(high.tolist())}, "
                f"the space is {actions}"
            )
    if problem is not None:
        raise UsageError(f"the policy spec does not fit the spaces: it has {problem}")


def _check_neighbours(root: Path, namespace: str, dataset_id: str) -> None:
    folder = root
    for part in namespace.split("/") if namespace else ():
        folder = folder / part
        if (folder / "data").exists():
            raise UsageError(
                f"{dataset_id} would lie inside the dataset {folder}",
                remedy="choose another namespace",
            )


def _lengths(episode: Episode, label: Callable[[str], str]) -> tuple[int, int]:
    for name in ("rewards", "theta"):
        shape = np.shape(getattr(episode, name))
        if len(shape) < 1 or shape[0] < 1:
            raise UsageError(
                f"it has shape {shape}; at least one row is expected", where=label(name)
            )
    return int(np.shape(episode.rewards)[0]), int(np.shape(episode.theta)[0])


def _cast(array: NDArray[Any], dtype: np.dtype[Any], label: str) -> NDArray[Any]:
    """Copy to the dtype wanted (native byte order), if every value survives."""
    if array.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            cast = array.astype(dtype.newbyteorder("="), order="C", copy=True)
        if array.dtype == dtype or np.array_equal(cast, array):
            return cast
    raise UsageError(f"{array.dtype} values do not fit the dtype {dtype}", where=label)


def _record(episode: Episode) -> _Record:
    keys = tuple(
        hashlib.blake2b(
            episode.theta[j].tobytes()
            + episode.obs_mean[j].tobytes()
            + episode.obs_std[j].tobytes(),
            digest_size=16,
        ).digest()
        for j in range(episode.theta.shape[0])
    )
    # fsum is exact, so the return does not depend on how the array lies in memory.
    total = math.fsum(episode.rewards.tolist())
    return _Record(len(episode), total, episode.cut != "none", keys)


def _nbytes(episode: Episode) -> int:
    arrays = (getattr(episode, f.attribute) for f in FIELDS)
    return sum(a.nbytes for a in arrays if a is not None)


def _identity(provenance: Mapping[str, JSON]) -> dict[str, JSON]:
    keys = ("settings", "environment", "spec", "seed", "license", "authors")
    return {key: provenance[key] for key in keys}


def _labels(identity: Mapping[str, JSON]) -> dict[str, bytes]:
    """Flatten to ``name -> canonical JSON``; settings under their own names."""
    labels: dict[str, bytes] = {}

    def walk(prefix: str, value: JSON) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        elif prefix:
            labels[prefix] = canonical_json(value)

    for key, value in identity.items():
        if key != "settings":
            walk(key, value)
    walk("", identity["settings"])
    return labels


def _show(value: object, limit: int = 120) -> str:
    if value is None:
        return "absent"
    text = value.decode("ascii") if isinstance(value, bytes) else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _parse_plan(data: bytes, where: Path) -> dict[str, JSON]:
    try:
        plan = parse_json(data, where)
        version = plan.get("version") if isinstance(plan, dict) else None
        check_version(version, where)
        identity = {"settings", "environment", "spec", "seed", "license", "authors"}
        if (
            set(plan) != {"version", "identity", "command", "state"}
            or not isinstance(plan["identity"], dict)
            or set(plan["identity"]) != identity
        ):
            raise DamagedError("the plan of an unfinished dataset is malformed", where=where)
    except DamagedError as error:
        raise DamagedError(error.what, where=where, remedy=_OVERWRITE) from error
    result: dict[str, JSON] = plan
    return result


def _read(path: Path) -> bytes:
    return path.read_bytes()


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


class _Lock:
    """An exclusive ``flock`` on the lock file of a work folder, which it makes.

    The system drops it when the process ends, however it ends. Forked children close
    their copy, lest a worker that outlives a killed parent keep the dataset locked.
    """

    _held: weakref.WeakSet[_Lock] | None = None

    def __init__(self, folder: Path, dataset_id: str) -> None:
        import fcntl

        path = folder / _LOCK_FILE
        while True:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
            try:
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:
                continue  # another process has just finished and removed the folder
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = os.fstat(self._descriptor)
                try:
                    found = os.stat(path)
                except FileNotFoundError:
                    found = None
                if found is not None and os.path.samestat(held, found):
                    break
                os.close(self._descriptor)
            except BlockingIOError as error:
                os.close(self._descriptor)
                raise ConflictError(
                    "another process is writing this dataset",
                    where=dataset_id,
                    remedy="wait for it, or stop it and run the same command again",
                ) from error
            except BaseException:
                os.close(self._descriptor)
                raise
        self._owner = os.getpid()
        if _Lock._held is None:
            _Lock._held = weakref.WeakSet()
            os.register_at_fork(after_in_child=_Lock._forget)
        _Lock._held.add(self)

    def release(self) -> None:
        """Let others in."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @classmethod
    def _forget(cls) -> None:
        for lock in list(cls._held or ()):
            lock.release()

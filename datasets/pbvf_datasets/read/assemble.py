"""Episodes from outside into flat arrays, each checked against the format on the way.

The one place that knows when an episode is well formed: :mod:`pbvf_datasets.read.dataset`
feeds it from HDF5, :mod:`pbvf_datasets.read.minari_bridge` from an open Minari dataset.
Arrays are read straight to their place in the flat arrays, so that a dataset is in
memory once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.schema import (
    BLOB,
    FIELDS,
    MAX_BLOB_BYTES,
    OBS_DTYPES,
    Field,
    field_dtype,
    field_shape,
    parse_episode_blob,
)
from pbvf_offline.errors import DamagedError, IncompatibleError
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Cut, Episode, Trajectories

if TYPE_CHECKING:
    import gymnasium as gym

_TAGS: Final = ("infos/theta", "infos/segment", BLOB)
_POLICY: Final = ("theta", "obs_mean", "obs_std")
_OPTIONAL: Final = tuple(f for f in FIELDS if not f.required)
_UNTAGGED: Final = (
    "collect it with 'pbvf collect' or write it with DatasetWriter; Minari's own "
    "collector stores no policies"
)


class ArraySource(Protocol):
    """An array that is not in memory yet."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype, in native byte order."""

    def read_into(self, out: NDArray[Any]) -> None:
        """Read it into a contiguous array of the same shape, converting to its dtype."""


class _Column:
    """A flat array that grows at its end."""

    __slots__ = ("array", "used")

    def __init__(self, dtype: np.dtype[Any], width: tuple[int, ...], rows: int) -> None:
        self.array: NDArray[Any] = np.empty((rows, *width), dtype)
        self.used = 0

    def take(self, rows: int) -> NDArray[Any]:
        """Return the next rows to be filled; valid until the next call."""
        end = self.used + rows
        if end > self.array.shape[0]:
            # In place (the system remaps large blocks), so nothing is in memory twice.
            room = max(end, self.array.shape[0] * 5 // 4 + 16)
            self.array.resize((room, *self.array.shape[1:]), refcheck=False)
        start, self.used = self.used, end
        return self.array[start:end]

    def filled(self, rows: int) -> NDArray[Any]:
        return self.array[:rows]

    def done(self) -> NDArray[Any]:
        self.array.resize((self.used, *self.array.shape[1:]), refcheck=False)
        return self.array


def check_spec(
    spec: PolicySpec,
    observation_space: gym.spaces.Box,
    action_space: gym.spaces.Box | gym.spaces.Discrete,
    where: str,
) -> None:
    """Check that policies fit the spaces of their dataset.

    Raises:
        DamagedError: They do not.
    """
    from gymnasium import spaces

    if spec.obs_dim != observation_space.shape[0]:
        raise DamagedError(
            f"its policy takes {spec.obs_dim} observations, but the metadata declare "
            f"{observation_space.shape[0]}",
            where=where,
        )
    if isinstance(action_space, spaces.Discrete):
        given = DiscreteActions(int(action_space.n), int(action_space.start))
        fits = spec.actions == given
    else:
        # Bounds may be tighter than the space's, which may have none.
        fits = (
            isinstance(spec.actions, BoxActions)
            and spec.actions.dtype == str(action_space.dtype)
            and spec.actions.dim == action_space.shape[0]
            and bool(np.all(np.array(spec.actions.low, action_space.dtype) >= action_space.low))
            and bool(np.all(np.array(spec.actions.high, action_space.dtype) <= action_space.high))
        )
    if not fits:
        raise DamagedError(
            f"its policy acts in {spec.actions}, but the metadata declare {action_space}",
            where=where,
        )


def check_tags(arrays: Mapping[str, ArraySource], where: Callable[[str], str]) -> None:
    """Check that an episode says which policies acted.

    Raises:
        IncompatibleError: It says nothing about policies.
        DamagedError: It says only a part.
    """
    missing = [name for name in _TAGS if name not in arrays]
    if missing == list(_TAGS):
        raise IncompatibleError(
            f"it is not policy-tagged: {', '.join(_TAGS)} are needed in every episode",
            where=where(""),
            remedy=_UNTAGGED,
        )
    if missing:
        raise DamagedError("the array is missing", where=where(missing[0]))


def check_arrays(
    arrays: Mapping[str, ArraySource],
    spec: PolicySpec,
    obs_dtype: np.dtype[Any] | None,
    where: Callable[[str], str],
) -> tuple[int, int]:
    """Check names, shapes and dtypes of an episode's arrays.

    Args:
        arrays: By their names in :data:`pbvf_datasets.format.schema.FIELDS`.
        spec: The policies' architecture.
        obs_dtype: The dtype of observations so far, or None.
        where: From the name of an array to its place, for messages.

    Returns:
        ``(T, S)``: the number of steps and of segments.

    Raises:
        DamagedError: One is missing, or not as the others demand.
    """
    for field in FIELDS:
        if field.required and field.name not in arrays:
            raise DamagedError("the array is missing", where=where(field.name))
    if "infos/pre_action" in arrays and not (spec.stochastic and spec.is_continuous):
        raise DamagedError(
            "only stochastic policies with continuous actions have it",
            where=where("infos/pre_action"),
        )
    rewards, theta = arrays["rewards"].shape, arrays["infos/theta"].shape
    if len(rewards) != 1 or rewards[0] < 1:
        raise DamagedError(
            f"it has the shape {rewards}; one reward a step is expected", where=where("rewards")
        )
    if len(theta) != 2 or theta[0] < 1:
        raise DamagedError(
            f"it has the shape {theta}; one row a policy is expected", where=where("infos/theta")
        )
    steps, segments = rewards[0], theta[0]
    for field in FIELDS:
        array = arrays.get(field.name)
        if array is None:
            continue
        shape = field_shape(field, spec, steps, segments)
        if array.shape != shape:
            raise DamagedError(
                f"it has the shape {array.shape}, but beside {steps} rewards and {segments} "
                f"policies {shape} is expected",
                where=where(field.name),
            )
        target = field_dtype(field, spec)
        if target is None:
            if str(array.dtype) not in OBS_DTYPES or (
                # Not "in (None, …)": numpy holds None for a name of float64.
                obs_dtype is not None and array.dtype != obs_dtype
            ):
                raise DamagedError(
                    f"it is {array.dtype}; {obs_dtype or 'a number type'} is expected",
                    where=where(field.name),
                )
        elif not _fits(array.dtype, target):
            raise DamagedError(
                f"it is {array.dtype}; {target} is expected", where=where(field.name)
            )
    return steps, segments


def _fits(dtype: np.dtype[Any], target: np.dtype[Any]) -> bool:
    # Integers are range-checked later, so any width will do.
    return (
        dtype == target
        or (dtype.kind in "iu" and target.kind == "i")
        or bool(np.can_cast(dtype, target, "safe") and dtype.kind != "b")
    )


def read_blob(array: ArraySource, where: str) -> bytes:
    """Return the bytes of ``infos/pbvf``.

    Raises:
        DamagedError: It is no array of bytes, or an unreasonable one.
    """
    if len(array.shape) != 1 or array.dtype != np.uint8 or array.shape[0] > MAX_BLOB_BYTES:
        raise DamagedError(
            f"it is {array.dtype} of shape {array.shape}; uint8 bytes are expected", where=where
        )
    out = np.empty(array.shape, np.uint8)
    array.read_into(out)
    return out.tobytes()


def read_episode(
    arrays: Mapping[str, ArraySource],
    seed: int | None,
    where: Callable[[str], str],
) -> tuple[PolicySpec, Episode]:
    """Read one episode as it is stored; see :class:`Assembler` for checks of its values.

    Raises:
        DamagedError: It is malformed.
        IncompatibleError: A newer version of the format wrote it.
    """
    if BLOB not in arrays:
        raise DamagedError("the array is missing", where=where(BLOB))
    spec, cut = parse_episode_blob(read_blob(arrays[BLOB], where(BLOB)), where(BLOB))
    steps, segments = check_arrays(arrays, spec, None, where)
    values: dict[str, NDArray[Any]] = {}
    for field in FIELDS:
        source = arrays.get(field.name)
        if source is not None:
            dtype = field_dtype(field, spec) or source.dtype
            out = np.empty(field_shape(field, spec, steps, segments), dtype)
            source.read_into(out)
            values[field.attribute] = out
    return spec, Episode(**values, seed=seed, cut=cut)


class Assembler:
    """Checks episodes one by one and lays them end to end; unifies their policies.

    Args:
        file: The file that episodes are from, for messages.
        observation_space: As the dataset declares it.
        action_space: As the dataset declares it.
        steps: Expected number of steps; any number is correct, the right one is fast.
    """

    def __init__(
        self,
        file: str,
        observation_space: gym.spaces.Box,
        action_space: gym.spaces.Box | gym.spaces.Discrete,
        steps: int = 0,
    ) -> None:
        self._file = file
        self._spaces = (observation_space, action_space)
        self._hint = steps
        self._spec: PolicySpec | None = None
        self._obs_dtype: np.dtype[Any] | None = None
        self._blobs: dict[bytes, tuple[PolicySpec, Cut]] = {}
        self._columns: dict[str, _Column] = {}
        self._fields: tuple[Field, ...] = ()
        self._rows: dict[bytes, int] = {}  # digest of (theta, mean, std) → row
        self._first: list[int] = []  # episode in which each policy appears first
        self._places: list[str] = []
        self._lengths: list[int] = []
        self._cut: list[bool] = []
        self._seeds: list[int] = []
        # Values that are checked and not kept: (episode, array) with NaN or infinity.
        self._unkept: list[tuple[int, str]] = []

    @property
    def policy_digests(self) -> Iterable[bytes]:
        """A digest of each distinct policy so far, in order."""
        return self._rows

    def add(
        self,
        place: str,
        arrays: Mapping[str, ArraySource],
        *,
        total_steps: int | None,
        seed: int | None,
    ) -> None:
        """Check and take in the next episode.

        Args:
            place: Its name in the file.
            arrays: Its arrays by their names in :data:`pbvf_datasets.format.schema.FIELDS`.
            total_steps: What the episode says about its own length.
            seed: What the environment was reset with, or None.

        Raises:
            DamagedError: It, or an earlier one, is malformed.
            IncompatibleError: It has no policy tags, or policies of another architecture.
        """
        try:
            self._add(place, arrays, total_steps, seed)
        except DamagedError:
            # Values are checked at the end, all at once; an earlier episode comes first.
            self._check_values()
            raise

    def finish(self) -> Trajectories:
        """Return everything as flat arrays.

        Raises:
            DamagedError: There is no episode, or one holds values that cannot be.
        """
        if self._spec is None:
            raise DamagedError("it holds no episode", where=self._file)
        self._check_values()
        column = {name: column.done() for name, column in self._columns.items()}
        return Trajectories(
            policies=Policies(self._spec, column["theta"], column["obs_mean"], column["obs_std"]),
            observations=column["observations"],
            actions=column["actions"],
            rewards=column["rewards"],
            terminated=column["terminated"],
            truncated=column["truncated"],
            policy=column["policy"],
            start=self._start(),
            cut=np.array(self._cut, np.bool_),
            seeds=np.array(self._seeds, np.int64),
            reward_survive=column.get("reward_survive"),
            pre_action=column.get("pre_action"),
        )

    # -- one episode

    def _add(
        self,
        place: str,
        arrays: Mapping[str, ArraySource],
        total_steps: int | None,
        seed: int | None,
    ) -> None:
        def where(name: str) -> str:
            return f"{self._file}: {place}/{name}" if name else f"{self._file}: {place}"

        check_tags(arrays, where)
        blob = read_blob(arrays[BLOB], where(BLOB))
        known = self._blobs.get(blob)
        if known is None:
            spec, cut = parse_episode_blob(blob, where(BLOB))
            if self._spec is None:
                check_spec(spec, *self._spaces, where(BLOB))
            elif spec != self._spec:
                raise IncompatibleError(
                    f"its policy has another architecture ({_brief(spec)}) than those before "
                    f"({_brief(self._spec)})",
                    where=where(BLOB),
                    remedy="keep policies of different architectures in datasets of their own",
                )
            self._spec = spec
            self._blobs[blob] = (spec, cut)
        else:
            spec, cut = known
        steps, segments = check_arrays(arrays, spec, self._obs_dtype, where)
        if total_steps is not None and total_steps != steps:
            raise DamagedError(
                f"its total_steps is {total_steps}, but it has {steps} rewards", where=where("")
            )
        if seed is not None and not 0 <= seed < 2**63:
            raise DamagedError(
                f"its seed is {seed}, which is not in 0 … 2**63 - 1", where=where("")
            )
        if not self._columns:
            self._begin(arrays, spec)
        for field in _OPTIONAL:
            if (field.name in arrays) != (field.attribute in self._columns):
                raise IncompatibleError(
                    "some episodes have it and some do not", where=where(field.name)
                )
        for field in self._fields:
            rows = steps + 1 if field.rows == "T+1" else steps
            if field.attribute == "reward_survive":
                survive = np.empty(steps + 1)
                arrays[field.name].read_into(survive)
                self._columns[field.attribute].take(steps)[:] = survive[1:]
                self._look_at(survive[:1], field.name)
            elif field.attribute == "pre_action":
                pre = np.empty((steps + 1, spec.actions.dim))
                arrays[field.name].read_into(pre)
                self._columns[field.attribute].take(steps)[:] = pre[:-1]
                self._look_at(pre[-1], field.name)
            else:
                arrays[field.name].read_into(self._columns[field.attribute].take(rows))
        self._columns["policy"].take(steps)[:] = self._policies(arrays, steps, segments, where)
        self._places.append(place)
        self._lengths.append(steps)
        self._cut.append(cut != "none")
        self._seeds.append(-1 if seed is None else seed)

    def _look_at(self, values: NDArray[Any], name: str) -> None:
        """Note values of the episode under way that are not kept and not finite."""
        if not np.isfinite(values).all():
            self._unkept.append((len(self._lengths), name))

    def _begin(self, arrays: Mapping[str, ArraySource], spec: PolicySpec) -> None:
        self._obs_dtype = np.dtype(arrays["observations"].dtype)
        self._fields = tuple(
            f for f in FIELDS if f.rows != "S" and f.name in arrays and f.name != "infos/segment"
        )
        for field in self._fields:
            width = field_shape(field, spec, 1, 1)[1:]
            rows = self._hint + (self._hint // 8 if field.attribute == "observations" else 0)
            dtype = field_dtype(field, spec) or self._obs_dtype
            self._columns[field.attribute] = _Column(dtype, width, rows)
        self._columns["policy"] = _Column(np.dtype(np.int32), (), self._hint)
        self._columns["theta"] = _Column(np.dtype(np.float32), (spec.size,), 1)
        for name in ("obs_mean", "obs_std"):
            self._columns[name] = _Column(np.dtype(np.float64), (spec.obs_dim,), 1)

    def _policies(
        self,
        arrays: Mapping[str, ArraySource],
        steps: int,
        segments: int,
        where: Callable[[str], str],
    ) -> NDArray[np.int32] | int:
        """Unify the policies of an episode and return (T,) the row in force at each step."""
        segment = np.empty(steps + 1, np.int32)
        arrays["infos/segment"].read_into(segment)
        if segment.min() < 0 or segment.max() >= segments:
            raise DamagedError(
                f"it holds {int(segment.min())} … {int(segment.max())}, but there are "
                f"{segments} policies",
                where=where("infos/segment"),
            )
        if segment[-1] != segment[-2]:
            raise DamagedError(
                "its last entry does not repeat the one before", where=where("infos/segment")
            )
        if segments > 1:
            idle = np.flatnonzero(np.bincount(segment[:-1], minlength=segments) == 0)
            if idle.size:
                raise DamagedError(
                    f"policy {int(idle[0])} never acts; only policies that acted are stored",
                    where=where("infos/theta"),
                )
        # Read to where they will stay; those that are there already are given back.
        read = [self._columns[name].take(segments) for name in _POLICY]
        for name, out in zip(_POLICY, read, strict=True):
            arrays[f"infos/{name}"].read_into(out)
        local = np.empty(segments, np.int32)
        fresh = []
        for j, parts in enumerate(zip(*read, strict=True)):
            digest = hashlib.sha256()  # which most machines have instructions for
            for part in parts:
                digest.update(part)
            row = local[j] = self._rows.setdefault(digest.digest(), len(self._rows))
            if row == len(self._first):
                self._first.append(len(self._lengths))
                fresh.append(j)
        if len(fresh) < segments:
            for name, values in zip(_POLICY, read, strict=True):
                values[: len(fresh)] = values[fresh]
                self._columns[name].used -= segments - len(fresh)
        return int(local[0]) if segments == 1 else local[segment[:-1]]

    # -- all episodes

    def _start(self) -> NDArray[np.int64]:
        start = np.zeros(len(self._lengths) + 1, np.int64)
        np.cumsum(self._lengths, out=start[1:])
        return start

    def _check_values(self) -> None:
        """Look for values that cannot be and raise for the first episode that has one."""
        if not self._lengths or self._spec is None:
            return
        start = self._start()
        steps, episodes = int(start[-1]), len(self._lengths)
        column = self._columns
        found: list[tuple[int, str, str]] = []  # (episode, array, problem)

        def note(bad: NDArray[np.bool_], ends: NDArray[np.int64], name: str, what: str) -> None:
            row = int(np.argmax(bad)) // math.prod(bad.shape[1:])
            if bad[row].any():
                found.append((int(np.searchsorted(ends, row, side="right")), name, what))

        step_ends, row_ends = start[1:], start[1:] + np.arange(1, episodes + 1)
        finite = "it holds NaN or infinite values"
        found += [(i, name, finite) for i, name in self._unkept if i < episodes]
        for field in self._fields:
            observed = field.attribute == "observations"
            values = column[field.attribute].filled(steps + episodes if observed else steps)
            if values.dtype.kind == "f":
                if not np.isfinite(values).all():
                    note(
                        ~np.isfinite(values),
                        row_ends if observed else step_ends,
                        field.name,
                        finite,
                    )
            elif values.dtype.kind == "b" and values.view(np.uint8).max() > 1:
                note(values.view(np.uint8) > 1, step_ends, field.name, "it is neither 0 nor 1")
        actions = self._spec.actions
        taken = column["actions"].filled(steps)
        if isinstance(actions, DiscreteActions):
            outside = (taken < actions.start) | (taken >= actions.start + actions.n)
        else:
            outside = (taken < self._spaces[1].low) | (taken > self._spaces[1].high)  # type: ignore[union-attr]
        note(outside, step_ends, "actions", "an action is outside the action space")
        terminated = column["terminated"].filled(steps)
        truncated = column["truncated"].filled(steps)
        last = np.zeros(steps, np.bool_)
        last[start[1:] - 1] = True
        note(terminated & ~last, step_ends, "terminations", "it is set before the last step")
        note(truncated & ~last, step_ends, "truncations", "it is set before the last step")
        at_end = start[1:] - 1
        each = np.arange(1, episodes + 1)
        note(
            ~(terminated | truncated)[at_end],
            each,
            "truncations",
            "the last step is neither terminated nor truncated",
        )
        note(
            np.array(self._cut) & (terminated | ~truncated)[at_end],
            each,
            "truncations",
            "cut is 'budget', but the last step is terminated or not truncated",
        )
        first = np.array(self._first)
        for name in _POLICY:
            rows = int(np.searchsorted(first, episodes))
            values = column[name].filled(rows)
            bad = ~np.isfinite(values).all(axis=1)
            if name == "obs_std":
                bad |= ~(values > 0).all(axis=1)
            if bad.any():
                what = finite if name != "obs_std" else "it holds values that are not positive"
                found.append((int(first[np.argmax(bad)]), f"infos/{name}", what))
        if found:
            episode, name, what = min(found)
            raise DamagedError(what, where=f"{self._file}: {self._places[episode]}/{name}")


def _brief(spec: PolicySpec) -> str:
    kind = "box" if spec.is_continuous else "discrete"
    mode = "stochastic" if spec.stochastic else "deterministic"
    return f"{spec.obs_dim} observations, {spec.arch}, {spec.actions.outputs} {kind}, {mode}"

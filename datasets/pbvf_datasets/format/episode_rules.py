"""What a well-formed episode is: small rules, each of which yields the problems it finds.

These rules decide alone. Readers of files raise the first problem, ``verify`` collects all of
them, and :class:`pbvf_datasets.write.writer.DatasetWriter` applies the same rules before it
stores an episode, so the same fault has the same words everywhere. Rules about a whole dataset
are in :mod:`pbvf_datasets.format.dataset_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.schema import (
    BLOB,
    FIELDS,
    field_dtype,
    field_shape,
)
from pbvf_datasets.format.spaces import OBS_DTYPES
from pbvf_offline.errors import DamagedError, DivergedError, IncompatibleError, PbvfError, shorten
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.normaliser import NOT_POSITIVE, SMALLEST_STD
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Cut

if TYPE_CHECKING:
    import gymnasium as gym

    Spaces = tuple[gym.spaces.Box, gym.spaces.Box | gym.spaces.Discrete]

TAGS: Final = ("infos/theta", "infos/segment", BLOB)
"""The arrays that say which policies acted."""

OPTIONAL: Final = tuple(field.name for field in FIELDS if not field.required)

_ROWS: Final = {field.name: field.rows for field in FIELDS}


@dataclass(frozen=True)
class Problem:
    """One way in which an episode or a dataset is not well-formed.

    Attributes:
        kind: The error that it is in a file, which has the exit code. NaN and infinite values
            are a :class:`DivergedError`; who reads files reports that as damage.
        at: The array concerned by its name in :data:`pbvf_datasets.format.schema.FIELDS`;
            empty for the episode as a whole.
        what: What is wrong, with the value found and the value expected.
        remedy: What the user can do about it, or None.
    """

    kind: type[PbvfError]
    at: str
    what: str
    remedy: str | None = None


class ArrayForm(Protocol):
    """The form of an array whose values need not be in memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype, in native byte order."""


Forms = Mapping[str, ArrayForm]


# --------------------------------------------------------------------------- the policy tag


def tagged(names: Collection[str]) -> Iterator[Problem]:
    """An episode says which policies acted."""
    missing = [name for name in TAGS if name not in names]
    if missing == list(TAGS):
        yield Problem(
            IncompatibleError,
            "",
            f"it is not policy-tagged: {', '.join(TAGS)} are needed in every episode",
            "'pbvf dataset tag' adds the policies that made it, where you have them; 'pbvf "
            "collect' and DatasetWriter store them",
        )
    elif missing:
        yield Problem(DamagedError, missing[0], _MISSING)


_MISSING: Final = "the array is missing"


def spec_fits_spaces(spec: PolicySpec, spaces: Spaces) -> Iterator[Problem]:
    """Policies see the observation space and act in the action space of their dataset."""
    from gymnasium.spaces import Discrete

    observations, actions = spaces
    if spec.obs_dim != observations.shape[0]:
        yield Problem(
            DamagedError,
            BLOB,
            f"its policy takes {spec.obs_dim} observations, but the observation space has "
            f"{observations.shape[0]}",
        )
    elif isinstance(actions, Discrete):
        if spec.actions != DiscreteActions(int(actions.n), int(actions.start)):
            yield _other_actions(spec, actions)
    elif not (
        isinstance(spec.actions, BoxActions)
        and spec.actions.dtype == str(actions.dtype)
        and spec.actions.dim == actions.shape[0]
        # Bounds may be tighter than the space's, which may have none.
        and bool(np.all(np.array(spec.actions.low, actions.dtype) >= actions.low))
        and bool(np.all(np.array(spec.actions.high, actions.dtype) <= actions.high))
    ):
        yield _other_actions(spec, actions)


def _other_actions(spec: PolicySpec, space: object) -> Problem:
    kind = "box" if spec.is_continuous else "discrete"
    return Problem(
        DamagedError,
        BLOB,
        f"its policy acts in {kind} {shorten(spec.actions)}, but the action space is "
        f"{shorten(space)}",
    )


def same_spec(spec: PolicySpec, first: PolicySpec | None) -> Iterator[Problem]:
    """All policies of a dataset have one architecture."""
    if first is not None and spec != first:
        one, other = spec.to_dict(), first.to_dict()
        differences = ", ".join(
            f"{key} {shorten(one.get(key))} against {shorten(other.get(key))}"
            for key in dict.fromkeys([*other, *one])
            if one.get(key) != other.get(key)
        )
        yield Problem(
            IncompatibleError,
            BLOB,
            f"its policy has another architecture than those before: {differences}",
            "keep policies of different architectures in datasets of their own",
        )


# ------------------------------------------------------------------------- names and forms


@dataclass(frozen=True)
class DatasetForm:
    """What all episodes of a dataset have in common.

    Attributes:
        obs_dtype: The dtype of observations.
        optional: Which of the arrays in :data:`OPTIONAL` there are.
    """

    obs_dtype: np.dtype[Any]
    optional: frozenset[str]

    @classmethod
    def of(cls, forms: Forms) -> DatasetForm:
        """Return the form that the arrays of one episode have."""
        return cls(forms["observations"].dtype, frozenset(OPTIONAL).intersection(forms))


def well_formed(forms: Forms, spec: PolicySpec, first: DatasetForm | None) -> Iterator[Problem]:
    """The arrays of an episode are there, with the right shapes and dtypes.

    Args:
        forms: By their names in :data:`pbvf_datasets.format.schema.FIELDS`.
        spec: Architecture of the policies.
        first: Form of the dataset's first episode, or None when this is the first.
    """
    missing = [f.name for f in FIELDS if f.required and f.name not in forms]
    for name in missing:
        yield Problem(DamagedError, name, _MISSING)
    if missing:
        return
    if "infos/pre_action" in forms and not (spec.stochastic and spec.is_continuous):
        yield Problem(
            DamagedError,
            "infos/pre_action",
            "only stochastic policies with continuous actions have it",
        )
        return
    yield from _shapes(forms, spec)
    yield from _dtypes(forms, spec, first)
    if first is not None:
        for name in sorted(first.optional ^ DatasetForm.of(forms).optional):
            yield Problem(IncompatibleError, name, "some episodes have it and some do not")


def _shapes(forms: Forms, spec: PolicySpec) -> Iterator[Problem]:
    rewards, theta = forms["rewards"].shape, forms["infos/theta"].shape
    if len(rewards) != 1 or rewards[0] < 1:
        yield Problem(
            DamagedError, "rewards", f"it has the shape {rewards}; one reward a step is expected"
        )
        return
    if len(theta) != 2 or theta[0] < 1:
        yield Problem(
            DamagedError, "infos/theta", f"it has the shape {theta}; one row a policy is expected"
        )
        return
    for field in FIELDS:
        form = forms.get(field.name)
        shape = field_shape(field, spec, rewards[0], theta[0])
        if form is not None and form.shape != shape:
            yield Problem(
                DamagedError,
                field.name,
                f"it has the shape {form.shape}, but beside {rewards[0]} rewards and {theta[0]} "
                f"policies {shape} is expected",
            )


def _dtypes(forms: Forms, spec: PolicySpec, first: DatasetForm | None) -> Iterator[Problem]:
    for field in FIELDS:
        form = forms.get(field.name)
        if form is None:
            continue
        target = field_dtype(field, spec)
        if target is not None:
            fits, expected = _fits(form.dtype, target), str(target)
        elif first is not None:
            fits, expected = form.dtype == first.obs_dtype, str(first.obs_dtype)
        else:
            fits, expected = str(form.dtype) in OBS_DTYPES, "a number type"
        if not fits:
            yield Problem(DamagedError, field.name, f"it is {form.dtype}; {expected} is expected")


def _fits(dtype: np.dtype[Any], target: np.dtype[Any]) -> bool:
    # Values of integers are checked later, so any width will do.
    return (
        dtype == target
        or (dtype.kind in "iu" and target.kind == "i")
        or bool(np.can_cast(dtype, target, "safe") and dtype.kind != "b")
    )


def true_length(total_steps: int | None, forms: Forms) -> Iterator[Problem]:
    """What an episode says about its own length is true."""
    steps = forms["rewards"].shape[0]
    if total_steps is None:
        yield Problem(DamagedError, "", "it has no attribute total_steps")
    elif total_steps != steps:
        yield Problem(
            DamagedError, "", f"its total_steps is {total_steps}, but it has {steps} rewards"
        )


def seed_in_range(seed: int | None) -> Iterator[Problem]:
    """The seed, where it is known, is one that ``env.reset`` takes."""
    if seed is not None and not 0 <= seed < 2**63:
        yield Problem(DamagedError, "", f"its seed is {seed}, which is not in 0 … 2**63 - 1")


# ----------------------------------------------------------------------------------- values


class Values(NamedTuple):
    """Arrays of an episode whose form is right.

    Attributes:
        arrays: Those that were read, by their names in the format.
        cut: Whether a step budget ended the episode.
        segments: Number of policies S.
        bounds: Least and greatest action, for each dimension of a Box.
    """

    arrays: Mapping[str, NDArray[Any]]
    cut: Cut
    segments: int
    bounds: tuple[Any, Any]


def action_bounds(spec: PolicySpec, spaces: Spaces) -> tuple[Any, Any]:
    """Return the least and the greatest action that fit the space."""
    if isinstance(spec.actions, DiscreteActions):
        return spec.actions.start, spec.actions.start + spec.actions.n - 1
    return spaces[1].low, spaces[1].high  # type: ignore[union-attr]


def finite(values: Values) -> Iterator[Problem]:
    """No number is NaN or infinite."""
    floats = [(name, array) for name, array in values.arrays.items() if array.dtype.kind == "f"]
    with np.errstate(all="ignore"):
        # A sum is finite only where all terms are, and quicker; it may overflow all the same.
        doubtful = [pair for pair in floats if not math.isfinite(np.add.reduce(pair[1], axis=None))]
    for name, array in doubtful:
        bad = ~np.isfinite(array)
        if bad.any():
            unit = "policy" if _ROWS.get(name) == "S" else "step"
            yield Problem(
                DivergedError,
                name,
                f"it holds NaN or infinite values, first at {unit} {_first_row(bad)}",
            )


def booleans(values: Values) -> Iterator[Problem]:
    """Bytes of booleans are 0 or 1."""
    for name in ("terminations", "truncations"):
        array = values.arrays.get(name)
        # Deletes all bytes that are 0 or 1; others are left over.
        if array is not None and array.tobytes().translate(None, b"\0\1"):
            yield Problem(DamagedError, name, "it holds a value that is neither 0 nor 1")


def ends_at_the_last_step(values: Values) -> Iterator[Problem]:
    """An episode is terminated or truncated at its last step and nowhere before."""
    terminated, truncated = values.arrays["terminations"], values.arrays["truncations"]
    if np.count_nonzero((terminated | truncated)[:-1]):
        for name, array in (("terminations", terminated), ("truncations", truncated)):
            if array[:-1].any():
                step = int(np.argmax(array))
                yield Problem(DamagedError, name, f"it is set at step {step}, before the last step")
    if not (terminated[-1] or truncated[-1]):
        yield Problem(
            DamagedError,
            "truncations",
            "the last step is neither terminated nor truncated",
            "mark it truncated where a loop stopped the episode",
        )
    elif values.cut != "none" and (terminated[-1] or not truncated[-1]):
        yield Problem(
            DamagedError,
            "truncations",
            f"cut is {values.cut!r}, but the last step is terminated or not truncated",
        )


def policies_in_force(values: Values) -> Iterator[Problem]:
    """Each step names a stored policy, each stored policy acted, the last entry repeats."""
    segment, rows = values.arrays["infos/segment"], values.segments
    if rows == 1 and not np.count_nonzero(segment):
        return  # the usual case: one policy acted throughout
    low, high = int(segment.min()), int(segment.max())
    if low < 0 or high >= rows:
        yield Problem(
            DamagedError,
            "infos/segment",
            f"it holds {low} … {high}, but there are {rows} policies",
        )
        return
    if segment[-1] != segment[-2]:
        yield Problem(
            DamagedError, "infos/segment", "its last entry does not repeat the one before"
        )
    if rows > 1:
        acted = np.bincount(segment[:-1], minlength=rows)
        if not acted.all():
            yield Problem(
                DamagedError,
                "infos/theta",
                f"policy {int(np.argmin(acted))} never acts; only policies that acted are stored",
            )


def positive_deviations(values: Values) -> Iterator[Problem]:
    """Standard deviations of normalisers are positive, and can be divided by."""
    if values.arrays["infos/obs_std"].min() < SMALLEST_STD:
        yield Problem(DamagedError, "infos/obs_std", f"it holds values that are {NOT_POSITIVE}")


def actions_in_space(values: Values) -> Iterator[Problem]:
    """Each action is inside the action space."""
    actions, (low, high) = values.arrays["actions"], values.bounds
    outside = (actions < low) | (actions > high)
    if np.count_nonzero(outside):
        step = _first_row(outside)
        yield Problem(
            DamagedError,
            "actions",
            f"the action {shorten(actions[step].tolist())} of step {step} is outside the action "
            f"space, {shorten(np.asarray(low).tolist())} to {shorten(np.asarray(high).tolist())}",
        )


def _first_row(bad: NDArray[np.bool_]) -> int:
    """Return the first row in which something is true."""
    return int(np.argmax(bad)) // math.prod(bad.shape[1:])


VALUE_RULES: Final[tuple[tuple[frozenset[str], Callable[[Values], Iterator[Problem]]], ...]] = (
    (frozenset(), finite),
    (frozenset(), booleans),
    (frozenset({"actions"}), actions_in_space),
    (frozenset({"infos/segment"}), policies_in_force),
    (frozenset({"infos/obs_std"}), positive_deviations),
    (frozenset({"terminations", "truncations"}), ends_at_the_last_step),
)
"""Each rule about values with the arrays that it needs. The first also holds where an array has
the wrong form."""

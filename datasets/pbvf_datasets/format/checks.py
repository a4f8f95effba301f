"""What an episode must be before it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.schema import FIELDS, OBS_DTYPES, field_dtype, field_shape
from pbvf_offline.errors import DivergedError, UsageError
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode

if TYPE_CHECKING:
    import gymnasium as gym

    Spaces = tuple[gym.spaces.Box, gym.spaces.Box | gym.spaces.Discrete]


def check_spec(spec: PolicySpec, spaces: Spaces) -> None:
    """Check that policies of this spec see and act in these spaces.

    Raises:
        UsageError: They do not.
    """
    observations, actions = spaces
    problem = None
    if spec.obs_dim != observations.shape[0]:
        problem = f"{spec.obs_dim} observations, the space {observations.shape[0]}"
    elif isinstance(spec.actions, DiscreteActions):
        given = (spec.actions.n, spec.actions.start)
        if given != (getattr(actions, "n", None), getattr(actions, "start", None)):
            problem = f"discrete actions (n, start) = {given}, the space is {actions}"
    else:
        dtype = np.dtype(spec.actions.dtype)
        low, high = np.array(spec.actions.low, dtype), np.array(spec.actions.high, dtype)
        if (
            actions.shape != low.shape
            or actions.dtype != dtype
            or np.any(low < getattr(actions, "low", np.inf))
            or np.any(high > getattr(actions, "high", -np.inf))
        ):
            problem = (
                f"{dtype} actions from {show(low.tolist())} to {show(high.tolist())}, "
                f"the space is {actions}"
            )
    if problem is not None:
        raise UsageError(f"the policy spec does not fit the spaces: it has {problem}")


class EpisodeChecker:
    """Checks episodes of one dataset and holds them to the first one's form.

    Args:
        spec: Architecture of all policies.
        spaces: Observation and action space of the environment.
    """

    def __init__(self, spec: PolicySpec, spaces: Spaces) -> None:
        self._spec = spec
        self._obs_space_dtype = np.dtype(spaces[0].dtype)
        self._obs_dtype: np.dtype[Any] | None = None
        self._optional: dict[str, bool] | None = None
        actions = spec.actions
        self._low: Any
        self._high: Any
        if isinstance(actions, BoxActions):
            self._low = getattr(spaces[1], "low")  # noqa: B009 -- check_spec saw that it is a Box
            self._high = getattr(spaces[1], "high")  # noqa: B009
        else:
            self._low, self._high = actions.start, actions.start + actions.n - 1

    def check(self, episode: Episode, where: str) -> Episode:
        """Return a copy of an episode in the format's dtypes.

        Args:
            episode: Arrays may have other dtypes where the cast loses nothing.
            where: Dataset and episode, for messages.

        Raises:
            UsageError: Shapes, dtypes or values contradict the spec, the spaces, each
                other, or the first episode.
            DivergedError: Values are NaN or infinite.
        """
        lengths = {}
        for name in ("rewards", "theta"):
            shape = np.shape(getattr(episode, name))
            if len(shape) < 1 or shape[0] < 1:
                raise UsageError(
                    f"it has shape {shape}; at least one row is expected", where=f"{where} {name}"
                )
            lengths[name] = int(shape[0])
        steps, segments = lengths["rewards"], lengths["theta"]
        values: dict[str, Any] = {}
        for field in FIELDS:
            label = f"{where} {field.attribute}"
            array = getattr(episode, field.attribute)
            if array is None:
                if field.required:
                    raise UsageError("it is missing", where=label)
                continue
            array = np.asarray(array)
            shape = field_shape(field, self._spec, steps, segments)
            if array.shape != shape:
                raise UsageError(
                    f"it has shape {array.shape}; {shape} is expected "
                    f"(T = {steps} steps, S = {segments} policies)",
                    where=label,
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0, 0])
                raise DivergedError(
                    f"NaN or infinite values at {'policy' if field.rows == 'S' else 'step'} {row}",
                    where=label,
                    remedy="the environment or the policy diverged; try a smaller sigma",
                )
            dtype = field_dtype(field, self._spec) or self._observation_dtype(array)
            values[field.attribute] = _cast(array, dtype, label)
        result = Episode(**values, seed=episode.seed, cut=episode.cut)
        self._check_end(result, where)
        self._check_policies(result, where)
        self._check_actions(result, where)
        self.hold(result, where)
        return result

    def hold(self, episode: Episode, where: str) -> None:
        """Remember the form of the first episode; hold the others to it.

        Raises:
            UsageError: An optional array is in some episodes only.
        """
        optional = {
            f.attribute: getattr(episode, f.attribute) is not None for f in FIELDS if not f.required
        }
        if self._optional is None:
            self._optional, self._obs_dtype = optional, episode.observations.dtype
        for name, present in optional.items():
            if present != self._optional[name]:
                first, this = ("lacks", "has") if present else ("has", "lacks")
                raise UsageError(
                    f"the first episode {first} it and this one {this} it; all or none may",
                    where=f"{where} {name}",
                )

    def _observation_dtype(self, array: NDArray[Any]) -> np.dtype[Any]:
        if self._obs_dtype is not None:
            return self._obs_dtype
        own = array.dtype.newbyteorder("=")
        same_kind = own.kind == self._obs_space_dtype.kind
        return own if same_kind and str(own) in OBS_DTYPES else self._obs_space_dtype

    @staticmethod
    def _check_end(episode: Episode, where: str) -> None:
        terminated, truncated = episode.terminated, episode.truncated
        if terminated[:-1].any() or truncated[:-1].any():
            raise UsageError(
                "it goes on after a step that is marked terminated or truncated", where=where
            )
        if not (terminated[-1] or truncated[-1]):
            raise UsageError(
                "its last step is neither terminated nor truncated",
                where=where,
                remedy="mark it truncated when your loop stopped it",
            )
        if episode.cut not in ("none", "budget"):
            raise UsageError(f"cut is {episode.cut!r}, not 'none' or 'budget'", where=where)
        if episode.cut == "budget" and terminated[-1]:
            raise UsageError("an episode that the budget cut cannot be terminated", where=where)
        if episode.seed is not None and not 0 <= episode.seed < 2**63:
            raise UsageError(f"seed {episode.seed} is not in 0 … 2**63 - 1", where=where)

    @staticmethod
    def _check_policies(episode: Episode, where: str) -> None:
        segment, rows = episode.segment, episode.theta.shape[0]
        if segment.min() < 0 or segment.max() >= rows or segment[-1] != segment[-2]:
            raise UsageError(
                f"its entries must be rows of theta (0 … {rows - 1}) and the last must repeat "
                "the one before",
                where=f"{where} segment",
            )
        used = int(np.count_nonzero(np.bincount(segment)))
        if used != rows:
            raise UsageError(
                f"it uses {used} of {rows} thetas; only those that acted may be stored",
                where=f"{where} segment",
            )
        if episode.obs_std.min() <= 0:
            raise UsageError("it holds values that are not positive", where=f"{where} obs_std")

    def _check_actions(self, episode: Episode, where: str) -> None:
        actions = episode.actions
        outside = (actions < self._low) | (actions > self._high)
        if outside.any():
            step = int(np.argwhere(outside)[0, 0])
            raise UsageError(
                f"the action {show(actions[step].tolist())} of step {step} is outside the action "
                f"space, {show(np.asarray(self._low).tolist())} to "
                f"{show(np.asarray(self._high).tolist())}",
                where=f"{where} actions",
            )
        spec = self._spec
        if episode.pre_action is not None and not (spec.stochastic and spec.is_continuous):
            raise UsageError(
                "only stochastic policies over continuous actions have it",
                where=f"{where} pre_action",
            )


def show(value: object, limit: int = 120) -> str:
    """Return a value as text, shortened for a message."""
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _cast(array: NDArray[Any], dtype: np.dtype[Any], label: str) -> NDArray[Any]:
    """Copy to the dtype wanted, if every value survives."""
    if array.dtype == dtype:
        return np.array(array, dtype=dtype, order="C")
    if array.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            cast = array.astype(dtype, order="C")
        if np.array_equal(cast, array):
            return cast
    raise UsageError(f"its {array.dtype} values do not fit the dtype {dtype}", where=label)

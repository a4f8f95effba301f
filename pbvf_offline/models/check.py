"""Does an ensemble foretell what it never saw? Held-out episodes, rolled out open loop."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray

from pbvf_offline.errors import DivergedError, IncompatibleError, UsageError, counted
from pbvf_offline.io.mapped import release, taken
from pbvf_offline.models.calibration import Calibration, HeldOutSums, held_by_the_others
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import Imagined, imagine
from pbvf_offline.models.members import interval_90
from pbvf_offline.models.noise import action_noise, stored_noise
from pbvf_offline.models.scales import action_inputs
from pbvf_offline.records import Record, since
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import segment_starts
from pbvf_offline.seeding import Stream, generator

CHECK_STEPS = (10, 50, 200)
MAX_PIECES, MAX_STEPS = 5_000, 100_000
FEWEST_PIECES = 5
_WANTED = 0.9  # share of truths inside an interval
_CALIBRATED = 2  # horizons, the longest ones, that intervals are calibrated on
_ROUNDING = 1e-6  # of the largest sum
_CORRELATION, _ERROR, _SLOPE = 0.7, 0.75, (0.5, 2.0)
_LIMITS = {
    "correlation": f"at least {_CORRELATION}",
    "slope": f"from {_SLOPE[0]} to {_SLOPE[1]:g}",
    "error": f"at most {_ERROR} of the spread",
}


def held_out_episodes(episodes: int, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Return the (E,) mask of episodes kept from training: ``round(fraction * E)``, at least 1.

    Raises:
        IncompatibleError: No episode would be left to learn from.
    """
    count = max(1, round(fraction * episodes))
    if count >= episodes:
        raise IncompatibleError(
            f"the data have {counted(episodes, 'episode')}, of which {count} would be held out for "
            "the check",
            remedy="collect more episodes"
            if episodes < 2
            else "collect more episodes, or hold out a smaller fraction",
        )
    held = np.zeros(episodes, dtype=bool)
    held[generator(seed, Stream.MODEL_SPLIT).permutation(episodes)[:count]] = True
    return held


@dataclass(frozen=True)
class HorizonCheck(Record):
    """Predicted against stored reward after so many steps.

    Attributes:
        steps: Number of steps.
        pieces: Number of held-out pieces of that length, or that terminated earlier.
        correlation: Pearson's, of predicted with stored sums; None where one is constant.
        slope: Of stored sums regressed on predicted ones; 1 is right.
        error: Mean absolute error of the sums, in units of reward.
        spread: Standard deviation of the stored sums; 0 where they differ by rounding alone.
        coverage: Fraction of stored sums inside the members' 90 % interval, see
            :func:`~pbvf_offline.models.members.interval_90`; None for one member.
        state_error: Root mean squared error of the members' mean observation after the
            last step, in units of the data's spread; None where all pieces terminated.
        calibrated: Fraction of stored sums inside 90 % intervals calibrated on the other
            pieces, see :class:`~pbvf_offline.models.calibration.Calibration`; None of a horizon
            that is not calibrated on.
        reached: Number of pieces that last so many steps, so without those that terminated
            earlier; None of a model that was checked before that was counted.

    Raises:
        UsageError: A value is out of range, or more pieces last so long than there are.
    """

    steps: Annotated[int, Meta(ge=1)]
    pieces: Annotated[int, Meta(ge=1)]
    correlation: Annotated[float, Meta(ge=-1, le=1)] | None
    slope: float | None
    error: Annotated[float, Meta(ge=0)]
    spread: Annotated[float, Meta(ge=0)]
    coverage: Annotated[float, Meta(ge=0, le=1)] | None
    state_error: Annotated[float, Meta(ge=0)] | None
    calibrated: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, since(2)] = None
    reached: Annotated[Annotated[int, Meta(ge=0)] | None, since(2)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reached is not None and self.reached > self.pieces:
            raise UsageError(f"{self.reached} of {self.pieces} pieces", where="reached")

    @property
    def relative_error(self) -> float | None:
        """Error in units of the spread of what was stored; None where that has no spread."""
        return self.error / self.spread if self.spread > 0 else None

    @property
    def looked_so_far(self) -> bool:
        """Whether enough pieces last so many steps to say something of policies that do."""
        return self.reached is None or self.reached >= FEWEST_PIECES

    @property
    def missed(self) -> tuple[str, ...]:
        """Which limits are missed, of ``correlation``, ``slope`` and ``error``.

        Correlation at least 0.7, slope 0.5 to 2, error at most three quarters of the spread. What
        cannot be computed, because all sums are alike, misses its limit.
        """
        correlation, slope, error = self.correlation, self.slope, self.relative_error
        kept = {
            "correlation": correlation is not None and correlation >= _CORRELATION,
            "slope": slope is not None and _SLOPE[0] <= slope <= _SLOPE[1],
            "error": error is not None and error <= _ERROR,
        }
        return tuple(name for name, is_kept in kept.items() if not is_kept)

    @property
    def passed(self) -> bool:
        """Whether sums over so many steps may be relied on to rank policies: no limit is missed."""
        return not self.missed


@dataclass(frozen=True)
class ModelCheck(Record):
    """What the held-out episodes say of an ensemble.

    Attributes:
        horizons: One entry for each of :data:`CHECK_STEPS` that half of the pieces, and at
            least 5, reach or end before.
        length_error: Mean absolute error of the pieces' lengths, where the data hold ends.
        length_spread: Standard deviation of the pieces' lengths.
        episode_steps: Steps of the longest episode of the data.
        calibration: How wide intervals of imagined returns are, by the two longest horizons;
            None where nothing supports that, and of a model that was checked before there was
            any.
        replayed: Whether stored actions were played, because the data do not say which policies
            acted: then it is not known how errors grow where a policy reacts to them.
        time_limit: Steps after which a time limit ended episodes of the data; None where none
            did, and of a model that was checked before that was noted.
    """

    horizons: tuple[HorizonCheck, ...]
    length_error: Annotated[float, Meta(ge=0)] | None
    length_spread: Annotated[float, Meta(ge=0)] | None
    episode_steps: Annotated[int, Meta(ge=1)]
    calibration: Annotated[Calibration | None, since(2)] = None
    replayed: Annotated[bool, since(2)] = False
    time_limit: Annotated[Annotated[int, Meta(ge=1)] | None, since(2)] = None

    @property
    def held(self) -> float | None:
        """Fraction of stored sums over the longest horizon inside intervals as predictions have.

        Those of predictions reach at least as far: they hold these, and the same with limits on
        what is trusted. Calibrated ones where there is a calibration; None for one member, of no
        horizon, and with 9 pieces, which calibrate intervals and leave too few once one is left
        out.
        """
        if not self.horizons:
            return None
        last = self.horizons[-1]
        return last.coverage if self.calibration is None else last.calibrated

    @property
    def held_words(self) -> str | None:
        """The same in words, with what it means for the width of the intervals."""
        if self.held is None:
            return None
        # What so many pieces would give nine times in ten, were the intervals right.
        luck = 1.645 * math.sqrt(_WANTED * (1 - _WANTED) / self.horizons[-1].pieces)
        text = f"{self.held:.0%} of held-out sums, where {_WANTED:.0%} is aimed at"
        if self.held < _WANTED - luck:
            return f"{text}: they are too narrow, the truth is outside more often than they say"
        if self.held > _WANTED + luck:
            return f"{text}: they are wider than need be"
        return f"{text}: as wide as they should be, as far as so many pieces tell"

    @property
    def score(self) -> float:
        """What a choice of settings minimises.

        The error of the sums over the longest horizon in units of their spread, plus, where
        the data hold ends, that of the lengths. Where all these sums and lengths are alike, the
        error of the last states stands for them. Infinite without any piece.
        """
        if not self.horizons:
            return float("inf")
        last = self.horizons[-1]
        errors = [] if last.relative_error is None else [last.relative_error]
        if self.length_error is not None and self.length_spread:
            errors.append(self.length_error / self.length_spread)
        if not errors and last.state_error is not None:
            errors.append(last.state_error)
        return sum(errors) if errors else float("inf")

    @property
    def error_at_all_horizons(self) -> float:
        """What a choice of features minimises; infinite without any piece.

        The geometric mean of the errors of sums and states at all horizons, in units of their
        spreads. Errors below a hundredth count as a hundredth, and sums that are all alike, which
        any model foretells, are left out.
        """
        measured = [(horizon.relative_error, horizon.state_error) for horizon in self.horizons]
        errors = [error for pair in measured for error in pair if error is not None]
        return float(np.exp(np.log(np.maximum(errors, 0.01)).mean())) if errors else float("inf")

    @property
    def fit_for(self) -> tuple[str, ...]:
        """What the ensemble may be used for: sums over so many steps, and the search.

        ``search``: imagined whole episodes, where the sums over the longest of
        :data:`CHECK_STEPS` that an episode of the data has steps for may be relied on. These may
        be of pieces that all terminated before, see :attr:`unseen`.
        """
        uses = [f"{h.steps} steps" for h in self.horizons if h.passed and h.looked_so_far]
        if self._reaches_far and self.horizons[-1].passed:
            uses.append("search")
        return tuple(uses)

    @property
    def fit_for_words(self) -> str:
        """The same in words."""
        if self.horizons:
            return ", ".join(self.fit_for) or "nothing: its check failed"
        return "nothing: there are too few held-out pieces to check it by"

    @property
    def refusal(self) -> str | None:
        """Why whole episodes may not be imagined; None where they may."""
        if "search" in self.fit_for:
            return None
        why = self.shortage
        if why is None:
            last = self.horizons[-1]
            missed = ", ".join(f"the {name} is not {_LIMITS[name]}" for name in last.missed)
            why = f"after {last.steps} steps of held-out episodes {missed}"
        return f"the model's own check failed, so whole episodes are not imagined in it: {why}"

    @property
    def shortage(self) -> str | None:
        """Why the check does not look as far ahead as whole episodes need; None where it does."""
        if self._reaches_far:
            return None
        return (
            f"fewer than {FEWEST_PIECES} of the held-out pieces under one policy, or less than "
            f"half of them, last {self._far} steps (where policies act that long, fit-model "
            "--validation-episodes holds out more; else collect with a larger --perturb-every)"
        )

    @property
    def looked_until(self) -> float:
        """How many steps of an episode are too many for the check to say something of it."""
        return math.inf if self._missed is None else self._missed.steps

    @property
    def _missed(self) -> HorizonCheck | None:
        return next((h for h in self.horizons if not h.looked_so_far), None)

    @property
    def unseen(self) -> str | None:
        """What of whole episodes the check could not look at; None where it reaches far enough.

        Where held-out policies end their episodes early, it says how early, and nothing of
        policies that go on for longer.
        """
        missed = self._missed
        if missed is None:
            return None
        return (
            f"policies that act for {missed.steps} steps and more: fewer than {FEWEST_PIECES} of "
            f"{missed.pieces:,} held-out pieces last so long, the others terminated before"
        )

    @property
    def _far(self) -> int:
        """The horizon that a check of whole episodes has."""
        return _far(self.episode_steps)

    @property
    def _reaches_far(self) -> bool:
        return bool(self.horizons) and self.horizons[-1].steps >= self._far


def _far(episode_steps: int) -> int:
    return max((steps for steps in CHECK_STEPS if steps <= episode_steps), default=CHECK_STEPS[0])


@dataclass(frozen=True)
class Pieces:
    """Stretches of held-out steps under one policy: where they begin and how long they are.

    Attributes:
        first: (n,) int64, first step of each.
        length: (n,) int64, at most the longest horizon.
        ended: (n,) bool, whether its last step terminated.
    """

    first: NDArray[np.int64]
    length: NDArray[np.int64]
    ended: NDArray[np.bool_]

    @classmethod
    def of(cls, data: Trajectories, held: NDArray[np.bool_], seed: int) -> Pieces:
        """Cut the segments of held-out episodes (E,) into pieces of the longest horizon.

        Drawn are at most :data:`MAX_PIECES`, of :data:`MAX_STEPS` steps in all. Where policies
        end their episodes early, few pieces last long, and those say most.
        """
        longest = max(CHECK_STEPS)
        starts = segment_starts(data)
        wanted = held[data.episode_of(starts[:-1])]
        begins, ends = starts[:-1][wanted], starts[1:][wanted]
        first, length = [], []
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            for piece in range(begin, end, longest):
                first.append(piece)
                length.append(min(longest, end - piece))
        at, steps = np.array(first, np.int64), np.array(length, np.int64)
        kept = generator(seed, Stream.MODEL_CHECK).permutation(len(at))[:MAX_PIECES]
        kept = np.sort(kept[np.cumsum(steps[kept]) <= MAX_STEPS])
        # What ends about together is imagined together.
        kept = kept[np.argsort(steps[kept], kind="stable")]
        at, steps = at[kept], steps[kept]
        return cls(at, steps, data.terminated[at + steps - 1])

    @property
    def usable(self) -> dict[int, int]:
        """How many reach each horizon, or end before."""
        return {n: int(np.sum((self.length >= n) | self.ended)) for n in CHECK_STEPS}

    @property
    def fewest(self) -> float:
        """How many must be usable for a horizon to be checked."""
        # Where few pieces last so long, those that ended before would be all that is looked at.
        return max(FEWEST_PIECES, len(self.first) / 2)


def foreseen_shortage(data: Trajectories, held: NDArray[np.bool_], seed: int) -> str | None:
    """Return why a check will not look as far ahead as whole episodes need; None where it will.

    Args:
        data: The dataset.
        held: (E,) the held-out episodes.
        seed: Seed of the pieces drawn.
    """
    pieces = Pieces.of(data, held, seed)
    far = _far(int(data.lengths.max()))
    usable, count = pieces.usable[far], len(pieces.first)
    if usable >= pieces.fewest:
        return None
    if usable < count / 2:
        remedy = "collect with a larger --perturb-every"
    else:
        remedy = "hold out more with --validation-episodes, or collect more episodes"
    return (
        f"of {counted(count, 'held-out piece')} under one policy {usable} last {far} steps or "
        f"terminate before, and the check of whole episodes needs {math.ceil(pieces.fewest)}; "
        f"{remedy}"
    )


def check_model(
    ensemble: Ensemble, data: Trajectories, held: NDArray[np.bool_], seed: int
) -> ModelCheck:
    """Roll held-out pieces out under the policies that acted, and compare the rewards.

    Where the data do not say which those were, the stored actions are replayed, and the last one
    of a piece that terminated is repeated.

    Args:
        ensemble: The learned environment, which has not learned from held-out episodes.
        data: The dataset.
        held: (E,) the held-out episodes.
        seed: Seed of the pieces drawn and of the noise of stochastic policies: that of the
            stored steps as far as it is known, else of each piece and member its own.

    Raises:
        DivergedError: What is foretold, or how far off it is, is not finite.
    """
    pieces = Pieces.of(data, held, seed)
    reach = [steps for steps, usable in pieces.usable.items() if usable >= pieces.fewest]
    told = partial(
        ModelCheck,
        episode_steps=int(data.lengths.max()),
        replayed=not data.tagged,
        time_limit=data.time_limit,
    )
    if not reach:
        return told((), None, None)
    imagined = imagine(
        ensemble,
        data.policies.spec,
        _thetas(ensemble, data, pieces),
        taken(data.observations, data.obs_row_of(pieces.first)).astype(np.float64)[:, None],
        reach[-1],
        noise=_noise(data, pieces, reach[-1], ensemble.members, seed),
        actions=None if data.tagged else _stored_actions(data, pieces, reach[-1]),
        marks=tuple(reach[:-1]),
    )
    sums = [_sums(data, pieces, imagined, mark) for mark in range(len(reach))]
    horizons = [
        _horizon(ensemble, data, pieces, imagined, mark, of) for mark, of in enumerate(sums)
    ]
    calibration = _calibrate(horizons, sums)
    if not ensemble.scales.ends:
        return told(tuple(horizons), None, None, calibration=calibration)
    whole = (pieces.length >= reach[-1]) | pieces.ended
    stored = np.minimum(pieces.length[whole], reach[-1])
    lengths = imagined.lengths[whole, 0].mean(axis=1)
    error = float(np.abs(lengths - stored).mean())
    spread = float(stored.std())
    return told(tuple(horizons), error, spread, calibration=calibration)


def _thetas(ensemble: Ensemble, data: Trajectories, pieces: Pieces) -> NDArray[np.float32]:
    """Return the policy (pieces, D) that acted in each piece; (pieces, 0) where none is known."""
    if not data.tagged:
        return np.empty((len(pieces.first), 0), np.float32)
    normaliser = ensemble.scales.normaliser
    theta = data.policies.in_normaliser(normaliser.mean, normaliser.std)
    acted: NDArray[np.float32] = theta[taken(data.policy, pieces.first)]
    return acted


def _stored_actions(data: Trajectories, pieces: Pieces, steps: int) -> torch.Tensor:
    """Return stored actions (pieces, steps, action inputs); after its end a piece's last one."""
    at = np.minimum(np.arange(steps), pieces.length[:, None] - 1) + pieces.first[:, None]
    inputs = action_inputs(data.policies.spec, data.actions[at.ravel()])
    return inputs.reshape(*at.shape, -1)


def _calibrate(horizons: list[HorizonCheck], sums: list[HeldOutSums]) -> Calibration | None:
    """Return how wide intervals are; write what such intervals hold into their horizons."""
    far = range(len(sums))[-_CALIBRATED:]
    parts = [sums[mark] for mark in far]
    together = HeldOutSums.together(parts)
    if (inside := held_by_the_others(together)) is not None:
        ends = np.cumsum([len(part.stored) for part in parts])
        for mark, own in zip(far, np.split(inside, ends[:-1]), strict=True):
            horizons[mark] = dataclasses.replace(horizons[mark], calibrated=float(own.mean()))
    return Calibration.of(together)


def _noise(
    data: Trajectories, pieces: Pieces, steps: int, members: int, seed: int
) -> torch.Tensor | None:
    """Return the noise (pieces, steps, M, 1, outputs) of stochastic policies; None for others."""
    rng = generator(seed, Stream.CHECK_ACTION)
    noise = action_noise(data.policies.spec, rng, len(pieces.first), steps, members, 1)
    if noise is None:
        return None
    length = np.minimum(pieces.length, steps)
    piece = np.repeat(np.arange(len(length)), length)
    at = np.arange(len(piece)) - np.repeat(np.cumsum(length) - length, length)
    begin = pieces.first[piece]
    known = stored_noise(data, data.policy[begin], begin + at, rng)
    if known is not None:
        noise[piece, at] = torch.from_numpy(known)[:, None, None]
    return noise


def _sums(data: Trajectories, pieces: Pieces, imagined: Imagined, mark: int) -> HeldOutSums:
    """Return the sums of the pieces that reach the mark or end before."""
    steps = imagined.marks[mark]
    usable = (pieces.length >= steps) | pieces.ended
    first, length = pieces.first[usable], np.minimum(pieces.length[usable], steps)
    to_here = np.append(0.0, np.cumsum(data.rewards))
    release(data.rewards)
    return HeldOutSums(
        members=imagined.returns[mark, usable, 0],
        stored=to_here[first + length] - to_here[first],
        steps=np.minimum(imagined.lengths[usable, 0], steps).mean(axis=1),
        piece=np.flatnonzero(usable),
    )


def _horizon(
    ensemble: Ensemble,
    data: Trajectories,
    pieces: Pieces,
    imagined: Imagined,
    mark: int,
    sums: HeldOutSums,
) -> HorizonCheck:
    steps, members, stored = imagined.marks[mark], sums.members, sums.stored
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
        predicted = members.mean(axis=1)
        away = np.abs(predicted - stored)
        error = float(away.mean())
    going_on = pieces.length >= steps
    reached = imagined.states[mark, going_on, 0]
    if not (math.isfinite(error) and np.isfinite(reached).all()):
        raise DivergedError(
            f"what the model foretells over {steps} steps, or how far off it is, is not finite",
            remedy="lower --lr, or learn from rewards of a smaller scale",
        )
    # Predictions are in single precision: what differs by less cannot be told apart.
    alike = float(np.ptp(stored)) <= _ROUNDING * float(np.abs(stored).max())
    varied = not alike and bool(np.ptp(predicted) > 0)
    largest = max(float(np.abs(predicted).max()), float(np.abs(stored).max()), 1e-300)
    scaled = predicted / largest, stored / largest  # squares of huge sums have no number
    interval = interval_90(members / largest)
    state_error = None
    if going_on.any():
        row = data.obs_row_of(pieces.first[going_on]) + steps
        true = ensemble.scales.normaliser.apply(taken(data.observations, row))
        off = reached.astype(np.float64).mean(axis=1) - true
        state_error = float(np.sqrt(np.square(off).mean()))
    return HorizonCheck(
        steps=steps,
        pieces=len(stored),
        correlation=float(np.corrcoef(*scaled)[0, 1]) if varied else None,
        slope=float(np.polyfit(*scaled, 1)[0]) if varied else None,
        error=error,
        spread=0.0 if alike else float(scaled[1].std()) * largest,
        coverage=None if interval is None else _covered(interval, scaled[1]),
        state_error=state_error,
        reached=int(going_on.sum()),
    )


def _covered(
    interval: tuple[NDArray[np.float64], NDArray[np.float64]], stored: NDArray[np.float64]
) -> float:
    low, high = interval
    return float(((low <= stored) & (stored <= high)).mean())

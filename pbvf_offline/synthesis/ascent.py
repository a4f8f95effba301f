"""Grow policies from random weights by climbing a frozen critic (paper, sections 4.3 and 4.4).

Plain ascent walks out of the part of parameter space that the critic knows: returns
spike and then decline. By default the policies therefore stay inside the critic's
trust region, and the step to keep is chosen by the critic alone: no environment step
is taken here at all.

A critic that reads fingerprints is climbed by policies of any architecture.

Policies climb in units of a fixed size: the last digits of a batched multiplication depend on the
size of the batch, and so they are the same wherever the units are worked on.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.critics import Critic
from pbvf_offline.critics.trust_region import TrustRegion, shrink
from pbvf_offline.critics.views import ThetaView
from pbvf_offline.errors import DivergedError, IncompatibleError, UsageError
from pbvf_offline.fit.critic_file import CriticFile, finite_predictions
from pbvf_offline.policies.batch import check_precision
from pbvf_offline.policies.families import DEFAULT_FAMILY
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.workers import is_done_here, ordered_map
from pbvf_offline.seeding import Stream, generator
from pbvf_offline.synthesis.settings import SynthesisSettings

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's own
_EDGE = 0.999  # of the radius: where policies are drawn to
_DRAWS, _START_DRAWS = 10, 100  # most Newton steps for that
_UNIT = 320  # starts that climb together; another number changes last digits


@dataclass(frozen=True)
class Waypoint:
    """The policies after some gradient steps.

    Attributes:
        step: Gradient steps taken.
        theta: (K, D) float32 in the critic's normaliser.
        predicted: (K,) the critic's prediction, see :meth:`CriticFile.predict`.
    """

    step: int
    theta: NDArray[np.float32]
    predicted: NDArray[np.float64]


@dataclass(frozen=True)
class Synthesis:
    """K policies grown from scratch.

    Attributes:
        policies: The K policies at their chosen steps, in the critic's normaliser.
        chosen_step: (K,) the step kept of each.
        predicted: (K,) the critic's prediction at the chosen step.
        objective: (K,) the ascended objective at the chosen step.
        distance: (K,) distance from the dataset's policies at the chosen step, in units of
            their 95 % quantile.
        path: Waypoints along the ascent, the first at step 0.
        liked: (K,) the judge's values, by which they were kept; None without candidates.
    """

    policies: Policies
    chosen_step: NDArray[np.int64]
    predicted: NDArray[np.float64]
    objective: NDArray[np.float64]
    distance: NDArray[np.float64]
    path: tuple[Waypoint, ...]
    liked: NDArray[np.float64] | None = None


def synthesis_states(
    source: NDArray[np.float64], settings: SynthesisSettings
) -> NDArray[np.float64]:
    """Return the (S, obs_dim) raw states of the objective, drawn without replacement."""
    return source[drawn_rows(len(source), settings)]


def drawn_rows(count: int, settings: SynthesisSettings) -> NDArray[np.int64]:
    """Return which of so many states are those of the objective; of these alone, all are."""
    rng = generator(settings.seed, Stream.SYNTHESIS_STATES)
    return np.sort(rng.permutation(count)[: settings.states])


def synthesize(
    file: CriticFile,
    settings: SynthesisSettings,
    *,
    given: Policies | None = None,
    observations: NDArray[np.float64] | None = None,
    judge: Callable[[Policies], NDArray[np.float64]] | None = None,
    waypoint_every: int | None = None,
    workers: int = 1,
    after_step: Callable[[int, float], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Synthesis:
    """Grow K policies from PyTorch's default initialisation by gradient ascent in theta.

    Given policies are climbed from where they are instead of fresh ones.

    Each step climbs the gradient in theta of the mean of V(s, theta) over states (V(theta)
    for the PSSVF, Q(s, pi_theta(s), theta) with both gradient terms for the PAVF), always
    over the same states. The critic is only read.

    Plain ascent is Adam on theta and keeps the last step. In the trust region, the
    Mahalanobis ball of ``radius * quantile`` around the dataset's policies, starts outside
    are first drawn to its edge, every step that would leave is drawn back, and the step
    kept is the one with the highest objective. With restarts, several random
    starts climb for each policy on fewer states; from halfway on only the one with the
    highest objective goes on, with a fresh optimiser, and the step is chosen among those
    that follow. With candidates, that is done for as many equal parts of the starts, and the
    candidate that the judge likes best is kept. Where the critic reads what policies do,
    the learning rate is for linear policies; for others it goes with the fourth root of the
    number of parameters, inversely.

    Args:
        file: The critic.
        settings: What decides the synthesis.
        given: Policies to start from; as many as the settings say, and one start each.
        observations: (R, obs_dim) raw states to draw from; the critic's own when None.
        judge: Returns a value (N,) of each of N policies, by which one of the candidates is
            kept, such as the cautious return in a learned environment.
        waypoint_every: Keep the policies every so many steps for later evaluation.
        workers: Processes that climb where there are several units, on the CPU; does not change
            the result.
        after_step: Called with each step and the mean objective; where there are several units,
            after the last one.
        progress: Called with the steps done and wanted, those of all units added up.

    Raises:
        DivergedError: The objective, or a prediction, became NaN or infinite.
        IncompatibleError: The observations have another width than the critic's, it does not
            read such policies, or they cannot be drawn into the trust region.
        UsageError: There are candidates and no judge, or the device has not the precision.
    """
    if settings.candidates > 1 and judge is None:
        raise UsageError(
            "a learned environment has to choose among the candidates",
            where="--candidates",
            remedy="add --model",
        )
    spec = settings.spec_like(file.spec) if given is None else given.spec
    critic = file.critic_of(spec)
    source = file.context.observations if observations is None else observations
    if source.shape[1:] != (file.spec.obs_dim,):
        raise IncompatibleError(
            f"the states have {source.shape[1:]} dimensions, the critic's have "
            f"({file.spec.obs_dim},)"
        )
    starts = list(_starts(file, spec, settings, given))
    states = file.normalised(synthesis_states(source, settings))
    check_precision(settings.precision, states.device)
    way = _climbed(
        _Unit(critic, file, settings, states, waypoint_every),
        starts,
        workers if states.device.type == "cpu" else 1,
        after_step,
        progress,
    )
    liked = None
    if judge is not None and settings.candidates > 1:
        found = judge(file.policies(way.kept, spec))
        best = found.reshape(settings.count, settings.candidates).argmax(axis=1)
        rows = np.arange(settings.count) * settings.candidates + best
        way, liked = way.only(rows), found[rows]
    return Synthesis(
        policies=file.policies(way.kept, spec),
        chosen_step=way.chosen,
        predicted=finite_predictions(file, file.predict(way.kept, spec)),
        objective=way.best,
        distance=file.distance(torch.from_numpy(way.kept).to(states.device), spec).cpu().numpy(),
        path=tuple(
            Waypoint(k, theta, finite_predictions(file, file.predict(theta, spec)))
            for k, theta in way.thetas
        ),
        liked=liked,
    )


def _starts(
    file: CriticFile, spec: PolicySpec, settings: SynthesisSettings, given: Policies | None
) -> Iterator[NDArray[np.float32]]:
    """Yield the thetas (N, D) of each unit; the first start of each policy is the same for all R.

    A unit has all starts of its policies.
    """
    each = max(1, _UNIT // settings.restarts)
    if given is not None:
        theta = given.in_normaliser(file.normaliser.mean, file.normaliser.std)
        yield from (theta[k : k + each] for k in range(0, len(theta), each))
        return
    for first in range(0, settings.count, each):
        rows = []
        for k in range(first, min(first + each, settings.count)):
            for r in range(settings.restarts):
                place = (k,) if r == 0 else (k, r)
                rng = generator(settings.seed, Stream.SYNTHESIS_INIT, *place)
                rows.append(init_theta(spec, rng))
        yield np.stack(rows)


@dataclass(frozen=True)
class _Way:
    """How C policies climbed: all candidates of those that are wanted.

    Attributes:
        kept: (C, D) at the chosen steps.
        best: (C,) the objectives there.
        chosen: (C,) those steps.
        thetas: Steps, with the policies (C, D) there.
        objectives: Every step, with the mean objective there.
    """

    kept: NDArray[np.float32]
    best: NDArray[np.float64]
    chosen: NDArray[np.int64]
    thetas: list[tuple[int, NDArray[np.float32]]]
    objectives: list[tuple[int, float]]

    def only(self, rows: NDArray[np.int64]) -> _Way:
        """Return those of some policies."""
        thetas = [(step, theta[rows]) for step, theta in self.thetas]
        kept, best, chosen = self.kept[rows], self.best[rows], self.chosen[rows]
        return _Way(kept, best, chosen, thetas, self.objectives)

    @classmethod
    def joined(cls, ways: Sequence[_Way]) -> _Way:
        """Return those of all units together."""
        weights = [len(way.kept) for way in ways]
        thetas = [
            (points[0][0], np.concatenate([theta for _, theta in points]))
            for points in zip(*(way.thetas for way in ways), strict=True)
        ]
        objectives = [
            (points[0][0], float(np.average([value for _, value in points], weights=weights)))
            for points in zip(*(way.objectives for way in ways), strict=True)
        ]
        return cls(
            np.concatenate([way.kept for way in ways]),
            np.concatenate([way.best for way in ways]),
            np.concatenate([way.chosen for way in ways]),
            thetas,
            objectives,
        )


def _climbed(
    unit: _Unit,
    starts: Sequence[NDArray[np.float32]],
    workers: int,
    after_step: Callable[[int, float], None] | None,
    progress: Callable[[int, int], None] | None,
) -> _Way:
    """Have all units climb, here or elsewhere."""
    steps, alone = unit.settings.steps, len(starts) == 1
    ways: list[_Way] = []

    def taken(step: int, objective: float) -> None:
        if alone and after_step is not None:
            after_step(step, objective)
        if progress is not None:
            progress(len(ways) * steps + step, len(starts) * steps)

    if alone or is_done_here(workers):
        for theta in starts:
            ways.append(unit.climb(theta, taken))
    else:
        job = _UnitJob(pickle.dumps(unit), torch.get_num_threads())
        most = min(workers, len(starts))
        for way in ordered_map(job, starts, most, hang_seconds=math.inf, queued=1):
            taken(steps, math.nan)
            ways.append(way)
    way = _Way.joined(ways)
    if not alone and after_step is not None:
        for step, objective in way.objectives:
            after_step(step, objective)
    return way


@dataclass(frozen=True)
class _UnitJob:
    """Units for other processes, on as many threads as here: last digits depend on them."""

    unit: bytes
    threads: int

    def start(self) -> Callable[[NDArray[np.float32]], _Way]:
        torch.set_num_threads(self.threads)
        unit: _Unit = pickle.loads(self.unit)  # noqa: S301
        return unit.climb


class _Adam:
    """Plain ascent: Adam on theta, dimension by dimension, as the paper has it."""

    def __init__(self, theta: torch.Tensor, lr: float) -> None:
        if lr / (1 - _BETA1) > torch.finfo(theta.dtype).max:  # the size of Adam's first step
            raise DivergedError(
                f"the learning rate {lr:g} is beyond single precision", remedy="lower --lr"
            )
        self._theta = theta.detach().clone().requires_grad_()
        self._adam = torch.optim.Adam([self._theta], lr=lr, maximize=True)

    @property
    def theta(self) -> torch.Tensor:
        """The thetas (K, D)."""
        return self._theta.detach()

    def step(self, gradient: torch.Tensor) -> None:
        """Climb along a gradient in theta (K, D)."""
        self._theta.grad = gradient
        self._adam.step()


class _ConfinedAdam:
    """Ascent inside the trust region.

    Adam in the coordinates in which the region is a ball, with one step size a policy
    instead of one a dimension: where the gradient points straight out of the ball, the
    projected step then stands still, so the ascent ends at the best point of the
    region and not where Adam's uneven steps happen to balance.
    """

    def __init__(self, theta: torch.Tensor, lr: float, region: TrustRegion, radius: float) -> None:
        self._device = theta.device
        self._region, self._radius = region, radius * region.quantile
        self._lr = lr / region.scale
        self._white = shrink(region.whiten(theta), self._radius)
        self._mean = torch.zeros_like(self._white)
        self._square = self._white.new_zeros(len(theta), 1)
        self._steps = 0

    @property
    def theta(self) -> torch.Tensor:
        """The thetas (K, D)."""
        return self._region.colour(self._white).to(self._device)

    def step(self, gradient: torch.Tensor) -> None:
        """Climb along a gradient in theta (K, D)."""
        pulled = self._region.pull_back(gradient)
        self._steps += 1
        self._mean.lerp_(pulled, 1 - _BETA1)
        self._square.lerp_(pulled.square().mean(dim=1, keepdim=True), 1 - _BETA2)
        mean = self._mean / (1 - _BETA1**self._steps)
        square = self._square / (1 - _BETA2**self._steps)
        white = self._white + self._lr * mean / (square.sqrt() + _EPSILON)
        self._white = shrink(white, self._radius)


class _DrawnBackAdam:
    """Ascent inside a trust region whose coordinates are not theta's.

    Adam with one step size a policy, as in :class:`_ConfinedAdam`. A policy that a step takes
    out of the region is drawn back along the gradient of its distance, by Newton's method for
    the edge; where that does not get it back, it does not take the step.
    """

    def __init__(
        self,
        theta: torch.Tensor,
        lr: float,
        distance: Callable[[torch.Tensor], torch.Tensor],
        radius: float,
        where: str | None,
    ) -> None:
        self._distance, self._radius, self._lr = distance, radius, lr
        self._where = where
        self.theta, inside = self._drawn_back(theta, _START_DRAWS)
        if not bool(inside.all()):
            raise IncompatibleError(
                f"{int((~inside).sum())} of {len(theta)} starts act so unlike the dataset's "
                "policies that they cannot be drawn into the trust region",
                remedy="raise --radius, or use --no-trust-region",
            )
        self._mean = torch.zeros_like(theta)
        self._square = torch.zeros(len(theta), 1, dtype=theta.dtype, device=theta.device)
        self._steps = 0

    def step(self, gradient: torch.Tensor) -> None:
        """Climb along a gradient in theta (K, D)."""
        self._steps += 1
        self._mean.lerp_(gradient, 1 - _BETA1)
        self._square.lerp_(gradient.square().mean(dim=1, keepdim=True), 1 - _BETA2)
        mean = self._mean / (1 - _BETA1**self._steps)
        square = self._square / (1 - _BETA2**self._steps)
        ahead = self.theta + self._lr * mean / (square.sqrt() + _EPSILON)
        drawn, inside = self._drawn_back(ahead, _DRAWS)
        self.theta = torch.where(inside[:, None], drawn, self.theta)

    def _drawn_back(self, theta: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return thetas (K, D) drawn to within the radius, and which of them (K,) got there."""
        theta, rows = theta.clone(), torch.arange(len(theta), device=theta.device)
        for _ in range(most):
            leaf = theta[rows].requires_grad_()
            distance = self._distance(leaf)
            (gradient,) = torch.autograd.grad(distance.sum(), leaf)
            if bool(torch.isnan(distance).any()):
                raise DivergedError(
                    "the distance of a policy from the dataset's is not a number",
                    where=self._where,
                    remedy="lower --lr",
                )
            outside = (distance.detach() > self._radius).to(rows.device)
            if not bool(outside.any()):
                return theta, torch.ones(len(theta), dtype=torch.bool, device=theta.device)
            rows, slope = rows[outside], gradient[outside]
            excess = distance.detach().to(slope)[outside] - _EDGE * self._radius
            length = excess / slope.square().sum(dim=1).clamp_min(torch.finfo(slope.dtype).tiny)
            theta[rows] -= length[:, None] * slope
        inside = (self._distance(theta) <= self._radius).to(theta.device)
        return theta, inside & torch.isfinite(theta).all(dim=1)


@dataclass(frozen=True)
class _Unit:
    """How several thetas climb at once.

    Attributes:
        critic: What is climbed.
        file: Its file.
        settings: Of the synthesis that the unit is a part of.
        states: (S, obs_dim) that the objective is over, normalised.
        every: Steps between thetas that are kept as points of the way.
    """

    critic: Critic
    file: CriticFile
    settings: SynthesisSettings
    states: torch.Tensor
    every: int | None

    def climb(
        self, starts: NDArray[np.float32], taken: Callable[[int, float], None] | None = None
    ) -> _Way:
        """Return how policies climbed from their starts (N, D); ``taken`` is told of each step."""
        settings, states = self.settings, self.states
        climb = _Climb(self, taken)
        each, first = settings.restarts // settings.candidates, 0
        theta = torch.from_numpy(starts).to(states.device)
        if each > 1:
            # Many starts on few states cost what few starts on many states cost.
            few = states[:: settings.restarts]
            first = settings.steps // 2
            climb.run(theta, few, 0, first)
            values = self.critic.objective(climb.kept, states).reshape(-1, each)
            climb.keep(torch.arange(len(values)) * each + values.argmax(dim=1))
            theta = climb.kept
        climb.run(theta, states, first, settings.steps, last=True)
        return climb.way


class _Climb:
    """The stretches of one unit's ascent, with the choice of a step."""

    def __init__(self, unit: _Unit, taken: Callable[[int, float], None] | None) -> None:
        self._file, self._critic, self._settings = unit.file, unit.critic, unit.settings
        self._every, self._taken = unit.every, taken
        self._thetas: list[tuple[int, torch.Tensor]] = []
        self._objectives: list[tuple[int, float]] = []
        self.best = torch.empty(0)
        self.kept = torch.empty(0)
        self.chosen: NDArray[np.int64] = np.zeros(0, np.int64)

    def run(
        self,
        start: torch.Tensor,
        states: torch.Tensor,
        first: int,
        stop: int,
        *,
        last: bool = False,
    ) -> None:
        """Climb from step ``first`` to ``stop``; ``last``: this is the end of the way."""
        settings = self._settings
        climber = self._climber(start)
        best = torch.full((len(start),), -math.inf, dtype=torch.float64)
        chosen = np.zeros(len(start), dtype=np.int64)
        kept = climber.theta.clone()
        for step in range(first, stop + 1):
            theta = climber.theta
            with self._critic.network.in_precision(settings.precision):
                objective, gradient = self._critic.objective_and_gradient(theta, states)
            if not bool(torch.isfinite(objective).all() and torch.isfinite(gradient).all()):
                raise DivergedError(
                    f"the objective or its gradient is not finite at step {step}",
                    where=self._file.where,
                    remedy="lower --lr, or keep the trust region"
                    if step
                    else "no step was taken yet, so the policies' parameters, the states or the "
                    "critic's values are too large for single precision",
                )
            better = objective > best if settings.trust_region else best < math.inf
            best = torch.where(better, objective, best)
            chosen[better.numpy()] = step
            kept = torch.where(better[:, None].to(theta.device), theta, kept)
            if step < stop or last:  # the next stretch begins where this one ends
                if self._every is not None and step % self._every == 0:
                    self._thetas.append((step, theta.clone()))
                self._objectives.append((step, float(objective.mean())))
                if self._taken is not None:
                    self._taken(*self._objectives[-1])
            if step < stop:
                climber.step(gradient)
        self.best, self.kept, self.chosen = best, kept, chosen

    def _climber(self, start: torch.Tensor) -> _Adam | _ConfinedAdam | _DrawnBackAdam:
        file, settings = self._file, self._settings
        if not settings.trust_region:
            return _Adam(start, settings.lr)
        if isinstance(self._critic.view, ThetaView):
            return _ConfinedAdam(start, settings.lr, file.context.region, settings.radius)
        spec = self._critic.config.spec
        # Many parameters turn the same output with smaller steps each.
        linear = dataclasses.replace(spec, hidden=(), family=DEFAULT_FAMILY)
        lr = settings.lr * (linear.size / spec.size) ** 0.25
        return _DrawnBackAdam(
            start, lr, lambda theta: file.distance(theta, spec), settings.radius, file.where
        )

    def keep(self, rows: torch.Tensor) -> None:
        """Forget all but the given rows, and their ways."""
        self.best, self.kept = self.best[rows], self.kept[rows.to(self.kept.device)]
        self.chosen = self.chosen[rows.numpy()]
        self._thetas = [(step, theta[rows.to(theta.device)]) for step, theta in self._thetas]

    @property
    def way(self) -> _Way:
        """How those kept climbed."""
        return _Way(
            self.kept.cpu().numpy(),
            self.best.numpy(),
            self.chosen,
            [(step, theta.cpu().numpy()) for step, theta in self._thetas],
            self._objectives,
        )


def closest_policies(file: CriticFile, policies: Policies) -> Policies:
    """Return, for each of K policies, the stored dataset policy nearest in L2.

    The distance is that of what the critic sees: of thetas, or of fingerprints.

    Args:
        file: The critic.
        policies: In the critic's normaliser.
    """
    view = file.critic.view
    own = torch.from_numpy(view.rows(policies.spec, policies.theta)).double()
    known = torch.from_numpy(view.rows(file.spec, file.context.theta)).double()
    return file.policies(file.context.theta[torch.cdist(own, known).argmin(dim=1).numpy()])

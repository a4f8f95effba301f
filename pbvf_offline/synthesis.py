"""Grow policies from random weights by climbing a frozen critic (paper, sections 4.3 and 4.4).

Plain ascent walks out of the part of parameter space that the critic knows: returns
spike and then decline. By default the policies therefore stay inside the critic's
trust region, and the step to keep is chosen by the critic alone: no environment step
is taken here at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.critic_files import CriticFile
from pbvf_offline.errors import DivergedError, IncompatibleError, UsageError
from pbvf_offline.policies import Policies, init_theta
from pbvf_offline.presets import SYNTHESIS, env_preset
from pbvf_offline.seeding import Stream, generator


@dataclass(frozen=True)
class SynthesisSettings:
    """Everything that decides a synthesis, apart from the critic and the states.

    Attributes:
        count: Number K of policies.
        steps: Gradient steps.
        lr: Learning rate of Adam on theta.
        seed: Seed of initial weights and of the states drawn.
        trust_region: Stay where the critic is trustworthy; False is the paper's plain ascent.
        radius: Radius of the trust region, in units of the 95 % quantile of the dataset
            policies' own distances.
        states: Number of stored states the objective averages over.
        restarts: Random starts for each policy; the critic keeps the best of them halfway.
            Plain ascent has one.
    """

    count: int
    steps: int
    lr: float
    seed: int
    trust_region: bool = True
    radius: float = 1.0
    states: int = 1_000
    restarts: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 100_000:
            raise UsageError(f"{self.count} policies are not 1 … 100,000", where="--from-scratch")
        if self.steps < 0:
            raise UsageError(f"{self.steps} steps are not 0 or more", where="--steps")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise UsageError(f"learning rate {self.lr} is not positive", where="--lr")
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise UsageError(f"radius {self.radius} is not positive", where="--radius")
        if self.restarts < 1 or self.count * self.restarts > 100_000:
            raise UsageError(
                f"{self.restarts} restarts of {self.count} policies are not 1 … 100,000 starts",
                where="--restarts",
            )
        if self.restarts > 1 and not self.trust_region:
            raise UsageError("plain ascent has one start a policy", where="--restarts")
        if self.states < 1:
            raise UsageError(f"{self.states} states are not at least 1", where="--states")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def default_synthesis_settings(
    env_id: str | None, *, count: int, seed: int, trust_region: bool = True
) -> SynthesisSettings:
    """Return this project's defaults for growing policies in an environment."""
    return SynthesisSettings(
        count=count,
        steps=SYNTHESIS.steps,
        lr=env_preset(env_id).synthesis_lr,
        seed=seed,
        trust_region=trust_region,
        radius=SYNTHESIS.radius,
        states=SYNTHESIS.states,
        restarts=SYNTHESIS.restarts if trust_region else 1,
    )


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
    """

    policies: Policies
    chosen_step: NDArray[np.int64]
    predicted: NDArray[np.float64]
    objective: NDArray[np.float64]
    distance: NDArray[np.float64]
    path: tuple[Waypoint, ...]


def synthesis_states(
    source: NDArray[np.float64], settings: SynthesisSettings
) -> NDArray[np.float64]:
    """Return the (S, obs_dim) raw states of the objective, drawn without replacement."""
    rng = generator(settings.seed, Stream.SYNTHESIS_STATES)
    rows = rng.permutation(len(source))[: settings.states]
    return source[np.sort(rows)]


def synthesize(
    file: CriticFile,
    settings: SynthesisSettings,
    *,
    observations: NDArray[np.float64] | None = None,
    waypoint_every: int | None = None,
    after_step: Callable[[int, float], None] | None = None,
) -> Synthesis:
    """Grow K policies from PyTorch's default initialisation by gradient ascent in theta.

    Each step takes ``theta <- theta + Adam(grad_theta mean_s V(s, theta))`` (V(theta) for the
    PSSVF, Q(s, pi_theta(s), theta) with both gradient terms for the PAVF), then draws
    policies that left the trust region straight back to its edge. The critic is only read.

    The trust region is the Mahalanobis ball of ``radius * quantile`` around the dataset's
    policies. A policy that starts outside may not move further out than it has been. The
    chosen step is the one with the highest objective inside the region (the last where a
    policy never enters it); in plain ascent it is the last. With restarts, several random
    starts climb for each policy on fewer states; from halfway on only the one with the
    highest objective goes on, and the step is chosen among those that follow.

    Args:
        file: The critic.
        settings: What decides the synthesis.
        observations: (R, obs_dim) raw states to draw from; the critic's own when None.
        waypoint_every: Keep the policies every so many steps for later evaluation.
        after_step: Called with the step and the mean objective, for progress.

    Raises:
        DivergedError: The objective became NaN or infinite.
        IncompatibleError: The observations have another width than the critic's.
    """
    source = file.context.observations if observations is None else observations
    if source.shape[1:] != (file.spec.obs_dim,):
        raise IncompatibleError(
            f"the states have {source.shape[1:]} dimensions, the critic's have "
            f"({file.spec.obs_dim},)"
        )
    states = file.normalised(synthesis_states(source, settings))
    climb = _Climb(file, settings, waypoint_every, after_step)
    count, restarts = settings.count, settings.restarts
    theta = _starts(file, settings).to(states.device)
    first = 0
    if restarts > 1:
        # Many starts on few states cost what few starts on many states cost.
        few = states[:: max(1, restarts)]
        first = settings.steps // 2
        climb.run(theta, few, 0, first)
        values = file.critic.objective(climb.theta, states).reshape(count, restarts)
        climb.keep_starts(torch.arange(count) * restarts + values.argmax(dim=1))
        theta = climb.theta
    climb.run(theta, states, first, settings.steps, last=True)
    chosen, best, kept = climb.chosen, climb.best, climb.kept
    path, region = climb.path, file.context.region
    rows = settings.count
    final = kept.cpu().numpy()
    return Synthesis(
        policies=Policies(
            file.spec,
            final,
            np.tile(file.normaliser.mean, (rows, 1)),
            np.tile(file.normaliser.std, (rows, 1)),
        ),
        chosen_step=chosen,
        predicted=file.predict(final),
        objective=best.numpy(),
        distance=(region.distance(kept) / region.quantile).numpy(),
        path=tuple(path),
    )


def _starts(file: CriticFile, settings: SynthesisSettings) -> torch.Tensor:
    """Return the fresh thetas (K * R, D); the first start of each policy is the same for all R."""
    rows = []
    for k in range(settings.count):
        for r in range(settings.restarts):
            place = (k,) if r == 0 else (k, r)
            rows.append(
                init_theta(file.spec, generator(settings.seed, Stream.SYNTHESIS_INIT, *place))
            )
    return torch.from_numpy(np.stack(rows))


class _Climb:
    """Adam ascent of several thetas at once, with the trust region and the choice of a step."""

    def __init__(
        self,
        file: CriticFile,
        settings: SynthesisSettings,
        waypoint_every: int | None,
        after_step: Callable[[int, float], None] | None,
    ) -> None:
        self._file = file
        self._settings = settings
        self._every = waypoint_every
        self._after_step = after_step
        self._thetas: list[tuple[int, torch.Tensor]] = []
        self._nearest: torch.Tensor | None = None
        self.theta = torch.empty(0)
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
        """Climb from step ``first`` to ``stop``; ``last`` also looks at the end point itself."""
        settings, region = self._settings, self._file.context.region
        theta = start.detach().clone().requires_grad_()
        optimiser = torch.optim.Adam([theta], lr=settings.lr, maximize=True)
        distance = region.distance(theta)
        nearest = distance if self._nearest is None else torch.minimum(self._nearest, distance)
        limit = settings.radius * region.quantile * (1 + 1e-6)
        entered = torch.zeros(len(theta), dtype=torch.bool)
        best = torch.full((len(theta),), -math.inf, dtype=torch.float64)
        chosen = np.zeros(len(theta), dtype=np.int64)
        kept = theta.detach().clone()
        for step in range(first, stop + last):
            objective, gradient = self._file.critic.objective_and_gradient(theta, states)
            if not bool(torch.isfinite(objective).all() and torch.isfinite(gradient).all()):
                raise DivergedError(
                    f"the objective or its gradient is not finite at step {step}",
                    remedy="lower --lr, or keep the trust region",
                )
            # Until a policy is inside, its last step stands; the objective misleads outside.
            better = objective > best
            if settings.trust_region:
                inside = region.distance(theta) <= limit
                better = (inside & better) | ~entered
                entered |= inside
            else:
                better = torch.ones_like(better)
            best = torch.where(better, objective, best)
            chosen[better.numpy()] = step
            kept = torch.where(better[:, None].to(theta.device), theta.detach(), kept)
            if self._every is not None and step % self._every == 0:
                self._thetas.append((step, theta.detach().clone()))
            if self._after_step is not None:
                self._after_step(step, float(objective.mean()))
            if step == stop:
                break
            theta.grad = gradient
            optimiser.step()
            if settings.trust_region:
                nearest = torch.minimum(nearest, region.distance(theta))
                radius = torch.clamp(nearest, min=settings.radius * region.quantile)
                with torch.no_grad():
                    theta.copy_(region.project(theta, radius))
        self._nearest = nearest
        self.theta, self.best, self.kept, self.chosen = theta.detach(), best, kept, chosen

    def keep_starts(self, rows: torch.Tensor) -> None:
        """Go on with the given rows only, and forget the way of the others."""
        self.theta = self.theta[rows.to(self.theta.device)]
        self._nearest = None if self._nearest is None else self._nearest[rows]
        self._thetas = [(step, theta[rows.to(theta.device)]) for step, theta in self._thetas]

    @property
    def path(self) -> list[Waypoint]:
        """The waypoints kept."""
        return [_waypoint(self._file, step, theta) for step, theta in self._thetas]


def _waypoint(file: CriticFile, step: int, theta: torch.Tensor) -> Waypoint:
    values = theta.detach().cpu().numpy().copy()
    return Waypoint(step, values, file.predict(values))


def closest_policies(file: CriticFile, theta: NDArray[np.float32]) -> Policies:
    """Return, for each theta (K, D), the stored dataset policy nearest in L2."""
    known = torch.from_numpy(file.context.theta).double()
    rows = torch.cdist(torch.from_numpy(theta).double(), known).argmin(dim=1).numpy()
    count = len(theta)
    return Policies(
        file.spec,
        file.context.theta[rows],
        np.tile(file.normaliser.mean, (count, 1)),
        np.tile(file.normaliser.std, (count, 1)),
    )

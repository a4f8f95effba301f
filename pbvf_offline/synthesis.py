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
    """

    count: int
    steps: int
    lr: float
    seed: int
    trust_region: bool = True
    radius: float = 1.0
    states: int = 1_000

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 100_000:
            raise UsageError(f"{self.count} policies are not 1 … 100,000", where="--from-scratch")
        if self.steps < 0:
            raise UsageError(f"{self.steps} steps are not 0 or more", where="--steps")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise UsageError(f"learning rate {self.lr} is not positive", where="--lr")
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise UsageError(f"radius {self.radius} is not positive", where="--radius")
        if self.states < 1:
            raise UsageError(f"{self.states} states are not at least 1", where="--states")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


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
    chosen step is, inside the region, the one with the highest objective; in plain ascent
    it is the last.

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
    start = np.stack(
        [
            init_theta(file.spec, generator(settings.seed, Stream.SYNTHESIS_INIT, k))
            for k in range(settings.count)
        ]
    )
    theta = torch.from_numpy(start.copy()).to(states.device)
    optimiser = torch.optim.Adam([theta.requires_grad_()], lr=settings.lr, maximize=True)
    region = file.context.region
    limit = settings.radius * region.quantile
    nearest = region.distance(theta)
    best = torch.full((settings.count,), -math.inf, dtype=torch.float64)
    chosen = np.zeros(settings.count, dtype=np.int64)
    kept = theta.detach().clone()
    path = []
    for step in range(settings.steps + 1):
        objective, gradient = file.critic.objective_and_gradient(theta, states)
        if not bool(torch.isfinite(objective).all() and torch.isfinite(gradient).all()):
            raise DivergedError(
                f"the objective or its gradient is not finite at step {step}",
                remedy="lower --lr, or keep the trust region",
            )
        better = (
            objective > best if settings.trust_region else torch.ones_like(best, dtype=torch.bool)
        )
        best = torch.where(better, objective, best)
        chosen[better.numpy()] = step
        kept = torch.where(better[:, None].to(theta.device), theta.detach(), kept)
        if waypoint_every is not None and step % waypoint_every == 0:
            path.append(_waypoint(file, step, theta))
        if after_step is not None:
            after_step(step, float(objective.mean()))
        if step == settings.steps:
            break
        theta.grad = gradient
        optimiser.step()
        if settings.trust_region:
            nearest = torch.minimum(nearest, region.distance(theta))
            radius = torch.clamp(nearest, min=limit)
            with torch.no_grad():
                theta.copy_(region.project(theta, radius))
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

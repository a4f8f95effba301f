"""How a critic sees a policy: by its parameters, or by what it does in probing states.

What a policy does in N probing states is its fingerprint (Harb et al., 2020, "Policy Evaluation
Networks"; Faccio et al., 2022, "General Policy Evaluation and Improvement by Learning to Identify
Few But Crucial States"). Networks that compute the same function have the same fingerprint, so a
critic that reads fingerprints evaluates policies of every architecture and family.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.critics.trust_region import TrustRegion
from pbvf_offline.errors import DivergedError, IncompatibleError, differences
from pbvf_offline.io.mapped import taken
from pbvf_offline.policies.batch import network_output, squashed
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories

_CANDIDATES = 10_000  # states that the probing states are chosen from
_ROWS = 512  # policies seen at once
_OFF_THE_DATA = 0.01  # variance, beside the mean one, of directions that no policy differs in


class View(torch.nn.Module, ABC):
    """What a critic sees of a policy.

    Attributes:
        width: How many numbers the critic's network sees.
        places: How many coordinates the trust region has.
        any_architecture: Whether policies of every architecture and family are seen alike.
    """

    any_architecture: ClassVar[bool]
    width: int
    places: int

    @property
    def device(self) -> torch.device:
        """Where its states are."""
        return next((buffer.device for buffer in self.buffers()), torch.device("cpu"))

    @abstractmethod
    def forward(self, spec: PolicySpec, theta: Tensor) -> Tensor:
        """Return what the network sees (…, width), differentiable in theta.

        Args:
            spec: The policies' architecture.
            theta: (…, D) in the critic's normaliser.
        """

    @abstractmethod
    def place(self, spec: PolicySpec, theta: Tensor) -> Tensor:
        """Return where policies are (…, places) in the trust region's coordinates.

        Arguments as in :meth:`forward`; differentiable in theta too.
        """

    @abstractmethod
    def region(self, spec: PolicySpec, theta: NDArray[np.float32]) -> TrustRegion:
        """Return the region around the policies theta (P, D) that a critic is fitted to."""

    def check(self, own: PolicySpec, other: PolicySpec) -> None:
        """Refuse ``other`` policies that are not seen as the critic's ``own``.

        Raises:
            IncompatibleError: They cannot be evaluated.
        """
        acts_alike = dataclasses.replace(other, hidden=own.hidden, family=own.family) == own
        if other == own or (acts_alike and self.any_architecture):
            return
        raise IncompatibleError(
            f"the critic evaluates {own.description}, and these are others: "
            f"{differences(other.traits, own.traits)}",
            remedy="fit the critic with --fingerprint: it then reads every architecture"
            if acts_alike
            else "give policies with the same observations, actions and squash",
        )

    def choose_states(
        self, data: Trajectories, normaliser: Normaliser, rng: np.random.Generator
    ) -> None:
        """Choose probing states among those of a dataset, in the critic's normaliser, if any."""
        del data, normaliser, rng

    def rows(self, spec: PolicySpec, theta: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return :meth:`forward` of policies theta (P, D) as an array (P, width)."""
        return _by_rows(lambda part: self(spec, part), theta, self.device)


class ThetaView(View):
    """The parameters themselves, which is the paper's way.

    Args:
        spec: Architecture of the policies.
    """

    any_architecture = False

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.width = self.places = spec.size

    def forward(self, spec: PolicySpec, theta: Tensor) -> Tensor:
        """Return theta."""
        del spec
        return theta

    def place(self, spec: PolicySpec, theta: Tensor) -> Tensor:
        """Return theta."""
        del spec
        return theta

    def region(self, spec: PolicySpec, theta: NDArray[np.float32]) -> TrustRegion:
        """Return a ball in theta."""
        del spec
        return TrustRegion.of(theta)


class FingerprintView(View):
    """What a policy does in probing states, which stay as they were chosen.

    The network sees actions in the critic's own unit: ``tanh(out)`` where the policies squash.
    Where actions are discrete it sees the softmax of the logits, and where policies have a
    ``log_std`` that too. The trust region is a ball in the outputs before squashing, which are
    linear in theta for linear policies, so that for those it is approximately the ball in theta,
    the better the more probing states there are.

    Args:
        spec: Architecture of policies with the right observations and actions.
        states: Number N of probing states.
    """

    any_architecture = True

    def __init__(self, spec: PolicySpec, states: int) -> None:
        super().__init__()
        self.width = self.places = view_width(spec, states)
        self.states: Tensor
        self.register_buffer("states", torch.zeros(states, spec.obs_dim))

    def forward(self, spec: PolicySpec, theta: Tensor) -> Tensor:
        """Return actions, or probabilities of choices, in each probing state."""
        out = network_output(spec, theta, self.states)
        seen = squashed(spec, out) if spec.is_continuous else torch.softmax(out, dim=-1)
        return _with_log_std(spec, theta, seen)

    def place(self, spec: PolicySpec, theta: Tensor) -> Tensor:
        """Return outputs in each probing state; of discrete actions logits less their mean."""
        out = network_output(spec, theta, self.states)
        if not spec.is_continuous:  # what is added to all logits changes nothing
            out = out - out.mean(dim=-1, keepdim=True)
        return _with_log_std(spec, theta, out)

    def region(self, spec: PolicySpec, theta: NDArray[np.float32]) -> TrustRegion:
        """Return a ball in outputs, with some extent in directions that no policy differs in."""
        places = _by_rows(lambda part: self.place(spec, part), theta, self.device)
        return TrustRegion.of(places, off_the_data=_OFF_THE_DATA)

    def choose_states(
        self, data: Trajectories, normaliser: Normaliser, rng: np.random.Generator
    ) -> None:
        """Choose states that are far from each other, of at most 10,000 that are looked at."""
        steps = np.arange(min(len(data), _CANDIDATES))
        if len(data) > _CANDIDATES:
            steps = rng.choice(len(data), _CANDIDATES, replace=False)
        seen = taken(data.observations, data.obs_row_of(steps))
        chosen = spread_out(normaliser.apply(seen), len(self.states), rng)
        self.states.copy_(torch.from_numpy(chosen))


def _by_rows(
    function: Callable[[Tensor], Tensor], theta: NDArray[np.float32], device: torch.device
) -> NDArray[np.float32]:
    """Return a function of thetas (P, D) as an array, a few policies at a time."""
    with torch.no_grad():
        rows = torch.split(torch.from_numpy(theta), _ROWS)
        parts = [function(part.to(device)).cpu() for part in rows]
    values: NDArray[np.float32] = torch.cat(parts).numpy()
    return values


def _with_log_std(spec: PolicySpec, theta: Tensor, seen: Tensor) -> Tensor:
    """Return (…, N, outputs) as (…, width), with the log_std of theta in front."""
    return torch.cat([theta[..., : spec.log_std_size], seen.flatten(-2)], dim=-1)


def spread_out(
    points: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Choose rows (count, d) of points (R, d) that are far from each other.

    Each is drawn with a probability proportional to its squared distance from those chosen
    before, as k-means++ draws its first centers.

    Raises:
        DivergedError: The squares of their distances are not finite.
    """
    rows = [int(rng.integers(len(points)))]
    away = np.full(len(points), np.inf)
    while len(rows) < count:
        with np.errstate(over="ignore"):
            away = np.minimum(away, np.square(points - points[rows[-1]]).sum(axis=1))
            total = float(away.sum())
        if not np.isfinite(total):
            raise DivergedError("the observations are too far from each other for a fingerprint")
        # Without a distance left, all points have been chosen: they are chosen again.
        rows.append(int(rng.choice(len(points), p=away / total if total > 0 else None)))
    return points[rows]


def view_width(spec: PolicySpec, states: int) -> int:
    """Return how many numbers the network sees of a policy; see :func:`make_view`."""
    return spec.size if states == 0 else spec.log_std_size + states * spec.actions.outputs


def make_view(spec: PolicySpec, states: int) -> View:
    """Return the view of so many probing states; that of theta itself for 0."""
    return ThetaView(spec) if states == 0 else FingerprintView(spec, states)

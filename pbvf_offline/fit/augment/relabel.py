"""Behaviour-preserving relabelling: other parameters that would have acted the same.

A stored segment says something about every policy that would have taken (nearly) the
same actions in its states, not only about the one that acted. With n states in a
segment and more parameters than directions that these states span, there are many.
Showing the critic those too teaches it which directions of theta do not matter.

For a deterministic continuous policy the output is linear in its last layer's
parameters phi_o (weights and bias of output o) over features f(s) = (hidden(s), 1), so
the action changes by about ``w_t (delta phi_o . f_t)`` with ``w_t = 1 - u_t^2`` (tanh). Relabelled
parameters are drawn from the Gaussian proportional to

    N(phi_o; mu_o, s^2 I) * exp(-F mean_t (w_t (phi_o - theta_o) . f_t)^2 / (2 tau^2)),

whose precision is ``F A / tau^2 + I / s^2`` with ``A = mean_t w_t^2 f_t f_t^T + 0.05 mean f f^T``,
the second mean over states of the whole dataset (they are reached later, and left out of the
formula above), and whose mean
is ``mu + Sigma (F A / tau^2) (theta_o - mu)``. ``mu`` and ``s`` are the dataset's own mean and
spread of these parameters, F the number of features. The root mean square change
of action over the policy's own states is about ``tau`` or less: in [-1, 1] units with tanh,
in the action's own unit with ``squash="none"``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.errors import IncompatibleError
from pbvf_offline.io.mapped import taken
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import segment_starts

_ELSEWHERE = 0.05  # weight of the dataset's states beside those of the policy's own segments
_ELSEWHERE_STATES = 256
_MOST_STATES = 1_000  # of a policy's own: more do not change a covariance of F features


def can_relabel(spec: PolicySpec) -> bool:
    """Whether policies of this spec can be relabelled: deterministic, continuous actions."""
    return spec.is_continuous and not spec.stochastic


@dataclass(frozen=True)
class Relabelling:
    """The Gaussian of each policy's equivalent last layers.

    O is the number of outputs, F the number of last-layer features with the constant 1.

    Attributes:
        mean: (P, O, F) float32.
        factor: (P, O, F, F) float32, lower Cholesky factors of the covariances.
        columns: (O * F,) int64, where these parameters stand in theta.
    """

    mean: Tensor
    factor: Tensor
    columns: Tensor

    @property
    def noise_shape(self) -> tuple[int, int]:
        """(O, F): standard normal numbers needed for each drawn theta."""
        return (self.mean.shape[1], self.mean.shape[2])

    def draw(self, theta: Tensor, rows: Tensor, noise: Tensor) -> Tensor:
        """Return relabelled parameters.

        Args:
            theta: (P, D) the policies that acted.
            rows: (B,) which of them.
            noise: (B, O, F) standard normal.

        Returns:
            (B, D): the last layer drawn, everything else kept.
        """
        drawn = self.mean[rows] + (self.factor[rows] @ noise.unsqueeze(-1)).squeeze(-1)
        result = theta[rows]
        result[:, self.columns] = drawn.flatten(1)
        return result


@np.errstate(over="ignore", invalid="ignore")  # a loss that is no number is noticed and says more
def make(
    data: Trajectories,
    theta: NDArray[np.float32],
    normaliser: Normaliser,
    strength: float,
    device: torch.device,
) -> Relabelling:
    """Fit the Gaussian of every policy from the states in which it acted.

    Args:
        data: The dataset.
        theta: (P, D) its policies in the critic's normaliser.
        normaliser: The critic's normaliser.
        strength: tau, the root mean square change of action tolerated.
        device: Where the tensors go.

    Raises:
        IncompatibleError: The policies are stochastic or choose discrete actions.
    """
    spec = data.policies.spec
    if not can_relabel(spec):
        raise IncompatibleError(
            "relabelling needs deterministic policies with continuous actions",
            remedy="use --relabel 0",
        )
    columns = spec.network.last_layer(spec)  # of deterministic policies: theta is the network
    outputs, features = columns.shape
    last = theta[:, columns.ravel()].astype(np.float64).reshape(-1, outputs, features)
    center = last.mean(axis=0)
    spread = float(last.std(axis=0).mean())
    prior = np.eye(features) / max(spread, 1e-3) ** 2
    mean = np.empty((len(theta), outputs, features), np.float32)
    factor = np.empty((len(theta), outputs, features, features), np.float32)

    def states(steps: NDArray[np.int64]) -> NDArray[np.float64]:
        return normaliser.apply(taken(data.observations, data.obs_row_of(steps)))

    elsewhere = states(_some(len(data), _ELSEWHERE_STATES))
    for row, acted in enumerate(_steps_of_policies(data)):
        feature, unit = _features(spec, theta[row], states(acted))
        weight = 1.0 - unit**2 if spec.squash == "tanh" else np.ones_like(unit)
        weighted = weight[:, :, None] * feature[:, None, :]  # (T, O, F)
        needed = np.einsum("tof,tog->ofg", weighted, weighted) / len(acted)
        typical, _ = _features(spec, theta[row], elsewhere)
        needed += _ELSEWHERE * (typical.T @ typical) / len(typical)
        # The F directions of a draw add up, so each gets its share of the change tolerated.
        needed *= features / strength**2
        covariance = np.linalg.inv(needed + prior)
        pull = np.einsum("ofg,og->of", needed, last[row] - center)
        mean[row] = center + np.einsum("ofg,og->of", covariance, pull)
        factor[row] = np.linalg.cholesky((covariance + covariance.transpose(0, 2, 1)) / 2)
    return Relabelling(
        torch.from_numpy(mean).to(device),
        torch.from_numpy(factor).to(device),
        torch.from_numpy(columns.ravel()).to(device),
    )


def _some(count: int, most: int) -> NDArray[np.int64]:
    """Return at most ``most`` of so many places, evenly spread."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).astype(np.int64)


def _steps_of_policies(data: Trajectories) -> Iterator[NDArray[np.int64]]:
    """Yield steps of each policy: at most 1,000, evenly spread."""
    starts = segment_starts(data)
    lengths = np.diff(starts)
    acted = taken(data.policy, starts[:-1])
    order = np.argsort(acted, kind="stable")
    counts = np.bincount(acted, minlength=len(data.policies))
    for segments in np.split(order, np.cumsum(counts)[:-1]):
        ends = np.cumsum(lengths[segments])
        place = _some(int(ends[-1]) if len(ends) else 0, _MOST_STATES)
        segment = np.searchsorted(ends, place, side="right")
        own = segments[segment]
        yield starts[own] + place - (ends[segment] - lengths[own])


def _features(
    spec: PolicySpec, theta: NDArray[np.float32], obs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return last-layer features (T, F) and actions in [-1, 1] (T, O) in normalised states."""
    params = theta.astype(np.float64)
    x = spec.network.features(spec, params, obs)
    last = params[spec.network.last_layer(spec)]
    feature = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return feature, np.tanh(x @ np.ascontiguousarray(last[:, :-1]).T + last[:, -1])

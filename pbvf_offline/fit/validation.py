"""How well a critic ranks policies that it never saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.critics import Critic
from pbvf_offline.io.mapped import taken
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import chosen_rewards, discounted_to_go, segment_starts
from pbvf_offline.seeding import Stream, generator

_ROWS = 4096
_ROUNDING = 1e-6  # of the largest value: what float32 networks add up to in another order


def split_policies(policies: int, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Return the (P,) mask of held-out policies: ``round(fraction * P)`` drawn from the seed."""
    held = np.zeros(policies, dtype=bool)
    count = min(round(fraction * policies), policies - 1)
    if fraction > 0 and count == 0 and policies > 1:
        count = 1
    rows = generator(seed, Stream.VALIDATION_SPLIT).permutation(policies)[:count]
    held[rows] = True
    return held


def rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Return Spearman's rank correlation of two (n,) arrays.

    None below three entries or where one side is constant but for rounding, since no rank exists
    then.
    """
    if len(a) < 3 or any(np.ptp(side) <= _ROUNDING * np.abs(side).max() for side in (a, b)):
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


@dataclass(frozen=True)
class Validation:
    """Predicted against observed return of policies that were held out of a fit.

    Attributes:
        policies: Rows of the dataset's policies.
        predicted: What the critic says each earned over the steps that were observed:
            ``V(start) - gamma^m V(end)`` for TD critics (V(end) counts 0 after a
            termination), V(theta) for the PSSVF; mean over the policy's segments.
        observed: Discounted return over the same steps, in the critic's reward.
        rank_correlation: Spearman's, or None below three policies.
        top_tenth: Mean observed return of the tenth that the critic ranks highest.
        mean: Mean observed return of all held-out policies.
    """

    policies: tuple[int, ...]
    predicted: tuple[float, ...]
    observed: tuple[float, ...]
    rank_correlation: float | None
    top_tenth: float
    mean: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "policies": list(self.policies),
            "predicted": list(self.predicted),
            "observed": list(self.observed),
            "rank_correlation": self.rank_correlation,
            "top_tenth_return": self.top_tenth,
            "mean_return": self.mean,
        }


def validate(
    critic: Critic, normaliser: Normaliser, data: Trajectories, held_out: NDArray[np.bool_]
) -> Validation | None:
    """Compare a critic with the observed returns of held-out policies; None without any.

    Args:
        critic: The fitted critic.
        normaliser: Its normaliser.
        data: The dataset.
        held_out: (P,) policies that the fit did not learn from.
    """
    config = critic.config
    rewards = chosen_rewards(data, config.reward)
    found = []
    for begin, part in data.parts():
        starts = segment_starts(part)
        first, last = starts[:-1], starts[1:] - 1
        usable = held_out[part.policy[first]]
        if not critic.kind.depends_on_state:
            usable &= ~part.cut[part.episode_of(first)]
        if usable.any():
            to_go = discounted_to_go(rewards[begin : begin + len(part)], starts, config.gamma)
            first, last = first[usable], last[usable]
            ended = part.terminated[last]
            found.append((begin + first, begin + last, part.policy[first], to_go[first], ended))
    if not found:
        return None
    first, last, policy, observed, ended = map(np.concatenate, zip(*found, strict=True))
    theta = data.policies.in_normaliser(normaliser.mean, normaliser.std)
    predicted = _values(critic, normaliser, data, theta, policy, data.obs_row_of(first))
    if critic.kind.depends_on_state:
        ahead = _values(critic, normaliser, data, theta, policy, data.obs_row_of(last) + 1)
        factor = np.where(ended, 0.0, config.gamma ** (last - first + 1.0))
        predicted = predicted - factor * ahead
    rows = np.unique(policy)
    mean_predicted = np.array([predicted[policy == row].mean() for row in rows])
    mean_observed = np.array([observed[policy == row].mean() for row in rows])
    top = np.argsort(-mean_predicted, kind="stable")[: max(1, len(rows) // 10)]
    return Validation(
        policies=tuple(int(r) for r in rows),
        predicted=tuple(float(v) for v in mean_predicted),
        observed=tuple(float(v) for v in mean_observed),
        rank_correlation=rank_correlation(mean_predicted, mean_observed),
        top_tenth=float(mean_observed[top].mean()),
        mean=float(mean_observed.mean()),
    )


def _values(
    critic: Critic,
    normaliser: Normaliser,
    data: Trajectories,
    theta: NDArray[np.float32],
    policy: NDArray[np.int32],
    rows: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the value (G,) of policies (G,), rows of theta, each in its observation row (G,)."""
    parts = []
    with torch.no_grad():
        for at in range(0, len(rows), _ROWS):
            some = slice(at, at + _ROWS)
            seen = normaliser.apply(taken(data.observations, rows[some])).astype(np.float32)
            thetas = torch.from_numpy(theta[policy[some]]).to(critic.device)
            states = torch.from_numpy(seen).to(critic.device)
            parts.append(critic.paired_values(thetas, states).cpu().double().numpy())
    return np.concatenate(parts)

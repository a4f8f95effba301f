"""What a critic regresses on: rewards, Monte Carlo returns and n-step targets.

A *segment* is a maximal run of steps of one episode under one policy. Targets never
leave their segment: at a policy change they bootstrap from the true next observation
with the theta that acted, and only ``terminated`` stops bootstrapping.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import IncompatibleError
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.setting_types import RewardChoice


def chosen_rewards(data: Trajectories, choice: RewardChoice) -> NDArray[np.float64]:
    """Return the (N,) rewards to learn from.

    Raises:
        IncompatibleError: ``without-survival`` is asked of data whose environment did not
            report its survival bonus.
    """
    if choice == "raw":
        return data.rewards
    if data.reward_survive is None:
        raise IncompatibleError(
            "--reward without-survival needs the survival bonus, which this dataset's "
            "environment did not report (reward_survive)",
            remedy="use --reward raw",
        )
    return data.rewards - data.reward_survive


def segment_starts(data: Trajectories) -> NDArray[np.int64]:
    """Return the (G + 1,) first steps of the G segments; the last entry is N."""
    new = np.zeros(len(data) + 1, dtype=bool)
    new[data.start] = True
    new[1:-1] |= data.policy[1:] != data.policy[:-1]
    return np.flatnonzero(new)


def policy_returns(data: Trajectories, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (P,) mean undiscounted return of each policy's segments, of rewards (N,).

    Segments that a step budget cut count only for policies that have no others.
    """
    starts = segment_starts(data)
    totals = np.add.reduceat(rewards, starts[:-1])
    policy = data.policy[starts[:-1]]
    episode = data.episode[starts[:-1]]
    # Only the last segment of a cut episode was cut itself.
    final = np.append(episode[1:] != episode[:-1], True)
    whole = ~(data.cut[episode] & final)
    whole |= ~np.isin(policy, policy[whole])
    size = len(data.policies)
    count = np.bincount(policy[whole], minlength=size)
    return np.bincount(policy[whole], totals[whole], size) / np.maximum(count, 1)


def discounted_to_go(
    rewards: NDArray[np.float64], starts: NDArray[np.int64], gamma: float
) -> NDArray[np.float64]:
    """Return ``C_i = r_i + gamma C_{i+1}`` (N,) inside each segment (0 beyond its end).

    rewards are (N,), starts (G + 1,) as :func:`segment_starts` has them.
    """
    last = np.zeros(len(rewards), dtype=bool)
    last[starts[1:] - 1] = True
    result = [0.0] * len(rewards)
    ahead = 0.0
    # A plain loop: this recursion has no stable vector form, and it takes 0.1 s a million steps.
    for i, (reward, ends) in enumerate(
        zip(reversed(rewards.tolist()), reversed(last.tolist()), strict=True)
    ):
        ahead = reward if ends else reward + gamma * ahead
        result[-1 - i] = ahead
    return np.array(result)


@dataclass(frozen=True)
class NStepTargets:
    """The n-step target of each step: ``value + discount * V(obs[boot_row], theta)``.

    Attributes:
        value: (N,) float64, ``sum_{k<m} gamma^k r_{i+k}`` with ``m <= n`` steps of the segment.
        discount: (N,) float64, ``gamma^m``, or 0 where the m-th step terminated.
        boot_row: (N,) int64, row of the stacked observations reached after m steps.
    """

    value: NDArray[np.float64]
    discount: NDArray[np.float64]
    boot_row: NDArray[np.int64]


def n_step_targets(
    data: Trajectories, rewards: NDArray[np.float64], gamma: float, n: int
) -> NStepTargets:
    """Return targets of up to n >= 1 of the rewards (N,) that stay inside one policy's segment."""
    n = min(n, len(data))
    starts = segment_starts(data)
    to_go = np.append(discounted_to_go(rewards, starts, gamma), 0.0)
    step = np.arange(len(data))
    segment_end = np.repeat(starts[1:], np.diff(starts))
    end = np.minimum(step + n, segment_end)
    powers = gamma ** np.arange(int((end - step).max()) + 1)
    factor = powers[end - step]
    beyond = np.where(end < segment_end, to_go[end], 0.0)
    return NStepTargets(
        value=to_go[:-1] - factor * beyond,
        discount=np.where(data.terminated[end - 1], 0.0, factor),
        boot_row=data.obs_index[end - 1] + 1,
    )


def monte_carlo_returns(
    data: Trajectories, rewards: NDArray[np.float64], gamma: float
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return ``(policy, return)`` of every whole episode, for the PSSVF (Algorithm 1).

    Returns:
        (E',) int32 rows of policies and (E',) float64 returns; episodes that a step budget
        cut short are left out.

    Raises:
        IncompatibleError: An episode was acted by several policies, so that its return is
            no policy's; or every episode was cut.
    """
    starts = segment_starts(data)
    several = np.flatnonzero(~np.isin(starts[:-1], data.start[:-1]))
    if several.size:
        episode = int(data.episode[starts[several[0]]])
        raise IncompatibleError(
            f"episode {episode} was acted by several policies, so its return belongs to none "
            "of them",
            remedy="use --critic psvf or pavf, or collect with --perturb-every episode",
        )
    whole = np.flatnonzero(~data.cut)
    if whole.size == 0:
        raise IncompatibleError(
            "every episode was cut short by a step budget, so there is no whole return",
            remedy="collect with --episodes",
        )
    returns = discounted_to_go(rewards, data.start, gamma)[data.start[:-1]]
    return data.policy[data.start[:-1]][whole], returns[whole]


def observed_returns(data: Trajectories) -> NDArray[np.float64]:
    """Return each policy's mean undiscounted raw return (P,) over its whole episodes.

    NaN where a policy has none: its only episode was cut short by a step budget.

    Raises:
        IncompatibleError: As of :func:`monte_carlo_returns`. One such episode is enough: where
            policies change inside episodes, those that end before a change are not the best.
    """
    policy, returns = monte_carlo_returns(data, data.rewards, 1.0)
    count = len(data.policies)
    totals = np.bincount(policy, weights=returns, minlength=count)
    episodes = np.bincount(policy, minlength=count)
    means: NDArray[np.float64] = np.divide(
        totals, episodes, out=np.full(count, np.nan), where=episodes > 0
    )
    return means


def value_bounds(
    data: Trajectories,
    rewards: NDArray[np.float64],
    gamma: float,
    held_out: NDArray[np.bool_],
) -> tuple[float, float] | None:
    """Return the smallest and largest value that the stored segments suggest.

    Segments of policies that are held out (P,) say nothing here.

    A heuristic against bootstraps that run away. A segment of m steps that earned G
    (discounted) without ending suggests ``G / (1 - gamma^m)``, its value if it went on as it
    did; one that terminated suggests what was still to come at each of its steps. None
    when gamma is 1, where going on for ever has no limit.
    """
    if gamma >= 1.0:
        return None
    starts = segment_starts(data)
    lengths = np.diff(starts)
    to_go = discounted_to_go(rewards, starts, gamma)
    learned = ~held_out[data.policy]
    ended = np.repeat(data.terminated[starts[1:] - 1], lengths)
    forever = (to_go[starts[:-1]] / (1.0 - gamma**lengths))[(learned & ~ended)[starts[:-1]]]
    worth = np.concatenate([forever, to_go[learned & ended]])
    # A task that can end is worth 0 there, so 0 is always allowed.
    return float(worth.min(initial=0.0)), float(worth.max(initial=0.0))

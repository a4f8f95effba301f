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
    chosen = np.empty(len(data))
    for first, part in data.parts():
        own = slice(first, first + len(part))
        chosen[own] = part.rewards - data.reward_survive[own]
    return chosen


def segment_starts(data: Trajectories) -> NDArray[np.int64]:
    """Return the (G + 1,) first steps of the G segments; the last entry is N."""
    found = [first + _segment_starts(part)[:-1] for first, part in data.parts()]
    return np.concatenate([*found, [len(data)]])


def _segment_starts(part: Trajectories) -> NDArray[np.int64]:
    new = np.zeros(len(part) + 1, dtype=bool)
    new[part.start] = True
    new[1:-1] |= part.policy[1:] != part.policy[:-1]
    return np.flatnonzero(new)


def policy_returns(data: Trajectories, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (P,) mean undiscounted return of each policy's segments, of rewards (N,).

    Segments that a step budget cut count only for policies that have no others.
    """
    found = []
    for first, part in data.parts():
        starts = _segment_starts(part)[:-1]
        totals = np.add.reduceat(rewards[first : first + len(part)], starts)
        found.append((totals, part.policy[starts], data.episode_of(first + starts)))
    totals, policy, episode = map(np.concatenate, zip(*found, strict=True))
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
        value: (N,) float32, ``sum_{k<m} gamma^k r_{i+k}`` with ``m <= n`` steps of the segment.
        reach: (N,) int32, m; ``-m`` where the m-th step terminated.
        powers: (n + 1,) float32, gamma to the powers 0 … n.
    """

    value: NDArray[np.float32]
    reach: NDArray[np.int32]
    powers: NDArray[np.float32]

    def discount(self, steps: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return ``gamma^m`` of some steps, or 0 where the m-th step terminated."""
        reach = self.reach[steps]
        return np.where(reach < 0, np.float32(0), self.powers[np.maximum(reach, 0)])

    def ahead(self, steps: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return m of some steps: how many rows of observations later the state after them is."""
        return np.abs(self.reach[steps])


def n_step_targets(
    data: Trajectories, rewards: NDArray[np.float64], gamma: float, n: int
) -> NStepTargets:
    """Return targets of up to n >= 1 of the rewards (N,) that stay inside one policy's segment."""
    n = min(n, int(data.lengths.max()))
    powers = gamma ** np.arange(n + 1)
    value = np.empty(len(data), np.float32)
    reach = np.empty(len(data), np.int32)
    for first, part in data.parts():
        own = slice(first, first + len(part))
        starts = _segment_starts(part)
        to_go = np.append(discounted_to_go(rewards[own], starts, gamma), 0.0)
        step = np.arange(len(part))
        segment_end = np.repeat(starts[1:], np.diff(starts))
        end = np.minimum(step + n, segment_end)
        beyond = np.where(end < segment_end, to_go[end], 0.0)
        with np.errstate(over="ignore"):  # an infinite loss is noticed and says more
            value[own] = to_go[:-1] - powers[end - step] * beyond
        reach[own] = np.where(part.terminated[end - 1], step - end, end - step)
    return NStepTargets(value, reach, powers.astype(np.float32))


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
    whole = np.flatnonzero(~data.cut)
    policies, returns = [], []
    for first, part in data.parts():
        starts = _segment_starts(part)
        several = np.flatnonzero(~np.isin(starts[:-1], part.start[:-1]))
        if several.size:
            episode = int(data.episode_of(first + starts[several[0]]))
            raise IncompatibleError(
                f"episode {episode} was acted by several policies, so its return belongs to none "
                "of them",
                remedy="use --critic psvf or pavf, or collect with --perturb-every episode",
            )
        begin = part.start[:-1]
        policies.append(part.policy[begin])
        to_go = discounted_to_go(rewards[first : first + len(part)], part.start, gamma)
        returns.append(to_go[begin])
    if whole.size == 0:
        raise IncompatibleError(
            "every episode was cut short by a step budget, so there is no whole return",
            remedy="collect with --episodes",
        )
    return np.concatenate(policies)[whole], np.concatenate(returns)[whole]


def observed_returns(data: Trajectories) -> NDArray[np.float64]:
    """Return each policy's mean undiscounted raw return (P,) over its whole episodes.

    NaN where a policy has none: its only episode was cut short by a step budget.

    Raises:
        IncompatibleError: As of :func:`monte_carlo_returns`. One such episode is enough: where
            policies change inside episodes, those that end before a change are not the best.
    """
    return counted_returns(data)[0]


def counted_returns(data: Trajectories) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return :func:`observed_returns` (P,), and of how many whole episodes each is (P,).

    Raises:
        IncompatibleError: As of :func:`observed_returns`.
    """
    policy, returns = monte_carlo_returns(data, data.rewards, 1.0)
    count = len(data.policies)
    totals = np.bincount(policy, weights=returns, minlength=count)
    episodes = np.bincount(policy, minlength=count)
    means: NDArray[np.float64] = np.divide(
        totals, episodes, out=np.full(count, np.nan), where=episodes > 0
    )
    return means, episodes


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
    low = high = 0.0  # a task that can end is worth 0 there, so 0 is always allowed
    for first, part in data.parts():
        starts = _segment_starts(part)
        lengths = np.diff(starts)
        to_go = discounted_to_go(rewards[first : first + len(part)], starts, gamma)
        learned = ~held_out[part.policy]
        ended = np.repeat(part.terminated[starts[1:] - 1], lengths)
        forever = (to_go[starts[:-1]] / (1.0 - gamma**lengths))[(learned & ~ended)[starts[:-1]]]
        worth = np.concatenate([forever, to_go[learned & ended]])
        low, high = float(worth.min(initial=low)), float(worth.max(initial=high))
    return low, high

"""Frozen records that pass between the stages: episodes, transitions, returns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import UsageError
from pbvf_offline.io.mapped import release, taken
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec

if TYPE_CHECKING:
    from pbvf_offline.rollout.schedules import Segment

Cut = Literal["none", "budget"]

PART_STEPS: Final = 2**18
_OF_STEPS: Final = (
    "actions",
    "rewards",
    "terminated",
    "truncated",
    "policy",
    "reward_survive",
    "pre_action",
)


@dataclass(frozen=True)
class Episode:
    """One episode as the environment and the policies produced it; nothing normalised.

    T is the number of steps, S the number of segments (policies in force one after
    another), D the number of policy parameters.

    Attributes:
        observations: (T + 1, obs_dim), the environment's own dtype.
        actions: (T, act_dim) in the action's dtype, or (T,) int64 for discrete actions;
            what the environment received.
        rewards: (T,) float64.
        terminated: (T,) bool: the task ended.
        truncated: (T,) bool: a time limit or a step budget ended the episode.
        theta: (S, D) float32, only policies that acted.
        segment: (T + 1,) int32, the row of theta in force at each step; the last entry
            repeats the one before.
        obs_mean: (S, obs_dim) float64, the normaliser of each policy.
        obs_std: (S, obs_dim) float64.
        seed: What ``env.reset`` was seeded with, or None when unknown.
        cut: ``budget`` when a step budget ended the episode early.
        reward_survive: (T + 1,) float64 survival bonus paid at the step that led to each
            observation (first entry 0), where the environment reports it.
        pre_action: (T + 1, act_dim) float64 pre-squash actions of a stochastic continuous
            policy (last entry 0).
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    theta: NDArray[np.float32]
    segment: NDArray[np.int32]
    obs_mean: NDArray[np.float64]
    obs_std: NDArray[np.float64]
    seed: int | None
    cut: Cut = "none"
    reward_survive: NDArray[np.float64] | None = None
    pre_action: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return int(self.rewards.shape[0])

    def truncate(self, steps: int) -> Episode:
        """Return the first ``steps`` steps as an episode ended by the budget.

        The last kept step is marked truncated and never terminated; its final
        observation stays; thetas that no longer acted are dropped.
        """
        segment = self.segment[: steps + 1].copy()
        segment[-1] = segment[-2]
        used = int(segment.max()) + 1
        terminated = self.terminated[:steps].copy()
        truncated = self.truncated[:steps].copy()
        terminated[-1], truncated[-1] = False, True
        return Episode(
            observations=self.observations[: steps + 1],
            actions=self.actions[:steps],
            rewards=self.rewards[:steps],
            terminated=terminated,
            truncated=truncated,
            theta=self.theta[:used],
            segment=segment,
            obs_mean=self.obs_mean[:used],
            obs_std=self.obs_std[:used],
            seed=self.seed,
            cut="budget",
            reward_survive=None
            if self.reward_survive is None
            else self.reward_survive[: steps + 1],
            pre_action=None if self.pre_action is None else _zero_last(self.pre_action, steps),
        )


def assemble(
    *,
    observations: NDArray[Any],
    actions: NDArray[Any],
    rewards: NDArray[np.float64],
    survive: NDArray[np.float64] | None,
    pre_actions: NDArray[np.float64] | None,
    segments: Sequence[Segment],
    every: int | None,
    terminated: bool,
    truncated: bool,
    seed: int,
) -> Episode:
    """Return an episode of T steps; one that the environment has not ended is cut by the budget.

    Args:
        observations: (T + 1, obs_dim); this and the other arrays are copied.
        actions: (T, act_dim) or (T,).
        rewards: (T,).
        survive: (T + 1,) or None.
        pre_actions: (T + 1, act_dim), of which the last is not read, or None.
        segments: The policies that acted, one after another.
        every: Steps each of them acts; None: the episode.
        terminated: Whether the task ended.
        truncated: Whether a time limit ended the episode.
        seed: What the reset was seeded with.
    """
    t, cut = len(rewards), not (terminated or truncated)
    ends = np.zeros((2, t), bool)
    ends[0, -1], ends[1, -1] = terminated, truncated or cut
    row = np.arange(t + 1) // every if every is not None else np.zeros(t + 1)
    row[-1] = row[-2]
    return Episode(
        observations=observations.copy(),
        actions=actions.copy(),
        rewards=rewards.copy(),
        terminated=ends[0],
        truncated=ends[1],
        theta=np.stack([s.theta for s in segments]),
        segment=row.astype(np.int32),
        obs_mean=np.stack([s.obs_mean for s in segments]),
        obs_std=np.stack([s.obs_std for s in segments]),
        seed=seed,
        cut="budget" if cut else "none",
        reward_survive=None if survive is None else survive.copy(),
        pre_action=None if pre_actions is None else _zero_last(pre_actions, t),
    )


def _zero_last(pre_action: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    kept = pre_action[: steps + 1].copy()
    kept[-1] = 0.0
    return kept


@dataclass(frozen=True)
class Transitions:
    """Equal-length arrays in collection order, one entry a step (N steps).

    Attributes:
        obs: (N, obs_dim), raw.
        action: (N, act_dim) or (N,), as executed.
        reward: (N,) float64, raw.
        next_obs: (N, obs_dim), the true next observation; never of another episode.
        terminated: (N,) bool; only this stops bootstrapping.
        truncated: (N,) bool.
        policy: (N,) int32, the row of the policies that acted.
        episode: (N,) int32.
    """

    obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float64]
    next_obs: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    policy: NDArray[np.int32]
    episode: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.reward.shape[0])


@dataclass(frozen=True)
class Trajectories:
    """E episodes of N steps in all, end to end in flat arrays, with their P policies.

    Of a dataset that does not say which policies acted P is 0, and ``policy`` -1 throughout.

    Attributes:
        policies: The P distinct policies that acted.
        observations: (N + E, obs_dim): T + 1 rows an episode, raw.
        actions: (N, act_dim) or (N,), as executed.
        rewards: (N,) float64, raw.
        terminated: (N,) bool.
        truncated: (N,) bool.
        policy: (N,) int32, the row of ``policies`` that acted.
        start: (E + 1,) int64, the first step of each episode; the last entry is N.
        cut: (E,) bool, True where a step budget ended the episode early.
        seeds: (E,) int64, what ``env.reset`` was seeded with; -1 when unknown.
        reward_survive: (N,) float64 survival bonus inside each reward, where reported.
        pre_action: (N, act_dim) float64, stochastic continuous policies only.
    """

    policies: Policies
    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    policy: NDArray[np.int32]
    start: NDArray[np.int64]
    cut: NDArray[np.bool_]
    seeds: NDArray[np.int64]
    reward_survive: NDArray[np.float64] | None = None
    pre_action: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return int(self.rewards.shape[0])

    @property
    def tagged(self) -> bool:
        """Whether it is known which policies acted."""
        return len(self.policies) > 0

    @property
    def episodes(self) -> int:
        """Number of episodes E."""
        return int(self.start.shape[0]) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(E,) number of steps of each episode."""
        return np.diff(self.start)

    @property
    def time_limit(self) -> int | None:
        """Steps after which a time limit ended episodes; None where none did.

        Nor where another episode is longer: then something else ended them.
        """
        ended = self.truncated[self.start[1:] - 1] & ~self.cut
        longest = int(self.lengths.max())
        return longest if np.any(self.lengths[ended] == longest) else None

    @property
    def episode(self) -> NDArray[np.int32]:
        """(N,) the episode of each step."""
        return np.repeat(np.arange(self.episodes, dtype=np.int32), self.lengths)

    @property
    def obs_index(self) -> NDArray[np.int64]:
        """(N,) the row of ``observations`` that each step started from; the next is + 1."""
        return np.arange(len(self), dtype=np.int64) + self.episode

    def episode_of(self, steps: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Return the episode of each of some steps."""
        return np.searchsorted(self.start, steps, side="right") - 1

    def obs_row_of(self, steps: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Return the row of ``observations`` that each of some steps started from."""
        return steps + self.episode_of(steps)

    @property
    def initial_observations(self) -> NDArray[Any]:
        """(E, obs_dim) the first observation of each episode."""
        return taken(self.observations, self.start[:-1] + np.arange(self.episodes))

    def parts(self) -> Iterator[tuple[int, Trajectories]]:
        """Yield the data piece by piece: the first step of each, and its episodes without a copy.

        A piece has whole episodes, about 260,000 steps of them or one that is longer; ``policy``
        counts from the first of all policies. Of mapped data only one piece is in memory.
        """
        first = 0
        while first < self.episodes:
            begin = int(self.start[first])
            last = int(np.searchsorted(self.start, begin + PART_STEPS, side="right")) - 1
            last = max(last, first + 1)
            steps = slice(begin, int(self.start[last]))
            columns: dict[str, Any] = {
                name: None if (column := getattr(self, name)) is None else column[steps]
                for name in _OF_STEPS
            }
            observations = self.observations[begin + first : steps.stop + last]
            yield (
                begin,
                replace(
                    self,
                    observations=observations,
                    start=self.start[first : last + 1] - begin,
                    cut=self.cut[first:last],
                    seeds=self.seeds[first:last],
                    **columns,
                ),
            )
            release(observations, *columns.values())
            first = last

    @property
    def transitions(self) -> Transitions:
        """The steps as equal-length arrays; built anew at each access."""
        index = self.obs_index
        return Transitions(
            obs=self.observations[index],
            action=self.actions,
            reward=self.rewards,
            next_obs=self.observations[index + 1],
            terminated=self.terminated,
            truncated=self.truncated,
            policy=self.policy,
            episode=self.episode,
        )

    def returns(self) -> NDArray[np.float64]:
        """(E,) undiscounted raw return of each episode, cut ones included."""
        totals: NDArray[np.float64] = np.add.reduceat(self.rewards, self.start[:-1])
        return totals

    def whole_returns(self) -> NDArray[np.float64]:
        """Undiscounted raw returns of the episodes that no budget cut short."""
        return self.returns()[~self.cut]


def stack_episodes(spec: PolicySpec, episodes: Iterable[Episode]) -> Trajectories:
    """Lay episodes end to end and unify their policies, in order of first appearance.

    Raises:
        UsageError: There is no episode, or only some carry an optional array.
    """
    kept = list(episodes)
    if not kept:
        raise UsageError("there are no episodes")
    rows: dict[bytes, int] = {}
    first: list[tuple[int, int]] = []  # (episode, segment) where each policy first appears
    policy = []
    for i, episode in enumerate(kept):
        local = np.empty(episode.theta.shape[0], dtype=np.int32)
        for j in range(local.shape[0]):
            key = (
                episode.theta[j].tobytes()
                + episode.obs_mean[j].tobytes()
                + episode.obs_std[j].tobytes()
            )
            digest = hashlib.blake2b(key, digest_size=20).digest()
            local[j] = rows.setdefault(digest, len(rows))
            if local[j] == len(first):
                first.append((i, j))
        policy.append(local[episode.segment[:-1]])
    policies = Policies(
        spec,
        np.stack([kept[i].theta[j] for i, j in first]),
        np.stack([kept[i].obs_mean[j] for i, j in first]),
        np.stack([kept[i].obs_std[j] for i, j in first]),
    )
    lengths = np.array([len(episode) for episode in kept], dtype=np.int64)
    survive = [e.reward_survive[1:] for e in kept if e.reward_survive is not None]
    pre = [e.pre_action[:-1] for e in kept if e.pre_action is not None]
    for name, parts in (("reward_survive", survive), ("pre_action", pre)):
        if parts and len(parts) != len(kept):
            raise UsageError(f"{len(parts)} of {len(kept)} episodes carry {name}; all or none may")
    return Trajectories(
        policies=policies,
        observations=np.concatenate([e.observations for e in kept]),
        actions=np.concatenate([e.actions for e in kept]),
        rewards=np.concatenate([e.rewards for e in kept]),
        terminated=np.concatenate([e.terminated for e in kept]),
        truncated=np.concatenate([e.truncated for e in kept]),
        policy=np.concatenate(policy),
        start=np.concatenate([[0], np.cumsum(lengths)]),
        cut=np.array([e.cut != "none" for e in kept]),
        seeds=np.array([-1 if e.seed is None else e.seed for e in kept], dtype=np.int64),
        reward_survive=np.concatenate(survive) if survive else None,
        pre_action=np.concatenate(pre) if pre else None,
    )

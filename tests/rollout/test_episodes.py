from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from libtools import box_spec, make_episode, make_policies
from pbvf_offline.errors import UsageError
from pbvf_offline.rollout.episodes import stack_episodes


def test_lengths_1_1_3_give_five_transitions() -> None:
    policies = make_policies(box_spec(), 3)
    episodes = [make_episode(policies, [i], [n]) for i, n in enumerate((1, 1, 3))]
    data = stack_episodes(policies.spec, episodes)
    assert (len(data), data.episodes, data.lengths.tolist()) == (5, 3, [1, 1, 3])
    assert data.start.tolist() == [0, 1, 2, 5]
    assert data.episode.tolist() == [0, 1, 2, 2, 2]
    assert data.obs_index.tolist() == [0, 2, 4, 5, 6]
    flat = data.transitions
    assert len(flat) == 5
    at = 0
    for i, episode in enumerate(episodes):
        for t in range(len(episode)):
            assert np.array_equal(flat.obs[at], episode.observations[t])
            assert np.array_equal(flat.next_obs[at], episode.observations[t + 1])
            assert np.array_equal(flat.action[at], episode.actions[t])
            assert flat.reward[at] == episode.rewards[t]
            assert flat.terminated[at] == episode.terminated[t]
            assert flat.episode[at] == i
            assert np.array_equal(data.policies.theta[flat.policy[at]], episode.theta[0])
            at += 1
    firsts = np.stack([e.observations[0] for e in episodes])
    assert np.array_equal(data.initial_observations, firsts)


def test_returns_by_hand_and_cut_episodes_are_not_whole() -> None:
    policies = make_policies(box_spec(), 1)
    episodes = [
        make_episode(policies, [0], [2], rewards=[1, 2]),
        make_episode(policies, [0], [1], rewards=[5], end="cut"),
        make_episode(policies, [0], [3], rewards=[1, 1, 1], end="truncated"),
    ]
    data = stack_episodes(policies.spec, episodes)
    assert data.returns().tolist() == [3, 5, 3]
    assert data.whole_returns().tolist() == [3, 3]
    assert data.cut.tolist() == [False, True, False]


def test_equal_policies_are_unified_in_order_of_appearance() -> None:
    policies = make_policies(box_spec(), 3)
    episodes = [make_episode(policies, r, [2] * len(r)) for r in ([2, 0], [0], [1, 2])]
    data = stack_episodes(policies.spec, episodes)
    assert np.array_equal(data.policies.theta, policies.theta[[2, 0, 1]])
    assert data.policy.tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 0, 0]


def test_same_theta_with_another_normaliser_is_another_policy() -> None:
    policies = make_policies(box_spec(), 1)
    other = dataclasses.replace(policies, obs_mean=policies.obs_mean + 1)
    episodes = [make_episode(p, [0], [2]) for p in (policies, other, policies)]
    data = stack_episodes(policies.spec, episodes)
    assert len(data.policies) == 2
    assert data.policies.obs_mean[:, 0].tolist() == [0.0, 1.0]
    assert data.policy.tolist() == [0, 0, 1, 1, 0, 0]


def test_stacking_refuses() -> None:
    policies = make_policies(box_spec(), 1)
    with pytest.raises(UsageError, match="no episodes"):
        stack_episodes(policies.spec, [])
    mixed = [make_episode(policies, [0], [2], survive=s) for s in (None, 1.0)]
    with pytest.raises(UsageError, match="1 of 2 episodes carry reward_survive"):
        stack_episodes(policies.spec, mixed)


def test_unknown_seeds_are_minus_one_and_survival_drops_the_first_entry() -> None:
    policies = make_policies(box_spec(), 1)
    episode = make_episode(policies, [0], [3], survive=2.0)
    data = stack_episodes(policies.spec, [dataclasses.replace(episode, seed=None), episode])
    assert data.seeds.tolist() == [-1, episode.seed]
    assert data.reward_survive is not None
    assert data.reward_survive.tolist() == [2.0] * 6


def test_truncate_in_a_later_segment() -> None:
    policies = make_policies(box_spec(stochastic=True), 3)
    episode = make_episode(policies, [0, 1, 2], [3, 3, 3], survive=1.0)
    pre = np.arange(10.0)[:, None] + 1
    pre[-1] = 0
    episode = dataclasses.replace(episode, pre_action=pre)
    cut = episode.truncate(5)
    assert (len(cut), cut.cut, cut.seed) == (5, "budget", episode.seed)
    assert np.array_equal(cut.observations, episode.observations[:6])
    assert np.array_equal(cut.actions, episode.actions[:5])
    assert cut.terminated.tolist() == [False] * 5
    assert cut.truncated.tolist() == [False] * 4 + [True]
    assert cut.segment.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(cut.theta, episode.theta[:2])
    assert cut.obs_mean.shape == cut.obs_std.shape == (2, 2)
    assert cut.reward_survive is not None
    assert cut.reward_survive.shape == (6,)
    assert cut.pre_action is not None
    assert cut.pre_action[:, 0].tolist() == [1, 2, 3, 4, 5, 0]
    assert episode.truncated.tolist() == [False] * 9  # the original is as it was
    assert episode.segment.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_truncate_at_a_segment_boundary_drops_the_policy_that_no_longer_acted() -> None:
    policies = make_policies(box_spec(), 2)
    cut = make_episode(policies, [0, 1], [3, 3]).truncate(3)
    assert cut.segment.tolist() == [0, 0, 0, 0]
    assert cut.theta.shape[0] == 1
    assert cut.truncate(1).segment.tolist() == [0, 0]


def test_truncate_never_leaves_a_termination() -> None:
    policies = make_policies(box_spec(), 1)
    episode = make_episode(policies, [0], [3], end="terminated")
    cut = episode.truncate(3)
    assert cut.terminated.tolist() == [False] * 3
    assert cut.truncated.tolist() == [False, False, True]
    assert episode.terminated[-1]

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from libtools import box_spec, make_episode, make_policies
from pbvf_offline.critics import CriticConfig, make_critic
from pbvf_offline.fit.validation import rank_correlation, split_policies, validate
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Trajectories, stack_episodes


@pytest.mark.parametrize(
    ("policies", "fraction", "count"),
    [
        (10, 0.2, 2),
        (10, 0.0, 0),
        (10, 0.01, 1),
        (10, 0.99, 9),
        (1, 0.5, 0),
        (2, 0.5, 1),
        (3, 0.9, 2),
    ],
)
def test_split_sizes(policies: int, fraction: float, count: int) -> None:
    held = split_policies(policies, fraction, 0)
    assert held.shape == (policies,)
    assert held.sum() == count


def test_split_depends_on_the_seed_alone() -> None:
    splits = [split_policies(50, 0.2, seed) for seed in (0, 0, 1)]
    assert np.array_equal(splits[0], splits[1])
    assert not np.array_equal(splits[0], splits[2])


def test_values_that_are_equal_but_for_rounding_have_no_ranks() -> None:
    equal = 1000.0 + np.array([0.0, 1e-5, -1e-5, 2e-5])
    apart = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(equal, apart) is None
    assert rank_correlation(apart, equal) is None


def test_rank_correlation() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=20), rng.normal(size=20).round(0)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert rank_correlation(np.array([1.0, 2, 3]), np.array([1.0, 10, 100])) == pytest.approx(1)
    assert rank_correlation(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1)
    assert rank_correlation(a[:2], b[:2]) is None
    assert rank_correlation(np.ones(5), a[:5]) is None
    assert rank_correlation(a[:5], np.ones(5)) is None


def simple_critic(kind: str, gamma: float) -> Any:
    """V = first parameter (+ the state, for the PSVF): relu of it plus 100, minus 100."""
    spec = box_spec(1)
    config = CriticConfig(spec, (1,), gamma=gamma)
    critic = make_critic(kind, config, np.random.default_rng(0))
    values = {"network.first.theta": [1.0, 0.0], "network.first.obs": [1.0],
              "network.first_bias": [100.0], "network.weights.0": [1.0],
              "network.biases.0": [-100.0]}  # fmt: skip
    with torch.no_grad():
        for name, parameter in critic.named_parameters():
            parameter.copy_(torch.tensor(values[name]).reshape(parameter.shape))
    return critic


def data_of(episodes: list[tuple[list[int], list[int], list[float], str]]) -> Trajectories:
    """Policies theta_0 = 10, 20, 30, ...; states are the steps 0, 1, 2, ... of the episode."""
    spec = box_spec(1)
    theta = np.stack([np.arange(1, 13) * 10, np.zeros(12)], axis=1).astype(np.float32)
    policies = Policies(spec, theta, np.zeros((12, 1)), np.ones((12, 1)))
    made = []
    for rows, lengths, rewards, end in episodes:
        episode = make_episode(policies, rows, lengths, rewards=rewards, end=end)
        states = np.arange(sum(lengths) + 1.0)[:, None]
        made.append(dataclasses.replace(episode, observations=states))
    return stack_episodes(spec, made)


def test_td_validation_by_hand() -> None:
    # gamma 0.5, V(s, theta) = theta_0 + s.
    data = data_of(
        [
            ([0, 1], [2, 2], [1, 2, 4, 8], "truncated"),
            ([2], [1], [16], "terminated"),
            ([0], [2], [1, 1], "cut"),
        ]
    )
    held = np.array([True, True, True])
    got = validate(simple_critic("psvf", 0.5), Normaliser.identity(1), data, held)
    assert got is not None
    assert got.policies == (0, 1, 2)
    # Policy 0: segment s = 0 -> 2: 10 - 0.25 * 12 = 7; the cut one the same: mean 7;
    # observed 1 + 2/2 = 2 and 1 + 1/2 = 1.5.
    # Policy 1: s = 2 -> 4: 22 - 0.25 * 24 = 16; observed 4 + 8/2 = 8.
    # Policy 2: s = 0, terminated: 30; observed 16.
    assert got.predicted == pytest.approx((7.0, 16.0, 30.0))
    assert got.observed == pytest.approx((1.75, 8.0, 16.0))
    assert got.rank_correlation == pytest.approx(1.0)
    assert got.top_tenth == pytest.approx(16.0)
    assert got.mean == pytest.approx((1.75 + 8 + 16) / 3)
    assert got.to_dict()["top_tenth_return"] == got.top_tenth


def test_only_held_out_policies_count() -> None:
    data = data_of([([0], [1], [1], "terminated"), ([1], [1], [2], "terminated")])
    got = validate(
        simple_critic("psvf", 1.0), Normaliser.identity(1), data, np.array([False, True])
    )
    assert got is not None
    assert (got.policies, got.observed, got.rank_correlation) == ((1,), (2.0,), None)
    nothing = np.array([False, False])
    assert validate(simple_critic("psvf", 1.0), Normaliser.identity(1), data, nothing) is None


def test_pssvf_validation_by_hand_leaves_out_cut_episodes() -> None:
    data = data_of(
        [
            ([0], [2], [1, 2], "truncated"),
            ([0], [2], [3, 4], "terminated"),
            ([1], [1], [50], "cut"),
            ([2], [1], [5], "terminated"),
        ]
    )
    critic = simple_critic("pssvf", 0.5)
    got = validate(critic, Normaliser.identity(1), data, np.array([True, True, True]))
    assert got is not None
    assert got.policies == (0, 2)
    assert got.predicted == pytest.approx((10.0, 30.0))
    assert got.observed == pytest.approx(((2 + 5) / 2, 5.0))
    only_cut = validate(critic, Normaliser.identity(1), data, np.array([False, True, False]))
    assert only_cut is None


def test_top_tenth_is_the_critics_choice_not_the_datas() -> None:
    # Twelve policies; the critic ranks the last one highest, which earned least.
    data = data_of([([k], [1], [100.0 - k], "terminated") for k in range(12)])
    got = validate(simple_critic("pssvf", 1.0), Normaliser.identity(1), data, np.ones(12, bool))
    assert got is not None
    assert got.top_tenth == 89.0
    assert got.rank_correlation == pytest.approx(-1.0)


def test_policies_are_shown_in_the_critics_normaliser() -> None:
    spec = box_spec(1)
    policies = make_policies(spec, 4, mean=[2.0], std=[4.0])
    data = stack_episodes(spec, [make_episode(policies, [k], [1]) for k in range(4)])
    # With std 1 the weight becomes W / 4; the critic's value is that weight.
    got = validate(
        simple_critic("pssvf", 1.0), Normaliser(np.zeros(1), np.ones(1)), data, np.ones(4, bool)
    )
    assert got is not None
    assert got.predicted == pytest.approx(policies.theta[:, 0] / 4, abs=1e-4)

from __future__ import annotations

import numpy as np
import pytest

from libtools import box_spec, make_data, make_episode, make_policies
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.rollout.episodes import Trajectories, stack_episodes
from pbvf_offline.rollout.targets import (
    chosen_rewards,
    counted_returns,
    discounted_to_go,
    monte_carlo_returns,
    n_step_targets,
    observed_returns,
    segment_starts,
    value_bounds,
)


def seven_steps() -> Trajectories:
    """Episode 0: policies A A B, terminated; episode 1: policies B B A A, truncated.

    step        0  1  2 | 3  4   5   6
    reward      1  2  4 | 8  16  32  64
    obs row     0  1  2 | 4  5   6   7   (rows 3 and 8 are final observations)
    """
    policies = make_policies(box_spec(), 2)
    episodes = [
        make_episode(policies, [0, 1], [2, 1], rewards=[1, 2, 4], end="terminated"),
        make_episode(policies, [1, 0], [2, 2], rewards=[8, 16, 32, 64], end="truncated"),
    ]
    return stack_episodes(policies.spec, episodes)


# (gamma, n) -> value, discount, boot_row of each of the seven steps, by hand.
# Segments are [0, 1], [2], [3, 4], [5, 6]; only step 2 terminates.
EXPECTED = {
    (1.0, 1): ([1, 2, 4, 8, 16, 32, 64], [1, 1, 0, 1, 1, 1, 1], [1, 2, 3, 5, 6, 7, 8]),
    (1.0, 2): ([3, 2, 4, 24, 16, 96, 64], [1, 1, 0, 1, 1, 1, 1], [2, 2, 3, 6, 6, 8, 8]),
    (0.5, 1): (
        [1, 2, 4, 8, 16, 32, 64],
        [0.5, 0.5, 0, 0.5, 0.5, 0.5, 0.5],
        [1, 2, 3, 5, 6, 7, 8],
    ),
    (0.5, 2): (
        [2, 2, 4, 16, 16, 64, 64],  # 1 + 2/2, 2, 4, 8 + 16/2, 16, 32 + 64/2, 64
        [0.25, 0.5, 0, 0.25, 0.5, 0.25, 0.5],
        [2, 2, 3, 6, 6, 8, 8],
    ),
    (0.0, 1): ([1, 2, 4, 8, 16, 32, 64], [0] * 7, [1, 2, 3, 5, 6, 7, 8]),
    (0.0, 2): ([1, 2, 4, 8, 16, 32, 64], [0] * 7, [2, 2, 3, 6, 6, 8, 8]),
}
for _gamma in (1.0, 0.5, 0.0):
    EXPECTED[_gamma, 100] = EXPECTED[_gamma, 2]  # no segment is longer than two steps


@pytest.mark.parametrize(("gamma", "n"), EXPECTED)
def test_n_step_targets_by_hand(gamma: float, n: int) -> None:
    data = seven_steps()
    value, discount, boot_row = EXPECTED[gamma, n]
    targets = n_step_targets(data, data.rewards, gamma, n)
    every = np.arange(7)
    assert targets.value.tolist() == pytest.approx(value, abs=1e-6)
    assert targets.discount(every).tolist() == pytest.approx(discount, abs=1e-7)
    assert (data.obs_row_of(every) + targets.ahead(every)).tolist() == boot_row


def test_segments_by_hand() -> None:
    assert segment_starts(seven_steps()).tolist() == [0, 2, 3, 5, 7]


def test_same_policy_in_two_episodes_is_two_segments() -> None:
    policies = make_policies(box_spec(), 1)
    ends = ("truncated", "truncated")
    data = stack_episodes(policies.spec, [make_episode(policies, [0], [3], end=e) for e in ends])
    assert len(data.policies) == 1
    assert segment_starts(data).tolist() == [0, 3, 6]
    targets = n_step_targets(data, data.rewards, 1.0, 100)
    assert targets.ahead(np.arange(6)).tolist() == [3, 2, 1, 3, 2, 1]


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.97, 1.0])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000])
def test_n_step_targets_by_brute_force(gamma: float, n: int) -> None:
    rng = np.random.default_rng(4)
    policies = make_policies(box_spec(), 6)
    episodes = []
    for k in range(15):
        count = int(rng.integers(1, 5))
        rows = rng.permutation(6)[:count].tolist()
        lengths = rng.integers(1, 9, count).tolist()
        end = ("terminated", "truncated", "cut")[k % 3]
        episodes.append(make_episode(policies, rows, lengths, end=end, rng=rng))
    data = stack_episodes(policies.spec, episodes)
    got = n_step_targets(data, data.rewards, gamma, n)
    flat = data.transitions
    every = np.arange(len(data))
    discount, boot_row = got.discount(every), data.obs_row_of(every) + got.ahead(every)
    for i in range(len(data)):
        value, factor, j = 0.0, 1.0, i
        while True:
            value += factor * flat.reward[j]
            factor *= gamma
            end = j + 1 == len(data) or flat.episode[j + 1] != flat.episode[j]
            end = end or flat.policy[j + 1] != flat.policy[j] or j + 1 - i == n
            if end:
                break
            j += 1
        assert got.value[i] == pytest.approx(value, abs=1e-5)
        assert discount[i] == pytest.approx(0.0 if flat.terminated[j] else factor, abs=1e-6)
        # Bootstrapped from the true next observation of the last step taken in.
        assert np.array_equal(data.observations[boot_row[i]], flat.next_obs[j])


def test_discounted_to_go_by_hand() -> None:
    rewards, starts = np.array([1.0, 2.0, 4.0, 8.0]), np.array([0, 3, 4])
    assert discounted_to_go(rewards, starts, 0.5).tolist() == [3.0, 4.0, 4.0, 8.0]
    assert discounted_to_go(rewards, starts, 1.0).tolist() == [7.0, 6.0, 4.0, 8.0]
    assert discounted_to_go(rewards, starts, 0.0).tolist() == rewards.tolist()


def test_monte_carlo_returns_leave_out_cut_episodes() -> None:
    policies = make_policies(box_spec(), 3)
    episodes = [
        make_episode(policies, [0], [3], rewards=[1, 2, 4], end="terminated"),
        make_episode(policies, [1], [2], rewards=[100, 100], end="cut"),
        make_episode(policies, [2], [2], rewards=[8, 16], end="truncated"),
        make_episode(policies, [0], [1], rewards=[32], end="terminated"),
    ]
    data = stack_episodes(policies.spec, episodes)
    policy, returns = monte_carlo_returns(data, data.rewards, 0.5)
    # A time limit is a whole episode; 1 + 2/2 + 4/4, 8 + 16/2, 32.
    assert policy.tolist() == [0, 2, 0]
    assert returns.tolist() == [3.0, 16.0, 32.0]
    assert data.whole_returns().tolist() == [7.0, 24.0, 32.0]
    # The first policy's two episodes; the second's only one was cut.
    means, episodes = counted_returns(data)
    assert np.array_equal(observed_returns(data), means, equal_nan=True)
    np.testing.assert_array_equal(means, [(7 + 32) / 2, np.nan, 24])
    np.testing.assert_array_equal(episodes, [2, 0, 1])


def test_monte_carlo_refuses_several_policies_in_an_episode() -> None:
    with pytest.raises(IncompatibleError, match=r"episode 0 .*several policies") as caught:
        monte_carlo_returns(seven_steps(), seven_steps().rewards, 1.0)
    assert caught.value.exit_code == 5
    assert "--perturb-every episode" in str(caught.value)
    policies = make_policies(box_spec(), 3)
    late = [make_episode(policies, [0], [2]), make_episode(policies, [1, 2], [2, 2])]
    data = stack_episodes(policies.spec, late)
    with pytest.raises(IncompatibleError, match="episode 1 "):
        monte_carlo_returns(data, data.rewards, 1.0)


def test_monte_carlo_refuses_when_every_episode_was_cut() -> None:
    policies = make_policies(box_spec(), 1)
    data = stack_episodes(policies.spec, [make_episode(policies, [0], [2], end="cut")])
    with pytest.raises(IncompatibleError, match="cut short") as caught:
        monte_carlo_returns(data, data.rewards, 1.0)
    assert caught.value.exit_code == 5


def test_rewards_without_survival() -> None:
    policies = make_policies(box_spec(), 1)
    episode = make_episode(policies, [0], [3], rewards=[1.5, 2.0, 0.25], survive=1.0)
    data = stack_episodes(policies.spec, [episode])
    assert chosen_rewards(data, "raw").tolist() == [1.5, 2.0, 0.25]
    assert chosen_rewards(data, "without-survival").tolist() == [0.5, 1.0, -0.75]
    with pytest.raises(IncompatibleError, match="reward_survive") as caught:
        chosen_rewards(make_data(), "without-survival")
    assert caught.value.exit_code == 5


def test_value_bounds_by_hand() -> None:
    # Segments of seven_steps at gamma 0.5: [1, 2] earns 2 in 2 steps and goes on: 2 / 0.75;
    # [4] ends: 4; [8, 16] earns 16: 16 / 0.75; [32, 64] earns 64: 64 / 0.75.
    data, none = seven_steps(), np.zeros(2, bool)
    got = value_bounds(data, data.rewards, 0.5, none)
    assert got == (0.0, pytest.approx(64 / 0.75))
    got = value_bounds(data, -data.rewards, 0.5, none)
    assert got == (pytest.approx(-64 / 0.75), 0.0)
    # Policy A acted in the first and last segment; held out, its earnings are not looked at.
    got = value_bounds(data, data.rewards, 0.5, np.array([True, False]))
    assert got == (0.0, pytest.approx(16 / 0.75))
    assert value_bounds(data, data.rewards, 1.0, none) is None


def test_value_bounds_admit_what_comes_just_before_an_end() -> None:
    # Nothing for 299 steps and 100 at the end: the last states are worth up to 100, though
    # the start is worth only 100 * 0.99^299 = 4.95. A crash of -100 likewise.
    for prize in (100.0, -100.0):
        policies = make_policies(box_spec(), 1)
        rewards = [0.0] * 299 + [prize]
        data = stack_episodes(
            policies.spec,
            [make_episode(policies, [0], [300], rewards=rewards, end="terminated")],
        )
        low, high = value_bounds(data, data.rewards, 0.99, np.zeros(1, bool))
        assert (low, high) == (min(prize, 0.0), max(prize, 0.0))

"""The learned environment as a Gymnasium vector environment."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from libtools import box_spec, discrete_spec, make_policies
from model_tools import SETTINGS, played
from pbvf_offline.errors import UsageError
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.environment import ImaginedVectorEnv
from pbvf_offline.models.imagine import imagine
from pbvf_offline.models.scales import Scales
from pbvf_offline.policies.spec import PolicySpec


def learned(spec: PolicySpec) -> tuple[Ensemble, np.ndarray]:  # type: ignore[type-arg]
    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        ahead = 0.9 * obs + 0.1 * np.sum(action)
        return ahead, float(ahead[0]), bool(ahead[0] > 1.5)

    starts = np.random.default_rng(0).uniform(-2, 2, (30, spec.obs_dim))
    data = played(make_policies(spec, 30), step, starts, 12)
    ensemble = Ensemble(spec, Scales.of(data, np.arange(len(data))), SETTINGS)
    with torch.no_grad():
        ensemble.network.biases[-1][..., spec.obs_dim + 1] -= 0.3
    return ensemble, data.initial_observations.astype(float)


@pytest.mark.parametrize("spec", [box_spec(2, act_dim=2), discrete_spec(2, n=3, start=1)])
def test_playing_a_policy_in_it_equals_an_imagined_rollout(spec: PolicySpec) -> None:
    ensemble, initial = learned(spec)
    envs = ImaginedVectorEnv(ensemble, initial[:1], num_envs=3, horizon=9)
    policies = make_policies(spec, 1, mean=[0.1, 0.2], std=[1.5, 0.5])
    actor, normaliser = policies.actor(0), ensemble.scales.normaliser
    theta = policies.in_normaliser(normaliser.mean, normaliser.std)
    expected = imagine(ensemble, spec, theta, initial[:1], 9)
    obs, _ = envs.reset(seed=0)
    total, length = np.zeros(3), np.zeros(3, int)
    playing = np.ones(3, bool)
    for _ in range(9):
        actions = np.stack([actor.act(row)[0] for row in obs])
        assert envs.action_space.contains(actions)
        obs, reward, terminated, truncated, _ = envs.step(actions)
        total += np.where(playing, reward, 0.0)
        length += playing
        playing &= ~(terminated | truncated)
    assert not playing.any()
    for i in range(3):  # environments 0 and 2 are in member 0
        assert length[i] == expected.lengths[0, 0, i % 2]
        assert total[i] == pytest.approx(expected.returns[0, 0, 0, i % 2], abs=1e-4)


def test_spaces_are_those_of_the_data_and_observations_stay_inside() -> None:
    ensemble, initial = learned(box_spec(2, low=-0.5, high=2.0))
    envs = ImaginedVectorEnv(ensemble, initial, num_envs=4, horizon=50)
    assert isinstance(envs.single_action_space, Box)
    assert (envs.single_action_space.low[0], envs.single_action_space.high[0]) == (-0.5, 2.0)
    assert envs.single_action_space.dtype == np.float32
    obs, info = envs.reset(seed=1)
    assert info == {}
    envs.action_space.seed(0)
    for _ in range(60):
        assert envs.observation_space.contains(obs)
        obs, reward, *_ = envs.step(envs.action_space.sample())
        assert reward.shape == (4,)
    discrete, _ = learned(discrete_spec(2, n=3, start=1))
    space = ImaginedVectorEnv(discrete, initial, 2, 5).single_action_space
    assert space == Discrete(3, start=1)


def test_an_ended_episode_is_reset_at_the_next_step() -> None:
    ensemble, initial = learned(box_spec(2))
    with torch.no_grad():
        ensemble.network.biases[-1][..., 3] = -1e6  # never terminates
    envs = ImaginedVectorEnv(ensemble, initial, num_envs=2, horizon=3)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    envs.reset(seed=0)
    ends = []
    for step in range(8):
        obs, reward, terminated, truncated, _ = envs.step(np.zeros((2, 1), np.float32))
        assert not terminated.any()
        ends.append(bool(truncated.all()))
        if step in (3, 7):
            np.testing.assert_array_equal(reward, 0.0)
            assert all(np.isclose(initial, row).all(axis=1).any() for row in obs)
    assert ends == [False, False, True, False, False, False, True, False]


def test_one_seed_gives_the_same_episodes() -> None:
    ensemble, initial = learned(box_spec(2))
    first, second, other = (
        ImaginedVectorEnv(ensemble, initial, 5, 4).reset(seed=seed)[0] for seed in (7, 7, 8)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("count", "horizon", "starts"), [(0, 5, 3), (2, 0, 3), (2, 5, 0)])
def test_nothing_to_play_is_refused(count: int, horizon: int, starts: int) -> None:
    ensemble, initial = learned(box_spec(2))
    with pytest.raises(UsageError, match="each is at least 1"):
        ImaginedVectorEnv(ensemble, initial[:starts], count, horizon)

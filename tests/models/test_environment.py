"""The learned environment as a Gymnasium vector environment."""

from __future__ import annotations

from typing import Any

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
from pbvf_offline.setting_types import Squash


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


def playing(spec: PolicySpec, num_envs: int = 5) -> ImaginedVectorEnv:
    """Environments that go on for long, at their first observations."""
    ensemble, initial = learned(spec)
    with torch.no_grad():
        ensemble.network.biases[-1][..., spec.obs_dim + 1] = -1e6  # never terminates
    envs = ImaginedVectorEnv(ensemble, initial, num_envs, horizon=50)
    envs.reset(seed=0)
    return envs


@pytest.mark.parametrize("squash", ["tanh", "none"])
def test_continuous_actions_are_clipped_to_the_bounds(squash: Squash) -> None:
    spec = box_spec(2, act_dim=2, low=-0.5, high=2.0, squash=squash)
    beyond = np.array([[-9.0, 0.1], [np.inf, -np.inf], [2.1, 5], [0.2, 1e30], [-0.5, 2.0]])
    clipped = np.array([[-0.5, 0.1], [2.0, -0.5], [2.0, 2.0], [0.2, 2.0], [-0.5, 2.0]])
    for given, want in ((beyond, clipped), (np.full((5, 2), 7), np.full((5, 2), 2.0))):
        first, second = playing(spec), playing(spec)
        for ours, theirs in zip(first.step(given)[:4], second.step(want)[:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)


NAN = np.array([[0.1], [0.2], [np.nan], [0.3], [0.4]], np.float32)


@pytest.mark.parametrize(
    ("spec", "actions", "words"),
    [
        (
            box_spec(2),
            np.zeros((1, 1)),
            r"float64 of shape \(1, 1\); give numbers of shape \(5, 1\)",
        ),
        (box_spec(2), np.zeros(5), r"float64 of shape \(5,\); give numbers"),
        (box_spec(2), np.zeros((5, 2)), r"of shape \(5, 2\)"),
        (box_spec(2), np.full((5, 1), "a"), r"the actions are <U1 of shape \(5, 1\)"),
        (box_spec(2), np.zeros((5, 1), bool), "the actions are bool"),
        (box_spec(2), np.zeros((5, 1), complex), "the actions are complex128"),
        (box_spec(2), None, r"the actions are object of shape \(\)"),
        (box_spec(2), [[0.1], [0.2, 0.3], [0], [0], [0]], "the actions are no array: "),
        (box_spec(2), torch.zeros(5, 1, requires_grad=True), "the actions are no array: "),
        (box_spec(2), NAN, r"the action of environment 2 is \[nan\]"),
        (discrete_spec(2, n=3, start=1), [1, 2, 3, 4, 1], r"environment 3 is 4; choose 1 … 3"),
        (discrete_spec(2, n=3, start=1), [1, 0, 3, 2, 1], r"environment 1 is 0; choose 1 … 3"),
        (discrete_spec(2, n=3, start=1), np.full(5, 2**64 - 1, np.uint64), "environment 0 is 1844"),
        (
            discrete_spec(2, n=3, start=1),
            [2],
            r"int64 of shape \(1,\); give integers of shape \(5,\)",
        ),
        (discrete_spec(2, n=3, start=1), np.ones(5), "the actions are float64 of shape"),
    ],
)
def test_actions_that_do_not_fit_are_refused_and_step_nothing(
    spec: PolicySpec, actions: Any, words: str
) -> None:
    envs, undisturbed = playing(spec), playing(spec)
    with pytest.raises(UsageError, match=words):
        envs.step(actions)
    undisturbed.action_space.seed(0)
    right = undisturbed.action_space.sample()
    for ours, theirs in zip(envs.step(right)[:4], undisturbed.step(right)[:4], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("spec", [box_spec(2), discrete_spec(2, n=3, start=1)])
def test_the_action_of_an_environment_that_is_reset_is_not_looked_at(spec: PolicySpec) -> None:
    ensemble, initial = learned(spec)
    envs = ImaginedVectorEnv(ensemble, initial, num_envs=2, horizon=1)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    right = envs.action_space.sample()
    _, _, terminated, truncated, _ = envs.step(right)
    assert (terminated | truncated).all()
    unread = np.full_like(right, 99) if right.dtype.kind == "i" else np.full_like(right, np.nan)
    obs, reward, *_ = envs.step(unread)
    assert envs.observation_space.contains(obs)
    np.testing.assert_array_equal(reward, 0.0)
    with pytest.raises(UsageError, match="the action of environment 0 is"):
        envs.step(unread)

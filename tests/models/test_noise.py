"""Action noise of stochastic policies: that of stored steps, and that of a check without it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from libtools import box_spec, discrete_spec, make_policies
from model_tools import played
from pbvf_offline.models.check import HorizonCheck, check_model
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.noise import action_noise, stored_noise
from pbvf_offline.models.scales import RewardScale, Scales
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories

STEPS, EPISODES = 15, 500
BOX, DISCRETE = box_spec(1, stochastic=True), discrete_spec(1, n=3, stochastic=True)


def pay_for_the_action(obs, action, rng):  # type: ignore[no-untyped-def]
    return obs, float(np.sum(action)), False


def episodes(spec: PolicySpec) -> Trajectories:
    starts = np.random.default_rng(0).uniform(-1, 1, (EPISODES, 1))
    policies = make_policies(spec, EPISODES, mean=[0.5], std=[2.0])
    return played(policies, pay_for_the_action, starts, STEPS)


def perfect(data: Trajectories, members: int) -> Ensemble:
    """Members that pay for the action and stay where they are, as the environment does."""
    settings = ModelSettings(seed=0, members=members, hidden=(8,))
    scales = dataclasses.replace(
        Scales.of(data, np.arange(len(data))), reward=RewardScale(0.0, 1.0, -np.inf, np.inf)
    )
    ensemble = Ensemble(data.policies.spec, scales, settings)
    inputs = np.arange(scales.action_std.size)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.zero_()
        choices = torch.from_numpy(scales.action_std.astype(np.float32))
        if not data.policies.spec.is_continuous:
            choices = choices * torch.tensor(inputs + data.policies.spec.actions.start)
        ensemble.network.skip[:, 1 + inputs, 1] = choices
    return ensemble


def check_of(data: Trajectories, seed: int = 0, members: int = 4) -> HorizonCheck:
    every = np.ones(data.episodes, bool)
    return check_model(perfect(data, members), data, every, seed).horizons[-1]


@pytest.mark.parametrize("spec", [BOX, DISCRETE], ids=["box", "discrete"])
def test_a_perfect_model_foretells_stored_episodes_of_stochastic_policies(spec: PolicySpec) -> None:
    said = check_of(episodes(spec))
    assert said.relative_error < 1e-4
    assert said.correlation == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_where_noise_is_not_stored_each_piece_and_member_has_its_own(seed: int) -> None:
    """Stored sums are then draws like the members', of which nine in ten are inside.

    With one path for all pieces that share would be anything, and with one for all members 0.
    """
    said = check_of(dataclasses.replace(episodes(BOX), pre_action=None), seed)
    assert said.coverage == pytest.approx(0.9, abs=0.04)


def test_stored_choices_have_the_noise_that_leads_to_them_and_gumbel_noise_in_all() -> None:
    data = episodes(DISCRETE)
    step = np.arange(len(data))
    noise = stored_noise(data, data.policy, step, np.random.default_rng(1))
    assert noise is not None
    logits = np.array(
        [
            data.policies.actor(k).logits(obs)
            for k, obs in zip(data.policy, data.observations[data.obs_index], strict=True)
        ]
    )
    taken = data.policies.spec.actions.start + (logits + noise).argmax(axis=1)
    np.testing.assert_array_equal(taken, data.actions)
    # Over choices drawn by the policies it is what it is without them.
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.03)
    assert noise.std() == pytest.approx(np.pi / np.sqrt(6), abs=0.03)
    drawn = action_noise(DISCRETE, np.random.default_rng(0), len(data))
    assert drawn is not None
    for level in (0.1, 0.5, 0.9):
        below = (noise < np.quantile(drawn.numpy(), level)).mean(axis=0)
        np.testing.assert_allclose(below, level, atol=0.03)


def test_what_is_known_of_noise() -> None:
    step, rng = np.arange(20), np.random.default_rng(0)
    for spec, known in ((BOX, True), (DISCRETE, True), (box_spec(1), False)):
        data = episodes(spec)
        assert (stored_noise(data, data.policy[:20], step, rng) is not None) == known
    without = dataclasses.replace(episodes(BOX), pre_action=None)
    assert stored_noise(without, without.policy[:20], step, rng) is None


def test_a_policy_without_any_spread_has_finite_noise() -> None:
    data = episodes(BOX)
    theta = data.policies.theta.copy()
    theta[:, 0] = -800.0
    still = dataclasses.replace(data, policies=dataclasses.replace(data.policies, theta=theta))
    noise = stored_noise(still, still.policy, np.arange(len(still)), np.random.default_rng(0))
    assert noise is not None
    assert np.isfinite(noise).all()


def test_one_member_has_no_interval_that_could_hold() -> None:
    said = check_of(episodes(box_spec(1)), members=1)
    assert said.coverage is None
    assert said.passed

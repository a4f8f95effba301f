"""Imagined episodes as trajectories: every step is the policy's and the model's own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from libtools import box_spec, discrete_spec, make_policies
from model_tools import SETTINGS, played
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import imagine
from pbvf_offline.models.noise import action_noise
from pbvf_offline.models.scales import Scales, action_inputs
from pbvf_offline.models.trajectories import imagined_trajectories
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories

SPECS = {
    "box": box_spec(1, low=-2.0),
    "choice": discrete_spec(1, n=3, start=5),
    "drawn": box_spec(1, stochastic=True),
    "drawn choice": discrete_spec(1, stochastic=True),
    "plain": box_spec(1, squash="none"),
    "deep": box_spec(1, (4,)),
}


def drifting(obs, action, rng):  # type: ignore[no-untyped-def]
    return 0.9 * obs + 0.3 * rng.standard_normal(1), float(obs[0]), bool(obs[0] > 1.0)


def ending(data: Trajectories) -> Ensemble:
    """Untrained networks, but that episodes end where the observation is high."""
    scales = dataclasses.replace(Scales.of(data, np.arange(len(data))), ends=True)
    ensemble = Ensemble(data.policies.spec, scales, SETTINGS)
    with torch.no_grad():
        ensemble.network.skip[:, 0, 2] = 8.0
        ensemble.network.biases[-1][:, 0, 2] = -6.0
        ensemble.network.skip[:, 1, 0] += 0.5  # actions push
    return ensemble


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_steps_are_those_of_policy_and_model(spec: PolicySpec) -> None:
    ensemble = ending(played(make_policies(spec, 40), drifting, np.zeros((40, 1)), 60))
    own, members, starts, limit = ensemble.scales.normaliser, 2, 3, 40
    theta = make_policies(spec, 12, seed=3).theta
    count = len(theta)
    policies = Policies(spec, theta, np.tile(own.mean, (count, 1)), np.tile(own.std, (count, 1)))
    noise = action_noise(spec, np.random.default_rng(0), limit, members, starts)
    first = np.linspace(-0.5, 0.5, starts)[:, None]
    out = imagine(ensemble, spec, theta, first, limit, noise=noise, record=True)
    assert out.recording is not None
    data = imagined_trajectories(ensemble, policies, out.recording, out.lengths)

    assert data.episodes == count * starts * members
    assert data.lengths.tolist() == out.lengths.reshape(-1).tolist()
    assert len(set(data.lengths.tolist())) > 1  # some end before the limit
    np.testing.assert_allclose(data.returns(), out.returns[-1].reshape(-1), rtol=1e-9)
    last = data.start[1:] - 1
    ended = data.terminated[last]
    assert ended[data.lengths < limit].all()
    assert (ended ^ data.truncated[last]).all()
    assert data.terminated.sum() + data.truncated.sum() == data.episodes
    begin = data.initial_observations.reshape(count, starts, members, 1)
    np.testing.assert_allclose(begin, np.broadcast_to(first[None, :, None], begin.shape), atol=1e-6)
    np.testing.assert_array_equal(data.policy, np.repeat(np.arange(count), each_policys(data)))

    steps = data.transitions
    unit = action_inputs(spec, data.actions)
    for member in range(members):
        rows = data.episode % members == member  # the last axis of the episodes
        obs = torch.from_numpy(own.apply(steps.obs[rows]).astype(np.float32))
        told = ensemble.step(obs.expand(members, *obs.shape), unit[rows].expand(members, -1, -1))
        reached = told.obs[member].detach().numpy() * own.std + own.mean
        np.testing.assert_allclose(reached, steps.next_obs[rows], atol=2e-3)
        np.testing.assert_allclose(told.reward[member].detach(), steps.reward[rows], atol=2e-3)
        assert (told.ended[member].numpy() == steps.terminated[rows]).mean() > 0.98
    if not spec.stochastic:
        for k in range(count):
            mine = np.flatnonzero(data.policy == k)[:20]
            acted = [policies.actor(k).act(o, np.random.default_rng(0))[0] for o in steps.obs[mine]]
            np.testing.assert_allclose(np.array(acted), steps.action[mine], atol=1e-4)
    assert (data.pre_action is not None) == (spec.stochastic and spec.is_continuous)
    if data.pre_action is not None:
        np.testing.assert_allclose(np.tanh(data.pre_action), data.actions, atol=1e-6)


def each_policys(data):  # type: ignore[no-untyped-def]
    return data.lengths.reshape(len(data.policies), -1).sum(axis=1)

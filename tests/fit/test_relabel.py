from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, discrete_spec, fit_settings, make_data, make_episode, make_policies
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.fit.augment.relabel import Relabelling, can_relabel, make
from pbvf_offline.fit.loop import start_fit, training_set
from pbvf_offline.policies.batch import network_output, squashed
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories, stack_episodes

CPU = torch.device("cpu")


def relabel(data: Trajectories, tolerance: float) -> Relabelling:
    identity = Normaliser.identity(data.policies.spec.obs_dim)
    return make(data, data.policies.theta, identity, tolerance, CPU)


def draws(
    relabelling: Relabelling, data: Trajectories, row: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    theta = torch.from_numpy(data.policies.theta)
    torch.manual_seed(0)
    noise = torch.randn(count, *relabelling.noise_shape)
    return theta[row], relabelling.draw(theta, torch.full((count,), row), noise)


def change_of_action(spec: PolicySpec, data: Trajectories, row: int, drawn: torch.Tensor) -> float:
    """Root mean square change of the action in the states where the policy acted."""
    states = data.transitions.obs[data.policy == row]
    obs = torch.from_numpy(states).float()
    before = network_output(spec, torch.from_numpy(data.policies.theta[row])[None], obs)
    after = network_output(spec, drawn, obs)
    return float((squashed(spec, after) - squashed(spec, before)).square().mean().sqrt())


@pytest.mark.parametrize("family", ["tanh-mlp", "relu-mlp"])
@pytest.mark.parametrize("hidden", [(), (6,)])
def test_relabelled_policies_would_have_acted_nearly_the_same(
    hidden: tuple[int, ...], family: str
) -> None:
    spec = box_spec(9, hidden, 2, family=family)
    data = make_data(spec, policies=20, length=3)  # fewer states than parameters
    tau = 0.1
    relabelling = relabel(data, tau)
    assert relabelling.noise_shape == (2, (hidden or (9,))[-1] + 1)
    moved, ours, randoms = [], [], []
    for row in range(5):
        theta, drawn = draws(relabelling, data, row, 50)
        ours.append(change_of_action(spec, data, row, drawn))
        moved.append((drawn - theta).square().mean().sqrt().item())
        # Where a random change of the same size would have changed the action a lot.
        torch.manual_seed(1)
        last = torch.zeros_like(drawn)
        last[:, relabelling.columns] = torch.randn(50, len(relabelling.columns))
        scale = (drawn - theta).norm(dim=1, keepdim=True) / last.norm(dim=1, keepdim=True)
        randoms.append(change_of_action(spec, data, row, theta + last * scale))
    assert max(ours) < 1.2 * tau  # the change of action is what the tolerance says
    assert np.mean(ours) > 0.3 * tau
    assert np.mean(ours) < np.mean(randoms) / 2
    assert np.mean(moved) > 0.05


def test_only_the_last_layer_changes() -> None:
    spec = box_spec(3, (5,), 2)
    data = make_data(spec, policies=8)
    theta, drawn = draws(relabel(data, 0.1), data, 2, 10)
    # 3 -> 5 -> 2: the first 3 * 5 + 5 = 20 parameters stay, the last 5 * 2 + 2 = 12 move.
    assert torch.equal(drawn[:, :20], theta[:20].expand(10, -1))
    assert torch.all(drawn[:, 20:] != theta[20:])
    assert np.array_equal(data.policies.theta, make_data(spec, policies=8).policies.theta)


def test_a_tiny_tolerance_with_many_states_keeps_the_policy() -> None:
    policies = make_policies(box_spec(2), 3)
    episodes = [make_episode(policies, [k], [200]) for k in range(3)]
    data = stack_episodes(policies.spec, episodes)
    theta, drawn = draws(relabel(data, 1e-4), data, 1, 20)
    assert torch.allclose(drawn, theta.expand(20, -1), atol=5e-3)


def test_a_huge_tolerance_draws_from_the_datasets_spread() -> None:
    spec = box_spec(2)
    data = make_data(spec, policies=200, length=1)
    _, drawn = draws(relabel(data, 1e3), data, 0, 4000)
    spread = data.policies.theta.std(axis=0).mean()
    assert torch.allclose(
        drawn.mean(dim=0), torch.from_numpy(data.policies.theta.mean(axis=0)), atol=0.05
    )
    assert np.allclose(drawn.std(dim=0).numpy(), spread, rtol=0.1)


def test_gaussian_by_hand() -> None:
    # One observation s = 2 in one state (the dataset's other states are the same), squash
    # "none" so that w = 1: f = (2, 1), F = 2, A = 1.05 f f^T, precision F A / tau^2 + I / s^2.
    spec = box_spec(1, squash="none", low=-100, high=100)
    policies = make_policies(spec, 2)
    made = [make_episode(policies, [k], [1]) for k in range(2)]
    episodes = [dataclasses.replace(e, observations=np.full((2, 1), 2.0)) for e in made]
    data = stack_episodes(spec, episodes)
    tau = 0.5
    got = relabel(data, tau)
    theta = policies.theta.astype(float)
    center, spread = theta.mean(axis=0), theta.std(axis=0).mean()
    f = np.array([2.0, 1.0])
    needed = 2 * 1.05 * np.outer(f, f) / tau**2
    covariance = np.linalg.inv(needed + np.eye(2) / spread**2)
    for row in range(2):
        mean = center + covariance @ needed @ (theta[row] - center)
        assert np.allclose(got.mean[row, 0].numpy(), mean, atol=1e-5)
        factor = got.factor[row, 0].double().numpy()
        assert np.allclose(factor @ factor.T, covariance, atol=1e-5)


@pytest.mark.parametrize("spec", [discrete_spec(2), box_spec(2, stochastic=True)])
def test_refused_policies(spec: Any) -> None:
    assert not can_relabel(spec)
    assert can_relabel(box_spec(2))
    data = make_data(spec, policies=4)
    with pytest.raises(IncompatibleError, match="deterministic") as caught:
        relabel(data, 0.1)
    assert caught.value.exit_code == 5
    fit = start_fit(data, fit_settings("psvf", relabel=0.1), CPU)
    with pytest.raises(IncompatibleError):
        training_set(fit, data, CPU)

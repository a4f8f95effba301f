from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from libtools import (
    box_spec,
    discrete_spec,
    fill,
    make_data,
    make_episode,
    make_policies,
)
from pbvf_offline.critics import CRITICS, Critic, CriticConfig, make_critic
from pbvf_offline.critics.network import SplitMLP
from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.policies.batch import network_output
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Trajectories, stack_episodes

CPU = torch.device("cpu")
KINDS = ("pssvf", "psvf", "pavf")


def critic_of(kind: str, spec: Any = None, seed: int = 0, **kwargs: Any) -> Critic:
    spec = box_spec(2, (3,), 2) if spec is None else spec
    values: dict[str, Any] = {"hidden": (6, 5), "activation": "tanh", **kwargs}
    return make_critic(kind, CriticConfig(spec, **values), np.random.default_rng(seed))


def prepare(critic: Critic, data: Trajectories, held_out: Any = None) -> Any:
    normaliser = Normaliser.identity(data.policies.spec.obs_dim)
    held = np.zeros(len(data.policies), bool) if held_out is None else held_out
    return critic.training_set(data, normaliser, held, CPU)


def two_steps(rewards: list[float], end: str) -> Trajectories:
    """One linear policy a = tanh(2 s + 1) of one observation, states 1, 2, 3."""
    spec = box_spec(1, dtype="float64")
    theta = np.array([[2.0, 1.0]], np.float32)
    policies = Policies(spec, theta, np.zeros((1, 1)), np.ones((1, 1)))
    episode = make_episode(policies, [0], [2], rewards=rewards, end=end)
    states = np.array([[1.0], [2.0], [3.0]])
    actions = np.array([[0.5], [-0.25]])  # as executed; not what the policy would do
    return stack_episodes(
        spec, [dataclasses.replace(episode, observations=states, actions=actions)]
    )


def test_pssvf_loss_by_hand() -> None:
    # V(theta) = 3 relu(theta . (1, -1) + 0.5) - 1 = 3 * 1.5 - 1 = 3.5 for theta = (2, 1).
    # Returns 4 + 0.5 * 2 = 5 (gamma 0.5): loss (5 - 3.5)^2 = 2.25.
    data = two_steps([4.0, 2.0], "terminated")
    critic = critic_of("pssvf", data.policies.spec, hidden=(1,), activation="relu", gamma=0.5)
    fill(critic, network_first_theta=[1.0, -1.0], network_first_bias=[0.5],
         network_weights_0=[3.0], network_biases_0=[-1.0])  # fmt: skip
    batch = prepare(critic, data)
    assert len(batch) == 1
    loss = critic.loss(batch, torch.tensor([0, 0]))
    assert loss.item() == pytest.approx(2.25)
    loss.backward()
    # d/d(output bias) (r - V)^2 = -2 (r - V) = -3; through the weight 3 and theta_0 = 2: -18.
    assert critic.network.biases[0].grad.tolist() == pytest.approx([-3.0])
    assert critic.network.first["theta"].grad.tolist()[0] == pytest.approx([-18.0, -9.0])


def psvf_by_hand(n_step: int, end: str) -> tuple[Critic, Any]:
    # V(s, theta) = 2 relu(theta . (1, -1) + s) + 1 = 2 (1 + s) + 1: 5, 7, 9 at s = 1, 2, 3.
    data = two_steps([4.0, 2.0], end)
    critic = critic_of(
        "psvf", data.policies.spec, hidden=(1,), activation="relu", gamma=0.5, n_step=n_step
    )
    fill(critic, network_first_theta=[1.0, -1.0], network_first_obs=[1.0],
         network_first_bias=[0.0], network_weights_0=[2.0], network_biases_0=[1.0])  # fmt: skip
    return critic, prepare(critic, data)


@pytest.mark.parametrize(
    ("n_step", "end", "target0", "target1"),
    [
        # 4 + 0.5 * 7 = 7.5 and 2 + 0.5 * 9 = 6.5; a time limit does not stop bootstrapping.
        (1, "truncated", 7.5, 6.5),
        (1, "cut", 7.5, 6.5),
        (1, "terminated", 7.5, 2.0),
        # 4 + 0.5 * 2 + 0.25 * 9 = 7.25.
        (2, "truncated", 7.25, 6.5),
        (2, "terminated", 5.0, 2.0),
    ],
)
def test_psvf_loss_by_hand(n_step: int, end: str, target0: float, target1: float) -> None:
    critic, batch = psvf_by_hand(n_step, end)
    for index, value, target in ((0, 5.0, target0), (1, 7.0, target1)):
        loss = critic.loss(batch, torch.tensor([index]))
        assert loss.item() == pytest.approx((value - target) ** 2)
        critic.zero_grad()
        loss.backward()
        # The target is a constant: d loss / d(output bias) = 2 (V - target), not
        # 2 (V - target) (1 - gamma).
        slope = 2 * (value - target)
        assert critic.network.biases[0].grad.item() == pytest.approx(slope)
        # d V / d(theta weight) = 2 theta, with theta = (2, 1).
        weight = critic.network.first["theta"].grad[0].tolist()
        assert weight == pytest.approx([4 * slope, 2 * slope])
    both = critic.loss(batch, torch.tensor([0, 1]))
    assert both.item() == pytest.approx(((5 - target0) ** 2 + (7 - target1) ** 2) / 2)


def test_pavf_loss_by_hand() -> None:
    # Q(s, a, theta) = 2 relu(theta . (1, -1) + s + 3 a) + 1 with executed a = 0.5, -0.25:
    # Q(1, 0.5) = 2 (1 + 1 + 1.5) + 1 = 8, Q(2, -0.25) = 2 (1 + 2 - 0.75) + 1 = 5.5.
    # The target takes the policy's own action pi(s') = tanh(2 s' + 1).
    data = two_steps([4.0, 2.0], "truncated")
    critic = critic_of("pavf", data.policies.spec, hidden=(1,), activation="relu", gamma=0.5)
    fill(critic, network_first_theta=[1.0, -1.0], network_first_obs=[1.0],
         network_first_action=[3.0], network_first_bias=[0.0],
         network_weights_0=[2.0], network_biases_0=[1.0])  # fmt: skip
    batch = prepare(critic, data)

    def ahead(s: float) -> float:
        return 2 * (1 + s + 3 * math.tanh(2 * s + 1)) + 1

    for index, value, target in ((0, 8.0, 4 + 0.5 * ahead(2)), (1, 5.5, 2 + 0.5 * ahead(3))):
        loss = critic.loss(batch, torch.tensor([index]))
        assert loss.item() == pytest.approx((value - target) ** 2, rel=1e-6)
        critic.zero_grad()
        loss.backward()
        slope = 2 * (value - target)
        assert critic.network.biases[0].grad.item() == pytest.approx(slope, rel=1e-6)
        # d Q / d(action weight) = 2 a with the executed action.
        action = (0.5, -0.25)[index]
        got = critic.network.first["action"].grad.item()
        assert got == pytest.approx(slope * 2 * action, rel=1e-6)
        weight = critic.network.first["theta"].grad[0].tolist()
        assert weight == pytest.approx([4 * slope, 2 * slope], rel=1e-6)


def test_actions_are_seen_in_the_policys_unit() -> None:
    spec = box_spec(2, act_dim=1, low=1.0, high=5.0)
    policies = make_policies(spec, 1)
    episode = make_episode(policies, [0], [3])
    actions = np.array([[1.0], [4.0], [5.0]], np.float32)
    data = stack_episodes(spec, [dataclasses.replace(episode, actions=actions)])
    batch = prepare(critic_of("pavf", spec), data)
    assert batch.action[:].flatten().tolist() == [-1.0, 0.5, 1.0]


def test_training_set_is_shown_in_the_critics_normaliser() -> None:
    data = make_data(box_spec(2), policies=3, mean=[1.0, -1.0], std=[2.0, 0.5])
    critic = critic_of("psvf", data.policies.spec)
    normaliser = Normaliser(np.array([0.5, 0.0]), np.array([1.0, 3.0]))
    batch = critic.training_set(data, normaliser, np.zeros(3, bool), CPU)
    want = normaliser.apply(data.observations).astype(np.float32)
    assert np.array_equal(batch.obs[:].numpy(), want)
    # The policy's output in a state is the same in both normalisers.
    out = network_output(data.policies.spec, batch.theta, batch.obs[:])
    for k in range(3):
        for row in range(5):
            want_out = data.policies.actor(k).logits(data.observations[row])
            assert out[k, row].tolist() == pytest.approx(want_out.tolist(), abs=1e-5)


# --- what actors ascend ---------------------------------------------------------------------


# --- the network ----------------------------------------------------------------------------


def test_network_is_initialised_like_nn_linear() -> None:
    # Uniform on +-1/sqrt(in), where in counts all parts of the first layer.
    network = SplitMLP({"theta": 60, "obs": 40}, (200, 100), "relu", np.random.default_rng(0))
    for tensor, fan_in in (
        (network.first["theta"], 100),
        (network.first["obs"], 100),
        (network.first_bias, 100),
        (network.weights[0], 200),
        (network.biases[0], 200),
        (network.weights[1], 100),
    ):
        bound = 1 / math.sqrt(fan_in)
        assert tensor.dtype == torch.float32
        assert tensor.abs().max().item() <= bound * (1 + 1e-6)
        assert tensor.abs().max().item() > 0.9 * bound
        assert tensor.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.2)
    assert not torch.equal(network.first["theta"][:, :40], network.first["obs"])


# --- refusals -------------------------------------------------------------------------------


def test_pavf_refuses_discrete_deterministic_policies() -> None:
    spec = discrete_spec(2)
    with pytest.raises(IncompatibleError, match="psvf or pssvf") as caught:
        critic_of("pavf", spec)
    assert caught.value.exit_code == 5


def test_unknown_kind() -> None:
    assert set(KINDS) <= set(CRITICS)
    with pytest.raises(UsageError, match="pssvf"):
        critic_of("ddpg")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden": ()}, "hidden"),
        ({"hidden": (0,)}, "hidden"),
        ({"activation": "gelu"}, "gelu"),
        ({"gamma": 1.5}, "gamma"),
        ({"gamma": -0.1}, "gamma"),
        ({"gamma": float("nan")}, "gamma"),
        ({"reward": "cooked"}, "cooked"),
        ({"n_step": 0}, "n_step"),
    ],
)
def test_refused_configurations(change: dict[str, Any], words: str) -> None:
    values: dict[str, Any] = {"spec": box_spec(), "hidden": (4,), **change}
    with pytest.raises(UsageError, match=words):
        CriticConfig(**values)


def test_configuration_round_trip_and_damage() -> None:
    config = CriticConfig(box_spec(), (4, 5), "tanh", 0.5, "without-survival", 7)
    data = config.to_dict()
    assert CriticConfig.from_dict(data, "file") == config
    for change, where in (({"gamma": 2}, "file"), ({"spec": {}}, "file: spec")):
        with pytest.raises(DamagedError) as caught:
            CriticConfig.from_dict({**data, **change}, "file")
        assert caught.value.where == where


def test_a_training_set_of_another_critic_is_a_programming_error() -> None:
    data = make_data(box_spec(2, (3,), 2), policies=4)
    monte_carlo = prepare(critic_of("pssvf"), data)
    with pytest.raises(ValueError, match="no transitions"):
        critic_of("psvf").loss(monte_carlo, torch.tensor([0]))
    transitions = prepare(critic_of("psvf"), data)
    with pytest.raises(ValueError, match="no actions"):
        critic_of("pavf").loss(transitions, torch.tensor([0]))


# --- options beyond the paper ---------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_standardising_is_a_change_of_coordinates(kind: str) -> None:
    spec = box_spec(2, (3,), 2)
    theta = make_data(spec, policies=30).policies.theta * 3 + 1
    plain, shown = critic_of(kind), critic_of(kind, standardise=True)
    points, states = torch.from_numpy(theta[:4]), torch.randn(5, 2)
    if kind != "pavf":  # without data taken in, nothing changes
        assert torch.equal(plain.objective(points, states), shown.objective(points, states))
    shown.standardise_to(theta)
    center, scale = theta.astype(float).mean(axis=0), theta.astype(float).std(axis=0)
    assert np.allclose(shown.theta_center.numpy(), center, atol=1e-5)
    assert np.allclose(shown.theta_scale.numpy(), scale, rtol=1e-5)
    # The same first layer on (theta - center) / scale.
    want = plain.network.part("theta", (points - shown.theta_center) / shown.theta_scale)
    assert torch.equal(shown.theta_part(points), want)


def test_standardising_a_direction_without_spread() -> None:
    critic = critic_of("psvf", box_spec(2), standardise=True)
    theta = np.zeros((10, 3), np.float32)
    theta[:, 0] = np.linspace(-1, 1, 10)
    critic.standardise_to(theta)
    assert torch.all(critic.theta_scale > 0)
    assert torch.all(torch.isfinite(critic.theta_part(torch.from_numpy(theta))))
    critic.standardise_to(np.ones((3, 3), np.float32))
    assert torch.all(critic.theta_scale > 0)


@pytest.mark.parametrize("kind", ["psvf", "pavf"])
def test_bounded_targets_by_hand(kind: str) -> None:
    critic = critic_of(kind)
    batch = prepare(critic, make_data(critic.config.spec, policies=6))
    index = torch.arange(len(batch))
    ahead = torch.linspace(-9, 9, len(batch))
    free = batch.value[:] + batch.discount[:] * ahead
    assert torch.equal(batch.bootstrap(index, ahead), free)
    bounded = dataclasses.replace(batch, bounds=(-1.0, 2.0))
    want = batch.value[:] + batch.discount[:] * ahead.clamp(-1, 2)
    assert torch.equal(bounded.bootstrap(index, ahead), want)
    assert not torch.equal(free, want)


@pytest.mark.parametrize("kind", KINDS)
def test_in_bfloat16_gradients_are_those_of_float32_to_two_digits(kind: str) -> None:
    critic = critic_of(kind, hidden=(64, 64), activation="relu")
    rng = np.random.default_rng(1)
    theta = torch.from_numpy(rng.normal(size=(5, critic.config.spec.size)).astype(np.float32))
    states = torch.from_numpy(rng.normal(size=(200, 2)).astype(np.float32))
    value, gradient = critic.objective_and_gradient(theta, states)
    with critic.network.in_precision("bfloat16"):
        low_value, low = critic.objective_and_gradient(theta, states)
    assert low.dtype == torch.float32
    assert 0 < (low - gradient).norm() < 0.02 * gradient.norm()
    assert 0 < (low_value - value).norm() < 0.02 * value.norm()
    again, _ = critic.objective_and_gradient(theta, states)
    assert torch.equal(again, value)

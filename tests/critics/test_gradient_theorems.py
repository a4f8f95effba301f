"""What actors climb: gradients against finite differences, and against the LQR's closed form."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from libtools import box_spec, lqr_return, online_settings
from pbvf_offline.critics import Critic, CriticConfig, TrainingSet, make_critic
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.online.loop import Hooks, train
from pbvf_offline.online.training import Training, start_training
from pbvf_offline.policies.families.mlp import TANH_MLP
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec

KINDS = ("pssvf", "psvf", "pavf")
CPU = torch.device("cpu")
H = 1e-6

SPECS = {
    "linear": box_spec(3),
    "linear, 3 actions, [-2, 0.5]": box_spec(3, (), 3, -2.0, 0.5),
    "linear, unsquashed": box_spec(2, (), 2, -9.0, 9.0, squash="none"),
    "[8,8]": box_spec(3, (8, 8)),
    "[8,8], 2 actions, [1, 5]": box_spec(2, (8, 8), 2, 1.0, 5.0),
    "[8,8], unsquashed": box_spec(2, (8, 8), 1, -9.0, 9.0, squash="none"),
}
specs = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())


# --- an independent reference: numpy, one concatenated input ---------------------------------


def critic_output(critic: Critic, *inputs: NDArray[Any]) -> NDArray[Any]:
    """The critic's MLP on rows of concatenated inputs (S, theta + obs + action)."""
    network, activation = critic.network, critic.config.activation
    x = np.concatenate(inputs, axis=1)
    weight = np.concatenate([w.detach().numpy() for w in network.first.values()], axis=1)
    bias = network.first_bias.detach().numpy()
    for w, b in zip(network.weights, network.biases, strict=True):
        x = x @ weight.T + bias
        x = np.maximum(x, 0.0) if activation == "relu" else np.tanh(x)
        weight, bias = w.detach().numpy(), b.detach().numpy()
    return (x @ weight.T + bias)[:, 0]


def policy_action(spec: PolicySpec, theta: NDArray[Any], states: NDArray[Any]) -> NDArray[Any]:
    """The deterministic action (S, act_dim) in the policy's unit."""
    layers = TANH_MLP.layers(spec, theta)
    x = states
    for k, (weight, bias) in enumerate(layers):
        x = x @ weight.T + bias
        if k < len(layers) - 1 or spec.squash == "tanh":
            x = np.tanh(x)
    return x


def objective(
    critic: Critic, acting: NDArray[Any], seen: NDArray[Any], states: NDArray[Any]
) -> float:
    """Mean over states of the critic, with ``acting`` choosing actions and ``seen`` its input."""
    thetas = np.tile(seen, (len(states), 1))
    if critic.kind.name == "pssvf":
        value = critic_output(critic, thetas[:1])
    elif critic.kind.name == "psvf":
        value = critic_output(critic, thetas, states)
    else:
        value = critic_output(
            critic, thetas, states, policy_action(critic.config.spec, acting, states)
        )
    return float(value.mean())


def slope(function: Any, theta: NDArray[Any]) -> NDArray[Any]:
    """Central differences of a function of theta (D,)."""
    steps = H * np.eye(len(theta))
    return np.array([(function(theta + h) - function(theta - h)) / (2 * H) for h in steps])


def make(kind: str, spec: PolicySpec, activation: str = "tanh", seed: int = 0) -> Critic:
    config = CriticConfig(spec, (7, 6), activation)
    critic = make_critic(kind, config, np.random.default_rng(seed)).double()
    with torch.no_grad():  # fresh weights make a critic that is nearly constant
        for parameter in critic.parameters():
            parameter.mul_(3.0)
    return critic


def replayed(critic: Critic, seed: int = 0, rows: int = 9) -> tuple[Tensor, TrainingSet, Tensor]:
    """A learned policy, a replay of other policies' entries, and a draw with repeats."""
    spec, rng = critic.config.spec, np.random.default_rng(seed)

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(0, 0.7, shape))

    index = torch.arange(rows)
    batch = TrainingSet(
        entry=index,
        theta=normal(4, spec.size),
        policy=torch.from_numpy(rng.integers(4, size=rows)),
        value=normal(rows),
    )
    if critic.kind.name != "pssvf":
        batch = dataclasses.replace(
            batch,
            obs=normal(2 * rows, spec.obs_dim),
            obs_row=torch.from_numpy(rng.permutation(2 * rows)[:rows]),
            boot_row=torch.from_numpy(rng.integers(2 * rows, size=rows)),
            discount=torch.full((rows,), 0.9, dtype=torch.float64),
            action=normal(rows, spec.actions.dim),
        )
    drawn = torch.tensor([0, 4, 4, rows - 1, 2])
    return normal(1, spec.size), batch, drawn


def states_of(batch: TrainingSet, drawn: Tensor) -> NDArray[Any]:
    if batch.obs is None or batch.obs_row is None:
        return np.zeros((1, 0))
    return batch.obs[batch.obs_row[drawn]].numpy()


# --- finite differences ----------------------------------------------------------------------


@specs
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_actor_step_is_the_gradient_of_the_critics_objective(
    kind: str, activation: str, spec: PolicySpec
) -> None:
    critic = make(kind, spec, activation)
    theta, batch, drawn = replayed(critic)
    states, at = states_of(batch, drawn), theta[0].numpy()
    step = critic.actor_step(theta, batch, drawn)
    assert step.objective.item() == pytest.approx(objective(critic, at, at, states), abs=1e-12)
    want = slope(lambda t: objective(critic, t, t, states), at)
    assert np.abs(want).max() > 0.02
    assert np.allclose(step.gradient[0].numpy(), want, rtol=0, atol=1e-7)
    assert step.effective_samples is None


@specs
def test_the_pavfs_gradient_is_the_sum_of_its_two_terms(spec: PolicySpec) -> None:
    critic = make("pavf", spec)
    theta, batch, drawn = replayed(critic)
    states, at = states_of(batch, drawn), theta[0].numpy()
    through_action = slope(lambda t: objective(critic, t, at, states), at)
    through_input = slope(lambda t: objective(critic, at, t, states), at)
    biased = critic.actor_step(theta, batch, drawn, biased=True)
    whole = critic.actor_step(theta, batch, drawn)
    assert np.allclose(biased.gradient[0].numpy(), through_action, rtol=0, atol=1e-7)
    both = through_action + through_input
    assert np.allclose(whole.gradient[0].numpy(), both, rtol=0, atol=2e-7)
    # Both count, so that neither test could pass without its term.
    assert np.linalg.norm(through_action) > 0.05 * np.linalg.norm(both)
    assert np.linalg.norm(through_input) > 0.05 * np.linalg.norm(both)
    assert biased.objective.item() == whole.objective.item()


# --- the LQR's closed form -------------------------------------------------------------------

ENV = make_env(EnvConfig("LQR-v0"))
SPEC = spec_for_env(ENV, (), squash="none")
GAMMA = 0.99


def lqr_value(weight: Any, bias: Any, state: Any, gamma: float, steps: float = np.inf) -> Any:
    """Discounted return of ``a = w s + b`` from ``state`` for so many steps, numpy or torch."""
    m, fixed = 1 + weight, -bias / weight
    away = state - fixed

    def geometric(x: Any) -> Any:
        return (1 - (0 if np.isinf(steps) else x**steps)) / (1 - x)

    return -(
        fixed**2 * (geometric(gamma) if gamma < 1 else steps)
        + 2 * fixed * away * geometric(gamma * m)
        + away**2 * (1 + weight**2) * geometric(gamma * m**2)
    )


class ExactLQR(nn.Module):
    """The LQR's own value functions in the place of a critic's network.

    What :meth:`part` adds up is (w, b, s, a); :meth:`head` is V(theta) (undiscounted, 50
    steps), V(s, theta) or Q(s, a, theta) (discounted, without end).
    """

    def __init__(self, kind: str, wrong: float = 0.0) -> None:
        super().__init__()
        self.kind, self.wrong = kind, wrong

    def part(self, name: str, x: Tensor) -> Tensor:
        start = {"theta": 0, "obs": 2, "action": 3}[name]
        return nn.functional.pad(x, (start, 4 - start - x.shape[-1]))

    def head(self, first: Tensor) -> Tensor:
        w, b, s, a = first.unbind(-1)
        if self.kind == "pssvf":
            return lqr_value(w, b, torch.ones_like(w), 1.0, 50)
        if self.kind == "psvf":
            return lqr_value(w, b, s, GAMMA) + self.wrong * s
        return -(s**2) - a**2 + GAMMA * lqr_value(w, b, s + a, GAMMA) + self.wrong * s


def exact_critic(kind: str, wrong: float = 0.0) -> Critic:
    critic = make_critic(kind, CriticConfig(SPEC, (2,), gamma=GAMMA), np.random.default_rng(0))
    critic.network = ExactLQR(kind, wrong)  # type: ignore[assignment]
    return critic.double()


def collected(kind: str, gamma: float, episodes: int = 40) -> tuple[Training, list[Any]]:
    """The replay of perturbed policies around a good one, without any update."""
    settings = online_settings(
        kind,
        gamma=gamma,
        sigma=0.25,
        hidden=(2,),
        update_every=None,
        critic_updates=0,
        actor_updates=0,
        seed=3,
        buffer_size=100_000,
        normalization="none",
        initial_theta=(-0.8, 0.1),
    )
    training = start_training(SPEC, settings, obs_dtype=np.float64, device=CPU)
    seen: list[Any] = []
    hooks = Hooks(episode=lambda training, record, episode: seen.append(episode), keep=True)
    train(training, ENV, 50 * episodes, hooks)
    assert len(seen) == episodes
    return training, seen


@pytest.mark.parametrize("gamma", [1.0, 0.99, 0.5])
def test_stored_monte_carlo_targets_are_the_closed_form(gamma: float) -> None:
    training, episodes = collected("pssvf", gamma)
    batch = training.replay.training_set()
    assert len(batch) == 40
    inside = 0
    for entry, episode in enumerate(episodes):
        theta = batch.theta[batch.policy[entry]].double().numpy()
        assert np.array_equal(theta, episode.theta[0].astype(float))
        if np.abs(episode.observations).max() < 2:  # at the bounds states are clipped
            inside += 1
            want = lqr_return(theta[:1], theta[1:], 50, gamma)[0]
            assert batch.value[entry].item() == pytest.approx(want, rel=1e-6)
    assert inside > 25
    assert len(set(batch.value[:40].tolist())) == 40


@pytest.mark.parametrize("kind", ["psvf", "pavf"])
def test_the_true_value_function_is_the_fixed_point_of_td(kind: str) -> None:
    training, episodes = collected(kind, GAMMA)
    whole = training.replay.training_set()
    # The closed form holds for policies that stay inside the bounds.
    inside = [np.abs(e.observations).max() < 2 for e in episodes]
    index = torch.from_numpy(np.flatnonzero(np.repeat(inside, 50)))
    assert len(index) > 25 * 50
    assert torch.all(whole.discount[whole.entry] == np.float32(GAMMA))  # a time limit is no end
    right = exact_critic(kind).loss(whole, index).item()
    wrong = exact_critic(kind, wrong=0.01).loss(whole, index).item()
    assert right < 1e-9  # the replay is float32
    assert wrong > 1e5 * right
    assert wrong > 1e-6


@pytest.mark.parametrize("theta", [(-0.8, 0.1), (-0.5, -0.2), (-1.4, 0.3)])
def test_with_exact_critics_actors_follow_the_true_gradient(theta: tuple[float, float]) -> None:
    states = np.array([1.0, -0.7, 0.2, 0.5])
    at = np.array(theta)
    batch = TrainingSet(
        entry=torch.arange(4),
        theta=torch.zeros(1, 2),
        policy=torch.zeros(4, dtype=torch.int64),
        value=torch.zeros(4),
        obs=torch.from_numpy(states[:, None]),
        obs_row=torch.arange(4),
        boot_row=torch.arange(4),
    )

    def gradient(kind: str, **how: Any) -> NDArray[Any]:
        given = torch.from_numpy(at[None])
        step = exact_critic(kind).actor_step(given, batch, torch.arange(4), **how)
        return step.gradient[0].numpy()

    # PSSVF: the return from the start state itself.
    start = slope(lambda t: float(lqr_return(t[:1], t[1:], 50)[0]), at)
    assert gradient("pssvf") == pytest.approx(start, rel=1e-6)
    # PSVF, and PAVF with both of its terms: the mean discounted return over the states.
    mean = slope(lambda t: float(lqr_value(t[0], t[1], states, GAMMA).mean()), at)
    assert gradient("psvf") == pytest.approx(mean, rel=1e-6)
    assert gradient("pavf") == pytest.approx(mean, rel=1e-6)
    # Its first term alone is something else.
    biased = gradient("pavf", biased=True)
    assert np.linalg.norm(biased - mean) > 0.1 * np.linalg.norm(mean)

"""The PAVF of stochastic policies: its gradient against exact expectations, its loss by hand."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from libtools import box_spec, discrete_spec, fill, fit_settings, make_data
from pbvf_offline.critics import CriticConfig, TrainingSet, make_critic
from pbvf_offline.critics.pavf import PAVF
from pbvf_offline.critics.psvf import action_input
from pbvf_offline.critics.stochastic_pavf import StochasticPAVF, _drawn, _fixed_draws
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.fit.loop import advance, start_fit, training_set
from pbvf_offline.policies.batch import log_prob, network_output
from pbvf_offline.policies.spec import PolicySpec

CPU = torch.device("cpu")
DISCRETE = discrete_spec(2, (4,), n=3, start=5, stochastic=True)
BOX = box_spec(2, (4,), 2, -0.5, 2.0, stochastic=True)
PLAIN = box_spec(2, (), 1, -9.0, 9.0, squash="none", stochastic=True)
SPECS = pytest.mark.parametrize("spec", [DISCRETE, BOX, PLAIN], ids=["discrete", "box", "plain"])


def critic_of(spec: PolicySpec, *, loud: float = 3.0, **kwargs: Any) -> StochasticPAVF:
    """A critic in float64 with weights large enough to tell inputs apart."""
    values: dict[str, Any] = {"hidden": (7, 6), "activation": "tanh", **kwargs}
    critic = make_critic("pavf", CriticConfig(spec, **values), np.random.default_rng(0)).double()
    assert isinstance(critic, StochasticPAVF)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.mul_(loud)
    return critic


def normal(seed: int, *shape: int, scale: float = 0.7) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, scale, shape))


def replay_of(
    spec: PolicySpec, obs: Tensor, sample: Tensor, theta: Tensor, policy: Tensor | None = None
) -> TrainingSet:
    """Steps from given states with given samples, whose rewards do not matter."""
    rows = torch.arange(len(obs))
    if spec.is_continuous:
        action = torch.tanh(sample) if spec.squash == "tanh" else sample
    else:
        action = nn.functional.one_hot(sample, spec.actions.outputs).double()
    return TrainingSet(
        entry=rows,
        theta=theta,
        policy=torch.zeros_like(rows) if policy is None else policy,
        value=torch.zeros(len(rows), dtype=torch.float64),
        obs=obs,
        obs_row=rows,
        boot_row=rows,
        discount=torch.zeros(len(rows), dtype=torch.float64),
        action=action,
        sample=sample,
    )


def q_of(critic: StochasticPAVF, seen: Tensor, obs: Tensor, action: Tensor) -> Tensor:
    """Q(s, a, theta) of one theta (1, D) and rows of states and actions, written out."""
    network = critic.network
    parts = network.part("obs", obs) + network.part("action", action)
    return network.head(network.part("theta", seen) + parts)


def gradient_of(function: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    leaf = theta.clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf)[0]


# --- the estimator against exact expectations -----------------------------------------------

STATES = normal(1, 4, 2)
WEIGHT = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)  # how often each state comes
TARGET = normal(2, 1, DISCRETE.size)
BEHAVIOUR = TARGET + normal(3, 1, DISCRETE.size, scale=0.4)


def probabilities(theta: Tensor) -> Tensor:
    return torch.softmax(network_output(DISCRETE, theta, STATES), dim=-1)[0]


def exact(critic: StochasticPAVF, biased: bool) -> Callable[[Tensor], Tensor]:
    """Sum over states and actions of d(s) pi_theta(a|s) Q(s, a, theta)."""

    def objective(theta: Tensor) -> Tensor:
        seen = TARGET if biased else theta
        each = [
            q_of(critic, seen, STATES, torch.eye(3, dtype=torch.float64)[[a] * 4]) for a in range(3)
        ]
        return (WEIGHT[:, None] * probabilities(theta) * torch.stack(each, dim=1)).sum()

    return objective


def every_pair(behaviour: Tensor) -> tuple[TrainingSet, Tensor]:
    """All (s, a) as replayed steps of one behaviour, and how often each is drawn, (12,)."""
    pairs = torch.tensor(list(itertools.product(range(4), range(3))))
    chance = (WEIGHT[:, None] * probabilities(behaviour)).flatten()
    return replay_of(DISCRETE, STATES[pairs[:, 0]], pairs[:, 1], behaviour), chance


@pytest.mark.parametrize("biased", [False, True])
def test_the_estimators_expectation_is_the_exact_gradient(biased: bool) -> None:
    critic = critic_of(DISCRETE)
    want = gradient_of(exact(critic, biased), TARGET)
    for behaviour in (BEHAVIOUR, TARGET, normal(9, 1, DISCRETE.size)):
        batch, chance = every_pair(behaviour)
        steps = [
            critic.actor_step(TARGET, batch, torch.tensor([k]), biased=biased) for k in range(12)
        ]
        mean = sum(c * step.gradient for c, step in zip(chance, steps, strict=True))
        assert torch.allclose(mean, want, rtol=0, atol=1e-13)
        value = sum(c * step.objective for c, step in zip(chance, steps, strict=True))
        assert value.item() == pytest.approx(exact(critic, biased)(TARGET).item(), abs=1e-13)
    other = gradient_of(exact(critic, not biased), TARGET)
    assert (want - other).norm() > 0.1 * want.norm()


def test_a_batch_is_the_mean_of_its_entries() -> None:
    critic = critic_of(BOX)
    obs, acted = normal(1, 6, 2), normal(2, 2, BOX.size)
    batch = replay_of(BOX, obs, normal(3, 6, 2), acted, torch.tensor([0, 0, 1, 1, 1, 0]))
    target = acted.mean(dim=0, keepdim=True)
    index = torch.tensor([5, 0, 0, 3])
    each = [critic.actor_step(target, batch, k[None]) for k in index]
    whole = critic.actor_step(target, batch, index)
    mean = torch.stack([step.gradient for step in each]).mean(dim=0)
    assert torch.allclose(whole.gradient, mean, rtol=1e-12)
    value = torch.stack([step.objective for step in each]).mean(dim=0)
    assert torch.allclose(whole.objective, value, rtol=1e-12)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("squash", ["tanh", "none"])
def test_continuous_expectation_by_quadrature(squash: Any, biased: bool) -> None:
    # Both sides are integrals over the Gaussian sample u, of the behaviour and of the target.
    spec = box_spec(2, (), 1, -1.0, 3.0, squash=squash, stochastic=True)
    critic = critic_of(spec, loud=1.5)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    nodes, weights = torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())
    state = normal(1, 1, 2)
    behaviour = normal(2, 1, spec.size, scale=0.5)
    target = behaviour + 0.15

    def samples(theta: Tensor) -> Tensor:
        return network_output(spec, theta, state)[0] + torch.exp(theta[:, :1]) * nodes[:, None]

    def objective(theta: Tensor) -> Tensor:
        sample = samples(theta)
        action = torch.tanh(sample) if squash == "tanh" else sample
        seen = target if biased else theta
        return (weights * q_of(critic, seen, state.expand(80, -1), action)).sum()

    batch = replay_of(spec, state.expand(80, -1), samples(behaviour).detach(), behaviour)
    steps = [critic.actor_step(target, batch, torch.tensor([k]), biased=biased) for k in range(80)]
    mean = sum(w * step.gradient for w, step in zip(weights, steps, strict=True))
    want = gradient_of(objective, target)
    assert want.norm() > 0.02
    assert torch.allclose(mean, want, rtol=0, atol=1e-5 * want.norm().item())
    # The leading entry is log_std: it is climbed like the rest.
    assert want[0, 0].abs() > 1e-4


# --- with the true action values: the gradient of J_b itself --------------------------------


class ExactMDP(nn.Module):
    """The action values of a small MDP, solved for theta, in the place of a critic's network."""

    gamma = 0.8

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(11)
        self.move = torch.from_numpy(rng.dirichlet(np.ones(4), size=(4, 3)))  # (s, a, s')
        self.reward = torch.from_numpy(rng.normal(0, 1, (4, 3)))
        self.size = DISCRETE.size

    def values(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """V (4,) and Q (4, 3) of one theta (1, D)."""
        policy = probabilities(theta)
        move = torch.einsum("sa,sat->st", policy, self.move)
        eye = torch.eye(4, dtype=torch.float64)
        value = torch.linalg.solve(eye - self.gamma * move, (policy * self.reward).sum(dim=1))
        return value, self.reward + self.gamma * self.move @ value

    def part(self, name: str, x: Tensor) -> Tensor:
        if name == "obs":  # states by number
            x = (x.unsqueeze(-2) == STATES).all(dim=-1).double()
        start = {"theta": 0, "obs": self.size, "action": self.size + 4}[name]
        return nn.functional.pad(x, (start, self.size + 7 - start - x.shape[-1]))

    def head(self, first: Tensor) -> Tensor:
        theta, state, action = first.split([self.size, 4, 3], dim=-1)
        _, q = self.values(theta[:1])
        return (state @ q * action).sum(dim=-1)


def test_with_exact_action_values_the_gradient_is_that_of_the_objective() -> None:
    critic = critic_of(DISCRETE)
    mdp = ExactMDP()
    critic.network = mdp  # type: ignore[assignment]

    def objective(theta: Tensor) -> Tensor:
        return WEIGHT @ mdp.values(theta)[0]

    batch, chance = every_pair(BEHAVIOUR)
    found = []
    for biased in (False, True):
        steps = [
            critic.actor_step(TARGET, batch, torch.tensor([k]), biased=biased) for k in range(12)
        ]
        found.append(sum(c * s.gradient for c, s in zip(chance, steps, strict=True)))
    want = gradient_of(objective, TARGET)
    assert torch.allclose(found[0], want, rtol=0, atol=1e-12)
    assert (found[1] - want).norm() > 0.1 * want.norm()
    # And the gradient of the objective is what it says, by finite differences.
    for d in range(0, DISCRETE.size, 5):
        h = torch.zeros_like(TARGET)
        h[0, d] = 1e-6
        slope = (objective(TARGET + h) - objective(TARGET - h)) / 2e-6
        assert want[0, d].item() == pytest.approx(slope.item(), abs=1e-8)


# --- densities and weights ------------------------------------------------------------------


def test_log_prob_is_that_of_the_gaussian_sample() -> None:
    theta, obs, sample = normal(1, 3, BOX.size), normal(2, 5, 2), normal(3, 5, 2)
    got = log_prob(BOX, theta, obs, sample)
    assert got.shape == (3, 5)
    for k in range(3):
        mean = network_output(BOX, theta[k], obs).numpy()
        std = np.exp(theta[k, :2].numpy())
        want = stats.norm.logpdf(sample.numpy(), mean, std).sum(axis=1)
        assert np.allclose(got[k].numpy(), want, rtol=1e-12, atol=1e-12)


def test_log_prob_of_choices() -> None:
    theta, obs = normal(1, 2, DISCRETE.size), normal(2, 6, 2)
    choice = torch.tensor([0, 1, 2, 2, 1, 0])
    got = log_prob(DISCRETE, theta, obs, choice.expand(2, -1))
    logits = network_output(DISCRETE, theta, obs).numpy()
    chance = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    want = np.log(chance[:, np.arange(6), choice.numpy()])
    assert np.allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)


def weight_of(spec: PolicySpec, target: Tensor, batch: TrainingSet, index: Tensor) -> float:
    """The importance weight of one entry, seen through a critic that is 1 everywhere."""
    critic = critic_of(spec)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.zero_()
        critic.network.biases[-1].fill_(1.0)
    return critic.actor_step(target, batch, index).objective.item()


def test_the_weight_is_the_ratio_of_densities_of_the_executed_actions() -> None:
    # p(a) of a = low + (tanh(u) + 1) / 2 (high - low), from its distribution function: the
    # factor that squashing adds to a density is in both, and cancels.
    low, high = -0.5, 2.0
    acted, target = normal(1, 1, BOX.size), normal(2, 1, BOX.size)
    obs, sample = normal(3, 4, 2), normal(4, 4, 2)
    batch = replay_of(BOX, obs, sample, acted)
    executed = low + (np.tanh(sample.numpy()) + 1) / 2 * (high - low)

    def density(theta: Tensor) -> np.ndarray:
        mean = network_output(BOX, theta[0], obs).numpy()
        std = np.exp(theta[0, :2].numpy())

        def below(action: np.ndarray) -> np.ndarray:
            return stats.norm.cdf(np.arctanh(2 * (action - low) / (high - low) - 1), mean, std)

        return np.prod((below(executed + 1e-6) - below(executed - 1e-6)) / 2e-6, axis=1)

    want = density(target) / density(acted)
    got = [weight_of(BOX, target, batch, torch.tensor([k])) for k in range(4)]
    assert got == pytest.approx(want.tolist(), rel=1e-5)
    assert max(got) > 1.5 * min(got)


def two_actions(p: float) -> list[float]:
    """Parameters of a policy that ignores its one observation and chooses 0 with chance p."""
    return [0.0, 0.0, math.log(p), math.log(1 - p)]


def test_effective_samples_by_hand() -> None:
    # Weights 0.5 / 0.25 = 2 and 0.5 / 0.75 = 2/3: (8/3)^2 / (4 + 4/9) / 2 = 0.8.
    spec = discrete_spec(1, n=2, stochastic=True)
    critic = critic_of(spec)
    acted = torch.tensor([two_actions(0.25)], dtype=torch.float64)
    target = torch.tensor([two_actions(0.5)], dtype=torch.float64)
    batch = replay_of(spec, normal(1, 2, 1), torch.tensor([0, 1]), acted)
    both = torch.tensor([0, 1])
    assert weight_of(spec, target, batch, both[:1]) == pytest.approx(2.0)
    assert weight_of(spec, target, batch, both[1:]) == pytest.approx(2 / 3)
    assert critic.actor_step(target, batch, both).effective_samples == pytest.approx(0.8)
    # 2, 2 and 2/3: (14/3)^2 / (8 + 4/9) / 3 = 49/57.
    three = torch.tensor([0, 0, 1])
    assert critic.actor_step(target, batch, three).effective_samples == pytest.approx(49 / 57)
    # Both 1e-20 / 0.25, whose squares are 1.6e-39.
    rare = torch.tensor([[0.0, 0.0, math.log(1e-20), 0.0]], dtype=torch.float64)
    alike = torch.tensor([0, 0])
    assert weight_of(spec, rare, batch, both[:1]) == pytest.approx(4e-20)
    assert critic.actor_step(rare, batch, alike).effective_samples == pytest.approx(1.0)


# --- the loss -------------------------------------------------------------------------------


@pytest.mark.parametrize("squash", ["tanh", "none"])
@pytest.mark.parametrize("discount", [0.5, 0.0])
def test_continuous_loss_by_hand(squash: Any, discount: float) -> None:
    # Policy: log_std = log 0.5, mean 2 s + 1. Q = 2 relu(theta . (0, 1, -1) + s + 3 a) + 1.
    # Executed a = 0.5 in s = 1: Q = 2 (1 + 1 + 1.5) + 1 = 8. In s' = -1 the sample is
    # -1 + 0.5 * 0.8 = -0.6, so a' = tanh(-0.6) or -0.6, Q' = 2 relu(1 - 1 + 3 a') + 1 = 1;
    # with the draw 3.2 it is 0.6 and Q' = 2 * 3 a' + 1.
    spec = box_spec(1, dtype="float64", squash=squash, stochastic=True)
    critic = critic_of(spec, hidden=(1,), activation="relu")
    fill(critic, network_first_theta=[0.0, 1.0, -1.0], network_first_obs=[1.0],
         network_first_action=[3.0], network_first_bias=[0.0],
         network_weights_0=[2.0], network_biases_0=[1.0])  # fmt: skip
    theta = torch.tensor([[math.log(0.5), 2.0, 1.0]], dtype=torch.float64)
    one = torch.tensor([1.0], dtype=torch.float64)
    batch = TrainingSet(
        entry=torch.arange(1),
        theta=theta,
        policy=torch.zeros(1, dtype=torch.int64),
        value=4.0 * one,
        obs=torch.tensor([[1.0], [-1.0]], dtype=torch.float64),
        obs_row=torch.tensor([0]),
        boot_row=torch.tensor([1]),
        discount=discount * one,
        action=0.5 * one[:, None],
    )
    bent = math.tanh if squash == "tanh" else float
    for draw, ahead in ((0.8, 1.0), (3.2, 6 * bent(0.6) + 1)):
        target = 4 + discount * ahead
        noise = torch.tensor([[draw]], dtype=torch.float64)
        loss = critic.loss(batch, torch.tensor([0]), noise)
        assert loss.item() == pytest.approx((8 - target) ** 2, rel=1e-12)
        critic.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        # The target is held constant: d loss / d(output bias) = 2 (Q - target).
        assert critic.network.biases[0].grad.item() == pytest.approx(2 * (8 - target))


def test_discrete_loss_by_hand() -> None:
    # Q(s, a, theta) = relu(s + (1, 2, 5)[a]) - 1; the executed choice 6 is the second: s = 1
    # gives 2. The next choice is the largest logit plus Gumbel noise -log(-log(Phi(draw))).
    spec = discrete_spec(1, n=3, start=5, stochastic=True)
    critic = critic_of(spec, hidden=(1,), activation="relu")
    fill(critic, network_first_theta=[0.0] * 6, network_first_obs=[1.0],
         network_first_action=[1.0, 2.0, 5.0], network_first_bias=[0.0],
         network_weights_0=[1.0], network_biases_0=[-1.0])  # fmt: skip
    theta = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    batch = TrainingSet(
        entry=torch.arange(1),
        theta=theta,
        policy=torch.zeros(1, dtype=torch.int64),
        value=torch.tensor([4.0], dtype=torch.float64),
        obs=torch.tensor([[1.0], [3.0]], dtype=torch.float64),
        obs_row=torch.tensor([0]),
        boot_row=torch.tensor([1]),
        discount=torch.tensor([0.5], dtype=torch.float64),
        action=action_input(spec, np.array([6]), CPU).double(),
    )
    assert batch.action.tolist() == [[0.0, 1.0, 0.0]]
    # Equal draws leave the order to the logits (1, 0, -1). Gumbel noise of 0 is 0.367, of 1
    # 1.756, of 2 3.77: 1.367, 1.756, -0.633 and 1.367, 0.367, 2.77.
    for draws, choice in (([0, 0, 0], 0), ([0, 1, 0], 1), ([0, 0, 2], 2), ([0, 0, 1], 0)):
        target = 4 + 0.5 * (3 + (1, 2, 5)[choice] - 1)
        noise = torch.tensor([draws], dtype=torch.float64)
        loss = critic.loss(batch, torch.tensor([0]), noise)
        assert loss.item() == pytest.approx((2 - target) ** 2, rel=1e-12), draws


def test_drawn_choices_follow_the_policy() -> None:
    theta, obs = normal(1, 1, DISCRETE.size, scale=1.0), normal(2, 1, 2)
    out = network_output(DISCRETE, theta, obs)[0]
    chance = torch.softmax(out, dim=-1)[0].numpy()
    assert chance.max() > 1.5 * chance.min()
    noise = np.random.default_rng(7).standard_normal((50_000, 3), dtype=np.float32)
    # Private: the law of the draws cannot be seen in a loss, which averages over them.
    drawn = _drawn(DISCRETE, theta, out, torch.from_numpy(noise))
    assert torch.all(drawn.sum(dim=1) == 1)
    counts = drawn.sum(dim=0).numpy()
    assert stats.chisquare(counts, 50_000 * chance).pvalue > 1e-3
    assert stats.chisquare(counts, np.full(3, 50_000 / 3)).pvalue < 1e-6


def test_drawn_actions_follow_the_policy() -> None:
    theta, obs = normal(1, 1, BOX.size), normal(2, 1, 2)
    noise = torch.from_numpy(np.random.default_rng(7).standard_normal((20_000, 2)))
    out = network_output(BOX, theta, obs)[0]
    drawn = np.arctanh(_drawn(BOX, theta, out, noise).numpy())
    for dim in range(2):
        usual = stats.norm(out[0, dim].item(), math.exp(theta[0, dim].item()))
        assert stats.kstest(drawn[:, dim], usual.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03


def test_extreme_draws_stay_finite() -> None:
    noise = torch.tensor([[-40.0, 0.0, 0.0], [40.0, 0.0, 0.0], [40.0, 40.0, 40.0]])
    out = torch.tensor([[0.0, 1.0, 0.0]])
    drawn = _drawn(DISCRETE, torch.zeros(1, DISCRETE.size), out, noise)
    assert drawn.tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("spec", "shape"), [(DISCRETE, (3,)), (BOX, (2,)), (PLAIN, (1,))], ids=["discrete", "box", "1"]
)
def test_the_loss_asks_for_its_draws(spec: PolicySpec, shape: tuple[int, ...]) -> None:
    data = make_data(spec, policies=6, length=4)
    fit = start_fit(data, fit_settings("pavf", n_step=1), CPU)
    assert isinstance(fit.critic, StochasticPAVF)
    prepared = training_set(fit, data, CPU)
    assert fit.critic.noise_shape(prepared) == shape
    zeros = torch.zeros(len(prepared), *shape)
    quiet = fit.critic.loss(prepared, prepared.entry[:], zeros).item()
    assert quiet == fit.critic.loss(prepared, prepared.entry[:], zeros).item()
    assert quiet != fit.critic.loss(prepared, prepared.entry[:], zeros + torch.arange(shape[0]) + 1)
    with pytest.raises(ValueError, match="draws"):
        fit.critic.loss(prepared, prepared.entry[:])
    advance(fit, prepared, 5)
    assert fit.updates == 5


# --- values ---------------------------------------------------------------------------------


def test_values_of_discrete_policies_are_the_exact_expectation() -> None:
    critic = critic_of(DISCRETE)
    theta, states = normal(1, 3, DISCRETE.size), normal(2, 5, 2)
    values = critic.values(theta, states, critic.state_part(states))
    assert values.shape == (3, 5)
    for k in range(3):
        chance = torch.softmax(network_output(DISCRETE, theta[k], states), dim=-1)
        each = [
            q_of(critic, theta[k : k + 1], states, torch.eye(3, dtype=torch.float64)[[a] * 5])
            for a in range(3)
        ]
        want = (chance * torch.stack(each, dim=1)).sum(dim=1)
        assert torch.allclose(values[k], want, rtol=0, atol=1e-12)


def test_values_of_continuous_policies_are_a_mean_over_mirrored_draws() -> None:
    critic = critic_of(BOX)
    draws = critic._draws  # private: that the draws are mirrored shows in no single value
    assert torch.equal(draws[:8], -draws[8:])
    assert len(torch.unique(draws.abs(), dim=0)) == 8
    theta, states = normal(1, 3, BOX.size), normal(2, 5, 2)
    values = critic.values(theta, states, critic.state_part(states))
    for k in range(3):
        mean = network_output(BOX, theta[k], states)
        each = [
            q_of(critic, theta[k : k + 1], states, torch.tanh(mean + theta[k, :2].exp() * draw))
            for draw in draws
        ]
        assert torch.allclose(values[k], torch.stack(each).mean(dim=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 3, 6, 8, 17])
def test_fixed_draws_have_the_mean_and_covariance_of_the_standard_normal(dim: int) -> None:
    draws = _fixed_draws(dim).double()
    assert draws.shape == (max(16, 2 * dim), dim)
    assert draws.mean(dim=0).abs().max() < 1e-6
    covariance = draws.T @ draws / len(draws)
    assert torch.allclose(covariance, torch.eye(dim, dtype=torch.float64), rtol=0, atol=1e-5)


def test_fixed_draws_give_expectations_of_one_dimension() -> None:
    """E of tanh(0.7 + 0.6 z)^2 by Gauss-Hermite quadrature with 60 nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    want = weights @ np.tanh(0.7 + 0.6 * nodes) ** 2 / weights.sum()
    got = torch.tanh(0.7 + 0.6 * _fixed_draws(1)).square().mean().item()
    assert got == pytest.approx(want, abs=2e-3)


# --- what it accepts ------------------------------------------------------------------------


def test_which_pavf_evaluates_which_policies() -> None:
    rng = np.random.default_rng(0)
    for spec in (DISCRETE, BOX, PLAIN):
        assert type(make_critic("pavf", CriticConfig(spec, (3,)), rng)) is StochasticPAVF
    assert type(make_critic("pavf", CriticConfig(box_spec(2), (3,)), rng)) is PAVF
    with pytest.raises(IncompatibleError, match="stochastic"):
        StochasticPAVF(CriticConfig(box_spec(2), (3,)), rng)
    with pytest.raises(IncompatibleError, match="stochastic"):
        PAVF(CriticConfig(BOX, (3,)), rng)
    with pytest.raises(IncompatibleError, match="discrete"):
        make_critic("pavf", CriticConfig(discrete_spec(2), (3,)), rng)


def test_actions_as_the_network_sees_them() -> None:
    unit = action_input(BOX, np.array([[-0.5, 2.0], [0.75, 1.375]], np.float32), CPU)
    assert unit.tolist() == [[-1.0, 1.0], [0.0, 0.5]]
    assert unit.dtype == torch.float32
    assert action_input(PLAIN, np.array([[7.5]]), CPU).tolist() == [[7.5]]
    choices = action_input(DISCRETE, np.array([5, 7], np.int64), CPU)
    assert choices.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


def test_steps_without_samples_are_a_programming_error() -> None:
    critic = critic_of(BOX)
    batch = replay_of(BOX, normal(1, 3, 2), normal(2, 3, 2), normal(3, 1, BOX.size))
    with pytest.raises(ValueError, match="no samples"):
        critic.actor_step(
            normal(4, 1, BOX.size), dataclasses.replace(batch, sample=None), torch.tensor([0])
        )
    with pytest.raises(ValueError, match="no actions"):
        critic.loss(dataclasses.replace(batch, action=None), torch.tensor([0]), torch.zeros(1, 2))

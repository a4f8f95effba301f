"""How critics see policies: by theta, or by what they do in probing states."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from libtools import box_spec, discrete_spec, make_data, make_file, make_policies
from pbvf_offline.critics.trust_region import TrustRegion
from pbvf_offline.critics.views import FingerprintView, ThetaView, spread_out
from pbvf_offline.errors import DivergedError, IncompatibleError
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec

KINDS = ("pssvf", "psvf", "pavf")


def fingerprint(spec: PolicySpec, states: int = 5) -> FingerprintView:
    view = FingerprintView(spec, states)
    normaliser = Normaliser.identity(spec.obs_dim)
    view.choose_states(make_data(spec), normaliser, np.random.default_rng(0))
    return view


def thetas(spec: PolicySpec, rows: int = 3) -> torch.Tensor:
    return torch.from_numpy(make_policies(spec, rows).theta)


@pytest.mark.parametrize("stochastic", [False, True])
def test_a_fingerprint_holds_the_actions_of_each_state(stochastic: bool) -> None:
    spec = box_spec(3, (4,), 2, stochastic=stochastic)
    view, policies = fingerprint(spec), make_policies(spec, 3)
    seen = view.rows(spec, policies.theta)
    assert view.width == seen.shape[1] == 5 * 2 + 2 * stochastic
    for k, row in enumerate(seen):
        assert np.array_equal(row[: spec.log_std_size], policies.theta[k, : spec.log_std_size])
        mean = dataclasses.replace(policies.spec, stochastic=False)
        actor = dataclasses.replace(policies, spec=mean, theta=policies.params).actor(k)
        want = [actor.act(state, np.random.default_rng(0))[0] for state in view.states.numpy()]
        assert np.allclose(row[spec.log_std_size :], np.ravel(want), atol=1e-6)


def test_choices_are_seen_as_probabilities() -> None:
    spec = discrete_spec(2, (), 3)
    view, theta = fingerprint(spec), thetas(spec)
    seen = view(spec, theta).reshape(3, 5, 3)
    assert torch.all(seen > 0)
    assert torch.allclose(seen.sum(dim=-1), torch.ones(3, 5))
    # What is added to all logits changes no choice, and nothing that is seen.
    shifted = theta.clone()
    shifted[:, -3:] += 2.5  # the biases
    assert torch.allclose(view(spec, shifted), view(spec, theta), atol=1e-6)
    assert torch.allclose(view.place(spec, shifted), view.place(spec, theta), atol=1e-5)


@pytest.mark.parametrize("spec", [box_spec(2, (3, 4), 2), discrete_spec(2, (3,))], ids=["box", "n"])
def test_gradients_are_those_of_finite_differences(spec: PolicySpec) -> None:
    view = fingerprint(spec).double()
    theta = thetas(spec).double()
    weights = torch.from_numpy(np.random.default_rng(1).normal(size=view.width))
    for function in (view, view.place):
        leaf = theta.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((function(spec, leaf) @ weights).sum(), leaf)
        h = 1e-6
        for d in range(spec.size):
            step = torch.zeros(spec.size, dtype=torch.float64)
            step[d] = h
            change = function(spec, theta + step) - function(spec, theta - step)
            slope = change @ weights / (2 * h)
            assert gradient[:, d].tolist() == pytest.approx(slope.tolist(), abs=1e-7)


def permuted(spec: PolicySpec, theta: np.ndarray) -> np.ndarray:
    """The same functions with the units of the first hidden layer in another order."""
    wide, order = spec.hidden[0], np.random.default_rng(2).permutation(spec.hidden[0])
    first, bias = wide * spec.obs_dim, wide * spec.obs_dim + wide
    rest = theta[:, bias:]
    ahead = spec.hidden[1]
    after = rest[:, : ahead * wide].reshape(-1, ahead, wide)[:, :, order]
    return np.concatenate(
        [
            theta[:, :first].reshape(-1, wide, spec.obs_dim)[:, order].reshape(len(theta), -1),
            theta[:, first:bias][:, order],
            after.reshape(len(theta), -1),
            rest[:, ahead * wide :],
        ],
        axis=1,
    )


def test_the_order_of_hidden_units_is_not_seen() -> None:
    spec = box_spec(2, (6, 4))
    theta = make_policies(spec, 5).theta
    other = permuted(spec, theta)
    view = fingerprint(spec)
    assert np.allclose(view.rows(spec, other), view.rows(spec, theta), atol=1e-6)
    raw = ThetaView(spec)
    assert not np.allclose(raw.rows(spec, other), raw.rows(spec, theta), atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_linear_policy_as_an_equal_deep_one_has_the_same_value(kind: str) -> None:
    linear = box_spec(2, (), 2)
    # relu(x) - relu(-x) is x.
    deep = dataclasses.replace(linear, hidden=(4,), family="relu-mlp")
    file = make_file(kind, 20, make_data(linear, policies=6), fingerprint=5, standardise=True)
    policies = make_policies(linear, 4)
    weight, bias = policies.theta[:, :4].reshape(4, 2, 2), policies.theta[:, 4:]
    first = np.concatenate([weight, -weight], axis=1).reshape(4, -1)
    last = np.concatenate([np.eye(2), -np.eye(2)], axis=1).ravel()
    theta = np.concatenate(
        [first, bias, -bias, np.tile(last, (4, 1)), np.zeros((4, 2))], axis=1
    ).astype(np.float32)
    assert theta.shape[1] == deep.size
    assert np.allclose(file.predict(theta, deep), file.predict(policies.theta), atol=1e-6)
    one, other = torch.from_numpy(policies.theta), torch.from_numpy(theta)
    assert torch.allclose(file.distance(other, deep), file.distance(one), atol=1e-5)
    assert np.ptp(file.predict(theta, deep)) > 1e-4


def test_for_linear_policies_the_region_is_that_of_theta() -> None:
    spec = box_spec(3, (), 2)
    theta = make_policies(spec, 400).theta
    view = fingerprint(spec, 40)
    by_states, by_theta = view.region(spec, theta), TrustRegion.of(theta)
    points = thetas(spec, 50) * 2
    near = by_states.distance(view.place(spec, points)) / by_states.quantile
    want = by_theta.distance(points) / by_theta.quantile
    assert torch.allclose(near, want, rtol=0.05)
    assert near.max() > 2


def test_no_policy_is_nowhere_when_the_data_are_linear() -> None:
    # The outputs of linear policies span fewer directions than those of deep ones.
    linear, deep = box_spec(2), box_spec(2, (16,))
    view = fingerprint(linear, 12)
    region = view.region(linear, make_policies(linear, 30).theta)
    assert region.factor.shape == (12, 12)
    distances = region.distance(view.place(deep, thetas(deep, 20))) / region.quantile
    assert torch.all(torch.isfinite(distances))
    assert distances.max() > 1.5 * distances.min()


@pytest.mark.parametrize(
    "other",
    [
        box_spec(3),
        box_spec(2, act_dim=2),
        box_spec(2, high=2.0),
        box_spec(2, stochastic=True),
        box_spec(2, squash="none"),
        discrete_spec(2),
    ],
    ids=["observations", "actions", "bounds", "noise", "squash", "choices"],
)
def test_other_observations_or_actions_are_refused(other: PolicySpec) -> None:
    file = make_file("psvf", fingerprint=3)
    with pytest.raises(IncompatibleError, match="evaluates deterministic linear") as caught:
        file.predict(make_policies(other, 2).theta, other)
    assert caught.value.exit_code == 5
    assert "same observations" in str(caught.value.remedy)


@pytest.mark.parametrize("states", [0, 5])
def test_a_refusal_names_what_differs_also_where_the_descriptions_are_alike(states: int) -> None:
    file, clipped = make_file("psvf", fingerprint=states), box_spec(2, squash="none")
    with pytest.raises(IncompatibleError, match="others: squash none against tanh;"):
        file.critic_of(clipped)


def test_a_critic_of_parameters_refuses_another_architecture() -> None:
    file, deep = make_file("psvf"), box_spec(2, (4,))
    with pytest.raises(IncompatibleError, match="evaluates deterministic linear") as caught:
        file.predict(make_policies(deep, 2).theta, deep)
    assert "--fingerprint" in str(caught.value.remedy)


def test_probing_states_are_observations_far_apart() -> None:
    rng = np.random.default_rng(0)
    clusters = np.repeat([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]], [997, 2, 1], axis=0)
    points = clusters + rng.normal(0, 0.1, (1000, 2))
    chosen = spread_out(points, 3, np.random.default_rng(1))
    assert {tuple(p) for p in chosen} <= {tuple(p) for p in points}
    assert len({tuple(np.round(p / 50)) for p in chosen}) == 3  # one of each, few as they are
    assert np.array_equal(chosen, spread_out(points, 3, np.random.default_rng(1)))


def test_more_probing_states_than_observations() -> None:
    points = np.array([[0.0, 1.0], [2.0, 3.0]])
    chosen = spread_out(points, 5, np.random.default_rng(0))
    assert {tuple(p) for p in chosen[:2]} == {(0.0, 1.0), (2.0, 3.0)}
    assert {tuple(p) for p in chosen} == {(0.0, 1.0), (2.0, 3.0)}


def test_of_many_states_some_are_looked_at() -> None:
    spec, rng = box_spec(), np.random.default_rng(0)
    view = FingerprintView(spec, 3)
    data = make_data(spec, length=1_000, policies=11)
    view.choose_states(data, Normaliser.identity(2), rng)
    for state in view.states.numpy():
        assert np.abs(data.observations - state).max(axis=1).min() < 1e-6


def test_probing_states_are_of_the_data_and_stay() -> None:
    data = make_data(policies=6, mean=[0.5, -0.5], std=[2.0, 1.0])
    file = make_file("psvf", 20, data, fingerprint=3)
    assert isinstance(file.critic.view, FingerprintView)
    normalised = file.normaliser.apply(data.observations[data.obs_index])
    for state in file.critic.view.states.numpy():
        assert np.abs(normalised - state).max(axis=1).min() < 1e-6
    before = make_file("psvf", 0, data, fingerprint=3).critic.view.state_dict()
    assert torch.equal(before["states"], file.critic.view.states)


def test_probing_states_too_far_apart_diverge() -> None:
    with pytest.raises(DivergedError, match="too far from each other"):
        spread_out(np.array([[0.0], [1e200], [-1e200]]), 2, np.random.default_rng(0))

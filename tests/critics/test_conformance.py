"""What every kind of critic holds, those of installed packages included.

``theta`` is (K, D), states are (S, obs_dim), values (K, S), or (K, 1) where the value does not
depend on the state.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from libtools import box_spec, discrete_spec, fit_settings, make_data, make_file
from pbvf_offline.critics import CRITICS, Critic, CriticConfig, make_critic
from pbvf_offline.critics.base import joined
from pbvf_offline.critics.stacked import stacked_critic
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.fit.loop import advance, start_fit, training_set
from pbvf_offline.fit.steps import gradient_step
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.scales import Scales
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.setting_types import Activation
from pbvf_offline.synthesis.ascent import synthesize
from pbvf_offline.synthesis.examples import Scale, examples_for
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator
from pbvf_offline.synthesis.settings import SynthesisSettings

CPU = torch.device("cpu")
SPECS = {
    "box": box_spec(2, (3,), 2),
    "choice": discrete_spec(2, (3,)),
    "stochastic-box": box_spec(2, (3,), 2, stochastic=True),
    "stochastic-choice": discrete_spec(2, (3,), stochastic=True),
    "stochastic-plain": box_spec(2, (), 1, -9.0, 9.0, squash="none", stochastic=True),
}


def accepts(name: str, spec: PolicySpec) -> bool:
    try:
        CRITICS[name].critic_class(stochastic=spec.stochastic).check(spec)
    except IncompatibleError:
        return False
    return True


CASES = [(name, spec) for name in CRITICS for spec in SPECS if accepts(name, SPECS[spec])]
every_case = pytest.mark.parametrize(("name", "spec"), CASES)
# By theta, and by what policies do in so many probing states.
every_view = pytest.mark.parametrize("fingerprint", [0, 4])
every_kind = pytest.mark.parametrize("name", CRITICS)


def critic_of(
    name: str, spec: str, activation: Activation = "tanh", fingerprint: int = 0
) -> Critic:
    config = CriticConfig(SPECS[spec], (6, 5), activation, fingerprint=fingerprint)
    rng = np.random.default_rng(0)
    critic = make_critic(name, config, rng)
    critic.view.choose_states(make_data(SPECS[spec]), Normaliser.identity(2), rng)
    return critic


def inputs(critic: Critic, thetas: int, states: int) -> tuple[Tensor, Tensor]:
    """Thetas and states in the critic's own precision."""
    rng = np.random.default_rng(1)
    theta = rng.normal(0, 0.5, (thetas, critic.config.spec.size))
    dtype = next(critic.parameters()).dtype
    given = torch.from_numpy(theta), torch.from_numpy(rng.normal(0, 1, (states, 2)))
    return given[0].to(dtype), given[1].to(dtype)


def test_kinds_are_known_without_torch() -> None:
    code = (
        "import sys; from pbvf_offline.critics import CRITICS; "
        "print([CRITICS[n].summary for n in CRITICS]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_which_policies_the_papers_critics_evaluate() -> None:
    every = set(SPECS)
    for name, specs in {"pssvf": every, "psvf": every, "pavf": every - {"choice"}}.items():
        assert {spec for case, spec in CASES if case == name} == specs


@every_kind
def test_a_kind_says_what_it_is(name: str) -> None:
    kind = CRITICS[name]
    assert kind.name == name
    assert kind.summary
    assert "\n" not in kind.summary
    assert set(kind.inputs) <= {"theta", "obs", "action"}
    assert any(case[0] == name for case in CASES)  # it evaluates some policies
    assert fit_settings(name, hidden=kind.offline.hidden, lr=kind.offline.lr)


@every_view
@every_case
def test_nothing_on_a_device_has_double_precision(name: str, spec: str, fingerprint: int) -> None:
    """MPS has none. Only indices and what stays on the CPU may have eight bytes."""
    data = make_data(SPECS[spec])
    settings = fit_settings(name, hidden=(4,), fingerprint=fingerprint)
    fit = start_fit(data, settings, CPU)
    prepared = training_set(fit, data, CPU)
    advance(fit, prepared, 1)
    held = [*fit.online.state_dict().values(), *fit.online.buffers(), *vars(prepared).values()]
    held += [value for state in fit.optimiser.state.values() for value in state.values()]
    tensors = [value for value in held if isinstance(value, Tensor)]
    assert len(tensors) > 10
    assert {value.dtype for value in tensors} <= {torch.float32, torch.int64, torch.bool}


@every_view
@every_case
def test_values_have_the_declared_shape(name: str, spec: str, fingerprint: int) -> None:
    critic = critic_of(name, spec, fingerprint=fingerprint)
    assert critic.kind is CRITICS[name]
    theta, states = inputs(critic, 3, 4)
    part = critic.state_part(states)
    values = critic.values(theta, states, part)
    assert values.shape == (3, 4 if critic.kind.depends_on_state else 1)
    paired = critic.paired_values(theta[:1].expand(4, -1), states)
    assert paired.shape == (4,)
    assert torch.allclose(paired, values[0].expand(4), atol=1e-6)
    assert values.dtype == paired.dtype == torch.float32
    torch.manual_seed(7)  # no generator decides a value
    assert torch.equal(critic.values(theta, states, part), values)
    again = critic_of(name, spec, fingerprint=fingerprint)
    assert torch.equal(again.values(theta, states, part), values)


@every_view
@every_case
def test_the_objective_is_the_mean_value(name: str, spec: str, fingerprint: int) -> None:
    critic = critic_of(name, spec, fingerprint=fingerprint).double()
    theta, states = inputs(critic, 2, 9)
    objective = critic.objective(theta, states)
    assert objective.dtype == torch.float64
    values = critic.values(theta, states, critic.state_part(states))
    assert torch.allclose(objective, values.mean(dim=1).detach(), atol=1e-14)
    # States are worked on in chunks; more of them than one chunk holds, against halves.
    _, many = inputs(critic, 2, 20_000)
    whole, gradient = critic.objective_and_gradient(theta, many)
    halves = [critic.objective_and_gradient(theta, half) for half in many.split(10_000)]
    assert torch.allclose(whole, (halves[0][0] + halves[1][0]) / 2, atol=1e-12)
    assert torch.allclose(gradient, (halves[0][1] + halves[1][1]) / 2, atol=1e-12)


@every_view
@every_case
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_gradient_is_that_of_finite_differences(
    name: str, spec: str, activation: Activation, fingerprint: int
) -> None:
    critic = critic_of(name, spec, activation, fingerprint).double()
    theta, states = inputs(critic, 3, 7)
    value, gradient = critic.objective_and_gradient(theta, states)
    assert torch.allclose(value, critic.objective(theta, states), atol=1e-14)
    assert torch.any(gradient != 0)
    for d in range(theta.shape[1]):
        h = torch.zeros_like(theta)
        h[:, d] = 1e-6
        slope = (critic.objective(theta + h, states) - critic.objective(theta - h, states)) / 2e-6
        assert torch.allclose(gradient[:, d], slope, rtol=0, atol=1e-7)
    moved = theta.clone()
    moved[1] += 0.1
    after = critic.objective(moved, states)
    assert after[1] != value[1]
    assert torch.equal(after[[0, 2]], value[[0, 2]])  # a policy's value is its own


@every_view
@every_case
def test_climbing_leaves_everything_alone(name: str, spec: str, fingerprint: int) -> None:
    critic = critic_of(name, spec, fingerprint=fingerprint)
    before = {key: w.clone() for key, w in critic.state_dict().items()}
    theta, states = inputs(critic, 1, 4)
    theta.requires_grad_()
    kept = theta.detach().clone()
    critic.objective_and_gradient(theta, states)
    held = np.zeros(12, bool)
    batch = critic.training_set(make_data(SPECS[spec]), Normaliser.identity(2), held, CPU)
    sample = torch.zeros(len(batch), 2 if spec == "stochastic-box" else 1)
    if spec == "stochastic-choice":
        sample = sample[:, 0].long()
    batch = dataclasses.replace(batch, sample=sample)
    for biased in (False, True):
        step = critic.actor_step(theta, batch, torch.tensor([0, 3, 3]), biased=biased)
        assert step.gradient.shape == theta.shape
        assert not step.gradient.requires_grad
        assert not step.objective.requires_grad
    assert all(torch.equal(before[key], w) for key, w in critic.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in critic.parameters())
    assert torch.equal(theta, kept)
    assert theta.grad is None


@every_view
@every_case
def test_a_fit_lowers_a_finite_loss(name: str, spec: str, fingerprint: int) -> None:
    data = make_data(SPECS[spec], policies=8)
    more: dict[str, Any] = {"hidden": (32,), "batch_size": 16, "fingerprint": fingerprint}
    settings = fit_settings(name, gamma=0.5, n_step=1, **more)
    fit = start_fit(data, settings, CPU)
    prepared = training_set(fit, data, CPU)
    shape = fit.critic.noise_shape(prepared)
    noise = None if shape is None else torch.zeros(len(prepared), *shape)

    def loss() -> float:
        return fit.critic.loss(prepared, prepared.entry[:], noise).item()

    first = loss()
    advance(fit, prepared, 300)
    assert np.isfinite(first)
    assert loss() < 0.7 * first


@every_case
def test_the_loss_is_a_mean_over_entries(name: str, spec: str) -> None:
    critic = critic_of(name, spec)
    data = make_data(SPECS[spec], policies=9)
    batch = training_set(start_fit(data, fit_settings(name), CPU), data, CPU)
    index = torch.arange(len(batch)).repeat(3)[: 2 * len(batch) + 1]
    shape = critic.noise_shape(batch)
    noise = None if shape is None else torch.randn(len(index), *shape)
    whole = critic.loss(batch, index, noise)
    singles = torch.stack(
        [
            critic.loss(batch, i[None], None if noise is None else noise[k : k + 1])
            for k, i in enumerate(index)
        ]
    )
    assert whole.item() == pytest.approx(singles.mean().item(), rel=1e-5)


@every_view
@every_case
def test_several_at_once_have_the_losses_of_each(name: str, spec: str, fingerprint: int) -> None:
    """Or one number, and are then fitted one at a time."""
    data = make_data(SPECS[spec], policies=9)
    settings = fit_settings(name, fingerprint=fingerprint, standardise=True)
    fits = [start_fit(data, dataclasses.replace(settings, seed=seed), CPU) for seed in range(3)]
    batch = training_set(fits[0], data, CPU)
    index = torch.arange(12).reshape(3, 4) % len(batch)
    shape = fits[0].online.noise_shape(batch)
    noise = None if shape is None else torch.randn(3, 4, *shape)
    losses = stacked_critic([fit.online for fit in fits]).loss(batch, index, noise)
    if losses.shape == ():
        pytest.skip("one at a time")
    for k, fit in enumerate(fits):
        own = fit.online.loss(batch, index[k], None if noise is None else noise[k])
        assert losses[k].item() == pytest.approx(own.item(), rel=1e-5)


@every_case
def test_held_out_policies_are_not_learned_from(name: str, spec: str) -> None:
    data = make_data(SPECS[spec], policies=6, length=4)
    held = np.array([False, True, False, False, True, False])
    fit = start_fit(data, fit_settings(name), CPU)
    batch = fit.critic.training_set(data, fit.normaliser, held, CPU)
    assert set(batch.policy[batch.entry[:]].tolist()) == {0, 2, 3, 5}
    assert len(batch) == (4 if fit.critic.kind.monte_carlo else 16)


@every_case
def test_initial_weights_come_from_the_generator(name: str, spec: str) -> None:
    config = CriticConfig(SPECS[spec], (6, 5))
    a, b, c = (
        list(make_critic(name, config, np.random.default_rng(seed)).parameters())
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not any(torch.equal(x, y) for x, y in zip(a, c, strict=True))


@every_view
@every_case
def test_a_file_brings_everything_back(
    name: str, spec: str, fingerprint: int, tmp_path: Path
) -> None:
    extras: dict[str, Any] = {"standardise": True, "average": 0.9, "fingerprint": fingerprint}
    file = make_file(name, 5, make_data(SPECS[spec], policies=6), **extras)
    path = tmp_path / "critic.safetensors"
    file.save(path)
    loaded = load_critic(path)
    assert loaded.encode() == path.read_bytes()
    theta = file.context.theta
    assert np.array_equal(loaded.predict(theta), file.predict(theta))


@every_view
@every_case
def test_synthesis_leaves_the_critic_frozen(name: str, spec: str, fingerprint: int) -> None:
    file = make_file(name, 5, make_data(SPECS[spec], policies=6), fingerprint=fingerprint)
    before = file.encode()
    settings = SynthesisSettings(count=2, steps=3, lr=0.05, seed=0)
    grown = synthesize(file, settings)
    assert file.encode() == before
    assert np.isfinite(grown.policies.theta).all()
    start = dataclasses.replace(settings, steps=0)
    assert not np.array_equal(grown.policies.theta, synthesize(file, start).policies.theta)


@every_case
def test_it_is_told_of_imagined_policies(name: str, spec: str) -> None:
    """Whatever it learns from: a step of the fit on what it is told goes through."""
    data = make_data(SPECS[spec])
    ensemble = Ensemble(
        SPECS[spec], Scales.of(data, np.arange(len(data))), ModelSettings(0, 2, (4,))
    )
    evaluator = ModelEvaluator(ensemble, data.initial_observations.astype(float), 7, 1.0)
    fit = start_fit(data, fit_settings(name, hidden=(4,)), CPU)
    examples = examples_for(fit, ensemble, np.random.default_rng(0))
    said = evaluator.play(
        data.policies,
        evaluator.initial[:2],
        np.random.default_rng(0),
        record=examples.records,
        after_block=lambda *heard: examples.add(*heard, heard[2].limited()),
    )
    told = examples.training_set(Scale.of(said, fit.settings.gamma))
    assert set(told.policy[:].tolist()) == set(range(len(data.policies)))
    shape = fit.online.noise_shape(told)
    noise = None if shape is None else torch.zeros(len(told), *shape)
    before = [weight.clone() for weight in fit.online.parameters()]
    gradient_step(fit, told, torch.arange(len(told)), noise)
    assert any(not a.equal(b) for a, b in zip(before, fit.online.parameters(), strict=True))


@every_case
def test_entries_picked_and_joined_have_the_losses_that_they_had(name: str, spec: str) -> None:
    data = make_data(SPECS[spec])
    fit = start_fit(data, fit_settings(name, hidden=(4,), bound_values=name != "pssvf"), CPU)
    whole = training_set(fit, data, CPU)
    rows = torch.tensor([5, 0, 3])
    picked = [whole.picked(rows), whole.picked(torch.tensor([1]))]
    both = joined(picked)
    assert both.bounds == whole.bounds
    shape = fit.online.noise_shape(whole)
    noise = None if shape is None else torch.full((1, *shape), 0.3)
    for at, row in enumerate([5, 0, 3, 1]):
        expected = fit.online.loss(whole, torch.tensor([row]), noise)
        torch.testing.assert_close(fit.online.loss(both, torch.tensor([at]), noise), expected)
    torch.testing.assert_close(
        fit.online.loss(picked[0], torch.tensor([1]), noise),
        fit.online.loss(whole, torch.tensor([0]), noise),
    )
    assert both.entry.tolist() == [0, 1, 2, 3]
    if both.obs is not None and whole.obs is not None:
        assert len(picked[1].obs) <= 2 < len(whole.obs)

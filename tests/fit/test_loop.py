from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, discrete_spec, fit_settings, make_data, make_episode, make_policies
from pbvf_offline.critics.views import FingerprintView
from pbvf_offline.errors import DivergedError, IncompatibleError
from pbvf_offline.fit.loop import (
    RewardScaleWarning,
    advance,
    batch_indices,
    batch_noise,
    held_out_policies,
    shared_normaliser,
    start_fit,
    training_set,
)
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.steps import Fit
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories, stack_episodes

CPU = torch.device("cpu")
KINDS = ("pssvf", "psvf", "pavf")
POLICIES = {
    **{kind: (kind, box_spec()) for kind in KINDS},
    "stochastic pavf": ("pavf", box_spec(stochastic=True)),
    "discrete pavf": ("pavf", discrete_spec(stochastic=True)),
}
kinds_and_policies = pytest.mark.parametrize(
    ("kind", "spec"), POLICIES.values(), ids=POLICIES.keys()
)


def fitted(data: Trajectories, settings: FitSettings, updates: int) -> Fit:
    fit = start_fit(data, settings, CPU)
    advance(fit, training_set(fit, data, CPU), updates)
    return fit


def weights(fit: Fit) -> bytes:
    return b"".join(w.numpy().tobytes() for w in fit.critic.state_dict().values())


@kinds_and_policies
def test_same_seed_same_weights(kind: str, spec: PolicySpec) -> None:
    data = make_data(spec, policies=10)
    settings = fit_settings(kind)
    assert weights(fitted(data, settings, 30)) == weights(fitted(data, settings, 30))
    other = dataclasses.replace(settings, seed=1)
    assert weights(fitted(data, other, 30)) != weights(fitted(data, settings, 30))


@kinds_and_policies
@pytest.mark.parametrize("stops", [[1, 30], [10, 20, 30], [29, 30]])
def test_stops_along_the_way_change_nothing(kind: str, spec: PolicySpec, stops: list[int]) -> None:
    data = make_data(spec, policies=10)
    settings = fit_settings(kind)
    fit = start_fit(data, settings, CPU)
    for stop in stops:
        advance(fit, training_set(fit, data, CPU), stop)
    assert weights(fit) == weights(fitted(data, settings, 30))
    assert fit.updates == 30


@pytest.mark.parametrize("noise", [None, (2, 3)])
def test_batches_depend_on_seed_and_update_alone(noise: Any) -> None:
    settings = fit_settings(batch_size=5)

    def drawn(start: int, stop: int) -> list[tuple[Any, Any]]:
        span = settings, 17, start, stop
        return list(zip(batch_indices(*span), batch_noise(*span, noise), strict=True))

    whole = drawn(0, 600)
    assert len(whole) == 600
    assert all(index.shape == (5,) for index, _ in whole)
    assert {int(i) for index, _ in whole for i in index} == set(range(17))
    for start, stop in ((0, 1), (255, 257), (256, 256), (300, 600), (599, 600), (1, 255)):
        part = drawn(start, stop)
        assert len(part) == stop - start
        for (a, x), (b, y) in zip(part, whole[start:stop], strict=True):
            assert np.array_equal(a, b)
            if noise is not None:
                assert np.array_equal(x, y)
                assert x.shape == (5, 2, 3)


def test_one_update_is_one_step_of_adam() -> None:
    # Adam's first step moves every weight with a gradient by lr, against its sign.
    data = make_data(policies=10)
    settings = fit_settings("psvf", lr=1e-3, batch_size=7)
    fit = start_fit(data, settings, CPU)
    before = [p.detach().clone() for p in fit.critic.parameters()]
    prepared = training_set(fit, data, CPU)
    index = torch.from_numpy(next(batch_indices(settings, len(prepared), 0, 1)))
    loss = fit.critic.loss(prepared, index)
    gradients = torch.autograd.grad(loss, list(fit.critic.parameters()))
    advance(fit, prepared, 1)
    for old, new, gradient in zip(before, fit.critic.parameters(), gradients, strict=True):
        clear = gradient.abs() > 1e-3
        step = (new.detach() - old)[clear]
        assert torch.allclose(step, -1e-3 * gradient[clear].sign(), rtol=1e-2, atol=1e-6)
        assert torch.all((new.detach() - old)[gradient == 0] == 0)
    assert fit.pending == pytest.approx([loss.item()])


@pytest.mark.parametrize("kind", KINDS)
def test_fingerprints_are_taken_once_and_the_loss_is_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_data(box_spec(hidden=(5,)), policies=10)
    fit = start_fit(data, fit_settings(kind, fingerprint=4), CPU)
    prepared = training_set(fit, data, CPU)
    index = prepared.entry[torch.tensor([3, 0, 5])]
    again = dataclasses.replace(prepared, seen=None)  # as policies that change have it
    torch.testing.assert_close(fit.critic.loss(prepared, index), fit.critic.loss(again, index))
    monkeypatch.setattr(FingerprintView, "forward", None)
    advance(fit, prepared, 3)
    with pytest.raises(TypeError):
        fit.critic.loss(again, index)


def test_thetas_that_are_drawn_anew_are_seen_anew() -> None:
    data = make_data(policies=10)
    settings = fit_settings("psvf", fingerprint=4, relabel=0.3)
    assert training_set(start_fit(data, settings, CPU), data, CPU).seen is None


def test_each_of_several_fits_has_fingerprints_of_its_own() -> None:
    data = make_data(policies=10)
    fits = [start_fit(data, fit_settings("psvf", fingerprint=4, seed=seed), CPU) for seed in (0, 1)]
    first = training_set(fits[0], data, CPU)
    second = training_set(fits[1], data, CPU, first)
    alone = training_set(fits[1], data, CPU)
    assert torch.equal(second.seen, alone.seen)
    assert not torch.equal(second.seen, first.seen)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_goes_down(kind: str) -> None:
    data = make_data(policies=30)
    # Rewards that the policy's parameters decide, so that there is something to learn.
    rewards = data.policies.theta.sum(axis=1).astype(float)[data.policy]
    data = dataclasses.replace(data, rewards=rewards)
    settings = fit_settings(kind, hidden=(32,), n_step=100, batch_size=32)
    fit = start_fit(data, settings, CPU)
    prepared = training_set(fit, data, CPU)
    before = fit.critic.loss(prepared, prepared.entry[:]).item()
    advance(fit, prepared, 200)
    assert fit.critic.loss(prepared, prepared.entry[:]).item() < before / 2


def test_record_is_the_mean_of_each_stretch() -> None:
    data = make_data(policies=10)
    losses: list[float] = []

    def note(fit: Fit) -> None:
        losses.append(fit.pending[-1] if fit.pending else math.nan)

    fit = start_fit(data, fit_settings("pssvf"), CPU)
    assert fit.loss is None
    advance(fit, training_set(fit, data, CPU), 250, after_update=note)
    assert [u for u, _ in fit.record] == [100, 200]
    assert len(fit.pending) == 50
    # The hundredth loss is only in the mean: 100 * mean - the 99 seen.
    for k, (_, mean) in enumerate(fit.record):
        seen = losses[100 * k : 100 * k + 99]
        last = 100 * mean - sum(seen)
        assert 0 <= last < 100 * mean
    assert fit.loss == fit.record[-1][1]


def changed_rewards(data: Trajectories, policies: Any, by: float) -> Trajectories:
    there = np.isin(data.policy, np.flatnonzero(policies))
    assert there.any()
    return dataclasses.replace(data, rewards=np.where(there, data.rewards + by, data.rewards))


@pytest.mark.parametrize("bounded", [False, True])
@kinds_and_policies
def test_held_out_policies_are_not_learned_from(kind: str, spec: PolicySpec, bounded: bool) -> None:
    segments = 1 if kind == "pssvf" else 2
    data = make_data(spec, policies=12, segments=segments)
    # Nothing good ever happens here; a bound on values must not learn of what others earned.
    data = dataclasses.replace(data, rewards=-np.abs(data.rewards))
    settings = fit_settings(kind, validation=0.3, bound_values=bounded)
    held = held_out_policies(data, settings)
    assert held.sum() == 4
    other = changed_rewards(data, held, 1000.0)
    assert weights(fitted(data, settings, 40)) == weights(fitted(other, settings, 40))
    learned = changed_rewards(data, ~held, 1000.0)
    assert weights(fitted(data, settings, 40)) != weights(fitted(learned, settings, 40))


def test_bounds_beyond_single_precision_diverge() -> None:
    data = make_data(policies=4)
    data = dataclasses.replace(data, rewards=np.full_like(data.rewards, 5e37))
    with pytest.raises(DivergedError, match="beyond single precision; scale the rewards"):
        fitted(data, fit_settings("psvf", bound_values=True), 1)


@pytest.mark.parametrize("kind", ["pssvf", "psvf"])
@pytest.mark.parametrize(
    ("size", "words"), [(1e-6, "too small .* apart"), (1e9, "predicts too li")]
)
def test_values_that_cannot_be_learned_are_told(kind: str, size: float, words: str) -> None:
    data = make_data(policies=4)
    data = dataclasses.replace(data, rewards=np.full_like(data.rewards, size))
    with pytest.warns(RewardScaleWarning, match=f"values are .*{words}.*scaled"):
        fitted(data, fit_settings(kind), 1)


def test_values_that_are_all_zero_are_fine() -> None:
    data = make_data(policies=4)
    fitted(dataclasses.replace(data, rewards=np.zeros_like(data.rewards)), fit_settings("psvf"), 1)


def test_squared_gradients_beyond_single_precision_diverge() -> None:
    data = make_data(policies=4)
    fit = start_fit(data, fit_settings("psvf"), CPU)
    prepared = training_set(fit, data, CPU)
    advance(fit, prepared, 1)
    for state in fit.optimiser.state.values():
        state["exp_avg_sq"].fill_(math.inf)  # no step is taken then, and all else stays finite
    with pytest.raises(DivergedError, match=r"squared gradients are not finite.*scale the rewards"):
        advance(fit, prepared, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["rewards", "observations"])
@pytest.mark.filterwarnings("ignore::pbvf_offline.fit.loop.RewardScaleWarning")
def test_beyond_single_precision_a_fit_diverges_and_says_no_more(name: str, kind: str) -> None:
    """A warning of numpy's would be an error here."""
    data = make_data(policies=4)
    data = dataclasses.replace(data, **{name: 1e200 * getattr(data, name)})
    with pytest.raises(DivergedError):
        fitted(data, fit_settings(kind, relabel=0.3), 5)


@pytest.mark.parametrize("kind", KINDS)
def test_policies_that_hardly_differ_are_as_good_as_one(kind: str) -> None:
    data = make_data(policies=4)
    theta = np.zeros_like(data.policies.theta)
    theta[1:, 0] = 1e-20
    data = dataclasses.replace(data, policies=dataclasses.replace(data.policies, theta=theta))
    fit = fitted(data, fit_settings(kind, standardise=True, relabel=0.3), 5)
    assert max(fit.pending) < 1e6


def test_cut_episodes_serve_td_and_not_monte_carlo() -> None:
    policies = make_policies(box_spec(), 6)
    ends = ("cut", "terminated") * 3
    episodes = [make_episode(policies, [k], [4], end=e) for k, e in enumerate(ends)]
    data = stack_episodes(policies.spec, episodes)
    cut = np.array([True, False] * 3)
    changed = changed_rewards(data, cut, 50.0)
    for kind, same in (("pssvf", True), ("psvf", False)):
        a, b = (fitted(d, fit_settings(kind), 20) for d in (data, changed))
        assert (weights(a) == weights(b)) is same


def test_nothing_left_to_learn_from() -> None:
    policies = make_policies(box_spec(), 2)
    episodes = [
        make_episode(policies, [0], [3], end="terminated"),
        make_episode(policies, [1], [3], end="cut"),
    ]
    data = stack_episodes(policies.spec, episodes)
    for seed in range(20):
        settings = fit_settings("pssvf", validation=0.5, seed=seed)
        if held_out_policies(data, settings)[0]:
            fit = start_fit(data, settings, CPU)
            with pytest.raises(IncompatibleError, match="nothing to learn from") as caught:
                training_set(fit, data, CPU)
            assert caught.value.exit_code == 5
            return
    pytest.fail("no seed held out the only whole episode")


def test_a_shared_normaliser_is_kept() -> None:
    data = make_data(mean=[1.0, 2.0], std=[3.0, 4.0])
    normaliser = shared_normaliser(data)
    assert normaliser.mean.tolist() == [1.0, 2.0]
    assert normaliser.std.tolist() == [3.0, 4.0]
    fit = start_fit(data, fit_settings(), CPU)
    prepared = training_set(fit, data, CPU)
    assert prepared.theta.numpy().tobytes() == data.policies.theta.tobytes()


def test_merged_normalisers_are_re_expressed() -> None:
    spec = box_spec(2, (4,))
    a = make_policies(spec, 3, 0, [1.0, 2.0], [3.0, 0.5])
    b = make_policies(spec, 3, 1, [-1.0, 0.0], [0.5, 2.0])
    episodes = [make_episode(p, [k], [5]) for p in (a, b) for k in range(3)]
    data = stack_episodes(spec, episodes)
    normaliser = shared_normaliser(data)
    assert np.allclose(normaliser.mean, data.observations.mean(axis=0))
    assert np.allclose(normaliser.std, data.observations.std(axis=0))
    fit = start_fit(data, fit_settings(), CPU)
    prepared = training_set(fit, data, CPU)
    shown = Policies(
        spec,
        prepared.theta.numpy(),
        np.tile(normaliser.mean, (6, 1)),
        np.tile(normaliser.std, (6, 1)),
    )
    for k in range(6):
        for obs in data.observations[:10]:
            want = data.policies.actor(k).act(obs)[0]
            assert np.allclose(shown.actor(k).act(obs)[0], want, rtol=0, atol=1e-5)


def test_diverging_stops_at_the_first_bad_loss() -> None:
    data = make_data(policies=10)
    settings = fit_settings("psvf", hidden=(32, 32), lr=1e6)
    fit = start_fit(data, settings, CPU)
    with pytest.raises(DivergedError, match="update") as caught:
        advance(fit, training_set(fit, data, CPU), 500)
    assert caught.value.exit_code == 8
    assert "--lr" in str(caught.value)
    assert all(math.isfinite(value) for value in fit.pending)
    assert fit.updates < 500


@pytest.mark.filterwarnings("ignore::pbvf_offline.fit.loop.RewardScaleWarning")
def test_a_first_loss_is_not_blamed_on_the_learning_rate() -> None:
    data = make_data(policies=4)
    data = dataclasses.replace(data, rewards=np.full_like(data.rewards, 1e25))
    with pytest.raises(DivergedError, match=r"inf at update 1; .*scale the rewards") as caught:
        fitted(data, fit_settings("pssvf"), 1)
    assert "--lr" not in str(caught.value)


def test_what_is_raised_after_an_update_stops_between_two_whole_updates() -> None:
    data = make_data(policies=10)
    settings = fit_settings("psvf")
    fit = start_fit(data, settings, CPU)

    def stop(fit: Fit) -> None:
        if fit.updates == 7:
            raise KeyboardInterrupt

    prepared = training_set(fit, data, CPU)
    with pytest.raises(KeyboardInterrupt):
        advance(fit, prepared, 20, after_update=stop)
    assert weights(fit) == weights(fitted(data, settings, 7))
    advance(fit, prepared, 20)
    assert weights(fit) == weights(fitted(data, settings, 20))


def test_a_critic_that_cannot_evaluate_such_policies() -> None:
    data = make_data(discrete_spec(), policies=4)
    with pytest.raises(IncompatibleError):
        start_fit(data, fit_settings("pavf"), CPU)


@pytest.mark.parametrize("which", ["stochastic pavf", "discrete pavf"])
def test_targets_of_stochastic_policies_draw_anew_at_each_update(which: str) -> None:
    kind, spec = POLICIES[which]
    data = make_data(spec, policies=4)
    fit = start_fit(data, fit_settings(kind, n_step=1), CPU)
    seen: list[torch.Tensor] = []
    loss = fit.critic.loss

    def noting(batch: Any, index: Any, noise: Any = None) -> Any:
        seen.append(noise)
        return loss(batch, index, noise)

    fit.critic.loss = noting  # type: ignore[method-assign]
    advance(fit, training_set(fit, data, CPU), 300)
    drawn = torch.stack(seen)
    assert drawn.shape == (300, 4, 1 if which == "stochastic pavf" else 3)
    assert len(torch.unique(drawn.flatten(1), dim=0)) == 300
    assert drawn.mean().abs() < 4 / drawn.numel() ** 0.5
    assert drawn.std().item() == pytest.approx(1.0, abs=0.1)

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, make_data, make_file
from pbvf_offline.critics.trust_region import TrustRegion
from pbvf_offline.errors import DivergedError, IncompatibleError, UsageError
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.policies import batch
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.seeding import Stream, generator
from pbvf_offline.synthesis.ascent import Synthesis, closest_policies, synthesis_states, synthesize
from pbvf_offline.synthesis.settings import SynthesisSettings

KINDS = ("pssvf", "psvf", "pavf")


def grow(file: CriticFile, *, steps: int = 25, count: int = 3, **kwargs: Any) -> Synthesis:
    settings: dict[str, Any] = {"lr": 0.05, "seed": 0, "restarts": 1}
    path = {
        k: kwargs.pop(k)
        for k in ("waypoint_every", "after_step", "observations", "given", "judge")
        if k in kwargs
    }
    return synthesize(file, SynthesisSettings(count, steps, **{**settings, **kwargs}), **path)


def start_of(file: CriticFile, seed: int, count: int) -> np.ndarray:
    return np.stack(
        [init_theta(file.spec, generator(seed, Stream.SYNTHESIS_INIT, k)) for k in range(count)]
    )


@pytest.mark.parametrize("trust_region", [False, True])
def test_starts_at_pytorchs_initialisation(trust_region: bool) -> None:
    file = make_file()
    wide = {"trust_region": trust_region, "radius": 100.0}  # all starts are inside
    grown = grow(file, steps=2, waypoint_every=1, seed=7, **wide)
    assert grown.path[0].step == 0
    # In the region, whitening and back costs a rounding.
    tolerance = 1e-6 if trust_region else 0.0
    assert np.allclose(grown.path[0].theta, start_of(file, 7, 3), rtol=0, atol=tolerance)
    other = grow(file, steps=0, seed=8, **wide)
    assert np.allclose(other.policies.theta, start_of(file, 8, 3), rtol=0, atol=tolerance)
    assert other.chosen_step.tolist() == [0, 0, 0]


def test_states_beyond_single_precision_diverge_and_nothing_else_is_said() -> None:
    """A warning of numpy's would be an error here."""
    file = make_file("psvf")
    context = dataclasses.replace(file.context, observations=1e200 * file.context.observations)
    with pytest.raises(DivergedError, match="objective or its gradient is not finite at step 0"):
        grow(dataclasses.replace(file, context=context))


def adam_by_hand(
    file: CriticFile, theta: np.ndarray, states: torch.Tensor, steps: int, lr: float
) -> np.ndarray:
    """Adam as in Kingma and Ba (2015), ascending; one policy (D,) at a time."""
    x = theta.astype(np.float64)
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t in range(1, steps + 1):
        leaf = torch.from_numpy(x.astype(np.float32))[None].requires_grad_()
        values = file.critic.values(leaf, states, file.critic.state_part(states))
        gradient = torch.autograd.grad(values.mean(), leaf)[0][0].double().numpy()
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        x = x + lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_plain_ascent_is_adam_on_the_mean_value(kind: str) -> None:
    file = make_file(kind, 20)
    grown = grow(file, steps=15, trust_region=False, lr=0.02)
    assert grown.chosen_step.tolist() == [15, 15, 15]
    states = file.normalised(file.context.observations)
    for k, theta in enumerate(start_of(file, 0, 3)):
        want = adam_by_hand(file, theta, states, 15, 0.02)
        assert np.allclose(grown.policies.theta[k], want, rtol=0, atol=2e-4)
        assert not np.allclose(grown.policies.theta[k], theta, atol=0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trust_region", [False, True])
def test_many_at_once_are_as_one_at_a_time(kind: str, trust_region: bool) -> None:
    file = make_file(kind, 20)
    three = grow(file, count=3, trust_region=trust_region)
    one = grow(file, count=1, trust_region=trust_region)
    assert np.allclose(three.policies.theta[0], one.policies.theta[0], rtol=0, atol=1e-4)
    assert three.predicted[0] == pytest.approx(one.predicted[0], abs=1e-4)
    assert len({t.tobytes() for t in three.policies.theta}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_critic_is_only_read(kind: str) -> None:
    file = make_file(kind)
    file.critic.zero_grad(set_to_none=True)
    before = file.encode()
    grow(file, waypoint_every=5)
    assert file.encode() == before
    assert all(p.grad is None for p in file.critic.parameters())
    assert all(p.requires_grad for p in file.critic.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_objective_is_climbed_inside_the_region(kind: str) -> None:
    file = make_file(kind, 30, make_data(policies=100, length=2))
    region = file.context.region
    grown = grow(file, steps=80, lr=0.1, radius=0.8, waypoint_every=1)
    distances = np.stack(
        [region.distance(torch.from_numpy(p.theta)).numpy() / region.quantile for p in grown.path]
    )
    # A policy may not move further out than it has been, and not out of 0.8 once inside.
    limit = np.maximum(np.minimum.accumulate(distances, axis=0), 0.8)
    assert np.all(distances <= limit * (1 + 1e-5))
    assert np.any(distances[-1] > 0.79)  # the edge was reached, so the limit did something
    assert np.all(grown.distance <= 0.8 * (1 + 1e-5))
    free = grow(file, steps=80, lr=0.1, trust_region=False)
    assert np.all(free.distance > grown.distance)
    first = file.critic.objective(
        torch.from_numpy(grown.path[0].theta), file.normalised(file.context.observations)
    ).numpy()
    assert np.all(grown.objective > first)


def test_the_chosen_step_has_the_highest_objective_of_the_critic() -> None:
    file = make_file("psvf", 30, make_data(policies=100, length=2))
    # A step so large that the ascent jumps about: the best is not the last.
    grown = grow(file, steps=40, lr=1.5, radius=0.8, waypoint_every=1)
    states = file.normalised(file.context.observations)
    values = np.stack(
        [file.critic.objective(torch.from_numpy(p.theta), states).numpy() for p in grown.path]
    )
    assert values.shape == (41, 3)
    assert np.array_equal(grown.chosen_step, values.argmax(axis=0))
    assert np.any(grown.chosen_step < 40)
    for k, step in enumerate(grown.chosen_step):
        assert np.array_equal(grown.policies.theta[k], grown.path[step].theta[k])
        assert grown.objective[k] == pytest.approx(values[step, k], rel=1e-9)
        assert grown.predicted[k] == pytest.approx(grown.path[step].predicted[k], rel=1e-6)


@pytest.mark.parametrize("trust_region", [False, True])
def test_looking_on_changes_nothing(trust_region: bool) -> None:
    file = make_file("pavf")
    seen: list[int] = []
    plain = grow(file, trust_region=trust_region)
    watched = grow(
        file,
        trust_region=trust_region,
        waypoint_every=3,
        after_step=lambda step, objective: seen.append(step),
    )
    assert plain.policies.theta.tobytes() == watched.policies.theta.tobytes()
    assert np.array_equal(plain.chosen_step, watched.chosen_step)
    assert [p.step for p in watched.path] == [0, 3, 6, 9, 12, 15, 18, 21, 24]
    assert plain.path == ()
    assert seen == list(range(26))


def test_same_seed_same_policies() -> None:
    file = make_file()
    a, b, c = grow(file), grow(file), grow(file, seed=1)
    assert a.policies.theta.tobytes() == b.policies.theta.tobytes()
    assert a.policies.theta.tobytes() != c.policies.theta.tobytes()


def test_policies_are_in_the_critics_normaliser() -> None:
    file = make_file()
    grown = grow(file)
    assert np.all(grown.policies.obs_mean == file.normaliser.mean)
    assert np.all(grown.policies.obs_std == file.normaliser.std)
    assert file.normaliser.mean.tolist() == [0.5, -0.5]


def test_states_are_drawn_without_replacement() -> None:
    source = np.arange(50.0)[:, None]
    some = synthesis_states(source, SynthesisSettings(1, 1, 0.1, 3, states=20))
    assert len(np.unique(some)) == 20
    assert np.array_equal(
        some, synthesis_states(source, SynthesisSettings(2, 9, 0.3, 3, states=20))
    )
    other = synthesis_states(source, SynthesisSettings(1, 1, 0.1, 4, states=20))
    assert not np.array_equal(some, other)
    everything = synthesis_states(source, SynthesisSettings(1, 1, 0.1, 3, states=80))
    assert np.array_equal(everything, source)


def test_other_states_can_be_given() -> None:
    file = make_file()
    own = grow(file)
    same = grow(file, observations=file.context.observations)
    far = grow(file, observations=file.context.observations + 5.0)
    assert own.policies.theta.tobytes() == same.policies.theta.tobytes()
    assert own.policies.theta.tobytes() != far.policies.theta.tobytes()
    with pytest.raises(IncompatibleError, match="dimensions") as caught:
        grow(file, observations=np.zeros((5, 3)))
    assert caught.value.exit_code == 5


def test_closest_policies_by_brute_force() -> None:
    file = make_file()
    theta = np.random.default_rng(0).normal(0, 1, (4, file.spec.size)).astype(np.float32)
    near = closest_policies(file, file.policies(theta))
    for k in range(4):
        distances = np.linalg.norm(file.context.theta - theta[k], axis=1)
        assert np.array_equal(near.theta[k], file.context.theta[distances.argmin()])
    assert np.all(near.obs_std == file.normaliser.std)


def test_divergence_is_reported() -> None:
    file = dataclasses.replace(make_file("pssvf", 0), where="critic.st")
    with torch.no_grad():
        file.critic.network.biases[0].fill_(float("nan"))
    with pytest.raises(DivergedError, match=r"^critic.st: .* step 0") as caught:
        grow(file)
    assert caught.value.exit_code == 8
    assert "--lr" not in str(caught.value)  # which no step has followed yet


@pytest.mark.parametrize("every", [None, 1])
def test_a_prediction_that_is_no_number_diverges(
    every: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is over other states than the objective; that of a policy on the way is one too."""
    calls = 0

    def predict(self: CriticFile, theta: Any, *_: Any) -> Any:
        nonlocal calls
        calls += 1
        return np.full(len(theta), np.inf if every is None or calls > 1 else 0.0)

    monkeypatch.setattr(CriticFile, "predict", predict)
    with pytest.raises(DivergedError, match="critic's predictions for 2 of 2 policies are not"):
        grow(make_file("psvf", 0), count=2, steps=2, waypoint_every=every)


@pytest.mark.parametrize("lr", [4e37, 1e39])  # Adam's first step is ten times the first
def test_a_learning_rate_beyond_single_precision_diverges(lr: float) -> None:
    with pytest.raises(DivergedError, match=r"e\+3. is beyond single precision; lower --lr"):
        grow(make_file("pssvf", 0), lr=lr, trust_region=False)


def test_restarts_give_what_the_critic_likes_best() -> None:
    file = make_file("psvf", 30, make_data(policies=100, length=2))
    one, many = grow(file, steps=30), grow(file, steps=30, restarts=4, waypoint_every=5)
    assert many.policies.theta.shape == one.policies.theta.shape
    assert many.objective.mean() >= one.objective.mean() - 1e-3
    assert [p.step for p in many.path] == [0, 5, 10, 15, 20, 25, 30]
    assert all(p.theta.shape == one.policies.theta.shape for p in many.path)
    again = grow(file, steps=30, restarts=4)
    assert many.policies.theta.tobytes() == again.policies.theta.tobytes()


@pytest.mark.parametrize("restarts", [3, 6])
def test_the_judge_keeps_one_candidate_of_each_policy(restarts: int) -> None:
    file = make_file("psvf", 30, make_data(policies=100, length=2))
    seen = []

    def judge(policies: Policies) -> np.ndarray:
        seen.append(policies)
        return np.array([0.0, 2.0, 1.0, 5.0, 3.0, 4.0])

    kept = grow(
        file, steps=9, count=2, restarts=restarts, candidates=3, judge=judge, waypoint_every=3
    )
    (judged,) = seen
    assert kept.policies.theta.tobytes() == judged.theta[[1, 3]].tobytes()
    assert np.allclose(kept.predicted, file.predict(judged.theta[[1, 3]]))
    # The way of each is that of the one kept.
    last = {step.step: step.theta for step in kept.path}
    assert set(last) == {0, 3, 6, 9}
    for k, step in enumerate(kept.chosen_step):
        if int(step) in last:
            assert np.allclose(last[int(step)][k], kept.policies.theta[k], atol=1e-6)
    assert len({row.tobytes() for row in judged.theta}) == 6


def test_candidates_without_a_judge_are_refused() -> None:
    with pytest.raises(UsageError, match="has to choose among the candidates") as caught:
        grow(make_file(), restarts=2, candidates=2)
    assert caught.value.where == "--candidates"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"count": 0}, "--from-scratch"),
        ({"count": 100_001}, "--from-scratch"),
        ({"steps": -1}, "--steps"),
        ({"lr": 0.0}, "--lr"),
        ({"lr": float("nan")}, "--lr"),
        ({"radius": 0.0}, "--radius"),
        ({"radius": float("inf")}, "--radius"),
        ({"states": 0}, "--states"),
        ({"restarts": 0}, "--restarts"),
        ({"restarts": 2, "trust_region": False}, "--restarts"),
        ({"restarts": 6, "candidates": 4}, "--candidates"),
        ({"candidates": 0}, "--candidates"),
    ],
)
def test_refused_settings(change: dict[str, Any], where: str) -> None:
    values: dict[str, Any] = {"count": 1, "steps": 1, "lr": 0.1, "seed": 0, **change}
    with pytest.raises(UsageError) as caught:
        SynthesisSettings(**values)
    assert caught.value.where == where


def test_stochastic_and_discrete_policies_grow_too(tmp_path: Path) -> None:
    from libtools import discrete_spec

    for spec in (box_spec(2, (3,), stochastic=True), discrete_spec(2)):
        grown = grow(make_file("psvf", 5, make_data(spec, policies=6)))
        assert grown.policies.spec == spec
        assert np.all(np.isfinite(grown.policies.theta))


def far_away(file: CriticFile) -> CriticFile:
    """The same critic with a region that no fresh policy starts in."""
    center = np.full_like(file.context.region.center, 3.0)
    factor = np.full(len(center), 0.1)
    region = TrustRegion(center, factor, 2.0)
    return dataclasses.replace(file, context=dataclasses.replace(file.context, region=region))


@pytest.mark.parametrize("restarts", [1, 4])
def test_policies_end_inside_wherever_they_start(restarts: int) -> None:
    file = far_away(make_file())
    starts = file.context.region.distance(torch.from_numpy(start_of(file, 0, 3)))
    assert starts.min() > 20
    grown = grow(file, steps=6, restarts=restarts, radius=0.5)
    assert np.all(grown.distance <= 0.5 * (1 + 1e-4))


def test_the_ascent_ends_at_the_best_point_of_the_region() -> None:
    # For a linear objective over a ball the best point is known: center + radius * direction.
    file = make_file("pssvf")
    region = file.context.region
    direction = torch.linspace(1.0, 2.0, file.spec.size)

    def linear(theta: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        del states
        return (theta @ direction).double(), direction.expand_as(theta)

    file.critic.objective_and_gradient = linear  # type: ignore[method-assign]
    grown = grow(file, steps=400, lr=0.05)
    pulled = region.pull_back(direction[None])
    radius = region.quantile
    want = region.colour(radius * pulled / pulled.norm())
    assert np.allclose(grown.policies.theta, want.numpy(), atol=0.02)


def by_actions(kind: str = "psvf", **kwargs: Any) -> CriticFile:
    """A critic that reads policies by their actions, fitted to linear ones."""
    return make_file(kind, 30, make_data(policies=40, length=2), fingerprint=6, **kwargs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [{}, {"hidden": (5, 4)}, {"hidden": (8,), "family": "relu-mlp"}])
def test_every_architecture_climbs_a_critic_of_actions(kind: str, change: dict[str, Any]) -> None:
    file = by_actions(kind)
    before = file.encode()
    grown = grow(file, steps=30, restarts=2, waypoint_every=15, **change)
    assert file.encode() == before
    spec = dataclasses.replace(file.spec, **change)
    assert grown.policies.spec == spec
    assert grown.policies.theta.shape == (3, spec.size)
    assert np.all(grown.distance <= 1.0 + 1e-6)
    first, last = grown.path[0], grown.path[-1]
    assert last.predicted.mean() > first.predicted.mean() + 1e-3
    assert grown.predicted == pytest.approx(file.predict(grown.policies.theta, spec))
    again = grow(file, steps=30, restarts=2, **change)
    assert np.array_equal(again.policies.theta, grown.policies.theta)


def test_without_a_region_an_ascent_by_actions_is_adam() -> None:
    file = by_actions()
    grown = grow(file, steps=15, trust_region=False, lr=0.02)
    states = file.normalised(file.context.observations)
    for k, theta in enumerate(start_of(file, 0, 3)):
        want = adam_by_hand(file, theta, states, 15, 0.02)
        assert np.allclose(grown.policies.theta[k], want, rtol=0, atol=2e-4)


def test_no_step_of_an_ascent_by_actions_leaves_the_region() -> None:
    file = by_actions("pssvf")
    free = grow(file, steps=60, hidden=(6,), trust_region=False, lr=0.1)
    assert file.distance(torch.from_numpy(free.policies.theta), free.policies.spec).min() > 0.6
    held = grow(file, steps=60, hidden=(6,), radius=0.5, lr=0.1, waypoint_every=1)
    for point in held.path:
        distance = file.distance(torch.from_numpy(point.theta), held.policies.spec)
        assert torch.all(distance <= 0.5 + 1e-9)
    assert held.distance.max() > 0.45  # the critic pulls to the edge


@pytest.mark.parametrize("data", [(), (5, 4)])
@pytest.mark.parametrize("hidden", [(), (5, 4)])
def test_the_step_by_actions_goes_by_the_number_of_parameters(
    data: tuple[int, ...], hidden: tuple[int, ...]
) -> None:
    made = make_data(box_spec(hidden=data), policies=40, length=2)
    file = make_file("pssvf", 30, made, fingerprint=6)
    grown = grow(file, steps=1, hidden=hidden, lr=0.05, radius=100.0, waypoint_every=1)
    first, last = (point.theta for point in grown.path)
    # Adam's first step with one size a policy: the root mean square of its change is the rate.
    linear, deep = 2 + 1, 5 * 2 + 5 + 4 * 5 + 4 + 4 + 1
    rate = 0.05 if hidden == () else 0.05 * (linear / deep) ** 0.25
    assert np.sqrt(np.mean((last - first) ** 2, axis=1)) == pytest.approx(rate, rel=1e-3)


def test_starts_that_act_too_unlike_the_data_are_drawn_in_or_refused() -> None:
    file = by_actions()
    far = file.policies(30 * start_of(file, 0, 3))
    assert file.distance(torch.from_numpy(far.theta)).min() > 3
    assert np.all(grow(file, steps=2, given=far).distance <= 1)
    # Two units with tanh compute nearly what the mean policy does, not exactly that.
    with pytest.raises(IncompatibleError, match="cannot be drawn into the trust region") as caught:
        grow(file, steps=2, hidden=(2,), radius=1e-4)
    assert "--radius" in str(caught.value.remedy)


def test_a_policy_at_no_known_distance_is_not_taken_to_be_inside() -> None:
    file = dataclasses.replace(by_actions(), where="critic.st")
    theta = np.full_like(file.context.theta[:2], 3e38)
    with pytest.raises(DivergedError, match=r"^critic.st: the distance of a policy") as caught:
        grow(file, count=2, given=file.policies(theta))
    assert caught.value.exit_code == 8


@pytest.mark.parametrize("fingerprint", [0, 6])
def test_given_policies_climb_from_where_they_are(fingerprint: int) -> None:
    file = make_file("psvf", 30, make_data(policies=40, length=2), fingerprint=fingerprint)
    given = file.policies(file.context.theta[:3])
    here = grow(file, steps=0, given=given, radius=5.0)
    assert np.allclose(here.policies.theta, given.theta, atol=1e-6)
    further = grow(file, steps=30, given=given, radius=5.0)
    assert np.all(further.objective > here.objective)


def test_given_policies_of_another_normaliser_are_re_expressed() -> None:
    file = by_actions()
    theta = file.context.theta[:3]
    mean, std = np.full((3, 2), 0.3), np.full((3, 2), 1.7)
    given = Policies(file.spec, theta, mean, std)
    grown = grow(file, steps=0, given=given, radius=5.0)
    assert np.all(grown.policies.obs_std == file.normaliser.std)
    want = given.in_normaliser(file.normaliser.mean, file.normaliser.std)
    assert np.allclose(grown.policies.theta, want, atol=1e-6)
    assert not np.allclose(want, theta, atol=0.1)


def test_the_nearest_policy_of_the_data_is_the_one_that_acts_alike() -> None:
    file = by_actions()
    deep = dataclasses.replace(file.spec, hidden=(2,), family="relu-mlp")
    # Row k of the data as a network with hidden units: relu(x) - relu(-x) is x.
    rows = [7, 3, 11]
    known = file.context.theta[rows]
    weight, bias = known[:, :2], known[:, 2:]
    ends = np.tile([1.0, -1.0, 0.0], (3, 1))
    theta = np.concatenate([weight, -weight, bias, -bias, ends], axis=1).astype(np.float32)
    near = closest_policies(file, file.policies(theta, deep))
    assert near.spec == file.spec
    assert np.array_equal(near.theta, known)


@pytest.mark.parametrize("trust_region", [False, True])
def test_in_bfloat16_policies_climb_to_about_where_they_do_in_float32(
    trust_region: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "has_bfloat16", lambda device: True)
    file = make_file(hidden=(16, 16), updates=50)
    whole, low = (
        grow(file, trust_region=trust_region, precision=precision)
        for precision in ("float32", "bfloat16")
    )
    moved = np.linalg.norm(whole.policies.theta - start_of(file, 0, 3))
    assert 0 < np.linalg.norm(low.policies.theta - whole.policies.theta) < 0.1 * moved
    # What the critic says of them is said in float32.
    assert np.array_equal(low.predicted, file.predict(low.policies))


def test_bfloat16_is_refused_where_the_device_has_no_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "has_bfloat16", lambda device: False)
    with pytest.raises(UsageError, match="--precision: this cpu has no instructions for bfloat16"):
        grow(make_file(), precision="bfloat16")

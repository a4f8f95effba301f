"""What critics are told of imagined policies, by hand-worked numbers."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch

from libtools import box_spec, fit_settings, make_data, make_policies
from model_tools import SETTINGS, held_out, played
from pbvf_offline.critics import TrainingSet
from pbvf_offline.fit.loop import start_fit, training_set
from pbvf_offline.models.choice import train
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import Imagined, imagine
from pbvf_offline.models.scales import Scales
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.models.trajectories import imagined_trajectories
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.synthesis.examples import Scale, StepExamples, examples_for, lowered
from pbvf_offline.synthesis.model_evaluation import ImaginedReturns, ModelEvaluator

CPU = torch.device("cpu")
ASIS = Scale(0.0, 1.0)


def told(cautious: list[float], mean: list[float], length: list[float]) -> ImaginedReturns:
    by = np.array(mean) - np.array(cautious)  # what one deviation takes off
    members = np.stack([mean - by, mean + by], axis=1)
    return ImaginedReturns(members, np.array(length), np.zeros((1, 1)), caution=1.0)


def episodes(rewards: list[list[float]], policy: list[int]) -> Trajectories:
    lengths = np.array([len(r) for r in rewards])
    start = np.append(0, np.cumsum(lengths))
    last = np.zeros(start[-1], bool)
    last[start[1:] - 1] = True
    return Trajectories(
        policies=make_policies(box_spec(1), max(policy) + 1),
        observations=np.zeros((start[-1] + len(rewards), 1)),
        actions=np.zeros((start[-1], 1), np.float32),
        rewards=np.concatenate([np.array(r, float) for r in rewards]),
        terminated=last,
        truncated=np.zeros_like(last),
        policy=np.repeat(np.array(policy, np.int32), lengths),
        start=start,
        cut=np.zeros(len(rewards), bool),
        seeds=np.full(len(rewards), -1),
    )


def test_rewards_are_lowered_to_the_cautious_return() -> None:
    """Policy 0 has episodes of 4 and 2 steps in two members, which pay 10 and 2.

    Their mean is 6, their population standard deviation 4, so with a caution of 1 the policy has
    2. Each of its rewards, of 3 an episode, is lowered by (6 - 2) / 3. In policy 1 the members
    agree.
    """
    data = episodes([[1, 2, 3, 4], [2, 0], [5], [5]], [0, 0, 1, 1])
    played_out = told([2.0, 5.0], [6.0, 5.0], [3.0, 1.0])
    down = lowered(data, played_out, played_out.limited())
    by = 4 / 3
    np.testing.assert_allclose(down.rewards, [1 - by, 2 - by, 3 - by, 4 - by, 2 - by, 0 - by, 5, 5])
    assert down.returns()[:2].mean() == pytest.approx(2.0)
    assert down.returns()[2:].tolist() == [5.0, 5.0]


def test_what_is_earned_beyond_the_box_counts_up_to_a_level() -> None:
    """Two networks agree; of what they imagine, 1, 1 and 9 are earned inside the box."""
    inside, all_imagined = (np.repeat([[a], [b], [9.0]], 2, 1) for a, b in ((1, 1), (4, 8)))
    played_out = ImaginedReturns(
        inside, np.full(3, 2.0), np.zeros((1, 1)), caution=1.0, free=all_imagined
    )
    assert played_out.cautious.tolist() == [1, 1, 9]
    assert played_out.limited().tolist() == [4, 8, 9]
    assert played_out.limited(6.0).tolist() == [4, 6, 9]
    assert played_out.limited(0.0).tolist() == [1, 1, 9]
    data = episodes([[2, 2], [5, 3]], [0, 1])
    both = ImaginedReturns(inside[:2], np.full(2, 2.0), np.zeros((1, 1)), free=all_imagined[:2])
    assert lowered(data, both, both.limited(6.0)).returns().tolist() == [4.0, 6.0]


def test_members_that_agree_only_after_the_limit_are_worth_no_more() -> None:
    """One network imagines 300, of which 60 are inside the box; the others imagine 50."""
    free, inside = np.array([[300.0, 50, 50, 50]]), np.array([[60.0, 50, 50, 50]])
    limited = ImaginedReturns(inside, np.full(1, 9.0), np.zeros((1, 1)), caution=1.0, free=free)
    worth = 112.5 - np.sqrt(3 / 16) * 250
    assert limited.cautious == pytest.approx(worth)
    assert limited.cautious == pytest.approx(limited.limited(0.0))
    ends, without = limited.interval, dataclasses.replace(limited, members=free).interval
    alone = dataclasses.replace(limited, free=None)
    assert ends is not None
    assert without is not None
    assert alone.interval is not None
    assert ends[0] == without[0] < alone.interval[0]
    assert ends[1] == without[1] > alone.interval[1]  # what the check measured is without limits
    assert alone.cautious > limited.cautious


def test_discounted_targets_of_lowered_rewards_by_hand() -> None:
    """gamma 1/2, two steps ahead: of [4, 2, 8] lowered by 1, [3, 1, 7], that terminates."""
    data = episodes([[4, 2, 8], [4, 2, 8]], [0, 0])
    fit = start_fit(data, fit_settings("psvf", gamma=0.5, n_step=2), CPU)
    down = lowered(data, told([11.0], [14.0], [3.0]), np.array([11.0]))
    whole = training_set(fit, down, CPU)
    np.testing.assert_allclose(whole.value[:3], [3 + 0.5 * 1, 1 + 0.5 * 7, 7])
    assert whole.discount is not None
    np.testing.assert_allclose(whole.discount[:3], [0.25, 0, 0])


def test_the_scale_of_discounted_values_by_hand() -> None:
    """3 steps that earn 2 each are worth 2 + 1 + 1/2 at gamma 1/2; one that earns 1.5 is 1.5."""
    played_out = told([6.0, 1.5], [9.0, 1.5], [3.0, 1.0])
    assert Scale.of(played_out, 0.5) == Scale(pytest.approx(2.5), pytest.approx(1.0))
    assert Scale.of(played_out, 1.0) == Scale(3.75, 2.25)
    alike = told([-500.0, -500.0], [-500.0, -500.0], [3.0, 1.0])
    assert Scale.of(alike, 1.0) == Scale(-500.0, 5.0)
    assert Scale.of(told([0.0], [0.0], [1.0]), 1.0) == Scale(0.0, 0.01)
    tiny = Scale.of(told([1e-12, 3e-12], [1.0, 1.0], [1.0, 1.0]), 1.0)
    assert tiny.unit == pytest.approx(1e-12)


def to_target(obs, action, rng):  # type: ignore[no-untyped-def]
    ahead = 0.95 * obs + 0.2 * np.asarray(action, float)
    return ahead, -float((ahead[0] - 1.0) ** 2), bool(ahead[0] > 1.2)


@pytest.fixture(scope="module")
def evaluator() -> ModelEvaluator:
    some = played(make_policies(box_spec(1), 40), to_target, np.zeros((40, 1)), 60)
    return ModelEvaluator(
        train(some, held_out(some), SETTINGS, 300), np.array([[-0.2], [0.0], [0.3]]), 60, 1.0
    )


def listened(evaluator: ModelEvaluator, kind: str, *, record: bool, settings=None):  # type: ignore[no-untyped-def]
    policies = make_policies(box_spec(1), 6, seed=5)
    heard: list[tuple[Imagined, ImaginedReturns]] = []
    data = make_data(box_spec(1))
    fit = start_fit(data, settings or fit_settings(kind), CPU)
    examples = examples_for(fit, evaluator.ensemble, np.random.default_rng(1))
    assert examples.records == record

    def after(some, imagined, came_to):  # type: ignore[no-untyped-def]
        heard.append((imagined, came_to))
        examples.add(some, imagined, came_to, came_to.limited())

    said = evaluator.play(
        policies, evaluator.initial, np.random.default_rng(0), record=record, after_block=after
    )
    return policies, fit, examples, heard, said


def test_a_critic_of_returns_is_told_each_policys_cautious_return(
    evaluator: ModelEvaluator,
) -> None:
    policies, _, examples, heard, said = listened(
        evaluator, "pssvf", record=False, settings=fit_settings("pssvf", gamma=1.0)
    )
    assert len(heard) == 1
    assert heard[0][0].recording is None
    once = examples.training_set(Scale(2.0, 4.0))
    np.testing.assert_array_equal(once.theta.numpy(), policies.theta)
    expected = ((said.limited() - 2.0) / 4.0).astype(np.float32)
    np.testing.assert_array_equal(once.value.numpy(), expected)
    examples.add(policies, heard[0][0], said, said.limited())
    assert len(examples.training_set(ASIS)) == 12


def told_steps(evaluator: ModelEvaluator) -> tuple[TrainingSet, TrainingSet, Trajectories]:
    """What is told, what could have been, and the episodes."""
    policies, fit, examples, heard, said = listened(evaluator, "psvf", record=True)
    assert len(heard) == 1
    imagined = heard[0][0]
    assert imagined.recording is not None
    data = lowered(
        imagined_trajectories(evaluator.ensemble, policies, imagined.recording, imagined.lengths),
        said,
        said.limited(),
    )
    return examples.training_set(ASIS), training_set(fit, data, CPU), data


def test_a_critic_of_steps_is_told_some_steps_with_whole_targets(evaluator: ModelEvaluator) -> None:
    some, whole, data = told_steps(evaluator)
    assert some.obs is not None
    assert whole.obs is not None
    assert len(some) == 6 * 128
    assert len(some.obs) < len(whole.obs)
    steps: list[int] = []
    for name in ("obs_row", "boot_row"):
        seen, full = getattr(some, name), getattr(whole, name)[:]
        states = some.obs[seen].numpy()
        if name == "obs_row":  # the state, the policy and the value tell a step
            rows = {
                (p, s, v): i
                for i, (p, s, v) in enumerate(
                    zip(
                        whole.policy[:].tolist(),
                        whole.obs[full][:, 0].tolist(),
                        whole.value[:].tolist(),
                        strict=True,
                    )
                )
            }
            steps = [
                rows[key]
                for key in zip(
                    some.policy.tolist(), states[:, 0].tolist(), some.value.tolist(), strict=True
                )
            ]
        np.testing.assert_array_equal(states, whole.obs[full[steps]].numpy())
    assert set(data.start[:-1].tolist()) <= set(steps)  # every episode's first step
    assert some.discount is not None
    assert whole.discount is not None
    np.testing.assert_array_equal(some.discount[:], whole.discount[torch.tensor(steps)])
    assert some.bounds == whole.bounds


def test_fewer_policies_at_a_time_tell_the_same_values(
    evaluator: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pbvf_offline.synthesis import model_evaluation as module

    together = told_steps(evaluator)[0]
    monkeypatch.setattr(module, "_RECORDED", 1)  # no option makes observations wide enough
    _, _, examples, heard, _ = listened(evaluator, "psvf", record=True)
    assert len(heard) == 6
    apart = examples.training_set(ASIS)
    assert len(apart) == len(together)
    np.testing.assert_array_equal(apart.policy, together.policy)
    np.testing.assert_allclose(apart.theta, together.theta)


def test_fewer_steps_are_told_where_observations_are_wide() -> None:
    spec = box_spec(400)
    ensemble = Ensemble(spec, wide_scales(), ModelSettings(0, 2, (4,)))
    place = ModelEvaluator(ensemble, np.zeros((3, 400)), 60, 1.0)
    fit = start_fit(make_data(spec), fit_settings("psvf"), CPU)
    examples = examples_for(fit, ensemble, np.random.default_rng(1))
    place.play(
        make_policies(spec, 2), place.initial, np.random.default_rng(0), record=True,
        after_block=lambda *heard: examples.add(*heard, heard[2].limited()),
    )  # fmt: skip
    assert len(examples.training_set(ASIS)) == 2 * 40  # 2^14 numbers are 40 observations


def wide_scales() -> Scales:
    data = make_data(box_spec(400))
    return dataclasses.replace(Scales.of(data, np.arange(len(data))), ends=False)


def test_values_in_a_scale_solve_the_same_equation(evaluator: ModelEvaluator) -> None:
    _, _, examples, *_ = listened(evaluator, "psvf", record=True)
    raw, scaled = examples.training_set(ASIS), examples.training_set(Scale(-3.0, 7.0))
    ahead = torch.linspace(-50, 50, len(raw))
    assert raw.discount is not None
    values = raw.value + raw.discount * ahead
    inside = scaled.value + raw.discount * (ahead + 3.0) / 7.0
    torch.testing.assert_close((values + 3.0) / 7.0, inside)
    bounded = fit_settings("psvf", bound_values=True)
    _, _, examples, *_ = listened(evaluator, "psvf", record=True, settings=bounded)
    low, high = examples.training_set(ASIS).bounds or (0.0, 0.0)
    assert low < high
    expected = ((low + 3.0) / 7.0, (high + 3.0) / 7.0)
    assert examples.training_set(Scale(-3.0, 7.0)).bounds == pytest.approx(expected)


def test_episodes_that_were_not_recorded_tell_no_steps(evaluator: ModelEvaluator) -> None:
    policies, _, _, heard, said = listened(
        evaluator, "pssvf", record=False, settings=fit_settings("pssvf", gamma=1.0)
    )
    of_steps = start_fit(make_data(box_spec(1)), fit_settings("psvf"), CPU)
    examples = StepExamples(of_steps, evaluator.ensemble, np.random.default_rng(0))
    with pytest.raises(ValueError, match="were not recorded"):
        examples.add(policies, heard[0][0], said, said.limited())


def test_what_a_policy_came_to_is_what_the_model_says(evaluator: ModelEvaluator) -> None:
    policies = make_policies(box_spec(1), 6, seed=5)
    said = evaluator.play(policies, evaluator.initial, np.random.default_rng(0))
    own = evaluator.ensemble.scales.normaliser
    theta = policies.in_normaliser(own.mean, own.std)
    out = imagine(evaluator.ensemble, policies.spec, theta, evaluator.initial, evaluator.horizon)
    members = out.member_values()
    np.testing.assert_allclose(said.limited(), members.mean(axis=1) - members.std(axis=1))
    trusted = out.trusted.mean(axis=1)
    assert np.all(said.mean <= members.mean(axis=1))
    np.testing.assert_allclose(said.mean, trusted.mean(axis=1))
    np.testing.assert_allclose(said.cautious, trusted.mean(axis=1) - trusted.std(axis=1))
    np.testing.assert_allclose(said.lengths, out.lengths.mean(axis=(1, 2)))
    cautious = dataclasses.replace(evaluator, caution=0.0)
    free = cautious.play(policies, evaluator.initial, np.random.default_rng(0))
    np.testing.assert_array_equal(free.cautious, free.mean)


def test_returns_that_are_nearly_alike_are_told_without_a_warning() -> None:
    """In their scale they are below 0.01, which is no matter of the data's rewards."""
    fit = start_fit(make_data(box_spec(1)), fit_settings("pssvf", gamma=1.0), CPU)
    policies, values = make_policies(box_spec(1), 6), np.linspace(-500.0, -499.98, 6)
    said = told(values.tolist(), values.tolist(), [500.0] * 6)
    examples = examples_for(fit, None, np.random.default_rng(0))  # type: ignore[arg-type]
    examples.add(policies, None, said, values)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entries = examples.training_set(Scale.of(said, 1.0))
    assert float(entries.value.abs().max()) < 0.01

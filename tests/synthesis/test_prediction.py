"""What a critic says of policies: values, intervals, and what a learned environment foretells."""

from __future__ import annotations

import dataclasses
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, make_data, make_file, make_policies
from model_tools import SETTINGS, TARGET_HORIZON, held_out, played, target_data, to_target
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DivergedError, IncompatibleError, PbvfError, UsageError
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.fit.rounds import ImaginedFit, Round, RoundSettings
from pbvf_offline.models.calibration import Calibration
from pbvf_offline.models.check import HorizonCheck, ModelCheck
from pbvf_offline.models.choice import train
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import imagine
from pbvf_offline.models.model_file import ModelFile
from pbvf_offline.models.noise import action_noise
from pbvf_offline.models.scales import RewardScale
from pbvf_offline.models.training import start_training
from pbvf_offline.policies.policy import Policies
from pbvf_offline.seeding import Stream, generator
from pbvf_offline.synthesis.ascent import synthesize
from pbvf_offline.synthesis.model_evaluation import (
    ImaginedReturns,
    ModelEvaluator,
    best_of_the_data,
    known_horizon,
    refuse_unfit,
    together,
)
from pbvf_offline.synthesis.prediction import held_out_errors, predict
from pbvf_offline.synthesis.settings import SynthesisSettings


@cache
def learned_model() -> ModelFile:
    learned = train(target_data(), held_out(target_data()), SETTINGS, 1_000)
    starts = target_data().initial_observations
    return ModelFile(start_training(learned, 1_000), {}, None, "d" * 64, starts)


def evaluator() -> ModelEvaluator:
    return ModelEvaluator.of(learned_model(), TARGET_HORIZON)


def returns(members: list[list[float]], **more: Any) -> ImaginedReturns:
    """Imagined returns of episodes of 10 steps."""
    count = len(members)
    return ImaginedReturns(np.array(members), np.full(count, 10.0), np.zeros((1, 1)), **more)


def test_policies_on_the_border_of_the_region_are_inside() -> None:
    file = make_file("psvf", 30, make_data(policies=40, length=2))
    grown = synthesize(file, SynthesisSettings(64, 60, 1.0, 0, restarts=1))
    assert np.mean(grown.distance > 0.999) > 0.5  # most end on the border, where rounding decides
    assert predict(file, grown.policies).inside.all()
    beyond = file.context.theta.mean(axis=0)
    beyond = beyond + 1.01 * (grown.policies.theta - beyond)
    on_border = grown.distance > 0.999
    assert not predict(file, file.policies(beyond[on_border])).inside.any()


def test_values_regions_and_order() -> None:
    file = make_file("psvf", 30, make_data(policies=40, length=2))
    theta = np.concatenate([file.context.theta[:5], 20 * file.context.theta[5:8]])
    said = predict(file, file.policies(theta))
    assert np.array_equal(said.predicted, file.predict(theta))
    assert said.inside[5:].tolist() == [False] * 3
    assert said.inside[:5].sum() >= 4
    assert np.all(np.diff(said.predicted[said.order]) <= 0)
    assert sorted(said.order.tolist()) == list(range(8))
    assert said.imagined is None
    assert said.interval_of is None
    assert np.all(np.isnan(said.low))
    assert np.all(np.isnan(said.high))


def test_more_policies_than_are_asked_at_once() -> None:
    file = make_file("psvf", 5)
    theta = make_policies(file.spec, 600).theta
    whole = predict(file, file.policies(theta))
    part = predict(file, file.policies(theta[255:258]))
    assert np.allclose(whole.predicted[255:258], part.predicted, atol=1e-6)


@pytest.mark.parametrize("fingerprint", [0, 4])
def test_policies_of_another_normaliser_are_re_expressed(fingerprint: int) -> None:
    file = make_file("psvf", 20, fingerprint=fingerprint)
    own = file.policies(file.context.theta)
    mean, std = np.array([1.5, -0.5]), np.array([0.5, 3.0])
    rows = len(own)
    other = Policies(
        own.spec, own.in_normaliser(mean, std), np.tile(mean, (rows, 1)), np.tile(std, (rows, 1))
    )
    assert not np.allclose(other.theta, own.theta, atol=0.1)
    assert np.allclose(predict(file, other).predicted, predict(file, own).predicted, atol=1e-5)


def test_thetas_may_be_whatever_numpy_takes_for_numbers() -> None:
    file = make_file()
    theta = file.context.theta[:2]
    want = file.predict(theta)
    backwards = np.ascontiguousarray(theta[::-1])[::-1]
    fixed = theta.copy()
    fixed.flags.writeable = False
    objects = tuple(theta.astype(object))
    for given in (theta, theta.astype(np.float64), theta.tolist(), objects, backwards, fixed):
        assert np.array_equal(file.predict(given), want)
        assert np.array_equal(predict(file, given).predicted, want)
    assert file.predict(theta[:0]).shape == predict(file, theta[:0]).predicted.shape == (0,)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ([[1.0], [2.0, 3.0]], UsageError, r"no array of numbers: .*give Policies, or thetas of sh"),
        ("policies.safetensors", UsageError, "no numbers, but <U20"),
        ([["1.5", "2", "3"]], UsageError, "no numbers, but <U3"),
        ([[1j, 2.0, 3.0]], UsageError, "no numbers, but complex128"),
        ([[10**400, 2.0, 3.0]], UsageError, "no numbers, but object"),
        ([[None, 2.0, 3.0]], UsageError, "no numbers, but object"),
        ([1.0, 2.0, 3.0], IncompatibleError, r"have shape \(3,\), and \(K, 3\) is needed"),
    ],
)
def test_what_are_no_thetas_is_said(given: Any, kind: type[PbvfError], words: str) -> None:
    for asked in (make_file().predict, partial(predict, make_file())):
        with pytest.raises(kind, match=words):
            asked(given)


def test_predictions_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "critic.st"
    make_file("psvf", 5).save(path)
    file = load_critic(path)
    theta = file.context.theta[:4].copy()
    theta[1] = 3e38  # whose products with weights are infinite
    with pytest.raises(DivergedError, match=r"critic.st: .* for 1 of 4 policies are not") as caught:
        predict(file, file.policies(theta))
    assert caught.value.where == str(path)
    with torch.no_grad():
        for weight in file.critic.network.parameters():
            weight.fill_(3e38)
    with pytest.raises(DivergedError, match=r"for 3 of 3 policies are not finite; fit it"):
        predict(file, file.policies(theta[[0, 2, 3]]))


def test_other_architectures_need_a_fingerprint() -> None:
    deep = dataclasses.replace(make_file().spec, hidden=(4,))
    policies = make_policies(deep, 3)
    assert len(predict(make_file(fingerprint=4), policies).predicted) == 3
    with pytest.raises(IncompatibleError, match="--fingerprint"):
        predict(make_file(), policies)


# --------------------------------------------------------------- intervals by held-out errors


def errors(count: int) -> dict[str, Any]:
    """Policies predicted at 10 whose observed returns are 11, 12, 13, …, in another order."""
    order = np.random.default_rng(0).permutation(count)
    return {"predicted": [10.0] * count, "observed": [11.0 + k for k in order]}


@pytest.mark.parametrize(
    ("count", "ends"),
    [(18, None), (19, (1.0, 19.0)), (38, (1.0, 38.0)), (39, (2.0, 38.0)), (99, (5.0, 95.0))],
)
def test_ends_by_hand(count: int, ends: tuple[float, float] | None) -> None:
    assert held_out_errors(errors(count)) == ends


@pytest.mark.parametrize(
    "validation",
    [
        None,
        {},
        {"predicted": [1.0] * 30},
        {"predicted": [1.0] * 30, "observed": [1.0] * 29},
        {"predicted": [1.0] * 30, "observed": ["1"] * 30},
        {"predicted": [1.0] * 30, "observed": [True] * 30},
        {"predicted": 3, "observed": 3},
    ],
)
def test_nothing_to_build_an_interval_on(validation: dict[str, Any] | None) -> None:
    assert held_out_errors(validation) is None


def test_nine_of_ten_like_policies_are_in_the_interval() -> None:
    rng = np.random.default_rng(0)
    held = []
    for _ in range(300):
        drawn = rng.standard_t(3, 61)
        ends = held_out_errors({"predicted": [0.0] * 60, "observed": drawn[:60].tolist()})
        assert ends is not None
        held.append(ends[0] <= drawn[60] <= ends[1])
    assert 0.87 <= np.mean(held) <= 0.97


@pytest.mark.parametrize("kind", ["pssvf", "psvf"])
def test_an_interval_is_of_what_is_predicted_and_known(kind: str) -> None:
    file = make_file(kind, 30, make_data(policies=60), validation=0.5)
    theta = np.concatenate([file.context.theta[:4], 30 * file.context.theta[4:6]])
    said = predict(file, file.policies(theta))
    if kind == "psvf":  # held-out returns are of segments, its value is of more
        assert said.interval_of is None
        assert np.all(np.isnan(said.low))
        return
    least, most = held_out_errors(file.validation) or (0.0, 0.0)
    assert said.interval_of == "predicted"
    assert said.low[said.inside] == pytest.approx(said.predicted[said.inside] + least)
    assert said.high[said.inside] == pytest.approx(said.predicted[said.inside] + most)
    assert least < most
    assert np.all(np.isnan(said.low[~said.inside]))
    assert not said.inside[4:].any()


# ------------------------------------------------------------------------- imagined returns


def test_foreseen_returns_are_those_of_the_environment() -> None:
    policies = make_policies(box_spec(1), 30, seed=5)
    imagined = evaluator().evaluate(policies)
    true = np.zeros(30)
    first = learned_model().initial_observations[np.linspace(0, 59, 16).astype(int)]
    for k in range(30):
        total = 0.0
        for start in first:
            obs = start
            for _ in range(TARGET_HORIZON):
                obs, reward, _ = to_target(obs, policies.actor(k).act(obs, None)[0], None)
                total += reward
        true[k] = total / 16
    assert np.corrcoef(imagined.mean, true)[0, 1] > 0.98
    assert np.abs(imagined.mean - true).max() < 0.2 * np.ptp(true)


def test_a_policy_is_foreseen_alike_alone_and_among_others() -> None:
    policies = make_policies(box_spec(1), 70, seed=5)
    told: list[tuple[int, int]] = []
    whole = evaluator().evaluate(policies, progress=lambda done, total: told.append((done, total)))
    assert told == [(64, 70), (70, 70)]
    alone = evaluator().evaluate(policies.select([66]))
    assert alone.mean[0] == pytest.approx(whole.mean[66], abs=1e-4)
    ensemble, mean = learned_model().ensemble, learned_model().ensemble.scales.normaliser
    first = learned_model().initial_observations[np.linspace(0, 59, 16).astype(int)]
    theta = policies.in_normaliser(mean.mean, mean.std)[66:67]
    members = imagine(ensemble, policies.spec, theta, first, TARGET_HORIZON).member_values()[0]
    assert alone.members[0] == pytest.approx(members)


def test_caution_and_interval_by_hand() -> None:
    imagined = returns([[10.0, 10.0], [7.0, 13.0]])
    assert imagined.mean.tolist() == [10.0, 10.0]
    assert imagined.cautious.tolist() == [10.0, 7.0]
    assert imagined.interval is not None
    low, high = imagined.interval
    assert low[0] == high[0] == 10.0
    half = 6.313752 * np.sqrt(18.0) * np.sqrt(1.5)  # t with 1 degree of freedom
    assert (low[1], high[1]) == (pytest.approx(10 - half), pytest.approx(10 + half))


def test_an_interval_reaches_as_far_as_with_and_without_what_limits_take_off() -> None:
    measured = Calibration(factor=1.0, floor=0.0, pieces=50)
    imagined = returns([[8.0, 8.0]], calibration=measured)
    imagined = dataclasses.replace(imagined, free=np.array([[10.0, 30.0]]))
    assert imagined.interval is not None
    low, high = imagined.interval
    half = np.sqrt(200.0)  # of 20 ± 10, without the limits
    assert (low[0], high[0]) == (pytest.approx(20 - half), pytest.approx(20 + half))
    imagined = dataclasses.replace(imagined, free=np.array([[10.0, 10.0]]))
    assert imagined.interval is not None
    assert [end[0] for end in imagined.interval] == [8.0, 10.0]


def test_intervals_are_as_wide_as_the_check_found() -> None:
    """By hand: 2 sqrt(18 + (0.4 * 10)²), where 18 is the sample variance of 7 and 13."""
    measured = Calibration(factor=2.0, floor=0.4, pieces=50)
    imagined = returns([[10.0, 10.0], [7.0, 13.0]], calibration=measured)
    assert imagined.interval is not None
    low, high = imagined.interval
    assert (low[0], high[0]) == (pytest.approx(2.0), pytest.approx(18.0))
    half = 2 * np.sqrt(18 + 16)
    assert (low[1], high[1]) == (pytest.approx(10 - half), pytest.approx(10 + half))


@pytest.mark.parametrize("calibration", [None, Calibration(factor=2.0, floor=0.4, pieces=50)])
def test_of_longer_episodes_than_the_check_saw_there_is_no_interval(
    calibration: Calibration | None,
) -> None:
    imagined = returns([[10.0, 10.0], [7.0, 13.0]], calibration=calibration)
    imagined = dataclasses.replace(imagined, lengths=np.array([9.5, 10.0]))
    both = dataclasses.replace(imagined, unseen=10)
    assert both.interval is not None
    assert imagined.interval is not None
    for end, known in zip(both.interval, imagined.interval, strict=True):
        assert end[0] == known[0]
        assert np.isnan(end[1])
    lists = [[float(end[0]), None] for end in imagined.interval]
    assert both.interval_lists == lists
    assert together([both, both]).unseen == 10


def test_the_interval_of_a_prediction_is_that_of_the_models_check() -> None:
    measured = Calibration(factor=3.0, floor=0.5, pieces=50)
    good = HorizonCheck(200, 50, 0.9, 1.0, 1.0, 2.0, 0.5, 0.1)
    checked = dataclasses.replace(
        learned_model(), check=ModelCheck((good,), None, None, 200, measured)
    )
    file = make_file("pssvf", 20, target_data(), fingerprint=4)
    policies = make_policies(box_spec(1), 5, seed=9)
    said = predict(file, policies, ModelEvaluator.of(checked, TARGET_HORIZON))
    members = evaluator().evaluate(policies).members
    half = 3.0 * np.hypot(members.std(axis=1, ddof=1), 0.5 * TARGET_HORIZON)
    np.testing.assert_allclose(said.low, members.mean(axis=1) - half)
    np.testing.assert_allclose(said.high, members.mean(axis=1) + half)


def test_action_noise_is_drawn_anew_and_counts_as_spread() -> None:
    """A model of equal networks: what the members disagree by is the noise alone."""
    spec = box_spec(1, stochastic=True)
    starts = np.zeros((30, 1))
    some = played(make_policies(spec, 30), to_target, starts, TARGET_HORIZON)
    learned = train(some, held_out(some), SETTINGS, 20)
    with torch.no_grad():
        for parameter in learned.parameters():
            parameter.copy_(parameter[:1].expand_as(parameter))
    model = dataclasses.replace(learned_model(), fit=start_training(learned, 20))
    policies = make_policies(spec, 3, seed=5)
    own = ModelEvaluator.of(model, TARGET_HORIZON)
    imagined = own.evaluate(policies)
    assert np.all(np.ptp(imagined.members, axis=1) > 1e-3)
    assert np.array_equal(imagined.members, own.evaluate(policies).members)
    # The first round of a search with the model's own seed has other noise.
    first = model.initial_observations[np.linspace(0, 59, 16).astype(int)]
    normaliser = learned.scales.normaliser
    theta = policies.in_normaliser(normaliser.mean, normaliser.std)
    for place in ((), (0, 0), (0, 1)):
        rng = generator(SETTINGS.seed, Stream.IMAGINED_ACTION, *place)
        noise = action_noise(spec, rng, TARGET_HORIZON, 2, 16)
        seen = imagine(learned, spec, theta, first, TARGET_HORIZON, noise=noise).member_values()
        assert not np.allclose(seen, imagined.members, rtol=1e-3)


def test_one_network_has_an_imagined_return_and_no_interval() -> None:
    alone = returns([[3.0], [5.0]])
    assert alone.cautious.tolist() == [3.0, 5.0]
    assert alone.interval is None
    learned = train(
        target_data(), held_out(target_data()), dataclasses.replace(SETTINGS, members=1), 20
    )
    model = dataclasses.replace(learned_model(), fit=start_training(learned, 20))
    file = make_file("pssvf", 20, target_data(), fingerprint=4)
    said = predict(file, make_policies(box_spec(1), 3), ModelEvaluator.of(model, TARGET_HORIZON))
    assert said.imagined is not None
    assert said.interval_of is None
    assert np.all(np.isnan(said.low))
    assert np.all(np.isnan(said.high))


def test_with_a_model_the_interval_is_of_the_imagined_return() -> None:
    file = make_file("pssvf", 20, target_data(), fingerprint=4)
    policies = make_policies(box_spec(1), 5, seed=9)
    said = predict(file, policies, evaluator())
    imagined = evaluator().evaluate(policies)
    assert said.interval_of == "imagined"
    assert np.array_equal(said.imagined, imagined.mean)
    assert np.all(said.low <= imagined.mean)
    assert np.all(imagined.mean <= said.high)
    assert np.all(np.diff(said.predicted[said.order]) <= 0)  # still by the critic's value
    deep = make_policies(box_spec(1, (5,)), 2)
    assert predict(file, deep, evaluator()).imagined is not None
    with pytest.raises(IncompatibleError, match="the policies observe 2 numbers"):
        evaluator().evaluate(make_policies(box_spec(2), 2))


@pytest.mark.parametrize("steps", [0, 10**9])
def test_an_episode_has_a_number_of_steps_that_can_be_imagined(steps: int) -> None:
    with pytest.raises(UsageError, match=f"an episode of {steps:,} steps cannot be imagined"):
        ModelEvaluator.of(learned_model(), steps)


def test_how_long_an_episode_is() -> None:
    file, model = make_file(), dataclasses.replace(learned_model(), environment=None)
    context = dataclasses.replace(file.context, environment=EnvReference("Pendulum-v1"))
    assert known_horizon(dataclasses.replace(file, context=context), model)[0] == 200
    done = Round(0, 1, 0.0, 0.0, 0.0, 0.0)
    rounds = ImaginedFit("1" * 64, 77, RoundSettings(seed=0, lr=0.1), done, (done,))
    assert known_horizon(dataclasses.replace(file, imagined=rounds), model)[0] == 77
    checked = dataclasses.replace(model, check=ModelCheck((), None, None, 33))
    for environment in (None, EnvReference("Nowhere-v0")):
        context = dataclasses.replace(file.context, environment=environment)
        other = dataclasses.replace(file, context=context)
        said = known_horizon(other, checked)
        assert said == (33, "the longest episode of the model's data")
        limited = EnvReference("Nowhere-v0", kwargs={"max_episode_steps": 12})
        assert known_horizon(other, dataclasses.replace(checked, environment=limited))[0] == 12
        with pytest.raises(UsageError, match="how many steps"):
            known_horizon(other, model)
        timed = dataclasses.replace(model, check=ModelCheck((), None, None, 33, time_limit=30))
        assert known_horizon(other, timed) == (30, "the time limit in the model's data")


def test_of_many_candidates_the_best_from_few_states_are_played_from_all() -> None:
    learned, policies = evaluator(), make_policies(box_spec(1), 24)
    few = learned.evaluate(policies.select(np.arange(8)))
    assert np.array_equal(learned.judge(policies.select(np.arange(8)), 8), few.cautious)
    values = learned.judge(policies, 12).reshape(2, 12)
    first = learned.evaluate(policies, starts=4).cautious.reshape(2, 12)
    whole = learned.evaluate(policies).cautious.reshape(2, 12)
    for found, glance, full in zip(values, first, whole, strict=True):
        played = np.isfinite(found)
        assert played.sum() == 8
        assert glance[played].min() >= glance[~played].max()
        np.testing.assert_allclose(found[played], full[played], rtol=1e-5)
        assert np.all(found[~played] == -np.inf)


@pytest.mark.parametrize("reward", [1e308, 5e306])
def test_returns_that_are_no_numbers_are_refused(reward: float) -> None:
    """Each step pays nearly as much as a number can be, or each episode does."""
    known = evaluator().ensemble
    scales = dataclasses.replace(
        known.scales, reward=RewardScale(mean=reward, std=1.0, low=reward, high=reward)
    )
    huge = Ensemble(known.spec, scales, known.settings)
    asked = dataclasses.replace(evaluator(), ensemble=huge, where="model.st")
    with pytest.raises(DivergedError, match=r"^model.st: the .* not finite; learn it again"):
        asked.evaluate(make_policies(box_spec(1), 2))


def test_how_long_an_episode_is_does_not_hang_on_what_was_imported() -> None:
    """The environment's own limit is known only once its module is imported."""
    learned = learned_model()
    file, model = make_file(), dataclasses.replace(learned, environment=None)
    checked = dataclasses.replace(model, check=ModelCheck((), None, None, 33))
    for module, steps in ((None, 200), ("gymnasium.envs.classic_control", 33)):
        environment = EnvReference("Pendulum-v1", module=module)
        context = dataclasses.replace(file.context, environment=environment)
        assert known_horizon(dataclasses.replace(file, context=context), checked)[0] == steps


def test_a_model_that_cannot_be_relied_on_is_refused() -> None:
    model = learned_model()
    with pytest.raises(IncompatibleError, match="not finished"):
        refuse_unfit(model)
    good = HorizonCheck(200, 9, 0.95, 1.0, 0.1, 1.0, 0.9, 0.1)
    refuse_unfit(dataclasses.replace(model, check=ModelCheck((good,), None, None, 200)))
    short = dataclasses.replace(good, steps=10)
    refuse_unfit(dataclasses.replace(model, check=ModelCheck((short,), None, None, 49)))
    with pytest.raises(IncompatibleError, match=r"held-out pieces.* last 50 steps") as caught:
        refuse_unfit(dataclasses.replace(model, check=ModelCheck((short,), None, None, 50)))
    assert caught.value.remedy == "or leave --model out"  # the check says what helps; time does not
    bad = dataclasses.replace(good, correlation=0.2)
    with pytest.raises(
        IncompatibleError, match=r"after 200 steps of .* the correlation is not at least 0\.7;"
    ) as caught:
        refuse_unfit(dataclasses.replace(model, check=ModelCheck((bad,), None, None, 200)))
    assert caught.value.exit_code == 5


def test_the_best_policies_of_the_data_are_found() -> None:
    file = make_file("pssvf", 5, target_data())
    best = best_of_the_data(file, evaluator())
    every = evaluator().evaluate(file.policies(file.context.theta)).cautious
    # Those that one start does not show among the first 20 of 60 may be missing; not the best.
    assert best[0] == pytest.approx(every.max(), abs=1e-4)
    assert len(best) == 5
    assert np.all(np.diff(best) <= 0)
    assert np.all(best <= np.sort(every)[::-1][:5] + 1e-4)

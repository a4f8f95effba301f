"""Ensembles against systems whose truth is known, and against pure noise."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, lqr_return, make_policies
from model_tools import SETTINGS, held_out, played, to_target
from pbvf_offline.envs.lqr import LQREnv
from pbvf_offline.errors import DivergedError, IncompatibleError
from pbvf_offline.models import check as checking
from pbvf_offline.models import choice
from pbvf_offline.models.check import (
    HorizonCheck,
    ModelCheck,
    Pieces,
    check_model,
    foreseen_shortage,
    held_out_episodes,
)
from pbvf_offline.models.choice import ChoiceHooks, Trial, choose_settings, train
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import imagine
from pbvf_offline.models.scales import RewardScale
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Trajectories


def test_the_lqr_is_learned_to_a_known_error() -> None:
    """Imagined returns of policies near the optimum against the closed form."""
    spec = box_spec(1, low=-100.0, high=100.0, squash="none")
    rng = np.random.default_rng(0)
    theta = np.column_stack([rng.uniform(-1.2, -0.2, 60), rng.uniform(-0.4, 0.4, 60)])
    policies = Policies(spec, theta.astype(np.float32), np.zeros((60, 1)), np.ones((60, 1)))
    env = LQREnv()

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        env.reset()
        env._state = float(obs[0])  # the environment has no other way to start in a state
        ahead, reward, ended, _, _ = env.step(action)
        return ahead, reward, ended

    starts = rng.uniform(-2, 2, (60, 1))
    data = played(policies, step, starts, 20)
    ensemble = train(data, held_out(data), SETTINGS, 2_000)
    check = check_model(ensemble, data, held_out(data), 0)
    assert check.horizons[-1].correlation > 0.995
    assert check.horizons[-1].slope == pytest.approx(1.0, abs=0.02)
    fresh = np.column_stack([rng.uniform(-1.0, -0.3, 20), rng.uniform(-0.2, 0.2, 20)])
    normaliser = ensemble.scales.normaliser
    seen = Policies(spec, fresh.astype(np.float32), np.zeros((20, 1)), np.ones((20, 1)))
    result = imagine(
        ensemble,
        spec,
        seen.in_normaliser(normaliser.mean, normaliser.std),
        np.ones((1, 1)),
        50,
    )
    truth = lqr_return(seen.theta[:, 0].astype(float), seen.theta[:, 1].astype(float), 50)
    predicted = result.member_values().mean(axis=1)
    assert np.abs(predicted - truth).mean() < 0.05 * truth.std()
    assert np.corrcoef(predicted, truth)[0, 1] > 0.999


def test_a_rare_and_large_reward_is_learned() -> None:
    """Of one step in 200, as that which reaches a goal; large errors count by absolute values."""
    spec = box_spec(1, low=-0.1, high=0.1)

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        ahead = obs + action
        at_goal = bool(ahead[0] >= 1.0)
        return ahead, 100.0 * at_goal - float(action[0] ** 2), at_goal

    rng = np.random.default_rng(0)
    data = played(make_policies(spec, 200, seed=1), step, rng.uniform(-1, 0.9, (200, 1)), 40)
    assert 0.001 < data.terminated.mean() < 0.01
    settings = dataclasses.replace(SETTINGS, huber=0.1)
    ensemble = train(data, held_out(data), settings, 2_000)
    result = imagine(ensemble, spec, np.array([[0.0, 9.0]], np.float32), np.array([[0.75]]), 5)
    assert result.lengths.tolist() == [[[3] * settings.members]]  # 0.85, 0.95, 1.05
    assert np.abs(result.member_values() - 100.0).max() < 50.0  # and not 0
    assert result.trusted == pytest.approx(result.returns[-1], rel=0.1)


def test_a_linear_system_with_an_end_is_learned_to_a_known_error() -> None:
    spec = box_spec(2)
    matrix = np.array([[0.95, 0.2], [-0.2, 0.95]])

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        ahead = matrix @ obs + np.array([0.0, 0.3]) * action
        return ahead, float(ahead[0]), bool(abs(ahead[0]) > 2.5)

    rng = np.random.default_rng(1)
    policies = make_policies(spec, 80, seed=2)
    data = played(policies, step, rng.uniform(-2, 2, (80, 2)), 60)
    assert 0.1 < data.terminated.sum() / data.episodes < 0.9
    ensemble = train(data, held_out(data), SETTINGS, 2_000)
    check = check_model(ensemble, data, held_out(data), 0)
    assert check.fit_for[-1] == "search"
    assert check.horizons[0].state_error < 0.03
    assert check.horizons[0].correlation > 0.99
    assert check.length_error is not None
    assert check.length_error < 0.25 * check.length_spread


def noise_data() -> Trajectories:
    spec = box_spec(2)

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        return rng.standard_normal(2), float(rng.standard_normal()), False

    starts = np.random.default_rng(3).standard_normal((60, 2))
    return played(make_policies(spec, 60), step, starts, 60)


def test_an_ensemble_fitted_to_pure_noise_fails_its_own_check() -> None:
    data = noise_data()
    check = check_model(train(data, held_out(data), SETTINGS, 600), data, held_out(data), 0)
    assert [h.steps for h in check.horizons] == [10, 50]
    assert check.calibration is not None
    assert check.calibration.pieces == check.horizons[0].pieces
    assert check.held == check.horizons[-1].calibrated
    assert check.horizons[-1].calibrated >= 0.8
    assert check.fit_for == ()


@pytest.mark.slow
def test_the_check_chooses_angles_where_an_observation_winds_and_the_best_noise() -> None:
    """A pendulum's angle that winds, and the same reward in every turn."""
    spec = box_spec(2)

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        speed = 0.99 * obs[1] + 0.1 * np.sin(obs[0]) + 0.2 * float(action[0])
        ahead = np.array([obs[0] + speed, speed])
        return ahead, float(np.cos(ahead[0])), False

    rng = np.random.default_rng(4)
    starts = np.column_stack([rng.uniform(-30, 30, 80), rng.uniform(-1, 1, 80)])
    data = played(make_policies(spec, 80, std=[10.0, 1.0]), step, starts, 55)
    notes = []
    chosen, trials = choose_settings(
        data, held_out(data), SETTINGS, updates=700, hooks=ChoiceHooks(notes.append)
    )
    assert chosen.angles
    assert list(trials) == notes
    assert [(t.noise, t.angles) for t in trials[:2]] == [(0.03, False), (0.03, True)]
    assert [t.mixed for t in trials] == [False, False, False, False, True]

    def score(trial: Trial) -> float:
        return trial.check.score * (1.1 if trial.noise else 1.0)

    best = min((trial for trial in trials[:4] if trial.angles), key=score)
    assert chosen.noise == trials[4].noise == best.noise
    assert chosen.members == SETTINGS.members


@pytest.mark.parametrize(
    ("name", "error", "wins"),
    [
        *(("angles", 0.8, True), ("angles", 1.09, True), ("angles", 1.11, False)),
        *(("mixed", 0.8, True), ("mixed", 1.24, True), ("mixed", 1.26, False)),
        *(("noise", 0.9, True), ("noise", 0.92, False), ("noise", 1.2, False)),
    ],
)
def test_angles_two_objectives_and_no_noise_win_a_near_tie(
    name: str, error: float, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors with them in units of those without; the trainings themselves are left out."""

    def check(candidate: ModelSettings, *_: Any) -> ModelCheck:
        found = error if getattr(candidate, name) else 1.0
        return ModelCheck((HorizonCheck(10, 9, 0.9, 1, found, 1, 0.9, found),), None, None, 60)

    monkeypatch.setattr(choice, "train", lambda data, held, settings, *_: settings)
    monkeypatch.setattr(choice, "check_model", check)
    data = played(make_policies(box_spec(1), 2), to_target, np.zeros((2, 1)), 5)
    chosen, _ = choose_settings(data, held_out(data), SETTINGS, updates=1)
    assert bool(getattr(chosen, name)) == wins


@pytest.mark.parametrize("diverges", [False, True])
def test_where_nothing_can_be_checked_the_usual_settings_are_chosen(
    diverges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All errors are infinite then, and the first candidates are not the usual ones."""

    def trained(data: Any, held: Any, settings: ModelSettings, *_: Any) -> ModelSettings:
        if diverges and settings.mixed:
            raise DivergedError("the model's loss is nan at update 7")
        return settings

    monkeypatch.setattr(choice, "train", trained)
    monkeypatch.setattr(choice, "check_model", lambda *_: ModelCheck((), None, None, 5))
    data = played(make_policies(box_spec(1), 2), to_target, np.zeros((2, 1)), 5)
    chosen, _ = choose_settings(data, held_out(data), SETTINGS, updates=1)
    assert (chosen.angles, chosen.noise, chosen.mixed) == (True, 0.0, not diverges)


@pytest.mark.parametrize(("reached", "wins"), [(5, False), (4, True)])
def test_two_objectives_win_where_the_check_cannot_look_far(
    reached: int, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the error with them, over pieces most of which end before the longest horizon."""

    def check(candidate: ModelSettings, *_: Any) -> ModelCheck:
        error = 2.0 if candidate.mixed else 1.0
        horizon = HorizonCheck(50, 9, 0.9, 1, error, 1, 0.9, error, reached=reached)
        return ModelCheck((horizon,), None, None, 60)

    monkeypatch.setattr(choice, "train", lambda data, held, settings, *_: settings)
    monkeypatch.setattr(choice, "check_model", check)
    data = played(make_policies(box_spec(1), 2), to_target, np.zeros((2, 1)), 5)
    chosen, _ = choose_settings(data, held_out(data), SETTINGS, updates=1)
    assert chosen.mixed == wins


def test_two_objectives_whose_training_diverges_are_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = choice.train

    def diverging(data: Any, held: Any, settings: ModelSettings, *rest: Any) -> Any:
        if settings.mixed or settings.noise > 0.1:
            raise DivergedError("the model's loss is nan at update 7")
        return known(data, held, settings, *rest)

    monkeypatch.setattr(choice, "train", diverging)
    data = played(make_policies(box_spec(1), 5), to_target, np.zeros((5, 1)), 12)
    reasons: list[DivergedError] = []
    chosen, trials = choose_settings(
        data,
        held_out(data),
        SETTINGS,
        noises=(0.0,),
        angles=(False,),
        updates=1,
        hooks=ChoiceHooks(diverged=reasons.append),
    )
    assert not chosen.mixed
    assert [trial.mixed for trial in trials] == [False]
    assert [reason.what for reason in reasons] == ["the model's loss is nan at update 7"]
    with pytest.raises(DivergedError):
        choose_settings(data, held_out(data), SETTINGS, noises=(0.0, 0.2), updates=1)


@pytest.mark.parametrize("wrong", ["weights", "states", "sums", "errors"])
def test_what_is_foretold_without_numbers_diverges(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of one member are finite and those of the two are not; nor is the sum of all errors."""
    data = played(make_policies(box_spec(1), 40), to_target, np.zeros((40, 1)), 12)
    ensemble = train(data, held_out(data), SETTINGS, 2)
    if wrong == "weights":
        with torch.no_grad():
            ensemble.network.biases[0].fill_(float("nan"))
    elif wrong == "states":  # after the last step, which no reward follows

        def imagined(*args: Any, **kwargs: Any) -> Any:
            found = imagine(*args, **kwargs)
            return dataclasses.replace(found, states=np.full_like(found.states, np.nan))

        monkeypatch.setattr(checking, "imagine", imagined)
    else:
        size = 1.2e307 if wrong == "sums" else 4e306
        scales = dataclasses.replace(ensemble.scales, reward=RewardScale(size, 1.0, size, size))
        ensemble = Ensemble(ensemble.spec, scales, ensemble.settings)
    with pytest.raises(DivergedError, match=r"foretells over 10 steps.* not finite; lower --lr"):
        check_model(ensemble, data, held_out(data), 0)


def test_features_are_chosen_by_the_errors_at_all_horizons() -> None:
    def horizon(steps: int, error: float, state_error: float | None) -> HorizonCheck:
        return HorizonCheck(steps, 9, 0.9, 1.0, error, 2.0, 0.9, state_error)

    check = ModelCheck((horizon(10, 0.4, 0.1), horizon(50, 0.8, None)), None, None, 60)
    # Relative errors of 0.2 and 0.4 and a state error of 0.1: the cube root of 0.008.
    assert check.error_at_all_horizons == pytest.approx(0.2)
    exact = ModelCheck((horizon(10, 0.0, 0.04),), None, None, 60)
    assert exact.error_at_all_horizons == pytest.approx(0.02)
    assert ModelCheck((), None, None, 60).error_at_all_horizons == float("inf")


@pytest.mark.parametrize(
    ("pieces", "share", "words"),
    [
        (400, 0.85, "85% of held-out sums, where 90% is aimed at: they are too narrow"),
        (400, 0.95, "95% of held-out sums, where 90% is aimed at: they are wider than need be"),
        (30, 0.85, "as far as so many pieces tell"),
    ],
)
def test_what_coverage_means_for_intervals(pieces: int, share: float, words: str) -> None:
    last = HorizonCheck(200, pieces, 0.9, 1.0, 1.0, 2.0, share, 0.1)
    text = ModelCheck((last,), None, None, 60).held_words
    assert text is not None
    assert words in text


def test_an_episode_is_held_out_and_one_is_learned_from() -> None:
    assert held_out_episodes(10, 0.01, 0).sum() == 1
    assert held_out_episodes(10, 0.3, 0).sum() == 3
    assert not np.array_equal(held_out_episodes(50, 0.3, 0), held_out_episodes(50, 0.3, 1))
    with pytest.raises(IncompatibleError, match=r"1 episode, of which 1 .* more episodes$"):
        held_out_episodes(1, 0.1, 0)  # one is held out at least
    with pytest.raises(IncompatibleError, match=r"2 episodes, of which 2 .* a smaller fraction$"):
        held_out_episodes(2, 0.9, 0)


def test_without_long_enough_pieces_there_is_no_verdict() -> None:
    spec = box_spec(2)

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        return obs * 0.9, 1.0, False

    data = played(make_policies(spec, 12), step, np.ones((12, 2)), 5)
    check = check_model(train(data, held_out(data), SETTINGS, 20), data, held_out(data), 0)
    assert check.horizons == ()
    assert check.held is None
    assert check.score == float("inf")
    assert check.fit_for == ()
    assert check.fit_for_words == "nothing: there are too few held-out pieces to check it by"


def test_a_check_over_few_steps_says_nothing_of_long_episodes() -> None:
    """Each policy acts for 20 steps of an episode of 60."""
    spec = box_spec(1)

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        ahead = 0.9 * obs + 0.1 * np.asarray(action, float)
        return ahead, float(ahead[0]), False

    starts = np.random.default_rng(5).uniform(-1, 1, (180, 1))
    short = played(make_policies(spec, 180), step, starts, 20)
    rows = short.observations.reshape(60, 63, 1)[:, np.r_[:20, 21:41, 42:63]]
    long = dataclasses.replace(
        short,
        observations=rows.reshape(-1, 1),
        start=short.start[::3],
        cut=short.cut[::3],
        seeds=short.seeds[::3],
    )
    assert foreseen_shortage(short, held_out(short), 0) is None
    assert foreseen_shortage(long, held_out(long), 0) == (
        "of 36 held-out pieces under one policy 0 last 50 steps or terminate before, and the check "
        "of whole episodes needs 18; collect with a larger --perturb-every"
    )
    few = np.arange(short.episodes) < 3
    assert foreseen_shortage(short, few, 0) == (
        "of 3 held-out pieces under one policy 3 last 10 steps or terminate before, and the check "
        "of whole episodes needs 5; hold out more with --validation-episodes, or collect more "
        "episodes"
    )
    ensemble = train(short, held_out(short), SETTINGS, 1_000)
    whole, part = (check_model(ensemble, data, held_out(data), 0) for data in (short, long))
    assert whole.fit_for == ("10 steps", "search")
    assert whole.refusal is None
    assert part.fit_for == ("10 steps",)
    assert part.refusal == (
        "the model's own check failed, so whole episodes are not imagined in it: "
        "fewer than 5 of the held-out pieces under one policy, or less than half of them, last 50 "
        "steps (where policies act that long, fit-model --validation-episodes holds out more; "
        "else collect with a larger --perturb-every)"
    )


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e200])
def test_the_unit_of_the_reward_does_not_matter(size: float) -> None:
    spec = box_spec(1)

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        ahead = 0.9 * obs + 0.1 * np.asarray(action, float)
        return ahead, size * float(ahead[0]), False

    starts = np.random.default_rng(5).uniform(-1, 1, (60, 1))
    data = played(make_policies(spec, 60), step, starts, 15)
    check = check_model(train(data, held_out(data), SETTINGS, 1_000), data, held_out(data), 0)
    assert check.fit_for == ("10 steps", "search")
    assert check.horizons[0].error < 0.2 * check.horizons[0].spread
    assert check.horizons[0].spread == pytest.approx(size * 4.2, rel=0.5)


def test_angles_beyond_single_precision_diverge_and_nothing_else_is_said() -> None:
    """A warning of numpy's would be an error here."""
    data = noise_data()
    data = dataclasses.replace(data, observations=1e150 * data.observations)
    with pytest.raises(DivergedError, match="loss is nan at update 5"):
        train(data, held_out(data), dataclasses.replace(SETTINGS, angles=True), 5)


def test_sums_that_are_all_alike_decide_nothing() -> None:
    """Any model foretells them, and an error in units of no spread is any number."""
    alike = HorizonCheck(10, 9, None, None, 4e-5, 0.0, 0.9, 0.1)
    varied = HorizonCheck(50, 9, 0.9, 1.0, 0.8, 2.0, 0.9, None)
    assert alike.relative_error is None
    assert alike.missed == ("correlation", "slope", "error")
    assert ModelCheck((alike, varied), None, None, 60).error_at_all_horizons == pytest.approx(0.2)
    assert ModelCheck((alike,), None, None, 60).error_at_all_horizons == pytest.approx(0.1)
    assert ModelCheck((alike,), None, None, 60).score == pytest.approx(0.1)  # that of the states
    assert ModelCheck((alike,), 1.0, 4.0, 60).score == pytest.approx(0.25)  # that of the lengths


def test_limits_that_are_missed_are_named() -> None:
    good = HorizonCheck(200, 9, 0.7, 0.5, 1.5, 2.0, 0.9, 0.1)  # at each limit
    assert good.missed == ()
    assert good.passed
    for name, value in (("correlation", 0.69), ("slope", 0.49), ("slope", 2.01), ("error", 1.51)):
        worse = dataclasses.replace(good, **{name: value})
        assert worse.missed == (name,)
        assert not worse.passed
    worst = dataclasses.replace(good, correlation=-0.1, error=1.6)
    assert ModelCheck((worst,), None, None, 200).refusal == (
        "the model's own check failed, so whole episodes are not imagined in it: after 200 steps "
        "of held-out episodes the correlation is not at least 0.7, the error is not at most 0.75 "
        "of the spread"
    )


def test_sums_that_differ_by_rounding_are_alike() -> None:
    """A reward of 0.1 a step, whose sums are differences of larger sums."""
    spec = box_spec(1)

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        return 0.9 * obs + 0.1 * np.asarray(action, float), 0.1, False

    starts = np.random.default_rng(5).uniform(-1, 1, (60, 1))
    data = played(make_policies(spec, 60), step, starts, 15)
    assert np.ptp(np.diff(np.cumsum(data.rewards)[::15])) > 0
    ensemble = train(data, held_out(data), SETTINGS, 20)
    (said,) = check_model(ensemble, data, held_out(data), 0).horizons
    assert (said.spread, said.correlation) == (0.0, None)


def test_a_check_of_pieces_that_all_terminate_early_says_so() -> None:
    """Episodes end after 12 to 30 steps: whole ones are compared, none of 50 steps is."""
    spec = box_spec(1)

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        return obs - 0.1, float(obs[0]), bool(obs[0] < 0.05)

    starts = np.random.default_rng(5).uniform(1.2, 3.0, (180, 1))
    data = played(make_policies(spec, 180), step, starts, 200)
    check = check_model(train(data, held_out(data), SETTINGS, 1_000), data, held_out(data), 0)
    pieces = int(held_out(data).sum())
    assert [(said.steps, said.reached) for said in check.horizons] == [
        (10, pieces),
        (50, 0),
        (200, 0),
    ]
    assert all(said.passed for said in check.horizons)
    assert check.fit_for == ("10 steps", "search")
    assert check.unseen == (
        f"policies that act for 50 steps and more: fewer than 5 of {pieces} held-out pieces last "
        "so long, the others terminated before"
    )
    seen = dataclasses.replace(check.horizons[1], reached=5)
    check = dataclasses.replace(check, horizons=(check.horizons[0], seen))
    assert check.fit_for == ("10 steps", "50 steps", "search")
    assert check.unseen is None


def countdown(lengths: list[int]) -> Trajectories:
    """Return episodes of one policy each that terminate after so many steps, at most 200."""

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        return obs - 1, 1.0, bool(obs[0] < 1.5)

    starts = np.array(lengths, float)[:, None]
    return played(make_policies(box_spec(1), len(lengths)), step, starts, 200)


def test_the_check_looks_at_all_held_out_pieces_where_most_are_short() -> None:
    """Those few that last long say most, and a draw of 500 would miss two thirds of them."""
    data = countdown([3] * 1_494 + [100] * 6)
    pieces = Pieces.of(data, np.ones(1_500, bool), 0)
    assert len(pieces.first) == 1_500
    assert pieces.length[-6:].tolist() == [100] * 6
    assert np.array_equal(np.sort(pieces.first), data.start[:-1])
    ensemble = train(data, np.arange(1_500) % 2 == 0, SETTINGS, 20)
    check = check_model(ensemble, data, np.ones(1_500, bool), 0)
    assert [said.reached for said in check.horizons] == [6, 6, 0]
    assert check.calibration is not None
    assert check.calibration.pieces == 1_500


def test_no_more_pieces_are_drawn_than_a_check_has_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = countdown([30, 20, 10] * 40)
    held = np.ones(120, bool)
    everything = Pieces.of(data, held, 0)
    assert len(everything.first) == 120
    monkeypatch.setattr(checking, "MAX_STEPS", 1_000)
    by_steps = Pieces.of(data, held, 0)
    assert 970 < by_steps.length.sum() <= 1_000
    assert np.isin(by_steps.first, everything.first).all()
    assert len(np.unique(by_steps.length)) == 3  # drawn, not the shortest or the first ones
    monkeypatch.setattr(checking, "MAX_PIECES", 7)
    assert len(Pieces.of(data, held, 0).first) == 7


def test_small_changes_of_far_spread_observations_are_learned() -> None:
    """Positions differ by thousands, a step moves them by a thousandth."""
    spec = box_spec(1)

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        moved = 1e-3 * float(action[0])
        return obs + moved, 1e3 * moved, False

    starts = np.random.default_rng(6).uniform(-1e3, 1e3, (60, 1))
    data = played(make_policies(spec, 60, std=[1e3]), step, starts, 15)
    ensemble = train(data, held_out(data), SETTINGS, 1_000)
    assert ensemble.scales.change_std[0] == pytest.approx(1e-3, rel=0.9)
    assert check_model(ensemble, data, held_out(data), 0).fit_for == ("10 steps", "search")

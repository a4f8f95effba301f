"""Rounds of ascent and imagination: what they reach, and that one seed gives one result."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, discrete_spec, make_policies, of_newer_version
from model_tools import SETTINGS, TARGET_HORIZON, held_out, played, target_data, to_target
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import ConflictError, DivergedError, IncompatibleError, UsageError
from pbvf_offline.fit.critic_file import CriticFile, load_critic
from pbvf_offline.fit.loop import RewardScaleWarning
from pbvf_offline.fit.rounds import ImaginedFit, RoundSettings
from pbvf_offline.fit.settings import fit_defaults
from pbvf_offline.fit.to_file import FitResult, fit_to_file
from pbvf_offline.io.output_file import partial_path
from pbvf_offline.models.choice import train
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import imagine
from pbvf_offline.models.members import cautious_values
from pbvf_offline.models.model_file import ModelFile
from pbvf_offline.models.noise import action_noise
from pbvf_offline.models.scales import RewardScale, Scales
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.models.training import start_training
from pbvf_offline.policies.policy import Policies
from pbvf_offline.synthesis import model_evaluation
from pbvf_offline.synthesis import rounds as rounds_module
from pbvf_offline.synthesis.ascent import synthesize
from pbvf_offline.synthesis.examples import ReturnExamples
from pbvf_offline.synthesis.model_evaluation import refuse_unfit
from pbvf_offline.synthesis.neighbours import neighbours
from pbvf_offline.synthesis.rounds import imagined_rounds
from pbvf_offline.synthesis.rounds_to_file import (
    RoundCallbacks,
    RoundsResult,
    episode_limit,
    rounds_to_file,
)
from pbvf_offline.synthesis.settings import SynthesisSettings

SMALL = RoundSettings(
    seed=0,
    rounds=4,
    fresh=8,
    radius=1.2,
    caution=1.0,
    known=16,
    starts=2,
    steps=20,
    lr=0.1,
    updates=100,
    hidden=(32,),
)


@cache
def ensemble() -> Ensemble:
    return train(target_data(), held_out(target_data()), SETTINGS, 1_000)


def search(settings: RoundSettings = SMALL, learned: Ensemble | None = None) -> CriticFile:
    return imagined_rounds(
        target_data(),
        learned or ensemble(),
        settings,
        model="1" * 64,
        horizon=TARGET_HORIZON,
        environment=None,
        dataset="0" * 64,
    )


TD = {"gamma": 0.95, "n_step": 10, "updates": 150}


def story(file: CriticFile) -> ImaginedFit:
    assert file.imagined is not None
    return file.imagined


def true_returns(policies: Policies) -> np.ndarray:  # type: ignore[type-arg]
    starts = np.zeros((len(policies), 1))
    return played(policies, to_target, starts, TARGET_HORIZON).returns()


def test_fresh_policies_end_above_the_datasets_best_and_as_was_imagined() -> None:
    found = search()
    climb = SynthesisSettings(count=3, steps=60, lr=0.1, seed=7, radius=1.2, restarts=8)
    grown = synthesize(found, climb)
    reached = true_returns(grown.policies)
    assert reached.min() > true_returns(target_data().policies).max()
    # The critic's values are undiscounted returns, cautious ones.
    np.testing.assert_allclose(
        grown.predicted, reached, atol=0.15 * np.ptp(target_data().returns())
    )


@pytest.mark.parametrize("kind", ["psvf", "pavf"])
def test_critics_of_steps_learn_from_imagined_steps(kind: str) -> None:
    found = search(dataclasses.replace(SMALL, kind=kind, **TD))
    assert found.fit.settings.kind == kind
    assert (found.fit.settings.gamma, found.fit.settings.n_step) == (0.95, 10)
    assert found.unit == "cautious imagined return discounted by 0.95"
    climb = SynthesisSettings(count=3, steps=60, lr=0.1, seed=7, radius=1.2, restarts=8)
    grown = synthesize(found, climb)
    reached = true_returns(grown.policies)
    assert reached.min() > true_returns(target_data().policies).max()
    # What it predicts is the discounted return of steps that pay what these do.
    rewards = played(grown.policies, to_target, np.zeros((3, 1)), TARGET_HORIZON).rewards
    discounted = rewards.reshape(3, TARGET_HORIZON) @ 0.95 ** np.arange(TARGET_HORIZON)
    np.testing.assert_allclose(
        grown.predicted, discounted, atol=0.2 * np.ptp(target_data().returns())
    )


def test_rewards_of_any_size_are_learned_without_a_warning() -> None:
    """Values are brought to unit spread first."""
    data = target_data()
    small = dataclasses.replace(data, rewards=1e-6 * data.rewards)
    learned = train(small, held_out(small), SETTINGS, 20)
    settings = dataclasses.replace(SMALL, kind="psvf", rounds=1, **TD)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RewardScaleWarning)
        imagined_rounds(
            small,
            learned,
            settings,
            model="1" * 64,
            horizon=TARGET_HORIZON,
            environment=None,
            dataset="0" * 64,
        )


_BEYOND = r"values, which are about .*, are beyond single precision; .* of a smaller scale"


@pytest.mark.parametrize(
    ("scale", "members", "words"),
    [
        (1e38, 2, _BEYOND),
        (1e45, 2, _BEYOND),
        (1e150, 2, _BEYOND),
        # Beyond all numbers are the squares of such values, so their spread.
        (1e200, 1, _BEYOND),
        (1e200, 2, "environment's returns are not finite; .* of a smaller scale"),
    ],
)
def test_values_beyond_single_precision_leave_no_critic(
    scale: float, members: int, words: str, tmp_path: Path
) -> None:
    """They are learned in a unit of their own; in that of returns weights have no numbers."""
    data = target_data()
    large = dataclasses.replace(data, rewards=scale * data.rewards)
    learned = train(large, held_out(large), dataclasses.replace(SETTINGS, members=members), 20)
    model = dataclasses.replace(a_model(), fit=start_training(learned, 1), where="the model")
    with pytest.raises(DivergedError, match=words) as caught:
        rounds_to_file(
            large,
            model,
            dataclasses.replace(SMALL, rounds=1, compare=0),
            tmp_path / "c.safetensors",
            model_digest="1" * 64,
            environment=None,
            dataset="0" * 64,
        )
    assert caught.value.where == "the model"
    assert list(tmp_path.iterdir()) == []


def test_the_ascent_of_a_critic_of_states_is_from_where_episodes_begin() -> None:
    found = search(dataclasses.replace(SMALL, kind="psvf", rounds=1, **TD))
    np.testing.assert_array_equal(found.context.observations, found.context.initial_observations)
    assert len(search(dataclasses.replace(SMALL, rounds=1)).context.observations) > 60


@pytest.mark.parametrize("policy", [None, (6,)])
def test_policies_of_any_architecture_climb_a_critic_of_what_they_do(
    policy: tuple[int, ...] | None,
) -> None:
    settings = dataclasses.replace(SMALL, fingerprint=8, policy=policy, steps=40, rounds=8)
    found = search(dataclasses.replace(settings, lr=0.05))
    assert found.critic.config.fingerprint == 8
    assert found.spec == target_data().policies.spec  # the file's is that of the data
    climb = SynthesisSettings(count=3, steps=60, lr=0.05, seed=7, radius=1.2, restarts=8)
    grown = synthesize(found, dataclasses.replace(climb, hidden=policy))
    assert grown.policies.spec.hidden == (policy or ())
    reached = true_returns(grown.policies)
    assert reached.min() > np.quantile(true_returns(target_data().policies), 0.8)
    np.testing.assert_allclose(
        grown.predicted, reached, atol=0.25 * np.ptp(target_data().returns())
    )


def test_a_critic_of_parameters_is_not_climbed_by_another_architecture() -> None:
    with pytest.raises(IncompatibleError, match="fit the critic with --fingerprint"):
        search(dataclasses.replace(SMALL, policy=(6,)))


@pytest.mark.parametrize(
    ("kind", "discrete", "stochastic"),
    [
        *(
            ("pssvf", discrete, stochastic)
            for discrete in (False, True)
            for stochastic in (False, True)
        ),
        ("psvf", True, False),
        ("psvf", False, True),
        ("pavf", True, True),
        ("pavf", False, True),
    ],
)
def test_any_kind_of_action_is_searched(kind: str, discrete: bool, stochastic: bool) -> None:
    make = discrete_spec if discrete else box_spec
    spec = make(1, stochastic=stochastic)

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        return to_target(obs, (float(action) - 1.0) if discrete else action, rng)

    starts = np.random.default_rng(0).uniform(-1, 1, (60, 1))
    some = played(make_policies(spec, 60), step, starts, TARGET_HORIZON)
    settings = dataclasses.replace(SMALL, rounds=3, kind=kind, **({} if kind == "pssvf" else TD))
    if kind == "pavf":
        settings = dataclasses.replace(settings, fingerprint=8, policy=(4,))
    found = imagined_rounds(
        some,
        train(some, held_out(some), SETTINGS, 600),
        settings,
        model="1" * 64,
        horizon=TARGET_HORIZON,
        environment=None,
        dataset="0" * 64,
    )
    climb = SynthesisSettings(count=2, steps=30, lr=0.1, seed=7, radius=1.2, restarts=4)
    grown = synthesize(found, dataclasses.replace(climb, hidden=settings.policy))
    reached = played(grown.policies, step, np.zeros((2, 1)), TARGET_HORIZON).returns()
    assert reached.mean() > np.median(
        played(some.policies, step, starts * 0, TARGET_HORIZON).returns()
    )


def test_no_two_rounds_see_the_same_action_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over ``log_std`` would climb the luck of one path."""
    spec = box_spec(1, stochastic=True)
    some = played(make_policies(spec, 30), to_target, np.zeros((30, 1)), TARGET_HORIZON)
    drawn: list[bytes] = []

    def noting(*args, **kwargs):  # type: ignore[no-untyped-def]
        noise = action_noise(*args, **kwargs)
        drawn.append(noise.numpy().tobytes())
        return noise

    # Values are means over policies that differ from round to round: they do not tell the noise.
    monkeypatch.setattr(model_evaluation, "action_noise", noting)

    def run(seed: int) -> ImaginedFit:
        settings = dataclasses.replace(SMALL, seed=seed, rounds=2, tries=2, first_rounds=1)
        learned = train(some, held_out(some), SETTINGS, 20)
        return story(
            imagined_rounds(
                some, learned, settings, model="1" * 64, horizon=TARGET_HORIZON, environment=None,
                dataset="0" * 64,
            )
        )  # fmt: skip

    first = run(0)
    assert len(drawn) == len(set(drawn)) == 2 + 3  # before the first round of a try, and each
    run(1)
    assert len(set(drawn)) == 10
    assert run(0) == first


def test_caution_counts_the_luck_of_action_noise() -> None:
    """Equal networks agree on a deterministic policy, and not on what noise does to another."""
    for stochastic in (False, True):
        spec = box_spec(1, stochastic=stochastic)
        some = played(make_policies(spec, 30), to_target, np.zeros((30, 1)), TARGET_HORIZON)
        learned = train(some, held_out(some), SETTINGS, 20)
        with torch.no_grad():
            for parameter in learned.parameters():
                parameter.copy_(parameter[:1].expand_as(parameter))
        starts = np.zeros((2, 1))
        place = model_evaluation.ModelEvaluator(learned, starts, TARGET_HORIZON, 2.0)
        policies, rng = some.policies.select(range(8)), np.random.default_rng(0)
        said = place.play(policies, starts, rng)
        assert np.all(said.cautious < said.mean - 1e-5) == stochastic
        later = place.play(policies, starts, rng)
        assert np.array_equal(said.mean, later.mean) != stochastic


def test_the_best_round_is_kept_and_not_the_last() -> None:
    found = story(search())
    assert found.kept == max(found.rounds, key=lambda done: done.cautious)
    assert (found.model, found.horizon, found.settings) == ("1" * 64, TARGET_HORIZON, SMALL)
    assert [done.number for done in found.rounds] == [1, 2, 3, 4]
    assert all(done.highest >= done.cautious for done in found.rounds)


def test_the_best_try_goes_on() -> None:
    found = story(search(dataclasses.replace(SMALL, tries=2, first_rounds=2)))
    first = [(done.attempt, done.number) for done in found.rounds[:4]]
    assert first == [(0, 1), (0, 2), (1, 1), (1, 2)]
    best = max(found.rounds[:4], key=lambda done: done.cautious).attempt
    assert [(done.attempt, done.number) for done in found.rounds[4:]] == [(best, 3), (best, 4)]


@pytest.mark.parametrize("kind", ["pssvf", "psvf"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(kind: str) -> None:
    def weights(found: CriticFile) -> list[bytes]:
        return [w.numpy().tobytes() for w in found.critic.state_dict().values()]

    settings = dataclasses.replace(SMALL, rounds=2, kind=kind, **({} if kind == "pssvf" else TD))
    first, second = search(settings), search(settings)
    assert weights(first) == weights(second)
    assert story(first) == story(second)
    assert weights(first) != weights(search(dataclasses.replace(settings, seed=1)))


def test_a_policy_that_exploits_a_hole_in_one_member_loses_to_one_good_in_all() -> None:
    """Member 0 pays 5 for each unit of action, member 1 takes 1: on average 2."""
    spec = box_spec(1)
    few = target_data()
    settings = ModelSettings(seed=0, members=2, hidden=(8,))
    scales = dataclasses.replace(
        Scales.of(few, np.arange(len(few))),
        reward=RewardScale(mean=0.0, std=1.0, low=-10.0, high=10.0),
    )
    holed = Ensemble(spec, scales, settings)
    with torch.no_grad():
        for parameter in holed.parameters():
            parameter.zero_()
        holed.network.skip[:, 1, 1] = torch.tensor([5.0, -1.0]) * holed.action_std[0]
        holed.network.biases[-1][:, 0, 1] = 0.5
    actions = np.array([[0.0, 10.0], [0.0, 0.0]], np.float32)  # weight and bias: full and none
    played_out = imagine(holed, spec, actions, np.zeros((1, 1)), 10)
    exploits, honest = played_out.member_values().mean(axis=1)
    assert exploits == pytest.approx(25.0, rel=1e-4)
    assert honest == pytest.approx(5.0, rel=1e-4)
    exploits, honest = cautious_values(played_out.member_values(), 1.0)
    assert exploits == pytest.approx(25.0 - 30.0, rel=1e-4)
    assert honest > exploits


def test_near_the_best_policies_so_far_others_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, played_ones = [], []
    play = rounds_module._Try._play

    def asking(file, policies, radius, rng):  # type: ignore[no-untyped-def]
        near = neighbours(file, policies, radius, rng)
        asked.append((policies.theta, near))
        return near

    def playing(self, theta, spec):  # type: ignore[no-untyped-def]
        found = play(self, theta, spec)
        played_ones.append((theta, found.cautious))
        return found

    monkeypatch.setattr(rounds_module, "neighbours", asking)
    monkeypatch.setattr(rounds_module._Try, "_play", playing)
    file = search(dataclasses.replace(SMALL, radius=0.8, leaders=3))
    count = SMALL.fresh // 4
    assert len(asked) == len(played_ones) - 1 == SMALL.rounds
    for number, (around, near) in enumerate(asked, start=1):
        theta = np.concatenate([theta for theta, _ in played_ones[:number]])
        cautious = np.concatenate([values for _, values in played_ones[:number]])
        best = theta[np.argsort(-cautious, kind="stable")[:3]]
        np.testing.assert_array_equal(around[2 * count :], best)
        np.testing.assert_array_equal(around[:count], played_ones[number][0][:count])
        np.testing.assert_array_equal(played_ones[number][0][2 * count :], near)
        assert (file.distance(torch.from_numpy(near)).numpy() <= 0.8 * 1.001).all()
    first = file.distance(torch.from_numpy(played_ones[0][0])).numpy()
    assert (first > 0.8 * 1.001).any()  # and their neighbours were inside


def test_a_search_is_told_at_most_the_best_that_stays_inside_the_box(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []
    add = ReturnExamples.add

    def noting(self, policies, imagined, played, worth):  # type: ignore[no-untyped-def]
        told.append((played, worth))
        add(self, policies, imagined, played, worth)

    monkeypatch.setattr(ReturnExamples, "add", noting)
    narrow = copy.deepcopy(ensemble())
    narrow.low[:], narrow.high[:] = 0.0, 2.0  # holds some policies back, and others not
    found = story(search(learned=narrow))
    (first, first_worth), *later = told
    np.testing.assert_array_equal(first_worth, first.limited())  # nothing was searched for yet
    level, beyond = first.cautious.max(), 0
    for (played_out, worth), done in zip(later, found.rounds, strict=True):
        level = max(level, played_out.cautious.max())
        np.testing.assert_array_equal(worth, played_out.limited(level))
        assert done.highest == level
        beyond += int((played_out.limited() > level).sum())
    assert beyond > 0


@pytest.mark.parametrize("name", ["rounds", "fresh", "starts", "tries", "caution"])
def test_settings_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"--{name}"):
        dataclasses.replace(SMALL, **{name: -1})


def test_an_ordinary_fit_does_not_take_a_critic_of_imagined_returns_for_its_own(
    tmp_path: Path,
) -> None:
    out = tmp_path / "c.safetensors"
    found = search(dataclasses.replace(SMALL, rounds=1))
    found.save(out)
    read = load_critic(out)
    assert read.imagined == found.imagined
    assert read.encode() == out.read_bytes()
    theta = target_data().policies.theta[:3]
    np.testing.assert_array_equal(read.predict(theta), found.predict(theta))
    with pytest.raises(ConflictError, match=r'settings: model is "1+… there and'):
        fit_to_file(
            target_data(), read.fit.settings, out, updates=5, environment=None, dataset="0" * 64
        )


def test_the_time_limit_is_that_of_an_episode_that_one_ended() -> None:
    assert episode_limit(target_data(), None) == TARGET_HORIZON
    ending = dataclasses.replace(target_data(), truncated=np.zeros(len(target_data()), bool))
    assert episode_limit(ending, None) == TARGET_HORIZON  # the longest
    assert episode_limit(ending, EnvReference("CartPole-v1")) == 500
    assert episode_limit(ending, EnvReference("CartPole-v1", kwargs={"max_episode_steps": 7})) == 7
    assert episode_limit(ending, EnvReference("Unknown-v0")) == TARGET_HORIZON
    # An episode that was cut short without a word is no time limit where others are longer.
    last = np.flatnonzero(target_data().truncated)[0]
    shorter = dataclasses.replace(ending, truncated=np.arange(len(ending)) == last - 3)
    shorter = dataclasses.replace(shorter, start=np.insert(shorter.start, 1, last - 2))
    shorter = dataclasses.replace(shorter, cut=np.insert(shorter.cut, 1, False))
    assert shorter.time_limit is None
    assert target_data().time_limit == TARGET_HORIZON
    elsewhere = EnvReference("CartPole-v1", module="somewhere")  # which may be imported or not
    assert episode_limit(ending, elsewhere) == TARGET_HORIZON
    cut = dataclasses.replace(target_data(), cut=np.ones(target_data().episodes, bool))
    assert episode_limit(cut, EnvReference("CartPole-v1")) == 500


def to_file(out: Path, settings: RoundSettings = SMALL, **options: Any) -> RoundsResult:
    return rounds_to_file(
        target_data(),
        a_model(),
        settings,
        out,
        model_digest="1" * 64,
        environment=None,
        dataset="0" * 64,
        **options,
    )


def plain_fit(out: Path, updates: int, **options: Any) -> FitResult:
    settings = fit_defaults("pssvf", None, target_data().policies.spec).settings
    return fit_to_file(
        target_data(), settings, out, updates=updates, environment=None, dataset="0" * 64, **options
    )


def interrupt_plain_fit(out: Path, **options: Any) -> bytes:
    """Begin a fit to the data themselves; return what its interruption after 2 updates left."""

    def stop(done: int, wanted: int, loss: float) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plain_fit(out, 3, progress=stop, **options)
    return partial_path(out).read_bytes()


def test_an_ordinary_critic_is_not_taken_for_one_of_imagined_returns(tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    plain_fit(out, 1)
    with pytest.raises(ConflictError, match="settings: model is not given there and"):
        to_file(out)


def test_an_interrupted_fit_to_the_data_is_not_lost_to_rounds(tmp_path: Path) -> None:
    out, quick = tmp_path / "c.safetensors", dataclasses.replace(SMALL, rounds=1, compare=0)
    left = interrupt_plain_fit(out)
    with pytest.raises(ConflictError) as caught:
        to_file(out, quick)
    assert str(caught.value) == (
        f"{partial_path(out)}: it has 2 updates of an interrupted fit without --model; finish it "
        "by its own command, choose another --out, or start over with --overwrite"
    )
    assert not out.exists()
    assert partial_path(out).read_bytes() == left
    assert plain_fit(out, 3).updates_done_now == 1
    interrupt_plain_fit(out, overwrite=True)
    to_file(out, quick, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_rounds_leave_an_interrupted_fit_that_is_to_replace_them(tmp_path: Path) -> None:
    out, notes = tmp_path / "c.safetensors", []
    quick = dataclasses.replace(SMALL, rounds=1, compare=0)
    to_file(out, quick)
    left, done = interrupt_plain_fit(out, overwrite=True), out.read_bytes()
    words = (
        "it has 2 updates of an interrupted fit without --model; finish it by its own command "
        "without --overwrite, or remove this file to drop it"
    )
    assert to_file(out, quick, callbacks=RoundCallbacks(note=notes.append)).already_complete
    assert notes == [f"note: {partial_path(out)} stays: {words}"]
    with pytest.raises(ConflictError, match=words):
        to_file(out, dataclasses.replace(quick, rounds=2))
    partial_path(out).write_bytes(of_newer_version("critic", left))
    with pytest.raises(IncompatibleError, match="format version 99"):
        to_file(out, dataclasses.replace(quick, rounds=2))
    partial_path(out).write_bytes(left)
    assert out.read_bytes() == done
    assert plain_fit(out, 3).updates_done_now == 1


def test_rounds_that_diverge_name_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverged(*args: object, **kwargs: object) -> None:
        raise DivergedError("the loss is nan at update 7", remedy="scale the rewards")

    monkeypatch.setattr("pbvf_offline.synthesis.rounds_to_file.imagined_rounds", diverged)
    with pytest.raises(DivergedError) as caught:
        to_file(tmp_path / "c")
    assert str(caught.value) == f"{tmp_path / 'c'}: the loss is nan at update 7; scale the rewards"


def test_policies_of_the_data_that_the_model_cannot_express_are_numbered_as_there() -> None:
    known = ensemble()
    far = dataclasses.replace(known.scales.normaliser, std=np.array([1e300]))
    scales = dataclasses.replace(known.scales, normaliser=far)
    with pytest.raises(IncompatibleError, match=r"^policy [1-9]\d* \(and 15 more\) cannot be"):
        search(learned=Ensemble(known.spec, scales, known.settings))


def a_model() -> ModelFile:
    return ModelFile(
        start_training(ensemble(), 1),
        asked={},
        environment=None,
        dataset="0" * 64,
        initial_observations=target_data().initial_observations,
    )


def test_an_unfinished_model_is_refused() -> None:
    with pytest.raises(IncompatibleError, match="training is not finished"):
        refuse_unfit(a_model(), force=True)

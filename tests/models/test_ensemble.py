"""Ensembles: what they learn, resumption, and that an imagined rollout is a plain loop."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, discrete_spec, make_episode, make_policies
from model_tools import played
from pbvf_offline.errors import DivergedError, IncompatibleError, UsageError
from pbvf_offline.models import training
from pbvf_offline.models.ensemble import Ensemble, Steps
from pbvf_offline.models.imagine import _Sums, imagine
from pbvf_offline.models.noise import action_noise
from pbvf_offline.models.objectives import Objective, objectives
from pbvf_offline.models.scales import RewardScale, Scales, has_sparse_rewards
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.models.training import (
    Drawn,
    advance,
    batches,
    fall_from,
    learning_rate,
    model_loss,
    start_training,
)
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories, stack_episodes

SMALL = ModelSettings(seed=0, members=2, hidden=(16, 16), batch_size=32)


def some_data(spec: PolicySpec, end: str = "terminated") -> Trajectories:
    policies = make_policies(spec, 4, mean=[0.5] * spec.obs_dim, std=[2.0] * spec.obs_dim)
    rng = np.random.default_rng(1)
    return stack_episodes(
        spec,
        [make_episode(policies, [k % 4, (k + 1) % 4], [6, 5], end=end, rng=rng) for k in range(6)],
    )


def untrained(data: Trajectories, settings: ModelSettings = SMALL) -> Ensemble:
    return Ensemble(data.policies.spec, Scales.of(data, np.arange(len(data))), settings)


def all_steps(data: Trajectories, ensemble: Ensemble) -> Steps:
    return Steps.of(data, ensemble.scales, np.arange(len(data)))


def noise_of(spec: PolicySpec, *shape: int) -> torch.Tensor | None:
    return action_noise(spec, np.random.default_rng(9), *shape)


@pytest.mark.parametrize("spec", [box_spec(2, (3,), 2), discrete_spec(2)], ids=["box", "discrete"])
def test_replayed_actions_lead_where_the_policies_that_take_them_lead(spec: PolicySpec) -> None:
    data = some_data(spec)
    ensemble = untrained(data, dataclasses.replace(SMALL, members=1))
    normaliser = ensemble.scales.normaliser
    theta = data.policies.in_normaliser(normaliser.mean, normaliser.std)
    starts = data.initial_observations[:4, None].astype(float)
    marks = (3,)
    acted = imagine(ensemble, spec, theta, starts, 7, marks=marks, record=True)
    assert acted.recording is not None
    out = torch.from_numpy(acted.recording.outputs[:, 0, 0])
    if spec.is_continuous:
        actions = torch.tanh(out)
    else:
        actions = torch.nn.functional.one_hot(out.argmax(-1), 3).float()
    again = imagine(ensemble, spec, theta[:, :0], starts, 7, actions=actions, marks=marks)
    np.testing.assert_array_equal(again.returns, acted.returns)
    np.testing.assert_array_equal(again.states, acted.states)
    np.testing.assert_array_equal(again.lengths, acted.lengths)
    other = imagine(ensemble, spec, theta[:, :0], starts, 7, actions=actions.flip(0), marks=marks)
    assert np.any(other.states != acted.states)


def by_hand(ensemble, policies, row, start, steps, member, noise=None):  # type: ignore[no-untyped-def]
    """Play one policy in one member with the library's own numpy actor and plain numbers."""
    spec, normaliser = policies.spec, ensemble.scales.normaliser
    actor = policies.actor(row)
    log_std = policies.theta[row, : spec.log_std_size].astype(float)
    obs, total = np.asarray(start, float), 0.0
    for t in range(steps):
        out = actor.logits(obs)
        if noise is not None:
            out = out + (np.exp(log_std) if spec.is_continuous else 1.0) * noise[t]
        if spec.is_continuous:
            unit = np.tanh(out) if spec.squash == "tanh" else np.clip(out, -1.0, 1.0)
        else:
            unit = np.eye(spec.actions.outputs)[int(np.argmax(out))]
        seen = torch.zeros(ensemble.members, 1, spec.obs_dim)
        seen[member, 0] = torch.from_numpy(normaliser.apply(obs))
        action = torch.zeros(ensemble.members, 1, len(unit))
        action[member, 0] = torch.from_numpy(unit)
        with torch.no_grad():
            step = ensemble.step(seen, action)
        obs = step.obs[member, 0].numpy() * normaliser.std + normaliser.mean
        total += float(step.reward[member, 0])
        if bool(step.ended[member, 0]):
            return total, t + 1
    return total, steps


SPECS = {
    "linear": box_spec(3, act_dim=2),
    "deep": box_spec(3, hidden=(5, 4)),
    "unsquashed": box_spec(3, squash="none"),
    "stochastic": box_spec(3, act_dim=2, stochastic=True),
    "discrete": discrete_spec(3, n=3, start=-1),
    "categorical": discrete_spec(3, n=3, stochastic=True),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("angles", [False, True])
def test_an_imagined_rollout_equals_a_loop_by_hand(name: str, angles: bool) -> None:
    spec = SPECS[name]
    data = some_data(spec)
    ensemble = untrained(data, dataclasses.replace(SMALL, angles=angles))
    with torch.no_grad():  # an end that some episodes reach and others do not
        ensemble.network.biases[-1][..., spec.obs_dim + 1] -= 0.3
    policies = make_policies(spec, 3, seed=5, mean=[-0.2] * 3, std=[0.7] * 3)
    normaliser = ensemble.scales.normaliser
    theta = policies.in_normaliser(normaliser.mean, normaliser.std)
    starts = data.initial_observations[:2].astype(float)
    noise = noise_of(spec, 30, 2, 2)
    played = imagine(ensemble, spec, theta, starts, 30, noise=noise, marks=(4,))
    lengths = []
    for k in range(3):
        for s in range(2):
            for m in range(2):
                drawn = None if noise is None else noise[:, m, s].numpy()
                total, length = by_hand(ensemble, policies, k, starts[s], 30, m, drawn)
                early, _ = by_hand(ensemble, policies, k, starts[s], 4, m, drawn)
                assert played.lengths[k, s, m] == length
                np.testing.assert_allclose(played.returns[1, k, s, m], total, atol=2e-3)
                np.testing.assert_allclose(played.returns[0, k, s, m], early, atol=1e-4)
                lengths.append(length)
    assert played.marks == (4, 30)


def going_up(data: Trajectories, **changes: Any) -> Ensemble:
    """Networks of zeros: each step goes up by 1 in a box that ends at 3, and pays 0.2."""
    one = np.ones(1)
    scales = dataclasses.replace(
        Scales.of(data, np.arange(len(data))),
        normaliser=Normaliser(0 * one, one),
        change_mean=one,
        change_std=one,
        reward=RewardScale(mean=0.2, std=1.0, low=-1.0, high=1.0),
        low=-9 * one,
        high=3 * one,
        **changes,
    )
    ensemble = Ensemble(data.policies.spec, scales, dataclasses.replace(SMALL, hidden=(8,)))
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.zero_()
    return ensemble


@pytest.mark.parametrize("paid", [0.5, 0.1])
def test_beyond_the_box_at_most_the_mean_reward_is_trusted(paid: float) -> None:
    """Every step goes up by 1 in a box that ends at 3, and the mean reward is 0.2."""
    spec = box_spec(1)
    rising = going_up(some_data(spec, end="truncated"))
    scales = rising.scales
    with torch.no_grad():
        rising.network.biases[-1][..., 1] = paid - 0.2
    # The first goes up to 3 and is held there. The second is half a step over it at first, which
    # counts as rounding; the third is by more.
    starts = np.array([[0.0], [2.5], [2.6]])
    played = imagine(rising, spec, np.zeros((1, 2), np.float32), starts, 10)
    assert played.returns[0, 0, :, 0] == pytest.approx([10 * paid] * 3, rel=1e-5)
    known = np.array([4, 2, 1])
    inside = known * paid + (10 - known) * min(paid, 0.2)
    assert played.trusted[0, :, 0] == pytest.approx(inside, rel=1e-5)
    walled = dataclasses.replace(scales, high_is_limit=np.array([True]))
    known_there = Ensemble(spec, walled, rising.settings)
    known_there.load_state_dict(dict(rising.named_parameters()), strict=False)
    again = imagine(known_there, spec, np.zeros((1, 2), np.float32), starts, 10)
    np.testing.assert_array_equal(again.trusted, played.returns[0])


@pytest.mark.parametrize(("chance", "taken"), [(0.01, 10), (0.4, 10), (0.6, 1)])
@pytest.mark.parametrize(("paid", "at_end"), [(1.0, 0.0), (-0.1, 9.0)])
@pytest.mark.parametrize("start", [-9.0, 0.0])
def test_of_the_imagined_and_the_expected_return_the_lower_is_trusted(
    chance: float, taken: int, paid: float, at_end: float, start: float
) -> None:
    """Every step goes up by 1, from 0 to the end of the box in three, and may be the last one."""
    spec = box_spec(1)
    pays = RewardScale(mean=0.0, std=1.0, low=0.0, high=10.0)
    ensemble = going_up(some_data(spec), end_reward=pays)
    with torch.no_grad():
        for row, value in ((1, paid - 0.2), (2, np.log(chance / (1 - chance))), (3, at_end)):
            ensemble.network.biases[-1][..., row] = value
    theta = np.zeros((1, 2), np.float32)
    played = imagine(ensemble, spec, theta, np.array([[start]]), 10)
    assert played.lengths.tolist() == [[[taken] * 2]]
    ends = chance < 0.5
    sums = []
    for p, total in ((0.0, 10 * paid), (chance, None)):  # what is imagined, what is expected
        lasts, known, beyond, steps = 1.0, 0.0, 0.0, 0.0
        for t in range(taken):
            q = p if ends else 1.0
            reward = lasts * ((1 - q) * paid + q * at_end)
            if start + t > 3:
                beyond, steps = beyond + reward, steps + lasts
            else:
                known += reward
            lasts *= 1 - q
        sums.append(known + min(beyond, 0.2 * steps))
        if total is not None and ends:
            np.testing.assert_allclose(played.returns[0, 0, 0], total, rtol=1e-5)
    np.testing.assert_allclose(played.trusted[0, 0], min(sums), rtol=1e-5)
    if (paid, chance) == (1.0, 0.4):
        assert sums[1] < 0.5 * sums[0]
    if (paid, chance) == (-0.1, 0.4):
        assert sums[0] < 0 < sums[1]


@pytest.mark.parametrize("name", ["stochastic", "categorical"])
def test_each_policy_may_have_noise_of_its_own(name: str) -> None:
    """Also where policies whose episodes have ended are no longer played, after 25 steps."""
    spec = SPECS[name]
    data = some_data(spec)
    ensemble = untrained(data)
    with torch.no_grad():
        ensemble.network.biases[-1][..., spec.obs_dim + 1] -= 0.7
    theta = make_policies(spec, 300).theta
    starts = data.initial_observations[:1].astype(float)
    noise = noise_of(spec, 300, 40, 2, 1)
    assert noise is not None
    together = imagine(ensemble, spec, theta, starts, 40, noise=noise)
    assert (together.lengths < 25).any()
    assert (together.lengths == 40).any()
    for k in (0, 150, 299):
        alone = imagine(ensemble, spec, theta[k : k + 1], starts, 40, noise=noise[k])
        np.testing.assert_allclose(
            together.returns[0, k], alone.returns[0, 0], rtol=1e-3, atol=1e-3
        )


def test_results_do_not_depend_on_what_is_played_beside() -> None:
    """600 policies take several blocks; one alone takes a small one."""
    spec = box_spec(3, stochastic=True)
    data = some_data(spec)
    ensemble = untrained(data)
    theta = make_policies(spec, 600).theta
    starts = data.initial_observations[:1].astype(float)
    noise = noise_of(spec, 12, 2, 1)
    together = imagine(ensemble, spec, theta, starts, 12, noise=noise)
    for k in (0, 255, 256, 599):
        alone = imagine(ensemble, spec, theta[k : k + 1], starts, 12, noise=noise)
        np.testing.assert_allclose(
            together.returns[0, k], alone.returns[0, 0], rtol=1e-4, atol=1e-4
        )
        np.testing.assert_array_equal(together.lengths[k], alone.lengths[0])


def test_imagined_observations_and_rewards_stay_in_the_range_of_the_data() -> None:
    data = some_data(box_spec(3), end="truncated")
    ensemble = untrained(data)
    with torch.no_grad():
        ensemble.network.biases[-1].fill_(100.0)
    theta = make_policies(box_spec(3), 1).theta
    played = imagine(ensemble, box_spec(3), theta, data.initial_observations[:1].astype(float), 7)
    assert played.returns[0, 0, 0, 0] == pytest.approx(7 * data.rewards.max(), rel=1e-5)
    highest = ensemble.scales.normaliser.apply(data.observations.max(axis=0))
    np.testing.assert_allclose(played.states[0, 0, 0, 0], highest, rtol=1e-5)
    assert played.lengths.tolist() == [[[7, 7]]]


def goal_data() -> Trajectories:
    """Steps of 0.2 and -0.1 on a line; at 1, which few reach, they end and pay 100."""

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        ahead = obs + rng.choice([0.2, -0.1], p=[0.3, 0.7])
        ended = bool(ahead[0] >= 1)
        return ahead, 100.0 if ended else -0.5 * ahead[0], ended

    starts = np.random.default_rng(0).uniform(-1, 1, (60, 1))
    return played(make_policies(box_spec(1), 60), step, starts, 12)


def test_the_box_ends_at_a_limit_of_the_environment_where_steps_lead_exactly_there() -> None:
    """A wall at -1, a velocity that is clipped at 0.5, a target that is another in each episode."""

    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        speed = min(0.5, obs[1] + 0.1 * float(action[0]))
        return np.array([max(-1.0, obs[0] + speed), speed, obs[2]]), 0.0, False

    starts = np.random.default_rng(0).uniform(-0.5, 0.4, (40, 3))
    data = played(make_policies(box_spec(3), 40, std=[3.0, 3.0, 3.0]), step, starts, 12)
    scales = Scales.of(data, np.arange(len(data)))
    assert scales.low[0] == -1.0
    assert scales.high[1] == 0.5
    assert scales.low_is_limit.tolist() == [True, False, False]
    assert scales.high_is_limit.tolist() == [False, True, False]
    there = np.flatnonzero(data.transitions.next_obs[:, 0] == -1.0)
    elsewhere = np.setdiff1d(np.arange(len(data)), there)
    for count in (4, 5):
        few = Scales.of(data, np.sort(np.append(elsewhere, there[:count])))
        assert few.low_is_limit.tolist() == [count == 5, False, False]
    ensemble = untrained(data)
    assert torch.isinf(ensemble.slack_low).tolist() == [True, False, False]
    assert torch.isinf(ensemble.slack_high).tolist() == [False, True, False]


def test_steps_that_terminate_have_a_reward_scale_of_their_own() -> None:
    data = goal_data()
    ended = data.terminated
    assert 5 < ended.sum() < 30
    scales = Scales.of(data, np.arange(len(data)))
    assert scales.end_reward == RewardScale(mean=100.0, std=pytest.approx(1e-4), low=100, high=100)
    going_on = data.rewards[~ended]
    expected = (going_on.mean(), going_on.std(), going_on.min(), going_on.max())
    assert tuple(scales.reward) == pytest.approx(expected)
    steps = Steps.of(data, scales, np.arange(len(data)))
    assert steps.reward[ended].abs().max() == 0
    assert steps.reward[~ended].mean() == pytest.approx(0.0, abs=1e-5)
    assert steps.reward[~ended].std(correction=0) == pytest.approx(1.0, rel=1e-5)
    whole = some_data(box_spec(1), end="truncated")
    assert Scales.of(whole, np.arange(len(whole))).end_reward is None
    last = np.flatnonzero(ended)
    assert Scales.of(data, last).reward == Scales.of(data, last).end_reward


def test_the_reward_of_a_goal_is_paid_where_an_episode_ends_alone() -> None:
    """Whatever the logit of termination, no step that goes on earns more than one of the data."""
    data = goal_data()
    ensemble = untrained(data)
    generator = torch.Generator().manual_seed(0)
    obs = 3 * torch.randn(2, 500, 1, generator=generator)
    action = torch.randn(2, 500, 1, generator=generator)
    with torch.no_grad():
        ensemble.network.biases[-1][..., 1] += 1e4
        step = ensemble.step(obs, action)
        logit = ensemble.outputs(obs, action)[..., 2].double()
    ended, reward = step.ended, step.reward
    assert 0 < ended.sum() < ended.numel()
    torch.testing.assert_close(reward[ended], torch.full_like(reward[ended], 100.0))
    highest = float(data.rewards[~data.terminated].max())
    torch.testing.assert_close(reward[~ended], torch.full_like(reward[~ended], highest))
    chance = torch.where(ended, 1.0, torch.sigmoid(logit))
    torch.testing.assert_close(step.going_on, 1 - chance)
    torch.testing.assert_close(step.expected, (1 - chance) * highest + chance * 100.0)


def test_policies_of_another_environment_are_refused() -> None:
    data = some_data(box_spec(3))
    ensemble = untrained(data)
    starts = data.initial_observations[:1].astype(float)
    other = box_spec(3, high=2.0)
    with pytest.raises(IncompatibleError, match="other observations or actions"):
        imagine(ensemble, other, make_policies(other, 1).theta, starts, 3)
    clipped = box_spec(3, squash="none")
    with pytest.raises(IncompatibleError, match="squash none against tanh; give a model"):
        imagine(ensemble, clipped, make_policies(clipped, 1).theta, starts, 3)
    drawing = box_spec(3, stochastic=True)
    with pytest.raises(IncompatibleError, match="noise for each step and start"):
        imagine(ensemble, drawing, make_policies(drawing, 1).theta, starts, 3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("members", 0, "--members: 0 is not a whole number"),
        ("hidden", (), "--hidden: nothing is not 1 to 16"),
        ("lr", float("nan"), "--lr: nan is not a finite number"),
        ("batch_size", 0, "--batch-size: 0 is not a whole number"),
        ("noise", -1.0, "--noise: -1.0 is not a number in"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(SMALL, **{name: value})


def test_rewards_are_sparse_where_few_steps_have_most_of_their_variance() -> None:
    data = some_data(box_spec(2))
    count, rng = 2_000, np.random.default_rng(0)
    many = dataclasses.replace(
        data,
        observations=np.zeros((count + 1, 2)),
        actions=np.zeros((count, 1), np.float32),
        rewards=np.zeros(count),
        terminated=np.zeros(count, bool),
        truncated=np.zeros(count, bool),
        policy=np.zeros(count, np.int32),
        start=np.array([0, count]),
        cut=np.array([True]),
        seeds=np.array([0]),
    )

    def sparse(rewards: np.ndarray, step: np.ndarray | None = None) -> bool:  # type: ignore[type-arg]
        changed = dataclasses.replace(many, rewards=rewards)
        return has_sparse_rewards(changed, np.arange(count) if step is None else step)

    small = 0.1 * rng.standard_normal(count)
    goal = np.where(np.arange(count) % 400 == 399, 100.0, 0.0)  # 5 of 2,000
    often = np.where(np.arange(count) % 50 == 49, 100.0, 0.0)  # 40, and one in a hundred is 20
    assert sparse(small + goal)
    assert sparse(1e306 * goal)
    ended = dataclasses.replace(many, rewards=small + goal, terminated=goal > 0)
    assert not has_sparse_rewards(ended, np.arange(count))  # predicted apart
    assert not sparse(small + goal, np.arange(399))
    assert not sparse(small)
    assert not sparse(small + often)
    assert not sparse(np.full(count, 3.0))


def test_steps_end_at_the_true_next_observation_whatever_followed() -> None:
    spec = box_spec(2)
    data = some_data(spec, end="cut")
    ensemble = untrained(data)
    steps = all_steps(data, ensemble)
    transitions, std = data.transitions, ensemble.scales.normaliser.std
    np.testing.assert_allclose(
        steps.change.numpy(), (transitions.next_obs - transitions.obs) / std, rtol=1e-5, atol=1e-6
    )
    assert not steps.ended.any()
    assert not ensemble.scales.ends
    ending = some_data(spec, end="terminated")
    assert all_steps(ending, untrained(ending)).ended.sum() == ending.episodes


def weights(fit) -> list[bytes]:  # type: ignore[no-untyped-def]
    return [p.detach().numpy().tobytes() for p in fit.ensemble.parameters()]


def test_steps_in_a_row_follow_each_other_in_one_episode() -> None:
    data = some_data(box_spec(2))  # six episodes of 11 steps
    kept = np.array([0, 1, 2, 5, 6, 10, 11, 12, 21, 22, 23])
    steps = Steps.of(data, untrained(data).scales, kept)
    assert steps.last.tolist() == [2, 2, 2, 4, 4, 5, 7, 7, 8, 10, 10]


@pytest.mark.parametrize(
    ("end", "recovery", "huber", "sparse"),
    [
        ("terminated", 1.0, 0.0, False),
        ("truncated", 0.2, 0.4, False),
        ("terminated", 0.2, 0.4, True),
    ],
)
def test_the_loss_of_steps_in_a_row_equals_a_loop_by_hand(
    end: str, recovery: float, huber: float, sparse: bool
) -> None:
    data = some_data(box_spec(2), end=end)
    settings = dataclasses.replace(SMALL, unroll=3, recovery=recovery, huber=huber)
    ensemble = untrained(data, settings)
    steps = dataclasses.replace(all_steps(data, ensemble), sparse=sparse)
    index = torch.tensor([[0, 4, 9], [10, 20, 13]])  # 9, 10 and 20 reach the end of an episode
    noise = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(())
    for m in range(2):
        errors = []
        for b in range(3):
            first = int(index[m, b])
            obs = steps.obs[first] + noise[m, b] * ensemble.change_std
            for row in range(first, min(first + 3, int(steps.last[first]) + 1)):
                true = steps.obs[row] + steps.change[row]
                x = obs.expand(2, 1, 2)
                out = ensemble.outputs(x, steps.action[row].expand(2, 1, -1))[m, 0]
                target = true + (1 - recovery) * (obs - steps.obs[row])
                change = (target - obs - ensemble.change_mean) / ensemble.change_std
                reward = out[4:5] if steps.ended[row] else out[2:3]
                away = torch.cat([out[:2] - change, reward - steps.reward[row]]).abs()
                large = (away > huber) & (huber > 0) & torch.tensor([True, True, not sparse])
                error = torch.where(large, 2 * huber * away - huber**2, away**2).mean()
                if end == "terminated":
                    sign = 2 * steps.ended[row] - 1
                    error = error + torch.nn.functional.softplus(-sign * out[3])
                errors.append(error)
                obs = obs + ensemble.change_mean + out[:2] * ensemble.change_std
        expected += torch.stack(errors).mean()
    loss = model_loss(ensemble, steps, [Drawn(objectives(settings)[0], index, noise)])
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("noise", "mixed"), [(0.0, False), (0.1, False), (0.1, True)])
def test_interrupted_and_extended_training_ends_with_the_same_bytes(
    noise: float, mixed: bool
) -> None:
    data = some_data(box_spec(2))
    settings = dataclasses.replace(SMALL, noise=noise, mixed=mixed)

    def run(*stages: tuple[int, int]):  # type: ignore[no-untyped-def]
        fit = start_training(untrained(data, settings), stages[0][0])
        for total, until in stages:
            fit.extend(total)
            advance(fit, all_steps(data, fit.ensemble), until)
        return fit

    whole = run((250, 250))
    for stages in (
        ((250, 7), (250, 203), (250, 250)),  # stopped twice, once while the rate falls
        ((110, 110), (250, 250)),  # extended after the end
        ((110, 90), (250, 250)),  # extended while the rate falls
        ((110, 20), (250, 250)),
    ):
        other = run(*stages)
        assert weights(other) == weights(whole)
        assert other.record == whole.record
        assert other.pending == whole.pending
    assert weights(run((110, 110))) != weights(whole)
    with pytest.raises(UsageError, match="fewer than the 250"):
        whole.extend(249)


def test_a_restored_snapshot_goes_on_as_before() -> None:
    data = some_data(box_spec(2))
    fit = start_training(untrained(data), 60)
    advance(fit, all_steps(data, fit.ensemble), 20)
    saved = fit.snapshot()
    advance(fit, all_steps(data, fit.ensemble), 60)
    again = start_training(untrained(data), 60)
    again.restore(saved)
    advance(again, all_steps(data, again.ensemble), 60)
    assert weights(again) == weights(fit)


def test_the_learning_rate_rises_stands_and_falls() -> None:
    rates = [learning_rate(SMALL, u, 10_000) for u in (0, 499, 500, 5_999, 6_000, 8_000, 9_999)]
    np.testing.assert_allclose(rates, [8e-6, 4e-3, 4e-3, 4e-3, 4e-3, 2e-3, 1e-6])
    assert fall_from(10_000) == 6_000
    assert learning_rate(SMALL, 0, 1) == pytest.approx(8e-6)
    with pytest.raises(UsageError, match="0 updates"):
        start_training(untrained(some_data(box_spec(2))), 0)


def test_another_seed_draws_other_steps_and_the_same_seed_the_same() -> None:
    noisy = dataclasses.replace(SMALL, noise=0.2)
    first = list(batches(noisy, 50, 2, 0, 130))
    later = list(batches(noisy, 50, 2, 100, 130))
    for (a,), (b,) in zip(first[100:], later, strict=True):
        assert a.index.equal(b.index)
        assert a.noise is not None
        assert b.noise is not None
        assert a.noise.equal(b.noise)
    (other,) = next(batches(dataclasses.replace(noisy, seed=1), 50, 2, 0, 1))
    assert not other.index.equal(first[0][0].index)


@pytest.mark.parametrize(("members", "own"), [(1, 1), (2, 1), (5, 3)])
def test_half_of_mixed_networks_learn_ten_steps_in_a_row(members: int, own: int) -> None:
    settings = dataclasses.replace(
        SMALL, members=members, noise=0.2, recovery=0.3, huber=0.1, unroll=2, mixed=True
    )
    expected = (
        Objective(slice(0, own), 0.2, 0.3, 0.1, 2),
        Objective(slice(own, members), 0.2, 1.0, 0.0, 10),
    )
    assert objectives(settings) == (expected if members > 1 else expected[:1])
    alike = objectives(dataclasses.replace(settings, mixed=False))
    assert alike == (Objective(slice(0, members), 0.2, 0.3, 0.1, 2),)


def test_mixed_networks_learn_what_each_would_alone() -> None:
    data = some_data(box_spec(2))
    settings = dataclasses.replace(SMALL, members=3, noise=0.2, huber=0.1, mixed=True)
    ensemble = untrained(data, settings)
    steps = all_steps(data, ensemble)
    drawn = next(batches(settings, len(steps), 2, 0, 1))
    assert [len(part.index[0]) for part in drawn] == [32, 3]
    parts = sum(model_loss(ensemble, steps, [part]) for part in drawn)
    torch.testing.assert_close(model_loss(ensemble, steps, drawn), parts)
    model_loss(ensemble, steps, drawn[1:2]).backward()  # type: ignore[no-untyped-call]
    for parameter in ensemble.parameters():
        assert parameter.grad is not None
        assert parameter.grad[2].abs().max() > 0
        assert parameter.grad[:2].abs().max() == 0


def test_a_loss_that_is_not_finite_stops_training() -> None:
    data = some_data(box_spec(2))
    fit = start_training(untrained(data, dataclasses.replace(SMALL, lr=1e30)), 2_000)
    with pytest.raises(DivergedError, match=r"loss is (nan|inf) at update"):
        advance(fit, all_steps(data, fit.ensemble), 2_000)
    assert fit.updates > 0


@pytest.mark.parametrize("factor", [1e5, 1e22, float("inf"), float("nan")])
def test_an_exploded_update_is_left_out(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of steps in a row each may make the error many times as large; 1e22 squared is no float."""
    data = some_data(box_spec(2))
    ensemble = untrained(data)
    steps, known = all_steps(data, ensemble), training.model_loss
    fit = start_training(ensemble, 100)

    def exploding(*args: Any) -> torch.Tensor:
        return known(*args) * (factor if fit.updates == 50 else 1.0)

    monkeypatch.setattr(training, "model_loss", exploding)
    advance(fit, steps, 50)
    before = fit.snapshot()
    advance(fit, steps, 51)
    for was, now in zip(before.second, fit.snapshot().second, strict=True):
        torch.testing.assert_close(now, 0.999 * was)  # as after a gradient of zero
    advance(fit, steps, 100)
    assert all(torch.isfinite(weight).all() for weight in fit.snapshot().weights)
    assert np.isfinite([loss for _, loss in fit.record]).all()


@pytest.mark.parametrize(
    ("mixed", "remedy"), [(False, "lower --lr$"), (True, "lower --lr, or use --no-mixed")]
)
def test_a_loss_that_stays_exploded_stops_training(
    mixed: bool, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = some_data(box_spec(2))
    fit = start_training(untrained(data, dataclasses.replace(SMALL, mixed=mixed)), 300)
    known = training.model_loss
    monkeypatch.setattr(training, "model_loss", lambda *args: known(*args) * 1e5)
    with pytest.raises(
        DivergedError, match=f"at update 10, and was as large for 10 updates; {remedy}"
    ):
        advance(fit, all_steps(data, fit.ensemble), 300)


def test_squares_of_gradients_beyond_single_precision_stop_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file of such a state would be damaged for its reader."""
    data = some_data(box_spec(2))
    fit = start_training(untrained(data), 10)
    known = training.model_loss

    def steep(*args: Any) -> torch.Tensor:
        loss = known(*args)
        return loss + 1e22 * (loss - loss.detach())  # of the same value, and steep

    monkeypatch.setattr(training, "model_loss", steep)
    with pytest.raises(DivergedError, match="beyond single precision by update 10; lower --lr"):
        advance(fit, all_steps(data, fit.ensemble), 10)


@pytest.mark.parametrize("updates", [1, 5])
def test_weights_that_are_no_numbers_stop_training(updates: int) -> None:
    """Fewer updates than may explode in a row."""
    data = some_data(box_spec(2))
    fit = start_training(untrained(data, dataclasses.replace(SMALL, lr=1e308)), updates)
    with pytest.raises(DivergedError, match=f"weights are beyond .* update {updates}; lower --lr"):
        advance(fit, all_steps(data, fit.ensemble), updates)


@pytest.mark.parametrize("updates", [1, 2, 5, 9])
def test_a_training_that_ends_in_an_explosion_is_not_finished(updates: int) -> None:
    """The first step leads to weights of 1e27 and more; no update after one looks at them."""
    data = some_data(box_spec(2))
    fit = start_training(untrained(data, dataclasses.replace(SMALL, lr=1e30)), updates)
    with pytest.raises(DivergedError, match=f"after update {updates}, the last one; lower --lr$"):
        advance(fit, all_steps(data, fit.ensemble), updates)
    assert fit.exploded == updates - 1
    assert all(torch.isfinite(weight).all() for weight in fit.snapshot().weights)


@pytest.mark.parametrize("sound", [4, 10])
def test_exploded_updates_at_the_end_may_be_an_accident(
    sound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six at the end four more are looked at, and the weights stay what they were without."""
    data = some_data(box_spec(2))
    known, calls = training.model_loss, 0

    def exploding(*args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return known(*args) * (1e13 if 15 <= calls < 20 + sound else 1.0)

    monkeypatch.setattr(training, "model_loss", exploding)
    fit = start_training(untrained(data), 20)
    steps = all_steps(data, fit.ensemble)
    if sound > 4:
        with pytest.raises(DivergedError, match="after update 20, the last one"):
            advance(fit, steps, 20)
        assert calls == 24
        return
    advance(fit, steps, 20)
    assert (fit.updates, fit.exploded, calls) == (20, 6, 24)
    calls = 0
    monkeypatch.setattr(training, "_refuse_explosion", lambda *_: None)
    plain = start_training(untrained(data), 20)
    advance(plain, steps, 20)
    for ours, theirs in zip(fit.snapshot().weights, plain.snapshot().weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_before_its_end_a_training_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on, and its further updates tell."""
    data = some_data(box_spec(2))
    known = training.model_loss
    fit = start_training(untrained(data), 100)
    steps = all_steps(data, fit.ensemble)

    def exploding(*args: Any) -> torch.Tensor:
        return known(*args) * (1e13 if 15 <= fit.updates < 20 else 1.0)

    monkeypatch.setattr(training, "model_loss", exploding)
    monkeypatch.setattr(training, "_refuse_explosion", lambda *_: pytest.fail("it is not over"))
    advance(fit, steps, 20)
    assert fit.exploded == 5


def test_rewards_beyond_single_precision_are_added_up() -> None:
    """-1.5e37, which is the mean too, at each of 100 steps, half of them beyond the box."""
    each = torch.tensor([-1.5e37], dtype=torch.float64)
    sums = _Sums(100 * each, 50 * each, torch.tensor([50.0], dtype=torch.float64))
    assert sums.trusted(-1.5e37).tolist() == (100 * each).tolist()

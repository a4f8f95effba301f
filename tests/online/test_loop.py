"""The online loop: what is due when, who acts, what is seen, and that it learns."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import pbvf_offline.online.loop as online
from libtools import box_spec, discrete_spec, lqr_return, online_settings
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import DivergedError, UsageError
from pbvf_offline.online.loop import EpisodeRecord, Hooks, evaluation_seed, evaluation_steps, train
from pbvf_offline.online.settings import OnlineSettings, online_defaults
from pbvf_offline.online.training import Training, start_training
from pbvf_offline.policies import batch
from pbvf_offline.policies.normaliser import MIN_STD
from pbvf_offline.policies.policy import init_theta
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.seeding import Stream, generator, reset_seed

CPU = torch.device("cpu")
SPEC = box_spec(2)
KINDS = ("pssvf", "psvf", "pavf")
POLICIES = {
    "pssvf": ("pssvf", SPEC),
    "psvf": ("psvf", SPEC),
    "pavf": ("pavf", SPEC),
    "stochastic pavf": ("pavf", box_spec(2, stochastic=True)),
    "discrete pavf": ("pavf", discrete_spec(2, n=2, stochastic=True)),
}
policies = pytest.mark.parametrize(("kind", "spec"), POLICIES.values(), ids=POLICIES.keys())


class Counting(gym.Env[Any, Any]):
    """Episodes of given lengths, in turn; it observes its seeded start and the time.

    Args:
        lengths: Lengths of the episodes.
        ends: ``terminated``, ``truncated`` or ``both``, in turn.
        survive: Survival bonus that each reward contains and each info reports.
        discrete: Whether actions are a choice of two.
    """

    def __init__(
        self,
        lengths: Sequence[int] = (7, 3, 20),
        ends: Sequence[str] = ("terminated",),
        survive: float | None = None,
        *,
        discrete: bool = False,
    ) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = Discrete(2) if discrete else Box(-1, 1, (1,), np.float32)
        self.lengths, self.ends, self.survive = lengths, ends, survive
        self.episode = -1
        self.seeds: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode += 1
        self.t, self.start = 0, self.np_random.uniform(-1, 1)
        return np.array([self.start, 0.0]), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        over = self.t == self.lengths[self.episode % len(self.lengths)]
        end = self.ends[self.episode % len(self.ends)]
        reward = float(np.sum(action)) - 0.1 * self.t + (self.survive or 0.0)
        info = {} if self.survive is None else {"reward_survive": self.survive}
        obs = np.array([self.start, float(self.t)])
        return obs, reward, over and end != "truncated", over and end != "terminated", info


def settings(kind: str = "psvf", **kwargs: Any) -> OnlineSettings:
    every = None if kind == "pssvf" else 50
    counts = {"critic_updates": 5, "actor_updates": 2, "actor_states": 6, "buffer_size": 100_000}
    return online_settings(kind, **{"update_every": every, **counts, **kwargs})


def start(chosen: OnlineSettings, spec: PolicySpec = SPEC) -> Training:
    return start_training(spec, chosen, obs_dtype=np.float64, device=CPU)


@dataclasses.dataclass
class Run:
    training: Training
    episodes: list[Episode]
    records: list[EpisodeRecord]
    learned: list[np.ndarray]  # the learned policy at the start of each episode
    unfinished: Episode | None


def run(
    chosen: OnlineSettings,
    until: int,
    spec: PolicySpec = SPEC,
    env: Any = None,
    training: Training | None = None,
    **hooks: Any,
) -> Run:
    env = Counting(discrete=not spec.is_continuous) if env is None else env
    training = start(chosen, spec) if training is None else training
    result = Run(training, [], [], [training.policy.theta[0]], None)

    def note(training: Training, record: EpisodeRecord, episode: Episode | None) -> None:
        assert episode is not None
        result.episodes.append(episode)
        result.records.append(record)
        result.learned.append(training.policy.theta[0])

    result.unfinished = train(training, env, until, Hooks(episode=note, keep=True, **hooks))
    return result


def critic_bytes(training: Training) -> bytes:
    return b"".join(w.numpy().tobytes() for w in training.fit.critic.state_dict().values())


@dataclasses.dataclass
class Update:
    who: str
    step: int
    entries: int
    index: np.ndarray


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """Every gradient step that is taken, with the environment step it was taken at."""
    seen: list[Update] = []
    begin = start_training
    gradient_step = online.gradient_step
    now: list[Training] = []

    def starting(*args: Any, **kwargs: Any) -> Training:
        training = begin(*args, **kwargs)
        now[:] = [training]
        climb = training.fit.online.actor_step

        def climbing(theta: Any, batch: Any, index: Any, **how: Any) -> Any:
            seen.append(Update("actor", training.steps, len(batch), index.numpy().copy()))
            return climb(theta, batch, index, **how)

        training.fit.online.actor_step = climbing  # type: ignore[method-assign]
        return training

    def stepping(fit: Any, batch: Any, index: Any, noise: Any = None) -> None:
        seen.append(Update("critic", now[0].steps, len(batch), index.numpy().copy()))
        gradient_step(fit, batch, index, noise)

    monkeypatch.setitem(globals(), "start_training", starting)
    monkeypatch.setattr(online, "gradient_step", stepping)
    return seen


# --- when updates happen --------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(7, 3, 20), (1000,), (1,), (50,), (100, 49)])
@pytest.mark.parametrize("every", [50, 7])
def test_td_critics_update_at_every_so_many_steps_and_nowhere_else(
    every: int, lengths: tuple[int, ...], updates: list[Update]
) -> None:
    result = run(settings(update_every=every), 230, env=Counting(lengths))
    due = list(range(every, 231, every))
    assert [u.step for u in updates] == [step for step in due for _ in range(7)]
    assert [u.who for u in updates] == (["critic"] * 5 + ["actor"] * 2) * len(due)
    assert all(u.entries == u.step for u in updates)  # all steps so far are there
    assert result.training.rounds == len(due)
    assert result.training.fit.updates == 5 * len(due)
    assert result.training.steps == 230


def test_the_pssvf_updates_at_the_end_of_episodes_and_nowhere_else(updates: list[Update]) -> None:
    chosen = settings("pssvf", critic_updates=3, actor_updates=4)
    result = run(chosen, 65)  # 7, 10, 30, 37, 40, 60, and 5 steps of another
    ends = [7, 10, 30, 37, 40, 60]
    assert [u.step for u in updates] == [step for step in ends for _ in range(7)]
    assert [u.who for u in updates] == (["critic"] * 3 + ["actor"] * 4) * len(ends)
    assert [u.entries for u in updates] == [k for k in range(1, 7) for _ in range(7)]
    assert [r.end for r in result.records] == ends
    assert len(result.training.replay) == 6  # the cut episode has no return
    assert result.training.episodes == 6


@pytest.mark.parametrize("kind", ["psvf", "pavf"])
def test_td_critics_can_update_once_an_episode(kind: str, updates: list[Update]) -> None:
    run(settings(kind, update_every=None, critic_updates=1, actor_updates=1), 65)
    ends = [7, 10, 30, 37, 40, 60]
    assert [u.step for u in updates] == [step for step in ends for _ in range(2)]
    assert [u.entries for u in updates] == [step for step in ends for _ in range(2)]


@pytest.mark.parametrize("size", [5, 64])
def test_a_full_buffer_holds_the_last_steps(size: int, updates: list[Update]) -> None:
    result = run(settings(buffer_size=size), 150)
    assert {u.entries for u in updates if u.step > 64} == {size}
    times = np.concatenate(
        [e.observations[:-1, 1] for e in result.episodes]
        + ([] if result.unfinished is None else [result.unfinished.observations[:-1, 1]])
    )
    kept = result.training.replay.observations[:, 1]
    assert sorted(kept.tolist()) == sorted(times[-size:].tolist())


def test_draws_are_uniform_over_the_entries(updates: list[Update]) -> None:
    run(settings(batch_size=32, actor_states=9, critic_updates=10), 600)
    critic = [u for u in updates if u.who == "critic"]
    assert all(u.index.shape == (32,) for u in critic)
    assert all(u.index.shape == (9,) for u in updates if u.who == "actor")
    assert all(0 <= u.index.min() <= u.index.max() < u.entries for u in updates)
    places = np.concatenate([u.index / u.entries for u in critic])
    counts = np.histogram(places, bins=10, range=(0, 1))[0]
    assert np.abs(counts - len(places) / 10).max() < 4 * math.sqrt(len(places) / 10)
    assert any(len(set(u.index.tolist())) < 32 for u in critic)  # with replacement
    assert len({u.index.tobytes() for u in critic}) == len(critic)


def test_an_actor_update_is_a_step_of_adam_up_the_gradient() -> None:
    # Adam's first step moves each parameter by the learning rate in the gradient's direction.
    training = start(settings(actor_updates=1, lr_policy=0.02))
    before = training.theta.detach().clone()
    run(training.settings, 50, training=training)
    moved = training.theta.detach() - before
    gradient = training.theta.grad
    assert gradient is not None
    assert torch.allclose(moved, 0.02 * gradient.sign(), rtol=1e-3)
    assert training.objective is not None


@pytest.mark.parametrize("count", ["critic_updates", "actor_updates"])
def test_no_updates_of_one_of_them(count: str) -> None:
    chosen = settings(**{count: 0})
    training = start(chosen)
    theta, critic = training.theta.detach().clone(), critic_bytes(training)
    run(chosen, 120, training=training)
    assert torch.equal(training.theta, theta) == (count == "actor_updates")
    assert (critic_bytes(training) == critic) == (count == "critic_updates")


# --- who acts -------------------------------------------------------------------------------


def test_the_noise_has_the_standard_deviation_asked_for() -> None:
    chosen = settings(sigma=0.3, actor_updates=0, critic_updates=0)
    result = run(chosen, 800, env=Counting((1,)))
    noise = np.stack([e.theta[0] for e in result.episodes]) - result.learned[0]
    assert noise.shape == (800, 3)
    # 2,400 numbers: the standard error of their spread is 0.0043, of their mean 0.0061.
    assert noise.std() == pytest.approx(0.3, abs=0.018)
    assert noise.mean() == pytest.approx(0.0, abs=0.025)
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 0.15
    assert len({e.theta.tobytes() for e in result.episodes}) == 800


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_act_with_the_learned_policy_plus_noise_of_seed_and_episode(kind: str) -> None:
    result = run(settings(kind, update_every=5, seed=4), 200)
    assert len(result.episodes) > 10
    assert len({theta.tobytes() for theta in result.learned}) > 10
    for index, episode in enumerate(result.episodes):
        assert len(episode.theta) == 1  # updates within an episode leave who acts alone
        noise = generator(4, Stream.PERTURBATION, index, 0).standard_normal(3)
        want = (result.learned[index].astype(float) + 0.3 * noise).astype(np.float32)
        assert np.array_equal(episode.theta[0], want)
        assert episode.seed == reset_seed(4, Stream.RESET, index)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_watched_is_the_unperturbed_policy(kind: str) -> None:
    seen: list[tuple[int, np.ndarray, np.ndarray]] = []

    def watch(training: Training) -> None:
        policy = training.policy
        assert np.array_equal(policy.theta, training.theta.detach().numpy())
        assert np.array_equal(policy.obs_mean[0], training.normaliser.mean)
        assert np.array_equal(policy.obs_std[0], training.normaliser.std)
        policy.theta[:] = 99.0  # it is a copy
        assert training.theta.abs().max() < 99
        seen.append((training.steps, training.theta.detach().numpy()[0].copy(), policy.obs_mean))

    result = run(settings(kind, sigma=2.0, actor_updates=0), 120, watch=watch, at=(1, 60, 120))
    assert [step for step, _, _ in seen] == [1, 60, 120]
    for _, theta, _ in seen:
        assert np.array_equal(theta, result.learned[0])
        assert all(np.abs(e.theta[0] - theta).max() > 1e-3 for e in result.episodes)


def test_the_first_policy() -> None:
    chosen = settings(seed=9)
    want = init_theta(SPEC, generator(9, Stream.BASE_POLICY))
    assert np.array_equal(start(chosen).policy.theta[0], want)
    given = dataclasses.replace(chosen, initial_theta=(1.0, 2.0, -3.0))
    assert start(given).policy.theta.tolist() == [[1.0, 2.0, -3.0]]
    with pytest.raises(UsageError, match="2 parameters, the policy has 3"):
        start(dataclasses.replace(chosen, initial_theta=(1.0, 2.0)))


# --- what it sees ---------------------------------------------------------------------------


def moments(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of raw observations; nothing seen changes nothing."""
    if not len(rows):
        return np.zeros(2), np.ones(2)
    stacked = np.concatenate(rows)
    std = stacked.std(axis=0)
    return stacked.mean(axis=0), np.where(std < MIN_STD, 1.0, std)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_are_frozen_within_an_episode_and_updated_at_its_end(kind: str) -> None:
    result = run(settings(kind, update_every=5), 150, env=Counting((7, 3, 20, 1)))
    acted_on: list[np.ndarray] = []
    for episode in result.episodes:
        mean, std = moments(acted_on)
        assert len(episode.obs_mean) == 1
        assert np.allclose(episode.obs_mean[0], mean, rtol=1e-12, atol=1e-12)
        assert np.allclose(episode.obs_std[0], std, rtol=1e-12)
        acted_on.append(episode.observations[:-1])
    mean, std = moments(acted_on)  # an unfinished episode does not count yet
    assert np.allclose(result.training.normaliser.mean, mean, rtol=1e-12, atol=1e-12)
    assert np.allclose(result.training.normaliser.std, std, rtol=1e-12)
    assert result.training.fit.normaliser == result.training.normaliser
    if kind != "pssvf":
        replay = result.training.replay
        batch = replay.training_set()
        shown = batch.obs[batch.obs_row[: len(batch)]].numpy()
        want = ((replay.observations - mean) / std).astype(np.float32)
        assert np.allclose(shown, want, rtol=0, atol=1e-6)


def test_the_per_step_rule_sees_an_observation_with_statistics_that_include_it() -> None:
    result = run(settings(normalization="per-step", update_every=5), 104)
    before: list[np.ndarray] = []
    shown: list[tuple[np.ndarray, np.ndarray]] = []
    thetas: list[np.ndarray] = []
    assert result.unfinished is not None
    for episode in (*result.episodes, result.unfinished):
        assert len(episode.obs_mean) == len(episode)
        assert np.all(episode.theta == episode.theta[0])
        seen = []
        for t in range(len(episode) + 1):
            mean, std = moments([*before, episode.observations[: t + 1]])
            if t < len(episode):
                assert np.allclose(episode.obs_mean[t], mean, rtol=1e-10, atol=1e-12)
                assert np.allclose(episode.obs_std[t], std, rtol=1e-10)
            seen.append((episode.observations[t] - mean) / std)
        shown += list(itertools.pairwise(seen))
        thetas += [episode.theta[0]] * len(episode)
        before.append(episode.observations)  # with the last one, which was observed too
    assert len(shown) == 104
    batch = result.training.replay.training_set()
    rows = torch.stack([batch.obs_row[:104], batch.boot_row[:104]], dim=1)
    want = np.array([np.stack(pair) for pair in shown])
    assert np.allclose(batch.obs[rows].numpy(), want, rtol=0, atol=1e-5)
    # Parameters are shown as they were stored, whatever the statistics became.
    assert np.array_equal(batch.theta[batch.policy[:104]].numpy(), np.stack(thetas))
    mean, std = moments(before)
    assert np.allclose(result.training.normaliser.mean, mean, rtol=1e-10)
    assert np.allclose(result.training.normaliser.std, std, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_without_normalization_nothing_is_normalised(kind: str) -> None:
    result = run(settings(kind, normalization="none", update_every=5), 100)
    for episode in result.episodes:
        assert np.all(episode.obs_mean == 0)
        assert np.all(episode.obs_std == 1)
    assert np.all(result.training.policy.obs_mean == 0)
    assert np.all(result.training.policy.obs_std == 1)
    batch = result.training.replay.training_set()
    if kind != "pssvf":
        shown = batch.obs[batch.obs_row[: len(batch)]].numpy()
        assert np.array_equal(shown, result.training.replay.observations.astype(np.float32))


# --- what is learned from -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reward", ["raw", "without-survival"])
def test_the_survival_bonus_is_left_out_on_request(kind: str, reward: Any) -> None:
    result = run(settings(kind, reward=reward, gamma=0.5), 95, env=Counting(survive=5.0))
    off = 0.0 if reward == "raw" else 5.0
    learned = [e.rewards - off for e in result.episodes]
    for record, episode, rewards in zip(result.records, result.episodes, learned, strict=True):
        assert record.total == pytest.approx(episode.rewards.sum())
        assert record.learned == pytest.approx(rewards.sum())
    values = result.training.replay.training_set().value[: len(result.training.replay)]
    if kind == "pssvf":
        want = [sum(0.5**t * r for t, r in enumerate(rewards)) for rewards in learned]
    else:
        assert result.unfinished is not None
        want = np.concatenate([*learned, result.unfinished.rewards - off]).tolist()
    assert values.tolist() == pytest.approx(want, rel=1e-5, abs=1e-5)
    _, returns = result.training.replay.policies()
    assert returns.tolist() == pytest.approx([r.sum() for r in learned])


@pytest.mark.parametrize("kind", KINDS)
def test_a_bonus_that_is_not_reported_cannot_be_left_out(kind: str) -> None:
    with pytest.raises(UsageError, match="reward_survive") as caught:
        run(settings(kind, reward="without-survival"), 60)
    assert "--reward raw" in str(caught.value)


@pytest.mark.parametrize("kind", ["psvf", "pavf"])
def test_only_the_end_of_the_task_stops_bootstrapping(kind: str) -> None:
    env = Counting((3, 4, 2), ("terminated", "truncated", "both"))
    result = run(settings(kind, update_every=2), 21, env=env)
    discounts = result.training.replay.training_set().discount[:21]
    want = [0.9, 0.9, 0.0] + [0.9] * 4 + [0.9, 0.0]
    assert discounts.tolist() == pytest.approx((want * 3)[:21])
    batch = result.training.replay.training_set()
    # What follows a step is its own next observation, also at the end of an episode.
    times = result.training.replay.observations[:, 1]
    assert times.tolist() == ([0, 1, 2, 0, 1, 2, 3, 0, 1] * 3)[:21]
    normaliser = result.training.normaliser
    ahead = batch.obs[batch.boot_row[:21], 1].numpy() * normaliser.std[1] + normaliser.mean[1]
    assert ahead.tolist() == pytest.approx([t + 1 for t in times], abs=1e-4)


@policies
def test_the_last_episode_is_cut(kind: str, spec: PolicySpec) -> None:
    result = run(settings(kind, update_every=5), 65, spec)
    assert len(result.episodes) == 6
    assert all(episode.cut == "none" for episode in result.episodes)
    cut = result.unfinished
    assert cut is not None
    assert (cut.cut, len(cut)) == ("budget", 5)
    assert cut.truncated.tolist() == [False] * 4 + [True]
    assert not cut.terminated.any()
    assert result.training.steps == 65
    assert len(result.training.replay) == (6 if kind == "pssvf" else 65)
    policies, _ = result.training.replay.policies()
    assert len(policies) == 6
    # One that ends exactly there is whole.
    exact = run(settings(kind, update_every=5), 60, spec)
    assert exact.unfinished is None
    assert len(exact.episodes) == 6


@policies
def test_what_is_stored_is_what_was_done(kind: str, spec: PolicySpec) -> None:
    result = run(settings(kind, update_every=5, normalization="none"), 60, spec)
    if kind == "pssvf":
        return
    batch = result.training.replay.training_set()
    actions = np.concatenate([e.actions for e in result.episodes])
    thetas = np.concatenate([np.repeat(e.theta, len(e), axis=0) for e in result.episodes])
    assert np.array_equal(batch.theta[batch.policy[:60]].numpy(), thetas)
    if not spec.stochastic:
        assert np.array_equal(batch.action[:60].numpy(), actions)  # the bounds are [-1, 1]
        assert batch.sample is None
    elif spec.is_continuous:
        pre = np.concatenate([e.pre_action[:-1] for e in result.episodes])
        assert np.array_equal(batch.sample[:60].numpy(), pre.astype(np.float32))
        assert np.allclose(np.tanh(pre), actions, rtol=0, atol=1e-6)
    else:
        assert batch.sample[:60].tolist() == actions.tolist()
        assert batch.action[:60].argmax(dim=1).tolist() == actions.tolist()


# --- the same again -------------------------------------------------------------------------


@policies
@pytest.mark.parametrize("normalization", ["episode", "per-step", "none"])
def test_one_seed_one_result(kind: str, spec: PolicySpec, normalization: Any) -> None:
    chosen = settings(kind, update_every=10, normalization=normalization)
    other = dataclasses.replace(chosen, seed=1)
    a, b, c = (run(s, 60, spec).training for s in (chosen, chosen, other))
    assert critic_bytes(a) == critic_bytes(b)
    assert torch.equal(a.theta, b.theta)
    assert a.normaliser.mean.tobytes() == b.normaliser.mean.tobytes()
    assert critic_bytes(a) != critic_bytes(c)
    assert not torch.equal(a.theta, c.theta)


def test_the_biased_update_is_another_one() -> None:
    chosen = settings("pavf", update_every=10, sigma=0.1)
    whole = run(chosen, 60).training
    biased = run(dataclasses.replace(chosen, biased=True), 60).training
    # Until the first actor update nothing differs, afterwards the actor does.
    assert not torch.equal(whole.theta, biased.theta)


# The environment counts its episodes, so it is not repeatable, which is warned of.
@pytest.mark.filterwarnings("ignore::pbvf_offline.rollout.repetition.NotRepeatableWarning")
@policies
def test_looking_on_disturbs_nothing(kind: str, spec: PolicySpec) -> None:
    chosen = settings(kind, update_every=10)
    name = "OnlineDiscrete-v0" if not spec.is_continuous else "OnlineBox-v0"
    if name not in gym.envs.registration.registry:
        gym.register(
            name,
            entry_point=Counting,
            max_episode_steps=100,
            kwargs={"discrete": not spec.is_continuous},
        )
    returns: list[float] = []

    def evaluate(training: Training) -> None:
        torch.manual_seed(training.steps)
        torch.rand(3)
        np.random.seed(training.steps)  # noqa: NPY002
        seed = evaluation_seed(0, training.steps)
        returns.extend(
            evaluate_policies(EnvConfig(name), training.policy, episodes=2, seed=seed)[0][0]
        )

    plain = run(chosen, 65, spec)
    watched = run(
        chosen, 65, spec, watch=evaluate, at=(1, 3, 7, 11, 12, 50, 65), tick=lambda n: None
    )
    assert len(returns) == 14
    assert critic_bytes(plain.training) == critic_bytes(watched.training)
    assert torch.equal(plain.training.theta, watched.training.theta)
    for a, b in zip(plain.episodes, watched.episodes, strict=True):
        assert a.observations.tobytes() == b.observations.tobytes()
        assert a.actions.tobytes() == b.actions.tobytes()
    assert plain.unfinished is not None
    assert watched.unfinished is not None
    assert plain.unfinished.actions.tobytes() == watched.unfinished.actions.tobytes()


def test_the_callers_hooks_come_in_order() -> None:
    calls: list[tuple[str, int]] = []
    ticks: list[int] = []

    def watch(training: Training) -> None:
        calls.append(("watch", training.steps))
        rounds.append(training.rounds)

    rounds: list[int] = []
    hooks = Hooks(
        watch=watch,
        at=(30, 10, 10, 25, 65, 80),  # in any order; those beyond the end are not reached
        episode=lambda training, record, episode: calls.append(("episode", training.steps)),
        tick=ticks.append,
    )
    training = start(settings(update_every=10))
    assert train(training, Counting(), 65, hooks) is None  # nothing is kept
    episodes = [("episode", step) for step in (7, 10, 30, 37, 40, 60)]
    watched = [("watch", step) for step in (10, 25, 30, 65)]
    assert sorted(calls, key=lambda c: (c[1], c[0] == "episode")) == calls
    assert set(calls) == set(episodes + watched)
    assert rounds == [1, 2, 3, 6]  # after the updates that are due there
    assert ticks == sorted(ticks)
    assert {7, 10, 25, 65} <= set(ticks)


def test_what_a_tick_raises_stops_the_run() -> None:
    training = start(settings(update_every=10))
    ends: list[int] = []

    def tick(steps: int) -> None:
        if steps >= 45:
            raise KeyboardInterrupt

    def note(training: Training, record: EpisodeRecord, episode: Any) -> None:
        ends.append(record.end)

    with pytest.raises(KeyboardInterrupt):
        train(training, Counting(), 100, Hooks(episode=note, tick=tick))
    assert ends == [7, 10, 30, 37, 40]


def test_records() -> None:
    result = run(settings(update_every=10), 65)
    lengths = [7, 3, 20, 7, 3, 20]
    assert [r.index for r in result.records] == list(range(6))
    assert [r.steps for r in result.records] == lengths
    assert [r.end for r in result.records] == np.cumsum(lengths).tolist()
    assert [r.total for r in result.records] == pytest.approx(
        [e.rewards.sum() for e in result.episodes]
    )
    assert [r.loss is None for r in result.records] == [True] + [False] * 5
    assert [r.objective is None for r in result.records] == [True] + [False] * 5
    assert all(r.effective_samples is None for r in result.records)


@pytest.mark.parametrize("which", ["stochastic pavf", "discrete pavf"])
def test_importance_weights_are_reported(which: str) -> None:
    kind, spec = POLICIES[which]
    result = run(settings(kind, update_every=10), 65, spec)
    # An episode without an update has none: the first ends at 7, the fourth began at 30.
    given = [r.effective_samples for r in result.records]
    assert [fraction is None for fraction in given] == [True, False, False, True, False, False]
    assert all(0 < fraction <= 1 for fraction in given if fraction is not None)
    # Where all act alike, and see alike, every sample counts.
    alike = settings(kind, update_every=10, sigma=0.0, lr_policy=1e-12, normalization="none")
    still = run(alike, 65, spec)
    assert all(r.effective_samples in (None, pytest.approx(1.0, abs=1e-4)) for r in still.records)


# --- divergence and refusals ----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_that_runs_away_stops_the_run(kind: str) -> None:
    ends: list[int] = []
    training = start(settings(kind, lr_critic=1e20, update_every=10))

    def note(training: Training, record: EpisodeRecord, episode: Any) -> None:
        assert all(bool(p.isfinite().all()) for p in training.fit.critic.parameters())
        ends.append(record.end)

    with pytest.raises(DivergedError) as caught:
        train(training, Counting(), 500, Hooks(episode=note))
    assert caught.value.exit_code == 8
    assert "--lr-critic" in str(caught.value)
    assert ends == [r for r in ends if r < training.steps]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [1e38, 1e300])
def test_an_actor_that_runs_away_stops_the_run(kind: str, rate: float) -> None:
    # The second rate is infinite in single precision.
    with pytest.raises(DivergedError) as caught:
        run(settings(kind, lr_policy=rate, update_every=10, actor_updates=1), 500)
    assert "--lr-policy" in str(caught.value)


def test_a_run_does_not_end_with_a_broken_critic(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last update before the budget runs out, in an episode that it cuts.
    training = start(settings(update_every=10, actor_updates=0))
    step = online.gradient_step

    def breaking(fit: Any, *args: Any) -> None:
        step(fit, *args)
        if fit.updates == 5 * 6:
            with torch.no_grad():
                fit.online.network.biases[0].fill_(math.inf)

    monkeypatch.setattr(online, "gradient_step", breaking)
    with pytest.raises(DivergedError, match="weights"):
        train(training, Counting(), 65, Hooks())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"biased": True}, "--biased"),
        ({"normalization": "yes"}, "--normalization"),
        ({"lr_policy": 0.0}, "--lr-policy"),
        ({"lr_policy": math.nan}, "--lr-policy"),
        ({"lr_critic": math.inf}, "--lr-critic"),
        ({"sigma": -0.1}, "--sigma"),
        ({"sigma": math.nan}, "--sigma"),
        ({"batch_size": 0}, "--batch-size"),
        ({"actor_states": 0}, "--actor-states"),
        ({"critic_updates": -1}, "--critic-updates"),
        ({"actor_updates": -1}, "--actor-updates"),
        ({"buffer_size": 0}, "--buffer-size"),
        ({"buffer_size": 10**9}, "--buffer-size"),
        ({"update_every": 0}, "--update-every"),
        ({"gamma": 1.1}, "gamma"),
        ({"hidden": ()}, "hidden"),
        ({"activation": "gelu"}, "gelu"),
        ({"kind": "ddpg"}, "pssvf"),
        ({"reward": "cooked"}, "cooked"),
    ],
)
def test_refused_settings(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        start(settings(**change))


def test_a_critic_is_fitted_with_the_runs_settings() -> None:
    fit = settings().fit_settings()
    assert (fit.kind, fit.hidden, fit.gamma, fit.lr) == ("psvf", (4,), 0.9, 1e-2)
    assert (fit.batch_size, fit.n_step, fit.seed, fit.reward) == (4, 1, 0, "raw")


def test_in_bfloat16_the_actor_takes_other_steps_and_the_critic_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "has_bfloat16", lambda device: True)
    whole, low = (
        run(settings(hidden=(16, 16), precision=precision), 50).training  # one round of updates
        for precision in ("float32", "bfloat16")
    )
    assert critic_bytes(low) == critic_bytes(whole)
    assert low.theta.tolist() != whole.theta.tolist()
    assert low.theta.tolist()[0] == pytest.approx(whole.theta.tolist()[0], abs=2e-3)
    monkeypatch.setattr(batch, "has_bfloat16", lambda device: False)
    with pytest.raises(UsageError, match="--precision"):
        run(settings(precision="bfloat16"), 50)


# --- evaluations ----------------------------------------------------------------------------


def test_evaluation_steps_by_hand() -> None:
    assert evaluation_steps(1000, 4) == (250, 500, 750, 1000)
    assert evaluation_steps(10, 3) == (3, 6, 10)
    assert evaluation_steps(1_000_000, 100) == tuple(range(10_000, 1_000_001, 10_000))
    assert evaluation_steps(3, 100) == (1, 2, 3)


def test_evaluations_have_seeds_of_their_own() -> None:
    seeds = {evaluation_seed(seed, step) for seed in range(3) for step in range(1, 200)}
    assert len(seeds) == 3 * 199
    training = {reset_seed(seed, Stream.RESET, k) for seed in range(3) for k in range(200)}
    assert not seeds & training


# --- learning -------------------------------------------------------------------------------

LQR = EnvConfig("LQR-v0")


def lqr_training(seed: int, initial: tuple[float, float]) -> tuple[Training, Any]:
    env = make_env(LQR)
    spec = spec_for_env(env, (), squash="none")
    chosen = online_defaults("pssvf", "LQR-v0", spec, seed=seed).settings
    assert (chosen.lr_policy, chosen.lr_critic, chosen.sigma) == (1e-3, 1e-2, 0.5)
    assert (chosen.gamma, chosen.normalization) == (1.0, "none")
    return start(dataclasses.replace(chosen, initial_theta=initial), spec), env


def true_return(training: Training) -> float:
    return float(evaluate_policies(LQR, training.policy, episodes=1, seed=0)[0][0, 0])


@pytest.mark.parametrize("seed", [0, 1])
def test_the_pssvf_learns_the_lqr(seed: int) -> None:
    training, env = lqr_training(seed, (-0.2, 0.15))

    def closed_form() -> float:
        theta = training.theta.detach().double().numpy()
        return float(lqr_return(theta[:, 0], theta[:, 1], 50)[0])

    assert closed_form() == pytest.approx(true_return(training))
    assert closed_form() < -30
    train(training, env, 50 * 50, Hooks())
    assert closed_form() == pytest.approx(true_return(training))
    assert closed_form() > -5  # the best linear policy has -1.618


def test_the_pssvf_learns_from_the_papers_start() -> None:
    # There states are thrown from bound to bound, so the closed form does not hold.
    training, env = lqr_training(0, (3.2, -3.5))
    first = true_return(training)
    assert first < -4500
    train(training, env, 50 * 60, Hooks())
    assert true_return(training) > first / 3


@pytest.mark.parametrize("which", ["psvf", "pavf", "stochastic pavf", "discrete pavf"])
def test_td_critics_learn_what_to_do(which: str) -> None:
    # The reward is the action: the best policy pushes to the upper bound in every state, and
    # gets 10 - 5.5. The first one pushes the other way.
    kind, spec = POLICIES[which]
    log_std, bias = (-0.5,) * spec.log_std_size, (-1.0,) if spec.is_continuous else (1.0, -1.0)
    weights = (0.0,) * (spec.size - len(log_std) - len(bias))
    chosen = settings(
        kind,
        sigma=0.1 if spec.stochastic else 0.5,
        hidden=(16,),
        lr_policy=5e-2,
        batch_size=32,
        actor_states=32,
        update_every=10,
        gamma=0.5,
        normalization="none",
        initial_theta=(*log_std, *weights, *bias),
    )
    result = run(chosen, 700, spec, Counting((10,), discrete=not spec.is_continuous))
    totals = np.array([r.total for r in result.records])
    assert totals[:3].mean() < 0
    assert totals[-20:].mean() > 2.5

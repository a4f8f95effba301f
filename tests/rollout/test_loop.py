from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import registry
from gymnasium.spaces import Box

from libtools import box_spec, make_policies
from pbvf_cli.shared.errors import Stopped
from pbvf_offline.envs.make import close_env, make_env
from pbvf_offline.envs.process import process_kept
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import DivergedError, ResourceError, UsageError
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode
from pbvf_offline.rollout.evaluation import (
    ReturnOf,
    evaluate_policies,
    observations_acted_on,
    require_end,
    warm_up,
)
from pbvf_offline.rollout.loop import EpisodeJob, EpisodeRun, run_episode, run_episodes
from pbvf_offline.rollout.schedules import GivenSchedule, PerturbationSchedule
from pbvf_offline.seeding import Stream, generator


class ProbeEnv(gym.Env[Any, Any]):
    """Observation (seeded start, time); reward = first action; can misbehave on request."""

    def __init__(
        self,
        length: int = 7,
        *,
        mutate: bool = False,
        same: bool = False,
        bad_reward_at: int = 0,
        bad_obs_at: int = 0,
        info: str = "",
        raises_at: int = 0,
        bad: float = float("nan"),
    ) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = Box(-1, 1, (1,), np.float32)
        self.length, self.mutate, self.same, self.info = length, mutate, same, info
        self.bad_reward_at, self.bad_obs_at, self.bad = bad_reward_at, bad_obs_at, bad
        self.raises_at = raises_at
        self.obs = np.zeros(2)
        self.received: list[np.ndarray] = []

    def _observe(self) -> Any:
        if self.t and self.t == self.bad_obs_at:
            return np.full(2, self.bad)
        if self.same:
            return self.obs
        return self.obs.copy()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.received = []
        self.obs[:] = self.np_random.uniform(-1, 1), 0
        return self._observe(), {"a": 0} if self.info == "reset" else {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.t == self.raises_at:
            raise KeyError("broken")
        self.received.append(action.copy())
        reward = float(action[0])
        if self.mutate:
            action[:] = 99.0
        if self.t == self.bad_reward_at:
            reward = self.bad
        self.obs[1] = self.t
        info: dict[str, Any] = {"reward_survive": 1.0} if self.info == "survive" else {}
        return self._observe(), reward, self.t >= self.length, False, info


if "RolloutProbe-v0" not in registry:
    gym.register("RolloutProbe-v0", entry_point=ProbeEnv)
    gym.register("RolloutProbeLimit-v0", entry_point=ProbeEnv, max_episode_steps=100)


def probe(**kwargs: Any) -> EnvConfig:
    return EnvConfig("RolloutProbeLimit-v0", kwargs)


SPEC = box_spec(2)


def schedule(
    spec: PolicySpec = SPEC, every: int | None = None, sigma: float = 0.5, seed: int = 0
) -> PerturbationSchedule:
    theta = init_theta(spec, np.random.default_rng(3))[None]
    mean, std = np.full((1, spec.obs_dim), 0.5), np.full((1, spec.obs_dim), 2.0)
    return PerturbationSchedule(Policies(spec, theta, mean, std), sigma, every, seed)


def same(a: Episode, b: Episode) -> bool:
    for name in a.__dataclass_fields__:
        x, y = getattr(a, name), getattr(b, name)
        if isinstance(x, np.ndarray):
            if x.dtype != y.dtype or x.tobytes() != y.tobytes():
                return False
        elif x != y:
            return False
    return True


def played(config: EnvConfig, by: Any, index: int = 0, max_steps: int | None = None) -> Episode:
    """One episode of a schedule."""
    return run_episode(make_env(config), by, index, max_steps)


@pytest.mark.parametrize("stochastic", [False, True])
def test_episode_is_a_function_of_schedule_and_index(stochastic: bool) -> None:
    job = EpisodeJob(probe(), schedule(box_spec(2, (4,), stochastic=stochastic), 3))
    forward = list(run_episodes(job, range(5)))
    backward = list(run_episodes(job, range(4, -1, -1)))[::-1]
    alone = played(job.config, job.schedule, 3)
    assert all(same(a, b) for a, b in zip(forward, backward, strict=True))
    assert same(alone, forward[3])
    starts = {e.observations[0, 0] for e in forward}
    assert len(starts) == 5
    assert len({e.theta[0].tobytes() for e in forward}) == 5


@pytest.mark.usefixtures("forking")
def test_workers_give_the_same_episodes_in_the_same_order() -> None:
    job = EpisodeJob(probe(), schedule(every=3))
    inline = list(run_episodes(job, range(6)))
    parallel = list(run_episodes(job, range(6), workers=2))
    assert all(same(a, b) for a, b in zip(inline, parallel, strict=True))


def test_endless_indices_are_lazy() -> None:
    episodes = run_episodes(EpisodeJob(probe(), schedule()), None)
    assert len(next(episodes)) == len(next(episodes)) == 7


def test_segments_restart_at_each_reset() -> None:
    # Seven steps, a change every three: 3 + 3 + 1, in every episode.
    job = EpisodeJob(probe(), schedule(every=3, seed=8))
    for index, episode in enumerate(run_episodes(job, range(3))):
        assert episode.segment.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
        assert episode.theta.shape[0] == 3
        for j in range(3):
            # theta of segment j of episode i is drawn from the seed and (i, j) alone.
            noise = generator(8, Stream.PERTURBATION, index, j).standard_normal(SPEC.size)
            want = (schedule().base.theta[0].astype(float) + 0.5 * noise).astype(np.float32)
            assert np.array_equal(episode.theta[j], want)


@pytest.mark.parametrize(
    ("every", "length", "segment"),
    [
        (None, 3, [0, 0, 0, 0]),
        (1, 3, [0, 1, 2, 2]),
        (3, 3, [0, 0, 0, 0]),
        (2, 4, [0, 0, 1, 1, 1]),
        (100, 2, [0, 0, 0]),
        (5, 1, [0, 0]),
    ],
)
def test_only_policies_that_acted_are_stored(
    every: int | None, length: int, segment: list[int]
) -> None:
    episode = played(probe(length=length), schedule(every=every))
    assert episode.segment.tolist() == segment
    assert episode.segment.dtype == np.int32
    assert episode.theta.shape == (segment[-1] + 1, SPEC.size)
    assert episode.obs_mean.shape == episode.obs_std.shape == (segment[-1] + 1, 2)
    assert np.all(episode.obs_mean == 0.5)


def test_ends_are_marked() -> None:
    ended = played(probe(), schedule())
    assert ended.terminated.tolist() == [False] * 6 + [True]
    assert not ended.truncated.any()
    assert ended.cut == "none"
    limited = EnvConfig("RolloutProbe-v0", {"length": 50}, max_episode_steps=4)
    stopped = played(limited, schedule())
    assert not stopped.terminated.any()
    assert stopped.truncated.tolist() == [False] * 3 + [True]
    assert stopped.cut == "none"  # a time limit is the environment's own end
    budget = played(probe(), schedule(every=2), 0, 3)
    assert len(budget) == 3
    assert not budget.terminated.any()
    assert budget.truncated.tolist() == [False, False, True]
    assert budget.cut == "budget"
    assert budget.observations.shape == (4, 2)
    assert budget.observations[-1, 1] == 3
    exact = played(probe(), schedule(), 0, 7)
    assert exact.terminated[-1]
    assert exact.cut == "none"


def test_the_same_array_at_every_step_is_copied() -> None:
    plain, shared = (played(probe(same=s), schedule(every=2), 1) for s in (False, True))
    assert same(plain, shared)
    assert plain.observations[:, 1].tolist() == list(range(8))


def test_actions_are_stored_as_received_even_if_the_env_changes_them() -> None:
    env = make_env(probe(mutate=True))
    episode = run_episode(env, schedule(sigma=10.0), 0)
    received = env.unwrapped.received  # type: ignore[attr-defined]
    assert episode.actions.dtype == np.float32
    assert np.array_equal(episode.actions, np.stack(received))
    assert all(action in env.action_space for action in episode.actions)
    assert np.array_equal(episode.rewards, episode.actions[:, 0].astype(float))


class Int32Env(ProbeEnv):
    """Refuses seeds that do not fit into 32 signed bits, as code in C does."""

    def __init__(self, refusal: type[Exception]) -> None:
        super().__init__()
        self.refusal = refusal

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed >= 2**31:
            raise self.refusal("seed out of bounds for int32")
        return super().reset(seed=seed)


@pytest.mark.parametrize("refusal", [OverflowError, ValueError, TypeError, AssertionError])
def test_the_highest_bit_of_a_seed_is_left_out_only_where_it_is_refused(refusal: Any) -> None:
    plan = schedule()
    large = next(i for i in range(100) if plan.reset_seed(i) >= 2**31)
    small = next(i for i in range(100) if plan.reset_seed(i) < 2**31)
    for env, index, seed in (
        (ProbeEnv(), large, plan.reset_seed(large)),
        (Int32Env(refusal), large, plan.reset_seed(large) - 2**31),
        (Int32Env(refusal), small, plan.reset_seed(small)),
    ):
        episode = run_episode(env, plan, index)
        # The seed that is stored is the one that gives this start again.
        assert episode.seed == seed
        assert np.array_equal(episode.observations[0], env.reset(seed=seed)[0])


def test_infos_may_differ_between_reset_and_step() -> None:
    plain = played(probe(info="reset"), schedule())
    assert plain.reward_survive is None
    survive = played(probe(info="survive"), schedule())
    assert survive.reward_survive is not None
    assert survive.reward_survive.tolist() == [0.0] + [1.0] * 7


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["reward", "obs"])
def test_nan_and_inf_are_divergence(where: str, bad: float) -> None:
    config = probe(bad=bad, **{f"bad_{where}_at": 3})
    run = EpisodeRun(make_env(config), schedule(), 2)
    run.advance(2)
    for advance in (run.advance, lambda: played(config, schedule(), 2)):
        with pytest.raises(DivergedError, match=f"{where}.* in step 3 of episode 2") as caught:
            advance()
        assert caught.value.exit_code == 8
        assert caught.value.where == "RolloutProbeLimit-v0"


def test_nan_observation_is_divergence_even_if_the_env_checks_actions() -> None:
    config = EnvConfig("toyenv:ToyNaN-v0")
    env = make_env(config)
    spec = spec_for_env(env, ())
    env.close()
    with pytest.raises(DivergedError, match="observation in step 3"):
        played(config, schedule(spec))


def test_a_policy_perturbed_beyond_all_bounds_is_divergence_and_nothing_else_is_said() -> None:
    """A warning of numpy's would be an error here."""
    with pytest.raises(DivergedError, match="infinite observation in step 1 of episode 0"):
        played(EnvConfig("LQR-v0"), schedule(box_spec(1), sigma=1e200))


def test_an_exception_of_the_environment_names_it() -> None:
    with pytest.raises(
        UsageError, match=r"raised KeyError: 'broken' in step 5 of episode 1"
    ) as caught:
        played(probe(raises_at=5), schedule(), 1)
    assert caught.value.where == "RolloutProbeLimit-v0"
    assert re.search(r", at \S*test_loop\.py:\d+ \(in step\); mend", str(caught.value))
    assert "--debug" in str(caught.value)


@pytest.mark.usefixtures("forking")
def test_a_worker_names_the_place_too_and_brings_its_traceback() -> None:
    job = EpisodeJob(probe(raises_at=5), schedule())
    with pytest.raises(UsageError, match=r"test_loop\.py:\d+ \(in step\)") as caught:
        list(run_episodes(job, range(4), workers=2))
    (note,) = caught.value.__notes__
    assert note.startswith("In a worker process:\nTraceback")
    assert "raise KeyError" in note


class PanicError(BaseException):
    """What compiled code raises for a panic: no Exception."""


@pytest.mark.parametrize("error", [PanicError("panic"), SystemExit(0), GeneratorExit("panic")])
def test_a_failure_that_is_no_exception_is_one_too(error: BaseException) -> None:
    def fail(*_: Any) -> Any:
        raise error

    for env in (AnswersEnv(step=fail), AnswersEnv(reset=fail)):
        with pytest.raises(UsageError, match=rf"raised {type(error).__name__}.*test_loop\.py"):
            run_episode(env, schedule(), 3)


def test_what_stops_the_program_is_no_failure_of_the_environment() -> None:
    def stop(*_: Any) -> Any:
        raise error

    for error in (KeyboardInterrupt(), Stopped(signal.SIGTERM)):
        with pytest.raises(type(error)):
            run_episode(AnswersEnv(step=stop), schedule(), 3)


class AnswersEnv(ProbeEnv):
    """Answers as it is told to."""

    def __init__(self, reset: Any = None, step: Any = None) -> None:
        super().__init__()
        self.at_reset, self.at_step = reset, step

    def reset(self, **kwargs: Any) -> Any:
        answer = super().reset(**kwargs)
        return answer if self.at_reset is None else self.at_reset(*answer)

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        return answer if self.at_step is None else self.at_step(*answer)


def test_an_environment_that_changes_the_current_folder_moves_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def leave(*answer: Any) -> Any:
        os.chdir("/")
        return answer

    def build() -> gym.Env[Any, Any]:
        leave()
        return AnswersEnv(reset=leave)

    gym.register("Leaving-v0", entry_point=build)
    env = make_env(EnvConfig("Leaving-v0"))
    assert Path.cwd() == tmp_path
    run = EpisodeRun(env, schedule(), 0)
    assert Path.cwd() == tmp_path
    env.unwrapped.at_reset, env.unwrapped.at_step = None, leave
    run.advance(2)
    assert Path.cwd() == tmp_path
    monkeypatch.setattr(env.unwrapped, "close", leave)
    close_env(env)
    assert Path.cwd() == tmp_path


def test_a_current_folder_that_is_renamed_or_gone_is_left_alone_until_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with process_kept():
        here.rename(tmp_path / "there")
    assert Path.cwd() == tmp_path / "there"
    kept = process_kept()
    kept.__enter__()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").rmdir()
    with pytest.raises(ResourceError, match="no way back: No such file"):
        kept.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (AnswersEnv(reset=lambda *_: None), r"answer of the reset in episode 3 .*\(observation, i"),
        (AnswersEnv(reset=lambda obs, _: (obs, {}, 0)), "answer of the reset"),
        (AnswersEnv(step=lambda *_: None), r"answer of step 1 in episode 3 is not \(obs.*, reward"),
        (AnswersEnv(step=lambda o, r, d, _, i: (o, r, d, i)), "answer of step 1"),
    ],
)
@pytest.mark.parametrize("limited", [False, True])
def test_answers_of_another_form_are_named_as_such(env: Any, words: str, limited: bool) -> None:
    # Gymnasium's own wrappers unpack the answers too.
    env = gym.wrappers.TimeLimit(env, 50) if limited else env
    with pytest.raises(UsageError, match=words) as caught:
        run_episode(env, schedule(), 3)
    assert "raised" not in str(caught.value)


def test_a_mistake_of_ours_is_not_blamed_on_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> Any:
        raise TypeError("ours")

    monkeypatch.setattr("pbvf_offline.rollout.schedules.PerturbationSchedule.perturbed", fail)
    with pytest.raises(TypeError, match="ours"):
        played(probe(), schedule())


@pytest.mark.parametrize("hidden", [(), (64, 64)])
@pytest.mark.parametrize("squash", ["tanh", "none"])
def test_actions_recompute_from_observation_and_tag(hidden: tuple[int, ...], squash: Any) -> None:
    spec = box_spec(2, hidden, squash=squash)
    for episode in run_episodes(EpisodeJob(probe(), schedule(spec, 2)), range(4)):
        policies = Policies(spec, episode.theta, episode.obs_mean, episode.obs_std)
        for t in range(len(episode)):
            action, _ = policies.actor(int(episode.segment[t])).act(episode.observations[t])
            assert np.abs(action - episode.actions[t]).max() <= 1e-5 * 2


def test_stochastic_actions_come_from_their_pre_actions() -> None:
    spec = box_spec(2, stochastic=True)
    episode = played(probe(), schedule(spec, 3))
    assert episode.pre_action is not None
    assert episode.pre_action.shape == (8, 1)
    assert episode.pre_action.dtype == np.float64
    assert episode.pre_action[-1] == 0
    want = np.tanh(episode.pre_action[:-1])
    assert np.allclose(episode.actions, want, rtol=0, atol=1e-6)
    assert np.std(episode.pre_action[:-1]) > 0


def test_discrete_actions() -> None:
    config = EnvConfig("toyenv:ToyDiscrete-v0")
    env = make_env(config)
    spec = spec_for_env(env, ())
    env.close()
    for stochastic in (False, True):
        spec = PolicySpec(spec.obs_dim, (), spec.actions, stochastic=stochastic)
        for episode in run_episodes(EpisodeJob(config, schedule(spec, 2)), range(3)):
            assert episode.actions.dtype == np.int64
            assert episode.actions.ndim == 1
            assert set(episode.actions) <= {2, 3, 4, 5}
            assert episode.pre_action is None


def test_given_policies_take_turns() -> None:
    policies = make_policies(SPEC, 3)
    episodes = list(run_episodes(EpisodeJob(probe(), GivenSchedule(policies, 0)), range(7)))
    for i, episode in enumerate(episodes):
        assert np.array_equal(episode.theta, policies.theta[[i % 3]])
    assert len({e.seed for e in episodes}) == 7


@pytest.mark.parametrize("stochastic", [False, True])
def test_evaluation_runs_exact_counts_with_common_starts(stochastic: bool) -> None:
    policies = make_policies(box_spec(2, stochastic=stochastic), 4)
    calls: list[tuple[int, int]] = []
    returns, discounted = evaluate_policies(
        probe(),
        policies,
        episodes=3,
        seed=5,
        gamma=0.5,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert returns.shape == discounted.shape == (4, 3)
    assert calls == [(i + 1, 12) for i in range(12)]
    given = GivenSchedule(policies, 5, repeat=3)
    env = make_env(probe())
    for k in range(4):
        for e in range(3):
            episode = run_episode(env, given, 3 * k + e)
            assert np.array_equal(episode.theta[0], policies.theta[k])
            assert episode.seed == given.reset_seed(e)
            assert returns[k, e] == episode.rewards.sum()
            by_hand = sum(0.5**t * r for t, r in enumerate(episode.rewards))
            assert discounted[k, e] == pytest.approx(by_hand, abs=1e-12)
    same_seed, _ = evaluate_policies(probe(), policies, episodes=3, seed=5)
    other, _ = evaluate_policies(probe(), policies, episodes=3, seed=6)
    assert np.array_equal(same_seed, returns)
    assert not np.array_equal(other, returns)


def test_an_endless_environment_is_refused_before_its_first_step() -> None:
    policies = make_policies(SPEC, 1)
    with pytest.raises(UsageError, match="no time limit") as caught:
        evaluate_policies(EnvConfig("RolloutProbe-v0"), policies, episodes=1, seed=0)
    assert "--max-episode-steps" in str(caught.value)
    require_end(EnvConfig("RolloutProbe-v0", max_episode_steps=5), None)
    require_end(EnvConfig("RolloutProbe-v0"), 5)
    require_end(probe(), None)
    endless = EnvConfig("toyenv:Endless-v0")
    with pytest.raises(UsageError, match="no time limit"):
        require_end(endless, None)


def test_reducers_by_hand() -> None:
    episode = played(probe(length=3), schedule())
    r = episode.rewards
    total, discounted = ReturnOf(0.5)(episode)
    assert total == pytest.approx(r[0] + r[1] + r[2])
    assert discounted == pytest.approx(r[0] + r[1] / 2 + r[2] / 4)
    assert np.array_equal(observations_acted_on(episode), episode.observations[:3])


def test_warm_up_statistics_are_those_of_the_observations_acted_on() -> None:
    import dataclasses

    warm = dataclasses.replace(schedule(every=2), warmup=True)
    normaliser, steps = warm_up(probe(), warm, episodes=4)
    job = EpisodeJob(probe(), warm, None, observations_acted_on)
    obs = np.concatenate(list(run_episodes(job, range(4))))
    assert steps == len(obs) == 28
    assert np.allclose(normaliser.mean, obs.mean(axis=0), rtol=1e-12)
    assert np.allclose(normaliser.std, obs.std(axis=0), rtol=1e-12)
    assert normaliser.mean[1] == pytest.approx(3.0)  # times 0 … 6; the final 7 is not acted on


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("wrong", [np.zeros(1), np.float64(0.0), np.zeros((1, 2)), [0.0]])
def test_a_misshapen_observation_is_refused(wrong: object, at: int) -> None:
    # One number would be spread over both dimensions without a word.
    class Misshapen(ProbeEnv):
        def _observe(self) -> Any:
            return wrong if self.t == at else super()._observe()

    policies = make_policies(SPEC, 1)
    with pytest.raises(UsageError, match="observation has shape"):
        run_episode(Misshapen(), GivenSchedule(policies, 0), 0)


# --- an episode in pieces -------------------------------------------------------------------


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("pieces", [[7], [1] * 7, [3, 4], [2, 5, 9], [0, 4, 0, 3], [None]])
def test_pieces_of_an_episode_make_the_whole(
    pieces: list[int | None], stochastic: bool, every: int | None
) -> None:
    spec = box_spec(2, (4,), stochastic=stochastic)
    env = make_env(probe(info="survive"))
    whole = run_episode(env, schedule(spec, every), 3)
    run = EpisodeRun(env, schedule(spec, every), 3)
    assert (run.steps, run.ended, run.reports_survive) == (0, False, False)
    taken = 0
    for steps in pieces:
        ended = run.advance(steps)
        taken = 7 if steps is None else min(7, taken + steps)
        assert run.steps == taken
        assert ended == run.ended == run.terminated == (taken == 7)
        if taken:
            assert same(run.episode(), whole if taken == 7 else whole.truncate(taken))
    assert run.advance(5)  # nothing happens after the end
    assert run.steps == 7
    assert same(run.episode(), whole)
    assert not run.truncated
    assert run.reports_survive


def test_an_episode_outgrows_its_first_arrays_in_pieces() -> None:
    env = make_env(EnvConfig("RolloutProbe-v0", {"length": 2500, "info": "survive"}))
    spec = box_spec(2, stochastic=True)
    whole = run_episode(env, schedule(spec, 700), 0)
    run = EpisodeRun(env, schedule(spec, 700), 0)
    while not run.advance(333):
        assert run.observations[: run.steps + 1, 1].tolist() == list(range(run.steps + 1))
    assert same(run.episode(), whole)
    assert (run.survive[1:2501] == 1).all()
    assert np.array_equal(np.tanh(run.pre_actions[:2500]).astype(np.float32), run.actions[:2500])


def test_every_observation_is_announced_before_it_is_acted_on() -> None:
    seen: list[np.ndarray] = []
    acted: list[int] = []

    class Noting(PerturbationSchedule):
        def segment(self, episode: int, index: int) -> Any:
            acted.append(len(seen))
            return super().segment(episode, index)

    usual = schedule(every=1)
    noting = Noting(usual.base, usual.sigma, 1, usual.seed)
    run = EpisodeRun(make_env(probe()), noting, 0, lambda obs: seen.append(obs.copy()))
    assert len(seen) == 1
    run.advance(3)
    assert len(seen) == 4
    run.advance()
    # With the last one, which is not acted on; a policy is asked for after its observation.
    assert np.array_equal(np.stack(seen), run.observations[:8])
    assert acted == [1, 2, 3, 4, 5, 6, 7]

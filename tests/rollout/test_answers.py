"""What an environment may answer: at every step, what fits its declared spaces and nothing else."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, OneOf, Text, Tuple

from pbvf_offline.envs.wrappers import Wrapper, wrap
from pbvf_offline.errors import DivergedError, UsageError
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.rollout.episodes import Episode
from pbvf_offline.rollout.loop import run_episode
from pbvf_offline.rollout.schedules import GivenSchedule

OF_KIND = {
    "u": Box(0, 255, (2,), np.uint8),
    "i": Box(-9, 9, (2,), np.int16),
    "f": Box(-9, 9, (2,), np.float32),
    "d": Box(-9, 9, (2,), np.float64),
}
GOOD: Any = (0, 1)


class AnswerEnv(gym.Env[Any, Any]):
    """Answers well until step ``at`` (0: the reset), and then as it is told to."""

    def __init__(self, space: str, at: int, **changes: Any) -> None:
        self.observation_space = OF_KIND[space]
        self.action_space = Box(-1, 1, (1,), np.float32)
        self.at, self.changes = at, changes
        self.good = np.array(GOOD, self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._answer("obs", self.good), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return (
            self._answer("obs", self.good),
            self._answer("reward", 1.0),
            self._answer("terminated", self.t >= 5),
            self._answer("truncated", False),
            self._answer("info", {}),
        )

    def _answer(self, name: str, good: Any) -> Any:
        if self.t == self.at:
            self.action_space = self.changes.get("action_space", self.action_space)
        return self.changes[name] if name in self.changes and self.t == self.at else good


def played(space: str, at: int, **changes: Any) -> Episode:
    return episode_of(AnswerEnv(space, at, **changes))


def episode_of(env: gym.Env[Any, Any], *wrappers: Wrapper) -> Episode:
    env.spec = gym.envs.registration.EnvSpec("Answers-v0", max_episode_steps=9)
    env = wrap(env, wrappers)
    spec = spec_for_env(env, ())
    policies = Policies(
        spec,
        np.zeros((1, spec.size), np.float32),
        np.zeros((1, spec.obs_dim)),
        np.ones((1, spec.obs_dim)),
    )
    return run_episode(env, GivenSchedule(policies, 0), 0)


class Failing:
    """An array that cannot be had, such as a tensor on another device."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not here")


@pytest.mark.parametrize("at", [0, 1, 2, 4])
@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        ("u", np.array([2.7, 1]), "float64, its space says uint8, which cannot hold 2.7"),
        ("u", np.array([1, -1.5], np.float32), "float32, its space says uint8, .* hold -1.5"),
        ("u", np.array([300, 1]), "int64, its space says uint8, which cannot hold 300"),
        ("u", np.array([-1, 1], np.int8), "int8, its space says uint8, which cannot hold -1"),
        ("u", [1.0, np.nan], "float64, its space says uint8, which cannot hold nan"),
        ("u", [1.0, 1e300], "float64, its space says uint8, which cannot hold 1e"),
        ("i", np.array([2**63, 0], np.uint64), "uint64, its space says int16"),
        ("f", np.array([1e300, 0]), "float64, its space says float32, which cannot hold 1e"),
        ("f", [1e60, 0.5], "float64, its space says float32, which cannot hold 1e"),
        ("d", np.array(["1.5", "2"]), "<U3, its space says float64"),
        ("d", ["1.5", "2"], "<U3, its space says float64"),
        ("d", np.array([b"1", b"2"]), r"\|S1, its space says float64"),
        ("d", np.array([1 + 2j, 0]), "complex128, its space says float64"),
        ("f", np.array([1, None]), "object, its space says float32"),
        ("d", np.array([1, 2], "m8[s]"), "timedelta64.*, its space says float64"),
        ("d", np.ma.array([1.0, 2.0], mask=[0, 1]), "is a masked array"),
        ("d", np.zeros(3), r"has shape \(3,\), its space says \(2,\)"),
        ("d", np.zeros((1, 2)), r"has shape \(1, 2\)"),
        ("d", 1.0, r"has shape \(\)"),
        ("d", [[1.0], [1.0, 2.0]], "is no array: ValueError"),
        ("d", Failing(), "is no array: RuntimeError: not here"),
    ],
)
def test_observations_that_do_not_fit_are_refused_at_every_step(
    space: str, obs: Any, words: str, at: int
) -> None:
    with pytest.raises(UsageError, match=f"its observation (has dtype )?{words}") as caught:
        played(space, at, obs=obs)
    assert f", in step {at} of episode 0; " in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.where == "Answers-v0"


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize(
    ("space", "obs"),
    [
        ("u", np.array([2, 255], np.int64)),
        ("u", np.array([2.0, 255.0])),
        ("u", [True, 3]),
        ("i", np.array([-5, 5], np.int64)),
        ("f", np.array([0.1, -3e38])),
        ("f", (0.1, 2)),
        ("f", np.array([2**24 + 1, 3])),
        ("f", np.array([0.5, 2], ">f8")),
        ("d", np.array([0.1, 2], np.float32)),
        ("d", np.array([1, 2], np.uint8)),
        ("d", np.ma.array([0.5, 2.0], mask=False)),
    ],
)
def test_observations_that_fit_are_stored_in_the_dtype_of_the_space(
    space: str, obs: Any, at: int
) -> None:
    episode = played(space, at, obs=obs)
    dtype = OF_KIND[space].dtype
    assert episode.observations.dtype == dtype
    assert np.array_equal(episode.observations[at], np.asarray(obs).astype(dtype))


def test_what_is_not_finite_stays_a_divergence() -> None:
    with pytest.raises(DivergedError, match="observation in step 2"):
        played("f", 2, obs=np.array([np.nan, 0]))


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reward": "7"}, r"its reward is '7' \(str\), not a number that float64 holds"),
        ({"reward": None}, r"its reward is None \(NoneType\), not a number"),
        ({"reward": 1 + 2j}, "its reward .*complex"),
        ({"reward": np.ma.masked}, "its reward .*Masked"),
        ({"reward": np.ones(1)}, r"its reward .*array\(\[1.\]\) \(ndarray\)"),
        ({"reward": np.array("7")}, "its reward .*ndarray"),
        ({"reward": 10**400}, "its reward .*int"),
        ({"reward": Failing()}, "its reward .*Failing"),
        ({"terminated": None}, r"its terminated is None \(NoneType\), not true or false"),
        ({"terminated": "no"}, "its terminated .*str"),
        ({"truncated": []}, "its truncated .*list"),
        ({"truncated": 0.0}, "its truncated .*float"),
        ({"terminated": np.ma.masked}, "its terminated .*Masked"),
        ({"info": None}, r"its info is None \(NoneType\), not a dictionary"),
        ({"info": [("reward_survive", 1)]}, "its info .*list"),
        ({"info": {"reward_survive": "1"}}, r"its reward_survive is '1' \(str\), not a number"),
        ({"info": {"reward_survive": None}}, "its reward_survive .*None"),
    ],
)
def test_other_answers_are_refused_at_every_step(
    changes: dict[str, Any], words: str, at: int
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        played("d", at, **changes)
    assert f", in step {at} of episode 0; " in str(caught.value)
    assert caught.value.where == "Answers-v0"


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("space", [Box(-2, 1, (1,)), Box(-1, 1, (1,), np.float64), Discrete(2)])
def test_an_action_space_that_changes_is_refused(space: Any, at: int) -> None:
    with pytest.raises(UsageError, match=r"its action space has become (Box|Discrete)\(.*mend the"):
        played("d", at, action_space=space)


def test_an_action_space_that_changes_in_place_is_refused() -> None:
    env = AnswerEnv("d", 2, reward=1)
    env.action_space = Box(-1, 1, (1,), np.float32)
    step = env.step

    def widened(action: Any) -> Any:
        env.action_space.high[:] = 5
        return step(action)

    env.step = widened
    with pytest.raises(UsageError, match=r"its action space has become Box\(-1.0, 5.0"):
        episode_of(env)


@pytest.mark.parametrize("reward", [7, True, np.float32(7), np.int8(7), np.array(7.0)])
def test_numbers_of_all_types_are_rewards(reward: Any) -> None:
    assert played("d", 2, reward=reward).rewards.tolist() == [1, float(reward), 1, 1, 1]


def test_flags_and_infos_of_other_types() -> None:
    episode = played("d", 2, terminated=np.True_, info=UserDict(reward_survive=np.float32(0.5)))
    assert episode.terminated.tolist() == [False, True]
    assert episode.reward_survive is not None
    assert episode.reward_survive.tolist() == [0, 0, 0.5]
    assert len(played("d", 2, truncated=np.array(1))) == 2
    assert len(played("d", 2, terminated=0)) == 5


FLAT = Wrapper("flatten-observation")
PICTURE = Box(0, 255, (2, 2), np.uint8)
PARTS = Dict({"a": OF_KIND["u"], "b": OF_KIND["f"]})
FINE = {"a": [1, 2], "b": [0.5, 1]}


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize(
    ("wrapper", "space", "good", "obs", "words"),
    [
        (FLAT, PICTURE, np.ones((2, 2), int), np.full((2, 2), 2.7), "has dtype float64, .* 2.7"),
        (FLAT, PICTURE, np.ones((2, 2)), [[300, 0], [0, 0]], "int64, its space says uint8, .* 300"),
        (FLAT, PICTURE, np.ones((2, 2)), [0, 1, 2, 3], r"has shape \(4,\)"),
        (FLAT, PARTS, FINE, {**FINE, "a": [1, -1]}, r"\['a'\] has dtype int64, .* hold -1"),
        (FLAT, PARTS, FINE, {**FINE, "b": ["1", 2]}, r"\['b'\] has dtype <U"),
        (FLAT, PARTS, FINE, {"a": [1, 2]}, "outside Dict"),
        (Wrapper("select-observation", {"keys": ["a"]}), PARTS, FINE, {"a": [2.7, 1]}, "hold 2.7"),
        (FLAT, Tuple([OF_KIND["u"]]), ([1, 2],), ([1, 2.5],), r"\[0\] has dtype float64"),
        (FLAT, Tuple([OF_KIND["u"]]), [[1, 2]], (), "outside Tuple"),
        (FLAT, OneOf([Discrete(2), OF_KIND["u"]]), (0, 1), (1, [1, 0.5]), r"\[1\] .* hold 0.5"),
        (FLAT, OneOf([Discrete(2), OF_KIND["u"]]), (0, 1), (2, 1), "outside OneOf"),
        (FLAT, Discrete(4), 1.0, 1.5, "hold 1.5"),
        (FLAT, Discrete(4), 3, -1, r"is -1, outside Discrete\(4\)"),
        (FLAT, MultiDiscrete([3, 2]), [2.0, 1], [-1, 1], "outside MultiDiscrete"),
        (FLAT, MultiBinary(2), [True, 0], [2, 0], "outside MultiBinary"),
        (FLAT, Text(3), "ab", "abcd", "outside Text"),
        (FLAT, Box(0, 1, (2,), bool), [1, 0], [2, 0], "its space says bool, which cannot hold 2"),
        (Wrapper("time-feature"), OF_KIND["u"], [1, 2], [300, 0], "says uint8, .* hold 300"),
        (Wrapper("frame-stack", {"stack_size": 2}), OF_KIND["u"], [1, 2], [2.7, 0], "hold 2.7"),
    ],
)
def test_wrappers_are_given_only_what_fits(
    wrapper: Wrapper, space: Any, good: Any, obs: Any, words: str, at: int
) -> None:
    def env(value: Any) -> AnswerEnv:
        made = AnswerEnv("u", at, obs=value)
        made.observation_space, made.good = space, good
        return made

    assert len(episode_of(env(good), wrapper)) == 5
    with pytest.raises(UsageError, match=f"its observation.*{words}") as caught:
        episode_of(env(obs), wrapper)
    assert f", in step {at} of episode 0; " in str(caught.value)
    assert caught.value.where == "Answers-v0"

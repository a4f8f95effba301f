from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from libtools import box_spec, make_episode, make_policies
from pbvf_datasets.read.joined import Part, join
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Trajectories, stack_episodes

ENV = EnvReference("Toy-v0", "toy", {"n": 1})
SPEC = box_spec(2, (3,))
POLICIES = make_policies(SPEC, 6)
RNG = np.random.default_rng(0)
EPISODES = [
    make_episode(POLICIES, rows, [3] * len(rows), end=end, rng=RNG, survive=0.5)
    for rows, end in (([0, 1], "terminated"), ([2], "cut"), ([1, 3], "truncated"), ([4, 2], "cut"))
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PBVF_CACHE", str(tmp_path))
    return tmp_path


def part(episodes: slice, **kwargs: Any) -> Part:
    values = {
        "name": f"{episodes.start}",
        "trajectories": stack_episodes(SPEC, EPISODES[episodes]),
        "environment": ENV,
        "digest": f"{episodes.start}" * 64,
        "spaces": ("obs", "act"),
        **kwargs,
    }
    return Part(**values)


PARTS = [part(slice(0, 2)), part(slice(2, 3)), part(slice(3, 4))]


def assert_same(one: Trajectories, other: Trajectories) -> None:
    for name, value in {**vars(other), **vars(other.policies)}.items():
        found = getattr(one if hasattr(one, name) else one.policies, name)
        if isinstance(value, np.ndarray):
            assert found.dtype == value.dtype, name
            np.testing.assert_array_equal(found, value, err_msg=name)


def test_episodes_of_all_with_each_policy_once(folder: Path) -> None:
    for _ in ("laid out", "from the cache"):
        data, digest = join(PARTS)
        assert_same(data, stack_episodes(SPEC, EPISODES))
        assert digest == "+".join(one.digest for one in PARTS)
        assert len(list(folder.iterdir())) == 1


def test_order_counts() -> None:
    join(PARTS)
    data, _ = join(PARTS[::-1])
    assert_same(data, stack_episodes(SPEC, [EPISODES[i] for i in (3, 2, 0, 1)]))


def test_data_that_do_not_say_which_policies_acted() -> None:
    def nobody(one: Part) -> Part:
        data = one.trajectories
        untagged = dataclasses.replace(
            data, policies=data.policies.select([]), policy=np.full(len(data), -1, np.int32)
        )
        return dataclasses.replace(one, trajectories=untagged)

    data, _ = join([nobody(one) for one in PARTS])
    assert not data.tagged
    assert set(data.policy) == {-1}
    np.testing.assert_array_equal(data.start, stack_episodes(SPEC, EPISODES).start)
    with pytest.raises(IncompatibleError, match="policies not known against known"):
        join([PARTS[0], nobody(PARTS[1])])
    with pytest.raises(UsageError, match=r"; give what has no episodes in common$"):
        join([nobody(PARTS[0])] * 2)  # which no merge would take


def changed(**kwargs: Any) -> Trajectories:
    return dataclasses.replace(PARTS[1].trajectories, **kwargs)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"environment": EnvReference("Toy-v1", "toy", {"n": 1})}, "environment Toy-v1"),
        ({"environment": None}, "environment not named"),
        ({"environment": EnvReference("Toy-v0", "toys", {"n": 1})}, "module toys"),
        ({"environment": EnvReference("Toy-v0", "toy", {"n": 2})}, "arguments"),
        (
            {"environment": EnvReference("Toy-v0", "toy", {"n": 1, "max_episode_steps": 9})},
            "time limit 9",
        ),
        ({"spaces": ("other", "act")}, "observation space"),
        ({"trajectories": changed(reward_survive=None)}, "survival bonus not reported"),
        (
            {"trajectories": changed(observations=np.zeros((7, 2), np.float32))},
            "observations float32",
        ),
        (
            {
                "trajectories": changed(
                    policies=Policies(
                        box_spec(2, (3,), low=-2.0), *list(vars(POLICIES).values())[1:]
                    )
                )
            },
            r"0: policy's actions 1 number \(float32\) in \[-2, 1\] against 1 number .* \[-1, 1\]",
        ),
    ],
)
def test_what_differs_is_refused_by_name(other: dict[str, Any], words: str) -> None:
    with pytest.raises(IncompatibleError, match=words) as caught:
        join([PARTS[0], part(slice(2, 3), **other)])
    assert "it does not fit 0" in str(caught.value)


def test_what_a_folder_without_a_manifest_cannot_say_is_not_compared() -> None:
    stock = part(slice(2, 3), environment=EnvReference("Toy-v0", None, {"n": 1}), vouched=False)
    assert len(join([PARTS[0], stock])[0]) == 15

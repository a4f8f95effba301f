"""An open Minari dataset brings exactly the episodes chosen in it, tags and all."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

import hostile
from make_episodes import same
from pbvf_datasets import from_minari, load_dataset
from pbvf_datasets.format.schema import DATA_FILE, METADATA_FILE
from pbvf_datasets.read.minari_bridge import content_digest
from pbvf_datasets.read.untrusted import UnverifiedWarning
from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.rollout.episodes import stack_episodes

minari: Any = importlib.import_module("minari")


EPISODES = [hostile.episode(i, steps=4 + i) for i in range(6)]


def _expect(dataset: Any, indices: list[int]) -> None:
    expected = stack_episodes(hostile.BOX_SPEC, [EPISODES[i] for i in indices])
    data = from_minari(dataset)
    found = data.trajectories
    np.testing.assert_array_equal(data.theta, expected.policies.theta)
    np.testing.assert_array_equal(data.obs_mean, expected.policies.obs_mean)
    for name in ("observations", "actions", "rewards", "policy", "start", "seeds", "truncated"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
        assert getattr(found, name).dtype == getattr(expected, name).dtype
    assert data.digest == content_digest(expected)
    assert not data.verified
    for episode, i in zip(data.episodes, indices, strict=True):
        assert same(episode, EPISODES[i])
    picked = next(data.episodes.select([len(indices) - 1]))
    np.testing.assert_array_equal(picked.rewards, EPISODES[indices[-1]].rewards)


def test_all_filtered_and_split(root: Path) -> None:
    hostile.make(root, episodes=EPISODES)
    dataset = minari.load_dataset("lab/toy-v0")
    _expect(dataset, [0, 1, 2, 3, 4, 5])
    _expect(dataset.filter_episodes(lambda e: len(e) % 2 == 0), [0, 2, 4])
    parts = minari.split_dataset(dataset, sizes=[2, 3], seed=0)
    chosen = [list(map(int, part.episode_indices)) for part in parts]
    assert sorted(map(len, chosen)) == [2, 3]
    for part, indices in zip(parts, chosen, strict=True):
        _expect(part, indices)


def test_combined_by_stock_minari(root: Path) -> None:
    hostile.make(root, "lab/a-v0", episodes=EPISODES[:3])
    hostile.make(root, "lab/b-v0", episodes=EPISODES[2:])
    combined = minari.combine_datasets(
        [minari.load_dataset("lab/a-v0"), minari.load_dataset("lab/b-v0")], "lab/c-v0"
    )
    expected = stack_episodes(hostile.BOX_SPEC, EPISODES[:3] + EPISODES[2:])
    bridged = from_minari(combined)
    with pytest.warns(UnverifiedWarning):
        loaded = load_dataset("lab/c-v0")
    for data in (bridged, loaded):
        assert len(data) == 7
        assert data.theta.shape[0] == 12  # the policies of the shared episode are one
        np.testing.assert_array_equal(data.theta, expected.policies.theta)
        np.testing.assert_array_equal(data.trajectories.policy, expected.policy)
        np.testing.assert_array_equal(data.trajectories.rewards, expected.rewards)
        assert set(data.trajectories.seeds.tolist()) <= {-1, *range(100, 106)}


def test_a_discrete_dataset(root: Path) -> None:
    spec = hostile.DISCRETE_SPEC
    episodes = [hostile.episode(i, spec) for i in range(2)]
    hostile.make(root, spec=spec, episodes=episodes)
    data = from_minari(minari.load_dataset("lab/toy-v0"))
    assert data.action_space == spaces.Discrete(4, start=2)
    np.testing.assert_array_equal(
        data.trajectories.actions, np.concatenate([e.actions for e in episodes])
    )


def test_equal_content_has_equal_digests() -> None:
    one = stack_episodes(hostile.BOX_SPEC, EPISODES)
    assert content_digest(one) == content_digest(stack_episodes(hostile.BOX_SPEC, EPISODES))
    assert content_digest(one) != content_digest(stack_episodes(hostile.BOX_SPEC, EPISODES[:-1]))


def test_only_open_minari_datasets(root: Path) -> None:
    with pytest.raises(UsageError, match="not str"):
        from_minari("lab/toy-v0")


def test_no_episode_chosen(root: Path) -> None:
    hostile.make(root)
    dataset = minari.load_dataset("lab/toy-v0").filter_episodes(lambda _: False)
    with pytest.raises(DamagedError, match=r"lab/toy-v0.*no episode"):
        from_minari(dataset)


@pytest.mark.parametrize("name", ["no policy tags", "two architectures"])
def test_untagged_or_mixed_is_incompatible(name: str, root: Path) -> None:
    folder = hostile.make(root)
    hostile.INCOMPATIBLE[name].spoil(folder, root)
    with pytest.raises(IncompatibleError) as caught:
        from_minari(minari.load_dataset("lab/toy-v0"))
    assert all(word in str(caught.value) for word in hostile.INCOMPATIBLE[name].words)


@pytest.mark.parametrize(
    "name",
    [
        "3 actions beside 20 rewards",
        "observations too wide",
        "segment out of range",
        "NaN observations",
        "cut, but not truncated",
        "total_steps wrong",
        "seed negative",
        "theta of float64",
    ],
)
def test_the_same_checks_as_the_reader(name: str, root: Path) -> None:
    folder = hostile.make(root)
    case = hostile.DAMAGED[name]
    case.spoil(folder, root)
    with pytest.raises(DamagedError) as caught:
        from_minari(minari.load_dataset("lab/toy-v0"))
    assert all(word in str(caught.value) for word in case.words)


def test_wide_integers_are_not_wrapped_to_good_ones(root: Path) -> None:
    folder = hostile.make(root)
    with h5py.File(folder / DATA_FILE, "r+") as file:
        segment = file["episode_1/infos/segment"][()].astype(np.int64)
        del file["episode_1/infos/segment"]
        file["episode_1/infos/segment"] = segment + 2**32
    hostile.reseal(folder)
    for read in (
        lambda: from_minari(minari.load_dataset("lab/toy-v0")),
        lambda: load_dataset(folder),
    ):
        with pytest.raises(DamagedError, match=r"episode_1/infos/segment: it holds 2147483647"):
            read()


def test_texts_where_numbers_belong(root: Path) -> None:
    folder = hostile.make(root)
    with h5py.File(folder / DATA_FILE, "r+") as file:
        del file["episode_1/infos/theta"]
        file["episode_1/infos/theta"] = ["a", "b"]
        file["episode_0/infos/notes"] = ["left", "alone"]
    with pytest.raises(DamagedError, match=r"episode_1/infos/theta.*numbers"):
        from_minari(minari.load_dataset("lab/toy-v0"))


def test_unsupported_spaces_are_incompatible(root: Path) -> None:
    folder = hostile.make(root)
    path = folder / METADATA_FILE
    metadata = json.loads(path.read_text())
    metadata["observation_space"] = '{"type": "MultiBinary", "n": 3}'
    path.write_text(json.dumps(metadata))
    with pytest.raises(IncompatibleError, match=r"lab/toy-v0.*MultiBinary"):
        from_minari(minari.load_dataset("lab/toy-v0"))
    metadata["observation_space"] = '{"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}'
    path.write_text(json.dumps(metadata))
    with pytest.raises(IncompatibleError, match=r"Discrete\(3\)"):
        from_minari(minari.load_dataset("lab/toy-v0"))


def test_the_folder_must_stay_for_streaming(root: Path) -> None:
    folder = hostile.make(root)
    data = from_minari(minari.load_dataset("lab/toy-v0"))
    assert data.path == folder
    shutil.rmtree(folder)
    with pytest.raises(OSError, match="main_data"):
        next(iter(data.episodes))

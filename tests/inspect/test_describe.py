"""What is in a dataset, and which datasets there are."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hostile
from make_episodes import BOX_SPEC, DISCRETE_SPEC, make_episode
from pbvf_datasets import load_dataset
from pbvf_datasets.format.schema import DATA_FILE, METADATA_FILE
from pbvf_datasets.inspect.describe import Histogram, describe
from pbvf_datasets.inspect.listing import list_datasets
from pbvf_datasets.read.untrusted import UnverifiedWarning
from pbvf_datasets.read.untrusted_hdf5 import GuardedArray
from pbvf_datasets.write.writer import DatasetWriter
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    PbvfError,
    UnsafeError,
    UsageError,
)

ENVIRONMENT = {"id": "Toy-v0", "module": "toyenv", "kwargs": {"length": 7}, "withheld": ["path"]}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes of 7 steps and 3 policies: truncated, terminated, cut, truncated."""
    return hostile.make(
        tmp_path_factory.mktemp("good"),
        spec=BOX_SPEC,
        episodes=[make_episode(BOX_SPEC, i, cut=i == 2, terminated=i == 1) for i in range(4)],
        environment=ENVIRONMENT,
        license="CC-BY-4.0",
        authors=("Ada",),
        settings={"sigma": 0.5},
        warmup_steps=11,
    )


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "lab" / "toy-v0")
    return tmp_path / "lab" / "toy-v0"


def test_it_tells_what_was_written(folder: Path) -> None:
    found = describe(folder)
    returns = [make_episode(BOX_SPEC, i).rewards.sum() for i in (0, 1, 3)]
    assert (found.episodes, found.steps, found.policies, found.segments) == (4, 28, 12, 12)
    assert (found.terminated, found.truncated, found.cut) == (1, 2, 1)
    np.testing.assert_allclose(found.returns, returns)
    np.testing.assert_array_equal(found.lengths, [7] * 4)
    assert (found.spec, found.license, found.env) == (BOX_SPEC, "CC-BY-4.0", "toyenv:Toy-v0")
    assert (found.verified, found.normalisers, found.obs_mean) == (True, 4, None)
    value = found.to_dict()
    json.dumps(value, allow_nan=False)
    assert value["digest"] == json.loads((folder / "manifest.json").read_bytes())["digest"]
    assert value["return"]["mean"] == pytest.approx(np.mean(returns))
    assert value["length"] == {"mean": 7, "min": 7, "max": 7}
    assert (value["authors"], value["warmup_steps"], value["seed"]) == (["Ada"], 11, 0)
    assert (value["settings"], value["environment"]) == ({"sigma": 0.5}, ENVIRONMENT)
    assert value["versions"]["numpy"] == np.__version__
    assert value["sizes"][DATA_FILE] == (folder / DATA_FILE).stat().st_size
    assert value["size"] == sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    assert (value["policy"]["arch"], value["policy"]["parameters"]) == ("linear", 4)


def test_it_agrees_with_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBVF_CACHE", str(tmp_path / "cache"))
    one = make_episode(DISCRETE_SPEC, 0, every=100)
    mean, std = one.obs_mean, one.obs_std
    made = [
        dataclasses.replace(
            make_episode(DISCRETE_SPEC, i, steps=3 + i, every=100), obs_mean=mean, obs_std=std
        )
        for i in range(5)
    ]
    folder = hostile.make(tmp_path / "datasets", spec=DISCRETE_SPEC, episodes=[*made, made[0]])
    for bare in (False, True):
        if bare:
            hostile.unseal(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnverifiedWarning)
            found, read = describe(folder), load_dataset(folder)
        assert found.verified is not bare
        assert found.policies == len(read.policies) == 5
        np.testing.assert_array_equal(found.lengths, read.trajectories.lengths)
        np.testing.assert_allclose(found.returns, read.trajectories.whole_returns())
        assert found.normalisers == 1
        np.testing.assert_array_equal(found.obs_mean, mean[0])
        np.testing.assert_array_equal(found.obs_std, std[0])
        assert found.license is None


def test_transitions_stay_unread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    original = GuardedArray.read_into

    def watched(self: GuardedArray, out: Any) -> None:
        read.add(self.place.partition("/")[2])
        original(self, out)

    monkeypatch.setattr(GuardedArray, "read_into", watched)
    describe(folder)
    small = {"infos/pbvf", "infos/obs_mean", "infos/obs_std"}
    assert read == {"rewards", "terminations", "truncations"} | small


def test_without_a_manifest_it_warns_or_is_refused(folder: Path) -> None:
    hostile.unseal(folder)
    with pytest.warns(UnverifiedWarning):
        found = describe(folder)
    assert (found.verified, found.policies, found.provenance) == (False, 12, None)
    assert found.env is None
    with pytest.raises(UnsafeError, match=r"manifest\.json"):
        describe(folder, require_manifest=True)


@pytest.mark.parametrize(
    ("cases", "name", "error"),
    [
        (hostile.UNSAFE, "external link beside the arrays", UnsafeError),
        (hostile.DAMAGED, "3 actions beside 20 rewards", DamagedError),
        (hostile.DAMAGED, "infinite rewards", DamagedError),
        (hostile.INCOMPATIBLE, "two architectures", IncompatibleError),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    cases: dict[str, hostile.Case], name: str, error: type[PbvfError], tmp_path: Path
) -> None:
    folder = hostile.make(tmp_path)
    cases[name].spoil(folder, hostile.outside(tmp_path / "outside"))
    hostile.reseal(folder)
    with pytest.raises(error) as caught:
        describe(folder)
    assert all(word in str(caught.value) for word in cases[name].words), caught.value


def test_unknown_datasets_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        describe(tmp_path / "nothing")


# ----------------------------------------------------------------------------- histogram


def test_histogram_by_hand() -> None:
    found = Histogram.of(np.array([0.0, 1.0, 1.9, 2.0, 10.0]), bins=5)
    assert found.edges == (0, 2, 4, 6, 8, 10)
    assert found.counts == (3, 1, 0, 0, 1)


def test_equal_returns_share_one_bin() -> None:
    assert Histogram.of(np.array([3.0, 3.0])) == Histogram((3.0, 3.0), (2,))


def test_huge_returns_do_not_overflow() -> None:
    found = Histogram.of(np.array([-1.7e308, 0.0, 1.7e308]))
    assert np.isfinite(found.edges).all()
    assert (sum(found.counts), found.counts[0], found.counts[-1]) == (3, 1, 1)


# --------------------------------------------------------------------------------- list


def states(root: Path) -> dict[str, str]:
    return {found.dataset: found.state for found in list_datasets(root)}


def test_all_kinds_are_listed(folder: Path, tmp_path: Path) -> None:
    root = tmp_path
    hostile.make(root, "lab/deep/er/other-v3")
    foreign = hostile.make(root, "plain-v0")
    hostile.unseal(foreign)
    broken = hostile.make(root, "lab/broken-v0")
    (broken / METADATA_FILE).write_bytes(b"{")
    short = hostile.make(root, "lab/short-v0")
    os.truncate(short / DATA_FILE, 100)
    unsafe = hostile.make(root, "lab/unsafe-v0")
    hostile.UNSAFE["metadata is a symlink"].spoil(unsafe, hostile.outside(root / ".outside"))
    spaceless = hostile.make(root, "lab/spaceless-v0")
    hostile.UNSAFE["no action space"].spoil(spaceless, root)
    other = hostile.make(root, "lab/newer-v0")
    hostile.INCOMPATIBLE["a manifest of version 99"].spoil(other, root)
    spaces = hostile.spaces_of(BOX_SPEC)
    writer = DatasetWriter(
        "lab/begun-v0",
        BOX_SPEC,
        root=root,
        observation_space=spaces[0],
        action_space=spaces[1],
        environment=ENVIRONMENT,
        license="CC0-1.0",
    )
    writer.add(make_episode(BOX_SPEC, 0))
    writer.flush()
    writer.close()
    (root / "lab" / "no dataset").mkdir()
    (root / "lab" / "file").write_text("x")
    assert states(root) == {
        "lab/begun-v0": "unfinished",
        "lab/broken-v0": "damaged",
        "lab/deep/er/other-v3": "ours",
        "lab/newer-v0": "incompatible",
        "lab/short-v0": "damaged",
        "lab/spaceless-v0": "unsafe",
        "lab/toy-v0": "ours",
        "lab/unsafe-v0": "unsafe",
        "plain-v0": "foreign",
    }
    listed = {found.dataset: found for found in list_datasets(root)}
    toy = listed["lab/toy-v0"]
    assert (toy.episodes, toy.steps, toy.policies) == (4, 28, 12)
    assert (toy.env, toy.license, toy.problem) == ("toyenv:Toy-v0", "CC-BY-4.0", None)
    assert toy.size == (folder / DATA_FILE).stat().st_size
    plain = listed["plain-v0"]
    assert (plain.episodes, plain.policies, plain.problem) == (3, None, None)
    begun = listed["lab/begun-v0"]
    assert (begun.env, begun.license, begun.episodes) == ("toyenv:Toy-v0", "CC0-1.0", None)
    assert begun.path.name == ".begun-v0.collecting"
    for found in listed.values():
        json.dumps(found.to_dict(), allow_nan=False)
        assert (found.problem is not None) == (found.state in ("damaged", "unsafe", "incompatible"))
        assert found.problem is None or str(found.path) in found.problem


@pytest.mark.parametrize("name", ["manifest.json", METADATA_FILE, DATA_FILE])
def test_a_pipe_or_a_missing_file_does_not_stop_the_list(name: str, folder: Path) -> None:
    (folder / name).unlink()
    if name != "manifest.json":
        assert states(folder.parent.parent) == {"lab/toy-v0": "damaged"}
    os.mkfifo(folder / name)
    assert states(folder.parent.parent) == {"lab/toy-v0": "unsafe"}


def test_a_data_folder_that_is_a_link(folder: Path, tmp_path: Path) -> None:
    (folder / "data").rename(tmp_path / ".elsewhere")
    (folder / "data").symlink_to(tmp_path / ".elsewhere")
    assert states(tmp_path) == {"lab/toy-v0": "unsafe"}


def test_a_plan_that_is_damaged_is_still_unfinished(tmp_path: Path) -> None:
    for name in (".a-v0.collecting", ".b-v1.pulling"):
        (tmp_path / "lab" / name).mkdir(parents=True)
    (tmp_path / "lab" / ".a-v0.collecting" / "plan.json").write_bytes(b"[")
    found = list_datasets(tmp_path)
    assert [(f.dataset, f.state) for f in found] == [
        ("lab/a-v0", "unfinished"),
        ("lab/b-v1", "unfinished"),
    ]
    assert "plan.json" in (found[0].problem or "")
    assert found[1].problem is None


def test_loops_of_links_end(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lab" / "again").symlink_to(tmp_path / "lab")
    (tmp_path / "linked-v0").symlink_to(folder)  # the user's own link to another disk
    assert states(tmp_path) == {"lab/toy-v0": "ours", "linked-v0": "ours"}


def test_no_root_is_no_dataset(tmp_path: Path) -> None:
    assert list_datasets(tmp_path / "none") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="MINARI_DATASETS_PATH"):
        list_datasets(tmp_path / "file")

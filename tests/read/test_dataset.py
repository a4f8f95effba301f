"""Datasets come back as they were written, from HDF5 and from the cache alike."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import hostile
from libtools import fit_settings, make_policies
from make_episodes import same
from pbvf_datasets import load_dataset
from pbvf_datasets.format.schema import DATA_FILE, METADATA_FILE
from pbvf_datasets.inspect.verify import verify
from pbvf_datasets.read.episodes import EpisodeChecker
from pbvf_datasets.read.untrusted import UnverifiedWarning
from pbvf_offline.errors import DamagedError, IncompatibleError, ResourceError, UsageError
from pbvf_offline.fit.loop import start_fit
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode, Trajectories, stack_episodes
from untagged import make_untagged, played

pytestmark = pytest.mark.usefixtures("root")

STOCHASTIC = PolicySpec(3, (5,), BoxActions((-1.0, -1.0), (1.0, 1.0)), stochastic=True)


def _extras(steps: int, spec: PolicySpec) -> dict[str, Any]:
    survive = np.ones(steps + 1)
    survive[0] = 0
    pre = np.arange((steps + 1) * spec.actions.dim, dtype=np.float64).reshape(steps + 1, -1)
    pre[-1] = 0
    return {"reward_survive": survive, "pre_action": pre}


def _episodes(kind: str) -> tuple[PolicySpec, list[Episode]]:
    if kind == "box":
        return hostile.BOX_SPEC, [hostile.episode(i) for i in range(3)]
    if kind == "discrete":
        spec = hostile.DISCRETE_SPEC
        return spec, [hostile.episode(i, spec, seed=None) for i in range(3)]
    if kind == "short":
        lengths = (1, 1, 3)
        return hostile.BOX_SPEC, [
            hostile.episode(i, steps=n, policies=1) for i, n in enumerate(lengths)
        ]
    if kind == "stochastic":
        return STOCHASTIC, [
            hostile.episode(i, STOCHASTIC, **_extras(20, STOCHASTIC)) for i in (0, 1)
        ]
    if kind == "cut":
        return hostile.BOX_SPEC, [hostile.episode(0), hostile.episode(1).truncate(7)]
    if kind == "float32":
        obs = np.random.default_rng(0).standard_normal((21, 3)).astype(np.float32)
        return hostile.BOX_SPEC, [hostile.episode(0, observations=obs)]
    # Two episodes of the same two policies, in the other order the second time.
    one = hostile.episode(0)
    two = hostile.episode(
        1, theta=one.theta[::-1].copy(), obs_mean=one.obs_mean, obs_std=one.obs_std
    )
    return hostile.BOX_SPEC, [one, two]


KINDS = ("box", "discrete", "short", "stochastic", "cut", "float32", "shared")


def assert_equal(found: Trajectories, expected: Trajectories) -> None:
    for field in dataclasses.fields(Trajectories):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "policies":
            assert a.spec == b.spec
            pairs = [(getattr(a, n), getattr(b, n)) for n in ("theta", "obs_mean", "obs_std")]
        else:
            assert (a is None) == (b is None), field.name
            pairs = [] if a is None else [(a, b)]
        for x, y in pairs:
            assert x.dtype == y.dtype, field.name
            assert x.shape == y.shape, field.name
            assert x.tobytes() == y.tobytes(), field.name


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_comes_back_bit_for_bit(kind: str, tmp_path: Path) -> None:
    spec, episodes = _episodes(kind)
    folder = hostile.make(tmp_path, spec=spec, episodes=episodes)
    expected = stack_episodes(spec, episodes)
    first = load_dataset(folder)
    for data in (first, load_dataset(folder), load_dataset(folder, cache=False)):
        assert_equal(data.trajectories, expected)
        assert data.verified
        assert data.digest == first.digest
    assert first.theta is first.policies.theta
    assert first.obs_mean.shape == first.obs_std.shape == (len(first.theta), spec.obs_dim)
    assert first.spec == spec


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_stream_as_written(kind: str, tmp_path: Path) -> None:
    spec, episodes = _episodes(kind)
    data = load_dataset(hostile.make(tmp_path, spec=spec, episodes=episodes))
    assert len(data.episodes) == len(data) == len(episodes)
    for found, expected in zip(data.episodes, episodes, strict=True):
        assert same(found, expected)
    last = len(episodes) - 1
    picked = list(data.episodes.select([last, 0, last]))
    assert [len(e) for e in picked] == [len(episodes[i]) for i in (last, 0, last)]
    with pytest.raises(UsageError, match=f"no episode {last + 1}"):
        data.episodes.select([last + 1])


def test_by_id_and_by_path(tmp_path: Path) -> None:
    hostile.make(tmp_path / "root", "lab/x-v3", license="CC-BY-4.0")
    data = load_dataset("lab/x-v3")
    assert data.id == "lab/x-v3"
    assert data.license == "CC-BY-4.0"
    assert data.path == tmp_path / "root" / "lab" / "x-v3"
    assert load_dataset(str(data.path)).digest == load_dataset(data.path).digest == data.digest
    assert repr(data) == (
        "Dataset('lab/x-v3': 3 episodes, 60 steps, 6 policies (linear), verified)"
    )
    with pytest.raises(UsageError, match="no dataset lab/y-v3"):
        load_dataset("lab/y-v3")


def test_the_environment_is_described_and_not_built(tmp_path: Path) -> None:
    environment = {"id": "Swimmer-v5", "module": None, "kwargs": {"frame_skip": 2}}
    folder = hostile.make(tmp_path, environment=environment)
    assert load_dataset(folder).environment == {**environment, "withheld": []}
    hostile.unseal(folder)
    path = folder / METADATA_FILE
    metadata = json.loads(path.read_text())
    spec = json.dumps({"id": "evil:Toy-v0", "kwargs": {"a": [1, 2], "b": float("inf")}})
    with pytest.warns(UnverifiedWarning):
        assert load_dataset(folder).environment is None
    path.write_text(json.dumps(metadata | {"env_spec": spec}))
    with pytest.warns(UnverifiedWarning):
        data = load_dataset(folder)
    assert data.environment == {
        "id": "evil:Toy-v0",
        "module": None,
        "kwargs": {"a": [1, 2], "b": float("inf")},
        "withheld": [],
    }
    assert data.license is None
    path.write_text(json.dumps(metadata | {"env_spec": '{"id": 3}'}))
    with pytest.warns(UnverifiedWarning), pytest.raises(DamagedError, match="no environment"):
        load_dataset(folder)


def test_other_widths_and_byte_orders_are_converted(tmp_path: Path) -> None:
    """Stock tools may store the same numbers otherwise."""
    folder = hostile.make(tmp_path)
    expected = load_dataset(folder).trajectories
    hostile.unseal(folder)
    with h5py.File(folder / DATA_FILE, "r+") as file:
        for name, kind in (
            ("infos/segment", ">i8"),
            ("observations", ">f8"),
            ("actions", ">f4"),
            ("infos/obs_mean", "<f4"),
            ("rewards", ">f8"),
        ):
            for i in range(3):
                values = file[f"episode_{i}/{name}"][()]
                del file[f"episode_{i}/{name}"]
                file[f"episode_{i}/{name}"] = values.astype(kind)
        file["episode_1/infos/score"] = np.arange(4)  # what we do not know is left alone
        file["episode_1/more"] = 3.0
        file["episode_1"].attrs["options/difficulty"] = "hard"
    with pytest.warns(UnverifiedWarning):
        assert_equal(load_dataset(folder).trajectories, expected)


def test_uncompressed_chunks_of_other_shapes_are_read(tmp_path: Path) -> None:
    folder = hostile.make(tmp_path)
    expected = load_dataset(folder).trajectories
    hostile.unseal(folder)
    with h5py.File(folder / DATA_FILE, "r+") as file:
        values = file["episode_1/rewards"][()]
        del file["episode_1/rewards"]
        file.create_dataset(
            "episode_1/rewards", data=values, chunks=(7,), maxshape=(None,), shuffle=True
        )
    with pytest.warns(UnverifiedWarning):
        assert_equal(load_dataset(folder).trajectories, expected)


def test_a_dataset_that_changed_is_not_streamed(tmp_path: Path) -> None:
    data = load_dataset(hostile.make(tmp_path))
    with h5py.File(data.path / DATA_FILE, "r+") as file:
        file["episode_1/rewards"][0] = 5.0
    with pytest.raises(DamagedError, match=r"main_data\.hdf5.*manifest"):
        list(data.episodes)
    hostile.reseal(data.path)
    with pytest.raises(DamagedError, match="changed since"):
        list(data.episodes)


def test_later_openings_do_not_touch_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hostile.make(tmp_path)
    expected = load_dataset(folder).trajectories

    def refuse(*args: object) -> None:
        raise AssertionError("HDF5 was opened")

    monkeypatch.setattr("pbvf_datasets.read.untrusted.GuardedFile", refuse)
    assert_equal(load_dataset(folder).trajectories, expected)
    with pytest.raises(AssertionError, match="opened"):
        load_dataset(folder, cache=False)


def test_a_cached_dataset_is_still_checked(tmp_path: Path) -> None:
    folder = hostile.make(tmp_path)
    load_dataset(folder)
    hostile.DAMAGED["a flipped byte in rewards"].spoil(folder, tmp_path)
    with pytest.raises(DamagedError, match="episode_1/rewards"):
        load_dataset(folder)


def test_short_memory_is_a_matter_of_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hostile.make(tmp_path)

    def fail(*args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr(EpisodeChecker, "check", fail)
    with pytest.raises(ResourceError, match="memory"):
        load_dataset(folder)


def test_a_claim_of_many_steps_costs_no_memory(tmp_path: Path) -> None:
    folder = hostile.make(tmp_path)
    hostile.DAMAGED["too many steps promised"].spoil(folder, tmp_path)
    hostile.unseal(folder)
    warnings.simplefilter("ignore", UnverifiedWarning)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match="total_steps"):
            load_dataset(folder)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30 * (folder / DATA_FILE).stat().st_size


def test_loading_imports_neither_torch_nor_minari(tmp_path: Path) -> None:
    folder = hostile.make(tmp_path)
    program = (
        "import sys; from pbvf_datasets import load_dataset; print(len(load_dataset(sys.argv[1])));"
        "print([m for m in ('torch', 'minari', 'mujoco', 'matplotlib') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{root}:{root / 'datasets'}", "PBVF_CACHE": str(tmp_path / "c")},
    )
    assert done.stdout.split("\n")[:2] == ["3", "[]"]


def test_values_that_are_not_kept_are_finite_too(tmp_path: Path) -> None:
    _, episodes = _episodes("stochastic")
    for name, row in (("reward_survive", 0), ("pre_action", -1)):
        folder = hostile.make(tmp_path / name, spec=STOCHASTIC, episodes=episodes)
        with h5py.File(folder / DATA_FILE, "r+") as file:
            array = file[f"episode_1/infos/{name}"]
            array[row] = np.nan
        hostile.reseal(folder)
        with pytest.raises(DamagedError, match=rf"episode_1/infos/{name}.*NaN"):
            load_dataset(folder)
        assert verify(folder).status == "damaged"


def test_without_policies(root: Path) -> None:
    policies = make_policies(hostile.BOX_SPEC, 2)
    episodes = played(policies, [0, 1, 1])
    make_untagged("theirs/toy-v0", episodes, policies)
    with pytest.warns(UnverifiedWarning), pytest.raises(IncompatibleError, match="dataset tag"):
        load_dataset("theirs/toy-v0")
    for _ in range(2):  # also where a copy might have been kept
        with pytest.warns(UnverifiedWarning):
            data = load_dataset("theirs/toy-v0", untagged=True)
        assert not data.trajectories.tagged
        assert data.theta.shape[0] == 0
        assert set(data.transitions.policy.tolist()) == {-1}
        np.testing.assert_array_equal(data.transitions.obs[:8], episodes[0].observations[:-1])
        np.testing.assert_array_equal(data.transitions.action[8:16], episodes[1].actions)
    assert [len(episode.theta) for episode in data.episodes] == [0, 0, 0]
    with pytest.raises(IncompatibleError, match="which policies acted"):
        start_fit(data.trajectories, fit_settings(), torch.device("cpu"))
    hostile.make(root)
    assert load_dataset("lab/toy-v0", untagged=True).trajectories.tagged

import os
import resource
import time

import h5py
import numpy as np
import pytest

from make_episodes import BOX_SPEC, DISCRETE_SPEC, STOCHASTIC_SPEC, make_episode
from pbvf_datasets.format.schema import FIELDS, parse_episode_blob
from pbvf_datasets.write import hdf5
from pbvf_datasets.write.hdf5 import chunk_shape, write_episodes
from pbvf_offline.errors import UsageError


def written(path, episodes, spec):
    write_episodes(path, iter(episodes), spec)
    return path


@pytest.mark.parametrize("spec", [BOX_SPEC, DISCRETE_SPEC, STOCHASTIC_SPEC])
def test_every_array_is_there_bit_for_bit(tmp_path, spec):
    episodes = [make_episode(spec, i, n, survive=True, cut=n == 9) for i, n in enumerate([1, 7, 9])]
    with h5py.File(written(tmp_path / "x", episodes, spec)) as file:
        assert list(file) == ["episode_0", "episode_1", "episode_2"]
        for i, episode in enumerate(episodes):
            group = file[f"episode_{i}"]
            attributes = {"id": i, "total_steps": len(episode), "seed": i + 100}
            assert dict(group.attrs) == attributes
            for field in FIELDS:
                given = getattr(episode, field.attribute)
                if given is None:
                    assert field.name not in group
                    continue
                found = group[field.name]
                assert found.dtype == given.dtype, field.name
                assert found[()].tobytes() == given.tobytes(), field.name
                assert found.chunks == found.shape
                assert found.fletcher32
                assert found.compression is None
            blob = group["infos/pbvf"][()].tobytes()
            assert parse_episode_blob(blob, "x") == (spec, episode.cut)


def test_same_episodes_same_bytes(tmp_path):
    episodes = [make_episode(BOX_SPEC, i, survive=True) for i in range(60)]
    one = written(tmp_path / "one", episodes, BOX_SPEC).read_bytes()
    time.sleep(1.1)  # a stored time would have a resolution of one second
    junk = [os.urandom(n) for n in range(1, 5000)]  # a different heap
    other = written(tmp_path / "other", episodes, BOX_SPEC).read_bytes()
    assert one == other
    assert len(junk) == 4999


def test_views_and_foreign_order_are_written_by_value(tmp_path):
    episode = make_episode(BOX_SPEC, 0)
    turned = np.asfortranarray(episode.observations)
    object.__setattr__(episode, "observations", turned)
    with h5py.File(written(tmp_path / "x", [episode], BOX_SPEC)) as file:
        assert np.array_equal(file["episode_0/observations"][()], turned)


def test_large_arrays_are_split_into_chunks_of_rows(tmp_path, monkeypatch):
    assert chunk_shape((10, 3), 8) == (10, 3)
    assert chunk_shape((2**40, 3), 8) == (hdf5.MAX_CHUNK_BYTES // 24, 3)
    assert chunk_shape((5, 2**30), 8) == (1, 2**30)
    monkeypatch.setattr(hdf5, "MAX_CHUNK_BYTES", 64)
    episode = make_episode(BOX_SPEC, 0, 41)
    one = written(tmp_path / "one", [episode], BOX_SPEC)
    other = written(tmp_path / "other", [episode], BOX_SPEC)
    assert one.read_bytes() == other.read_bytes()
    with h5py.File(one) as file:
        assert file["episode_0/rewards"].chunks == (8,)
        assert np.array_equal(file["episode_0/rewards"][()], episode.rewards)
        assert np.array_equal(file["episode_0/infos/theta"][()], episode.theta)


def test_an_existing_file_is_refused(tmp_path):
    path = written(tmp_path / "x", [make_episode(BOX_SPEC, 0)], BOX_SPEC)
    before = path.read_bytes()
    with pytest.raises(OSError, match="exist"):
        write_episodes(path, [], BOX_SPEC)
    assert path.read_bytes() == before


def test_an_empty_array_is_refused(tmp_path):
    episode = make_episode(BOX_SPEC, 0)
    object.__setattr__(episode, "rewards", np.zeros(0))
    with pytest.raises(UsageError, match="rewards"):
        write_episodes(tmp_path / "x", [episode], BOX_SPEC)


@pytest.mark.parametrize("limit", [1, 5_000, 100_000, 600_000])
def test_a_full_disk_is_an_os_error_with_its_number(tmp_path, limit):
    episodes = [make_episode(BOX_SPEC, i) for i in range(200)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError, match="too large") as error:
            write_episodes(tmp_path / "x", episodes, BOX_SPEC)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.errno is not None
    assert error.value.filename == str(tmp_path / "x")
    # The library is not left in a state in which a second try fails.
    (tmp_path / "x").unlink()
    written(tmp_path / "x", episodes, BOX_SPEC)


def test_an_interrupt_passes_through(tmp_path):
    def interrupted():
        yield make_episode(BOX_SPEC, 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_episodes(tmp_path / "x", interrupted(), BOX_SPEC)

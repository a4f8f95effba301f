import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from minari.serialization import deserialize_space
from minari.serialization import serialize_space as minari_serialize_space

import pbvf_datasets
from make_episodes import BOX_SPEC, DISCRETE_SPEC, STOCHASTIC_SPEC
from pbvf_datasets.format import schema
from pbvf_datasets.format.names import check_dataset_id, datasets_root, resolve_dataset
from pbvf_datasets.format.spaces import check_spaces, parse_space, serialize_space
from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError


@pytest.mark.parametrize("spec", [BOX_SPEC, DISCRETE_SPEC, STOCHASTIC_SPEC])
@pytest.mark.parametrize("cut", ["none", "budget"])
def test_episode_blob_round_trip(spec, cut):
    assert schema.parse_episode_blob(schema.episode_blob(spec, cut), "x") == (spec, cut)


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        ({"version": 99}, IncompatibleError, "upgrade"),
        ({"version": 0}, DamagedError, "version"),
        ({"version": True}, DamagedError, "version"),
        ({"cut": "half"}, DamagedError, "cut"),
        ({"more": 1}, DamagedError, "'more' does not belong"),
        ({"spec": {}}, DamagedError, "spec"),
    ],
)
def test_parse_episode_blob_refuses(change, error, why):
    blob = {**json.loads(schema.episode_blob(BOX_SPEC, "none")), **change}
    with pytest.raises(error, match=why) as caught:
        schema.parse_episode_blob(schema.canonical_json(blob), "episode_3/infos/pbvf")
    assert "episode_3" in str(caught.value)


SPACES = [
    spaces.Box(-np.inf, np.inf, (3,), np.float64),
    spaces.Box(np.array([-1.0, 0.1], np.float32), np.array([0.7, 1e30], np.float32)),
    spaces.Box(0, 255, (4,), np.uint8),
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_round_trip_and_are_what_minari_writes(space):
    text = serialize_space(space)
    assert text == minari_serialize_space(space)
    assert parse_space(text, "x") == space == deserialize_space(text)


BOX = {"type": "Box", "dtype": "float32", "shape": [2], "low": [0, 0], "high": [1, 1]}


@pytest.mark.parametrize(
    ("space", "error"),
    [
        ({**BOX, "shape": [10**12]}, IncompatibleError),
        ({**BOX, "shape": [1, 2]}, IncompatibleError),
        ({**BOX, "shape": ["2"]}, DamagedError),
        ({**BOX, "dtype": "object"}, IncompatibleError),
        ({**BOX, "dtype": ["float32"]}, IncompatibleError),
        ({**BOX, "low": [0]}, DamagedError),
        ({**BOX, "low": [0, "0"]}, DamagedError),
        ({**BOX, "low": [2, 0]}, DamagedError),
        ({**BOX, "dtype": "uint8", "high": [1, 300]}, DamagedError),
        ({**BOX, "extra": 1}, DamagedError),
        ({"type": "Discrete", "dtype": "int64", "start": 0, "n": 0}, DamagedError),
        ({"type": "Discrete", "dtype": "int64", "start": 0, "n": 10**30}, DamagedError),
        ({"type": "Discrete", "n": 2}, DamagedError),
        ({"type": "Dict", "subspaces": {}}, IncompatibleError),
        ({"type": "Text"}, IncompatibleError),
        ([], IncompatibleError),
    ],
)
def test_parse_space_refuses(space, error):
    with pytest.raises(error) as caught:
        parse_space(json.dumps(space), "metadata.json")
    assert "metadata.json" in str(caught.value)


@pytest.mark.parametrize(
    "text", [None, 3, "nonsense", json.dumps({**BOX, "low": [float("nan"), 0]})]
)
def test_parse_space_refuses_what_is_no_space(text):
    with pytest.raises(DamagedError):
        parse_space(text, "x")


def test_unsupported_spaces_are_named_with_what_is_supported():
    good = SPACES[0]
    for bad in (
        spaces.Dict({"a": good}),
        spaces.Text(3),
        spaces.Box(0, 255, (64, 64, 3), np.uint8),
        spaces.Discrete(4),
    ):
        with pytest.raises(UsageError, match=r"one-dim.*--wrapper '?flatten-ob") as error:
            check_spaces(bad, spaces.Discrete(2))
        assert error.value.exit_code == 2
    for bad in (spaces.MultiDiscrete([2, 2]), spaces.Box(0, 3, (2,), np.int64)):
        with pytest.raises(UsageError, match=r"action space.*add --wrapper continuous-action"):
            check_spaces(good, bad)
    with pytest.raises(UsageError, match="not supported"):
        serialize_space(spaces.MultiBinary(3))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("lab/swimmer-fragments-v0", ("lab", "swimmer-fragments", 0)),
        ("D4RL/door/human-v12", ("D4RL/door", "human", 12)),
        ("plain-v1", ("", "plain", 1)),
        ("a-b/x-v1-v2", ("a-b", "x-v1", 2)),
    ],
)
def test_good_ids(name, parts):
    assert check_dataset_id(name) == parts


@pytest.mark.parametrize(
    "name",
    [
        "lab/x", "lab/../x-v0", "../x-v0", "/abs/x-v0", "lab//x-v0", "lab/x-v0/", "", "-v0",
        "lab/x-v", "lab/x-v01", "lab/x y-v0", "lab/.x-v0", "lab\\x-v0", "l/x-v0", "lab/x-v0\n",
        "lab/data/x-v0", "data/x-v0", "lab/" + "x" * 300 + "-v0", "lab/x\0-v0", "~/x-v0",
    ],
)  # fmt: skip
def test_malformed_ids_are_usage_errors(name, tmp_path):
    with pytest.raises(UsageError) as error:
        check_dataset_id(name)
    assert error.value.exit_code == 2
    with pytest.raises(UsageError):
        resolve_dataset(name, tmp_path)


def test_resolve_by_id_and_by_path(tmp_path, monkeypatch):
    folder = tmp_path / "root" / "lab" / "x-v0"
    folder.mkdir(parents=True)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    assert resolve_dataset("lab/x-v0") == folder
    assert resolve_dataset(str(folder)) == folder
    assert resolve_dataset(folder) == folder
    monkeypatch.chdir(folder.parent)
    assert resolve_dataset("./x-v0").resolve() == folder
    assert resolve_dataset("../lab/x-v0").resolve() == folder
    with pytest.raises(UsageError, match=r"no dataset lab/y-v0 .*; check the name"):
        resolve_dataset("lab/y-v0")  # a folder without data is none to suggest
    (folder / "data").mkdir()
    with pytest.raises(UsageError, match=r"did you mean 'lab/x-v0'\? check the name"):
        resolve_dataset("lab/y-v0")
    (folder / "file").write_text("x")
    with pytest.raises(UsageError, match="folder"):
        resolve_dataset(folder / "file")
    with pytest.raises(UsageError, match="neither"):
        resolve_dataset("a\0b")


def test_root_is_minaris(monkeypatch, tmp_path):
    from minari.storage.datasets_root_dir import get_dataset_path

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert datasets_root() == tmp_path == get_dataset_path()
    # Minari would make a folder of this name; what a shell expands never gets here.
    monkeypatch.setenv("MINARI_DATASETS_PATH", "~/x")
    with pytest.raises(UsageError, match=f"only a shell expands; .* {Path.home()}/x"):
        datasets_root()
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert datasets_root() == Path(get_dataset_path())


def test_package_exports_are_lazy():
    import subprocess

    code = (
        "import sys, pbvf_datasets; heavy = {'h5py', 'minari', 'torch', 'gymnasium'};"
        "found = heavy & set(sys.modules); assert not found, found;"
        "from pbvf_datasets import DatasetWriter;"
        "found = heavy & set(sys.modules); assert not found, found"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    assert "DatasetWriter" in dir(pbvf_datasets)
    with pytest.raises(AttributeError, match="nonsense"):
        pbvf_datasets.nonsense  # noqa: B018

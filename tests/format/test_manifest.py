import copy
import json
import os

import pytest

from hostile import rewrite_manifest
from pbvf_datasets import list_datasets, load_dataset, merge, pack, pull, push
from pbvf_datasets.format.manifest import (
    build_manifest,
    manifest_bytes,
    manifest_digest,
    parse_manifest,
    read_plain,
    tool_version,
    verify_files,
    versions,
)
from pbvf_offline.errors import DamagedError, UnsafeError
from writer_tools import NAME, PROVENANCE, run


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/main_data.hdf5").write_bytes(b"numbers")
    (tmp_path / "data/metadata.json").write_bytes(b"{}")
    (tmp_path / "README.md").write_text("card")
    return tmp_path


def test_round_trip_and_known_digests(folder):
    manifest = build_manifest(folder, PROVENANCE)
    data = manifest_bytes(manifest)
    assert data.endswith(b"}\n")
    assert parse_manifest(data, "x") == manifest == json.loads(data)
    # sha256 of the seven bytes above, worked out with sha256sum.
    assert manifest["files"]["data/main_data.hdf5"] == {
        "size": 7,
        "sha256": "f3c7807d475073ba009bf4801b2d934e9f0126cb96dd19a27dbffcae23a7f5a3",
    }
    body = {k: v for k, v in manifest.items() if k != "digest"}
    assert manifest["digest"] == manifest_digest(body)


def stats(**changes):
    return lambda m: m["provenance"]["stats"].update(changes)


SOURCE = {"id": "a-v0", "digest": "0" * 64, "verified": True, "episodes": 1, "steps": 2}


def made_of(**changes):
    source = {**SOURCE, "from": [], "provenance": None, **changes}
    return lambda m: m["provenance"].update(sources=[source])


def origin(**changes):
    return {k: v for k, v in {**PROVENANCE, **changes}.items() if k != "spec"}


def resealed(folder, change):
    manifest = copy.deepcopy(build_manifest(folder, PROVENANCE))
    change(manifest)
    return manifest_bytes({**manifest, "digest": manifest_digest(manifest)})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m.update(format="other"), "not a pbvf-dataset"),
        (lambda m: m.update(version="1"), "version"),
        (lambda m: m.pop("card"), "keys"),
        (lambda m: m["files"].pop("data/metadata.json"), "must list"),
        (lambda m: m["files"].update({"data/x": {}}), "must list"),
        (lambda m: m["files"]["data/metadata.json"].update(size="7"), "malformed"),
        (lambda m: m["files"]["data/metadata.json"].update(sha256="A" * 64), "malformed"),
        (lambda m: m.update(card=None), "README"),
        (lambda m: m.update(provenance=[]), "provenance"),
        (lambda m: m["provenance"].pop("stats"), "provenance"),
        (lambda m: m["provenance"].update(seed=True), "seed"),
        (lambda m: m["provenance"].update(authors=[1]), "authors"),
        (lambda m: m["provenance"].update(repeatable="no"), "repeatable"),
        (lambda m: m["provenance"].update(environment={"id": "x"}), "environment"),
        (lambda m: m["provenance"]["environment"].update(withheld=[1]), "withheld"),
        (lambda m: m["provenance"]["stats"].update({"return": {"mean": 1}}), "return"),
        (lambda m: m["provenance"]["stats"].update(episodes=1.5), "episodes"),
        (stats(policies=10**400), r"stats\.policies is malformed"),
        (stats(steps=-1), r"stats\.steps is malformed"),
        (stats(**{"return": {"mean": 10**400, "min": 0, "max": 0}}), r"stats\.return is malformed"),
        (stats(terminated=None), r"stats\.terminated is a NoneType"),
        (stats(terminated=2**62 + 1), r"stats\.terminated is malformed"),
        (stats(normalisers="1"), r"stats\.normalisers is a str"),
        (stats(length=5), r"stats\.length is a int"),
        (stats(length={"mean": 1.0, "min": 1, "max": "1"}), r"stats\.length is malformed"),
        (stats(length={}), r"stats\.length is malformed"),
        (
            made_of(provenance=origin(stats={**PROVENANCE["stats"], "cut": -1})),
            r"stats\.cut is mal",
        ),
        (lambda m: m["provenance"].update(mood=1), "field 'mood'"),
        (lambda m: m["provenance"]["stats"].update(mood=1), "field 'mood'"),
        (lambda m: m["provenance"]["environment"].update(mood=1), "field 'mood'"),
        (lambda m: m["provenance"].update(sources={}), "no list"),
        (lambda m: m["provenance"].update(sources=[3]), "lacks"),
        (made_of(steps=None), "steps"),
        (made_of(digest="x"), "malformed digest"),
        (made_of(**{"from": ["x"]}), "malformed digest"),
        (made_of(provenance={}), "lacks"),
        (made_of(provenance=origin(command=3)), "command"),
        (made_of(provenance=origin(repeatable=3)), "repeatable"),
    ],
)
def test_a_well_sealed_but_malformed_manifest_is_damage(folder, change, why):
    with pytest.raises(DamagedError, match=why):
        parse_manifest(resealed(folder, change), "x")


ESCAPES = ("../x", "/x", "data/../../x", "..\\x", "~/x", "C:/x", "data/x\0")


@pytest.mark.parametrize("name", ESCAPES)
def test_a_name_that_leads_out_is_unsafe(folder, name):
    data = resealed(folder, lambda m: m["files"].update({name: {"size": 1, "sha256": "0" * 64}}))
    for image in (data, data.replace(b'"digest":"', b'"digest":"0')):  # whatever else is wrong
        with pytest.raises(UnsafeError, match="outside its folder") as error:
            parse_manifest(image, "d/manifest.json")
        assert error.value.exit_code == 4
        assert error.value.where == "d/manifest.json"


@pytest.mark.parametrize("name", ESCAPES[:2])
def test_every_reader_of_a_manifest_refuses_a_name_that_leads_out(tmp_path, monkeypatch, name):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = tmp_path / NAME
    run(tmp_path)
    entry = {"size": 1, "sha256": "0" * 64}
    rewrite_manifest(dataset, lambda manifest: manifest["files"].update({name: entry}))
    readers = {
        "writer": lambda: run(tmp_path),
        "load_dataset": lambda: load_dataset(NAME),
        "pack": lambda: pack(NAME, tmp_path / "x.tar"),
        "push": lambda: push(NAME, str(tmp_path / "there")),
        "pull": lambda: pull(str(dataset), "lab/other-v0"),
        "merge": lambda: merge([NAME, NAME], "lab/other-v0"),
    }
    for reader, read in readers.items():
        with pytest.raises(UnsafeError, match="outside its folder") as error:
            read()
        assert error.value.exit_code == 4, reader
        assert "manifest.json" in str(error.value), reader
    with pytest.raises(UnsafeError, match="--overwrite"):
        run(tmp_path)
    (entry,) = list_datasets()
    assert entry.state == "unsafe"
    assert not (tmp_path / "there").exists()
    run(tmp_path, overwrite=True)
    assert load_dataset(NAME).verified


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"null", b'{"format":"pbvf-dataset"}'])
def test_what_is_no_manifest_is_damage(data):
    with pytest.raises(DamagedError):
        parse_manifest(data, "x")


def test_no_environment_and_no_whole_episode_are_fine(folder):
    def change(manifest):
        manifest["provenance"]["environment"] = None
        manifest["provenance"]["stats"]["return"] = None

    assert parse_manifest(resealed(folder, change), "x")["provenance"]["environment"] is None
    parse_manifest(resealed(folder, made_of(provenance=origin(environment=None))), "x")


def test_the_largest_statistics_are_fine(folder):
    most = {"mean": -1.7e308, "min": -1.7e308, "max": 10**308}
    change = stats(episodes=2**62, normalisers=0, terminated=1, length=most, **{"return": most})
    parse_manifest(resealed(folder, change), "x")


def test_versions_name_what_bytes_depend_on():
    assert {"python", "numpy", "h5py", "minari", "gymnasium"} <= set(versions())
    assert tool_version().startswith("pbvf-offline ")


def test_nothing_but_plain_files_is_compared(folder):
    manifest = build_manifest(folder, PROVENANCE)
    verify_files(folder, manifest)
    for name in ("data/main_data.hdf5", "README.md"):
        path = folder / name
        content = path.read_bytes()
        path.unlink()
        (folder / "elsewhere").write_bytes(content)
        path.symlink_to(folder / "elsewhere")
        with pytest.raises(UnsafeError, match="symbolic link"):
            verify_files(folder, manifest)
        path.unlink()
        os.mkfifo(path)  # opening one waits for a writer
        with pytest.raises(UnsafeError, match="not a regular file"):
            verify_files(folder, manifest)
        path.unlink()
        path.write_bytes(content)
    (folder / "data").rename(folder / "there")
    (folder / "data").symlink_to("there")
    with pytest.raises(UnsafeError, match="symbolic link"):
        verify_files(folder, manifest)


def test_small_files_are_plain_and_small(folder):
    path = folder / "manifest.json"
    with pytest.raises(FileNotFoundError):
        read_plain(path)
    path.write_bytes(b"12345")
    assert read_plain(path, 5) == b"12345"
    with pytest.raises(UnsafeError, match="5 bytes; at most 4"):
        read_plain(path, 4)
    (folder / "link").symlink_to(path)
    with pytest.raises(UnsafeError, match="symbolic link"):
        read_plain(folder / "link")
    os.mkfifo(folder / "pipe")
    with pytest.raises(UnsafeError, match="not a regular file"):
        read_plain(folder / "pipe")

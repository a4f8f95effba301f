"""``croissant.json``: what MLCommons' own reader makes of it, and that it is guarded like data."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hostile
from pbvf_datasets import load_dataset
from pbvf_datasets.format.croissant import croissant_bytes
from pbvf_datasets.format.manifest import (
    build_manifest,
    manifest_bytes,
    parse_manifest,
    verify_files,
)
from pbvf_datasets.format.schema import DATA_FILE, METADATA_FILE
from pbvf_datasets.write.edit import merge
from pbvf_offline.errors import DamagedError, PbvfError, UnsafeError
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.spec import PolicySpec
from writer_tools import PROVENANCE

pytestmark = pytest.mark.usefixtures("root")

FILES = {
    DATA_FILE: {"size": 7, "sha256": "0" * 64},
    METADATA_FILE: {"size": 2, "sha256": "1" * 64},
}
ARRAYS = {"observations": ("float32", (3,)), "actions": ("int64", ()), "infos/theta": ("f4", (4,))}


def opened(folder: Path) -> Any:
    """Open a dataset with mlcroissant; its validation raises on errors."""
    mlcroissant = pytest.importorskip("mlcroissant")
    warnings.simplefilter("ignore", DeprecationWarning)  # rdflib's, about itself
    logging.getLogger("absl").setLevel(logging.ERROR)
    return mlcroissant.Dataset(jsonld=folder / "croissant.json")


def document(**changes: Any) -> dict[str, Any]:
    provenance = {**PROVENANCE, **changes}
    value = json.loads(croissant_bytes("lab/x-v3", provenance, files=FILES, arrays=ARRAYS))
    assert isinstance(value, dict)
    return value


def _stochastic() -> tuple[PolicySpec, list[Any]]:
    spec = PolicySpec(3, (4,), BoxActions((-1.0,), (1.0,)), stochastic=True)
    pre = np.append(np.ones((20, 1)), [[0.0]], axis=0)
    return spec, [hostile.episode(0, spec, pre_action=pre, reward_survive=np.zeros(21))]


@pytest.mark.parametrize("kind", ["box", "discrete", "everything"])
@pytest.mark.parametrize("licensed", [True, False])
def test_mlcroissant_finds_no_error(root: Path, kind: str, licensed: bool) -> None:
    spec, episodes = (
        _stochastic()
        if kind == "everything"
        else (hostile.BOX_SPEC if kind == "box" else hostile.DISCRETE_SPEC, None)
    )
    options: dict[str, Any] = {"environment": {"id": "Toy-v0", "module": "toy"}}
    if licensed:
        options |= {"license": "CC-BY-4.0", "authors": ["Ada & Bo", 'Cy "{x}" 😀']}
    dataset = opened(hostile.make(root, spec=spec, episodes=episodes, **options))
    issues = dataset.metadata.ctx.issues
    assert not issues.errors
    # Files hold no dates. Nothing else that is recommended is missing.
    expected = {"datePublished"} | (set() if licensed else {"license"})
    assert {word for text in issues.warnings for word in expected if word in text} == expected
    assert len(issues.warnings) == len(expected)
    metadata = dataset.metadata
    assert metadata.name == "lab/toy-v0"
    assert metadata.version == "0.0.0"
    if licensed:
        assert metadata.license == ["CC-BY-4.0"]
        assert [person.name for person in metadata.creators] == options["authors"]


def test_mlcroissant_reads_the_records_and_checks_digests(root: Path) -> None:
    folder = hostile.make(root)
    dataset = opened(folder)
    counts = list(dataset.records("counts"))
    assert counts == [{"counts/total_episodes": 3, "counts/total_steps": 60}]
    arrays = {row["arrays/name"]: row for row in dataset.records("arrays")}
    assert arrays["observations"]["arrays/dtype"] == "float64"
    assert arrays["observations"]["arrays/shape"] == "(steps + 1, 3)"
    assert arrays["actions"]["arrays/shape"] == "(steps, 2)"
    assert arrays["rewards"]["arrays/shape"] == "(steps)"
    assert arrays["infos/theta"]["arrays/shape"] == f"(segments, {hostile.BOX_SPEC.size})"
    assert "infos/pbvf" in arrays
    assert "infos/pre_action" not in arrays
    path = folder / METADATA_FILE
    path.write_bytes(path.read_bytes().replace(b'"total_steps":60', b'"total_steps":61'))
    with pytest.raises(Exception, match="Download"):
        list(opened(folder).records("counts"))


def test_it_lists_the_files_with_the_manifests_digests(root: Path) -> None:
    folder = hostile.make(root)
    manifest = json.loads((folder / "manifest.json").read_text())
    described = json.loads((folder / "croissant.json").read_text())
    for entry in described["distribution"]:
        assert entry["sha256"] == manifest["files"][entry["contentUrl"]]["sha256"]
        assert entry["contentSize"] == f"{manifest['files'][entry['contentUrl']]['size']} B"
    assert {entry["contentUrl"] for entry in described["distribution"]} == {
        DATA_FILE,
        METADATA_FILE,
    }
    assert manifest["files"].keys() == {DATA_FILE, METADATA_FILE, "croissant.json"}


def test_equal_input_equal_bytes_and_strangers_text_on_one_line() -> None:
    one = croissant_bytes("lab/x-v3", PROVENANCE, files=FILES, arrays=ARRAYS)
    assert one == croissant_bytes("lab/x-v3", dict(PROVENANCE), files=FILES, arrays=dict(ARRAYS))
    odd = document(license="a\nb", authors=["x\udcff\ny"], environment=None)
    assert odd["license"] == "a b"
    assert odd["creator"][0]["name"] == "x? y"
    assert "an unnamed environment" in odd["description"]
    assert "creator" not in document(authors=[])
    assert "license" not in document(license=None)
    assert document()["version"] == "3.0.0"


# ------------------------------------------------------------------------------ as a file


def _enlarge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2**40)


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda path: _flip(path, 40), DamagedError, "sha256"),
        (lambda path: _flip(path, -1), DamagedError, "sha256"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), DamagedError, "bytes"),
        (lambda path: path.write_bytes(b""), DamagedError, "empty"),
        (Path.unlink, DamagedError, "missing"),
        (lambda path: (path.unlink(), path.mkdir()), DamagedError, "missing"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/hostname")), UnsafeError, "link"),
        (_enlarge, UnsafeError, "(?:at most|sparse)"),
    ],
)
def test_damage_is_noticed_and_named(
    root: Path, change: Any, error: type[PbvfError], words: str
) -> None:
    folder = hostile.make(root)
    load_dataset(folder)
    change(folder / "croissant.json")
    with pytest.raises(error, match=rf"croissant\.json.*{words}"):
        load_dataset(folder)
    with pytest.raises(error, match=rf"croissant\.json.*{words}"):
        merge([folder], "lab/out-v0")
    if error is DamagedError and not (folder / "croissant.json").is_dir():
        manifest = parse_manifest((folder / "manifest.json").read_bytes(), "x")
        with pytest.raises(DamagedError, match=r"croissant\.json"):
            verify_files(folder, manifest)


def test_datasets_from_before_it_load_and_merge(root: Path) -> None:
    folder = hostile.make(root)
    (folder / "croissant.json").unlink()
    path = folder / "manifest.json"
    provenance = json.loads(path.read_text())["provenance"]
    del provenance["command"]
    for key in ("normalisers", "terminated", "length"):
        del provenance["stats"][key]
    path.write_bytes(manifest_bytes(build_manifest(folder, provenance)))
    assert json.loads(path.read_text())["files"].keys() == {DATA_FILE, METADATA_FILE}
    data = load_dataset(folder, require_manifest=True)
    assert len(data) == 3
    # What its manifest does not list is some other file, and left alone.
    (folder / "croissant.json").write_text("{}")
    assert load_dataset(folder, require_manifest=True).digest == data.digest
    (folder / "croissant.json").unlink()
    assert merge([folder], "lab/new-v0").episodes == 3
    assert (root / "lab/new-v0/croissant.json").exists()

"""Files of other format versions: older ones open with defaults, newer ones say to upgrade."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

import pbvf_offline.fit.critic_file as critic_file
import pbvf_offline.io.formats as formats
from cli_tools import pbvf
from libtools import box_spec, fit_settings, make_data, make_file, make_policies
from pbvf_datasets.format.manifest import manifest_bytes, manifest_digest
from pbvf_datasets.format.schema import dataset_version, episode_blob
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.envs.wrappers import Wrapper
from pbvf_offline.errors import ConflictError, IncompatibleError
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.to_file import fit_to_file
from pbvf_offline.io.formats import FORMAT_VERSION
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.records import setting

DATA = make_data(policies=6, length=3)


@dataclass(frozen=True)
class LaterSettings(FitSettings):
    """Fit settings as a later version of the program may have them."""

    tempo: Annotated[float, setting("Tempo.", ge=0, since=FORMAT_VERSION + 1)] = 1.0


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """This program as a later version of it: a setting more, which files of today lack.

    Private names: there is no other way to be another version.
    """

    @dataclass(frozen=True)
    class Content(critic_file._Content):
        settings: LaterSettings

    def patch() -> None:
        monkeypatch.setattr(critic_file, "_Content", Content)
        monkeypatch.setattr(formats, "FORMAT_VERSION", FORMAT_VERSION + 1)

    return patch


def later_settings(**more: Any) -> LaterSettings:
    plain = fit_settings()
    return LaterSettings(
        **{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)}, **more
    )


def fit(settings: FitSettings, out: Path, updates: int) -> None:
    fit_to_file(DATA, settings, out, updates=updates, environment=None, dataset="d")


def test_a_critic_of_today_opens_and_extends_with_a_setting_more(
    tmp_path: Path, later: Callable[[], None]
) -> None:
    old, whole = tmp_path / "old.safetensors", tmp_path / "whole.safetensors"
    fit(fit_settings(), old, 20)
    fit(fit_settings(), whole, 40)
    later()
    opened = load_critic(old)
    assert opened.fit.settings == later_settings()
    assert opened.encode() == old.read_bytes()  # nothing new is used
    fit(later_settings(), old, 40)
    assert old.read_bytes() == whole.read_bytes()
    # The new setting tells outputs apart, from both sides.
    with pytest.raises(ConflictError, match=r"tempo is 1.* there and 2"):
        fit(later_settings(tempo=2.0), old, 40)
    quick = tmp_path / "quick.safetensors"
    fit(later_settings(tempo=2.0), quick, 20)
    with pytest.raises(ConflictError, match=r"tempo is 2.* there and 1.* here"):
        fit(later_settings(), quick, 20)
    assert load_critic(quick).fit.settings == later_settings(tempo=2.0)


def test_a_critic_that_uses_a_later_setting_is_for_later_programs(
    tmp_path: Path, later: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.safetensors"
    later()
    fit(later_settings(tempo=2.0), path, 5)
    monkeypatch.undo()
    with pytest.raises(IncompatibleError, match=f"format version {FORMAT_VERSION + 1}.*upgrade"):
        load_critic(path)


def stated(image: bytes) -> int:
    """The format version in the header of a tensor file."""
    header = json.loads(image[8 : 8 + int.from_bytes(image[:8], "little")])
    version: int = json.loads(header["__metadata__"]["pbvf"])["version"]
    return version


WRAPPED = EnvConfig("LQR-v0", wrappers=(Wrapper("time-feature"),)).reference()
RELU = make_policies(box_spec(2, (3,), family="relu-mlp"), 2)
PLAIN = make_policies(box_spec(2, (3,)), 2)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        (lambda: PoliciesFile(PLAIN).encode(), 1),
        (lambda: PoliciesFile(RELU).encode(), 2),
        (lambda: PoliciesFile(PLAIN, WRAPPED).encode(), 2),
        (lambda: make_file("psvf", 1, relabel=0.1).encode(), 1),
        (lambda: make_file("psvf", 1, relabel=0.1, augment="blur").encode(), 2),
    ],
    ids=["plain policies", "a family", "a wrapper", "relabelling", "another augmentation"],
)
def test_a_file_states_the_lowest_version_that_can_read_it(
    image: Callable[[], bytes], version: int
) -> None:
    assert stated(image()) == version


def test_tags_and_manifests_state_the_lowest_version_too() -> None:
    for spec, version in ((PLAIN.spec, 1), (RELU.spec, 2)):
        assert json.loads(episode_blob(spec, "none"))["version"] == version
        provenance = {"spec": spec.to_dict(), "environment": None}
        assert dataset_version(provenance) == version
        source = {"provenance": {"environment": WRAPPED.to_dict()}}
        assert dataset_version({**provenance, "sources": [source]}) == 2


def restated(kind: str, path: Path, version: int) -> None:
    """Rewrite a tensor file with one field more, in a format version."""
    content, tensors = decode(kind, path.read_bytes(), "x")
    more = SimpleNamespace(format_version=version, to_dict=lambda: {**content, "mood": 1})
    path.write_bytes(encode(kind, more, tensors))


def restated_json(path: Path, version: int) -> None:
    """Rewrite a file of JSON so."""
    value = {**json.loads(path.read_text()), "version": version, "mood": 1}
    if "digest" in value:
        value["digest"] = manifest_digest(value)
        path.write_bytes(manifest_bytes(value))
    else:
        path.write_text(json.dumps(value))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, a critic, policies and a run."""
    folder = tmp_path_factory.mktemp("made")
    make_file().save(folder / "critic")
    policies = PoliciesFile(make_policies(box_spec(), 2), EnvReference("LQR-v0"))
    policies.save(folder / "policies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        for argv in (
            ("collect", "LQR-v0", "--dataset", "lab/lqr-v0", "--episodes", 2, "--seed", 0),
            (*TRAIN, "--steps", 60, "--run", folder / "run"),
        ):
            assert pbvf(*argv).code == 0
    return folder


TRAIN = ("train-online", "LQR-v0", "--critic", "pssvf", "--seed", 0, "--evaluations", 0)
FILES: dict[str, tuple[Callable[[Path, int], None], tuple[object, ...]]] = {
    "critic": (
        lambda path, v: restated("critic", path / "critic", v),
        ("synthesize", "critic", "--out", "new", "--no-evaluate", "--seed", 0),
    ),
    "policies": (
        lambda path, v: restated("policies", path / "policies", v),
        ("evaluate", "policies"),
    ),
    "run": (
        lambda path, v: restated_json(path / "run/config.json", v),
        (*TRAIN, "--steps", 60, "--run", "run"),
    ),
    "checkpoint": (
        lambda path, v: restated("checkpoint", path / "run/checkpoint.safetensors", v),
        (*TRAIN, "--steps", 120, "--run", "run"),
    ),
    "dataset": (
        lambda path, v: restated_json(path / "lab/lqr-v0/manifest.json", v),
        ("fit-critic", "lab/lqr-v0", "--critic", "psvf", "--out", "new", "--seed", 0),
    ),
}


@pytest.mark.parametrize(("version", "code"), [(FORMAT_VERSION + 1, 5), (FORMAT_VERSION, 3)])
@pytest.mark.parametrize("kind", FILES)
def test_unknown_fields_through_the_command_line(
    made: Path, kind: str, version: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    change, argv = FILES[kind]
    change(folder, version)
    ran = pbvf(*argv, "-q")
    assert ran.code == code, ran.err
    if code == 5:
        assert f"pbvf-offline that reads version {version}" in ran.err
    else:
        assert "mood" in ran.err
    assert not (folder / "new").exists()

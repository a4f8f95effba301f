"""Bundles: whatever is in one was checked as what it says it is, and nothing else is taken."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli_tools import content
from hostile import BOX_SPEC, rewrite_manifest
from libtools import make_policies
from pbvf_datasets.format.bundle import MAX_FILES
from pbvf_datasets.format.manifest import file_entry
from pbvf_datasets.share.signing import check_signature, make_keys, sign_dataset
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    IncompatibleError,
    PbvfError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.lock import locked
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.policies.files import PoliciesFile
from pbvf_runs.share import bundles
from pbvf_runs.share.lineage import Thing, lineage
from pbvf_runs.train import train_run
from run_tools import Stop, run_config, stop_at
from share_tools import NAME, bundled, licensed, loose, names

ENTRY = {"size": 1, "sha256": "0" * 64}


@pytest.fixture(scope="module")
def made_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundled(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def theirs(made_bundle: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(made_bundle, tmp_path / "theirs"))


@pytest.fixture
def files(made_bundle: Path) -> list[Path]:
    """What it was made of, read only."""
    folder = made_bundle.parent.parent / "loose"
    return [folder / name for name in ("toy-v0.safetensors", "grown", "run")]


def seal(folder: Path) -> None:
    """Make the manifest fit the files again, as an attacker would."""

    def change(manifest: dict) -> None:
        manifest["files"] = {name: file_entry(folder / name) for name in manifest["files"]}

    rewrite_manifest(folder, change)


# ------------------------------------------------------------------------- what is in one


def test_every_file_is_in_it_as_it_was(made_bundle: Path, files: list[Path]) -> None:
    there = content(made_bundle)
    for file in files[:2]:
        assert there.pop(file.name) == file.read_bytes()
    run = {name: data for name, data in content(files[2]).items() if "tensorboard" not in name}
    assert {k.removeprefix("run/"): v for k, v in there.items() if k.startswith("run/")} == run
    assert {k for k in there if not k.startswith("run/")} == {"README.md", "manifest.json"}
    assert bundles.verify_bundle(made_bundle).status == "intact"


def test_equal_input_equal_bytes_wherever_it_lies(
    made_bundle: Path, files: list[Path], tmp_path: Path
) -> None:
    for file in files:
        (shutil.copytree if file.is_dir() else shutil.copy)(file, tmp_path / file.name)
    (tmp_path / "run/tensorboard/events.of.another.host").write_bytes(b"x")
    moved = [tmp_path / file.name for file in files]
    about = {"license": "CC-BY-4.0", "authors": ["A. Nobody"]}
    bundles.push(moved, str(tmp_path / "again"), **about)
    assert content(tmp_path / "again") == content(made_bundle)


def test_a_stopped_run_goes_on_elsewhere_to_the_same_bytes(tmp_path: Path) -> None:
    config = run_config(evaluations=2)
    train_run(config, tmp_path / "whole", 60)
    with pytest.raises(Stop):
        train_run(config, tmp_path / "run", 60, tick=stop_at(30))
    bundles.push([tmp_path / "run"], str(tmp_path / "there"), license="MIT")
    assert bundles.verify_bundle(tmp_path / "there").status == "intact"
    train_run(config, tmp_path / "there/run", 60)
    logs = ("tensorboard",)
    kept = {k: v for k, v in content(tmp_path / "whole").items() if not k.startswith(logs)}
    gone_on = {k: v for k, v in content(tmp_path / "there/run").items() if not k.startswith(logs)}
    assert gone_on == kept
    train_run(config, tmp_path / "whole", 120)  # a finished one is extended too
    train_run(config, tmp_path / "there/run", 120)
    assert (
        content(tmp_path / "there/run")["critic.safetensors"]
        == (content(tmp_path / "whole")["critic.safetensors"])
    )


def test_a_run_that_goes_on_is_refused(files: list[Path], tmp_path: Path) -> None:
    with locked(files[2]), pytest.raises(ConflictError, match="another process") as error:
        bundles.pack([files[2]], tmp_path / "x.tar")
    assert error.value.exit_code == 7
    assert names(tmp_path) == []


def test_what_cannot_be_in_a_bundle(
    made: Path, made_bundle: Path, files: list[Path], tmp_path: Path
) -> None:
    def refused(*paths: Path, words: str, **options: object) -> None:
        with pytest.raises(UsageError, match=words) as error:
            bundles.pack(paths, tmp_path / "x.tar", **options)
        assert error.value.exit_code == 2

    (tmp_path / "notes").write_text("mine")
    (tmp_path / "other").mkdir()
    shutil.copy(files[0], tmp_path / "other" / files[0].name)
    shutil.copy(files[0], tmp_path / "other/manifest.json")
    bundles.pack([files[0]], tmp_path / "good.tar")
    refused(tmp_path / "notes", words="none of this project's files")
    refused(files[2] / "checkpoint.safetensors", words="folder of its run")
    refused(tmp_path / "good.tar", words="unpack it first")
    refused(made, files[0], words="share each dataset by itself")
    refused(made_bundle, files[0], words="share each bundle by itself")
    refused(files[0], tmp_path / "other" / files[0].name, words="rename one of the two")
    shutil.copy(files[1], tmp_path / "other/GROWN")
    refused(files[1], tmp_path / "other/GROWN", words="is called GROWN, like .*grown; rename one")
    refused(tmp_path / "other/manifest.json", words="no name for a part")
    refused(tmp_path / "nothing", words="no")
    refused(words="nothing was named")
    refused(made, words="stay as they are", license="MIT")
    refused(made_bundle, words="stay as they are", license="MIT")
    assert names(tmp_path) == ["good.tar", "notes", "other"]


def test_a_full_temporary_folder_is_named_and_not_what_is_copied(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ResourceError, match="TMPDIR") as error:
        bundles.pack(files[:1], tmp_path / "x.tar")
    assert str(error.value.where).startswith(f"{tmp_path}/pbvf-temporary-")


def test_a_damaged_file_is_named_where_it_is_and_nothing_goes_out(
    files: list[Path], tmp_path: Path
) -> None:
    spoiled = tmp_path / "critic.safetensors"
    data = bytearray(files[0].read_bytes())
    data[-1] ^= 1
    spoiled.write_bytes(data)
    run = Path(shutil.copytree(files[2], tmp_path / "run"))
    (run / "policy.safetensors").unlink()
    for path, where in ((spoiled, spoiled), (run, run / "policy.safetensors")):
        for send in (
            lambda p=path: bundles.pack([p], tmp_path / "x.tar"),
            lambda p=path: bundles.push([p], str(tmp_path / "out"), license="MIT"),
        ):
            with pytest.raises(DamagedError) as error:
                send()
            assert error.value.where == str(where)
    assert names(tmp_path) == ["critic.safetensors", "run"]


def test_it_needs_a_licence_and_must_not_give_the_machine_away(
    files: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"licence.*--license"):
        bundles.push(files[:1], str(tmp_path / "out"))
    private = tmp_path / "private"
    told = {"settings": {"file": "/home/alice/secret"}, "host": "box7"}
    PoliciesFile(make_policies(BOX_SPEC, 1), None, told).save(private)
    with pytest.raises(UsageError, match=r"'box7' .*path '/home/alice/secret'"):
        bundles.push([private], str(tmp_path / "out"), license="MIT")
    with pytest.raises(UsageError, match="user name 'alice'"):
        bundles.push(files[:1], str(tmp_path / "out"), license="MIT", authors=["alice"])
    run = Path(shutil.copytree(files[2], tmp_path / "run"))
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"kind": "note", "step": 60, "text": "on box7"}\n')
    with pytest.raises(UsageError, match=r"host name 'box7' \(run/metrics.jsonl\)"):
        bundles.push([run], str(tmp_path / "out"), license="MIT")
    assert not (tmp_path / "out").exists()
    allow = ["/home/alice/secret", "alice", "box7"]
    bundles.push([private], str(tmp_path / "out"), license="MIT", allow=allow)


# ------------------------------------------------------------------------------ the card


def test_the_card_is_what_the_hub_reads_and_says_what_is_known(
    made_bundle: Path, files: list[Path]
) -> None:
    yaml = pytest.importorskip("yaml")
    card = (made_bundle / "README.md").read_text()
    header = yaml.safe_load(card.split("---\n", 2)[1])
    assert (header["license"], header["library_name"]) == ("cc-by-4.0", "pbvf-offline")
    assert header["pipeline_tag"] == "reinforcement-learning"
    assert "offline-rl" in header["tags"]
    assert "datasets" not in header
    (source,) = lineage([Thing("critic", "critic", files[0])])
    for words in (
        "# toy-v0",
        f"| fitted to | `{source.source.digest}` | dataset or run |",
        "| `toy-v0.safetensors (psvf)` |",  # what the policies were grown through
        "| authors | A. Nobody |",
        # Nothing is made inside a bundle.
        "pbvf synthesize toy-v0.safetensors --from-scratch 5 --out ../grown-toy-v0.safetensors",
        "pbvf evaluate run/policy.safetensors --env MODULE:ToyVaried-v0 --episodes 10",
        "| steps | `60` |",
        "| measured with | `--evaluations 2 --evaluation-episodes 2` |",
    ):
        assert words in card, words


def test_the_card_names_datasets_by_their_ids_if_they_are_the_ones(
    files: list[Path], tmp_path: Path
) -> None:
    yaml = pytest.importorskip("yaml")
    folder = licensed(tmp_path / "root")
    digest = json.loads((folder / "manifest.json").read_text())["digest"]
    image, tensors = decode("critic", files[0].read_bytes(), "x")
    critic = tmp_path / "critic"
    critic.write_bytes(encode("critic", {**image, "dataset": digest}, tensors))
    bundles.push([critic], str(tmp_path / "out"), license="MIT", datasets=[folder])
    card = (tmp_path / "out/README.md").read_text()
    assert yaml.safe_load(card.split("---\n", 2)[1])["datasets"] == [NAME]
    assert f"| fitted to | `{digest}` | `{NAME}` |" in card
    with pytest.raises(IncompatibleError, match="nothing that is to be shared was made from"):
        bundles.push(files[:1], str(tmp_path / "no"), license="MIT", datasets=[folder])


HOSTILE = "x`|\n\n# Big\n\n<script>alert(1)</script>[a](javascript:b)\x1b[31m---\u202e"


def test_the_card_leaves_the_module_to_its_reader(tmp_path: Path) -> None:
    file = PoliciesFile(make_policies(BOX_SPEC, 1), EnvReference("Toy-v0", "toyenv"))
    file.save(tmp_path / "p")
    bundles.push([tmp_path / "p"], str(tmp_path / "out"), license="MIT")
    card = (tmp_path / "out/README.md").read_text("utf-8")
    assert "pbvf evaluate p --env MODULE:Toy-v0 --episodes 10\n" in card
    assert "`MODULE` is left to you: to name a module is to import it" in card


def test_what_a_file_says_has_no_effect_on_its_card(tmp_path: Path) -> None:
    environment = EnvReference(HOSTILE.replace(":", ""), HOSTILE, withheld=(HOSTILE,))
    origin = {"made_by": HOSTILE, "settings": {HOSTILE: HOSTILE, "steps": [HOSTILE]}}
    policies = make_policies(BOX_SPEC, 1)
    result = {HOSTILE: [1.0], "huge": [10**400]}
    PoliciesFile(policies, environment, {**origin, "result": result}).save(tmp_path / "p")
    bundles.push([tmp_path / "p"], str(tmp_path / "out"), license="MIT", allow=["/script"])
    card = (tmp_path / "out/README.md").read_text("utf-8")
    assert "\x1b" not in card
    assert "\u202e" not in card
    for line in card.splitlines():
        outside = "".join(line.split("`")[::2])
        assert line.count("`") % 2 == 0 or line.startswith("```")
        assert "script" not in outside, line
        assert not line.startswith(("# Big", "---x"))
    assert card.count("\n# ") == 1


# ----------------------------------------------------------------------------- hostile ones


def put(folder: Path, name: str, data: bytes) -> None:
    """Replace a file, and make the manifest fit."""
    (folder / name).write_bytes(data)
    seal(folder)


def listed(folder: Path, name: str) -> None:
    """Add a file, and list it."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"x")
    rewrite_manifest(folder, lambda m: m["files"].update({name: file_entry(folder / name)}))


def parts(change: Callable[[list], object]) -> Callable[[Path], object]:
    return lambda folder: rewrite_manifest(folder, lambda m: change(m["provenance"]["parts"]))


def entry(name: str) -> Callable[[Path], object]:
    return lambda folder: rewrite_manifest(folder, lambda m: m["files"].update({name: ENTRY}))


def evil_policies(folder: Path) -> None:
    """Name an environment that could only be built by an import."""
    policies = make_policies(BOX_SPEC, 1)
    put(folder, "grown", PoliciesFile(policies, EnvReference("evil:Evil-v0"), {}).encode())


def nan_critic(folder: Path) -> None:
    content, tensors = decode("critic", (folder / "toy-v0.safetensors").read_bytes(), "x")
    tensors = {name: np.full_like(array, np.nan) for name, array in tensors.items()}
    put(folder, "toy-v0.safetensors", encode("critic", content, tensors))


def other_run(folder: Path) -> None:
    config = json.loads((folder / "run/config.json").read_text())
    config["settings"]["seed"] += 1
    put(folder, "run/config.json", json.dumps(config).encode())


CASES: dict[str, tuple[Callable[[Path], object], type[PbvfError], str]] = {
    "a pickle as a critic": (
        lambda f: put(f, "toy-v0.safetensors", pickle.dumps([1])),
        UnsafeError,
        "pickle",
    ),
    "policies called a critic": (
        parts(lambda p: p[1].update(kind="critic")),
        DamagedError,
        "is a policies, and the manifest says critic",
    ),
    "an environment to import": (evil_policies, UnsafeError, "module to be imported"),
    "a critic of NaN": (nan_critic, DamagedError, "toy-v0"),
    "a run with another configuration": (other_run, DamagedError, "run"),
    "a run without its policy": (
        lambda f: rewrite_manifest(f, lambda m: m["files"].pop("run/policy.safetensors")),
        DamagedError,
        "policy.safetensors",
    ),
    "a program in a run": (lambda f: listed(f, "run/evil.py"), UnsafeError, "no run holds"),
    "events of a host": (lambda f: listed(f, "run/tensorboard/events"), UnsafeError, "no run"),
    "a file of no part": (lambda f: listed(f, "evil.py"), UnsafeError, "no file of the bundle"),
    "a folder in place of a file": (
        lambda f: listed(f, "run/config.json.d/x"),
        UnsafeError,
        "no run holds",
    ),
    "a file below a file": (entry("grown/x"), UnsafeError, "no file of the bundle"),
    "a file below a critic": (
        lambda f: rewrite_manifest(
            f, lambda m: m["files"].update({"grown/x": m["files"].pop("grown")})
        ),
        UnsafeError,
        "which no policies holds",
    ),
    "a path that leads out": (entry("run/../../evil"), UnsafeError, "outside its folder"),
    "an absolute path": (entry("/tmp/evil"), UnsafeError, "outside its folder"),
    "backslashes": (entry("run\\x"), UnsafeError, "no file of the bundle"),
    "a hidden file": (entry("run/.evil"), UnsafeError, "no file of the bundle"),
    "an empty component": (entry("run//x"), UnsafeError, "no file of the bundle"),
    "a file too large": (
        lambda f: rewrite_manifest(f, lambda m: m["files"]["grown"].update(size=2**60)),
        UnsafeError,
        "limit",
    ),
    "a negative size": (
        lambda f: rewrite_manifest(f, lambda m: m["files"]["grown"].update(size=-1)),
        UnsafeError,
        "limit",
    ),
    "too many files": (
        lambda f: rewrite_manifest(
            f, lambda m: m["files"].update({f"run/x{n}": ENTRY for n in range(MAX_FILES)})
        ),
        UnsafeError,
        "more than",
    ),
    "an unknown kind": (
        parts(lambda p: p[0].update(kind="wizard")),
        IncompatibleError,
        "kind that this program does not know",
    ),
    "a dataset as a part": (
        parts(lambda p: p[0].update(kind="dataset")),
        IncompatibleError,
        "kind",
    ),
    "a part twice": (parts(lambda p: p.append(p[0])), DamagedError, "malformed"),
    "no parts": (parts(lambda p: p.clear()), DamagedError, "malformed"),
    "a part without files": (
        parts(lambda p: p.append({"name": "x", "kind": "critic"})),
        DamagedError,
        "lists no file of x",
    ),
    "a part called like the manifest": (
        parts(lambda p: p[0].update(name="manifest.json")),
        DamagedError,
        "malformed",
    ),
    "a part that leads out": (parts(lambda p: p[0].update(name="..")), DamagedError, "malformed"),
    "a part of the wrong form": (parts(lambda p: p[0].update(more=1)), DamagedError, "malformed"),
    "another format version": (
        lambda f: rewrite_manifest(f, lambda m: m.update(version=99)),
        IncompatibleError,
        "upgrade",
    ),
    "provenance of the wrong form": (
        lambda f: rewrite_manifest(f, lambda m: m["provenance"].update(authors=[1])),
        DamagedError,
        "provenance",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_bundle_gets_no_name(name: str, theirs: Path, tmp_path: Path) -> None:
    spoil, kind, words = CASES[name]
    spoil(theirs)
    with pytest.raises(kind, match=words) as error:
        bundles.pull(str(theirs), str(tmp_path / "here/bundle"))
    assert str(tmp_path / "here") not in str(error.value)
    assert names(tmp_path / "here") == []
    found = bundles.verify_bundle(theirs)
    if "limit" not in words:  # sizes are limited where files are fetched
        assert isinstance(found.error, kind)
    assert found.status in ("unsafe", "damaged", "unverified")
    with pytest.raises(PbvfError):
        bundles.pack([theirs], tmp_path / "x.tar")
    assert not (tmp_path / "x.tar").exists()


@pytest.mark.parametrize("name", ["grown", "run/config.json", "manifest.json", "README.md", "run"])
def test_links_and_devices_are_unsafe(name: str, theirs: Path, tmp_path: Path) -> None:
    shutil.move(theirs / name, tmp_path / "elsewhere")
    (theirs / name).symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(UnsafeError):
            bundles.pull(str(theirs), str(tmp_path / "here/bundle"))
        assert not (tmp_path / "here/bundle").exists()
        if name != "manifest.json":  # else it does not say that it is a bundle
            assert bundles.verify_bundle(theirs).status == "unsafe"
        (theirs / name).unlink()
        if name == "run":
            return  # a folder is no device
        os.mkfifo(theirs / name)
    (theirs / name).unlink()
    (theirs / name).mkdir()
    with pytest.raises(UnsafeError, match="not a regular file"):
        bundles.pull(str(theirs), str(tmp_path / "here/bundle"))


def test_links_that_others_put_where_it_arrives_lead_nowhere(theirs: Path, tmp_path: Path) -> None:
    mine, arriving = tmp_path / "mine", tmp_path / "here/.bundle.arriving"
    mine.mkdir()
    (mine / "file").write_text("mine")
    digest = file_entry(theirs / "grown")["sha256"]
    for name in ("build", "build/run", "build/run/episodes"):
        (arriving / name).parent.mkdir(parents=True)
        (arriving / name).symlink_to(mine)
        (arriving / f"part-{digest}").hardlink_to(mine / "file")
        bundles.pull(str(theirs), str(tmp_path / "here/bundle"))
        assert content(mine) == {"file": b"mine"}
        assert content(tmp_path / "here/bundle") == content(theirs)
        shutil.rmtree(tmp_path / "here")


def test_nothing_is_sent_to_a_dangling_link(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ConflictError, match="a file or a link"):
        bundles.push([theirs], str(tmp_path / "link"))


def test_what_does_not_belong_there_is_named_and_a_link_is_unsafe(theirs: Path) -> None:
    (theirs / "notes.txt").write_text("mine")
    (theirs / "drafts").mkdir()
    found = bundles.verify_bundle(theirs)
    assert (found.status, len(found.warnings)) == ("intact", 1)
    assert "does not belong there and was not checked: drafts, notes.txt" in found.warnings[0]
    for make in (lambda path: path.symlink_to("grown"), os.mkfifo):
        make(theirs / "more")
        found = bundles.verify_bundle(theirs)
        assert (found.status, str(found.error).split(":")[0]) == ("unsafe", str(theirs / "more"))
        (theirs / "more").unlink()


def test_no_flipped_byte_of_a_bundle_goes_unnoticed(theirs: Path) -> None:
    rng = random.Random(0)
    for name, data in content(theirs).items():
        if name == "README.md":
            continue
        for at in {0, len(data) - 1, *(rng.randrange(len(data)) for _ in range(3))}:
            spoiled = bytearray(data)
            spoiled[at] ^= 1 << rng.randrange(8)
            (theirs / name).write_bytes(spoiled)
            assert bundles.verify_bundle(theirs).status in ("damaged", "unsafe", "unverified")
        (theirs / name).write_bytes(data)
    (theirs / "README.md").write_text("mine")
    found = bundles.verify_bundle(theirs)
    assert (found.status, len(found.warnings)) == ("intact", 1)
    assert "edited" in found.warnings[0]


def test_a_signature_goes_along_and_can_be_asked_for(
    theirs: Path, made_bundle: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    keys, other = make_keys(tmp_path / "lab"), make_keys(tmp_path / "other")
    sign_dataset(theirs, keys.private)
    assert check_signature(theirs, keys.public).fingerprint == keys.fingerprint
    bundles.pack([theirs], tmp_path / "x.tar")
    got = bundles.unpack(tmp_path / "x.tar", str(tmp_path / "here"), public_key=keys.public)
    assert got.signed_by == keys.fingerprint
    assert content(tmp_path / "here") == content(theirs)
    for source in (str(theirs), str(made_bundle)):
        with pytest.raises(UnsafeError, match="sign"):
            bundles.pull(source, str(tmp_path / "no"), public_key=other.public)
    rewrite_manifest(theirs, lambda m: m["provenance"].update(license="MIT"))
    with pytest.raises(UnsafeError, match="another manifest"):
        check_signature(theirs, keys.public)


def test_several_runs_go_each_by_its_name(tmp_path: Path) -> None:
    for seed in (0, 1):
        train_run(run_config(evaluations=0, seed=seed), tmp_path / f"runs/seed-{seed}", 20)
    bundles.push([tmp_path / "runs"], str(tmp_path / "out"), license="MIT")
    assert {name.partition("/")[0] for name in content(tmp_path / "out")} == {
        "README.md",
        "manifest.json",
        "seed-0",
        "seed-1",
    }


def test_loose_files_of_other_names_get_plain_ones(tmp_path: Path) -> None:
    critic, *_ = loose(tmp_path / "loose")
    odd = critic.rename(critic.with_name(".mon critic é.safetensors"))
    bundles.push([odd], str(tmp_path / "out"), license="MIT")
    assert "mon-critic-.safetensors" in content(tmp_path / "out")

"""``pbvf push``, ``pull``, ``pack`` and ``unpack`` of everything that this project writes."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from cli_tools import content, make, pbvf, run_process
from pbvf_datasets.share.privacy import Machine
from pbvf_offline.io.lock import locked
from share_tools import SOMEBODY, names

ENV = "toyenv:ToyDrift-v0"
TRAIN = f"train-online {ENV} --critic pssvf --evaluations 2 --seed 0"
LICENCE = ("--license", "CC-BY-4.0", "--author", "A. Nobody")


@pytest.fixture(scope="module")
def made(drift: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share") / "all"
    shutil.copytree(drift, folder)
    return make(
        folder,
        f"{TRAIN} --steps 200 --run one",
        f"train-online {ENV} --critic pssvf --evaluations 0 --steps 60 --run many --seeds 3-4",
        "policies export grown --index 0 --out weights",
        "policies export grown --index 0 --format onnx --out graph",
        "dataset merge lab/drift-v0 --dataset lab/free-v0 --license MIT",
    )


@pytest.fixture
def at(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "datasets"))
    monkeypatch.setattr(Machine, "this", classmethod(lambda cls: SOMEBODY))
    monkeypatch.chdir(made)
    return made


def kept(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of a run without the logs that name its host."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    return {
        f"{path.name}/{name}": data
        for name, data in content(path).items()
        if not name.startswith("tensorboard")
    }


@pytest.mark.parametrize(
    "name", ["theta", "actions", "good", "grown", "deep", "one", "weights", "graph"]
)
def test_every_kind_goes_there_and_back(name: str, at: Path, tmp_path: Path) -> None:
    there, back, file = tmp_path / "stick/it", tmp_path / "back", tmp_path / "it.tar"
    pushed = pbvf("push", name, there, *LICENCE, "--json", "-q").ok().json
    assert pushed["bundle"] == name
    assert pbvf("push", name, there, *LICENCE, "--json", "-q").ok().json["already_complete"]
    pulled = pbvf("pull", there, back, "--json", "-q").ok().json
    assert (pulled["bundle"], pulled["path"]) == (name, str(back))
    assert pulled["digest"] == pushed["digest"]
    packed = pbvf("pack", name, file, *LICENCE, "--json", "-q").ok().json
    assert packed["digest"] == pushed["digest"]
    unpacked = pbvf("unpack", file, "--out", tmp_path / "out", "--json", "-q").ok().json
    assert unpacked["bytes"] == pulled["bytes"]
    want = kept(at / name)
    for folder in (there, back, tmp_path / "out"):
        found = content(folder)
        assert {k: v for k, v in found.items() if k in want} == want
        assert set(found) - set(want) == {"README.md", "manifest.json"}
        assert pbvf("verify", folder, "--json", "-q").ok().json["status"] == "intact"
    assert pbvf("verify", file, "--json", "-q").ok().json["status"] == "intact"
    # What came goes on as it is, to the byte.
    pbvf("pack", back, tmp_path / "again.tar", "-q").ok()
    assert (tmp_path / "again.tar").read_bytes() == file.read_bytes()


def test_a_dataset_goes_as_its_own_commands_send_it(at: Path, tmp_path: Path) -> None:
    for command in ((), ("dataset",)):
        pbvf(*command, "pack", "lab/free-v0", tmp_path / f"{len(command)}.tar", "-q").ok()
        pbvf(*command, "push", "lab/free-v0", tmp_path / f"{len(command)}", "-q").ok()
    assert (tmp_path / "0.tar").read_bytes() == (tmp_path / "1.tar").read_bytes()
    whole = content(at / "datasets/lab/free-v0")
    assert content(tmp_path / "0") == content(tmp_path / "1") == whole
    got = pbvf("unpack", tmp_path / "1.tar", "--out", "lab/got-v0", "--json", "-q").ok().json
    assert got["dataset"] == "lab/got-v0"
    got = pbvf("pull", tmp_path / "1", "lab/other-v0", "--json", "-q").ok().json
    assert content(Path(got["path"])) == whole
    shutil.rmtree(at / "datasets/lab/got-v0")
    shutil.rmtree(at / "datasets/lab/other-v0")


def test_a_finished_run_is_extended_elsewhere_to_the_same_bytes(at: Path, tmp_path: Path) -> None:
    pbvf("pack", "one", tmp_path / "one.tar", "-q").ok()
    pbvf("unpack", tmp_path / "one.tar", "--out", tmp_path / "got", "-q").ok()
    shutil.copytree(at / "one", tmp_path / "here")
    shutil.copytree(tmp_path / "got/one", tmp_path / "there")
    for run in ("there", "here"):
        pbvf(*TRAIN.split(), "--steps", "400", "--run", tmp_path / run, "-q").ok()
    bytes_here = {k.partition("/")[2]: v for k, v in kept(tmp_path / "here").items()}
    bytes_there = {k.partition("/")[2]: v for k, v in kept(tmp_path / "there").items()}
    assert bytes_there == bytes_here


def test_several_things_go_in_one_bundle(at: Path, tmp_path: Path) -> None:
    pbvf("push", "theta", "grown", "good", "many", tmp_path / "all", *LICENCE, "-q").ok()
    shown = pbvf("info", tmp_path / "all", "--json", "-q").ok().json
    assert [(part["name"], part["kind"]) for part in shown["parts"]] == [
        ("theta", "critic"),
        ("grown", "policies"),
        ("good", "model"),
        ("seed-3", "run"),
        ("seed-4", "run"),
    ]
    assert (shown["license"], shown["authors"]) == ("CC-BY-4.0", ["A. Nobody"])
    pbvf("evaluate", tmp_path / "all").refused(2, "all/grown (policies) or ", "all/seed-4 (a run)")
    ours = f"name {tmp_path}/all/grown (policies) or {tmp_path}/all/seed-3/policy.safetensors (pol"
    pbvf("policies", "info", tmp_path / "all").refused(2, ours)
    fit = ("fit-critic", "--critic", "pssvf", "--out", tmp_path / "x")
    pbvf(*fit, tmp_path / "all").refused(2, f"name {tmp_path}/all/seed-3 (a run) or ")
    pbvf("synthesize", tmp_path / "all/theta", "--out", tmp_path / "new", "--steps", 2, "-q").ok()


def test_the_commands_of_a_card_name_what_is_there_and_no_file_twice(
    at: Path, tmp_path: Path
) -> None:
    things = ("theta", "actions", "good", "one")
    pbvf("push", *things, tmp_path / "all", *LICENCE, "--dataset", "lab/drift-v0", "-q").ok()
    card = (tmp_path / "all/README.md").read_text()
    commands = [shlex.split(line) for line in card.splitlines() if line.startswith("pbvf ")]
    for critic in ("theta", "actions"):
        grown = f"../grown-{critic}"
        made = f"pbvf synthesize {critic} --from-scratch 5 --model good --out {grown}".split()
        assert made in commands
        assert f"pbvf predict {critic} {grown} --model good".split() in commands
    assert any(c[:3] == ["pbvf", "fit-critic", "lab/drift-v0"] for c in commands)
    outs = [c[c.index("--out") + 1] for c in commands if "--out" in c]
    assert len(outs) == len(set(outs)) == 4
    # No file says whether what equals a default was given: a critic's kind has none.
    rows = {line for line in card.splitlines() if line.startswith("| `")}
    assert {"| `kind` | `psvf` | chosen |", "| `hidden` | `[8]` | chosen |"} <= rows
    assert {"| `huber` | `0.1` | default |", "| `recovery` | `0.2` | default |"} <= rows
    assert "| loss | `none` |" not in card  # of so few updates none was recorded
    assert "| setting | value | which is |" in card


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (("push", "theta", "OUT"), 2, "licence"),
        (("push", "theta", "https://example.org/x", *LICENCE), 2, "pull alone"),
        (("push", "theta", "memory://x", *LICENCE), 2, "would be lost when it ends"),
        (("push", "none", "OUT", *LICENCE), 2, "none: does not exist"),
        (("push", "lab/free-v0", "theta", "OUT", *LICENCE), 2, "each dataset by itself"),
        (("push", "lab/free-v0", "OUT", *LICENCE), 2, "dataset set' gives"),
        (("push", "theta", "OUT", "--license", ""), 2, "--license"),
        (("pack", "one/checkpoint.safetensors", "FILE"), 2, "the folder of its run"),
        (("pack", "datasets/lab/drift-v0/README.md", "FILE"), 2, "a part of a dataset"),
        (("pack", "theta", "grown", "theta", "FILE"), 2, "rename one of the two"),
        (("pack", "theta", "FILE", "--dataset", "lab/free-v0"), 5, "was made from this dataset"),
        (("pack", "theta", "theta"), 7, "exists with other content"),
        (("pull", "/nowhere", "OUT"), 2, "nothing that was pushed"),
        (("unpack", "theta"), 3, "no plain tar file"),
        (("dataset", "push", "theta", "OUT"), 2, "this is a critic file; a dataset"),
    ],
)
def test_errors_are_one_line(
    command: tuple[str, ...], code: int, words: str, at: Path, tmp_path: Path
) -> None:
    given = {"OUT": tmp_path / "out", "FILE": tmp_path / "file.tar"}
    pbvf(*(given.get(word, word) for word in command)).refused(code, words)
    assert names(tmp_path) == []


def test_a_bundle_is_no_dataset_and_commands_say_so(at: Path, tmp_path: Path) -> None:
    pbvf("push", "theta", tmp_path / "it", *LICENCE, "-q").ok()
    pbvf("pack", "theta", tmp_path / "it.tar", "-q").ok()
    for command in (
        ("push", tmp_path / "it", tmp_path / "out"),
        ("pack", tmp_path / "it", tmp_path / "out.tar"),
        ("pull", tmp_path / "it", "lab/x-v0"),
        ("unpack", tmp_path / "it.tar", "lab/x-v0"),
    ):
        pbvf("dataset", *command).refused(2, "is a bundle", "'pbvf push'")
    for command in (("dataset", "info"), ("fit-critic", "--critic", "psvf", "--out", "x")):
        pbvf(*command, tmp_path / "it", "-q").refused(2, "not a dataset folder but a bundle")
    none = "it holds no policies and no run; 'pbvf info' tells what it holds"
    pbvf("evaluate", tmp_path / "it").refused(2, none)
    critic = (
        f"{tmp_path}/it: this is not a critic file but a bundle; name {tmp_path}/it/theta (critic)"
    )
    for command in (
        ("synthesize", tmp_path / "it", "--out", "x"),
        ("predict", tmp_path / "it", "grown"),
        ("evaluate", "grown", "--critic", tmp_path / "it"),
    ):
        pbvf(*command).refused(2, critic)
    for command in (
        ("policies", "info", tmp_path / "it"),
        ("synthesize", "theta", "--from", tmp_path / "it", "--out", "x"),
        ("collect", ENV, "--base", tmp_path / "it", "--dataset", "lab/x-v0"),
        ("collect", ENV, "--policies", tmp_path / "it", "--dataset", "lab/x-v0"),
        ("train-online", ENV, "--critic", "pssvf", "--base", tmp_path / "it", "--run", "x"),
        ("dataset", "tag", "lab/free-v0", "--policies", tmp_path / "it", "--dataset", "lab/x-v0"),
    ):
        pbvf(*command).refused(2, "not a policies file but a bundle; it holds no policies and no")
    model = "not a model file but a bundle; it holds no model; 'pbvf info'"
    pbvf("predict", "theta", "grown", "--model", tmp_path / "it").refused(2, model)
    assert names(tmp_path) == ["it", "it.tar"]


def test_a_run_that_another_process_writes_is_exit_7(at: Path, tmp_path: Path) -> None:
    with locked(at / "one"):
        pbvf("pack", "one", tmp_path / "x.tar").refused(7, "one: another process")


def test_another_bundle_there_is_a_conflict_and_replaced_when_asked(
    at: Path, tmp_path: Path
) -> None:
    pbvf("push", "theta", "one", tmp_path / "it", *LICENCE, "-q").ok()
    pbvf("push", "grown", tmp_path / "it", *LICENCE).refused(7, "another bundle is there")
    pbvf("push", "grown", tmp_path / "it", *LICENCE, "--overwrite", "-q").ok()
    assert names(tmp_path / "it") == ["README.md", "grown", "manifest.json"]
    (tmp_path / "it/notes").write_text("mine")
    pbvf("push", "theta", tmp_path / "it", *LICENCE, "--overwrite").refused(7, "'notes'")
    assert (tmp_path / "it/notes").read_text() == "mine"


def test_packing_a_dataset_imports_no_torch(at: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pbvf_cli.__main__ import main\n"
        f"assert main(['pack', 'lab/free-v0', {str(tmp_path / 'x.tar')!r}, '--json']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    assert run_process(code=code).ok().json["dataset"] == "lab/free-v0"

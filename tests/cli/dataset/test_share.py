"""``pbvf dataset push``, ``pull``, ``pack``, ``unpack`` and the commands of signatures."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cli_tools import content, pbvf, start
from hostile import reseal
from pbvf_cli.shared.terminal import progress
from pbvf_datasets.share.privacy import Machine
from share_tools import NAME, SOMEBODY, licensed, serving, without_pauses

DATA = "data/main_data.hdf5"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    monkeypatch.setattr(Machine, "this", classmethod(lambda cls: SOMEBODY))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return licensed(tmp_path_factory.mktemp("made"))


def digest(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_bytes())["digest"]


def test_push_and_pull(made: Path, root: Path, tmp_path: Path) -> None:
    there = tmp_path / "stick/toy"
    size = sum(map(len, content(made).values()))
    ran = pbvf("dataset", "push", made, there, "--json")
    assert (ran.code, ran.err) == (0, "")
    assert {k: v for k, v in ran.json.items() if k != "seconds"} == {
        "dataset": NAME,
        "remote": str(there),
        "digest": digest(made),
        "files": {name: len(data) for name, data in content(made).items()},
        "bytes": size,
        "sent": size,
        "already_complete": False,
    }
    ran = pbvf("dataset", "pull", there, "lab/mine-v0", "--json").ok()
    assert ran.err.startswith(
        f"note: its files call it {NAME}; stock Minari loads it as lab/mine-v0"
    )
    assert {k: v for k, v in ran.json.items() if k not in ("seconds", "bytes")} == {
        "dataset": "lab/mine-v0",
        "path": str(root / "lab/mine-v0"),
        "remote": str(there),
        "digest": digest(made),
        "fetched": size,
        "signed_by": None,
        "already_complete": False,
    }
    assert content(root / "lab/mine-v0") == content(made)
    for command in (("push", made, there), ("pull", there, "lab/mine-v0")):
        ran = pbvf("dataset", *command).ok()
        assert "already complete" in ran.out
        assert pbvf("dataset", *command, "--json").json["already_complete"] is True


@pytest.mark.parametrize("place", ["memory://x", "MEMORY://x"])
def test_the_memory_of_a_command_is_no_place_to_push_to(made: Path, place: str) -> None:
    pbvf("dataset", "push", made, place).refused(2, "lost when it ends; name a folder or a server")


def test_pack_and_unpack(made: Path, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "toy.tar"
    ran = pbvf("dataset", "pack", made, file, "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["bytes"] == file.stat().st_size
    assert (ran.json["digest"], ran.json["already_complete"]) == (digest(made), False)
    assert "already complete" in pbvf("dataset", "pack", made, file).out
    ran = pbvf("dataset", "unpack", file, "--json")
    assert (ran.code, ran.json["dataset"], ran.json["file"]) == (0, NAME, str(file))
    assert content(root / NAME) == content(made)
    assert pbvf("dataset", "unpack", file, "lab/b-v0").code == 0
    assert content(root / "lab/b-v0") == content(made)
    data = bytearray(file.read_bytes())
    data[-1] = 1
    file.write_bytes(data)
    ran = pbvf("dataset", "unpack", file, "lab/c-v0")
    assert ran.code == 3
    assert ran.error.startswith(f"error: {file}: ")
    assert pbvf("dataset", "pack", made, file).code == 7
    assert pbvf("dataset", "pack", made, file, "--overwrite").code == 0


@pytest.mark.parametrize("own", [{}, {"dataset_id": None}, {"dataset_id": 3}])
def test_what_does_not_say_what_it_is_called_is_taken_in_without_a_word_of_that(
    made: Path, root: Path, tmp_path: Path, own: dict[str, Any]
) -> None:
    folder, file = Path(shutil.copytree(made, tmp_path / "toy")), tmp_path / "toy.tar"
    path = folder / "data/metadata.json"
    metadata = json.loads(path.read_bytes())
    del metadata["dataset_id"]
    path.write_text(json.dumps(metadata | own))
    reseal(folder)
    pbvf("dataset", "pack", folder, file).ok()
    for command in (("pull", folder), ("unpack", file)):
        name = f"lab/{command[0]}-v0"
        ran = pbvf("dataset", *command, name, "--json").ok()
        assert (ran.json["dataset"], ran.err) == (name, "")
        assert content(root / name) == content(folder)


def test_signatures(made: Path, root: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    folder = Path(shutil.copytree(made, tmp_path / "toy"))
    key, public = tmp_path / "lab.key", tmp_path / "lab.key.pub"
    made_keys = pbvf("dataset", "keygen", key, "--json").json
    assert made_keys["private_key"] == str(key)
    assert pbvf("dataset", "keygen", key).code == 7
    assert pbvf("dataset", "check-signature", folder, "--key", public).code == 4
    ran = pbvf("dataset", "sign", folder, "--key", key, "--json")
    assert (ran.code, ran.json["fingerprint"]) == (0, made_keys["fingerprint"])
    ran = pbvf("dataset", "check-signature", folder, "--key", public).ok()
    assert made_keys["fingerprint"] in ran.out
    ran = pbvf("dataset", "pull", folder, NAME, "--public-key", public, "--json")
    assert ran.json["signed_by"] == made_keys["fingerprint"]
    assert pbvf("dataset", "pull", made, "lab/b-v0", "--public-key", public).code == 4
    (root / NAME / "manifest.json.sig").write_bytes(bytes(64))
    words = f"here already, but not signed by the key {made_keys['fingerprint']}; replace its sig"
    pbvf("dataset", "pull", folder, NAME, "--public-key", public).refused(7, words, "--overwrite")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("push", "lab/none-v0", "/x"), 2, "no dataset"),
        (("push", "MADE", "https://u:pa55@h/x"), 2, "pull alone"),
        (("push", "MADE", "ftq://u:pa55@h/x"), 2, "fsspec"),
        (("push", "BARE", "OUT"), 2, "--license CC-BY-4.0'"),
        (("pull", "/nowhere", "lab/x-v0"), 2, "no dataset"),
        (("pull", "http://u:pa55@127.0.0.1:9/x?sig=pa55", "lab/x-v0"), 10, "Connection refused"),
        (("pull", "MADE", "../x"), 2, "not a dataset id"),
        (("pack", "BARE", "FILE"), 6, "README.md: not a directory"),
        (("unpack", "/nowhere.tar"), 2, "does not exist"),
        (("unpack", "MADE"), 2, "regular"),
        (("sign", "BARE", "--key", "/nowhere"), 2, "does not exist"),
        (("keygen", "FILE"), 6, "README.md: not a directory"),
        (("keygen", "/nowhere/lab.key"), 6, "no such folder"),
    ],
)
def test_errors_are_one_line(
    made: Path,
    root: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    bare = licensed(tmp_path / "bare", license=None)
    names = {"MADE": str(made), "BARE": str(bare), "OUT": str(tmp_path / "out")}
    names["FILE"] = str(made / "README.md/x")
    command = [names.get(argument, argument) for argument in arguments]
    ran = pbvf("dataset", *command)
    assert ran.code == code
    assert words in ran.error
    debug = pbvf("dataset", *command, "--debug")
    assert debug.code == code
    assert "pa55" not in ran.err + debug.err
    assert not (tmp_path / "out").exists()


def test_what_must_not_go_out_needs_a_word(root: Path, tmp_path: Path) -> None:
    folder = licensed(root, authors=["alice"])
    pbvf("dataset", "push", NAME, tmp_path / "out").refused(2, "the user name 'alice'")
    assert pbvf("dataset", "push", NAME, tmp_path / "out", "--allow", "alice").code == 0
    assert content(tmp_path / "out") == content(folder)


def test_one_bar_follows_the_other(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    for command in (("push", made, tmp_path / "out"), ("pack", made, tmp_path / "toy.tar")):
        for again in (False, True):
            lines = pbvf("dataset", *command).err.splitlines()
            words = [line.partition(":")[0] for line in lines]
            doing = {"push": "sending", "pack": "packing"}[str(command[0])]
            assert set(words) <= {"verifying", doing}
            assert words == sorted(words, key=["verifying", doing].index)
            assert ("verifying" in words) is not again


def arrived(root: Path) -> bool:
    """Whether a pull got as far as the server lets it."""
    return any(p.stat().st_size == 20_000 for p in root.glob("lab/.toy-v0.arriving/part-*"))


def stalled(web: Any, root: Path) -> Any:
    """Start a pull in a process of its own and wait until it waits for the server."""
    process = start("dataset", "pull", web.url, NAME)
    deadline = time.monotonic() + 60
    while not arrived(root):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def test_a_killed_pull_goes_on_and_keeps_others_out(made: Path, root: Path) -> None:
    with serving(made, stall=20_000) as web:
        process = stalled(web, root)
        pbvf("dataset", "pull", web.url, NAME).refused(7, "another process")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (root / NAME).exists()
        web.stall, web.requests = None, []
        web.released.set()
        assert pbvf("dataset", "pull", web.url, NAME).code == 0
        assert web.asked(DATA) == ["bytes=20000-"]
    assert content(root / NAME) == content(made)


def test_ctrl_c_says_that_the_same_command_continues(made: Path, root: Path) -> None:
    with serving(made, stall=20_000) as web:
        process = stalled(web, root)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        web.released.set()
    assert process.returncode == 130
    assert out == ""
    assert "the same command continues" in err
    assert len(err.splitlines()) == 1
    assert arrived(root)

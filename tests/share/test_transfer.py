"""Push and pull: whole or not at all, whatever the place and the network do."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import pytest

import hostile
import pbvf_datasets.share.fetching as remote_module
import pbvf_datasets.share.forms as forms_module
from cli_tools import content
from hostile import reseal, rewrite_manifest
from pbvf_datasets.read.untrusted import CardWarning
from pbvf_datasets.share.archive import pack
from pbvf_datasets.share.fetching import SignatureWarning
from pbvf_datasets.share.privacy import Machine, find_private
from pbvf_datasets.share.receiving import IncomingFolder
from pbvf_datasets.share.remote import BrokenError
from pbvf_datasets.share.remotes import fsspec as fsspec_remote
from pbvf_datasets.share.remotes import remote_at
from pbvf_datasets.share.remotes import web as web_remote
from pbvf_datasets.share.remotes.fsspec import FsspecRemote
from pbvf_datasets.share.transfer import pull, push
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    IncompatibleError,
    NetworkError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from pbvf_runs.share import bundles
from share_tools import NAME, SOMEBODY, licensed, loose, names, serving

DATA = "data/main_data.hdf5"


@pytest.fixture
def theirs(made, tmp_path):
    """A copy of it to spoil."""
    return Path(shutil.copytree(made, tmp_path / "theirs"))


def sizes_of(folder):
    return {name: len(data) for name, data in content(folder).items()}


# --------------------------------------------------------------------------------- HTTP


def test_pull_over_http_is_the_same_folder_manifest_first(thing, root):
    told = []
    with serving(thing) as web:
        arrived = bundles.pull(web.url + "/", NAME, progress=lambda *n: told.append(n))
        assert web.requests[0] == ("/manifest.json", None)
        assert content(root / NAME) == content(thing)
        assert names(root / "lab") == ["toy-v0"]
        assert root / arrived.path == root / NAME
        assert not arrived.already_complete
        assert arrived.fetched == sum(sizes_of(thing).values())
        assert arrived.digest == json.loads((thing / "manifest.json").read_text())["digest"]
        total = sum(
            e["size"] for e in json.loads((thing / "manifest.json").read_text())["files"].values()
        )
        assert told[-1] == (total, total)
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        before = len(web.requests)
        again = bundles.pull(web.url, NAME)
        assert again.already_complete
        assert again.fetched == 0
        assert not any(path.startswith("/data") for path, _ in web.requests[before:])


def test_another_dataset_of_that_name_is_exit_7_and_overwrite_replaces_it(made, root, tmp_path):
    old = licensed(root, license="MIT")
    before = content(old)
    with serving(made) as web:
        with pytest.raises(ConflictError, match="another dataset is there") as error:
            pull(web.url, NAME)
        assert error.value.exit_code == 7
        assert content(old) == before
        pull(web.url, NAME, overwrite=True)
    assert content(root / NAME) == content(made)
    assert names(root / "lab") == ["toy-v0"]


def test_a_damaged_copy_here_is_exit_3_and_overwrite_mends_it(made, root):
    with serving(made) as web:
        pull(web.url, NAME)
        for spoil, kind in ((b"", DamagedError), (b"{}", UnsafeError)):
            (root / NAME / "data/metadata.json").write_bytes(spoil)
            with pytest.raises(kind, match="--overwrite"):
                pull(web.url, NAME)
        pull(web.url, NAME, overwrite=True)
    assert content(root / NAME) == content(made)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_breaks_is_taken_up_again(made, root, ranges):
    size = (made / DATA).stat().st_size
    with serving(made, ranges=ranges, drop=size // 3) as web:
        if ranges:
            assert pull(web.url, NAME).fetched == sum(sizes_of(made).values())
            assert content(root / NAME) == content(made)
            assert web.asked(DATA) == [
                None,
                *(f"bytes={size // 3 * k}-" for k in (1, 2, 3)),
            ]
            return
        with pytest.raises(NetworkError, match="continues") as error:
            pull(web.url, NAME)
        assert error.value.exit_code == 10
        assert names(root / "lab") == [".toy-v0.arriving"]
        web.drop = None
        pull(web.url, NAME)
    assert content(root / NAME) == content(made)
    assert names(root / "lab") == ["toy-v0"]


def test_a_server_that_dies_is_exit_10_and_the_same_command_goes_on(made, root, monkeypatch):
    size = (made / DATA).stat().st_size
    monkeypatch.setattr(web_remote, "PAUSES", ())
    with serving(made, drop=10_000) as web:
        with pytest.raises(NetworkError, match=f"10,000 of {size:,}") as error:
            pull(web.url, NAME)
        assert error.value.exit_code == 10
        assert not (root / NAME).exists()
        (part,) = (root / "lab/.toy-v0.arriving").glob("part-*")
        assert part.read_bytes() == (made / DATA).read_bytes()[:10_000]
        web.drop, web.requests = None, []
        arrived = pull(web.url, NAME)
        assert web.asked(DATA) == ["bytes=10000-"]
        assert web.asked("croissant.json") == []  # it was whole
        small = sum(n for name, n in sizes_of(made).items() if name not in (DATA, "croissant.json"))
        assert arrived.fetched == size - 10_000 + small
    assert content(root / NAME) == content(made)
    assert names(root / "lab") == ["toy-v0"]


def test_what_rotted_on_disk_meanwhile_is_fetched_anew(made, root, monkeypatch):
    monkeypatch.setattr(web_remote, "PAUSES", ())
    with serving(made, drop=10_000) as web:
        with pytest.raises(NetworkError):
            pull(web.url, NAME)
        work = root / "lab/.toy-v0.arriving"
        (part,) = work.glob("part-*")
        part.write_bytes(bytes(9_000))
        (work / "build/croissant.json").write_bytes(b"x")
        (work / "part-of-something-else").write_bytes(b"x")
        web.drop = None
        pull(web.url, NAME)
        assert web.asked(DATA) == [None, "bytes=9000-", None]
    assert content(root / NAME) == content(made)


def test_a_dataset_that_changed_meanwhile_does_not_mix_with_the_old(
    made, root, tmp_path, monkeypatch
):
    monkeypatch.setattr(web_remote, "PAUSES", ())
    other = licensed(tmp_path / "other", license="MIT", episodes=None, authors=["B"])
    with serving(made, drop=10_000) as web:
        with pytest.raises(NetworkError):
            pull(web.url, NAME)
        web.folder, web.drop = other, None
        pull(web.url, NAME)
    assert content(root / NAME) == content(other)
    assert names(root / "lab") == ["toy-v0"]


@pytest.mark.parametrize(
    ("change", "lengths", "kind", "words"),
    [
        (lambda d: d[:-1], True, DamagedError, "bytes, but its manifest says"),
        (lambda d: d + b"x", True, DamagedError, "bytes, but its manifest says"),
        (lambda d: d + b"x", False, DamagedError, "more than"),
        (lambda d: d[:-1], False, NetworkError, "continues"),
        (lambda d: b"", True, DamagedError, "0 bytes"),
    ],
)
def test_wrong_lengths(made, root, change, lengths, kind, words):
    bodies = {DATA: change((made / DATA).read_bytes())}
    with serving(made, bodies=bodies, lengths=lengths) as web, pytest.raises(kind, match=words):
        pull(web.url, NAME)
    assert not (root / NAME).exists()


def test_no_lengths_at_all(made, root):
    with serving(made, lengths=False, ranges=False) as web:
        pull(web.url, NAME)
    assert content(root / NAME) == content(made)


def test_huge_declared_sizes(theirs, root, monkeypatch):
    def declare(name, size):
        rewrite_manifest(theirs, lambda m: m["files"][name].update(size=size))

    with serving(theirs) as web:
        for name, size in ((DATA, 2**60), (DATA, -1), ("data/metadata.json", 2**40)):
            declare(name, size)
            with pytest.raises(UnsafeError, match="limit") as error:
                pull(web.url, NAME)
            assert error.value.exit_code == 4
            declare("data/metadata.json", 1000)
        assert not any(path.startswith("/data") for path, _ in web.requests)
        declare(DATA, 2**41)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
        with pytest.raises(ResourceError, match="MB more than are free"):
            pull(web.url, NAME)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**50))
        declare("data/metadata.json", (theirs / "data/metadata.json").stat().st_size)
        with pytest.raises(DamagedError, match="its manifest says 2,199,023,255,552"):
            pull(web.url, NAME)
    assert not (root / NAME).exists()


def test_little_data_need_little_space(made, root, monkeypatch):
    size = sum(sizes_of(made).values())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size))
    words = r"kB are needed \(66 kB of them to spare\), \d+ kB more"
    with pytest.raises(ResourceError, match=words):
        pull(str(made), NAME)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size + 10**5))
    pull(str(made), NAME)
    assert content(root / NAME) == content(made)


@pytest.mark.parametrize("name", ["manifest.json", "README.md"])
def test_a_small_file_without_end_is_exit_4(made, root, name, monkeypatch):
    monkeypatch.setattr(remote_module, "MAX_MANIFEST_BYTES", 2**20)
    monkeypatch.setattr(remote_module, "MAX_CARD_BYTES", 2**20)

    def endless():
        while True:
            yield bytes(2**16)

    refused = pytest.raises(UnsafeError, match="more than the 1,048,576 bytes")
    with serving(made, bodies={name: endless}) as web, refused:
        pull(web.url, NAME)
    assert not (root / NAME).exists()


def test_format_versions_and_missing_files(theirs, root):
    with serving(theirs, codes={"croissant.json": 404}) as web:
        with pytest.raises(DamagedError, match="missing, though"):
            pull(web.url, NAME)
        rewrite_manifest(theirs, lambda m: m.update(version=99))
        with pytest.raises(IncompatibleError, match="99"):
            pull(web.url, NAME)
        web.codes = {"manifest.json": 404}
        with pytest.raises(UsageError, match="no dataset") as error:
            pull(web.url, NAME)
        assert error.value.exit_code == 2


def test_servers_that_refuse(made, root, monkeypatch):
    monkeypatch.setattr(web_remote, "PAUSES", ())
    with serving(made) as web:
        for code, words in ((401, "login"), (403, "login"), (402, "402"), (500, "500")):
            web.codes = {"manifest.json": code}
            with pytest.raises(NetworkError, match=words) as error:
                pull(web.url, NAME)
            assert error.value.exit_code == 10
        url = web.url
    with pytest.raises(NetworkError, match="Connection refused"):
        pull(url, NAME)
    assert names(root) == []


def test_logins_stay_with_their_host_and_are_never_shown(made, root, monkeypatch):
    monkeypatch.setattr(web_remote, "PAUSES", ())
    secret = "Basic dXNlcjpwYTpzcyBAMQ=="  # user:pa:ss @1
    with serving(made, login=secret) as web, serving(made) as other:
        address = web.url.replace("//", "//user:pa%3Ass%20%401@")
        arrived = pull(address, NAME)
        assert arrived.source == web.url.replace("//", "//***@")
        assert set(web.logins) == {secret}
        other.redirect = web.url
        with pytest.raises(NetworkError, match="401") as error:
            pull(other.url.replace("//", "//user:pa%3Ass%20%401@"), "lab/b-v0")
        assert not re.search(r"ss ?@|%3A|user", str(error.value))
        assert other.logins[-1] == secret
        assert web.logins[-1] is None
        other.redirect = "ftp://127.0.0.1:1"
        with pytest.raises(NetworkError, match="redirects to ftp"):
            pull(other.url, "lab/b-v0")
    for bad in ("http://user:pa55@", "http://user:pa55@host:port/x", "http://user:pa55@[/x"):
        with pytest.raises(UsageError) as error:
            pull(bad, "lab/b-v0")
        assert "pa55" not in str(error.value)


def test_a_query_goes_with_every_file_and_is_not_shown(made, root, monkeypatch):
    with serving(made) as web:
        arrived = pull(f"{web.url}/?sig=s3cr3t%3D", NAME)
        assert arrived.source == f"{web.url}/?***"
        assert all(path.endswith("?sig=s3cr3t%3D") for path, _ in web.requests)
    monkeypatch.setattr(web_remote, "PAUSES", ())
    with pytest.raises(NetworkError) as error:
        pull(f"{web.url}/?sig=s3cr3t%3D", "lab/b-v0")
    assert "s3cr3t" not in str(error.value)


def test_a_card_that_was_edited_and_pages_in_place_of_files(made, root):
    page = b"<html>nothing here, but 200 OK; it is a long page, longer than any signature</html>"
    with (
        serving(made, bodies={"README.md": b"# mine", "manifest.json.sig": page}) as web,
        pytest.warns(SignatureWarning, match="no signature"),
        pytest.warns(CardWarning, match="edited"),
    ):
        pull(web.url, NAME)
    assert (root / NAME / "README.md").read_bytes() == b"# mine"
    assert not (root / NAME / "manifest.json.sig").exists()
    with serving(made, codes={"README.md": 404}) as web, pytest.warns(CardWarning, match="missing"):
        pull(web.url, "lab/b-v0")


def test_a_name_taken_meanwhile_is_exit_7(made, root, tmp_path, monkeypatch):
    other = licensed(tmp_path / "other", license="MIT")
    check = IncomingFolder.check

    def slow(self, shown):
        check(self, shown)
        shutil.copytree(other, root / NAME)

    monkeypatch.setattr(IncomingFolder, "check", slow)
    with serving(made) as web, pytest.raises(ConflictError, match="meanwhile"):
        pull(web.url, NAME)
    assert json.loads((root / NAME / "manifest.json").read_text())["provenance"]["license"] == "MIT"


# ------------------------------------------------------------------------------ folders


def test_push_to_a_folder_and_pull_from_it_without_a_socket(thing, root, tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise AssertionError("a socket")

    monkeypatch.setattr("socket.socket", no_network)
    target = tmp_path / "stick/deep/toy"
    pushed = bundles.push([thing], str(target))
    assert content(target) == content(thing)
    assert names(target.parent) == ["toy"]
    assert pushed.remote == str(target)
    assert pushed.files == sizes_of(thing)
    assert pushed.sent == sum(sizes_of(thing).values())
    assert bundles.push([thing], f"file://{target}").already_complete
    bundles.pull(f"file://{target}/", NAME)
    assert content(root / NAME) == content(thing)
    assert bundles.push([NAME], str(target)).already_complete


def test_push_to_a_folder_that_is_something_else(made, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    assert push(made, str(notes)).sent  # empty: taken
    (notes / "mine.txt").write_text("x")
    other = licensed(tmp_path / "other", license="MIT")
    for overwrite in (False, True):
        with pytest.raises(ConflictError):
            push(other, str(notes), overwrite=overwrite)
    assert (notes / "mine.txt").read_text() == "x"
    (notes / "mine.txt").unlink()
    with pytest.raises(ConflictError, match="another dataset"):
        push(other, str(notes))
    push(other, str(notes), overwrite=True)
    assert content(notes) == content(other)
    for place in (str(other), f"file://{other}"):
        with pytest.raises(UsageError, match="itself"):
            push(other, place)
    with pytest.raises(UsageError):
        push(other, "/")


# -------------------------------------------------------------- what must not be sent


def test_no_licence_no_push(tmp_path):
    for n, licence in enumerate((None, " ", "none", "NOASSERTION")):
        folder = licensed(tmp_path / str(n), license=licence)
        with pytest.raises(UsageError, match=r"CC-BY-4\.0") as error:
            push(folder, str(tmp_path / "out"))
        assert error.value.exit_code == 2
        assert "--license" in str(error.value)
    assert not (tmp_path / "out").exists()


SPOILED = [
    (kind, cases[name])
    for kind, cases in (
        (UnsafeError, hostile.UNSAFE),
        (DamagedError, hostile.DAMAGED),
        (IncompatibleError, hostile.INCOMPATIBLE),
    )
    for name in cases
    if "resealed" in cases[name].seals
]


@pytest.mark.slow
def test_what_every_receiver_would_refuse_is_neither_sent_nor_packed(made, memory, tmp_path):
    assert len(SPOILED) > 100
    for number, (kind, case) in enumerate(SPOILED):
        folder = Path(shutil.copytree(made, tmp_path / f"in/{number}"))
        case.spoil(folder, hostile.outside(tmp_path / f"secret-{number}"))
        reseal(folder)
        sends = (
            lambda f: push(f, str(tmp_path / "out/toy")),
            lambda f: push(f, "memory://toy"),
            lambda f: pack(f, tmp_path / "toy.tar", overwrite=True),
        )
        for send in sends:
            with pytest.raises(kind) as error:
                send(folder)
            assert all(word in str(error.value) for word in case.words), (str(error.value), case)
            assert "\n" not in str(error.value)
        assert stored(memory, "/toy") == {}
        assert not {"out", "toy.tar"} & set(names(tmp_path))


def test_the_first_problem_is_told_and_how_many_more_there_are(theirs, tmp_path):
    with h5py.File(theirs / DATA, "r+") as file:
        file["episode_0/rewards"][3] = float("nan")
        file["episode_2/actions"][:, 0] *= -1
    reseal(theirs)
    with pytest.raises(DamagedError, match="NaN") as error:
        push(theirs, str(tmp_path / "out"))
    assert error.value.where == f"{theirs / DATA}: episode_0/rewards"
    assert "and 1 more problem)" in str(error.value)
    assert "pbvf dataset verify" in str(error.value)
    assert names(tmp_path) == ["theirs"]


class Verified:
    """Counts verifications, and does something right after each."""

    def __init__(self, patch, then=None):
        self.count, self.then = 0, then
        verify = forms_module.verify_dataset

        def counted(path, *, progress):
            self.count += 1
            found = verify(path, progress=progress)
            if self.then is not None:
                self.then()
            return found

        patch.setattr(forms_module, "verify_dataset", counted)


def test_it_is_verified_once_before_the_first_byte_and_not_when_nothing_is_to_be_sent(
    made, memory, tmp_path, monkeypatch
):
    verified = Verified(monkeypatch, lambda: seen.append(len(stored(memory, "/toy"))))
    seen, steps, sent = [], [], []
    told = {
        "verifying": lambda *n: steps.append((n, len(sent))),
        "progress": lambda *n: sent.append(n),
    }
    sends = (
        lambda **o: push(made, str(tmp_path / "toy"), **o),
        lambda **o: push(made, "memory://toy", **o),
        lambda **o: pack(made, tmp_path / "toy.tar", **o),
    )
    for number, send in enumerate(sends, start=1):
        steps.clear()
        sent.clear()
        assert not send(**told).already_complete
        assert verified.count == number
        assert steps[-1] == ((60, 60), 0)
        assert sent[-1][0] == sent[-1][1] > 0
        assert send(**told).already_complete
        assert verified.count == number
    assert seen[1] == 0
    # A card by itself is no reason either; a missing file is one.
    memory.pipe_file("/toy/README.md", bytes(sizes_of(made)["README.md"]))
    assert push(made, "memory://toy").sent == sizes_of(made)["README.md"]
    assert verified.count == 3
    memory.rm_file("/toy/data/metadata.json")
    assert push(made, "memory://toy").sent == sizes_of(made)["data/metadata.json"]
    assert verified.count == 4


def test_what_is_quickly_checked_comes_before_the_verification(
    made, memory, root, tmp_path, monkeypatch
):
    verified = Verified(monkeypatch)
    unlicensed = licensed(tmp_path / "unlicensed", license=None)
    private = licensed(tmp_path / "private", authors=["alice"])
    for folder in (unlicensed, private):
        for place in (str(tmp_path / "out"), "memory://toy"):
            with pytest.raises(UsageError):
                push(folder, place)
    push(made, str(root / "there"))
    push(made, "memory://there")
    pack(made, root / "there.tar")
    count = verified.count
    other = licensed(tmp_path / "other", license="MIT")
    for send in (
        lambda: push(other, str(root / "there")),
        lambda: push(other, "memory://there"),
        lambda: pack(other, root / "there.tar"),
    ):
        with pytest.raises(ConflictError):
            send()
    assert verified.count == count == 3


def test_a_transfer_that_is_taken_up_again_is_verified_again(theirs, memory, monkeypatch):
    verified = Verified(monkeypatch)
    flaky = Flaky(monkeypatch, at=1)
    with pytest.raises(NetworkError):
        push(theirs, "memory://toy")
    before = stored(memory, "/toy")
    flaky.at = None
    with h5py.File(theirs / DATA, "r+") as file:
        file["episode_2/actions"][:, 0] *= -1
    reseal(theirs)
    with pytest.raises(DamagedError, match="actions"):
        push(theirs, "memory://toy", overwrite=True)
    assert verified.count == 2
    assert stored(memory, "/toy") == before
    assert "manifest.json" not in before


def replaced(folder, by):
    """Put another dataset in a folder's place."""
    shutil.rmtree(folder)
    shutil.copytree(by, folder)


def test_what_goes_out_is_what_was_verified(made, theirs, memory, tmp_path, monkeypatch):
    other = licensed(tmp_path / "other", authors=["B"], episodes=[hostile.episode(7)])
    size = (theirs / DATA).stat().st_size
    times = (theirs / DATA).stat()

    def flipped():
        """Change one byte and hide it as well as one can."""
        data = bytearray((theirs / DATA).read_bytes())
        data[size // 2] ^= 1
        (theirs / DATA).write_bytes(data)
        os.utime(theirs / DATA, ns=(times.st_atime_ns, times.st_mtime_ns))

    verified = Verified(monkeypatch)
    for then in (flipped, lambda: replaced(theirs, other), (theirs / DATA).unlink):
        for send in (
            lambda: push(theirs, str(tmp_path / "out")),
            lambda: push(theirs, "memory://toy"),
            lambda: pack(theirs, tmp_path / "toy.tar"),
        ):
            replaced(theirs, made)
            verified.then = then
            with pytest.raises(DamagedError):
                send()
            assert DATA not in stored(memory, "/toy")
            assert "manifest.json" not in stored(memory, "/toy")
            assert not {"out", "toy.tar"} & set(names(tmp_path))
            memory.store.clear()


def test_another_dataset_that_was_verified_instead(theirs, tmp_path, monkeypatch):
    other = licensed(tmp_path / "other", license="MIT")
    verify = forms_module.verify_dataset
    monkeypatch.setattr(forms_module, "verify_dataset", lambda path, progress: verify(other))
    with pytest.raises(DamagedError, match="changed while it was being checked"):
        push(theirs, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_file_that_changes_while_it_is_sent_is_taken_back(theirs, memory, monkeypatch):
    put = FsspecRemote.put

    def sabotaged(place, name, file, told):
        if name == DATA:
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        put(place, name, file, told)

    monkeypatch.setattr(FsspecRemote, "put", sabotaged)
    with pytest.raises(DamagedError, match=r"changed while .* being sent; push again") as error:
        push(theirs, "memory://toy")
    assert error.value.where == str(theirs / DATA)
    assert not {DATA, "manifest.json"} & set(stored(memory, "/toy"))


def test_words_that_come_into_the_card_after_the_look_at_it_stay_here(
    made, theirs, memory, tmp_path, monkeypatch
):
    card = theirs / "README.md"
    Verified(monkeypatch, lambda: card.write_text("made in /home/alice"))
    push(theirs, str(tmp_path / "out"))
    assert content(tmp_path / "out") == content(made)
    replaced(theirs, made)
    with pytest.raises(DamagedError, match="changed"):
        push(theirs, "memory://toy")
    assert not any(b"alice" in data for data in stored(memory, "/toy").values())
    assert "manifest.json" not in stored(memory, "/toy")


def test_what_gives_the_machine_away_is_named(tmp_path):
    folder = licensed(
        tmp_path, settings={"file": "/scratch/run 3"}, authors=["Alice Smith", "alice@box7.lab"]
    )
    card = folder / "README.md"
    card.write_text(card.read_text() + "\nmade in /home/alice/work and C:\\Users\\al\n")
    with pytest.raises(UsageError) as error:
        push(folder, str(tmp_path / "out"))
    message = str(error.value)
    for words in (
        "the absolute path '/scratch/run' (manifest.json, README.md)",
        "the user name 'alice' (manifest.json, ",
        "the host name 'box7' (manifest.json, ",
        "the absolute path '/home/alice/work' (README.md)",
        "C:\\\\Users\\\\al' (README.md)",
        "--allow",
    ):
        assert words in message
    assert error.value.exit_code == 2
    assert not (tmp_path / "out").exists()
    allowed = [
        *("/scratch/run", "alice", "box7", "/home/alice", "/home/alice/work", r"C:\Users\al"),
        r"C:\\Users\\al",
    ]
    with pytest.warns(CardWarning, match="edited"):
        assert push(folder, str(tmp_path / "out"), allow=allowed).sent


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see /home/bob/x.xml.", ["/home/bob/x.xml"]),
        ("--out=/data/set", ["/data/set"]),
        ("bob@host:/home/bob", ["/home/bob"]),
        ("`/opt`", ["/opt"]),
        ("/my/own-place/file", ["/my/own-place/file"]),
        ("file:///x/y", ["file:///x/y"]),
        (r"\\server\share\x", [r"\\server\share"]),
        (r"D:\data", [r"D:\data"]),
        ("D:/data", ["D:/data"]),
        ("https://example.org/data/set and/or 1/2, a / b, </div>", []),
        ("data/main_data.hdf5, ./data/x, ../x, infos/theta, /infos/theta, /episode_0/rewards", []),
        ("(steps + 1,) `pbvf dataset verify lab/x-v0`; a://b/c", []),
        ('J{\\"u}rgen \\alpha', []),
        ("box7", ["box7"]),
        ("BOX7.lab.org", ["box7"]),
        ("box77 mybox7", []),
        ("alice", ["alice"]),
        ("alice/set-v0 by Alice, malice", ["alice"]),
    ],
)
def test_what_counts_as_private(text, found):
    assert [f.text for f in find_private({"README.md": text.encode()}, SOMEBODY)] == found
    in_json = {"x.json": json.dumps({"a": [{"b": text}]}).encode()}
    assert [f.text for f in find_private(in_json, SOMEBODY)] == found
    nested = {"x.json": json.dumps({"a": json.dumps({"b": text})}).encode()}
    assert [f.text for f in find_private(nested, SOMEBODY)] == found


def test_the_names_of_this_machine(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr("socket.gethostname", lambda: "node12.cluster.lab")
    monkeypatch.setattr("platform.node", lambda: "localhost")
    monkeypatch.setenv("LOGNAME", "x")
    monkeypatch.setenv("HOME", "/home/carol")
    machine = Machine.this()
    assert machine.hosts == {"node12.cluster.lab", "node12"}
    assert "x" not in machine.users
    assert "/home/carol" in machine.homes


# ------------------------------------------------------------------------------- fsspec


def stored(fs, at):
    prefix = f"{at}/"
    return {
        k.removeprefix(prefix): bytes(v.getbuffer())
        for k, v in fs.store.items()
        if k.startswith(prefix)
    }


class Flaky:
    """Makes the n-th file that is sent fail, as a broken connection does."""

    def __init__(self, patch, at=None):
        self.sent, self.at = [], at
        put = FsspecRemote.put

        def sabotaged(place, name, file, told):
            if self.at is not None and len(self.sent) == self.at:
                raise BrokenError("the cable was cut")
            put(place, name, file, told)
            self.sent.append(name)

        patch.setattr(FsspecRemote, "put", sabotaged)


def test_the_manifest_goes_last_and_an_interrupted_push_goes_on(thing, root, memory, monkeypatch):
    flaky = Flaky(monkeypatch, at=2)
    told = []
    with pytest.raises(NetworkError, match="cable") as error:
        bundles.push([thing], "memory://lab/toy", progress=lambda *n: told.append(n))
    assert error.value.exit_code == 10
    first = flaky.sent
    assert "manifest.json" not in stored(memory, "/lab/toy")
    with pytest.raises(UsageError, match="nothing that was pushed"):
        bundles.pull("memory://lab/toy", NAME)
    flaky.sent, flaky.at = [], None
    pushed = bundles.push([thing], "memory://lab/toy")
    assert sorted(first + flaky.sent) == sorted(content(thing))
    assert flaky.sent[-1] == "manifest.json"
    assert pushed.sent == sum(sizes_of(thing)[name] for name in flaky.sent)
    assert stored(memory, "/lab/toy") == content(thing)
    flaky.sent = []
    assert bundles.push([thing], "memory://lab/toy").already_complete
    assert flaky.sent == []
    bundles.pull("memory://lab/toy", NAME)
    assert content(root / NAME) == content(thing)
    assert told[-1][1] == sum(n for name, n in sizes_of(thing).items() if name != "manifest.json")


def test_places_without_whole_files_get_a_rename(thing, memory, monkeypatch):
    monkeypatch.setattr(fsspec_remote, "_ATOMIC", frozenset())
    put = type(memory).put_file
    targets = []

    def put_file(self, source, target, **kwargs):
        targets.append(target)
        return put(self, source, target, **kwargs)

    monkeypatch.setattr(type(memory), "put_file", put_file)
    bundles.push([thing], "memory://lab/toy")
    assert all(target.rpartition("/")[2].startswith(".part-") for target in targets)
    assert stored(memory, "/lab/toy") == content(thing)


def test_pushing_onto_another_dataset(made, memory, tmp_path, monkeypatch):
    push(made, "memory://toy")
    other = licensed(tmp_path, license="MIT")
    (other / "manifest.json.sig").write_bytes(bytes(64))
    with pytest.raises(ConflictError, match="another dataset") as error:
        push(other, "memory://toy")
    assert error.value.exit_code == 7
    assert stored(memory, "/toy") == content(made)
    flaky = Flaky(monkeypatch, at=1)
    with pytest.raises(NetworkError):
        push(other, "memory://toy", overwrite=True)
    assert "manifest.json" not in stored(memory, "/toy")  # nothing whole is there, and none says so
    with pytest.raises(ConflictError, match="no manifest that lists it"):
        push(other, "memory://toy")
    flaky.at = None
    push(other, "memory://toy", overwrite=True)
    assert stored(memory, "/toy") == content(other)
    push(made, "memory://toy", overwrite=True)
    assert stored(memory, "/toy") == content(made)  # the signature of the other went too


def test_a_bundle_that_replaces_another_leaves_none_of_its_files(memory, tmp_path):
    files = loose(tmp_path / "loose")
    bundles.push(files, "memory://toy", license="MIT")
    with pytest.raises(ConflictError, match="another bundle"):
        bundles.push(files[:1], "memory://toy", license="MIT")
    bundles.push(files[:1], "memory://toy", license="MIT", overwrite=True)
    assert set(stored(memory, "/toy")) == {"README.md", "manifest.json", "toy-v0.safetensors"}


def test_pushing_over_strangers_files(made, memory):
    memory.pipe_file("/toy/README.md", b"my precious notes")
    with pytest.raises(ConflictError, match="no manifest that lists it"):
        push(made, "memory://toy")
    memory.pipe_file("/toy/manifest.json", b"{}")
    with pytest.raises(ConflictError, match="no dataset's"):
        push(made, "memory://toy")
    assert stored(memory, "/toy") == {"README.md": b"my precious notes", "manifest.json": b"{}"}


def test_the_log_of_the_packages_under_fsspec_is_not_printed(monkeypatch, capsys):
    # As in a program that set up no logging; pytest sets up some.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    for name in ("gcsfs", "s3fs"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    logging.getLogger("gcsfs").error("before")
    FsspecRemote("memory://x")
    for name in ("gcsfs", "gcsfs.retry", "s3fs"):
        logging.getLogger(name).error("after")
    assert capsys.readouterr().err == "before\n"


def test_a_file_address_is_a_path_or_refused(made, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert remote_at(f"file://localhost{tmp_path}/x").shown == f"{tmp_path}/x"
    for address in (f"file:{tmp_path}/x", f"file::{tmp_path}/x", "FILE:x"):
        with pytest.raises(UsageError, match="is no address; write the path, or file:///PATH"):
            push(made, address)
    with pytest.raises(UsageError, match="fsspec knows"):
        pull("reference://", NAME)
    assert list(tmp_path.glob("file*")) == []


def test_places_that_fsspec_does_not_reach(made, root):
    with pytest.raises(UsageError, match="for pull alone"):
        push(made, "https://user:pa55@example.org/x")
    for call in (lambda r: push(made, r), lambda r: pull(r, NAME)):
        with pytest.raises(UsageError, match="fsspec knows"):
            call("nowhere://x/y")
        for protocol, extra in (("gs", "gcs"), ("hf", "hub")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(sys.modules, "gcsfs", None)
                patch.setitem(sys.modules, "huggingface_hub", None)
                with pytest.raises(UsageError) as error:
                    call(f"{protocol}://u:pa55@x/y")
            assert f"pip install 'pbvf-offline[{extra}]'" in str(error.value)
            assert "pa55" not in str(error.value)


# ----------------------------------------------------------------------------------- S3


def test_s3_that_refuses(made, root, s3, monkeypatch):
    with pytest.raises(NetworkError, match="bucket") as error:
        push(made, "s3://no-such-bucket/toy")
    assert error.value.exit_code == 10
    with pytest.raises(UsageError, match="no dataset"):
        pull("s3://lab/nothing", NAME)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(NetworkError, match="credentials") as error:
        pull("s3://lab/sets/toy", NAME)
    assert "s3cr3t" not in str(error.value)


# ----------------------------------------------------------------------------------- GCS

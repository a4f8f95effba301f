"""Pack and unpack: every byte of an archive follows from the files, and nothing else is taken."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from attacks.make import MEMBERS
from cli_tools import content
from hostile import reseal, rewrite_manifest
from pbvf_datasets.read.untrusted import CardWarning
from pbvf_datasets.share import archive
from pbvf_datasets.share.archive_form import BLOCK, RECORD, folder_name, header
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    IncompatibleError,
    PbvfError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from pbvf_runs.share import bundles
from share_tools import NAME, largest, licensed, names
from watching import watching

DATA = "data/main_data.hdf5"


def pack(folder, file, **options):
    return bundles.pack([folder], file, **options)


def unpack(file, name=NAME, **options):
    return bundles.unpack(file, name, **options)


@pytest.fixture(scope="module")
def packed(thing, tmp_path_factory):
    """Its archive, read only."""
    file = tmp_path_factory.mktemp("packed") / "toy.tar"
    pack(thing, file)
    return file


def position(found, folder):
    """The place of the largest file among the members."""
    names = [info.name for info, _ in found]
    return names.index(f"toy-v0/{largest(folder)}")


def members(file):
    """What tarfile finds: name and content in order."""
    with tarfile.open(file, "r:") as archive:
        return [(m, archive.extractfile(m).read() if m.isreg() else b"") for m in archive]


def rebuilt(file, target, change):
    """Write the members of an archive anew, after a change to their list."""
    found = members(file)
    with tarfile.open(target, "w:", format=tarfile.USTAR_FORMAT) as archive:
        change(found)
        for info, data in found:
            archive.addfile(info, io.BytesIO(data))
    return target


# ---------------------------------------------------------------------------- there and back


def test_there_and_back(thing, root, tmp_path):
    told = []
    file = tmp_path / "toy.tar"
    result = pack(thing, file, progress=lambda *n: told.append(n))
    assert (result.size, result.already_complete) == (file.stat().st_size, False)
    assert told[-1] == (result.size, result.size)
    assert names(tmp_path) == ["root", "toy.tar"]
    assert result.size % RECORD == 0
    told.clear()
    arrived = unpack(file, progress=lambda *n: told.append(n))
    assert root / arrived.path == root / NAME
    assert content(root / NAME) == content(thing)
    assert names(root / "lab") == ["toy-v0"]
    assert told[-1][0] <= told[-1][1] == result.size
    assert unpack(file).already_complete
    unpack(file, "lab/other-v0")
    assert content(root / "lab/other-v0") == content(thing)


def test_without_a_name_it_is_called_as_it_calls_itself(made, packed, root):
    arrived = bundles.unpack(packed)
    assert arrived.dataset in (NAME, "toy-v0")
    assert root / arrived.path == root / arrived.dataset
    assert archive.unpack(packed).path == root / NAME if arrived.dataset == NAME else True


def test_equal_things_equal_bytes_wherever_they_lie(thing, packed, tmp_path):
    copy = Path(shutil.copytree(thing, tmp_path / "renamed"))
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    (copy / largest(copy)).chmod(0o600)
    pack(copy, tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == packed.read_bytes()


def test_tar_and_sha256sum_read_it(thing, packed, tmp_path):
    found = members(packed)
    order = [info.name.removeprefix("toy-v0/") for info, _ in found]
    assert order[0] == "manifest.json"
    assert order[1:-1] == sorted(order[1:-1])
    assert order[-1] == "SHA256SUMS"
    assert all((m.mtime, m.uid, m.gid, m.uname, m.mode) == (0, 0, 0, "", 0o644) for m, _ in found)
    subprocess.run(["tar", "-xf", packed, "-C", tmp_path], check=True)
    subprocess.run(
        ["sha256sum", "-c", "--strict", "--quiet", "SHA256SUMS"],
        check=True,
        cwd=tmp_path / "toy-v0",
    )
    (tmp_path / "toy-v0/SHA256SUMS").unlink()
    assert content(tmp_path / "toy-v0") == content(thing)


def test_a_header_is_as_other_programs_write_and_read_it():
    info = tarfile.TarInfo("toy/data")
    info.size = 1234
    ours = header("toy/data", 1234)
    assert len(ours) == BLOCK
    read = tarfile.TarInfo.frombuf(ours, "ascii", "strict")
    assert (read.name, read.size, read.mode, read.type) == ("toy/data", 1234, 0o644, b"0")
    assert ours == info.tobuf(tarfile.USTAR_FORMAT)
    for size in (8 * 2**30 - 1, 8 * 2**30, 2**42):
        assert tarfile.TarInfo.frombuf(header("x", size), "ascii", "strict").size == size


def test_folder_names():
    assert folder_name("lab/toy-v0") == "toy-v0"
    for odd in (None, 3, "", "lab/", "x" * 90, "é-v0", "..", "a/.x-v0", "-rf"):
        assert folder_name(odd) == "dataset"


def test_packing_again_and_over_something_else(thing, tmp_path):
    file = tmp_path / "toy.tar"
    pack(thing, file)
    before = file.stat().st_mtime_ns
    assert pack(thing, file).already_complete
    assert file.stat().st_mtime_ns == before
    good = file.read_bytes()
    with tarfile.open(tmp_path / "mine.tar", "w") as archive:
        archive.add(thing / "README.md", "README.md")
    mine = (b"mine", (tmp_path / "mine.tar").read_bytes())
    for other in (good[:-1], good[:-1] + b"x", *mine, b""):
        file.write_bytes(other)
        with pytest.raises(ConflictError, match="--overwrite") as error:
            pack(thing, file)
        assert error.value.exit_code == 7
        assert file.read_bytes() == other
        if other in mine:
            with pytest.raises(ConflictError, match="no archive"):
                pack(thing, file, overwrite=True)
            assert file.read_bytes() == other
            continue
        pack(thing, file, overwrite=True)
        assert file.read_bytes() == good
    with pytest.raises(UsageError, match="folder"):
        pack(thing, tmp_path)
    with pytest.raises(ResourceError, match="not a directory"):
        pack(thing, file / "x.tar")


def test_only_whole_datasets_with_a_manifest_are_packed(made, tmp_path):
    bare = Path(shutil.copytree(made, tmp_path / "bare"))
    (bare / "manifest.json").unlink()
    with pytest.raises(UsageError, match="manifest"):
        pack(bare, tmp_path / "x.tar")
    with h5py.File(bare / "data/main_data.hdf5", "a") as file:
        for episode in file.values():
            del episode["infos"]
    with pytest.raises(IncompatibleError, match=r"not policy-tagged.*dataset tag") as error:
        pack(bare, tmp_path / "x.tar")
    assert "merge" not in str(error.value)  # which would refuse it too
    damaged = Path(shutil.copytree(made, tmp_path / "damaged"))
    (damaged / "data/metadata.json").write_bytes(b"{}\n")
    with pytest.raises(PbvfError):
        pack(damaged, tmp_path / "x.tar")
    assert names(tmp_path) == ["bare", "damaged"]


def test_the_card_and_the_signature_travel_as_they_are(thing, root, tmp_path):
    copy = Path(shutil.copytree(thing, tmp_path / "copy"))
    (copy / "README.md").write_text("# mine")
    (copy / "manifest.json.sig").write_bytes(bytes(range(64)))
    pack(copy, tmp_path / "x.tar")
    with pytest.warns(CardWarning, match="edited"):
        unpack(tmp_path / "x.tar")
    assert content(root / NAME) == content(copy)
    (copy / "README.md").unlink()
    pack(copy, tmp_path / "y.tar")
    with pytest.warns(CardWarning, match="missing"):
        unpack(tmp_path / "y.tar", "lab/y-v0")
    assert content(root / "lab/y-v0") == content(copy)


def test_what_stands_there(thing, packed, root):
    other = licensed(root, license="MIT")
    before = content(other)
    with pytest.raises(ConflictError, match=r"another dataset|is not this bundle|did not write"):
        unpack(packed)
    assert content(other) == before
    shutil.rmtree(other)
    unpack(packed)
    card = root / NAME / "README.md"
    card.write_text("mine")
    assert unpack(packed).already_complete  # cards may be edited
    (root / NAME / largest(thing)).write_bytes(b"")
    with pytest.raises(PbvfError, match="--overwrite"):
        unpack(packed)
    (root / NAME / "notes").write_text("mine")
    with pytest.raises(ConflictError, match="notes"):
        unpack(packed, overwrite=True)
    (root / NAME / "notes").unlink()
    unpack(packed, overwrite=True)
    assert content(root / NAME) == content(thing)
    with pytest.raises(UsageError):
        unpack(packed, "..")


def test_another_dataset_is_replaced_when_asked(made, root, tmp_path):
    archive.pack(made, tmp_path / "x.tar")
    licensed(root, license="MIT")
    with pytest.raises(ConflictError, match="another dataset"):
        archive.unpack(tmp_path / "x.tar")
    archive.unpack(tmp_path / "x.tar", overwrite=True)
    assert content(root / NAME) == content(made)
    for bad in ("../x-v0", "x"):
        with pytest.raises(UsageError):
            archive.unpack(tmp_path / "x.tar", bad)


# --------------------------------------------------------------------------------- damage


def refused(file, data, root):
    """Unpack spoiled bytes; return the error."""
    file.write_bytes(data)
    with pytest.raises((DamagedError, UnsafeError, IncompatibleError)) as error:
        unpack(file)
    assert not (root / NAME).exists()
    assert "\n" not in str(error.value)
    return error.value


@pytest.mark.slow
def test_no_flipped_byte_goes_unnoticed(packed, root, tmp_path):
    data = packed.read_bytes()
    rng = random.Random(0)
    found = members(packed)
    offsets = {rng.randrange(len(data)) for _ in range(150)}
    for info, _ in found:  # all headers, and the first and last byte of each padding
        at = info.offset_data
        offsets |= set(range(at - BLOCK, at, 7)) | {at, at + info.size, at + info.size - 1}
        offsets.add(at + -(-info.size // BLOCK) * BLOCK - 1)
    offsets |= {len(data) - 1, len(data) - 1024, len(data) - RECORD // 2}
    for at in sorted(offsets):
        spoiled = bytearray(data)
        spoiled[at] ^= 1 << rng.randrange(8)
        refused(tmp_path / "x.tar", bytes(spoiled), root)
    assert names(root / "lab") == []


def test_damage_is_noticed_although_it_stands_there(thing, packed, root, tmp_path):
    unpack(packed)
    data = bytearray(packed.read_bytes())
    found = members(packed)
    data[found[position(found, thing)][0].offset_data + 3000] ^= 1
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(DamagedError, match="sha256"):
        unpack(tmp_path / "x.tar")


def test_no_truncation_goes_unnoticed(packed, root, tmp_path):
    data = packed.read_bytes()
    rng = random.Random(1)
    lengths = {rng.randrange(len(data)) for _ in range(60)} | {0, 1, 511, 512, len(data) - 1}
    for info, _ in members(packed):
        lengths |= {info.offset_data - BLOCK, info.offset_data, info.offset_data + info.size}
    for length in sorted(lengths):
        error = refused(tmp_path / "x.tar", data[:length], root)
        assert error.exit_code == 3, length


def test_what_follows_the_end(packed, root, tmp_path):
    data = packed.read_bytes()
    for more in (b"x", bytes(1), bytes(BLOCK), bytes(RECORD), data):
        assert "follows the end" in str(refused(tmp_path / "x.tar", data + more, root))
    hidden = bytearray(data)
    hidden[-BLOCK] = 1
    refused(tmp_path / "x.tar", bytes(hidden), root)


def test_two_changes_that_keep_the_checksum(packed, root, tmp_path):
    data = bytearray(packed.read_bytes())
    data[136:147] = b"00000000010"  # a time of 8 seconds …
    data[104:105] = b"5"  # … and other rights
    error = refused(tmp_path / "x.tar", bytes(data), root)
    assert error.exit_code == 3
    data = bytearray(packed.read_bytes())
    at = data.rfind(b"  README.md\n") - 1
    data[at] = ord("0") if data[at] != ord("0") else ord("1")
    assert "SHA256SUMS" in str(refused(tmp_path / "x.tar", bytes(data), root))


# -------------------------------------------------------------------------------- hostile


@pytest.mark.parametrize("name", MEMBERS)
def test_strange_members_are_exit_4(packed, root, tmp_path, name):
    secret = tmp_path / "secret"
    secret.mkdir()
    last = len(members(packed))
    for place in (0, 1, 3, last - 1, last):
        kinds = (UnsafeError, DamagedError) if place == 0 else UnsafeError
        file = rebuilt(packed, tmp_path / "x.tar", lambda f, at=place: f.insert(at, MEMBERS[name]))
        with watching(secret) as watch, pytest.raises(kinds):
            unpack(file)
        assert not any("passwd" in opened or "evil" in opened for opened in watch.opened)
        assert names(root) == []
        assert names(tmp_path) == ["root", "secret", "x.tar"]


def test_a_tar_that_other_programs_made_is_exit_3_and_says_what_to_do(thing, root, tmp_path):
    copy = Path(shutil.copytree(thing, tmp_path / "toy-v0"))
    for flags in ("-cf", "-czf"):
        command = ["tar", flags, tmp_path / "x.tar", "--format=gnu", "-C", tmp_path, copy.name]
        subprocess.run(command, check=True)
        with pytest.raises(DamagedError, match="pbvf dataset pack"):
            unpack(tmp_path / "x.tar")
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(content(copy)):
            archive.add(copy / name, f"toy-v0/{name}")
    with pytest.raises(DamagedError, match="pbvf dataset pack"):
        unpack(tmp_path / "x.tar")
    assert names(root) == []


def test_members_that_are_missing_or_elsewhere(packed, root, tmp_path):
    def swap(found):
        found[2], found[3] = found[3], found[2]

    for change in (lambda found: found.pop(3), swap, lambda found: found.pop(0)):
        with pytest.raises(DamagedError):
            unpack(rebuilt(packed, tmp_path / "x.tar", change))
    assert names(root) == []


def test_other_sizes_than_listed(thing, root, tmp_path, packed):
    def grow(found):
        at = position(found, thing)
        info, data = found[at]
        info.size += 1
        found[at] = info, data + b"x"

    with pytest.raises(DamagedError, match="the manifest says"):
        unpack(rebuilt(packed, tmp_path / "x.tar", grow))
    data = packed.read_bytes()
    with tarfile.open(packed) as archive:
        at = archive.getmember(f"toy-v0/{largest(thing)}").offset
    for size in (2**40, 2**70):
        huge = data[:at] + header(f"toy-v0/{largest(thing)}", size) + data[at + BLOCK :]
        assert refused(tmp_path / "x.tar", huge, root).exit_code == 3
    first = header("toy-v0/manifest.json", 2**35) + data[BLOCK:]
    assert refused(tmp_path / "x.tar", first, root).exit_code == 4


def test_a_manifest_that_lists_more_than_there_is(thing, root, tmp_path):
    copy = Path(shutil.copytree(thing, tmp_path / "copy"))
    rewrite_manifest(copy, lambda m: m["files"][largest(thing)].update(size=2**60))
    manifest = (copy / "manifest.json").read_bytes()
    head = header("toy-v0/manifest.json", len(manifest)) + manifest + bytes(-len(manifest) % BLOCK)
    error = refused(tmp_path / "x.tar", head + bytes(RECORD), root)
    assert error.exit_code == 4
    rewrite_manifest(copy, lambda m: m["files"].update({"../x": {"size": 1, "sha256": "0" * 64}}))
    manifest = (copy / "manifest.json").read_bytes()
    head = header("toy-v0/manifest.json", len(manifest)) + manifest + bytes(-len(manifest) % BLOCK)
    assert refused(tmp_path / "x.tar", head + bytes(RECORD), root).exit_code == 4


def test_files_that_are_no_archives(packed, root, tmp_path):
    file = tmp_path / "x.tar"
    for data in (
        b"",
        b"hello",
        bytes(RECORD),
        gzip.compress(packed.read_bytes()),
        b"PK\x03\x04" + bytes(2000),
        os.urandom(3 * RECORD),
    ):
        assert refused(file, data, root).exit_code == 3
    with pytest.raises(UsageError):
        unpack(tmp_path / "none.tar")
    with pytest.raises(UsageError, match="regular"):
        unpack(tmp_path)
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(UsageError, match="regular"):
        unpack(tmp_path / "pipe.tar")


def test_a_dangerous_dataset_never_arrives(made, root, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    with h5py.File(secret / "secret.h5", "w") as file:
        file["values"] = [1.0]
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    good = tmp_path / "good.tar"
    pack(copy, good)
    with h5py.File(copy / DATA, "r+", libver=("v110", "v110")) as file:
        file["episode_1/infos/more"] = h5py.ExternalLink(str(secret / "secret.h5"), "values")
    reseal(copy)
    with watching(secret) as watch:
        with pytest.raises(UnsafeError, match="external link"):
            pack(copy, tmp_path / "bad.tar")
        bad = _by_hand(copy, tmp_path / "bad.tar")
        with pytest.raises(UnsafeError, match="external link") as error:
            unpack(bad)
        assert watch.touched == []
    assert str(bad) in error.value.where
    assert names(root / "lab") == []


def _by_hand(folder, file):
    """Pack a folder as an attacker would, who can compute digests too."""
    files = content(folder)
    order = ["manifest.json", *sorted(set(files) - {"manifest.json"})]
    sums = "".join(f"{hashlib.sha256(files[n]).hexdigest()}  {n}\n" for n in order).encode()
    out = b""
    for name, data in [*((n, files[n]) for n in order), ("SHA256SUMS", sums)]:
        out += header(f"toy-v0/{name}", len(data)) + data + bytes(-len(data) % BLOCK)
    out += bytes(2 * BLOCK)
    file.write_bytes(out + bytes(-len(out) % RECORD))
    return file


def test_the_folder_is_named_as_it_calls_itself(thing, packed, root, tmp_path):
    assert _by_hand(thing, tmp_path / "x.tar").read_bytes() == packed.read_bytes()
    renamed = packed.read_bytes()
    for info, _ in members(packed):
        name = info.name.replace("toy-v0/", "boy-v0/", 1)
        at = info.offset_data - BLOCK
        renamed = renamed[:at] + header(name, info.size) + renamed[at + BLOCK :]
    assert "its folder is called" in str(refused(tmp_path / "y.tar", renamed, root))


def test_a_dataset_without_a_usable_name_needs_one(made, root, tmp_path):
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    path = copy / "data/metadata.json"
    metadata = json.loads(path.read_text())
    for named in ("../../evil", "lab/../../x-v0", None, 7):
        path.write_text(json.dumps({**metadata, "dataset_id": named}))
        reseal(copy)
        pack(copy, tmp_path / "x.tar", overwrite=True)
        with pytest.raises(UsageError, match="give an id"):
            unpack(tmp_path / "x.tar", None)
    unpack(tmp_path / "x.tar", NAME)
    assert content(root / NAME) == content(copy)
    assert names(tmp_path) == ["copy", "root", "x.tar"]


def test_a_whole_archive_of_a_wrong_dataset_is_damaged(made, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(made, tmp_path / "wrong-v0"))
    with h5py.File(folder / DATA, "r+") as file:
        file["episode_0/rewards"][0] = np.nan
    reseal(folder)
    monkeypatch.setattr(archive, "check_content", lambda *_: None)  # as another program packs
    pack(folder, tmp_path / "wrong.tar")
    found = archive.verify_archive(tmp_path / "wrong.tar")
    assert (found.kind, found.status, found.path) == ("archive", "damaged", tmp_path / "wrong.tar")
    assert str(found.error).startswith(f"{tmp_path / 'wrong.tar'}/{DATA}: episode_0/rewards")

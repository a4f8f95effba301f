"""Signatures: who vouches for a manifest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli_tools import content
from hostile import rewrite_manifest
from pbvf_datasets.share import signing
from pbvf_datasets.share.archive import pack, unpack
from pbvf_datasets.share.signing import (
    SIGNATURE_FILE,
    KeyWarning,
    check_signature,
    load_public_key,
    make_keys,
    sign_dataset,
)
from pbvf_datasets.share.transfer import pull, push
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from share_tools import NAME, names, serving

pytest.importorskip("cryptography")


@pytest.fixture
def folder(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "toy"))


@pytest.fixture
def keys(tmp_path):
    return make_keys(tmp_path / "lab.key")


def test_keys_are_private_and_never_overwritten(tmp_path):
    old = os.umask(0)
    try:
        keys = make_keys(tmp_path / "lab.key")
    finally:
        os.umask(old)
    assert keys.private.stat().st_mode & 0o777 == 0o600
    assert keys.public == tmp_path / "lab.key.pub"
    before = content(tmp_path)
    assert b"PRIVATE" not in before["lab.key.pub"]
    for exists in ("lab.key", "lab.key.pub"):
        with pytest.raises(ConflictError, match="never overwritten") as error:
            make_keys(tmp_path / "lab.key")
        assert error.value.exit_code == 7
        assert content(tmp_path) == before
        (tmp_path / exists).unlink()
        before = content(tmp_path)
        if exists == "lab.key":
            continue
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConflictError):
        make_keys(tmp_path / "dangling")
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(ResourceError, match="no such folder"):
        make_keys(tmp_path / "none/lab.key")


def test_signed_and_checked(folder, keys, tmp_path):
    signed = sign_dataset(folder, keys.private)
    assert signed.fingerprint == keys.fingerprint
    assert (folder / SIGNATURE_FILE).stat().st_size == 64
    assert check_signature(folder, keys.public).fingerprint == keys.fingerprint
    assert sign_dataset(folder, keys.private).already_complete
    other = make_keys(tmp_path / "other.key")
    with pytest.raises(UnsafeError, match="not made with the key") as error:
        check_signature(folder, other.public)
    assert error.value.exit_code == 4
    with pytest.raises(ConflictError, match="--overwrite"):
        sign_dataset(folder, other.private)
    check_signature(folder, keys.public)
    sign_dataset(folder, other.private, overwrite=True)
    check_signature(folder, other.public)


def test_what_a_signature_notices(folder, keys):
    with pytest.raises(UnsafeError, match="not signed") as error:
        check_signature(folder, keys.public)
    assert error.value.exit_code == 4
    sign_dataset(folder, keys.private)
    manifest = (folder / "manifest.json").read_bytes()
    rewrite_manifest(folder, lambda m: m["provenance"].update(license="MIT"))
    with pytest.raises(UnsafeError, match="another manifest"):
        check_signature(folder, keys.public)  # all digests fit, and yet
    (folder / "manifest.json").write_bytes(manifest)
    check_signature(folder, keys.public)
    (folder / "data/metadata.json").write_bytes(b"")
    with pytest.raises(DamagedError):
        check_signature(folder, keys.public)
    with pytest.raises(DamagedError):
        sign_dataset(folder, keys.private)


@pytest.mark.parametrize("spoil", [b"", bytes(63), bytes(65)])
def test_malformed_signatures(folder, keys, spoil):
    (folder / SIGNATURE_FILE).write_bytes(spoil)
    with pytest.raises(DamagedError, match="a signature has 64"):
        check_signature(folder, keys.public)
    (folder / SIGNATURE_FILE).unlink()
    (folder / SIGNATURE_FILE).symlink_to("/etc/hostname")
    with pytest.raises(UnsafeError, match="link"):
        check_signature(folder, keys.public)


def test_files_that_are_no_keys(folder, keys, tmp_path):
    odd = tmp_path / "odd"
    for data in (b"", b"hello", keys.public.read_bytes()[:40], bytes(100_000)):
        odd.write_bytes(data)
        for call in (check_signature, sign_dataset):
            with pytest.raises(
                UsageError, match=r"not a (private|public) key; .*pbvf dataset keygen"
            ):
                call(folder, odd)
    with pytest.raises(UsageError, match="private key"):
        load_public_key(keys.private)
    with pytest.raises(UsageError, match="not a private key"):
        sign_dataset(folder, keys.public)
    with pytest.raises(UsageError, match="does not exist"):
        check_signature(folder, tmp_path / "none")
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    curve = generate_private_key(SECP256R1())
    odd.write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(UsageError, match="not an Ed25519"):
        sign_dataset(folder, odd)
    odd.write_bytes(
        curve.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(UsageError, match="not an Ed25519"):
        load_public_key(odd)
    locked = BestAvailableEncryption(b"secret")
    odd.write_bytes(
        Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
    )
    with pytest.raises(UsageError, match="passphrase"):
        sign_dataset(folder, odd)
    assert not (folder / SIGNATURE_FILE).exists()


def test_a_key_that_others_can_read_warns(folder, keys):
    keys.private.chmod(0o644)
    with pytest.warns(KeyWarning, match="chmod 600"):
        sign_dataset(folder, keys.private)


def test_openssh_keys_and_fingerprints(folder, tmp_path):
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen")
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signed = sign_dataset(folder, key)
    check_signature(folder, tmp_path / "id.pub")
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", key], check=True, capture_output=True, text=True
    )
    assert signed.fingerprint in shown.stdout


def test_openssl_checks_it_too(folder, keys):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    sign_dataset(folder, keys.private)
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(keys.public), "-rawin"]
    command += ["-in", "manifest.json", "-sigfile", SIGNATURE_FILE]
    good = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    (folder / "manifest.json").write_bytes(b"{}")
    assert subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode != 0


def test_signatures_travel_and_can_be_required(folder, keys, root, tmp_path):
    other = make_keys(tmp_path / "other.key")
    pack(folder, tmp_path / "bare.tar")
    with serving(folder) as web:
        for call in (
            lambda key: pull(web.url, NAME, public_key=key),
            lambda key: pull(str(folder), NAME, public_key=key),
            lambda key: unpack(tmp_path / "bare.tar", public_key=key),
        ):
            with pytest.raises(UnsafeError, match="not signed"):
                call(keys.public)
        sign_dataset(folder, keys.private)
        pack(folder, tmp_path / "signed.tar")
        push(folder, str(tmp_path / "there"))
        with pytest.raises(UnsafeError, match="not made with"):
            pull(web.url, NAME, public_key=other.public)
        with pytest.raises(UnsafeError, match="not made with"):
            unpack(tmp_path / "signed.tar", public_key=other.public)
        assert names(root) == []
        arrived = pull(web.url, NAME, public_key=keys.public)
    assert arrived.signed_by == keys.fingerprint
    assert content(root / NAME) == content(folder)
    assert unpack(tmp_path / "signed.tar", "lab/b-v0", public_key=keys.public).signed_by
    pull(str(tmp_path / "there"), "lab/c-v0", public_key=keys.public)
    for name in (NAME, "lab/b-v0", "lab/c-v0"):
        check_signature(name, keys.public)


def test_a_signature_that_came_later_follows(folder, keys, root, tmp_path):
    other = make_keys(tmp_path / "other.key")
    there = tmp_path / "there"
    push(folder, str(there))
    pull(str(there), NAME)
    pull(str(there), "lab/b-v0")
    sign_dataset(folder, keys.private)
    pack(folder, tmp_path / "signed.tar")
    assert push(folder, str(there)).sent == 64
    assert push(folder, str(there)).already_complete
    assert pull(str(there), NAME).fetched == 64
    assert pull(str(there), NAME).already_complete
    assert not unpack(tmp_path / "signed.tar", "lab/b-v0").already_complete
    for name in (there, NAME, "lab/b-v0"):
        check_signature(name, keys.public)
    sign_dataset(folder, other.private, overwrite=True)
    push(folder, str(there))
    assert pull(str(there), NAME).already_complete  # the one that is here stays, …
    check_signature(NAME, keys.public)
    pull(str(there), NAME, overwrite=True)  # … unless told otherwise
    check_signature(NAME, other.public)
    assert content(root / NAME) == content(folder)


@pytest.mark.parametrize("way", ["pull", "unpack"])
def test_what_is_said_to_be_signed_is_so_here(folder, keys, root, tmp_path, way):
    here, other = root / NAME, make_keys(tmp_path / "other.key")

    def take(key=other.public, **options):
        if way == "pull":
            return pull(str(folder), NAME, public_key=key, **options)
        return unpack(tmp_path / "toy.tar", NAME, public_key=key, **options)

    sign_dataset(folder, keys.private)
    pull(str(folder), NAME)
    sign_dataset(folder, other.private, overwrite=True)
    pack(folder, tmp_path / "toy.tar")
    signed = (here / SIGNATURE_FILE).read_bytes()
    for there in (signed, bytes(64), b"", None):
        if there is None:  # other bytes of the same manifest
            (here / SIGNATURE_FILE).unlink()
            manifest = json.loads((here / "manifest.json").read_bytes())
            (here / "manifest.json").write_text(json.dumps(manifest, indent=1))
        else:
            (here / SIGNATURE_FILE).write_bytes(there)
        before = content(here)
        with pytest.raises(ConflictError, match=r"not signed by the key SHA.*--overwrite") as error:
            take()
        assert error.value.exit_code == 7
        assert content(here) == before
        assert take(None).signed_by is None
        (here / SIGNATURE_FILE).unlink(missing_ok=True)
        for name, data in before.items():
            (here / name).write_bytes(data)
        assert take(overwrite=True).signed_by == other.fingerprint
        check_signature(NAME, other.public)
        assert content(here) == content(folder)
        assert take().already_complete


def test_the_manifest_that_was_checked_is_the_one_that_is_signed(
    thing, keys, tmp_path, monkeypatch
):
    folder = Path(shutil.copytree(thing, tmp_path / "toy"))
    manifest = folder / "manifest.json"
    sign_dataset(folder, keys.private)
    good = manifest.read_bytes()
    rewrite_manifest(folder, lambda m: m["provenance"].update(license="MIT"))
    bad = manifest.read_bytes()

    def and_then(call):
        def replaced(*arguments, **options):
            found = call(*arguments, **options)
            manifest.write_bytes(good)
            return found

        return replaced

    for name in ("open_folder", "open_bundle"):
        monkeypatch.setattr(signing, name, and_then(getattr(signing, name)))
    with pytest.raises(DamagedError, match="changed while it was being checked"):
        check_signature(folder, keys.public)  # the files fit the bad one
    manifest.write_bytes(bad)
    (folder / SIGNATURE_FILE).unlink()
    with pytest.raises(DamagedError, match="changed while it was being checked"):
        sign_dataset(folder, keys.private)
    assert not (folder / SIGNATURE_FILE).exists()


def test_without_the_package_the_extra_is_named(folder, keys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for call in (
        lambda: make_keys(folder.parent / "more.key"),
        lambda: sign_dataset(folder, keys.private),
        lambda: check_signature(folder, keys.public),
        lambda: load_public_key(keys.public),
    ):
        with pytest.raises(UsageError, match=r"pbvf-offline\[sign\]") as error:
            call()
        assert error.value.exit_code == 2

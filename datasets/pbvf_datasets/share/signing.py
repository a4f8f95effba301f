"""Who vouches for a dataset: a detached Ed25519 signature over ``manifest.json``.

The digests in a manifest show that the files are the ones it lists. Whoever changes the files
can write a new manifest that fits them; only a signature tells the two apart, and only for a
reader who has the author's public key from somewhere else.

``manifest.json.sig`` holds the 64 bytes of the signature of the very bytes of
``manifest.json``, so that other programs (OpenSSL, say) make and check it as well. The
package ``cryptography`` is imported where it is needed, and nowhere else.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pbvf_datasets.format.bundle import is_bundle, parse_bundle
from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES, parse_manifest
from pbvf_datasets.format.names import resolve_dataset
from pbvf_datasets.format.schema import MANIFEST_FILE, SIGNATURE_FILE
from pbvf_datasets.inspect.bundle import open_bundle
from pbvf_datasets.read.untrusted import open_folder
from pbvf_offline.errors import ConflictError, DamagedError, ResourceError, UnsafeError, UsageError
from pbvf_offline.io.durable import (
    check_above,
    path_exists,
    resource_errors,
    sync_folder,
    write_durably,
    write_error,
)
from pbvf_offline.io.reading import read_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )


SIGNATURE_BYTES: Final = 64
MAX_KEY_BYTES: Final = 64 * 2**10
_PRIVATE: Final = "make one with 'pbvf dataset keygen'"
_PUBLIC: Final = "'pbvf dataset keygen FILE' writes one to FILE.pub"
_HINT: Final = "pip install 'pbvf-offline[sign]'"


class KeyWarning(UserWarning):
    """Others can read a private key."""


@dataclass(frozen=True)
class KeyPair:
    """A new pair of keys.

    Attributes:
        private: File of the private key; only its owner can read it.
        public: File of the public key, for everybody.
        fingerprint: What tells the key from others: see :func:`fingerprint`.
    """

    private: Path
    public: Path
    fingerprint: str


@dataclass(frozen=True)
class Signed:
    """A dataset with a signature that was made or found good.

    Attributes:
        path: The dataset's folder.
        digest: Its manifest's digest.
        fingerprint: Of the key.
        already_complete: Whether the signature was there before.
    """

    path: Path
    digest: str
    fingerprint: str
    already_complete: bool = False


def make_keys(path: Path) -> KeyPair:
    """Make a pair of keys: ``path`` with the private one, ``path.pub`` with the public one.

    Raises:
        ConflictError: One of the files exists; a private key is never overwritten.
        UsageError: ``cryptography`` is not installed.
        ResourceError: The folder cannot be written.
    """
    ed25519, form = _cryptography()
    check_above(path)
    if not path_exists(path.parent):
        raise ResourceError("there is no such folder", where=path.parent, remedy="make it first")
    public_path = path.with_name(path.name + ".pub")
    for file in (path, public_path):
        if path_exists(file):
            raise ConflictError(
                "exists, and keys are never overwritten", where=file, remedy="name another file"
            )
    key = ed25519.Ed25519PrivateKey.generate()
    public = key.public_key()
    pem, plain = form.Encoding.PEM, form.NoEncryption()
    private_bytes = key.private_bytes(pem, form.PrivateFormat.PKCS8, plain)
    public_bytes = public.public_bytes(pem, form.PublicFormat.SubjectPublicKeyInfo)
    try:
        _create(path, private_bytes, 0o600)
        _create(public_path, public_bytes, 0o644)
        sync_folder(path.parent)
    except FileExistsError as error:
        raise ConflictError(
            "exists, and keys are never overwritten", where=error.filename, remedy="name another"
        ) from error
    except OSError as error:
        raise write_error(error, path) from error
    return KeyPair(path, public_path, fingerprint(public))


def _create(path: Path, data: bytes, mode: int) -> None:
    """Write a new file, whole or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def sign_dataset(
    dataset: str | os.PathLike[str],
    key: Path,
    *,
    overwrite: bool = False,
    root: Path | None = None,
) -> Signed:
    """Sign the manifest of a dataset or bundle, after a check that its files fit it.

    Args:
        dataset: An id, or the folder.
        key: File of the private key.
        overwrite: Replace another signature.
        root: Folder of datasets.

    Raises:
        UsageError: There is no such dataset or key, or ``cryptography`` is not installed.
        UnsafeError: The dataset has no manifest.
        DamagedError: A file is not the one that the manifest lists, or that changed meanwhile.
        ConflictError: Another signature is there.
        ResourceError: The folder cannot be written.
    """
    private = _private_key(key)
    path, digest, manifest = _checked(dataset, root)
    signature = private.sign(manifest)
    signed = Signed(path, digest, fingerprint(private.public_key()))
    file = path / SIGNATURE_FILE
    if path_exists(file) and not overwrite:
        if not file.is_symlink() and read_file(file, MAX_KEY_BYTES) == signature:
            return Signed(path, digest, signed.fingerprint, already_complete=True)
        raise ConflictError(
            "another signature is there", where=file, remedy="replace it with --overwrite"
        )
    with resource_errors(file):
        write_durably(file, signature)
    return signed


def _checked(dataset: str | os.PathLike[str], root: Path | None) -> tuple[Path, str, bytes]:
    """Return folder, digest and manifest of a dataset or bundle whose files fit that manifest."""
    path = resolve_dataset(dataset, root)
    where = path / MANIFEST_FILE
    if is_bundle(path):
        parse, digest = parse_bundle, open_bundle(path)["digest"]
    else:
        with open_folder(path, require_manifest=True, warn=False) as folder:
            parse, digest = parse_manifest, folder.digest
    manifest = read_file(where, MAX_MANIFEST_BYTES)
    if parse(manifest, where)["digest"] != digest:
        raise DamagedError(
            "it changed while it was being checked",
            where=where,
            remedy="run the same command again",
        )
    return path, digest, manifest


def check_signature(
    dataset: str | os.PathLike[str], public_key: Path, *, root: Path | None = None
) -> Signed:
    """Check that the files of a dataset or bundle fit its manifest and a key's owner signed it.

    Args:
        dataset: An id, or the folder.
        public_key: File of the public key, from its owner and not from beside the dataset.
        root: Folder of datasets.

    Raises:
        UsageError: There is no such dataset or key, or ``cryptography`` is not installed.
        UnsafeError: There is no manifest or signature, or another key signed.
        DamagedError: A file is not the one that the manifest lists, or that changed meanwhile, or
            the signature is none.
    """
    public = load_public_key(public_key)
    path, digest, manifest = _checked(dataset, root)
    require_signature(manifest, read_signature(path), public, path)
    return Signed(path, digest, fingerprint(public), already_complete=True)


def read_signature(folder: Path) -> bytes | None:
    """Return the bytes of a dataset's signature, or None without one.

    Raises:
        UnsafeError: It is a link or device.
        DamagedError: It is not as long as a signature.
    """
    file = folder / SIGNATURE_FILE
    if not path_exists(file):
        return None
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeError("this is not a regular file", where=file)
    if status.st_size != SIGNATURE_BYTES:
        raise DamagedError(
            f"it has {status.st_size:,} bytes; a signature has {SIGNATURE_BYTES}", where=file
        )
    return read_file(file, SIGNATURE_BYTES)


def require_signature(
    manifest: bytes, signature: bytes | None, key: Ed25519PublicKey, where: str | os.PathLike[str]
) -> None:
    """Check that the owner of a key signed a manifest.

    Args:
        manifest: The bytes of ``manifest.json``.
        signature: The bytes beside it, or None when there are none.
        key: The public key.
        where: The dataset, for messages.

    Raises:
        UnsafeError: There is no signature, or it was not made with this key.
    """
    from cryptography.exceptions import InvalidSignature

    if signature is None:
        raise UnsafeError(
            "it is not signed", where=where, remedy="ask its author for the signature"
        )
    try:
        key.verify(signature, manifest)
    except InvalidSignature as error:
        raise UnsafeError(
            f"its signature was not made with the key {fingerprint(key)}, or for another manifest",
            where=where,
            remedy="ask its author which key is right, and do not use the data until then",
        ) from error


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key: PEM, or one line as in OpenSSH's ``id_ed25519.pub``.

    Raises:
        UsageError: It is something else, or ``cryptography`` is not installed.
    """
    ed25519, form = _cryptography()
    data = _read_key(path, "public", _PUBLIC)
    if b"PRIVATE KEY-----" in data:
        raise UsageError(
            "is a private key", where=path, remedy="give the public key, usually FILE.pub"
        )
    load = form.load_ssh_public_key if data.startswith(b"ssh-") else form.load_pem_public_key
    key: Ed25519PublicKey = _loaded(
        path, "public", lambda: load(data), ed25519.Ed25519PublicKey, _PUBLIC
    )
    return key


def _private_key(path: Path) -> Ed25519PrivateKey:
    ed25519, form = _cryptography()
    data = _read_key(path, "private", _PRIVATE)
    ssh = b"OPENSSH PRIVATE KEY" in data
    load = form.load_ssh_private_key if ssh else form.load_pem_private_key
    try:
        key: Ed25519PrivateKey = _loaded(
            path,
            "private",
            lambda: load(data, None),
            ed25519.Ed25519PrivateKey,
            _PRIVATE,
        )
    except TypeError as error:  # how the library says that a passphrase is missing
        raise UsageError(
            "is encrypted with a passphrase, which is not supported",
            where=path,
            remedy="make a key with 'pbvf dataset keygen'",
        ) from error
    if path.stat().st_mode & 0o077:
        warnings.warn(
            f"{path}: others on this machine can read this private key; run chmod 600 on it",
            KeyWarning,
            stacklevel=3,
        )
    return key


def _read_key(path: Path, what: str, remedy: str) -> bytes:
    """Return the bytes of a file that is short enough for a key."""
    try:
        return read_file(path, MAX_KEY_BYTES)
    except UnsafeError as error:
        raise UsageError(f"is not a {what} key", where=path, remedy=remedy) from error


def _loaded(path: Path, what: str, load: Callable[[], Any], kind: type, remedy: str) -> Any:
    """Return a key that is of the kind wanted."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        key = load()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"is not a {what} key", where=path, remedy=remedy) from error
    if not isinstance(key, kind):
        raise UsageError("is not an Ed25519 key", where=path, remedy=remedy)
    return key


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return ``SHA256:…``, as OpenSSH shows for the same key."""
    _, form = _cryptography()
    line = key.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _cryptography() -> tuple[Any, Any]:
    """Return the modules of that package with the keys and with the forms they are stored in."""
    try:
        import cryptography  # noqa: F401
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise UsageError("signatures need the package cryptography", remedy=_HINT) from error
    return ed25519, serialization

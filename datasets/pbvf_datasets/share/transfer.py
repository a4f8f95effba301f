"""Push and pull: datasets to and from elsewhere, whole or not at all.

A dataset at a remote is its files under their own names. The manifest is sent last and fetched
first: where one is, the rest is too, and it says size and digest of all that may follow it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES
from pbvf_datasets.format.names import new_dataset_path
from pbvf_datasets.format.schema import (
    CARD_FILE,
    CROISSANT_FILE,
    MANIFEST_FILE,
    SIGNATURE_FILE,
)
from pbvf_datasets.share.fetching import FetchedFolder, part_of, retry
from pbvf_datasets.share.forms import Forms, Progress, form_of, only_datasets
from pbvf_datasets.share.outgoing import (
    AsChecked,
    Outgoing,
    check_content,
    check_sendable,
    outgoing,
    read_whole,
)
from pbvf_datasets.share.receiving import (
    CHUNK,
    ReceiveResult,
    receive,
    silent,
    update_file,
)
from pbvf_datasets.share.remote import (
    MissingFileError,
    Remote,
    WritableRemote,
)
from pbvf_datasets.share.remotes import remote_at
from pbvf_datasets.share.remotes.folder import FolderRemote
from pbvf_datasets.share.signing import (
    load_public_key,
)
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    NetworkError,
    PbvfError,
    UsageError,
)

_SMALL: Final = frozenset((CARD_FILE, SIGNATURE_FILE))
"""What may differ beside the same manifest."""


@dataclass(frozen=True)
class Pushed:
    """What became of a push.

    Attributes:
        dataset: The dataset's id.
        remote: Where to, without credentials.
        digest: The manifest's digest.
        files: Size of each file there, in bytes.
        sent: Bytes that were sent; what was there before is not sent again.
        already_complete: Whether there was nothing to send.
    """

    dataset: str
    remote: str
    digest: str
    files: dict[str, int]
    sent: int
    already_complete: bool


# -------------------------------------------------------------------------------- push


def push(
    dataset: str | os.PathLike[str],
    remote: str,
    *,
    overwrite: bool = False,
    allow: Collection[str] = (),
    root: Path | None = None,
    forms: Forms | None = None,
    verifying: Progress | None = None,
    progress: Progress | None = None,
) -> Pushed:
    """Send a dataset to a folder or to what fsspec reaches; the manifest goes last.

    The dataset is verified before the first byte goes out, unless all data are there already.
    The same call goes on where an interrupted one stopped, after it verified the dataset anew.

    Args:
        dataset: An id, or the folder.
        remote: Where to: a folder's path, or an address such as ``s3://bucket/name``.
        overwrite: Replace another dataset there.
        allow: Words and paths that may go out; see :func:`check_sendable`.
        root: Folder of datasets.
        forms: What may be sent; datasets alone when None.
        verifying: Told how many steps are verified and of how many.
        progress: Told how many bytes are sent and of how many.

    Raises:
        UsageError: There is no such dataset; it has no manifest or no licence, or gives this
            machine away; nothing can be sent to such an address.
        DamagedError: A file of the dataset is not the one that its manifest lists, its content
            does not agree with itself, or it changed meanwhile.
        UnsafeError: It could harm those who get it.
        IncompatibleError: Its content cannot be checked to its end.
        ConflictError: Something else is there.
        NetworkError: The remote cannot be reached, or refuses.
        ResourceError: The disk refuses.
    """
    target = remote_at(remote)
    if not isinstance(target, FolderRemote | WritableRemote):
        raise UsageError(
            "nothing can be sent to such an address: it is for pull alone",
            where=target.shown,
            remedy="push to a folder, s3://, gs:// or hf://datasets/NAME/…",
        )
    forms = forms or only_datasets(root)
    out = outgoing(dataset, root, forms)
    check_sendable(out, allow)
    told, check = progress or silent, functools.partial(check_content, out, verifying)
    if isinstance(target, FolderRemote):
        folder = target.named()
        sent = _push_here(out, folder, check, forms, overwrite=overwrite, progress=told)
    else:
        sent = _push_away(out, target, check, forms, overwrite=overwrite, progress=told)
    sizes = {name: entry["size"] for name, entry in sorted(out.files.items())}
    return Pushed(
        dataset=out.name,
        remote=target.shown,
        digest=out.digest,
        files={**sizes, MANIFEST_FILE: len(out.manifest)},
        sent=sent,
        already_complete=sent == 0,
    )


def _push_here(
    out: Outgoing,
    target: Path,
    check: Callable[[], None],
    forms: Forms,
    *,
    overwrite: bool,
    progress: Progress,
) -> int:
    if target.exists() and target.samefile(out.path):
        what = f"this is the {out.form.what} itself"
        raise UsageError(what, where=target, remedy="name another place")
    source = FetchedFolder(AsChecked(out), forms, progress)
    received = receive(out.form, source, target, overwrite=overwrite, check=check)
    if not received.was_there:
        return received.fetched
    return received.fetched + sum(
        update_file(target, name, data, replace=True)
        for name, data in ((CARD_FILE, out.card), (SIGNATURE_FILE, out.signature))
    )


def _push_away(
    out: Outgoing,
    remote: WritableRemote,
    check: Callable[[], None],
    forms: Forms,
    *,
    overwrite: bool,
    progress: Progress,
) -> int:
    there = retry(lambda: read_whole(remote, MANIFEST_FILE, MAX_MANIFEST_BYTES), remote)
    same = there == out.manifest
    if there is not None and not same and not overwrite:
        raise ConflictError(
            f"{_what_is_there(there, forms)} is there",
            where=remote.shown,
            remedy="choose another remote, or replace it with --overwrite",
        )
    wanted = [
        name
        for name, entry in out.files.items()
        if not _is_there(remote, name, entry, trusted=same, overwrite=overwrite)
    ]
    if not wanted and same:
        return 0
    if not same or not _SMALL.issuperset(wanted):
        check()
    total = sum(out.files[name]["size"] for name in wanted)
    if there is not None and not same:
        # From here on nothing is whole there, and no reader must take it to be.
        retry(lambda: remote.remove(MANIFEST_FILE), remote)
    if overwrite and not same:
        old = {CROISSANT_FILE, CARD_FILE, SIGNATURE_FILE, *_files_of(there, forms)}
        for name in sorted(old - set(out.files)):
            retry(functools.partial(remote.remove, name), remote)
    done = 0
    for name in wanted:
        _send(remote, out, name, part_of(progress, done, total))
        done += out.files[name]["size"]
        progress(done, total)
    if not same:
        _send(remote, out, MANIFEST_FILE, lambda _: None)
        done += len(out.manifest)
    return done


def _parsed(manifest: bytes | None, forms: Forms) -> tuple[str, dict[str, Any]] | None:
    """Return what a remote holds by its manifest, and that; None: nothing that may be sent."""
    with contextlib.suppress(PbvfError):
        if manifest is not None:
            form = form_of(manifest, forms, "")
            return form.what, form.parse(manifest, "")
    return None


def _files_of(manifest: bytes | None, forms: Forms) -> list[str]:
    found = _parsed(manifest, forms)
    return [] if found is None else list(found[1]["files"])


def _what_is_there(manifest: bytes, forms: Forms) -> str:
    found = _parsed(manifest, forms)
    if found is None:
        return "a manifest.json that is no dataset's, or a damaged one,"
    return f"another {found[0]} (its digest is {found[1]['digest'][:16]}…)"


def _is_there(
    remote: WritableRemote, name: str, entry: Mapping[str, Any], *, trusted: bool, overwrite: bool
) -> bool:
    """Whether a file need not be sent.

    Beside the same manifest the data are right when their sizes are; the small files that
    manifest or digests do not cover are compared. Without it everything is read and compared.

    Raises:
        ConflictError: Another file of that name is there.
    """
    size = retry(lambda: remote.size(name), remote)
    if size is None:
        return False
    if size == entry["size"]:
        if trusted and name not in _SMALL:
            return True
        if retry(lambda: _digest(remote, name, size), remote) == entry["sha256"]:
            return True
    if trusted or overwrite:
        return False
    raise ConflictError(
        "another file is there, and no manifest that lists it",
        where=f"{remote.shown}/{name}",
        remedy="choose another remote, or replace it with --overwrite",
    )


def _digest(remote: Remote, name: str, size: int) -> str | None:
    """Return the sha256 of a file at a remote, or None when it has another size."""
    digest, done = hashlib.sha256(), 0
    try:
        with remote.open(name) as incoming:
            while chunk := incoming.read(CHUNK):
                digest.update(chunk)
                done += len(chunk)
                if done > size:
                    return None
    except MissingFileError:
        return None
    return digest.hexdigest() if done == size else None


def _send(remote: WritableRemote, out: Outgoing, name: str, told: Callable[[int], None]) -> None:
    """Send a file, if it is the one that was checked.

    Raises:
        DamagedError: It changed since, or while it was being sent; then it is not there.
    """
    file = out.path / name
    if name == MANIFEST_FILE:
        size, digest = len(out.manifest), hashlib.sha256(out.manifest).hexdigest()
    else:
        size, digest = out.files[name]["size"], out.files[name]["sha256"]
    changed = DamagedError(
        "the file changed while the dataset was being sent", where=file, remedy="push again"
    )
    # The package under fsspec reads the file itself: that nobody writes to it from before its
    # digest is taken until it was read is all that can be watched.
    before = _identity(file)
    if before is None or _digest(FolderRemote(out.path), name, size) != digest:
        raise changed
    retry(lambda: remote.put(name, file, told), remote)
    if _identity(file) != before:
        retry(lambda: remote.remove(name), remote)
        raise changed
    found = retry(lambda: remote.size(name), remote)
    if found != size:
        raise NetworkError(
            f"{size:,} bytes were sent, and {found or 0:,} are there",
            where=f"{remote.shown}/{name}",
            remedy="push again",
        )


def _identity(file: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is written to or replaced, or None when it is gone."""
    try:
        status = file.stat()
    except OSError:
        return None
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


# -------------------------------------------------------------------------------- pull


def pull(
    remote: str,
    dataset_id: str,
    *,
    overwrite: bool = False,
    public_key: Path | None = None,
    root: Path | None = None,
    forms: Forms | None = None,
    progress: Progress | None = None,
) -> ReceiveResult:
    """Fetch a dataset; the manifest comes first, and nothing is visible before all is checked.

    The same call goes on where an interrupted one stopped.

    Args:
        remote: Where from: a folder's path, or an address of the web or of what fsspec reaches.
        dataset_id: What to call it here.
        overwrite: Replace another dataset of this id.
        public_key: File of a key whose owner must have signed the dataset.
        root: Folder of datasets.
        forms: What may be fetched; datasets alone when None.
        progress: Told how many bytes are done and of how many.

    Raises:
        UsageError: There is no dataset at that remote, or the id is malformed.
        DamagedError: What comes is not what the manifest lists.
        UnsafeError: It could run code, read other files or exhaust the machine, or is not
            signed as asked.
        IncompatibleError: It is of another format version.
        ConflictError: Another dataset of this id is here, or this one without the signature asked
            for, or another process is at it.
        NetworkError: The remote cannot be reached, or refuses.
        ResourceError: The disk refuses.
    """
    if forms is None:
        new_dataset_path(dataset_id, root)  # a malformed id needs no connection
    key = None if public_key is None else load_public_key(public_key)
    source = FetchedFolder(remote_at(remote), forms or only_datasets(root), progress or silent)
    name, path = source.form.place(dataset_id, None, Path(source.shown))
    return receive(source.form, source, path, name, overwrite=overwrite, key=key)

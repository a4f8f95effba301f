"""Push and pull: datasets to and from other places, whole or not at all.

A dataset at a place is its files under their own names. The manifest is sent last and fetched
first: where one is, the rest is too, and it says size and digest of all that may follow it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import os
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES, parse_manifest
from pbvf_datasets.format.schema import (
    CARD_FILE,
    CROISSANT_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    SIGNATURE_FILE,
    new_dataset_path,
    resolve_dataset,
)
from pbvf_datasets.inspect.verify import verify
from pbvf_datasets.read.untrusted import MAX_CARD_BYTES, CheckedFolder, open_folder
from pbvf_datasets.share.arrival import (
    CHUNK,
    Arrival,
    Progress,
    arrival_work,
    card_differs,
    listed_files,
    named_folder,
    renew,
    silent,
    stands,
)
from pbvf_datasets.share.privacy import Machine, find_private
from pbvf_datasets.share.remotes import (
    BrokenError,
    FsspecPlace,
    Incoming,
    LocalPlace,
    MissingFileError,
    Place,
    is_http,
    local_path,
    shown_address,
    source_at,
)
from pbvf_datasets.share.signing import (
    SIGNATURE_BYTES,
    load_public_key,
    read_signature,
    require_signature,
)
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    NetworkError,
    PbvfError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.durable import path_exists
from pbvf_offline.io.tensor_file import read_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

T = TypeVar("T")

_SMALL: Final = frozenset((CARD_FILE, SIGNATURE_FILE))
"""What may differ beside the same manifest."""
_COMMAND_AGAIN: Final = "run the same command again"
_NO_LICENSE: Final = ("", "none", "noassertion", "unknown")
_SHOWN_FINDINGS: Final = 8


class SignatureWarning(UserWarning):
    """What stands in a signature's place is none."""


@dataclass(frozen=True)
class Outgoing:
    """A dataset that may be sent.

    Attributes:
        path: Its folder.
        named: What its metadata call it, or None.
        digest: The manifest's digest.
        manifest: The bytes of ``manifest.json``.
        card: The bytes of the card, or None.
        signature: Those of the signature, or None.
        files: Size and sha256 of each file but the manifest.
    """

    path: Path
    named: str | None
    digest: str
    manifest: bytes
    card: bytes | None
    signature: bytes | None
    files: dict[str, dict[str, Any]]

    @property
    def dataset(self) -> str:
        """What to call it: its own name, else its folder's."""
        return self.named or self.path.name


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


@dataclass(frozen=True)
class Arrived:
    """What became of a pull, or of unpacking an archive.

    Attributes:
        dataset: The id that it has here.
        path: Its folder.
        source: Where from, without credentials.
        digest: The manifest's digest.
        size: Bytes of its data files and manifest.
        fetched: Bytes that came now; what came earlier is not fetched again.
        signed_by: Fingerprint of the key that was asked for and signed it, or None.
        already_complete: Whether it stood here already.
    """

    dataset: str
    path: Path
    source: str
    digest: str
    size: int
    fetched: int
    signed_by: str | None
    already_complete: bool


# -------------------------------------------------------------------------------- push


def outgoing(dataset: str | os.PathLike[str], root: Path | None = None) -> Outgoing:
    """Check a dataset and say what there is to send.

    Raises:
        UsageError: There is no such dataset, or it has no manifest.
        DamagedError: A file is not the one that the manifest lists.
        UnsafeError: It could harm those who get it.
    """
    path = resolve_dataset(dataset, root)
    if not path_exists(path / MANIFEST_FILE):
        raise UsageError(
            "it has no manifest.json, so it names no licence, and those who get it could not "
            "notice damage",
            where=path,
            remedy="write it anew with 'pbvf dataset merge' and a licence, and send that",
        )
    with open_folder(path, require_manifest=True, warn=False) as folder:
        folder.open_checked()
        return _outgoing(folder)


def _outgoing(folder: CheckedFolder) -> Outgoing:
    path = folder.path
    manifest = read_file(path / MANIFEST_FILE, MAX_MANIFEST_BYTES)
    checked = parse_manifest(manifest, path / MANIFEST_FILE)
    if checked["digest"] != folder.digest:
        raise DamagedError("it changed while it was being read", where=path / MANIFEST_FILE)
    files = listed_files(checked, str(path / MANIFEST_FILE))
    card = _whole(LocalPlace(path), CARD_FILE, MAX_CARD_BYTES)
    signature = read_signature(path)
    for name, data in ((CARD_FILE, card), (SIGNATURE_FILE, signature)):
        if data is not None:
            files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    named = folder.metadata.get("dataset_id")
    return Outgoing(
        path=path,
        named=named if isinstance(named, str) else None,
        digest=folder.digest,
        manifest=manifest,
        card=card,
        signature=signature,
        files=files,
    )


class _AsChecked(LocalPlace):
    """The files of a dataset that may be sent; the small ones as they were when checked."""

    def __init__(self, out: Outgoing) -> None:
        super().__init__(out.path)
        self._small = {
            MANIFEST_FILE: out.manifest,
            CARD_FILE: out.card,
            SIGNATURE_FILE: out.signature,
        }

    def open(self, name: str, start: int = 0) -> Incoming:
        """Return a file's bytes; see :class:`~pbvf_datasets.share.remotes.Place`."""
        if name not in self._small:
            return super().open(name, start)
        data = self._small[name]
        if data is None:
            raise MissingFileError(name)
        return Incoming(io.BytesIO(data[start:]), start, len(data), contextlib.nullcontext)


def check_content(out: Outgoing, progress: Progress | None = None) -> None:
    """Verify a dataset as those who get it would: :func:`pbvf_datasets.inspect.verify.verify`.

    What is sent afterwards must have the digests of ``out``, which are those of the files that
    were verified here.

    Args:
        out: The dataset.
        progress: Told how many steps are done and of how many.

    Raises:
        DamagedError: Its content does not agree with itself.
        UnsafeError: It could harm those who get it.
        IncompatibleError: It cannot be checked to its end.
    """
    found = verify(out.path, progress=progress)
    error = found.error
    if error is not None:
        more = len(found.problems) - 1
        others = f" (and {more:,} more {'problem' if more == 1 else 'problems'})" if more else ""
        raise type(error)(
            f"{error.what}{others}",
            where=error.where,
            remedy=error.remedy or "'pbvf dataset verify' lists all that is wrong",
        )
    if found.status != "intact" or found.digest != out.digest:
        raise DamagedError(
            "it changed while it was being checked", where=out.path, remedy=_COMMAND_AGAIN
        )


def check_sendable(out: Outgoing, allow: Collection[str] = ()) -> None:
    """Check that a dataset has a licence and gives nothing of this machine away.

    Args:
        out: The dataset.
        allow: Words and paths that may go out although they look like this machine's.

    Raises:
        UsageError: It has none, or its texts hold absolute paths, user or host names.
        DamagedError: A file changed meanwhile.
    """
    licence = parse_manifest(out.manifest, out.path)["provenance"]["license"]
    if (licence or "").strip().lower() in _NO_LICENSE:
        raise UsageError(
            "it has no licence, so nobody who gets it may use it",
            where=out.path,
            remedy="choose one, such as CC-BY-4.0, and give it as --license to 'pbvf collect', or "
            "to 'pbvf dataset merge' of this dataset into a new one",
        )
    texts = {MANIFEST_FILE: out.manifest}
    place = _AsChecked(out)
    for name in (METADATA_FILE, CROISSANT_FILE, CARD_FILE):
        if name in out.files:
            text = _whole(place, name, out.files[name]["size"])
            if text is None or hashlib.sha256(text).hexdigest() != out.files[name]["sha256"]:
                raise DamagedError(
                    "the file changed while it was being checked",
                    where=out.path / name,
                    remedy=_COMMAND_AGAIN,
                )
            texts[name] = text
    found = find_private(texts, Machine.this(), allow)
    if found:
        more = len(found) - _SHOWN_FINDINGS
        listed = ", ".join(map(str, found[:_SHOWN_FINDINGS]))
        raise UsageError(
            f"its texts hold {listed}" + (f", and {more} more" if more > 0 else ""),
            where=out.path,
            remedy="remove that, or let it go out with --allow TEXT for each",
        )


def push(
    dataset: str | os.PathLike[str],
    remote: str,
    *,
    overwrite: bool = False,
    allow: Collection[str] = (),
    root: Path | None = None,
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
        verifying: Told how many steps are verified and of how many.
        progress: Told how many bytes are sent and of how many.

    Raises:
        UsageError: There is no such dataset; it has no manifest or no licence, or gives this
            machine away; nothing can be sent to such a place.
        DamagedError: A file of the dataset is not the one that its manifest lists, its content
            does not agree with itself, or it changed meanwhile.
        UnsafeError: It could harm those who get it.
        IncompatibleError: Its content cannot be checked to its end.
        ConflictError: Something else is there.
        NetworkError: The place cannot be reached, or refuses.
        ResourceError: The disk refuses.
    """
    if is_http(remote):
        raise UsageError(
            "web servers take no uploads: HTTP is for pull alone",
            where=shown_address(remote),
            remedy="push to a folder, s3://, gs:// or hf://datasets/NAME/…",
        )
    target = local_path(remote)
    out = outgoing(dataset, root)
    check_sendable(out, allow)
    told, check = progress or silent, functools.partial(check_content, out, verifying)
    if target is None:
        shown, sent = _push_away(out, remote, check, overwrite=overwrite, progress=told)
    else:
        target = named_folder(target)
        sent = _push_here(out, target, check, overwrite=overwrite, progress=told)
        shown = str(target)
    sizes = {name: entry["size"] for name, entry in sorted(out.files.items())}
    return Pushed(
        dataset=out.dataset,
        remote=shown,
        digest=out.digest,
        files={**sizes, MANIFEST_FILE: len(out.manifest)},
        sent=sent,
        already_complete=sent == 0,
    )


def _push_here(
    out: Outgoing,
    target: Path,
    check: Callable[[], None],
    *,
    overwrite: bool,
    progress: Progress,
) -> int:
    if path_exists(target) and target.samefile(out.path):
        raise UsageError("this is the dataset itself", where=target, remedy="name another place")
    landed, sent = _land(
        _AsChecked(out), target, check=check, overwrite=overwrite, progress=progress
    )
    if landed.stood:
        sent += renew(target, CARD_FILE, out.card, replace=True)
        sent += renew(target, SIGNATURE_FILE, out.signature, replace=True)
    return sent


def _push_away(
    out: Outgoing,
    remote: str,
    check: Callable[[], None],
    *,
    overwrite: bool,
    progress: Progress,
) -> tuple[str, int]:
    place = FsspecPlace(remote)
    there = _retry(lambda: _whole(place, MANIFEST_FILE, MAX_MANIFEST_BYTES), place)
    same = there == out.manifest
    if there is not None and not same and not overwrite:
        raise ConflictError(
            f"{_what_is_there(there)} is there",
            where=place.shown,
            remedy="choose another place, or replace it with --overwrite",
        )
    wanted = [
        name
        for name, entry in out.files.items()
        if not _is_there(place, name, entry, trusted=same, overwrite=overwrite)
    ]
    if not wanted and same:
        return place.shown, 0
    if not same or not _SMALL.issuperset(wanted):
        check()
    total = sum(out.files[name]["size"] for name in wanted)
    if there is not None and not same:
        # From here on nothing is whole there, and no reader must take it to be.
        _retry(lambda: place.remove(MANIFEST_FILE), place)
    if overwrite and not same:
        for name in sorted({CROISSANT_FILE, CARD_FILE, SIGNATURE_FILE} - set(out.files)):
            _retry(functools.partial(place.remove, name), place)
    done = 0
    for name in wanted:
        _send(place, out, name, _from(progress, done, total))
        done += out.files[name]["size"]
        progress(done, total)
    if not same:
        _send(place, out, MANIFEST_FILE, lambda _: None)
        done += len(out.manifest)
    return place.shown, done


def _what_is_there(manifest: bytes) -> str:
    try:
        found = parse_manifest(manifest, "")
    except PbvfError:
        return "a manifest.json that is no dataset's, or a damaged one,"
    return f"another dataset (its digest is {found['digest'][:16]}…)"


def _is_there(
    place: FsspecPlace, name: str, entry: Mapping[str, Any], *, trusted: bool, overwrite: bool
) -> bool:
    """Whether a file need not be sent.

    Beside the same manifest the data are right when their sizes are; the small files that
    manifest or digests do not cover are compared. Without it everything is read and compared.

    Raises:
        ConflictError: Another file of that name is there.
    """
    size = _retry(lambda: place.size(name), place)
    if size is None:
        return False
    if size == entry["size"]:
        if trusted and name not in _SMALL:
            return True
        if _retry(lambda: _digest(place, name, size), place) == entry["sha256"]:
            return True
    if trusted or overwrite:
        return False
    raise ConflictError(
        "another file is there, which no manifest vouches for",
        where=f"{place.shown}/{name}",
        remedy="choose another place, or replace it with --overwrite",
    )


def _digest(place: Place, name: str, size: int) -> str | None:
    """Return the sha256 of a file at a place, or None when it has another size."""
    digest, done = hashlib.sha256(), 0
    try:
        with place.open(name) as incoming:
            while chunk := incoming.read(CHUNK):
                digest.update(chunk)
                done += len(chunk)
                if done > size:
                    return None
    except MissingFileError:
        return None
    return digest.hexdigest() if done == size else None


def _send(place: FsspecPlace, out: Outgoing, name: str, told: Callable[[int], None]) -> None:
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
    if before is None or _digest(LocalPlace(out.path), name, size) != digest:
        raise changed
    _retry(lambda: place.put(name, file, told), place)
    if _identity(file) != before:
        _retry(lambda: place.remove(name), place)
        raise changed
    found = _retry(lambda: place.size(name), place)
    if found != size:
        raise NetworkError(
            f"{size:,} bytes were sent, and {found or 0:,} are there",
            where=f"{place.shown}/{name}",
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
    progress: Progress | None = None,
) -> Arrived:
    """Fetch a dataset; the manifest comes first, and nothing is visible before all is checked.

    The same call goes on where an interrupted one stopped.

    Args:
        remote: Where from: a folder's path, or an address of the web or of what fsspec reaches.
        dataset_id: What to call it here.
        overwrite: Replace another dataset of this id.
        public_key: File of a key whose owner must have signed the dataset.
        root: Folder of datasets.
        progress: Told how many bytes are done and of how many.

    Raises:
        UsageError: There is no dataset at that place, or the id is malformed.
        DamagedError: What comes is not what the manifest lists.
        UnsafeError: It could run code, read other files or exhaust the machine, or is not
            signed as asked.
        IncompatibleError: It is of another format version.
        ConflictError: Another dataset of this id is here, or another process is at it.
        NetworkError: The place cannot be reached, or refuses.
        ResourceError: The disk refuses.
    """
    path = new_dataset_path(dataset_id, root)
    key = None if public_key is None else load_public_key(public_key)
    place = source_at(remote)
    arrived, fetched = _land(place, path, overwrite=overwrite, progress=progress or silent, key=key)
    return Arrived(
        dataset=dataset_id,
        path=path,
        source=place.shown,
        digest=arrived.digest,
        size=arrived.size,
        fetched=fetched,
        signed_by=arrived.signed_by,
        already_complete=fetched == 0 and arrived.stood,
    )


@dataclass(frozen=True)
class _Landed:
    digest: str
    size: int
    signed_by: str | None
    stood: bool


def _land(
    place: Place,
    path: Path,
    *,
    overwrite: bool,
    progress: Progress,
    key: Ed25519PublicKey | None = None,
    check: Callable[[], None] | None = None,
) -> tuple[_Landed, int]:
    """Fetch the dataset at a place into a folder of this machine.

    Args:
        place: Where from.
        path: The folder.
        overwrite: Replace another dataset there.
        progress: Told how many bytes are done and of how many.
        key: Whose owner must have signed it.
        check: Called when something is to be fetched, before anything is written.
    """
    raw = _retry(lambda: _whole(place, MANIFEST_FILE, MAX_MANIFEST_BYTES), place)
    if raw is None:
        raise UsageError(
            "there is no dataset: no manifest.json is there",
            where=place.shown,
            remedy="name the folder that holds manifest.json; an interrupted push has none yet",
        )
    where = f"{place.shown}/{MANIFEST_FILE}"
    manifest = parse_manifest(raw, where)
    files = listed_files(manifest, where)
    signature = _retry(lambda: _signature(place), place)
    signed_by = None
    if key is not None:
        from pbvf_datasets.share.signing import fingerprint

        require_signature(raw, signature, key, place.shown)
        signed_by = fingerprint(key)
    total = sum(entry["size"] for entry in files.values())
    landed = _Landed(manifest["digest"], total + len(raw), signed_by, stood=True)
    if stands(path, landed.digest, overwrite=overwrite):
        arrival_work(path).remove_leftovers()
        return landed, renew(path, SIGNATURE_FILE, signature, replace=overwrite)
    if check is not None:
        check()
    with Arrival(path) as arrival:
        if stands(path, landed.digest, overwrite=overwrite):  # by now, or put back by recovery
            arrival.discard()
            return landed, renew(path, SIGNATURE_FILE, signature, replace=overwrite)
        missing = arrival.begin(files)
        done = total - sum(files[name]["size"] for name in missing)
        fetched = 0
        for name in missing:
            fetched += _fetch(place, name, files[name], arrival, _from(progress, done, total))
            done += files[name]["size"]
        card = _retry(lambda: _whole(place, CARD_FILE, MAX_CARD_BYTES), place)
        for name, data in ((CARD_FILE, card), (SIGNATURE_FILE, signature), (MANIFEST_FILE, raw)):
            if data is not None:
                arrival.write(name, data)
                fetched += len(data)
        arrival.check(place.shown)
        arrival.publish(overwrite=overwrite)
    card_differs(card, manifest, place.shown)
    return dataclasses.replace(landed, stood=False), fetched


def _signature(place: Place) -> bytes | None:
    """Return the signature; what cannot be one counts as none, since all may be unsigned."""
    with contextlib.suppress(UnsafeError):
        signature = _whole(place, SIGNATURE_FILE, SIGNATURE_BYTES)
        if signature is None or len(signature) == SIGNATURE_BYTES:
            return signature
    warnings.warn(
        f"{place.shown}/{SIGNATURE_FILE}: this is no signature; it is left out",
        SignatureWarning,
        stacklevel=2,
    )
    return None


def _whole(place: Place, name: str, limit: int) -> bytes | None:
    """Return a small file, or None when there is none.

    Raises:
        UnsafeError: It is longer than such a file may be.
    """
    parts: list[bytes] = []
    done = 0
    try:
        with place.open(name) as incoming:
            while chunk := incoming.read(min(CHUNK, limit + 1 - done)):
                parts.append(chunk)
                done += len(chunk)
                if done > limit:
                    raise UnsafeError(
                        f"it has more than the {limit:,} bytes that are read",
                        where=f"{place.shown}/{name}",
                    )
            if incoming.total is not None and done < incoming.total:
                raise BrokenError(f"{done:,} of {incoming.total:,} bytes came")
    except MissingFileError:
        return None
    return b"".join(parts)


def _fetch(
    place: Place,
    name: str,
    entry: Mapping[str, Any],
    arrival: Arrival,
    told: Callable[[int], None],
) -> int:
    """Fetch one file into the arrival, from where an earlier attempt stopped.

    Returns:
        How many bytes came.

    Raises:
        DamagedError: Other bytes come than the manifest lists.
        NetworkError: The connection breaks again and again.
    """
    fetched = 0
    where = f"{place.shown}/{name}"
    continued = arrival.arrived(entry) > 0
    while True:
        fetched += _patiently(place, name, entry, arrival, told)
        with arrival.resources():
            with arrival.part(entry).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest == entry["sha256"]:
                arrival.keep(name, entry)
                return fetched
            arrival.part(entry).unlink()
        if not continued:
            raise DamagedError(
                f"its sha256 is {digest}, but its manifest says {entry['sha256']}",
                where=where,
                remedy="ask whoever keeps it to push it again",
            )
        continued = False  # what came earlier may have been at fault: once more, all of it


def _patiently(
    place: Place,
    name: str,
    entry: Mapping[str, Any],
    arrival: Arrival,
    told: Callable[[int], None],
) -> int:
    """Fetch all of a file, with pauses after breaks; progress earns new tries."""
    fetched = tries = 0
    while True:
        before = arrival.arrived(entry)
        try:
            return fetched + _append(place, name, entry, arrival, told)
        except BrokenError as error:
            came = arrival.arrived(entry) - before
            fetched += max(0, came)
            tries = 1 if came > 0 else tries + 1
            if tries > len(place.pauses):
                raise NetworkError(
                    f"the connection broke: {error}",
                    where=f"{place.shown}/{name}",
                    remedy="the same command continues where this one stopped",
                ) from None
            time.sleep(place.pauses[tries - 1])


def _append(
    place: Place,
    name: str,
    entry: Mapping[str, Any],
    arrival: Arrival,
    told: Callable[[int], None],
) -> int:
    """Fetch the rest of a file's bytes into its part."""
    size: int = entry["size"]
    where = f"{place.shown}/{name}"
    start = arrival.arrived(entry)
    if start == size > 0:
        return 0
    try:
        incoming = place.open(name, start)
    except MissingFileError:
        raise DamagedError(
            "the file is missing, though the manifest lists it",
            where=where,
            remedy="ask whoever keeps it to push it again",
        ) from None
    with incoming:
        if incoming.total is not None and incoming.total != size:
            raise DamagedError(
                f"it has {incoming.total:,} bytes, but its manifest says {size:,}",
                where=where,
                remedy="ask whoever keeps it to push it again",
            )
        start = done = incoming.start
        with arrival.arriving(entry, start) as write:
            while done < size:
                chunk = incoming.read(min(CHUNK, size - done))
                if not chunk:
                    raise BrokenError(f"{done:,} of {size:,} bytes came")
                write(chunk)
                done += len(chunk)
                told(done)
        if incoming.total is None and incoming.read(1):
            raise DamagedError(f"it has more than the {size:,} bytes of its manifest", where=where)
    return size - start


def _retry(call: Callable[[], T], place: Place) -> T:
    """Call until no connection breaks, with the place's pauses.

    Raises:
        NetworkError: It broke each time.
    """
    for pause in (*place.pauses, None):
        try:
            return call()
        except BrokenError as error:
            if pause is None:
                raise NetworkError(
                    f"it cannot be reached: {error}",
                    where=place.shown,
                    remedy="check the address and the network, and run the same command again",
                ) from None
            time.sleep(pause)
    raise AssertionError  # the last pause is None


def _from(progress: Progress, done: int, total: int) -> Callable[[int], None]:
    """Return what tells the progress of one file among others."""
    return lambda n: progress(done + n, total)

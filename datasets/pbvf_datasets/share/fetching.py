"""Fetch a dataset or bundle from a remote, file by file, from where an earlier attempt stopped."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES
from pbvf_datasets.format.schema import CARD_FILE, MANIFEST_FILE, SIGNATURE_FILE
from pbvf_datasets.read.untrusted import MAX_CARD_BYTES
from pbvf_datasets.share.forms import Forms, Progress, form_of
from pbvf_datasets.share.outgoing import read_whole
from pbvf_datasets.share.receiving import CHUNK, IncomingFolder
from pbvf_datasets.share.remote import BrokenError, MissingFileError, Remote
from pbvf_datasets.share.signing import SIGNATURE_BYTES
from pbvf_offline.errors import DamagedError, NetworkError, UnsafeError, UsageError
from pbvf_offline.io.reading import file_digest

T = TypeVar("T")

_PUSH_AGAIN: Final = "ask whoever keeps it to push it again"


class SignatureWarning(UserWarning):
    """What has a signature's name is none."""


class FetchedFolder:
    """A dataset or bundle at a remote, fetched file by file; its manifest first.

    Args:
        remote: Where from.
        forms: What may be there.
        progress: Told how many bytes are done and of how many.

    Raises:
        UsageError: There is no dataset.
        NetworkError: The remote cannot be reached, or refuses.
    """

    def __init__(self, remote: Remote, forms: Forms, progress: Progress) -> None:
        self.shown = remote.shown
        self._remote, self._progress = remote, progress
        manifest = retry(lambda: read_whole(remote, MANIFEST_FILE, MAX_MANIFEST_BYTES), remote)
        if manifest is None:
            raise UsageError(
                "there is no dataset: no manifest.json is there"
                if len(forms) == 1
                else "there is nothing that was pushed: no manifest.json is there",
                where=self.shown,
                remedy="name the folder that holds manifest.json; an interrupted push has none yet",
            )
        self.form = form_of(manifest, forms, self.shown)
        self.form.parse(manifest, f"{self.shown}/{MANIFEST_FILE}")
        self.manifest = manifest
        self.signature = retry(self._signature, remote)

    def _signature(self) -> bytes | None:
        """Return the signature; what cannot be one counts as none, since all may be unsigned."""
        with contextlib.suppress(UnsafeError):
            signature = read_whole(self._remote, SIGNATURE_FILE, SIGNATURE_BYTES)
            if signature is None or len(signature) == SIGNATURE_BYTES:
                return signature
        warnings.warn(
            f"{self.shown}/{SIGNATURE_FILE}: this is no signature; it is left out",
            SignatureWarning,
            stacklevel=2,
        )
        return None

    def card(self) -> bytes | None:
        """Return the bytes of the card, or None."""
        remote = self._remote
        return retry(lambda: read_whole(remote, CARD_FILE, MAX_CARD_BYTES), remote)

    def fetch(
        self,
        files: Mapping[str, Mapping[str, Any]],
        missing: Sequence[str],
        incoming: IncomingFolder | None,
    ) -> int:
        """Bring files; see :class:`~pbvf_datasets.share.receiving.Source`."""
        total = sum(entry["size"] for entry in files.values())
        done = total - sum(files[name]["size"] for name in missing)
        fetched = 0
        if incoming is None:
            return 0
        for name in missing:
            told = part_of(self._progress, done, total)
            fetched += _File(self._remote, name, files[name], incoming, told).fetch()
            done += files[name]["size"]
        return fetched


@dataclass(frozen=True)
class _File:
    """One file that comes from a remote, from where an earlier attempt stopped."""

    remote: Remote
    name: str
    entry: Mapping[str, Any]
    incoming: IncomingFolder
    told: Callable[[int], None]

    @property
    def where(self) -> str:
        return f"{self.remote.shown}/{self.name}"

    def fetch(self) -> int:
        """Fetch the file and return how many bytes came.

        Raises:
            DamagedError: Other bytes come than the manifest lists.
            NetworkError: The connection breaks again and again.
        """
        fetched = tries = 0
        continued = self.incoming.received(self.entry) > 0
        while True:
            before = self.incoming.received(self.entry)
            try:
                fetched += self._append()
            except BrokenError as error:
                came = self.incoming.received(self.entry) - before
                fetched += max(0, came)
                tries = 1 if came > 0 else tries + 1  # progress earns new tries
                if tries > len(self.remote.pauses):
                    raise NetworkError(
                        f"the connection broke: {error}",
                        where=self.where,
                        remedy="the same command continues where this one stopped",
                    ) from None
                time.sleep(self.remote.pauses[tries - 1])
                continue
            digest = file_digest(self.incoming.part(self.entry))
            if digest == self.entry["sha256"]:
                self.incoming.keep(self.name, self.entry)
                return fetched
            self.incoming.part(self.entry).unlink()
            if not continued:
                raise self._damaged(
                    f"its sha256 is {digest}, but its manifest says {self.entry['sha256']}"
                )
            continued = False  # what came earlier may have been at fault: once more, all of it

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(what, where=self.where, remedy=_PUSH_AGAIN)

    def _append(self) -> int:
        """Fetch the rest of the file's bytes into its part."""
        size: int = self.entry["size"]
        start = self.incoming.received(self.entry)
        if start == size > 0:
            return 0
        try:
            incoming = self.remote.open(self.name, start)
        except MissingFileError:
            raise self._damaged("the file is missing, though the manifest lists it") from None
        with incoming:
            if incoming.total is not None and incoming.total != size:
                raise self._damaged(
                    f"it has {incoming.total:,} bytes, but its manifest says {size:,}"
                )
            start = done = incoming.start
            with self.incoming.receiving(self.entry, start) as write:
                while done < size:
                    chunk = incoming.read(min(CHUNK, size - done))
                    if not chunk:
                        raise BrokenError(f"{done:,} of {size:,} bytes came")
                    write(chunk)
                    done += len(chunk)
                    self.told(done)
            if incoming.total is None and incoming.read(1):
                raise self._damaged(f"it has more than the {size:,} bytes of its manifest")
        return size - start


def retry(call: Callable[[], T], remote: Remote) -> T:
    """Call until no connection breaks, with the remote's pauses.

    Raises:
        NetworkError: It broke each time.
    """
    for pause in (*remote.pauses, None):
        try:
            return call()
        except BrokenError as error:
            if pause is None:
                raise NetworkError(
                    f"it cannot be reached: {error}",
                    where=remote.shown,
                    remedy="check the address and the network, and run the same command again",
                ) from None
            time.sleep(pause)
    raise AssertionError  # the last pause is None


def part_of(progress: Progress, done: int, total: int) -> Callable[[int], None]:
    """Return what tells the progress of one file among others."""
    return lambda n: progress(done + n, total)

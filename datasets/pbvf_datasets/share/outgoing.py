"""What may be sent to others: verified, with a licence, and nothing of this machine in it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Final

from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES
from pbvf_datasets.format.names import resolve_dataset
from pbvf_datasets.format.schema import CARD_FILE, MANIFEST_FILE, SIGNATURE_FILE
from pbvf_datasets.inspect.findings import Verification
from pbvf_datasets.inspect.verify import verify
from pbvf_datasets.read.untrusted import MAX_CARD_BYTES
from pbvf_datasets.share.forms import Form, Forms, Progress, form_at, listed_files, only_datasets
from pbvf_datasets.share.privacy import Machine, find_private
from pbvf_datasets.share.receiving import CHUNK
from pbvf_datasets.share.remote import BrokenError, Incoming, MissingFileError, Remote
from pbvf_datasets.share.remotes.folder import FolderRemote
from pbvf_datasets.share.signing import read_signature
from pbvf_offline.errors import DamagedError, UnsafeError, UsageError, counted
from pbvf_offline.io.durable import path_exists
from pbvf_offline.io.reading import read_file

_COMMAND_AGAIN: Final = "run the same command again"
_NO_LICENSE: Final = ("", "none", "noassertion", "unknown")
_SHOWN_FINDINGS: Final = 8


@dataclass(frozen=True)
class Outgoing:
    """A dataset or bundle that may be sent.

    Attributes:
        form: Which of them.
        path: Its folder.
        named: What it calls itself, or None.
        digest: The manifest's digest.
        manifest: The bytes of ``manifest.json``.
        card: The bytes of the card, or None.
        signature: Those of the signature, or None.
        files: Size and sha256 of each file but the manifest.
    """

    form: Form
    path: Path
    named: str | None
    digest: str
    manifest: bytes
    card: bytes | None
    signature: bytes | None
    files: dict[str, dict[str, Any]]

    @property
    def name(self) -> str:
        """What to call it: its own name, else its folder's."""
        return self.named or self.path.name


def outgoing(
    dataset: str | os.PathLike[str], root: Path | None = None, forms: Forms | None = None
) -> Outgoing:
    """Check a dataset or bundle and say what there is to send.

    Args:
        dataset: A dataset's id, or the folder.
        root: Folder of datasets.
        forms: What may be sent; datasets alone when None.

    Raises:
        UsageError: There is no such dataset, or it has no manifest.
        IncompatibleError: It has none, and cannot get one, since it is not policy-tagged.
        DamagedError: A file is not the one that the manifest lists.
        UnsafeError: It could harm those who get it.
    """
    path = resolve_dataset(dataset, root)
    if not path_exists(path / MANIFEST_FILE):
        _refuse_problems(verify(path))  # merge would refuse it for these too
        raise UsageError(
            "it has no manifest.json, so it names no licence, and those who get it could not "
            "notice damage",
            where=path,
            remedy="write it anew with 'pbvf dataset merge' and a licence, and send that",
        )
    where = path / MANIFEST_FILE
    form = form_at(path, forms or only_datasets(root))
    digest, named = form.check(path)
    manifest = read_file(where, MAX_MANIFEST_BYTES)
    checked = form.parse(manifest, str(where))
    if checked["digest"] != digest:
        raise DamagedError("it changed while it was being read", where=where)
    files = listed_files(form, checked, str(where))
    card = read_whole(FolderRemote(path), CARD_FILE, MAX_CARD_BYTES)
    signature = read_signature(path)
    for name, data in ((CARD_FILE, card), (SIGNATURE_FILE, signature)):
        if data is not None:
            files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    known = named if isinstance(named, str) else None
    return Outgoing(form, path, known, digest, manifest, card, signature, files)


class AsChecked(FolderRemote):
    """The files of what may be sent; the small ones as they were when checked."""

    def __init__(self, out: Outgoing) -> None:
        super().__init__(out.path)
        self._small = {
            MANIFEST_FILE: out.manifest,
            CARD_FILE: out.card,
            SIGNATURE_FILE: out.signature,
        }

    def open(self, name: str, start: int = 0) -> Incoming:
        """Return a file's bytes; see :class:`~pbvf_datasets.share.remote.Remote`."""
        if name not in self._small:
            return super().open(name, start)
        data = self._small[name]
        if data is None:
            raise MissingFileError(name)
        stream = io.BytesIO(data[start:])
        return Incoming(stream.read, stream.close, start, len(data), contextlib.nullcontext)


def check_content(out: Outgoing, progress: Progress | None = None) -> None:
    """Verify a dataset or bundle as those who get it would.

    What is sent afterwards must have the digests of ``out``, which are those of the files that
    were verified here.

    Args:
        out: The dataset or bundle.
        progress: Told how many steps are done and of how many.

    Raises:
        DamagedError: Its content does not agree with itself.
        UnsafeError: It could harm those who get it.
        IncompatibleError: It cannot be checked to its end.
    """
    found = out.form.verify(out.path, progress)
    _refuse_problems(found)
    if found.status != "intact" or found.digest != out.digest:
        raise DamagedError(
            "it changed while it was being checked", where=out.path, remedy=_COMMAND_AGAIN
        )


def _refuse_problems(found: Verification) -> None:
    error = found.error
    if error is not None:
        more = len(found.problems) - 1
        others = f" (and {counted(more, 'more problem')})" if more else ""
        raise type(error)(
            f"{error.what}{others}",
            where=error.where,
            remedy=error.remedy or "'pbvf dataset verify' lists all that is wrong",
        )


def check_sendable(out: Outgoing, allow: Collection[str] = ()) -> None:
    """Check that a dataset or bundle has a licence and gives nothing of this machine away.

    Args:
        out: The dataset or bundle.
        allow: Words and paths that may go out although they look like this machine's.

    Raises:
        UsageError: It has none, or its texts hold absolute paths, user or host names.
        DamagedError: A file changed meanwhile.
    """
    licence = out.form.parse(out.manifest, str(out.path))["provenance"]["license"]
    if (licence or "").strip().lower() in _NO_LICENSE:
        raise UsageError(
            "it has no licence, so nobody who gets it may use it",
            where=out.path,
            remedy=out.form.license_remedy.format(quote(str(out.path))),
        )
    texts = {MANIFEST_FILE: out.manifest}
    folder = AsChecked(out)
    for name, words in (*out.form.texts(out.path, out.files), (CARD_FILE, None)):
        if words is not None:
            texts[name] = words
        elif name in out.files:
            text = read_whole(folder, name, out.files[name]["size"])
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


def read_whole(remote: Remote, name: str, limit: int) -> bytes | None:
    """Return a small file, or None when there is none.

    Raises:
        UnsafeError: It is longer than such a file may be.
    """
    parts: list[bytes] = []
    done = 0
    try:
        with remote.open(name) as incoming:
            while chunk := incoming.read(min(CHUNK, limit + 1 - done)):
                parts.append(chunk)
                done += len(chunk)
                if done > limit:
                    raise UnsafeError(
                        f"it has more than the {limit:,} bytes that are read",
                        where=f"{remote.shown}/{name}",
                    )
            if incoming.total is not None and done < incoming.total:
                raise BrokenError(f"{done:,} of {incoming.total:,} bytes came")
    except MissingFileError:
        return None
    return b"".join(parts)

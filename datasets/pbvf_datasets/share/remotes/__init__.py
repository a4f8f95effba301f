"""Where datasets are sent to and fetched from: folders, web servers, object stores.

A remote is one file: a module with a class that does what :class:`~.base.Remote` says, and a
line in :data:`REMOTES` for the scheme of its addresses. A package adds one with the entry point
group ``pbvf_datasets.remotes``. Every remote passes ``tests/share/test_remotes_conformance.py``.
"""

from __future__ import annotations

import re
from typing import Final

from pbvf_datasets.share.remotes.base import Remote
from pbvf_offline.errors import UsageError
from pbvf_offline.registry import Registry

_FOLDER: Final = "pbvf_datasets.share.remotes.folder:FolderRemote"
_WEB: Final = "pbvf_datasets.share.remotes.web:WebRemote"
_FSSPEC: Final = "pbvf_datasets.share.remotes.fsspec:FsspecRemote"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:://|::)")

REMOTES: Registry[type[Remote]] = Registry(
    "remote",
    "pbvf_datasets.remotes",
    {
        **dict.fromkeys(("folder", "file", "local"), _FOLDER),
        **dict.fromkeys(("http", "https"), _WEB),
        "fsspec": _FSSPEC,  # takes what no other has the scheme of: s3, gs, hf, …
    },
)


def remote_at(address: str) -> Remote:
    """Return the remote of an address: a folder's path, or ``SCHEME://…``.

    Raises:
        UsageError: It is neither, or its remote needs a package that is not installed.
        NetworkError: It cannot be reached.
    """
    if not address or "\0" in address:
        raise UsageError(f"{address!r} is neither a folder nor an address")
    match = _SCHEME.match(address)
    scheme = "folder" if match is None else match[1].lower()
    if scheme in ("file", "local") and not address.startswith("//", len(scheme) + 1):
        scheme = "fsspec"  # file::…, a chain of fsspec's
    return REMOTES[scheme if scheme in REMOTES else "fsspec"](address)

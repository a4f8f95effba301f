"""Where datasets are sent to and fetched from: folders, web servers, object stores.

A new remote is one file: a module ``NAME.py`` of this package with a class ``NameRemote`` that
does what :class:`~pbvf_datasets.share.remote.Remote` says. A package adds one with the entry point
group ``pbvf_datasets.remotes``, under the scheme of its addresses. Every remote passes
``tests/share/test_remotes_conformance.py``.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Final

from pbvf_datasets.share.remote import Remote
from pbvf_offline.errors import UsageError
from pbvf_offline.registry import Registry

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:://|::)")


def _own() -> dict[str, type[Remote]]:
    """Return the remotes of this package by scheme."""
    found: dict[str, type[Remote]] = {}
    for _, name, _ in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{name}")
        member: type[Remote] = getattr(module, f"{name.capitalize()}Remote")
        found |= dict.fromkeys(member.schemes, member)
    return found


REMOTES: Registry[type[Remote]] = Registry("remote", "pbvf_datasets.remotes", _own())
"""Remotes by scheme. ``fsspec`` takes what no other has the scheme of: s3, gs, hf, …"""


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
    if re.match("(file|local):(?!//)", address, re.IGNORECASE):  # file:/… and file::…
        raise UsageError(f"{address!r} is no address", remedy="write the path, or file:///PATH")
    if match is not None:
        address = scheme + address[match.end(1) :]
    return REMOTES[scheme if scheme in REMOTES else "fsspec"](address)

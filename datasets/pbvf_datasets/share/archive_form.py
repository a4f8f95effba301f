"""The bytes of an archive: headers, padding, the end and ``SHA256SUMS``.

An archive holds one folder: ``manifest.json`` first, the other files in order of their names,
and last ``SHA256SUMS`` with the digest of each, as ``sha256sum -c`` reads it. Owners, times
and rights are constants. Two blocks of zeros end it, and more fill it to 10,240 bytes.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping
from typing import Final

SUMS_FILE: Final = "SHA256SUMS"
BLOCK: Final = tarfile.BLOCKSIZE
RECORD: Final = tarfile.RECORDSIZE
FOLDER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
"""Matches the name of the folder in an archive."""
_OCTAL_LIMIT: Final = 8**11


def header(name: str, size: int) -> bytes:
    """Return the 512 bytes in front of a member's content.

    Args:
        name: ASCII; of more than 100 characters, 155 at most lead up to a slash.
        size: Bytes of the content; from 8 GiB on in GNU's and POSIX's binary form, which
            tarfile reads but does not write in this format.
    """
    info = tarfile.TarInfo(name)
    if size < _OCTAL_LIMIT:
        info.size = size
        return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict"))
    block[124:136] = b"\x80" + size.to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padding(size: int) -> bytes:
    """Return the zeros that fill content of this size to whole blocks."""
    return bytes(-size % BLOCK)


def ending(size: int) -> bytes:
    """Return the zeros that end an archive with members of this size in all."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % RECORD)


def folder_name(named: object) -> str:
    """Return the name of the folder in the archive of what calls itself so."""
    last = named.rpartition("/")[2] if isinstance(named, str) else ""
    return last if FOLDER.fullmatch(last) else "dataset"


def sums_text(digests: Mapping[str, str]) -> bytes:
    """Return the content of ``SHA256SUMS`` for files in this order."""
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode("ascii")

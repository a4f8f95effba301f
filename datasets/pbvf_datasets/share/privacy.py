"""What must not leave this machine in a dataset's texts: its paths, its users, its name."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import pwd
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

_ROOTS: Final = (
    "Users|Volumes|bin|boot|cluster|content|data|dev|etc|export|gpfs|home|kaggle|lib|lustre|media|"
    "mnt|net|nfs|opt|private|proc|project|projects|root|run|sbin|scratch|srv|storage|sys|tmp|usr|"
    "var|work|workspace"
)
_BEFORE: Final = r"(?<![\w.~/\\)\]}>*%+-])"
_PATHS: Final = (
    re.compile(rf"{_BEFORE}/(?:{_ROOTS})(?![\w.-])(?:/[^\s\"'`<>|()\[\]{{}},;]*)?"),
    re.compile(rf"{_BEFORE}/(?!/|episode_\d|infos/)[\w.@+%~-]+(?:/[\w.@+%~-]+)+/?"),
    re.compile(r"\bfile:/[^\s\"'`<>]*"),
    re.compile(r"(?<![A-Za-z0-9])[A-Za-z]:\\[^\s\"'`<>|]+"),
    re.compile(r"(?<![A-Za-z0-9])[A-Za-z]:/(?!/)[^\s\"'`<>|]+"),
    re.compile(r"(?<!\\)\\\\[\w.-]+\\[\w$.-]+"),
)
_NOBODY: Final = frozenset(("localhost", "localdomain"))
_MOST: Final = 200


@dataclass(frozen=True)
class Finding:
    """One thing that gives this machine away.

    Attributes:
        kind: ``absolute path``, ``user name`` or ``host name``.
        text: The thing itself.
        files: The files that it is in.
    """

    kind: str
    text: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"the {self.kind} {self.text!r} ({', '.join(self.files)})"


@dataclass(frozen=True)
class Machine:
    """What names this machine and who works on it.

    Attributes:
        users: Names of the user.
        hosts: Names of the host, with and without its domain.
        homes: The user's home folders.
    """

    users: frozenset[str]
    hosts: frozenset[str]
    homes: frozenset[str]

    @classmethod
    def this(cls) -> Self:
        """Return the names that the system and the environment give."""
        users, homes = {os.environ.get("SUDO_USER", "")}, {str(Path.home())}
        for ask in (getpass.getuser, lambda: pwd.getpwuid(os.getuid()).pw_name):
            try:
                users.add(ask())
            except (KeyError, OSError):  # a number without a name
                continue
        with contextlib.suppress(KeyError):
            homes.add(pwd.getpwuid(os.getuid()).pw_dir)
        hosts = {socket.gethostname(), platform.node()}
        hosts |= {host.partition(".")[0] for host in hosts}
        return cls(
            frozenset(name for name in users if _tells(name)),
            frozenset(name for name in hosts if _tells(name)),
            frozenset(home.rstrip("/") for home in homes if home.count("/") > 1),
        )


def _tells(name: str) -> bool:
    """Whether a name, found in a text, is more than a letter or number of that text."""
    return len(name) > 1 and not name.isdecimal() and name.lower() not in _NOBODY


def find_private(
    texts: Mapping[str, bytes], machine: Machine, allow: Collection[str] = ()
) -> list[Finding]:
    """Look for absolute paths, user and host names in the texts of a dataset.

    In JSON files every key and string is looked at, but for the digests and file names of a
    manifest; in other files the whole text.

    Args:
        texts: Bytes by file name.
        machine: Whose names.
        allow: Words and paths that may go out.

    Returns:
        What was found, each once.
    """
    found: dict[tuple[str, str], dict[str, None]] = {}
    for name, data in texts.items():
        for text in _strings(name, data):
            for kind, part in _find(text, machine):
                if part not in allow:
                    found.setdefault((kind, part), {})[name] = None
    return [Finding(kind, part, tuple(files)) for (kind, part), files in found.items()]


def _find(text: str, machine: Machine) -> Iterator[tuple[str, str]]:
    spans = [match.span() for pattern in _PATHS for match in pattern.finditer(text)]
    for home in machine.homes:
        spans += [m.span() for m in re.finditer(rf"{re.escape(home)}(?![\w-])", text)]
    for span in sorted(set(spans)):
        # Of "D:/data" the part "/data" is a path by itself; the longer one is told.
        if not any(o != span and o[0] <= span[0] and span[1] <= o[1] for o in spans):
            yield "absolute path", text[slice(*span)].rstrip(".,:;!?")[:_MOST]
    for names, kind, flags in (
        (machine.users, "user name", re.NOFLAG),
        (machine.hosts, "host name", re.IGNORECASE),
    ):
        for name in sorted(names):
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, flags):
                yield kind, name


def _strings(name: str, data: bytes) -> Iterator[str]:
    text = data.decode("utf-8", "replace")
    if not name.endswith(".json"):
        yield text
        return
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        yield text
        return
    if name == "manifest.json" and isinstance(value, dict):
        value = value.get("provenance")
    yield from _walk(value)


def _walk(value: Any) -> Iterator[str]:
    """Yield keys and strings; a string that holds JSON itself (an environment's spec) as such."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner)
    elif isinstance(value, str):
        if value[:1] in ("{", "["):
            try:
                yield from _walk(json.loads(value))
                return
            except (ValueError, RecursionError):
                pass
        yield value

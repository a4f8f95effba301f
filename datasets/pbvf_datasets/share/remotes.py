"""Places that datasets are sent to and fetched from: folders, HTTP servers, what fsspec reaches.

A place holds files under known names. Its answers are a stranger's: nothing is believed that
was not compared with a digest, and no more is taken into memory than was asked for.

HTTP goes through the standard library: one request fetches a file from where it broke off,
whatever its length, and needs no further package. All other protocols go through fsspec.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import http.client
import logging
import os
import re
import stat
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Protocol, Self

from pbvf_offline import __version__
from pbvf_offline.errors import (
    DamagedError,
    NetworkError,
    PbvfError,
    ResourceError,
    UnsafeError,
    UsageError,
    describe,
    printable,
)

TIMEOUT: Final = 60.0
"""Seconds without an answer after which a connection counts as broken."""

HTTP_PAUSES: tuple[float, ...] = (0.5, 1.0, 2.0)

BLOCK: Final = 8 * 2**20
"""Bytes that fsspec fetches at a time."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:://|::)")
_LOCAL: Final = ("file", "local")
_HTTP: Final = ("http", "https")
_ATOMIC: Final = frozenset(
    ("s3", "s3a", "gs", "gcs", "hf", "abfs", "abfss", "az", "adl", "oss", "oci", "memory")
)
"""Protocols by which a file is there whole or not at all; others get a rename."""
_EXTRAS: Final = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "hub"}
_LOGGERS: Final = ("fsspec", "s3fs", "aiobotocore", "gcsfs", "google")
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class MissingFileError(Exception):
    """There is no file of this name at a place."""


class BrokenError(Exception):
    """A connection broke; trying again may help."""


class Incoming:
    """The bytes of a file as they come; a context manager.

    Args:
        stream: Where to read.
        start: Where in the file the bytes begin.
        total: Size of the file as the place says, or None.
        errors: Turns the errors of the place into ours.
    """

    def __init__(
        self,
        stream: Any,
        start: int,
        total: int | None,
        errors: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self.start = start
        self.total = total
        self._stream = stream
        self._errors = errors
        self._read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)

    def read(self, most: int) -> bytes:
        """Return some bytes, at most so many; none at the end.

        Raises:
            BrokenError: The connection broke.
            PbvfError: The place refuses.
        """
        with self._errors():
            return self._read(most)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(Exception):
            self._stream.close()


class Place(Protocol):
    """Where files lie under names."""

    shown: str
    """What to call it: no credentials."""

    pauses: tuple[float, ...]
    """Seconds to wait before each new try after a connection broke."""

    def open(self, name: str, start: int = 0) -> Incoming:
        """Return a file's bytes from ``start`` on, or from 0 where the place cannot do that.

        Raises:
            MissingFileError: There is none of this name.
            BrokenError: The connection broke.
            NetworkError: The place refuses.
            UnsafeError: It is a link or device.
            ResourceError: It cannot be read.
        """
        ...


# ------------------------------------------------------------------------------- words


def local_path(remote: str) -> Path | None:
    """Return the folder that a place names, or None when it is not on this machine.

    Raises:
        UsageError: It is neither a path nor an address.
    """
    if not remote or "\0" in remote:
        raise UsageError(f"{remote!r} is neither a folder nor an address")
    match = _SCHEME.match(remote)
    if match is None:
        return Path(remote).expanduser()
    if match[1].lower() in _LOCAL and remote[match.end() - 2 : match.end()] == "//":
        return Path(remote[match.end() :] or "/").expanduser()
    return None


def is_http(remote: str) -> bool:
    """Whether an address is one of the web."""
    match = _SCHEME.match(remote)
    return match is not None and match[1].lower() in _HTTP


def shown_address(remote: str) -> str:
    """Return an address without credentials: no password, and no values of its query."""
    text = re.sub(r"(?<=://)[^/?#]*@", "***@", remote)
    return re.sub(r"[?#].*", "?***", text)


def secrets_of(remote: str) -> tuple[str, ...]:
    """Return the parts of an address that must not be shown, longest first."""
    found: set[str] = set()
    for login in re.findall(r"://([^/?#]*)@", remote):
        found |= {login, *login.split(":", 1)[1:]}
    found |= {part for part in re.split(r"[?#]", remote)[1:] if part}
    found |= {value for part in found for value in re.findall(r"=([^&]{4,})", part)}
    found |= {urllib.parse.unquote(text) for text in found}
    return tuple(sorted((f for f in found if f), key=len, reverse=True))


def _told(error: BaseException, remote: str) -> str:
    """Return somebody else's error as a short text without credentials."""
    text = " ".join(describe(error).split())
    for secret in secrets_of(remote):
        text = text.replace(secret, "***")
    return printable(text[:300])


# ------------------------------------------------------------------------------ folders


class LocalPlace:
    """A folder of this machine, which may be a stranger's: no link is followed in there.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown = str(folder)
        self.pauses: tuple[float, ...] = ()

    def open(self, name: str, start: int = 0) -> Incoming:
        """Return a file's bytes; see :class:`Place`."""
        where = self.folder / name
        flags = os.O_RDONLY | os.O_CLOEXEC
        parent = -1
        try:
            parent = os.open(self.folder, flags | os.O_DIRECTORY)
            *folders, last = name.split("/")
            for part in folders:
                inner = os.open(part, flags | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
                os.close(parent)
                parent = inner
            descriptor = os.open(last, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        except OSError as error:
            raise _local_error(error, where) from error
        finally:
            if parent >= 0:
                os.close(parent)
        file = os.fdopen(descriptor, "rb")
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            file.close()
            raise UnsafeError("this is not a regular file", where=where)
        file.seek(start)

        @contextlib.contextmanager
        def errors() -> Iterator[None]:
            try:
                yield
            except OSError as error:
                raise _local_error(error, where) from error

        return Incoming(file, start, status.st_size, errors)


def _local_error(error: OSError, where: Path) -> Exception:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        # With O_NOFOLLOW a link to a folder is "not a directory".
        for place in (where.parent, where):
            if place.is_symlink() and error.errno == errno.ENOTDIR:
                break
        else:
            return MissingFileError(str(where))
    if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
        return UnsafeError(
            "this is a symbolic link, which could lead anywhere",
            where=where,
            remedy="put the file itself there",
        )
    if error.errno == errno.EIO:
        return DamagedError(f"it cannot be read: {error.strerror}", where=where)
    return ResourceError(f"it cannot be read: {error.strerror}", where=where)


# --------------------------------------------------------------------------------- HTTP


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows only to the web, never from https to http, and tells the login to its own host."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        before, after = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if after.scheme not in _HTTP or (before.scheme == "https" and after.scheme == "http"):
            raise urllib.error.HTTPError(
                req.full_url, code, f"redirects to {after.scheme}", headers, fp
            )
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        login = req.unredirected_hdrs.get("Authorization")
        if request is not None and login and before[:2] == after[:2]:
            request.add_unredirected_header("Authorization", login)
        return request


class HttpPlace:
    """A folder on a web server.

    Args:
        remote: Its address; a query is sent with each file's name.

    Raises:
        UsageError: The address is malformed.
    """

    def __init__(self, remote: str) -> None:
        self.shown = shown_address(remote).rstrip("/")
        self.pauses = HTTP_PAUSES
        self._remote = remote
        self._login: str | None = None
        try:
            parts = urllib.parse.urlsplit(remote)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or re.search(r"[\x00-\x20\x7f]", remote):
            raise UsageError(f"{self.shown!r} is no address of a web server")
        if parts.username is not None:
            login = f"{parts.username}:{parts.password or ''}"
            self._login = "Basic " + base64.b64encode(
                urllib.parse.unquote(login).encode("utf-8")
            ).decode("ascii")
        netloc = f"[{host}]" if ":" in host else host
        netloc += f":{port}" if port else ""
        path = urllib.parse.quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        self._base = f"{parts.scheme.lower()}://{netloc}{path}"
        self._query = f"?{urllib.parse.quote(parts.query, safe='/%:@!$&()*+,;=~?')}"
        if not parts.query:
            self._query = ""
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.UnknownHandler(),
            _Redirects(),
        ):
            self._opener.add_handler(handler)

    def open(self, name: str, start: int = 0) -> Incoming:
        """Return a file's bytes; see :class:`Place`."""
        url = f"{self._base}/{urllib.parse.quote(name)}{self._query}"
        request = urllib.request.Request(
            url,
            headers={
                "User-Agent": f"pbvf-offline/{__version__}",
                "Accept-Encoding": "identity",
                **({"Range": f"bytes={start}-"} if start else {}),
            },
        )
        if self._login is not None:
            request.add_unredirected_header("Authorization", self._login)
        try:
            with self._errors(name):
                response = self._opener.open(request, timeout=TIMEOUT)
        except _RangeError:
            return self.open(name)
        length = response.headers.get("Content-Length", "")
        total = int(length) if re.fullmatch(r"\d{1,18}", length) else None
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            given = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if given is None or int(given[1]) != start:
                response.close()
                if start == 0:
                    raise NetworkError("it sends another part than asked for", where=self._at(name))
                return self.open(name)
            total = None if given[3] == "*" else int(given[3])
        elif response.status != http.HTTPStatus.OK:
            response.close()
            raise NetworkError(f"it answers with {response.status}", where=self._at(name))
        else:
            start = 0
        return Incoming(response, start, total, lambda: self._errors(name))

    def _at(self, name: str) -> str:
        return f"{self.shown}/{name}"

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except urllib.error.HTTPError as error:
            error.close()
            code, reason = error.code, printable(" ".join(str(error.reason).split())[:80])
            if code in (404, 410):
                raise MissingFileError(self._at(name)) from None
            if code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise _RangeError from None
            if code in (408, 425, 429) or code >= 500:
                raise BrokenError(f"the server answers {code} {reason}") from None
            remedy = None
            if code in (401, 403):
                remedy = "a login goes into the address: https://USER:PASSWORD@HOST/…"
            raise NetworkError(
                f"the server refuses: {code} {reason}", where=self._at(name), remedy=remedy
            ) from None
        except urllib.error.URLError as error:
            cause = error.reason if isinstance(error.reason, OSError) else error
            raise BrokenError(_told(cause, self._remote)) from None
        except (http.client.HTTPException, OSError) as error:
            raise BrokenError(_told(error, self._remote)) from None
        except ValueError as error:
            raise UsageError(
                f"is no address of a web server ({_told(error, self._remote)})", where=self.shown
            ) from None


class _RangeError(Exception):
    """The server has nothing from there on."""


# ------------------------------------------------------------------------------- fsspec


@dataclass(frozen=True)
class _Sent:
    """Tells fsspec whom to tell of bytes sent."""

    told: Callable[[int], None]

    def callback(self) -> Any:
        from fsspec.callbacks import Callback

        told = self.told

        class Counter(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                super().relative_update(inc)
                told(self.value)

            def absolute_update(self, value: int) -> None:
                super().absolute_update(value)
                told(self.value)

        return Counter()


def _hush() -> None:
    """Keep the log of the packages under fsspec off stderr, where nobody asked for a log.

    Logging prints warnings and tracebacks of loggers without any handler; what is wrong is
    raised as well, and told in one line.
    """
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


class FsspecPlace:
    """A folder that fsspec reaches.

    Args:
        remote: Its address, such as ``s3://bucket/name``.

    Raises:
        UsageError: The protocol is unknown, or needs a package that is not installed.
        NetworkError: It cannot be reached.
    """

    def __init__(self, remote: str) -> None:
        self.shown = shown_address(remote).rstrip("/")
        self.pauses: tuple[float, ...] = ()  # the packages under fsspec try again themselves
        self._remote = remote
        match = _SCHEME.match(remote)
        self.protocol = match[1].lower() if match else ""
        _hush()
        try:
            import fsspec

            with self._errors(""):
                # No instance of an earlier use: it would remember how things were then.
                fs, root = fsspec.core.url_to_fs(remote, skip_instance_cache=True)
        except BrokenError as error:  # some connect when they are made
            raise NetworkError(str(error), where=self.shown) from None
        except ImportError as error:
            extra = _EXTRAS.get(self.protocol)
            hint = f"pip install 'pbvf-offline[{extra}]'" if extra else _told(error, remote)
            raise UsageError(
                f"{self.protocol}:// needs a package that is not installed",
                where=self.shown,
                remedy=hint,
            ) from None
        self._fs: Any = fs
        if hasattr(fs, "max_concurrency"):
            # So many parts of a large file, 50 MB each, would be in memory at a time.
            fs.max_concurrency = min(2, fs.max_concurrency)
        self._root = str(root).rstrip("/")
        self._atomic = self.protocol in _ATOMIC and "::" not in remote

    def open(self, name: str, start: int = 0) -> Incoming:
        """Return a file's bytes; see :class:`Place`."""
        with self._errors(name):
            file = self._fs.open(self._path(name), "rb", block_size=BLOCK)
            size = getattr(file, "size", None)
            if start:
                file.seek(start)
        total = size if isinstance(size, int) else None
        return Incoming(_Plain(file), start, total, lambda: self._errors(name))

    def size(self, name: str) -> int | None:
        """Return how many bytes a file has, or None when there is none of this name.

        Raises:
            BrokenError: The connection broke.
            NetworkError: The place refuses or does not tell.
        """
        try:
            with self._errors(name):
                self._fs.invalidate_cache()
                info = self._fs.info(self._path(name))
        except MissingFileError:
            return None
        if info.get("type") == "directory":
            return None
        size = info.get("size")
        if type(size) is not int:
            raise NetworkError("the place does not tell how large it is", where=self._at(name))
        return size

    def put(self, name: str, file: Path, told: Callable[[int], None]) -> None:
        """Send a file; it is there whole or not at all.

        Args:
            name: What it will be called.
            file: The file.
            told: Called with the number of bytes sent so far.

        Raises:
            BrokenError: The connection broke.
            NetworkError: The place refuses.
        """
        target = self._path(name)
        folder, _, last = target.rpartition("/")
        callback = _Sent(told).callback()
        with self._errors(name, writing=True):
            if self._atomic:
                self._fs.put_file(str(file), target, callback=callback)
            else:
                self._fs.makedirs(folder, exist_ok=True)
                part = f"{folder}/.part-{last}"
                self._fs.put_file(str(file), part, callback=callback)
                self._fs.mv(part, target)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one.

        Raises:
            BrokenError: The connection broke.
            NetworkError: The place refuses.
        """
        if self.size(name) is None:
            return
        with self._errors(name, writing=True):
            self._fs.rm_file(self._path(name))
            self._fs.invalidate_cache()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _at(self, name: str) -> str:
        return f"{self.shown}/{name}" if name else self.shown

    @contextlib.contextmanager
    def _errors(self, name: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except (PbvfError, MemoryError, ImportError):
            raise
        except FileNotFoundError as error:
            if not writing:
                raise MissingFileError(self._at(name)) from None
            raise NetworkError(
                f"it cannot be written there: {_told(error, self._remote)}", where=self._at(name)
            ) from None
        except PermissionError as error:
            raise NetworkError(
                f"the place refuses: {_told(error, self._remote)}",
                where=self._at(name),
                remedy="check the credentials that its package finds, and what they may do",
            ) from None
        except NotImplementedError:
            raise UsageError(
                f"{self.protocol}:// cannot be written to" if writing else "cannot be read from",
                where=self.shown,
            ) from None
        except Exception as error:
            # Each package under fsspec has errors of its own, with no base in common.
            if not name and isinstance(error, ValueError):
                raise UsageError(
                    f"is no place that fsspec knows ({_told(error, self._remote)})",
                    where=self.shown,
                ) from None
            if "credential" in describe(error).lower():
                raise NetworkError(
                    f"no credentials: {_told(error, self._remote)}", where=self._at(name)
                ) from None
            raise BrokenError(_told(error, self._remote)) from None


class _Plain:
    """A file of fsspec with ``read`` and ``close`` alone: some have a ``read1`` that is slow."""

    def __init__(self, file: Any) -> None:
        self.read = file.read
        self.close = file.close


def source_at(remote: str) -> Place:
    """Return a place to read from: a path, an address of the web or of what fsspec reaches.

    Raises:
        UsageError: It is none, or needs a package that is not installed.
        NetworkError: It cannot be reached.
    """
    folder = local_path(remote)
    if folder is not None:
        return LocalPlace(folder)
    return HttpPlace(remote) if is_http(remote) else FsspecPlace(remote)

"""A folder on a web server.

The standard library is used and not fsspec's HTTP, with which tests in
``tests/share/test_transfer.py`` fail: a connection that breaks loses what came of a block
(``test_a_connection_that_breaks_is_taken_up_again``), the query of a signed address is not sent
with each file (``test_a_query_goes_with_every_file_and_is_not_shown``), and a login in the address
does not work (``test_logins_stay_with_their_host_and_are_never_shown``). It also needs aiohttp.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, ClassVar, Final

from pbvf_datasets.share.remote import (
    BrokenError,
    Incoming,
    MissingFileError,
    error_text,
    shown_address,
)
from pbvf_offline import __version__
from pbvf_offline.errors import NetworkError, UsageError, printable

TIMEOUT: Final = 60.0
"""Seconds without an answer after which a connection counts as broken."""

PAUSES: tuple[float, ...] = (0.5, 1.0, 2.0)

_SCHEMES: Final = ("http", "https")
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


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
        if after.scheme not in _SCHEMES or (before.scheme == "https" and after.scheme == "http"):
            raise urllib.error.HTTPError(
                req.full_url, code, f"redirects to {after.scheme}", headers, fp
            )
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        login = req.unredirected_hdrs.get("Authorization")
        if request is not None and login and before[:2] == after[:2]:
            request.add_unredirected_header("Authorization", login)
        return request


class WebRemote:
    """A folder on a web server, to fetch from.

    Args:
        address: Its address; a query is sent with each file's name.

    Raises:
        UsageError: The address is malformed.
    """

    schemes: ClassVar[tuple[str, ...]] = _SCHEMES

    def __init__(self, address: str) -> None:
        self.shown = shown_address(address)
        self.pauses = PAUSES
        self._address = address
        self._login: str | None = None
        try:
            parts = urllib.parse.urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or re.search(r"[\x00-\x20\x7f]", address):
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
        query = urllib.parse.quote(parts.query, safe="/%:@!$&()*+,;=~?")
        self._query = f"?{query}" if query else ""
        self._opener = urllib.request.build_opener(_Redirects)

    @staticmethod
    @contextlib.contextmanager
    def local(folder: Path) -> Iterator[str]:
        """Make a place; see :class:`~pbvf_datasets.share.remote.Remote`."""
        import functools
        import http.server
        import threading

        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, args=(0.02,)).start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()

    def open(self, name: str, start: int = 0) -> Incoming:
        """Return a file's bytes; see :class:`~pbvf_datasets.share.remote.Remote`."""
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
        return Incoming(response.read1, response.close, start, total, lambda: self._errors(name))

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
            raise BrokenError(error_text(cause, self._address)) from None
        except (http.client.HTTPException, OSError) as error:
            raise BrokenError(error_text(error, self._address)) from None
        except ValueError as error:
            raise UsageError(
                f"is no address of a web server ({error_text(error, self._address)})",
                where=self.shown,
            ) from None


class _RangeError(Exception):
    """The server has nothing from there on."""

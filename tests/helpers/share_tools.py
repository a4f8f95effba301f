"""Servers on the loopback address, and datasets to send through them."""

from __future__ import annotations

import contextlib
import http.server
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli_tools import content
from hostile import BOX_SPEC, make
from libtools import make_data, make_file, make_policies
from pbvf_datasets.share.privacy import Machine
from pbvf_datasets.share.remotes import web
from pbvf_offline.io.reading import file_digest
from pbvf_offline.policies.files import PoliciesFile
from pbvf_runs.share import bundles
from pbvf_runs.train import train_run
from run_tools import run_config

NAME = "lab/toy-v0"
SOMEBODY = Machine(frozenset({"alice"}), frozenset({"box7"}), frozenset({"/home/alice"}))


def licensed(root: Path, name: str = NAME, **options: Any) -> Path:
    """Return the folder of a dataset that may be sent."""
    return make(root, name, **{"license": "CC-BY-4.0", "authors": ["A. Nobody"], **options})


def loose(folder: Path) -> list[Path]:
    """Return a critic, policies that name it, and a finished run, in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    critic, policies, run = (folder / name for name in ("toy-v0.safetensors", "grown", "run"))
    data = make_data(BOX_SPEC, policies=4, length=3)
    critic.write_bytes(make_file(data=data).encode())
    origin = {"made_by": "synthesize", "critic": file_digest(critic)}
    PoliciesFile(make_policies(BOX_SPEC, 2), None, origin).save(policies)
    train_run(run_config(evaluations=2), run, 60, snapshots=(30,))
    return [critic, policies, run]


def bundled(folder: Path) -> Path:
    """Return the folder of a bundle of them that may be sent; it is called as the dataset is."""
    target = folder / NAME
    bundles.push(
        [str(path) for path in loose(folder / "loose")],
        str(target),
        license="CC-BY-4.0",
        authors=["A. Nobody"],
    )
    return target


def largest(folder: Path) -> str:
    """Return the name of the largest file of a dataset or bundle."""
    files = content(folder)
    return max(files, key=lambda name: len(files[name]))


def names(folder: Path) -> list[str]:
    """Return what is in a folder, hidden entries too; nothing where there is none."""
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


@dataclass
class Web:
    """An HTTP server of one folder, with faults to choose.

    Attributes:
        folder: What is served.
        ranges: Whether it understands ranges.
        lengths: Whether it says how long its answers are.
        drop: Bytes of an answer after which the connection breaks.
        stall: Bytes of an answer after which nothing comes until ``released`` is set.
        codes: Answers with a code, by file name.
        bodies: Answers with other bytes, by file name.
        login: Refuses requests without this ``Authorization``.
        redirect: Sends every request on, to this address and the path.
        requests: Path and range of each request so far.
        logins: The ``Authorization`` of each.
    """

    folder: Path
    ranges: bool = True
    lengths: bool = True
    drop: int | None = None
    stall: int | None = None
    released: threading.Event = field(default_factory=threading.Event)
    codes: dict[str, int] = field(default_factory=dict)
    bodies: dict[str, bytes | Callable[[], Iterator[bytes]]] = field(default_factory=dict)
    login: str | None = None
    redirect: str | None = None
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    logins: list[str | None] = field(default_factory=list)
    url: str = ""

    def asked(self, name: str) -> list[str | None]:
        """The ranges that were asked of a file."""
        return [wanted for path, wanted in self.requests if path.split("?")[0] == f"/{name}"]


def _handler(web: Web) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            web.requests.append((self.path, self.headers.get("Range")))
            web.logins.append(self.headers.get("Authorization"))
            name = self.path.split("?")[0].removeprefix("/")
            if web.redirect is not None:
                self.send_response(302)
                self.send_header("Location", web.redirect + self.path)
                return self.end_headers()
            if web.login is not None and self.headers.get("Authorization") != web.login:
                return self.send_error(401)
            if name in web.codes:
                return self.send_error(web.codes[name])
            body = web.bodies.get(name)
            if callable(body):
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    for chunk in body():
                        self.wfile.write(chunk)
                return None
            file = web.folder / name
            if body is None and not file.is_file():
                return self.send_error(404)
            data = file.read_bytes() if body is None else body
            return self.answer(data)

        def answer(self, data: bytes) -> None:
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            rest = data
            if wanted and web.ranges:
                start = int(wanted[1])
                if start >= len(data):
                    return self.send_error(416)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                rest = data[start:]
            else:
                self.send_response(200)
            if web.lengths:
                self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            if web.drop is not None and len(rest) > web.drop:
                self.wfile.write(rest[: web.drop])
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
            elif web.stall is not None and len(rest) > web.stall:
                self.wfile.write(rest[: web.stall])
                self.wfile.flush()
                web.released.wait(60)
            else:
                self.wfile.write(rest)
            return None

    return Handler


@contextlib.contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Web]:
    """Serve a folder on the loopback address."""
    web = Web(folder, **options)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(web))
    server.daemon_threads = True
    web.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def without_pauses(patch: Any) -> None:
    """Try again at once."""
    patch.setattr(web, "PAUSES", (0.0, 0.0))

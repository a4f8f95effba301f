"""Run commands on hostile files in this process, and watch what they do.

    python tests/attacks/watch.py < jobs.json

reads ``{"allowed": [folders], "writable": [folders], "secret": folder, "warm": [argv],
"jobs": [{"argv", ...}]}`` and prints one JSON line for each job: exit code, stdout, stderr,
peak memory above the idle process, and everything that was done and should not have been.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import watching
from pbvf_cli.__main__ import main

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NEVER = {
    "pickle.find_class",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.startfile",
    "os.spawn",
    "ctypes.dlopen",
    "socket.bind",
    "webbrowser.open",
    "code.__new__",
}
_PATHS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}


class Guard:
    """An audit hook that notes what must not happen while a job runs.

    Args:
        allowed: Folders that may be read.
        writable: Folders that may be written.
    """

    def __init__(self, allowed: list[str], writable: list[str]) -> None:
        places = sysconfig.get_paths()
        own = [places["stdlib"], places["platstdlib"], places["purelib"], sys.prefix]
        own += [sys.base_prefix, str(Path(__file__).resolve().parents[2])]
        self._read = tuple({os.path.realpath(p) + "/" for p in (*own, *allowed, *writable)})
        self._read += ("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/dev/tty")
        self._write = (*(os.path.realpath(p) + "/" for p in writable), "/dev/null")
        self.found: list[str] = []
        self.active = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active:
            return
        self.active = False  # what follows opens nothing, but may look at paths
        try:
            self._look(event, args)
        finally:
            self.active = True

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            self._opened(args)
        elif event in _PATHS:
            for path in args[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
                self._place(event, path, self._write)
        elif event in _NEVER:
            self.found.append(f"{event} {args[:1]!r}"[:200])
        elif event in ("exec", "compile"):
            name = getattr(args[0], "co_filename", None) if event == "exec" else args[1]
            if not (isinstance(name, str) and self._is_ours(name)):
                self.found.append(f"{event} of {name!r}")
        elif event == "import":
            if "evil" in str(args[0]):
                self.found.append(f"import {args[0]!r}")
        elif event in ("socket.connect", "socket.getaddrinfo"):
            address = args[1] if event == "socket.connect" else args
            host = address[0] if isinstance(address, tuple) else address
            if host not in ("127.0.0.1", "localhost", b"127.0.0.1", b"localhost"):
                self.found.append(f"{event} {address!r}")

    def _is_ours(self, name: str) -> bool:
        # Dataclasses, named tuples and the like compile text of their own.
        return name.startswith(("<string>", "<frozen", "<attrs", "<__array_function__")) or (
            os.path.realpath(name).startswith(self._read)
        )

    def _opened(self, args: tuple[Any, ...]) -> None:
        path, mode, flags = args
        if not isinstance(path, str | bytes):
            return
        writes = bool(flags & _WRITES) if isinstance(flags, int) else False
        if isinstance(mode, str):
            writes = writes or any(sign in mode for sign in "wax+")
        self._place("write" if writes else "read", path, self._write if writes else self._read)

    def _place(self, what: str, path: Any, folders: tuple[str, ...]) -> None:
        if not isinstance(path, str | bytes):
            return
        name = os.fsdecode(path)
        if not name.startswith("/"):
            # Relative to a folder that is open: it must not lead out of there.
            if ".." in name.split("/"):
                self.found.append(f"{what} {name}")
            return
        # The folder's links are followed, the last part is the file itself.
        real = os.path.realpath(Path(name).parent) + "/" + Path(name).name
        if not (real.startswith(folders) or (real + "/") in folders):
            self.found.append(f"{what} {name}")


def _memory(which: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which):
            return int(line.split()[1]) * 1024
    return 0


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _run(argv: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    return code, out.getvalue(), err.getvalue()


def _clean(folders: list[str]) -> None:
    for folder in folders:
        for path in sorted(Path(folder).rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()


def run() -> None:
    """Do what the text on stdin says."""
    plan = json.loads(sys.stdin.read())
    import torch

    torch.set_num_threads(1)
    bad = []
    for argv in plan["warm"]:
        _clean(plan["clean"])
        code, _, err = _run(argv)
        if code != 0:
            bad.append(f"{argv} on good files ends with {code}: {err}")
    if bad:
        sys.exit("\n".join(bad))
    guard = Guard(plan["allowed"], plan["writable"])
    secret = Path(plan["secret"])
    stream = watching.inotify(secret, *(p for p in secret.rglob("*") if p.is_dir()))
    assert stream is not None
    idle = _memory("VmRSS")
    for job in plan["jobs"]:
        _clean(plan["clean"])
        if job["copy"]:
            os.link(*job["copy"])
        _forget_peak()
        before = time.perf_counter()
        guard.found, guard.active = [], True
        try:
            code, out, err = _run(job["argv"])
        finally:
            guard.active = False
        left = [
            str(p)
            for folder in plan["clean"]
            for p in Path(folder).rglob("*")
            if p.is_file() and not any(part.startswith(".") for part in p.parts)
            if not job["copy"] or str(p) != job["copy"][1]
        ]
        result = {
            "code": code,
            "out": out[-500:],
            "err": err,
            "seconds": time.perf_counter() - before,
            "memory": _memory("VmHWM") - idle,
            "found": guard.found + [f"opened {name}" for name in watching.events(stream)],
            "left": left,
        }
        print(json.dumps(result), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    run()

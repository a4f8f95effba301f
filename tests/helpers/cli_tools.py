"""Run the ``pbvf`` command in this process or in one of its own, for the CLI tests."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pbvf_cli.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / name for name in (".", "datasets", "cli", "tests", "tests/helpers")]


@dataclass(frozen=True)
class Ran:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout; NaN is refused."""

        def refuse(name: str) -> Any:
            raise AssertionError(f"{name} in the output")

        value = json.loads(self.out, parse_constant=refuse)
        assert isinstance(value, dict)
        return value

    @property
    def error(self) -> str:
        """The one error line, which must be all there is on stderr."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert self.out == ""
        return lines[0]

    def ok(self) -> Ran:
        """Check that the command ended well."""
        assert self.code == 0, self.err
        return self

    def refused(self, code: int, *words: str) -> Ran:
        """Check that it ended with a code and one line of error that has these words."""
        assert self.code == code, self.err
        for part in words:
            assert part in self.error
        assert self.error
        return self


def pbvf(*argv: object, warns: bool = False) -> Ran:
    """Run a command here; Python warnings are errors unless ``warns``."""
    out, err = io.StringIO(), io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        if warns:
            warnings.simplefilter("always", UserWarning)
        code = main([str(a) for a in argv])
    return Ran(code, out.getvalue(), err.getvalue())


def start(
    *argv: object, code: str | None = None, env: dict[str, str] | None = None, **kwargs: Any
) -> subprocess.Popen[str]:
    """Start a command, or Python code, in a process of its own."""
    command = ["-m", "pbvf_cli"] if code is None else ["-c", code]
    return subprocess.Popen(
        [sys.executable, *command, *(str(a) for a in argv)],
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        },
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs},
    )


def run_process(*argv: object, **kwargs: Any) -> Ran:
    """Run a command in a process of its own to its end."""
    process = start(*argv, **kwargs)
    out, err = process.communicate(timeout=120)
    return Ran(process.returncode, out, err)


def make(folder: Path, *lines: str) -> Path:
    """Run commands in a folder, whose datasets are in it, and return the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "datasets"))
        patch.chdir(folder)
        for line in lines:
            ran = pbvf(*shlex.split(line), "-q")
            assert ran.code == 0, ran.err
    return folder


def rows(text: str) -> dict[str, str]:
    """Return the rows of a table that people read: its first word to the others."""
    split = (line.split() for line in text.splitlines() if line.strip())
    return {first: " ".join(others) for first, *others in split}


def wait_for(log: Path, lines: int, process: subprocess.Popen[str]) -> None:
    """Wait until a process has written so many lines to its log."""
    for _ in range(6000):
        if log.exists() and len(log.read_text().splitlines()) >= lines:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.kill()
    raise AssertionError("the process did not get so far")


def wait_for_group(process: subprocess.Popen[str]) -> None:
    """Wait until no process of the group that a process leads is left."""
    for _ in range(100):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a worker is still there")


def digest(root: Path, dataset: str) -> str:
    """Return the digest in a dataset's manifest."""
    value = json.loads((root / dataset / "manifest.json").read_text())["digest"]
    assert isinstance(value, str)
    return value


def content(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder by its name in there."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }

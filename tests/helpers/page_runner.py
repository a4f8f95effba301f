"""Run a page of the documentation: its commands, its Python, and the output that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from pbvf_cli.__main__ import main

ROOT = Path(__file__).resolve().parent.parent.parent
_BLOCK = re.compile(r"^```(\w*)(?: title=\"(.+)\")?\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(\.\d*)?(e[-+]?\d+)?")


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    return [block for found, _, block in _BLOCK.findall(text) if found == language]


def run_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a page's blocks in the current folder, from the first to the last.

    ``bash`` holds commands, ``python`` code that shares one namespace; with a title they are
    files, which are written. ``text`` is what the block before it printed, with any numbers;
    a line ``…`` stands for lines left out. Other blocks are not run.
    """
    namespace: dict[str, Any] = {"__name__": "page"}
    out = ""
    for language, title, block in _BLOCK.findall((ROOT / name).read_text()):
        if title:
            Path(title).write_text(block)
        elif language == "bash":
            capsys.readouterr()
            for command in block.replace("\\\n", " ").splitlines():
                _run(command, name, capsys)
            out = capsys.readouterr().out
        elif language == "python":
            capsys.readouterr()
            exec(compile(block, name, "exec"), namespace)
            out = capsys.readouterr().out
        elif language == "text":
            shown = r"\n".join(
                r"(?:.*\n)*?.*" if line == "…" else re.escape(_shape(line))
                for line in block.splitlines()
            )
            printed = "\n".join(map(_shape, out.splitlines()))
            assert re.fullmatch(shown, printed), f"{name} shows\n{block}\nand it printed\n{out}"


def _run(command: str, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = shlex.split(command)
    assert program == "pbvf", f"{page}: {command}"
    code = main(arguments)
    assert code == 0, f"{page}: {command} ended with {code}: {capsys.readouterr().err}"


def _shape(line: str) -> str:
    """Return a line without what may differ: numbers, digests, widths, the folder."""
    line = re.sub(r"\b[0-9a-f]{12,}\b", "DIGEST", line.replace(str(Path.cwd()), "…"))
    line = _NUMBER.sub("N", line)
    return re.sub(r"[─\s]+", " ", line).strip()

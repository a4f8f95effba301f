"""Run a page of the documentation: its commands, its Python, and the output that it shows."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

from cli_tools import pbvf

ROOT = Path(__file__).resolve().parent.parent.parent
_BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(\.\d*)?(e[-+]?\d+)?")


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    return [block for found, _, block in _BLOCK.findall(text) if found == language]


def files_of(name: str) -> list[tuple[str, str]]:
    """Return the blocks of a page that have a title, which are files, with their names."""
    return [(title, text) for _, title, text in _BLOCK.findall((ROOT / name).read_text()) if title]


def run_page(name: str) -> None:
    """Run a page's blocks in the current folder, from the first to the last.

    ``bash`` holds commands, which succeed unless a comment says "ends with N"; ``python`` is
    code that shares one namespace, or with a title a file, which is written. ``text`` is what
    the block before it printed, with any numbers; a line ``…`` stands for lines left out. Other
    blocks are not run.
    """
    namespace: dict[str, Any] = {"__name__": "page"}
    out = ""
    for language, title, block in _BLOCK.findall((ROOT / name).read_text()):
        if title:
            Path(title).write_text(block)
        elif language == "bash":
            commands = block.replace("\\\n", " ").splitlines()
            out = "".join(_run(command, name) for command in commands)
        elif language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(block, name, "exec"), namespace)
            out = printed.getvalue()
        elif language == "text":
            shown = r"\n".join(
                r"(?:.*\n)*?.*" if line == "…" else re.escape(shape(line))
                for line in block.splitlines()
            )
            got = "\n".join(map(shape, out.splitlines()))
            assert re.fullmatch(shown, got), f"{name} shows\n{block}\nbut got\n{out}"


def _run(command: str, page: str) -> str:
    """Return what a command printed, and its error if it is to end with one."""
    command, _, ending = command.partition("# ends with ")
    program, *arguments = shlex.split(command)
    assert program == "pbvf", f"{page}: {command}"
    ran = pbvf(*arguments)
    assert ran.code == int(ending or 0), f"{page}: {command} ended with {ran.code}: {ran.err}"
    errors = [line + "\n" for line in ran.err.splitlines() if line.startswith("error: ")]
    return ran.out + "".join(errors)


def shape(line: str) -> str:
    """Return a line without what may differ: numbers, digests, widths, the folder."""
    line = re.sub(r"\b[0-9a-f]{12,}\b", "DIGEST", line.replace(str(Path.cwd()), "…"))
    line = _NUMBER.sub("N", line)
    return re.sub(r"[─\s]+", " ", line).strip()

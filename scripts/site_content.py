"""Pages of the documentation site that are made from the source when the site is built.

A page asks for them by a comment on a line of its own, so that it stays plain Markdown:

    <!-- site: api pbvf_runs -->                        the public names of a package
    <!-- site: commands -->                             every command with its options
    <!-- site: symbols -->                              the paper's symbols and their options
    <!-- site: file CHANGELOG.md -->                    a file of the repository
    <!-- site: section README.md From Python -->        one section of it, without its heading
    <!-- site: introduction README.md -->               what stands before the first section
    <!-- site: notebook tutorials/look.ipynb -->        a notebook of docs/, with its outputs
"""

from __future__ import annotations

import functools
import html
import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent

_COMMENT: Final = re.compile(r"<!-- site: (\S+) ?(.*?) -->")
_ROLE: Final = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([^`]+)`")


def expand(text: str) -> str:
    """Return a page with its comments replaced by what they ask for.

    Raises:
        ValueError: A comment asks for something unknown.
    """

    def content(match: re.Match[str]) -> str:
        name, argument = match.groups()
        if name not in _CONTENTS:
            raise ValueError(f"{match[0]}: there is no {name}, only {', '.join(_CONTENTS)}")
        return _CONTENTS[name](argument)

    lines = [
        _COMMENT.sub(content, line) if line[:4] == "<!--" else line for line in text.split("\n")
    ]
    return _ROLE.sub(_reference, "\n".join(lines))


# ------------------------------------------------------------------------- files, sections


def _file(name: str) -> str:
    """Return a file of the repository for a page in docs/."""
    return (ROOT / name).read_text().replace("](docs/", "](")


def _introduction(name: str) -> str:
    return _file(name).partition("\n## ")[0].partition("\n")[2]


def _section(argument: str) -> str:
    name, _, heading = argument.partition(" ")
    _, found, rest = _file(name).partition(f"\n## {heading}\n")
    if not found:
        raise ValueError(f"{name} has no section {heading!r}")
    return rest.partition("\n## ")[0]


# ----------------------------------------------------------------------------- docstrings


@functools.cache
def public_names() -> Mapping[str, str]:
    """Return the public names, each with the package that has it."""
    packages = ("pbvf_offline", "pbvf_datasets", "pbvf_runs")
    found = {name: p for p in packages for name in importlib.import_module(p).__all__}
    return {name: package for name, package in found.items() if name[0] != "_"}


def _reference(match: re.Match[str]) -> str:
    """Return a role of a docstring as code, with a link where the site has its target."""
    name = match[1]
    first = name.partition(".")[0]
    if first not in public_names():
        return f"`{name}`"
    return f"[`{name}`][{public_names()[first]}.{name}]"


def _api(package: str) -> str:
    """Return what mkdocstrings makes the reference of a package's public names from."""
    names = sorted(name for name, owner in public_names().items() if owner == package)
    return f"::: {package}\n    options:\n      members: [{', '.join(names)}]"


# ------------------------------------------------------------------------------- commands


def _commands(_: str) -> str:
    """Return every command with its arguments and options, as in its help."""
    from typer.main import get_command

    from pbvf_cli.app import COMMANDS, app

    program = get_command(app)
    lines: list[str] = []
    for name in COMMANDS:
        command: Any = program
        context = program.make_context("pbvf", [name], resilient_parsing=True)
        for word in name.split():
            command = command.resolve_command(context, [word])[1]
        lines += _command(name, command, context)
    return "\n".join(lines)


def _command(name: str, command: Any, context: Any) -> Iterator[str]:
    yield from (f"## `pbvf {name}`", "")
    for paragraph in (command.help or "").split("\n\n"):
        yield from (_plain(" ".join(paragraph.split())), "")
    panels: dict[str, list[tuple[str, str]]] = {}
    arguments = []
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is None:
            continue
        term, text = record
        title = getattr(param, "rich_help_panel", None) or "Options"
        if param.param_type_name == "argument":
            term, title = param.metavar or param.name.upper(), "Arguments"
            arguments.append(term)
        text = text.replace("[default: (", "[default: ").replace(")]", "]")
        panels.setdefault(title, []).append((term, " ".join(text.split())))
    yield from ("```text", " ".join(["pbvf", name, "[OPTIONS]", *arguments]), "```", "")
    for title, rows in panels.items():
        yield from (f"**{title}**", "")
        for term, text in rows:
            yield from (f"`{term}`", f":   {_plain(text)}", "")
    if command.epilog:
        title, *examples = command.epilog.split("\n\n")
        yield from (f"**{title.removesuffix(':')}**", "", "```bash", *examples, "```", "")


def _plain(text: str) -> str:
    """Return a text of which Markdown takes no character for a mark."""
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", html.escape(text, quote=False))


# -------------------------------------------------------------------------------- symbols


def records() -> dict[str, type[Any]]:
    """Return the command that has a record's settings as its options, with the record."""
    from pbvf_cli.commands.evaluate import Measurement
    from pbvf_offline.fit.settings import FitSettings
    from pbvf_offline.online.settings import OnlineSettings
    from pbvf_offline.synthesis.settings import EvaluationSettings, SynthesisSettings
    from pbvf_runs.settings import CollectSettings, RunEvaluation

    return {
        "collect": CollectSettings,
        "fit-critic": FitSettings,
        "synthesize": SynthesisSettings,
        "synthesize --evaluate": EvaluationSettings,
        "evaluate": Measurement,
        "train-online": OnlineSettings,
        "train-online ": RunEvaluation,
    }


def _symbols(_: str) -> str:
    """Return the settings that the paper has: symbol, where it stands, option, command."""
    from pbvf_offline.records import fields

    rows: dict[tuple[str, str, str], list[str]] = {}
    for command, record in records().items():
        for field in fields(record):
            about = field.about
            if about is not None and (about.symbol or about.paper):
                row = (about.symbol or "", about.paper or "", field.option)
                rows.setdefault(row, []).append(f"`{command.strip()}`")
    lines = ["| symbol | in the paper | option | of |", "| -- | -- | -- | -- |"]
    for (symbol, where, option), commands in sorted(
        rows.items(), key=lambda row: (not row[0][0], row[0][0])
    ):
        cells = (symbol.replace("|", "&#124;"), _plain(where), f"`{option}`", ", ".join(commands))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _critics(_: str) -> str:
    """Return the critics of this project, each with its one line."""
    from pbvf_offline.critics.kinds import OWN

    rows = (f"| `--critic {kind.name}` | {_plain(kind.summary)} |" for kind in OWN.values())
    return "\n".join(["| option | the paper's |", "| -- | -- |", *rows])


# ------------------------------------------------------------------------------ notebooks


def _notebook(name: str) -> str:
    """Return the cells of a notebook with their stored outputs."""
    cells = json.loads((ROOT / "docs" / name).read_text())["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell))


def _cell(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            png = data["image/png"].replace("\n", "")
            yield f'<img alt="Output of the cell above" src="data:image/png;base64,{png}">'
        elif text := "".join(output.get("text") or data.get("text/plain", "")):
            yield f"```text\n{text.rstrip()}\n```"


_CONTENTS: Final[dict[str, Callable[[str], str]]] = {
    "api": _api,
    "commands": _commands,
    "critics": _critics,
    "file": _file,
    "introduction": _introduction,
    "notebook": _notebook,
    "section": _section,
    "symbols": _symbols,
}

"""Tutorials and how-tos are run, and the output that they show is what comes out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_tools import SOURCES, start
from page_runner import ROOT, files_of, run_page, shape

A_PACKAGE = "add-a-critic.md"  # installed packages are looked for at the start of a process
HOW_TOS = sorted(path.name for path in (ROOT / "docs" / "how-to").glob("*.md"))


@pytest.fixture(scope="module", autouse=True)
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a reader, who has done the tutorial at the command line."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("reader")
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "datasets"))
        patch.setenv("PBVF_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        run_page("docs/tutorials/command-line.md")
        yield folder


def test_tutorial_at_the_command_line(reader: Path) -> None:
    assert (reader / "policies.safetensors").exists()


def test_tutorial_from_python(reader: Path) -> None:
    run_page("docs/tutorials/python.md")
    assert (reader / "critic-py.safetensors").exists()


@pytest.mark.parametrize("name", [name for name in HOW_TOS if name != A_PACKAGE])
def test_how_to(name: str) -> None:
    run_page(f"docs/how-to/{name}")


def test_how_to_that_makes_a_package(reader: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for name, block in files_of(f"docs/how-to/{A_PACKAGE}"):
        (source / name).write_text(block)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"),
            *("--no-build-isolation", "--disable-pip-version-check", "--target", target, source),
        ],
        check=True,
    )
    code = f"from page_runner import run_page; run_page('docs/how-to/{A_PACKAGE}')"
    path = os.pathsep.join(map(str, [target, *SOURCES]))
    process = start(code=code, env={"PYTHONPATH": path}, cwd=reader)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err


def test_notebook(reader: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="of the extra test")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(ROOT / "docs" / "tutorials" / "look.ipynb", as_version=4)
    stored = _outputs(notebook)
    assert any("image/png" in kinds for _, kinds in stored)
    place = {"metadata": {"path": str(reader)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=place).execute()
    assert _outputs(notebook) == stored


def _outputs(notebook: Any) -> list[tuple[str, list[str]]]:
    """Return what each output is, with its text up to numbers."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [(shape(o.get("text", "")), sorted(o.get("data", {}))) for o in outputs]

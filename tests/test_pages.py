"""Tutorials and how-tos are run, and the output that they show is what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from page_runner import run_page

TUTORIAL = "docs/tutorials/command-line.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which pages run one after the other, as a reader runs them."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("reader")
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "datasets"))
        patch.setenv("PBVF_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        yield folder


def test_tutorial_at_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page(TUTORIAL, capsys)
    assert (folder / "policies.safetensors").exists()


def test_tutorial_from_python(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("docs/tutorials/python.md", capsys)
    assert (folder / "critic-py.safetensors").exists()

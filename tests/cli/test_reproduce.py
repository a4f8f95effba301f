"""``pbvf reproduce --no-run``: which folders it looks at and writes a table into."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_tools import content, pbvf

CELL = ("--cells", "pssvf-linear-CartPole-v1", "--seeds", 0, "-q")


@pytest.mark.parametrize("name", ["table", "fig-learning-curves"])
def test_a_folder_of_other_things_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("a run")
    ran = pbvf("reproduce", name, "--no-run", "--out", tmp_path, "-q")
    assert ran.code == 7
    assert f"{tmp_path}: holds other things and no results" in ran.error
    assert content(tmp_path) == {"config.json": b"a run"}


@pytest.mark.parametrize("name", [None, "raw", "work", "table.md"])
def test_a_folder_of_results_or_an_empty_one_is_shown(tmp_path: Path, name: str | None) -> None:
    if name == "table.md":
        (tmp_path / name).write_text("an older one")
    elif name is not None:
        (tmp_path / name).mkdir()
        (tmp_path / "notes.txt").write_text("mine")
    ran = pbvf("reproduce", "table", "--no-run", "--out", tmp_path, *CELL)
    assert ran.code == 0, ran.err
    assert "unfinished" in ran.out

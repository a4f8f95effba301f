"""``pbvf reproduce --no-run``, which folders it looks at; the settings of ``pbvf quickstart``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli_tools import content, pbvf, rows
from pbvf_experiments.online.zero_shot import choose_zero_shot
from pbvf_experiments.quickstart import QuickstartResult

CELL = ("--cells", "pssvf-linear-CartPole-v1", "--seeds", 0, "-q")


@pytest.mark.parametrize("name", ["table", "fig-learning-curves"])
def test_a_folder_of_other_things_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("a run")
    pbvf("reproduce", name, "--no-run", "--out", tmp_path, "-q").refused(
        7, f"{tmp_path}: holds other things and no results"
    )
    assert content(tmp_path) == {"config.json": b"a run"}


def test_a_folder_that_does_not_exist_has_nothing_to_show(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    shown = pbvf("reproduce", "table", "--no-run", "--out", missing)
    shown.refused(2, f"{missing}: does not exist")
    assert not missing.exists()


@pytest.mark.parametrize("name", [None, "raw", "work", "table.md"])
def test_a_folder_of_results_or_an_empty_one_is_shown(tmp_path: Path, name: str | None) -> None:
    if name == "table.md":
        (tmp_path / name).write_text("an older one")
    elif name is not None:
        (tmp_path / name).mkdir()
        (tmp_path / "notes.txt").write_text("mine")
    ran = pbvf("reproduce", "table", "--no-run", "--out", tmp_path, *CELL).ok()
    assert "unfinished" in ran.out


@pytest.mark.parametrize(
    ("command", "figure"),
    [
        ("reproduce fig-lqr", "fig-lqr-pssvf.png"),
        ("reproduce fig-offline --cells default", "recipes.png"),
        ("reproduce fig-zero-shot", None),
        ("reproduce fig-learning-curves", "fig-learning-curves.png"),
        ("reproduce fig-ablations", "fig-ablations.png"),
        ("quickstart", "quickstart.png"),
    ],
)
def test_a_figure_without_a_mark_is_refused_before_anything_runs(
    command: str, figure: str | None, tmp_path: Path
) -> None:
    figure = figure or f"{choose_zero_shot(None)[0].name}.png"
    (tmp_path / figure).write_bytes(b"of an earlier version")
    ran = pbvf(*command.split(), "--out", tmp_path).refused(7, f"{figure}: exists and is no figure")
    assert "seed 0" not in ran.err
    assert content(tmp_path) == {figure: b"of an earlier version"}


def test_quickstart_says_which_settings_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def at_once(out: Path, *, note: Any, progress: Any, **settings: Any) -> QuickstartResult:
        asked.append({"out": out, **settings})
        progress("collect", 1, 2)
        progress("trials", 2, 10, "trial 1 of 5")
        return QuickstartResult(
            1.0, 0.5, 0.5, [2.0], [3.0], [4], out / "figure.png", "model", "PSVF, new"
        )

    # The work itself takes a minute, and has a test of its own.
    monkeypatch.setattr("pbvf_experiments.quickstart.run_quickstart", at_once)
    ran = pbvf("quickstart", "--steps", 100_000, "--workers", 3).ok()
    shown = rows(ran.err)
    assert (shown["steps"], shown["workers"]) == ("100000 given", "3 given")
    assert (shown["out"], shown["updates"]) == ("quickstart-out default", "8000 default")
    assert shown["recipe"] == "model default"
    assert "trying noise, features and objectives: 2/10 updates, trial 1 of 5\n" in ran.err
    told = " ".join(ran.out.split())
    assert "grown through a PSVF, new" in told
    assert "episodes 10 of each grown policy, 2 of each nearest one" in told
    assert "printed when absent" not in pbvf("quickstart", "--help").ok().out
    assert shown["seed"] == "0 default"
    settings = {"recipe": "model", "steps": 100_000, "updates": 8000, "seed": 0, "workers": 3}
    assert asked == [{"out": Path("quickstart-out"), **settings}]
    shown = rows(pbvf("quickstart", "--recipe", "default").ok().err)
    assert (shown["recipe"], shown["updates"]) == ("default given", "3000 default")
    assert asked[1]["recipe"] == "default"
    assert pbvf("quickstart", "--seed", -1).error.startswith("error: --seed: ")

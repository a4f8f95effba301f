from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbvf_cli.__main__ import main
from pbvf_experiments.cells import choose_cells
from pbvf_experiments.online import cells as online_cells
from pbvf_experiments.online import zero_shot
from pbvf_experiments.online.cells import (
    OnlineCell,
    compared_return,
    measured_cells,
    run_cells,
    run_file,
    run_one,
    stored_runs,
    table_cells,
)
from pbvf_experiments.online.plots import (
    curves,
    draw_curves,
    draw_sensitivity,
    draw_zero_shot,
    draw_zero_shot_model,
)
from pbvf_experiments.online.tables import agreement, table_rows
from pbvf_experiments.online.variants import (
    ablation_panels,
    learning_curve_panels,
    panel_cells,
    sensitivity_panels,
)
from pbvf_experiments.online.zero_shot import (
    ZeroShotCell,
    ZeroShotSettings,
    choose_zero_shot,
    run_zero_shot,
    zero_shot_cells,
    zero_shot_rows,
)
from pbvf_experiments.online.zero_shot_model import ImaginingSettings
from pbvf_experiments.plots import draw_band
from pbvf_offline.errors import ConflictError, UsageError
from pbvf_offline.fit.rounds import RoundSettings
from pbvf_offline.models.settings import ModelRequest
from pbvf_runs.compare.figures import legend_below, new_figure

PNG = b"\x89PNG"
RESULTS = Path(__file__).parents[2] / "docs/results/fig-zero-shot/raw"
CART = OnlineCell("pssvf", "CartPole-v1", steps=300)


@pytest.fixture(autouse=True)
def few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_cells, "EVALUATIONS", 5)
    monkeypatch.setattr(online_cells, "EVALUATION_EPISODES", 2)


def stored(out: Path, cell: OnlineCell, seed: int, average: float, late: float) -> None:
    """Write a finished run of two evaluations."""
    path = run_file(out, cell, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "average_return": average,
        "last20_return": late,
        "average_return_without_survival": average - 100,
        "last20_return_without_survival": late - 100,
        "perturbed": [1.0, None, 3.0],
        "evaluations": [
            {"step": s, "returns": [r, r + 2], "returns_without_survival": [r - 100, r - 98]}
            for s, r in ((50, average), (100, late))
        ],
    }
    path.write_text(json.dumps({"settings": {}, "result": result}))


def test_a_run_is_one_file_and_is_made_once(tmp_path: Path) -> None:
    first = run_one(CART, 3, tmp_path)
    assert [e["step"] for e in first["evaluations"]] == [60, 120, 180, 240, 300]
    assert all(len(e["returns"]) == 2 for e in first["evaluations"])
    means = [sum(e["returns"]) / 2 for e in first["evaluations"]]
    assert first["average_return"] == pytest.approx(sum(means) / 5)
    assert first["last20_return"] == pytest.approx(means[-1])
    assert first["settings"]["lr_policy"] == 1e-3
    assert first["settings"]["seed"] == 3
    path = run_file(tmp_path, CART, 3)
    before = path.read_bytes()
    assert run_one(CART, 3, tmp_path) == first
    assert path.read_bytes() == before
    other = OnlineCell("pssvf", "CartPole-v1", steps=400)
    path.rename(run_file(tmp_path, other, 3))
    with pytest.raises(ConflictError, match="steps"):
        run_one(other, 3, tmp_path)


def test_a_change_reaches_the_training(tmp_path: Path) -> None:
    changed = OnlineCell("psvf", "CartPole-v1", steps=120, changes={"hidden": (8,), "sigma": 0.2})
    assert changed.name == "psvf-linear-CartPole-v1-hidden=8-sigma=0.2-steps=120"
    settings = run_one(changed, 0, tmp_path)["settings"]
    assert (settings["hidden"], settings["sigma"]) == ([8], 0.2)


def test_baselines_are_cells_too(tmp_path: Path) -> None:
    chosen = OnlineCell("ars", "CartPole-v1", steps=200, changes={"noise": 0.5})
    result = run_one(chosen, 0, tmp_path)
    assert result["settings"]["noise"] == 0.5
    assert [e["step"] for e in result["evaluations"]] == [40, 80, 120, 160, 200]
    assert result["average_return"] == result["average_return_without_survival"]


@pytest.mark.slow
def test_workers_do_not_change_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # worker processes import the module anew
    short = OnlineCell("pssvf", "CartPole-v1", steps=20)
    notes: list[str] = []
    work = [(short, 0), (short, 1)]
    run_cells(work, tmp_path / "one", note=notes.append)
    run_cells(work, tmp_path / "two", workers=2, note=notes.append)
    assert notes[:2] == notes[2:]
    for cell, seed in work:
        one, two = (run_file(tmp_path / name, cell, seed) for name in ("one", "two"))
        results = [json.loads(path.read_text())["result"] for path in (one, two)]
        for result in results:
            del result["seconds"]
        assert results[0] == results[1]


def test_cells_have_distinct_names_and_can_be_chosen() -> None:
    cells = table_cells()
    assert len({c.name for c in cells}) == len(cells) == 2 * 3 * (3 * 7 + 2 * 5)
    measured = measured_cells()
    assert sum(count for _, count in measured) == 97
    assert all(c.stochastic or c in cells for c, _ in measured)
    chosen = choose_cells(cells, "pssvf-64x64-Swimmer-v5,ars-*-CartPole-v1-last")
    assert [c.name for c in chosen] == [
        "pssvf-64x64-Swimmer-v5",
        "ars-linear-CartPole-v1-last",
        "ars-32-CartPole-v1-last",
        "ars-64x64-CartPole-v1-last",
    ]
    with pytest.raises(UsageError, match="no cell is called 'nothing'"):
        choose_cells(cells, "nothing")


def test_the_papers_variants() -> None:
    panels = ablation_panels()
    cells = panel_cells(panels)
    assert len({c.name for c in cells}) == len(cells)
    hopper = panels["Survival bonus:\nPSSVF on Hopper-v5, linear policy"]
    assert hopper["with the bonus"].changes == {"reward": "raw"}
    assert panels["Gradient in theta:\nPAVF on Swimmer-v5, [64, 64] policy"]["biased PAVF"].biased
    discounts = panels["Discount:\nDDPG on Swimmer-v5, linear policy"]
    assert [c.changes.get("gamma") for c in discounts.values()] == [0.99, 0.995, None, 0.9999]
    grid = sensitivity_panels()
    assert len(grid["PSSVF on Swimmer-v5, linear policy"]) == 3 * 3 * 2
    assert len(grid["ARS on Hopper-v5, [32] policy"]) == 3 * 6 * 4
    assert "PAVF on CartPole-v1, linear policy" not in grid
    shown = learning_curve_panels([c for c, _ in measured_cells()])
    assert list(shown["CartPole-v1, linear policy"]) == ["PSSVF", "PSVF"]


def test_a_table_puts_the_papers_value_beside_ours(tmp_path: Path) -> None:
    agreeing, below, unfinished = (
        OnlineCell("pssvf", "CartPole-v1"),  # paper: 443 +- 105
        OnlineCell("pssvf", "InvertedPendulum-v5"),  # paper: 944 +- 33
        OnlineCell("psvf", "CartPole-v1"),
    )
    for seed, value in enumerate((340.0, 350.0, 360.0)):
        stored(tmp_path, agreeing, seed, value, 500.0)
        stored(tmp_path, below, seed, value, 900.0)
    stored(tmp_path, unfinished, 0, 500.0, 500.0)
    extra = OnlineCell("pavf", "CartPole-v1", stochastic=True)
    seeds = (0, 1, 2)
    rows = table_rows(tmp_path, [(c, seeds) for c in (agreeing, below, unfinished, extra)])
    assert [r["agrees"] for r in rows] == ["yes", "no", "unfinished", None]
    assert rows[0]["return"] == pytest.approx(350.0)
    assert rows[0]["std"] == pytest.approx(10.0)
    assert rows[0]["last fifth"] == pytest.approx(500.0)
    assert rows[0]["perturbed"] == pytest.approx(2.0)
    assert (rows[0]["paper"], rows[0]["paper std"]) == (443, 105)
    assert [r["seeds"] for r in rows] == ["3/3", "3/3", "1/3", "0/3"]
    assert agreement(rows) == (1, 3)


def test_hopper_is_compared_without_the_bonus_and_reacher_is_left_aside(tmp_path: Path) -> None:
    hopper, reacher = OnlineCell("pssvf", "Hopper-v5"), OnlineCell("pssvf", "Reacher-v5")
    for cell in (hopper, reacher):
        stored(tmp_path, cell, 0, 1500.0, 1600.0)
    run = stored_runs(tmp_path, hopper, [0, 7])
    assert list(run) == [0]
    assert compared_return(hopper, run[0], "avg") == 1400.0
    assert compared_return(hopper, run[0], "last") == 1500.0
    assert compared_return(reacher, run[0], "avg") == 1500.0
    rows = table_rows(tmp_path, [(hopper, (0,)), (reacher, (0,))])
    assert agreement(rows) == (1, 1)
    steps, values = curves(hopper, run)
    assert steps.tolist() == [50, 100]
    assert values.tolist() == [[1401.0, 1501.0]]


def test_figures_show_what_is_finished(tmp_path: Path) -> None:
    cell = OnlineCell("pssvf", "CartPole-v1")
    panels = {"CartPole": {"PSSVF": cell, "PSVF": OnlineCell("psvf", "CartPole-v1")}}
    assert not draw_curves(panels, tmp_path, [0, 1], tmp_path / "none.png")
    assert not draw_sensitivity(panels, tmp_path, [0, 1], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
    stored(tmp_path, cell, 0, 10.0, 20.0)
    stored(tmp_path, cell, 1, 30.0, 40.0)
    assert not draw_curves(panels, tmp_path, [0, 1], tmp_path / "none.png", fewest=2)
    assert draw_curves(panels, tmp_path, [0, 1], tmp_path / "curves.png")
    assert draw_sensitivity(panels, tmp_path, [0, 1], tmp_path / "grid.png")
    for name in ("curves.png", "grid.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)


def test_a_band_stays_among_the_values_and_a_legend_off_the_curves() -> None:
    figure = new_figure(4, 3)
    axes = figure.subplots()
    values = np.array([[0.0, 500.0], [500.0, 500.0], [500.0, 500.0]])
    draw_band(axes, [1, 2], values, label="PSSVF, n = 3")
    legend_below(axes)
    figure.draw_without_rendering()
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0.0, 500.0)
    box = axes.get_legend().get_window_extent()
    assert box.y1 < axes.get_window_extent().y0
    assert box.y0 >= 0


SMALL = ZeroShotSettings(policies=2, plain_steps=4, evaluate_every=2, episodes=1, evaluations=2)


@pytest.fixture
def short_ascents(monkeypatch: pytest.MonkeyPatch) -> None:
    from pbvf_offline.presets.offline import SynthesisPreset
    from pbvf_offline.synthesis import settings as synthesis

    short = SynthesisPreset(steps=2, radius=1.0, states=10, restarts=1)
    monkeypatch.setattr(synthesis, "SYNTHESIS", short)


@pytest.mark.usefixtures("short_ascents")
def test_zero_shot_runs_and_resumes(tmp_path: Path) -> None:
    cell = ZeroShotCell("psvf", "CartPole-v1", "linear", 0.05, (200, 400))
    notes: list[str] = []
    result = run_zero_shot(cell, 1, tmp_path, SMALL, note=notes.append)
    assert [s["step"] for s in result["snapshots"]] == [200, 400]
    assert [p["step"] for p in result["snapshots"][0]["plain"]["curve"]] == [0, 2, 4]
    best = [p["return"] for p in result["best_noisy"]]
    assert best == sorted(best)
    assert result["snapshots"][1]["best_noisy"] == best[-1]
    assert len(notes) == 3
    assert run_zero_shot(cell, 1, tmp_path, SMALL, note=notes.append) == result
    assert len(notes) == 3
    rows = zero_shot_rows({1: result, 2: result})
    assert [(r["seed"], r["step"]) for r in rows[-2:]] == [("mean", "200"), ("mean", "400")]
    means = [sum(p["returns"]) / 2 for p in result["snapshots"][0]["plain"]["curve"]]
    assert rows[0]["peak"] == pytest.approx(max(means))
    assert rows[-2]["last"] == pytest.approx(means[-1])
    draw_zero_shot({1: result, 2: result}, tmp_path / "figure.png", "title")
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)


TINY = ImaginingSettings(
    model_updates=20,
    model=ModelRequest(seed=0, members=2, hidden=(8,), batch_size=8, trial_updates=2),
    rounds=RoundSettings(seed=0, rounds=2, fresh=4, known=2, steps=2, updates=3, compare=2),
)


@pytest.mark.usefixtures("short_ascents")
def test_zero_shot_through_a_model_of_what_the_run_has_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ZeroShotCell("pssvf", "CartPole-v1", "linear", 0.05, (400,))
    cell = ZeroShotCell("pssvf", "CartPole-v1", "linear", 0.05, (400,), model=True)
    beside = run_zero_shot(plain, 1, tmp_path, SMALL)
    notes: list[str] = []
    result = run_zero_shot(cell, 1, tmp_path, SMALL, TINY, note=notes.append)
    assert len(notes) == 5
    assert [p.name for p in (tmp_path / "work").iterdir() if (p / "config.json").exists()] == [
        f"{plain.name}-seed1"  # one run for both
    ]
    assert result["snapshots"][0]["region"] == beside["snapshots"][0]["region"]
    assert result["best_noisy"] == beside["best_noisy"]
    stored = json.loads((tmp_path / "raw" / f"{cell.name}-seed1.json").read_text())["settings"]
    assert stored["imagining"]["rounds"]["seed"] == stored["imagining"]["model"]["seed"] == 1
    assert stored["imagining"]["model"]["updates"] == 20
    found = result["imagined"]
    assert found["data"]["steps"] == 400
    assert len(found["critic"]["rounds"]) == 2
    assert found["critic"]["kept"] in found["critic"]["rounds"]
    grown = found["grown"]
    assert len(grown["returns"]) == len(grown["imagined"]) == len(grown["above_data"]) == 2
    low, high = grown["interval"]
    assert all(a < b < c for a, b, c in zip(low, grown["imagined"], high, strict=True))
    assert run_zero_shot(cell, 1, tmp_path, SMALL, TINY, note=notes.append) == result
    assert len(notes) == 5
    more = ImaginingSettings(21, TINY.model, TINY.rounds)
    with pytest.raises(ConflictError, match="another imagining"):
        run_zero_shot(cell, 1, tmp_path, SMALL, more)
    draw_zero_shot_model({1: result, 2: result}, tmp_path / "figure.png", "title")
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)
    unknown = json.loads(json.dumps(result))
    unknown["imagined"]["grown"]["interval"] = [[None, low[1]], [None, high[1]]]
    draw_zero_shot_model({1: unknown}, tmp_path / "unknown.png", "title")
    assert (tmp_path / "unknown.png").read_bytes().startswith(PNG)

    rows = zero_shot_rows({1: result, 2: result})
    assert rows[0]["model"] == pytest.approx(sum(grown["returns"]) / 2)
    assert rows[0]["imagined"] == pytest.approx(sum(grown["imagined"]) / 2)
    assert rows[0]["check"] == ("failed" if found["model"]["refusal"] else "passed")
    assert rows[2]["check"] == f"2 {rows[0]['check']}"
    assert rows[2]["critic"] == f"2 {found['critic']['stands']}"
    assert "peak" not in rows[0]

    monkeypatch.setattr(zero_shot, "zero_shot_cells", lambda: [plain, cell])
    monkeypatch.setattr(zero_shot, "ZeroShotSettings", lambda: SMALL)
    monkeypatch.setattr(zero_shot, "ImaginingSettings", lambda: TINY)
    command = ["reproduce", "fig-zero-shot", "--cells", "*", "--seeds", "1", "--json"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    table = json.loads(capsys.readouterr().out)["table"]
    assert [row["cell"] for row in table] == [plain.name] * 2 + [cell.name] * 2
    assert [row["peak"] is None for row in table] == [False, False, True, True]
    assert [row["model"] is None for row in table] == [True, True, False, False]


def test_defaults_of_a_cell_with_a_model_are_those_of_the_commands() -> None:
    from pbvf_offline.fit.rounds import round_defaults
    from pbvf_offline.models.settings import MODEL_UPDATES

    told = ImaginingSettings().described("pssvf", "Swimmer-v5", 3)
    assert told["model"]["updates"] == MODEL_UPDATES
    own = ModelRequest(seed=3).to_dict()
    assert {k: v for k, v in told["model"].items() if k != "updates"} == {
        k: v for k, v in own.items() if k != "bfloat16"
    }
    assert told["rounds"] == round_defaults("pssvf", "Swimmer-v5").settings.to_dict() | {"seed": 3}


def test_results_from_before_cells_had_models_are_read_back(tmp_path: Path) -> None:
    cell = zero_shot_cells()[1]
    stored = RESULTS / f"{cell.name}-seed0.json"
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / stored.name).write_bytes(stored.read_bytes())
    assert run_zero_shot(cell, 0, tmp_path) == json.loads(stored.read_text())["result"]


def test_a_model_has_one_snapshot() -> None:
    with pytest.raises(ValueError, match="one snapshot"):
        ZeroShotCell(model=True)


def test_zero_shot_cells() -> None:
    assert choose_zero_shot(None)[0].name == "pssvf-linear-Swimmer-v5-lr=0.02"
    names = [c.name for c in zero_shot_cells()]
    assert len(set(names)) == len(names) == 21
    assert names[1] == "pssvf-linear-Swimmer-v5-lr=0.02-at=100000"
    assert names[-1] == f"{names[1]}-model"
    assert len(choose_zero_shot("*-64x64-*")) == 9
    with pytest.raises(UsageError, match="no cell"):
        choose_zero_shot("ars-*")


def test_reproduce_shows_unfinished_cells_as_unfinished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = OnlineCell("pssvf", "CartPole-v1")
    stored(tmp_path, cell, 0, 470.0, 500.0)
    command = ["reproduce", "table", "--no-run", "--out", str(tmp_path), "--json", "--cells"]
    assert main([*command, "pssvf-linear-CartPole-v1,psvf-linear-CartPole-v1"]) == 0
    captured = capsys.readouterr()
    table: list[dict[str, Any]] = json.loads(captured.out)["table"]
    assert [(r["seeds"], r["agrees"]) for r in table] == [
        ("1/5", "unfinished"),
        ("0/3", "unfinished"),
    ]
    assert "0 of 2 cells agree" in captured.err
    assert main([*command, "pssvf-linear-CartPole-v1", "--seeds", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["table"][0]["agrees"] == "yes"
    figure = ["reproduce", "fig-learning-curves", "--no-run", "--out", str(tmp_path), "--json"]
    assert main(figure) == 0
    assert Path(json.loads(capsys.readouterr().out)["figure"]).read_bytes().startswith(PNG)
    for name in ("fig-offline", "fig-lqr", "fig-zero-shot"):
        assert main(["reproduce", name, "--no-run", "--out", str(tmp_path)]) == 2
        assert "--no-run" in capsys.readouterr().err


def test_reproduce_runs_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "table", "--out", str(tmp_path), "--seeds", "0"]
    assert main([*command, "--cells", "x"]) == 2
    assert "no cell is called 'x'" in capsys.readouterr().err

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from libtools import lqr_return
from pbvf_experiments.lqr.figure import (
    INITIAL_THETA,
    LOOKS,
    LqrSettings,
    from_lines,
    grid_axis,
    grid_policies,
    predictions,
    run_lqr,
    slopes,
    summary,
    to_lines,
    true_returns,
)
from pbvf_experiments.lqr.figure import Look as LqrLook
from pbvf_experiments.lqr.plots import draw_lqr
from pbvf_offline.critics import CriticConfig, make_critic
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import ConflictError, UsageError
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.evaluation import evaluate_policies

PNG = b"\x89PNG"
Ran = tuple[Path, dict[str, dict[str, Any]]]
RESULTS = Path(__file__).parents[2] / "docs" / "results" / "fig-lqr"
SMALL = LqrSettings(
    grid=9,
    looks={
        "pssvf": LqrLook("pssvf", (2, 4), horizon=50, arrow=20),
        "pavf": LqrLook("pavf", (1, 2), horizon=60, arrow=4),
        "psvf-relu": LqrLook("psvf", (1, 2), horizon=60, arrow=4, activation="relu"),
    },
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    out = tmp_path_factory.mktemp("lqr")
    return out, run_lqr(SMALL, [0, 1], out, lambda _: None, kinds=tuple(SMALL.looks))


def lqr_spec() -> PolicySpec:
    env = make_env(EnvConfig("LQR-v0"))
    spec = spec_for_env(env, (), squash="none")
    env.close()
    return spec


def roll_out(theta: np.ndarray, steps: int, gamma: float) -> np.ndarray:
    """Discounted returns of the environment itself."""
    config = EnvConfig("LQR-v0", max_episode_steps=steps)
    rows = len(theta)
    policies = Policies(
        lqr_spec(), theta.astype(np.float32), np.zeros((rows, 1)), np.ones((rows, 1))
    )
    _, discounted = evaluate_policies(config, policies, episodes=1, seed=0, gamma=gamma)
    return np.asarray(discounted[:, 0])


# --------------------------------------------------------------------------- the truth


def test_true_returns_by_hand() -> None:
    theta = np.array([[5.0, 5.0], [-1.0, 0.0], [3.0, -3.0], [-3.0, 0.0], [200.0, 0.0]])
    # 1 -> 2 by +10, then +15 against the bound for ever; one jump to 0; at rest in the start;
    # 1 -> -2 by -3, then 2, -2, ... by 6; actions stop at 100.
    want = [
        -(1 + 100) - 2 * (4 + 225),
        -(1 + 1),
        -3.0,
        -(1 + 9) - 2 * (4 + 36),
        -(1 + 10_000) - 2 * (4 + 10_000),
    ]
    assert true_returns(theta, 3, 1.0).tolist() == want
    # Discounted by half: the second step counts half, the third a quarter.
    assert true_returns(theta[:1], 3, 0.5).tolist() == [-101 - 229 / 2 - 229 / 4]


@pytest.mark.parametrize(("steps", "gamma"), [(50, 1.0), (120, 0.99)])
def test_true_returns_are_the_environments(
    steps: int, gamma: float, rng: np.random.Generator
) -> None:
    drawn = rng.uniform(-6, 6, (60, 2)).astype(np.float32)
    theta = np.concatenate([drawn, grid_policies(4), [INITIAL_THETA, (60.0, 60.0)]])
    got = true_returns(theta.astype(np.float32), steps, gamma)
    assert np.allclose(got, roll_out(theta, steps, gamma), rtol=1e-9)


def test_true_returns_are_the_closed_form_inside_the_bounds(rng: np.random.Generator) -> None:
    theta = rng.uniform((-1.9, -0.4), (-0.1, 0.4), (200, 2))
    weight, bias = theta.T
    fixed = -bias / weight
    # The state stays between its fixed point plus and minus its first distance from it.
    inside = np.abs(fixed) + np.abs(1 - fixed) < 2
    assert inside.sum() > 50
    for steps, gamma in ((50, 1.0), (500, 0.99)):
        want = lqr_return(weight[inside], bias[inside], steps, gamma)
        assert np.allclose(true_returns(theta[inside], steps, gamma), want, rtol=1e-9)


def test_grid_rows_are_biases() -> None:
    theta = grid_policies(5)
    assert theta.dtype == np.float32
    assert grid_axis(5).tolist() == [-5.0, -2.5, 0.0, 2.5, 5.0]
    assert theta.reshape(5, 5, 2)[1, 3].tolist() == [2.5, -2.5]


def test_the_optimum_of_the_paper() -> None:
    theta = grid_policies(100)
    best = theta[np.argmax(true_returns(theta, 50, 1.0))]
    # The golden ratio minus one, up to the grid's spacing of 0.1.
    assert np.abs(best - [-0.618, 0.0]).max() < 0.15


def test_lines_keep_six_digits() -> None:
    table = np.array([[-12345.678, 0.0], [1 / 3, 1e-9]])
    lines = to_lines(table)
    assert lines == ["-12345.7 0", "0.333333 1e-09"]
    assert np.allclose(from_lines(lines), table, rtol=1e-5)


# ------------------------------------------------------------------------- the critics


@pytest.mark.parametrize("kind", ["pssvf", "psvf", "pavf"])
def test_predictions_are_the_networks_from_the_start(kind: str, rng: np.random.Generator) -> None:
    config = CriticConfig(spec=lqr_spec(), hidden=(6,), activation="tanh")
    critic = make_critic(kind, config, rng)
    theta = rng.normal(0, 2, (7, 2)).astype(np.float32)
    inputs = {
        "theta": theta,
        "obs": np.ones((7, 1)),
        "action": theta.sum(axis=1, keepdims=True),  # w * 1 + b
    }
    network = critic.network
    weights = {name: value.detach().numpy() for name, value in network.first.items()}
    hidden = np.tanh(
        sum(inputs[name] @ weight.T for name, weight in weights.items())
        + network.first_bias.detach().numpy()
    )
    want = hidden @ network.weights[0].detach().numpy()[0] + network.biases[0].item()
    assert np.allclose(predictions(critic, theta), want, atol=1e-5)
    assert len(weights) == {"pssvf": 1, "psvf": 2, "pavf": 3}[kind]
    h = 1e-2
    steps = [
        (predictions(critic, theta + shift) - predictions(critic, theta - shift)) / (2 * h)
        for shift in np.array([[h, 0.0], [0.0, h]], np.float32)
    ]
    assert np.allclose(slopes(critic, theta), np.hypot(*steps), atol=1e-3)


def test_the_looks_are_the_papers(ran: Ran) -> None:
    stages = {name: (look.episodes, look.horizon, look.arrow) for name, look in LOOKS.items()}
    assert stages["pssvf"] == ((60, 1_000), 50, 200)
    assert stages["psvf"] == stages["pavf"] == ((15, 100), 500, 50)
    raw = {path.name: json.loads(path.read_text()) for path in (ran[0] / "raw").iterdir()}
    online = raw["pssvf-seed-000.json"]["settings"]["online"]
    assert (online["lr_policy"], online["lr_critic"], online["sigma"]) == (1e-3, 1e-2, 0.5)
    assert (online["gamma"], online["hidden"], online["update_every"]) == (1.0, [64, 64], None)
    assert (online["critic_updates"], online["actor_updates"]) == (10, 10)
    online = raw["pavf-seed-000.json"]["settings"]["online"]
    assert (online["lr_policy"], online["lr_critic"], online["sigma"]) == (1e-2, 1e-1, 0.5)
    assert (online["gamma"], online["hidden"], online["activation"]) == (0.99, [64], "tanh")
    assert (online["update_every"], online["critic_updates"]) == (10, 10)
    assert online["actor_updates"] == 2
    for cell in ("pssvf-seed-000.json", "pavf-seed-000.json"):
        online = raw[cell]["settings"]["online"]
        assert online["initial_theta"] == list(INITIAL_THETA)
        assert online["normalization"] == "none"


# ---------------------------------------------------------------------- the experiment


@pytest.mark.parametrize(("name", "rounds", "episodes"), [("pssvf", 4, 4), ("pavf", 10, 2)])
def test_path_and_points(ran: Ran, name: str, rounds: int, episodes: int) -> None:
    run = ran[1][name]["runs"][0]
    path, points = from_lines(run["path"]), from_lines(run["points"])
    assert path.shape == (rounds + 1, 2)
    assert np.allclose(path[0], INITIAL_THETA)
    assert not np.allclose(path[0], path[1])
    # Adam moves hardly more than its learning rate at an update.
    rate = {"pssvf": 1e-3, "pavf": 1e-2}[name] * run["updates_per_round"]
    assert np.abs(np.diff(path, axis=0)).max() < 3 * rate
    assert points.shape == (episodes, 3)
    # What each perturbed policy earned in training is its true return over 50 steps.
    assert np.allclose(points[:, 2], true_returns(points[:, :2], 50, 1.0), rtol=1e-3)
    assert 0.01 < np.abs(points[0, :2] - INITIAL_THETA).max() < 2.5
    for stage in run["stages"]:
        at = rounds * stage["episodes"] // episodes
        assert np.allclose(stage["theta"], path[at], rtol=1e-4)


def test_stages_compare_predictions_with_the_truth(ran: Ran) -> None:
    from scipy.stats import spearmanr

    theta = grid_policies(9)
    for name, gamma in (("pssvf", 1.0), ("pavf", 0.99), ("psvf-relu", 0.99)):
        result = ran[1][name]
        look = SMALL.looks[name]
        want = from_lines(result["truth"]["returns"]).ravel()
        assert np.allclose(want, true_returns(theta, look.horizon, gamma), rtol=1e-5)
        best = int(np.argmax(want))
        assert result["truth"]["best"] == {"theta": theta[best].tolist(), "return": want[best]}
        run = result["runs"][1]
        assert [stage["episodes"] for stage in run["stages"]] == list(look.episodes)
        assert run["stages"][0]["prediction"] != run["stages"][1]["prediction"]
        for stage in run["stages"]:
            learned = np.array([stage["theta"]])
            assert stage["return"] == pytest.approx(
                true_returns(learned, look.horizon, gamma)[0], rel=1e-9
            )
            predicted = from_lines(stage["prediction"]).ravel()
            assert stage["slope"] > 0
            top = int(np.argmax(predicted))
            assert stage["top"] == {"theta": theta[top].tolist(), "return": want[top]}
            points = from_lines(run["points"])[: stage["episodes"], :2]
            near = np.linalg.norm(theta[:, None] - points[None], axis=-1).min(axis=1) <= 0.5
            for where, rows in (("grid", np.ones(81, bool)), ("near", near)):
                got = stage[where]
                assert got["policies"] == rows.sum()
                if rows.any():
                    error = np.sqrt(np.mean((predicted[rows] - want[rows]) ** 2))
                    assert got["rmse"] == pytest.approx(error, rel=1e-9)
                else:
                    assert got["rmse"] is None
            rank = spearmanr(predicted, want).statistic
            assert stage["grid"]["rank_correlation"] == pytest.approx(rank, abs=1e-9)


def test_critics_and_seeds_differ(ran: Ran) -> None:
    out, results = ran
    for result in results.values():
        assert result["runs"][0]["points"] != result["runs"][1]["points"]
    relu = json.loads((out / "raw" / "psvf-relu-seed-000.json").read_text())["settings"]
    assert relu["online"]["activation"] == "relu"
    # Both TD critics are compared with one truth.
    assert sorted(path.name for path in (out / "raw").glob("truth*")) == [
        "truth-50-steps-gamma-1.json",
        "truth-60-steps-gamma-0.99.json",
    ]


def test_summary_has_a_row_for_each_seed_and_medians(ran: Ran) -> None:
    rows = summary(ran[1])
    assert [(row["critic"], row["seed"]) for row in rows] == [
        (name, seed) for name in SMALL.looks for seed in ("0", "1", "median")
    ]
    assert len({tuple(row) for row in rows}) == 1
    stages = [ran[1]["pssvf"]["runs"][seed]["stages"] for seed in (0, 1)]
    assert rows[0]["return 2"] == stages[0][1]["return"]
    assert rows[1]["grid rank 1"] == stages[1][0]["grid"]["rank_correlation"]
    assert rows[2]["grid rmse 2"] == pytest.approx(
        (stages[0][1]["grid"]["rmse"] + stages[1][1]["grid"]["rmse"]) / 2
    )


def test_in_medians_a_constant_prediction_is_no_correlation() -> None:
    part = {"policies": 3, "rank_correlation": None, "rmse": 2.0}
    other = {**part, "rank_correlation": 0.5, "rmse": 4.0}
    nothing = {"policies": 0, "rank_correlation": None, "rmse": None}
    runs = {
        seed: {"stages": [{"return": -1.0, "near": near, "grid": grid}]}
        for seed, near, grid in ((0, part, nothing), (1, other, nothing), (2, part, other))
    }
    median = summary({"psvf": {"runs": runs}})[-1]
    assert (median["near rank 1"], median["near rmse 1"]) == (0.0, 2.0)
    assert (median["grid rank 1"], median["grid rmse 1"]) == (0.5, 4.0)
    assert summary({"psvf": {"runs": {k: runs[k] for k in (0, 1)}}})[-1]["grid rank 1"] is None
    assert [row["seed"] for row in summary({"psvf": {"runs": {3: runs[0]}}})] == ["3"]


def test_it_resumes_and_refuses_other_settings(ran: Ran, tmp_path: Path) -> None:
    out, results = ran
    notes: list[str] = []
    again = run_lqr(SMALL, [0, 1], out, notes.append, kinds=tuple(SMALL.looks))
    assert (again, notes) == (results, [])
    more = run_lqr(SMALL, [0], tmp_path, notes.append, kinds=["pavf"])
    assert notes == ["pavf, seed 0: training for 2 episodes"]
    assert more["pavf"]["runs"][0] == results["pavf"]["runs"][0]  # the same again, to the digit
    other = LqrSettings(grid=7, looks=SMALL.looks)
    with pytest.raises(ConflictError, match="another grid"):
        run_lqr(other, [0], out, notes.append, kinds=["pavf"])
    with pytest.raises(UsageError, match="no critic 'ppo'"):
        run_lqr(SMALL, [0], out, notes.append, kinds=["pavf", "ppo"])


def test_figures(ran: Ran, tmp_path: Path) -> None:
    results = {"psvf-relu": ran[1]["psvf-relu"]}
    figures = draw_lqr(results, tmp_path)
    assert [path.name for path in figures] == [
        "fig-lqr-psvf-relu.png",
        "fig-lqr-psvf-relu-seeds.png",
    ]
    before = [path.read_bytes() for path in figures]
    assert all(image.startswith(PNG) for image in before)
    assert before[0] != before[1]
    one = {"pssvf": {**ran[1]["pssvf"], "runs": {1: ran[1]["pssvf"]["runs"][1]}}}
    assert [path.name for path in draw_lqr(one, tmp_path)] == ["fig-lqr-pssvf.png"]


def test_colours_follow_the_root_and_tell_the_impossible() -> None:
    # Private: which colour a value gets cannot be read off the PNG.
    from pbvf_experiments.lqr.plots import _draw_map
    from pbvf_runs.compare.figures import new_figure

    axes = new_figure(2, 2).subplots()
    truth = np.linspace(-1601.0, -1.0, 25).reshape(5, 5)
    image = _draw_map(axes, truth, truth)
    low = float(np.quantile(truth, 0.1))
    assert image.norm(np.array([low, -1.0])).tolist() == pytest.approx([0.0, 1.0])
    # A quarter of the way down from the best is half way along the colours.
    assert float(image.norm(-1 + (low + 1) / 4)) == pytest.approx(0.5)
    assert image.norm(0.0) > 1 > image.norm(-1.5)
    assert image.norm(-1601.0) < 0
    assert image.norm.inverse(np.array([0.5]))[0] == pytest.approx(-1 + (low + 1) / 4)
    over = tuple(image.cmap(2.0)[:3])
    assert over != tuple(image.cmap(1.0)[:3])


def test_the_pssvf_moves_towards_the_optimum(tmp_path: Path) -> None:
    torch.manual_seed(0)  # training must not depend on global generators
    settings = LqrSettings(grid=20, looks={"pssvf": LqrLook("pssvf", (5, 80), 50, 200)})
    run = run_lqr(settings, [4], tmp_path, lambda _: None, kinds=["pssvf"])["pssvf"]["runs"][4]
    early, late = run["stages"]
    assert late["return"] > true_returns(np.array([INITIAL_THETA]), 50, 1.0)[0] + 500
    assert late["near"]["rmse"] < early["near"]["rmse"]
    assert late["near"]["rank_correlation"] > 0.3


# ------------------------------------------------------------------------- its results


def shown(row: dict[str, float | str | None]) -> str:
    """A row of the summary as the results page shows it."""
    cells = []
    for key, value in row.items():
        if value is None:
            cells.append("none")
        elif isinstance(value, str):
            cells.append(value)
        elif "rank" in key:
            cells.append(f"{value:.2f}".replace("-0.00", "0.00"))
        else:
            cells.append(f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}")
    return "| " + " | ".join(cells) + " |"


def stored_runs() -> dict[str, dict[str, Any]]:
    return {
        name: {
            "runs": {
                seed: json.loads((RESULTS / "raw" / f"{name}-seed-{seed:03d}.json").read_text())[
                    "result"
                ]
                for seed in range(5)
            }
        }
        for name in LOOKS
    }


def test_results_page_shows_what_the_result_files_hold() -> None:
    page = (RESULTS / "README.md").read_text()
    results = stored_runs()
    rows = summary(results)
    assert len(rows) == 6 * len(LOOKS)
    for row in rows:
        assert shown(row) in page
    for figure in RESULTS.glob("*.png"):
        assert f"({figure.name})" in page, figure
    # What its text says beside the tables.
    last = {
        name: [run["stages"][-1] for run in result["runs"].values()]
        for name, result in results.items()
    }
    assert all(stage["slope"] == 0 for stage in last["pavf"])
    assert all(stage["top"]["theta"][0] == -5 for stage in last["pssvf"])
    assert max(stage["top"]["return"] for stage in last["pssvf"]) < -5_000

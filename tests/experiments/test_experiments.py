from __future__ import annotations

import dataclasses
import functools
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_tools import pbvf
from pbvf_cli.__main__ import main
from pbvf_cli.commands.parts import fit_imagined
from pbvf_datasets.read.dataset import load_dataset
from pbvf_experiments.cells import cell
from pbvf_experiments.metrics import estimate_metrics
from pbvf_experiments.offline import environments
from pbvf_experiments.offline import fqe as offline_fqe
from pbvf_experiments.offline import one_seed as offline_seed
from pbvf_experiments.offline.environments import EnvironmentCell, run_environments
from pbvf_experiments.offline.evaluation import unseen_policies
from pbvf_experiments.offline.experiment import run_offline, summary
from pbvf_experiments.offline.fqe import FqeSettings
from pbvf_experiments.offline.plots import draw_estimates, draw_recipes
from pbvf_experiments.offline.settings import (
    IMAGINED,
    OfflineSettings,
    OpeSettings,
    parse_recipes,
)
from pbvf_experiments.plots import draw_offline
from pbvf_experiments.quickstart import Recipe, run_quickstart
from pbvf_offline.critics import OfflinePreset, kinds
from pbvf_offline.errors import ConflictError, DamagedError, IncompatibleError, UsageError
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.fit.rounds import RoundSettings
from pbvf_offline.models.settings import ModelRequest
from pbvf_offline.policies.files import load_policies
from pbvf_offline.presets.offline import SynthesisPreset
from pbvf_offline.records import Defaults
from pbvf_runs.seeds import parse_seeds

PNG = b"\x89PNG"
SHORT = SynthesisPreset(steps=1, radius=1.0, states=10, restarts=1)
ROUNDS = RoundSettings(
    seed=0, rounds=1, fresh=4, known=4, starts=1, steps=2, updates=1, hidden=(4,), compare=1
)


def test_seeds() -> None:
    assert parse_seeds("0-2,7") == [0, 1, 2, 7]
    for text in ("", "a", "1-", "3,3", "2-1", "٠-١", "1_0"):
        with pytest.raises(UsageError, match="seeds"):
            parse_seeds(text)


def test_recipes() -> None:
    assert parse_recipes(None) == ("default", "paper")
    assert parse_recipes("paper,model") == ("paper", "model")
    for wrong in ("best", "model,", "model*"):
        with pytest.raises(UsageError, match="choose among default, paper, model"):
            parse_recipes(wrong)


def test_a_cell_runs_once_and_refuses_other_settings(tmp_path: Path) -> None:
    path, runs = tmp_path / "raw" / "cell.json", []

    def run() -> dict[str, int]:
        runs.append(1)
        return {"answer": 42}

    assert cell(path, {"seed": 1}, run) == cell(path, {"seed": 1}, run) == {"answer": 42}
    assert len(runs) == 1
    with pytest.raises(ConflictError, match="another seed"):
        cell(path, {"seed": 2}, run)
    path.write_text('{"settings": {}}')
    with pytest.raises(DamagedError, match="not a result"):
        cell(path, {"seed": 1}, run)


SMALL = OfflineSettings(
    env="InvertedPendulum-v5",
    steps=300,
    perturb_every=20,
    snapshots=(5, 10),
    plain_steps=4,
    evaluate_every=2,
    episodes=1,
    policies=2,
)


def test_offline_runs_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = OfflinePreset((8,), 8, 1e-3, 10, 5, relabel=0.3, standardise=True, average=0.9)
    monkeypatch.setitem(kinds.OWN, "psvf", dataclasses.replace(kinds.PSVF, offline=quick))
    notes: list[str] = []
    results = run_offline(SMALL, [3], tmp_path, notes.append)
    assert sorted(p.name for p in (tmp_path / "raw").iterdir()) == [
        "seed-003-dataset.json",
        "seed-003-default.json",
        "seed-003-paper.json",
    ]
    stored = json.loads((tmp_path / "raw" / "seed-003-paper.json").read_text())
    fit = stored["settings"]["fit"]
    assert (fit["n_step"], fit["relabel"], fit["average"]) == (1, 0.0, 0.0)
    assert [p["step"] for p in results[3]["paper"]["plain_5"]["curve"]] == [0, 2, 4]
    rows = summary(results)
    assert [row["seed"] for row in rows] == ["3", "mean"]
    assert rows[0]["region"] == pytest.approx(
        sum(results[3]["default"]["trust_region"]["returns"]) / 2
    )
    peak = max(sum(p["returns"]) / 2 for p in results[3]["default"]["plain_10"]["curve"])
    assert rows[0]["plain peak"] == pytest.approx(peak)
    draw_offline(results, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)
    before = len(notes)
    assert run_offline(SMALL, [3], tmp_path, notes.append) == results
    assert len(notes) == before  # every cell was read back


def test_figures_of_stored_results(tmp_path: Path) -> None:
    """Also of seeds that lack recipes, and of a model with one network, which has no interval."""
    evaluated = {
        "true": [1.0, 2.0, 3.0],
        "imagined": [1.0, 2.5, 2.0],
        "interval": [[0.0, 2.1, 1.0], [2.0, 3.0, 2.5]],
        "metrics": {"imagined": {"rank_correlation": 0.5}},
    }
    alone = evaluated | {"interval": None}
    first = {
        "best_policy": 3.0,
        "best_episode": 2.0,
        "model": {"trust_region": {"returns": [1.0, 3.0]}},
        "cem": {"returns": [4.0, 5.0]},
        "evaluation": {"around": evaluated, "ascents": evaluated},
    }
    second = {"best_policy": 1.0, "best_episode": 0.0, "model": first["model"]}
    third = second | {"evaluation": {"around": alone, "ascents": evaluated}}
    sizes = []
    for k, results in enumerate(({0: first}, {0: first, 1: second}, {0: first, 1: third})):
        for name, draw in (("recipes", draw_recipes), ("estimates", draw_estimates)):
            path = tmp_path / f"{name}-{k}.png"
            draw(results, path)
            assert path.read_bytes().startswith(PNG)
            sizes.append((name, path.read_bytes()))
    images = {name: [image for n, image in sizes if n == name] for name in ("recipes", "estimates")}
    assert images["recipes"][0] != images["recipes"][1]
    assert images["estimates"][0] == images["estimates"][1]  # the second seed has no evaluation
    assert images["estimates"][1] != images["estimates"][2]


def estimates_figure(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Draw a figure of an evaluation with two such sets, and return it."""
    drawn: list[Any] = []
    monkeypatch.setattr(
        "pbvf_experiments.offline.plots.save_figure", lambda figure, _: drawn.append(figure)
    )
    draw_estimates({0: {"evaluation": {"around": found, "ascents": found}}}, Path("f.png"))
    return drawn[0]


def test_the_legend_of_estimates_hides_no_point(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "true": [1.0, 2.0],
        "imagined": [1.0, 2.5],
        "interval": None,
        "metrics": {"imagined": {"rank_correlation": 0.5}},
    }
    figure = estimates_figure(found, monkeypatch)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0


def test_a_figure_of_estimates_shows_policies_without_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {
        "true": [1.0, 2.0, 3.0, 4.0],
        "imagined": [1.0, 2.5, 2.5, 2.5],
        "interval": [[0.0, 2.1, None, None], [2.0, 3.0, None, None]],
        "metrics": {"imagined": {"rank_correlation": None}},
    }
    for axes in estimates_figure(found, monkeypatch).axes:
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert [label.rpartition(": ")[2] for label in labels] == ["1", "1", "2"]
        assert "no rank correlation" in axes.get_title()


def test_stored_results_are_read_back(tmp_path: Path) -> None:
    """The published files are those of today's settings, so that nothing is run again."""
    raw = Path(__file__).parents[2] / "docs" / "results" / "fig-offline" / "raw"
    shutil.copytree(raw, tmp_path / "raw")
    notes: list[str] = []
    results = run_offline(OfflineSettings(), [0, 4], tmp_path, notes.append)
    assert set(results[4]) > {"default", "paper", "best_policy"}
    assert not notes


IMAGINING = dataclasses.replace(
    SMALL,
    model_updates=20,
    model=ModelRequest(
        seed=0, members=2, hidden=(8,), batch_size=8, trial_updates=2, noise=0.0, mixed=False
    ),
    rounds=RoundSettings(seed=0, rounds=2, fresh=4, known=2, steps=2, updates=3),
)


def test_offline_with_a_learned_environment(tmp_path: Path) -> None:
    settings = dataclasses.replace(IMAGINING, recipes=(*IMAGINED, "cem"))
    notes: list[str] = []
    results = run_offline(settings, [3], tmp_path, notes.append)
    # One environment of each dataset, whatever the number of critics of its episodes.
    assert sum("learning the environment" in note for note in notes) == 2
    assert {path.name for path in (tmp_path / "work" / "seed-003").glob("model*.safetensors")} >= {
        "model.safetensors",
        "model-of-64x64.safetensors",
    }
    for name, recipe in IMAGINED.items():
        stored = json.loads((tmp_path / "raw" / f"seed-003-{name}.json").read_text())
        how, found = stored["settings"], results[3][name]
        assert found == stored["result"]
        assert how["rounds"]["seed"] == how["model"]["seed"] == 3
        assert how["rounds"].get("kind", "pssvf") == recipe.kind
        assert how["rounds"].get("policy") == how["synthesis"].get("hidden")
        assert len(found["rounds"]) == 2
        assert found["kept"] in found["rounds"]
        grown = found["trust_region"]
        best = grown["data_cautious"][0]
        low = grown["low"]
        assert grown["above_data"] == [value is not None and value > best for value in low]
    deep = results[3]["deep-64x64"]
    assert deep["dataset"]["digest"] != results[3]["digest"]
    searched = results[3]["cem"]
    assert searched["played"] == 2 + 4 + 2 * 4  # known, fresh, and two rounds
    assert len(searched["returns"]) == len(searched["cautious"]) == 2
    row = summary(results)[0]
    assert row["cem"] == pytest.approx(sum(searched["returns"]) / 2)
    grown = results[3]["model"]["trust_region"]
    assert row["model"] == pytest.approx(sum(grown["returns"]) / 2)
    assert row["imagined"] == pytest.approx(sum(grown["predicted"]) / 2)
    assert row["said above"] == sum(grown["above_data"]) / 2
    assert row["deep-64x64"] == pytest.approx(sum(deep["trust_region"]["returns"]) / 2)
    assert row["deep best policy"] == deep["dataset"]["best_policy"]
    assert "region" not in row
    before = len(notes)
    assert run_offline(settings, [3], tmp_path, notes.append) == results
    assert len(notes) == before


def test_a_learned_environment_is_found_by_the_next_recipe(tmp_path: Path) -> None:
    def run(out: Path, *recipes: str) -> dict[str, Any]:
        settings = dataclasses.replace(IMAGINING, recipes=recipes)
        return run_offline(settings, [3], out, lambda _: None)[3]

    alone = run(tmp_path / "alone", "model-psvf")
    after = tmp_path / "after"
    run(after, "model")
    kept = after / "work" / "seed-003" / "model.safetensors"
    written = kept.stat().st_mtime_ns
    assert run(after, "model-psvf") == alone
    assert kept.stat().st_mtime_ns == written


def test_offline_evaluation_asks_what_the_seed_has_made(tmp_path: Path) -> None:
    settings = dataclasses.replace(IMAGINING, ope=OpeSettings(6, climbing=2, every=50, episodes=1))

    def run(out: Path, recipe: str) -> dict[str, Any]:
        asked = dataclasses.replace(settings, recipes=(recipe,))
        return run_offline(asked, [3], out, lambda _: None)

    alone = run(tmp_path / "alone", "evaluation")
    after = tmp_path / "after"
    run(after, "model")
    work = after / "work" / "seed-003"
    files = [work / "model.safetensors", work / "model-critic.safetensors"]
    written = [path.stat().st_mtime_ns for path in files]
    results = run(after, "evaluation")
    assert results == alone
    assert [path.stat().st_mtime_ns for path in files] == written
    stored = json.loads((after / "raw" / "seed-003-evaluation.json").read_text())
    assert stored["settings"]["evaluation"]["climbing"] == 2
    found = stored["result"]
    assert found == results[3]["evaluation"]
    assert len(found["around"]["true"]) == len(found["ascents"]["imagined"]) == 6
    other = {**results[3], "evaluation": json.loads(json.dumps(found))}
    found["around"]["metrics"]["imagined"]["rank_correlation"] = 0.5
    other["evaluation"]["around"]["metrics"]["imagined"]["rank_correlation"] = None
    rows = summary({4: other, 3: {**results[3], "evaluation": found}})
    assert [row["rank around"] for row in rows] == [None, 0.5, 0.5]  # the mean of those there are
    error = found["ascents"]["metrics"]["imagined"]["absolute_error"]
    assert [row["error ascents"] for row in rows] == pytest.approx([error] * 3)


def test_fitted_q_evaluation_is_asked_about_policies_from_worst_to_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def values(data: Any, policies: Any, settings: Any, **_: Any) -> Any:
        asked.append((policies, settings))
        return -np.arange(float(len(policies))), {"d3rlpy": "1"}

    monkeypatch.setattr(offline_fqe, "fitted_q_values", values)
    monkeypatch.setattr(offline_seed, "require_d3rlpy", lambda: None)
    ope = OpeSettings(7, climbing=2, every=50, episodes=1)
    settings = dataclasses.replace(
        IMAGINING, ope=ope, recipes=("evaluation", "fqe"), fqe_policies=3, fqe_updates=5
    )
    results = run_offline(settings, [3], tmp_path, lambda _: None)[3]
    found, evaluated = results["fqe"], results["evaluation"]
    assert [policies.theta.shape[0] for policies, _ in asked] == [3, 3]
    assert asked[0][1] == FqeSettings(3, 5, 0.99)
    for name in ("around", "ascents"):
        true = evaluated[name]["true"]
        assert found[name]["true"] == [sorted(true)[place] for place in (0, 3, 6)]
        assert found[name]["true"] == [true[row] for row in found[name]["rows"]]
        imagined = np.array(evaluated[name]["imagined"])[found[name]["rows"]]
        expected = estimate_metrics(np.array(found[name]["true"]), imagined).to_dict()
        assert found[name]["metrics"]["imagined"] == expected
        assert found[name]["metrics"]["fqe"]["regret_at_1"] == 1.0  # the worst has the highest
    critic = load_critic(tmp_path / "work" / "seed-003" / "model-critic.safetensors")
    data = load_dataset(tmp_path / "work" / "seed-003" / "offline" / "fragments-v0", cache=False)
    policies = unseen_policies(data, critic, ope, env=settings.env, seed=3)
    rows = found["ascents"]["rows"]
    np.testing.assert_array_equal(asked[1][0].theta, policies["ascents"].theta[rows])
    assert found["unit"] == "return discounted by 0.99 a step"
    row = summary({3: results})[0]
    assert row["FQE's regret@1 around"] == 1.0
    assert row["model's rank around"] == found["around"]["metrics"]["imagined"]["rank_correlation"]


def test_offline_with_baselines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def train(data: Any, settings: Any) -> Any:
        asked.append(settings)
        return data.policies.select([0]), {"d3rlpy": "1"}

    monkeypatch.setattr(offline_seed, "train_offline_rl", train)
    monkeypatch.setattr(offline_seed, "require_d3rlpy", lambda: None)
    settings = dataclasses.replace(SMALL, recipes=("td3bc", "iql"), rl_updates=7, rl_episodes=2)
    results = run_offline(settings, [3], tmp_path, lambda _: None)
    assert [(s.algorithm, s.seed, s.updates) for s in asked] == [("td3bc", 3, 7), ("iql", 3, 7)]
    assert results[3]["iql"] == results[3]["td3bc"]  # which both are the same policy here
    assert results[3]["iql"]["libraries"] == {"d3rlpy": "1"}
    assert summary(results)[0]["td3bc"] == pytest.approx(results[3]["td3bc"]["returns"][0])

    def refuse() -> None:
        raise UsageError("the library is missing")

    monkeypatch.setattr(offline_seed, "require_d3rlpy", refuse)
    assert run_offline(settings, [3], tmp_path, lambda _: None) == results  # finished: not needed
    with pytest.raises(UsageError, match="missing"):
        run_offline(settings, [3, 4], tmp_path, lambda _: None)


@pytest.fixture
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the default recipes of both kinds of critics tiny, and every ascent short."""
    from pbvf_offline.synthesis import settings as synthesis

    monkeypatch.setattr(synthesis, "SYNTHESIS", SHORT)
    quick = OfflinePreset((8,), 8, 1e-3, 10, 5, relabel=0.3, standardise=True, average=0.9)
    for kind in (kinds.PSVF, kinds.PSSVF):
        monkeypatch.setitem(kinds.OWN, kind.name, dataclasses.replace(kind, offline=quick))


ELSEWHERE = dataclasses.replace(
    IMAGINING, recipes=environments.SETTINGS.recipes, plain_steps=environments.SETTINGS.plain_steps
)


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize("by", ["the check", "the search"])
def test_an_environment_where_a_command_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    from pbvf_offline.models.check import ModelCheck

    reason = "whole episodes are not imagined in it"
    if by == "the search":
        reason = "no start can be drawn into the trust region"

        def refuse(*_: Any, **__: Any) -> None:
            raise IncompatibleError(reason)

        monkeypatch.setattr(ModelCheck, "refusal", None)
        monkeypatch.setattr(offline_seed, "rounds_to_file", refuse)
    cells, notes = [EnvironmentCell("CartPole-v1", "linear")], list[str]()

    def run() -> Any:
        return run_environments(cells, [3], tmp_path, notes.append, settings=ELSEWHERE)

    results = run()
    found = results["CartPole-v1-linear"][3]
    assert sorted(p.name for p in (tmp_path / "raw" / "CartPole-v1-linear").iterdir()) == [
        "seed-003-commands.json",
        "seed-003-dataset.json",
        "seed-003-default.json",
    ]
    commands = found["commands"]
    assert commands["stands"] == "refused"
    assert "search" not in commands["fit_for"]
    assert reason in commands["refusal"]
    assert sum("the default recipe stands" in note for note in notes) == 1
    assert commands["trust_region"] == found["default"]["trust_region"]
    assert not any(key.startswith("plain") for key in found["default"])
    before = len(notes)
    assert run() == results
    assert len(notes) == before  # every part was read back


@pytest.mark.usefixtures("short_fits")
def test_an_environment_where_the_better_critic_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pbvf_offline.models.check import ModelCheck

    monkeypatch.setattr(ModelCheck, "refusal", None)
    cells = [EnvironmentCell("InvertedPendulum-v5", "64x64")]
    results = run_environments(cells, [3], tmp_path, lambda _: None, settings=ELSEWHERE)
    commands = results[cells[0].name][3]["commands"]
    said = commands["comparison"]
    assert commands["stands"] == ("imagined" if said["imagined"] >= said["recipe"] else "recipe")
    work = tmp_path / "work" / "InvertedPendulum-v5-64x64" / "seed-003"
    critic = load_critic(work / "commands-critic.safetensors")
    assert critic.imagined is not None
    assert critic.imagined.comparison is not None
    assert critic.imagined.comparison.to_dict() == said
    for name in ("default", "commands-critic"):
        grown = load_policies(work / f"{name}-region-policies.safetensors").policies
        assert grown.spec.hidden == (64, 64)
    assert load_dataset(work / "offline" / "fragments-64x64-v0").spec.hidden == (64, 64)


def test_a_row_of_an_environment() -> None:
    def seed(commands: float, best: float, stands: str) -> dict[str, Any]:
        def grown(value: float) -> dict[str, Any]:
            return {"trust_region": {"returns": [value - 1, value + 1]}, "stands": stands}

        dataset = {"best_policy": best, "best_episode": 1.0}
        return {"dataset": dataset, "default": grown(2.0), "commands": grown(commands)}

    results = {
        "cell": {0: seed(3, 2, "refused"), 1: seed(5, 6, "imagined"), 2: seed(1, 1, "refused")}
    }
    assert environments.summary(results) == [
        {
            "cell": "cell",
            "commands": 3.0,
            "default": 2.0,
            "best policy": 3.0,
            "best episode": 1.0,
            "above best policy": "1 of 3",
            "stands": "imagined 1, refused 2",
        }
    ]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["model", "default"])
def test_the_quickstart_repeats_and_so_do_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe
) -> None:
    from pbvf_experiments import quickstart
    from pbvf_offline.models.check import ModelCheck
    from pbvf_offline.synthesis import settings as synthesis

    # Seconds and not minutes, for the quickstart and for the commands that it prints.
    monkeypatch.setattr(quickstart, "SYNTHESIS", SHORT)
    monkeypatch.setattr(synthesis, "SYNTHESIS", SHORT)
    request = functools.partial(ModelRequest, hidden=(8,), noise=0.0, mixed=False, angles=False)
    monkeypatch.setattr(quickstart, "ModelRequest", request)
    monkeypatch.setattr("pbvf_cli.commands.fit_model.ModelRequest", request)
    for place in (quickstart, fit_imagined):
        monkeypatch.setattr(place, "round_defaults", lambda *_: Defaults(ROUNDS, {}))
    monkeypatch.setattr(ModelCheck, "refusal", None)
    notes: list[str] = []

    def run() -> object:
        return run_quickstart(
            tmp_path, recipe=recipe, steps=1_200, updates=3, seed=0, workers=1, note=notes.append
        )

    result = run()
    assert (tmp_path / "quickstart.png").read_bytes().startswith(PNG)
    learned = {"model": ["fit-model", "fit-critic"], "default": ["fit-critic"]}[recipe]
    commands = [note.split("pbvf ")[1] for note in notes]
    assert [command.split()[0] for command in commands] == [
        "collect", *learned, "synthesize", "evaluate",
    ]  # fmt: skip
    assert run() == result
    # Pasted, each finds its result finished.
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    for command in commands[:-1]:
        assert pbvf(*shlex.split(command), "--json").ok().json["already_complete"], command
    assert pbvf(*shlex.split(commands[-1]), "--json").ok()


@pytest.mark.slow
def test_the_quickstart_says_that_a_model_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pbvf_experiments import quickstart
    from pbvf_offline.synthesis import settings as synthesis

    request = functools.partial(ModelRequest, hidden=(8,), noise=0.0, mixed=False, angles=False)
    monkeypatch.setattr(quickstart, "ModelRequest", request)
    monkeypatch.setattr(synthesis, "SYNTHESIS", SHORT)
    monkeypatch.setattr(quickstart, "SYNTHESIS", SHORT)
    notes: list[str] = []
    result = run_quickstart(tmp_path, steps=1_200, updates=3, seed=0, workers=1, note=notes.append)
    assert result.recipe == "default"
    why = "the model failed its check"
    assert result.grown_through == f"PSVF, fitted to the data alone: {why}"
    assert notes[2].startswith("the model's own check failed, so whole episodes ")
    assert notes[2].endswith("; a PSVF is fitted to the data alone")
    assert "fit-critic" in notes[3]
    assert "--critic psvf" in notes[3]


def test_reproduce_refuses_bad_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for wrong in (["fig-nothing"], ["fig-offline", "--seeds", "x"]):
        assert main(["reproduce", *wrong, "--out", str(tmp_path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1

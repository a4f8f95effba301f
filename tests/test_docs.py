"""README and docs are run: their commands and Python blocks, at sizes that take seconds."""

from __future__ import annotations

import doctest
import importlib.util
import itertools
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pbvf_cli
import pbvf_datasets
import pbvf_experiments
import pbvf_offline
import pbvf_report
import pbvf_runs
from cli_tools import pbvf
from page_runner import blocks
from pbvf_cli.__main__ import main
from pbvf_cli.app import COMMANDS
from pbvf_experiments.offline.experiment import summary
from pbvf_runs.compare.statistics import interval

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()

# The same commands at a size for tests: what is replaced must be there, so that it cannot rot.
SMALLER = {
    "--steps 100000": "--steps 3000",
    "fit-model lab/swimmer-fragments-v0": (
        "fit-model lab/swimmer-fragments-v0 --updates 20 --hidden 16"
        " --noise 0 --no-angles --no-mixed"
    ),
    "--model model.safetensors --critic pssvf": (
        "--model model.safetensors --critic pssvf --force --rounds 1 --compare 20 --hidden 16"
    ),
    # A model of so few steps fails its check, and such a one says nothing of policies.
    "--from-scratch 5 --model model.safetensors": "--from-scratch 5",
    "--from-scratch 5": "--from-scratch 2 --steps 4 --restarts 2",
    "--episodes 10": "--episodes 1",
    "--steps 20000 --evaluations 20": "--steps 300 --evaluations 2",
}


def test_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setenv("PBVF_CACHE", str(tmp_path / "cache"))
    text = "\n".join(blocks(README, "bash"))
    for old, new in SMALLER.items():
        assert old in text, f"README no longer says {old!r}"
        text = text.replace(old, new)
    commands = [line for line in text.splitlines() if line.strip()]
    assert len(commands) == 19
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "pbvf"
        if arguments[0] == "report" and importlib.util.find_spec("plotly") is None:
            continue
        code = main(arguments)
        assert code == 0, f"{command} ended with {code}: {capsys.readouterr().err}"
    python = blocks(README, "python")
    assert len(python) == 2
    for code_block in python:
        exec(compile(code_block, "README.md", "exec"), {"__name__": "readme"})
    exec(compile(python[1], "README.md", "exec"), {"__name__": "readme"})  # complete: nothing to do
    out = capsys.readouterr().out
    assert "(15, 18)" in out  # 3,000 steps in fragments of 200: 15 policies of 18 parameters
    for name in ("my-loop-v0", "pendulum-run-v0"):
        assert (tmp_path / "datasets" / "lab" / name / "manifest.json").exists()


def test_readme_names_files_that_exist() -> None:
    for name in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / name).exists(), name
    for name in ("scripts/quickstart.sh", "scripts/test.sh", "scripts/setup.sh"):
        assert (ROOT / name).stat().st_mode & 0o100, f"{name} is not executable"
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for name in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / name).exists(), f"{page.name}: {name}"


@pytest.mark.parametrize("script", ["quickstart.sh", "setup.sh"])
def test_scripts_say_how_they_are_used_before_they_install(script: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PBVF_VENV": str(tmp_path / "venv")}
    for arguments, code in ((["--help"], 0), (["-h"], 0), (["--out"], 2), (["one", "two"], 2)):
        process = subprocess.run(
            [ROOT / "scripts" / script, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == code
        assert f"usage: scripts/{script}" in (process.stderr if code else process.stdout)
    assert not list(tmp_path.iterdir())


def test_the_help_shows_the_same_commands_as_the_readme() -> None:
    shown = pbvf("--help").out.partition("A round trip:")[2].split()
    first = blocks(README, "bash")[0].split()
    names = [[b for a, b in itertools.pairwise(words) if a == "pbvf"] for words in (shown, first)]
    assert names[0] == names[1]
    assert shown.count("--model") == first.count("--model")


def test_modules_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = set(re.findall(r"`([a-z_/]+/[a-z_0-9]+\.py)(?::[A-Za-z_.]+)?`", page))
    assert len(named) > 20
    known = {
        path.relative_to(ROOT).as_posix()
        for folder in ("pbvf_offline", "datasets", "cli", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    }
    missing = {name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in known)}
    assert not missing


def test_no_folder_has_more_modules_than_contributing_says() -> None:
    most = int(re.findall(r"at most (\d+) modules", (ROOT / "CONTRIBUTING.md").read_text())[0])
    folders: Counter[Path] = Counter()
    for top in ("pbvf_offline", "datasets", "cli", "benchmarks", "scripts", "tests"):
        modules = (path for path in (ROOT / top).rglob("*.py") if path.name != "__init__.py")
        folders.update(path.parent.relative_to(ROOT) for path in modules)
    assert {folder: n for folder, n in folders.items() if n > most} == {}


def test_options_that_pages_name_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    known = {"--help", "--all"}  # --all is of scripts/test.sh
    for name in ("", *COMMANDS):
        known |= set(re.findall(r"--[a-z0-9-]+", pbvf(*name.split(), "--help").out))
    assert len(known) > 100
    for page in (ROOT / "README.md", ROOT / "docs/commands.md", ROOT / "docs/interop.md"):
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", page.read_text()))
        assert named <= known, page.name


# Modules that refuse to be imported without it.
NEEDS = {f"pbvf_runs.loggers.{name}": name for name in ("trackio", "wandb")}


def modules() -> list[str]:
    found = []
    packages = (pbvf_offline, pbvf_datasets, pbvf_runs, pbvf_report, pbvf_cli, pbvf_experiments)
    for package in packages:
        found.append(package.__name__)
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not info.name.endswith("__main__"):
                found.append(info.name)
    return found


@pytest.mark.parametrize("name", modules())
def test_docstring_examples(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_public_names_are_found_and_cost_nothing() -> None:
    check = (
        "import sys, pbvf_offline as pbvf\n"
        "assert not {'torch', 'numpy', 'gymnasium'} & set(sys.modules)\n"
        "assert all(getattr(pbvf, name) is not None for name in pbvf.__all__)\n"
        "try:\n    pbvf.no_such_name\nexcept AttributeError:\n    pass\n"
        "else:\n    raise SystemExit('found')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", check], check=True, env=environment)


RESULTS = ROOT / "docs" / "results"
TRUST = " ".join((ROOT / "docs" / "trust.md").read_text().split())


def test_results_page_shows_what_the_result_files_hold() -> None:
    page = (RESULTS / "README.md").read_text()
    results: dict[int, dict[str, Any]] = {}
    for path in sorted((RESULTS / "fig-offline" / "raw").glob("seed-*-d[ae]*t.json")):
        _, seed, part = path.stem.split("-")
        stored = json.loads(path.read_text())["result"]
        results.setdefault(int(seed), {}).update(
            {"default": stored} if part == "default" else stored
        )
    rows = summary({seed: stored for seed, stored in results.items() if "default" in stored})
    assert len(rows) == 11  # seeds 0 to 9 and their mean
    for row in rows:
        cells = [row["seed"], *(f"{float(row[name]):.0f}" for name in row if name != "seed")]
        assert "| " + " | ".join(map(str, cells)) + " |" in page, row
    beaten = sum(float(row["region"]) > float(row["best episode"]) for row in rows[:-1])
    assert f"{beaten} of 10" in page
    imagined, last, before = (
        [
            json.loads(path.read_text())["result"]["trust_region"]
            for path in sorted((RESULTS / "fig-offline" / folder).glob("seed-*-model.json"))
        ]
        for folder in ("raw", "d7005bd", "before")
    )
    assert len(imagined) == len(last) == len(before) == 20
    grown, cautious, was, earlier = (
        np.array([np.mean(one[name]) for one in found])
        for found, name in (
            (imagined, "returns"),
            (imagined, "cautious"),
            (last, "returns"),
            (before, "returns"),
        )
    )
    best = np.array([results[seed]["best_policy"] for seed in range(20)])
    episode = np.array([results[seed]["best_episode"] for seed in range(20)])
    columns = np.array([cautious, was, best, episode])
    for seed, one in enumerate(imagined):
        each = ", ".join(f"{value:.0f}" for value in one["returns"])
        shown = " | ".join(f"{value:.0f}" for value in columns[:, seed])
        assert f"| {seed} | {grown[seed]:.0f} | {each} | {shown} |" in page
    means = [f"{value:.0f}" for value in columns.mean(axis=1)]
    assert f"| mean of 0 to 19 | {grown.mean():.0f} |  | {' | '.join(means)} |" in page
    words = " ".join(page.split())
    above, over = (grown > best).sum(), (grown > episode).sum()
    assert f"best dataset policy on {above}; not on seed 5." in words
    assert f"above the best episode on {over} datasets" in words
    assert f"what was earned on {(cautious < grown).sum()} of 20." in words
    assert f"with a median of {np.median(grown):.0f}; aimed" in words
    assert f"has seen it is {grown[:10].mean():.0f} against" in words
    assert f"at `cf053b9` ({earlier.mean():.0f}, and {(earlier > best).sum()}; raw" in words
    assert f"at `d7005bd` ({was.mean():.0f}, and {(was > best).sum()})." in words
    said = np.mean(last[19]["cautious"])
    assert f"policies had {was[19]:.0f} at `d7005bd`, where the model said {said:.0f} by" in words
    same = sum(a["returns"] == b["returns"] for a, b in zip(imagined, last, strict=True))
    others = [np.delete(of, 19).mean() for of in (grown, was)]
    assert same == 11
    assert "the policies of eleven are the same as before, and all nineteen have" in words
    assert "have {:.0f} on average, where they had {:.0f}.".format(*others) in words
    intervals = json.loads((RESULTS / "fig-offline" / "intervals.json").read_text())
    stored, other = intervals["seeds"], intervals["second model"]["19"]
    first, second = (np.mean(other[name]) for name in ("first", "imagined"))
    assert f"imagined {first:.0f} on average, and a second one {second:.0f}." in TRUST
    low = np.array([stored[str(seed)]["low"] for seed in range(20)])
    returns = np.array([one["returns"] for one in imagined])
    known = np.array([one["data_cautious"][0] for one in imagined])
    assert (np.array([one["cautious"] for one in imagined]) > known[:, None]).all()
    sure = low > known[:, None]
    truly, better = returns > best[:, None], returns > episode[:, None]
    assert f"say it of {sure.sum()} of the hundred policies, of which {truly[sure].sum()}" in words
    shown = f'"perhaps" of {(~sure).sum()}, of which {truly[~sure].sum()} are, '
    assert f"{shown}and {better[~sure].sum()} are above the best episode." in words
    assert f"of {(~sure).sum()} of the hundred policies that were grown" in TRUST
    assert f"and {truly[~sure].sum()} of these were truly above" in TRUST
    assert f'"Above the data" it says of {sure.sum()}, and all of these were, as' in TRUST
    assert truly[sure].all()
    region = [float(row["region"]) for row in rows]
    assert f"seeds 8 and 9 all five came to {region[8]:.0f} and {region[9]:.0f} on av" in TRUST
    assert f"its policies came to {region[-1]:.0f}, where" in TRUST
    assert f"all 500, had {float(rows[-1]['best policy']):.0f}." in TRUST
    assert f"came to {grown[:10].mean():.0f} on the same ten datasets, and to" in TRUST
    assert f"and to {grown.mean():.0f} on twenty." in TRUST
    assert f"return of {was[19]:.0f} where the model said {said:.0f} by the caut" in TRUST
    assert f"the same dataset now gives {grown[19]:.0f}." in TRUST
    assert f"above the best episode on {over}, and above the best policy on {above}." in TRUST
    error = np.std(grown, ddof=1) / np.sqrt(len(grown))
    assert f"datasets is {grown.mean():.0f}, with a standard error of {error:.0f} and" in TRUST
    said = f"run on the mean is {grown.mean():.0f}, above them on {over} and {above}."
    assert said in " ".join(README.split())
    assert f"the twenty is {grown.mean():.0f} (standard error {error:.0f}, 95 %" in words
    assert f"The seeds reach from {min(grown):.0f} to {max(grown):.0f}." in TRUST
    of = interval(grown.tolist())
    assert f"95 % bootstrap interval {of.low:.0f} to {of.high:.0f}" in words
    assert f"95 % bootstrap interval of {of.low:.0f} to {of.high:.0f}" in TRUST


def test_results_page_shows_the_datasets_that_no_recipe_had_seen() -> None:
    page = (RESULTS / "README.md").read_text()
    words = " ".join(page.split())
    rows, marks = [], []
    for seed in range(20, 30):
        grown, data = (
            json.loads(
                (
                    RESULTS / "fig-offline" / "unseen" / "raw" / f"seed-{seed:03d}-{part}.json"
                ).read_text()
            )["result"]
            for part in ("model", "dataset")
        )
        one, best, episode = grown["trust_region"], data["best_policy"], data["best_episode"]
        rows.append([np.mean(one["returns"]), np.mean(one["cautious"]), best, episode])
        marks += [
            (sure, earned > best, earned > episode)
            for sure, earned in zip(one["above_data"], one["returns"], strict=True)
        ]
        each = ", ".join(f"{value:.0f}" for value in one["returns"])
        first, *rest = (f"{value:.0f}" for value in rows[-1])
        assert f"| {seed} | {first} | {each} | {' | '.join(rest)} |" in page
    means, *others = (f"{value:.0f}" for value in np.mean(rows, axis=0))
    assert f"| mean | {means} |  | {' | '.join(others)} |" in page
    came_to, cautious, best, episode = np.array(rows).T
    error = np.std(came_to, ddof=1) / np.sqrt(10)
    of = interval(came_to.tolist())
    said = f"The mean of these is {means} (standard error {error:.0f}, 95 % bootstrap interval "
    assert f"{said}{of.low:.0f} to {of.high:.0f})." in words
    assert f"above the best episode on {(came_to > episode).sum()} of ten datasets" in words
    below = " and ".join(str(20 + k) for k in np.flatnonzero(came_to <= best))
    assert f"dataset policy on {(came_to > best).sum()}; not on seeds {below}." in words
    sure, truly, better = np.array(marks, bool).T
    text = f"{sure.sum()} of the fifty policies are said to be above the data, of which "
    assert f"{text}{truly[sure].sum()} are truly above" in words
    text = f"of which {truly[~sure].sum()} of {(~sure).sum()} are, and {better[~sure].sum()} are"
    assert f"{text} above the best episode." in words
    assert f"below what was earned on {(cautious < came_to).sum()}." in words
    said = f"they came to {means} (best dataset policy: {best.mean():.0f})."
    assert f"which no recipe had seen before, {said}" in TRUST
    assert f"as were all {sure.sum()} on the ten further datasets." in TRUST
    assert truly[sure].all()
    assert (came_to > episode).all()  # and on all of seeds 0 to 19, see above
    readme = " ".join(README.split())
    assert "the best stored episode on all ten" in readme
    assert f"have a mean return of {means}. That is above" in readme
    assert (came_to > best).sum() == 8
    assert "whole episodes, on eight. On twenty datasets" in readme


def test_results_page_shows_the_other_critics_and_the_evaluation() -> None:
    page = (RESULTS / "README.md").read_text()
    raw, before = (RESULTS / "fig-offline" / folder for folder in ("raw", "before"))
    recipes = ("model", "model-psvf", "model-pavf", "model-64x64", "cem")
    grown, evaluated = [], []
    for path in sorted(before.glob("seed-*-evaluation.json")):
        seed = path.stem.split("-")[1]
        parts = {
            name: json.loads((folder / f"seed-{seed}-{name}.json").read_text())["result"]
            for folder, names in ((raw, ["dataset"]), (before, ["evaluation", *recipes]))
            for name in names
        }
        returns = [parts[name].get("trust_region", parts[name])["returns"] for name in recipes]
        grown.append([*map(np.mean, returns), parts["dataset"]["best_policy"]])
        shown = " | ".join(f"{value:.0f}" for value in grown[-1])
        assert f"| {int(seed)} | {shown} |" in page
        evaluated.append([])
        for name in ("around", "ascents"):
            one = parts["evaluation"][name]
            said = one["metrics"]["imagined"]
            critic = one["metrics"]["predicted"]["rank_correlation"]
            evaluated[-1] += [said["rank_correlation"], critic, said["absolute_error"]]
            evaluated[-1] += [said["regret_at_1"], said["regret_at_5"], one["coverage"]]
        assert f"| {int(seed)} | " + " | ".join(f"{x:.2f}" for x in evaluated[-1]) + " |" in page
    for rows, digits in ((grown, 0), (evaluated, 2)):
        shown = " | ".join(f"{x:.{digits}f}" for x in np.mean(rows, axis=0))
        assert f"| mean | {shown} |" in page
    around, ascents = np.mean(evaluated, axis=0).reshape(2, 6)
    single = np.array(evaluated)[:, 11]
    # As the table rounds, in percent.
    shown = [f"{x:.2f}"[2:] for x in (around[5], ascents[5], min(single), max(single))]
    text = "{} % of the true returns of policies around the dataset, - {} % of those of policies"
    assert f"{text} along ascents, {{}} to {{}} % on single".format(*shown) in TRUST
    assert f"of {around[0]:.2f} (the critic's prediction: {around[1]:.2f})" in TRUST
    assert f"differ, it was {ascents[0]:.2f} (critic: {ascents[1]:.2f})" in TRUST
    three = [f"{x:.0f}" for x in np.mean(grown, axis=0)[:3]]
    choose = (ROOT / "docs" / "how-to" / "choose-a-critic.md").read_text()
    assert "came to {}, {} and {} on ten".format(*three) in choose


def test_results_page_shows_the_baselines_and_policies_of_deep_data() -> None:
    page = (RESULTS / "README.md").read_text()
    raw = RESULTS / "fig-offline" / "raw"
    names = ("model", "deep-64x64", "td3bc", "iql")
    made = (path for name in names[1:] for path in raw.glob(f"seed-*-{name}.json"))
    found = {path.stem.split("-", 2)[1] for path in made}
    assert found
    for seed in sorted(found):
        cells = {}
        for name in names:
            path = raw / f"seed-{seed}-{name}.json"
            result = json.loads(path.read_text())["result"] if path.exists() else {}
            returns = result.get("trust_region", result).get("returns")
            cells[name] = "" if returns is None else f"{np.mean(returns):.0f}"
            if name == "deep-64x64":
                best = result.get("dataset", {}).get("best_policy")
                cells["best"] = "" if best is None else f"{best:.0f}"
        shown = " | ".join(cells.values())
        assert f"| {int(seed)} | {shown} |".replace("  ", " ") in page.replace("  ", " ")
    deep = [
        json.loads((raw / f"seed-{seed:03d}-deep-64x64.json").read_text())["result"]
        for seed in range(10)
    ]
    came_to = np.array([np.mean(one["trust_region"]["returns"]) for one in deep])
    best = np.array([one["dataset"]["best_policy"] for one in deep])
    words = " ".join(page.split())
    error = np.std(came_to, ddof=1) / np.sqrt(10)
    assert f"have {came_to.mean():.0f} on average on these ten datasets" in words
    assert f"(standard error {error:.0f}; aimed at: 230), {came_to.min():.0f} at the low" in words
    assert f"best dataset policy on {(came_to > best).sum()} of 10." in words


def test_results_page_shows_the_results_of_other_environments() -> None:
    page = (RESULTS / "README.md").read_text().replace("[64,64]", "64x64")
    folders = sorted((RESULTS / "environments" / "raw").iterdir())
    assert folders
    sure: list[bool] = []  # whether policies that are said to be above the data are so
    beside: list[int] = []  # 0: inside the interval, -1: below it, 1: above it
    for folder in folders:
        env, policy = folder.name.rsplit("-", 1)
        found = []
        for path in sorted(folder.glob("seed-*-commands.json")):
            parts = {"commands": path} | {
                part: path.with_name(path.name.replace("commands", part))
                for part in ("default", "dataset")
            }
            read = {part: json.loads(at.read_text()) for part, at in parts.items()}
            found.append({part: content["result"] for part, content in read.items()})
        grown, default = (
            [float(np.mean(one[part]["trust_region"]["returns"])) for one in found]
            for part in ("commands", "default")
        )
        best = [one["dataset"]["best_policy"] for one in found]
        longest = [one["commands"]["check"]["horizons"][-1] for one in found]
        shown = (grown, default, best, [one["dataset"]["best_episode"] for one in found])
        digits = 1 if env.startswith(("Mountain", "Reacher")) else 0
        numbers = " | ".join(f"{np.mean(values):.{digits}f}" for values in shown)
        above = sum(one > other for one, other in zip(grown, best, strict=True))
        error = np.mean([one["error"] / one["spread"] for one in longest])
        stands = sum(one["commands"]["stands"] == "imagined" for one in found)
        row = f"| {env} | {policy} | {len(found)} | {numbers} | {above} | {error:.2f} | {stands} |"
        assert row in page, folder.name
        for one, other in zip(found, best, strict=True):
            grown_here = one["commands"]["trust_region"]
            pairs = zip(grown_here.get("above_data") or (), grown_here["returns"], strict=False)
            sure += [earned > other for said, earned in pairs if said]
            ends = (grown_here.get(end) or () for end in ("low", "high"))
            beside += [
                int(earned > high) - int(earned < low)
                for earned, low, high in zip(grown_here["returns"], *ends, strict=False)
                if low is not None
            ]
    words = " ".join(page.split())
    assert f"{len(sure)} policies are said to be above the data" in words
    assert f"Of these {sum(sure)} are above the best dataset policy" in words
    inside, below, higher = (beside.count(place) for place in (0, -1, 1))
    assert f"Intervals hold {inside} of the {len(beside)} policies that have one" in words
    assert f"{below} earn less than their interval says" in words
    assert f". {higher} earn more. The luck" in words
    assert 0.6 < inside / len(beside) < 0.7  # two in three
    assert f"On other environments it says it of {len(sure)}, of which {sum(sure)} are." in TRUST


def test_benchmark_page_shows_what_the_benchmarks_printed() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    folder = ROOT / "benchmarks" / "results"
    for path in sorted(folder.glob("*.json")):
        stored = json.loads(path.read_text())
        assert (ROOT / stored["command"].split()[1]).exists()
        for result in stored["results"]:
            if result.get("target") is not None:
                digits = 4 if result["median_ratio"] < 0.1 else 2
                assert f"| {result['median_ratio']:.{digits}f} |" in page, result["name"]
            elif "first" in result:
                assert f"{result['first']:.2f} GB at the first opening" in page
            elif path.stem == "gpu":
                rate = f"{result['rate']:,.{0 if result['rate'] >= 1000 else 1}f}"
                assert f"| {result['name']} | {rate} {result['unit']} |" in page


def test_results_page_shows_the_online_returns_with_10000_states_on_a_gpu() -> None:
    page = " ".join((RESULTS / "README.md").read_text().split())
    rows = json.loads((RESULTS / "table" / "psvf-10000-states-gpu.json").read_text())["results"]
    for precision, text in (
        ("bfloat16", "{} on average and {} at the end over five seeds"),
        ("float32", "with float32 {} and {} over three"),
    ):
        chosen = [row for row in rows if row["precision"] == precision]
        means = (
            np.mean([row[key] for row in chosen]) for key in ("average_return", "last20_return")
        )
        assert text.format(*(f"{mean:.1f}" for mean in means)) in page


def test_the_table_of_online_results_is_what_the_result_files_give() -> None:
    from pbvf_experiments.online.cells import measured_cells
    from pbvf_experiments.online.tables import as_markdown, table_rows

    out = RESULTS / "table"
    rows = table_rows(out, [(cell, range(count)) for cell, count in measured_cells()])
    assert (out / "table.md").read_text() == as_markdown(rows)


def test_results_page_shows_the_zero_shot_results() -> None:
    from pbvf_experiments.online.zero_shot import zero_shot_cells, zero_shot_rows

    name = zero_shot_cells()[1].name
    page = (RESULTS / "README.md").read_text()
    assert name in page
    raw = RESULTS / "fig-zero-shot" / "raw"
    results = {
        seed: json.loads((raw / f"{name}-seed{seed}.json").read_text())["result"]
        for seed in range(10)
    }
    rows = zero_shot_rows(results)
    columns = ("chosen", "peak", "last", "learned", "best noisy", "nearest")
    for row in rows:
        cells = [row["seed"], *(f"{float(row[column]):.0f}" for column in columns)]
        assert "| " + " | ".join(map(str, cells)) + " |" in page, row
    above = sum(float(row["chosen"]) > float(row["best noisy"]) for row in rows[:-1])
    assert above == 1  # as the text says


def test_results_page_shows_the_zero_shot_results_through_a_model() -> None:
    from pbvf_experiments.online.zero_shot import zero_shot_cells, zero_shot_rows

    name = zero_shot_cells()[-1].name
    page = (RESULTS / "README.md").read_text()
    raw = RESULTS / "fig-zero-shot" / "raw"
    results = {
        seed: json.loads((raw / f"{name}-seed{seed}.json").read_text())["result"]
        for seed in range(10)
    }
    rows: list[dict[str, Any]] = [dict(row) for row in zero_shot_rows(results)]
    for seed, row in enumerate(rows[:-1]):
        grown = results[seed]["imagined"]["grown"]
        shown = [
            f"| {seed} | {row['model']:.0f} | {', '.join(f'{x:.0f}' for x in grown['returns'])}",
            f"{np.mean(grown['cautious']):.0f} | {row['imagined']:.0f} | {row['check']}",
            f"{row['chosen']:.0f} | {row['learned']:.0f} | {row['best noisy']:.0f} |",
        ]
        assert " | ".join(shown) in page, row
    above = [row["model"] > row["best noisy"] for row in rows[:-1]]
    failed = [row["check"] == "failed" for row in rows[:-1]]
    assert (sum(above), sum(failed)) == (7, 7)
    assert sum(a and f for a, f in zip(above, failed, strict=True)) == 5
    of = interval([row["model"] for row in rows[:-1]])
    words = " ".join(page.split())
    error = of.std / np.sqrt(10)
    text = f"and {of.mean:.0f} on average (standard error {error:.0f}, 95 % bootstrap interval "
    assert f"{text}{of.low:.0f} to {of.high:.0f};" in words


def test_search_page_shows_what_a_choice_among_candidates_gives() -> None:
    folder = RESULTS / "model-search"
    page = (folder / "README.md").read_text()
    stored = json.loads((folder / "raw" / "candidates.json").read_text())["results"]
    rows = []
    for one in stored:
        objective, cautious, true = (
            np.array(one[name]).reshape(5, 32) for name in ("objective", "cautious", "true")
        )
        means = []
        for parts in (1, 2, 4, 8, 16, 32):
            best = objective.reshape(5, parts, -1).argmax(axis=2) + np.arange(parts) * (32 // parts)
            kept = np.take_along_axis(cautious, best, 1).argmax(axis=1)
            means.append(np.take_along_axis(true, best, 1)[np.arange(5), kept].mean())
        means.append(true.mean())
        ranks = [np.corrcoef(x.ravel(), true.ravel())[0, 1] for x in (objective, cautious)]
        rows.append(means + ranks)
        assert _candidates_row(f"{one['cell']} | {one['seed']}", rows[-1]) in page
    assert _candidates_row("mean | ", np.mean(rows, axis=0)) in page

    raw = folder / "raw"
    for one in json.loads((raw / "environments.json").read_text())["results"]:
        shown = [f"{np.mean(grown['true']):.1f}" for grown in one["by_candidates"].values()]
        if one["search"] == "rounds":
            assert f"| {one['env']} | {' | '.join(shown)} |" in page
        else:
            assert f"were no better: {shown[2]} with eight" in page
    for one in json.loads((raw / "deep-rates.json").read_text())["results"]:
        said = [np.mean(one["true"]), np.mean(one["cautious"]), one["kept"]["cautious"]]
        rates = f"{one['lr_rounds']:g} | {one['lr_synthesis']:g}"
        row = f"| {one['seed']} | {one['candidates']} | {rates} | "
        assert row + " | ".join(f"{x:.0f}" for x in said) in page


def test_search_page_shows_what_less_noise_gave_in_a_near_tie() -> None:
    folder = RESULTS / "model-search"
    page = (folder / "README.md").read_text()
    for one in json.loads((folder / "raw" / "noise.json").read_text())["results"]:
        true, cautious = (
            ", ".join(f"{value:.0f}" for value in one[name]) for name in ("true", "cautious")
        )
        row = f"| {one['seed']} | {one['noise']:g} | {one['score']:.3f} | {true} | {cautious} | "
        assert f"{row}{one['best_policy']:.0f} |" in page


def test_search_page_shows_what_rewards_of_ends_and_no_noise_in_near_ties_gave() -> None:
    folder = RESULTS / "model-search"
    page = (folder / "README.md").read_text()
    for one in json.loads((folder / "raw" / "ends.json").read_text())["results"]:
        ends = "apart" if one["ends"] == "apart" else f"{one['ends']}, squares"
        check = one["check"]
        row = f"| {one['env']} | {one['seed']} | {ends} | {check['error'] / check['spread']:.3f} | "
        shown = [np.mean(one["true"]), np.mean(one["cautious"]), one["data_cautious"][0]]
        means = " | ".join(f"{value:.0f}" for value in shown)
        assert f"{row}{check['slope']:.2f} | {means} |" in page
    for one in json.loads((folder / "raw" / "near-ties.json").read_text())["results"]:
        scores = ", ".join(f"{one['scores'][noise]:.3f}" for noise in ("0.0", "0.03", "0.15"))
        policies = "linear" if one["policies"] == "linear" else "[64,64]"
        row = f"| {one['env']} | {policies} | {one['seed']} | "
        row += f"{scores if one['rule'] == 'lowest score' else ''} | {one['noise']:g} | "
        assert f"{row}{np.mean(one['true']):.0f} | {np.mean(one['cautious']):.0f} |" in page


def test_search_page_shows_what_ends_by_their_chance_and_limits_gave() -> None:
    folder = RESULTS / "model-search"
    page = (folder / "README.md").read_text()
    for one in json.loads((folder / "raw" / "chances.json").read_text())["results"]:
        true = np.array(one["true"])
        row = f"| {one['env']} | {one['seed']} | {true.mean():.0f} |"
        for name in ("imagined", "lower"):
            said = np.array(one[name])
            top = np.argsort(-said, kind="stable")[:10]
            error = np.abs(said - true).mean()
            row += f" {said.mean():.0f} | {error:.0f} | {said[top].mean():.0f} "
            row += f"({true[top].mean():.0f}) |"
        assert row in page
    for one in json.loads((folder / "raw" / "chances-grown.json").read_text())["results"]:
        true, cautious = (
            ", ".join(f"{value:.0f}" for value in one[name]) for name in ("true", "cautious")
        )
        row = f"| {one['env']} | [64,64] | {one['seed']} | {one['ends']} | {true} | {cautious} |"
        assert row in page
    for one in json.loads((folder / "raw" / "limits.json").read_text())["results"]:
        shown = [np.mean(one["true"]), np.mean(one["cautious"]), one["data_cautious"][0]]
        means = " | ".join(f"{value:.0f}" for value in [*shown, one["comparison"]["recipe"]])
        assert f"| {one['env']} | {one['seed']} | {one['limits']} | {means} |" in page


def test_search_page_shows_what_two_objectives_gave_where_pieces_are_short() -> None:
    folder = RESULTS / "model-search"
    page = (folder / "README.md").read_text()
    said: dict[str, list[list[float]]] = {}
    for one in json.loads((folder / "raw" / "short-pieces.json").read_text())["results"]:
        true, cautious = np.array(one["true"]), np.array(one["cautious"])
        shown = [true.mean(), cautious.mean(), np.abs(true - cautious).mean()]
        policies = "linear" if one["policies"] == "linear" else "[64,64]"
        row = f"| {one['env']} | {policies} | {one['seed']} | {one['networks']} | "
        assert row + " | ".join(f"{value:.0f}" for value in shown) + " |" in page
        if policies != "linear":
            said.setdefault(one["networks"], []).append(shown)
    two, alone = (np.mean(said[name], axis=0) for name in ("two objectives", "one objective"))
    text = f"Two objectives gave {two[0]:.0f} on average and {two[1]:.0f} by the estimate, one "
    assert f"{text}objective {alone[0]:.0f} and {alone[1]:.0f}:" in " ".join(page.split())


def test_search_page_shows_what_models_say_of_policies_beyond_the_data() -> None:
    folder = RESULTS / "model-search"
    page = (folder / "README.md").read_text()
    stored = json.loads((folder / "raw" / "beyond.json").read_text())
    for one in stored["pool"]:
        shown = [one["seed"], one["noise"], one["unroll"], one["recovery"], f"{one['updates']:,}"]
        shown += [part["imagined"] for part in one["bins"]] + [one["bins"][-1]["spread"]]
        shown += [f"{one['correlation']:.2f}", f"{one['error_200']:.2f}"]
        assert f"| {' | '.join(str(x) for x in shown)} |" in page
    for dataset, ranges in {one["seed"]: one["bins"] for one in stored["pool"]}.items():
        true = " | ".join(str(part["true"]) for part in ranges)
        assert f"| {dataset} | true |  |  |  | {true} |  |  |  |" in page
    for variant in dict.fromkeys(one["variant"] for one in stored["searches"]):
        said = {
            one["seed"]: f"{np.mean(one['true']):.0f} ({np.mean(one['cautious']):.0f})"
            for one in stored["searches"]
            if one["variant"] == variant
        }
        cells = [said.get(seed, "-") for seed in (101, 102, 103, 104, 106, 107)]
        assert f"| {variant} | {' | '.join(cells)} |" in page


def test_search_page_shows_what_counts_beyond_the_box() -> None:
    folder = RESULTS / "model-search"
    page = (folder / "README.md").read_text()
    stored = json.loads((folder / "raw" / "box.json").read_text())
    runs: dict[str, dict[tuple[int, int], float]] = {}
    for one in stored["searches"]:
        key = (one["dataset"], one["seed"])
        runs.setdefault(one["variant"], {})[key] = float(np.mean(one["true"]))
    fooled = {one["variant"]: float(np.mean(one["true"])) for one in stored["one objective"]}
    keys = {key for of in runs.values() for key in of}
    columns = sorted(keys, key=lambda key: (key[0], key[0] != key[1], key[1]))
    for variant in dict.fromkeys([*fooled, *runs]):
        values = [runs.get(variant, {}).get(key) for key in columns] + [fooled.get(variant)]
        cells = ["-" if value is None else f"{value:.0f}" for value in values]
        assert f"| {variant} | {' | '.join(cells)} |" in page
    both = runs["each step"].keys() & runs["as it was"].keys()
    less, was = (np.mean([runs[name][key] for key in both]) for name in ("each step", "as it was"))
    assert len(both) == 9
    assert f"came to {less:.0f} on average, and to {was:.0f} as it" in " ".join(page.split())
    fooled_by, *pool = stored["held back"]
    good = [one for one in pool if one["true"] >= 200]
    assert len(good) == 12
    assert max(one["most_held_back"] for one in good) == 0.003
    assert all(abs(one["imagined"] - one["trusted"]) <= 1 for one in good)
    ends = [f"{end(fooled_by[name]):.0f}" for name in ("imagined", "trusted") for end in (min, max)]
    words = " ".join(page.split())
    assert "where {} to {} is imagined".format(*ends[:2]) in words
    assert "data's mean reward, {} to {} is left".format(*ends[2:]) in words


def test_search_page_shows_what_losses_networks_and_features_gave() -> None:
    folder = RESULTS / "model-search"
    page = (folder / "README.md").read_text()
    for one in json.loads((folder / "raw" / "networks.json").read_text())["results"]:
        shown = [one[name] for name in ("seed", "loss", "network", "features", "noise", "unroll")]
        shown += [one["lr"], f"{one['updates']:,}"] + [part["imagined"] for part in one["bins"]]
        shown += [one["bins"][-1]["spread"], f"{one['correlation']:.2f}"]
        shown += [f"{one['held_rms']:.3f}", f"{one['held_median']:.4f}"]
        assert f"| {' | '.join(str(x) for x in shown)} |" in page


def _candidates_row(name: str, values: Sequence[float]) -> str:
    texts = [f"{x:.0f}" for x in values[:-2]] + [f"{x:.2f}" for x in values[-2:]]
    return f"| {name} | {' | '.join(texts)} |"


def test_results_page_shows_the_results_of_fingerprints() -> None:
    page = (RESULTS / "README.md").read_text()
    for seed in (100, 101, 102):
        stored = json.loads((RESULTS / "fingerprint" / f"seed-{seed}.json").read_text())
        shown = [str(seed)]
        for cell in stored["cells"]:
            true, predicted = cell["returns"], cell["predicted"]
            shown.append(f"{sum(true) / 5:.0f} ({sum(predicted) / 5:.0f})")
        assert "| " + " | ".join(shown) + " |" in page

"""``pbvf plot`` from a user's side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cli_tools import make, pbvf
from pbvf_cli.commands.plot import MetricName, Statistic
from pbvf_cli.shared.terminal.output import number
from pbvf_datasets.format.names import dataset_path
from pbvf_runs.compare.figures import draw_learning_curves
from pbvf_runs.compare.learning_curves import METRICS, curve_folders, read_curve
from pbvf_runs.compare.panels import panels
from pbvf_runs.compare.statistics import STATISTICS, estimate, interquartile_mean
from pbvf_runs.loggers import METRICS_FILE
from pbvf_runs.train import train_run
from run_tools import Stop, StopSoon, given_policy, run_config

QUICK = "--evaluations 4 --evaluation-episodes 2 --hidden 8"
TRAIN = "train-online toyenv:ToyVaried-v0 --critic pssvf --steps 80"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of several seeds and settings, and curves of fits."""
    fit = "fit-critic lab/drift-v0 --critic psvf --hidden 8 --updates 250"
    return make(
        tmp_path_factory.mktemp("made"),
        f"{TRAIN} {QUICK} --seeds 0-4 --run five",
        f"{TRAIN} {QUICK} --seeds 0-1 --sigma 0.25 --run two",
        f"train-online LQR-v0 --critic pssvf --steps 220 {QUICK} --seed 0 --run lqr",
        f"train-online toyenv:ToySurvive-v0 --critic pssvf --steps 80 {QUICK} --seed 0 --run paid",
        "collect toyenv:ToyDrift-v0 --dataset lab/drift-v0 --steps 800 --perturb-every 10 --seed 0",
        f"{fit} --seed 0 --out a --log-dir fits/a",
        f"{fit} --seed 1 --out b --log-dir fits/b",
        "synthesize a --from-scratch 2 --steps 6 --restarts 2 --seed 0 --out p --log-dir ascent "
        "--evaluate --evaluate-every 3 --episodes 1 --env toyenv:ToyDrift-v0",
    )


def plotted(*argv: object):
    return pbvf("plot", *argv, "--out", "f.png", "-q", "--json").ok().json


def means(run: Path, key: str = "returns") -> list[float]:
    stored = json.loads((run / "result.json").read_text())
    return [float(np.mean(e[key])) for e in stored["evaluations"]]


def test_the_numbers_of_runs_with_several_seeds(made, here):
    out = plotted(made / "five")
    (panel,) = out["panels"]
    (group,) = panel["groups"]
    assert panel["title"] == "toyenv:ToyVaried-v0"
    assert group["seeds"] == [0, 1, 2, 3, 4]
    assert group["runs"] == [str(made / "five" / f"seed-{seed}") for seed in range(5)]
    assert group["steps"] == [20, 40, 60, 80]
    assert group["values"] == [means(Path(run)) for run in group["runs"]]
    wanted = estimate(interquartile_mean, np.array(group["values"])).to_dict()
    assert {name: group[name] for name in wanted} == wanted
    assert (out["metric"], out["statistic"]) == ("return", "iqm")
    assert (here / "f.png").read_bytes().startswith(b"\x89PNG")
    mean = plotted(made / "five", "--statistic", "mean", "--overwrite")["panels"][0]["groups"][0]
    assert mean["value"] == pytest.approx(np.mean(group["values"], axis=0))


def test_lines_are_groups_of_equal_settings_and_few_seeds_have_no_interval(made):
    one = made / "two" / "seed-0"
    ran = pbvf("plot", made / "five", made / "two", one, "--out", "f.pdf").ok()
    assert "seed-0,1" not in ran.out
    assert "seed numbers   last step   interquartile mean at that step" in ran.out
    table = [line.split() for line in ran.out.splitlines()]
    assert ["toyenv:ToyVaried-v0", "sigma", "0.25", "0,1", "80"] in [row[:5] for row in table]
    assert "95 % interval, or of each seed" in ran.out
    few = pbvf("plot", made / "two", "--out", "few.pdf").ok().out
    assert "95 %" not in few
    assert few.rstrip().endswith("; ".join(number(means(made / "two" / f"seed-{k}")[-1])
                                           for k in (0, 1)))  # fmt: skip
    groups = plotted(made / "five", made / "two")["panels"][0]["groups"]
    assert [len(group["seeds"]) for group in groups] == [5, 2]
    assert [group["differs"]["sigma"] for group in groups] == [1.0, 0.25]
    assert groups[0]["low"] is not None
    assert groups[1]["low"] is groups[1]["high"] is None


def test_environments_are_not_mixed(made):
    panels = plotted(made / "lqr", made / "two")["panels"]
    assert [panel["title"] for panel in panels] == ["LQR-v0", "toyenv:ToyVaried-v0"]


def test_returns_of_perturbed_policies_and_without_the_bonus(made):
    (group,) = plotted(made / "paid", "--metric", "perturbed-return")["panels"][0]["groups"]
    trained = json.loads((made / "paid/result.json").read_text())["training_returns"]
    assert len(trained) == 16
    last = [total for _, total in trained][-10:]
    assert group["steps"][-1] == 80
    assert group["values"][0][-1] == pytest.approx(np.mean(last))
    metric = ("--metric", "return-without-survival")
    (group,) = plotted(made / "paid", *metric, "--overwrite")["panels"][0]["groups"]
    assert group["values"] == [means(made / "paid", "returns_without_survival")]
    pbvf("plot", made / "lqr", *metric, "--out", "g.png", "-q").refused(
        5, "lqr: its environment pays no survival bonus; use --metric return"
    )


def test_curves_of_fits(made):
    def logged(folder: Path, kind: str, name: str) -> list[float]:
        lines = map(json.loads, (folder / METRICS_FILE).read_text().splitlines())
        return [line[name] for line in lines if line["kind"] == kind]

    out = plotted(made / "fits")
    (group,) = out["panels"][0]["groups"]
    assert (out["metric"], out["panels"][0]["title"]) == ("loss", "fit-critic")
    assert (group["seeds"], group["steps"]) == ([0, 1], [100, 200, 250])
    assert group["values"] == [logged(made / "fits" / name, "fit", "loss") for name in "ab"]
    assert plotted(made / "fits/a" / METRICS_FILE, "--overwrite")["panels"][0]["groups"][0][
        "seeds"
    ] == [0]
    out = plotted(made / "ascent", "--overwrite")
    assert out["metric"] == "objective"
    assert out["panels"][0]["groups"][0]["values"] == [
        logged(made / "ascent", "ascent", "objective")
    ]
    out = plotted(made / "ascent", "--metric", "grown-return", "--overwrite")
    assert out["panels"][0]["groups"][0]["values"] == [
        logged(made / "ascent", "evaluation", "mean_return")
    ]
    for argv, words in (
        ((made / "five", "--metric", "loss"), "is a training run, which has no loss"),
        ((made / "fits", "--metric", "return"), "is the curve of a fit, which has no return; it"),
        ((made / "fits", "--metric", "cautious"), "has no cautious; it has loss"),
        ((made / "ascent", "--metric", "loss"), "it has objective, grown-return"),
        ((made / "five", made / "fits"), "fits/a: has loss, and "),
        ((made / "ascent", made / "fits"), "/ascent has objective, grown-return; draw them apart"),
    ):
        pbvf("plot", *argv, "--out", "g.png", "-q").refused(5, words)


def test_a_run_that_is_not_finished_is_drawn_as_far_as_it_is(here):
    for name, episodes in (("far", 12), ("none", 1)):
        config = run_config("pssvf", seed=len(name))
        with pytest.raises(Stop):
            train_run(config, here / name, 200, stop_soon=StopSoon(episodes))
    ran = pbvf("plot", "far", "none", "--out", "f.svg", "--json").ok()
    (group,) = ran.json["panels"][0]["groups"]
    assert group["seeds"] == [3]
    assert group["finished"] == [False]
    assert 50 <= group["steps"][-1] < 200
    assert f"far: not finished; its line ends at step {group['steps'][-1]}" in ran.err
    assert "none: nothing was measured yet, so it is left out" in ran.err
    pbvf("plot", "none", "--out", "g.svg", "-q").refused(2, "nothing was measured yet")
    pbvf("plot", "none", "--metric", "perturbed-return", "--out", "g.svg", "-q").ok()


def test_the_same_figure_is_complete_and_another_is_a_conflict(made, here):
    assert plotted(made / "two")["already_complete"] is False
    image = (here / "f.png").read_bytes()
    assert plotted(made / "two")["already_complete"] is True
    pbvf("plot", made / "lqr", "--out", "f.png", "-q").refused(7, "f.png: exists with other")
    assert (here / "f.png").read_bytes() == image
    pbvf("plot", made / "lqr", "--out", "f.png", "-q", "--overwrite").ok()
    assert (here / "f.png").read_bytes() != image
    assert [path.name for path in here.iterdir()] == ["f.png"]


def test_the_options_name_all_that_there_is():
    assert set(MetricName) == set(METRICS)
    assert set(Statistic) == set(STATISTICS)


def test_what_is_no_run_is_refused(made, here):
    (here / "empty").mkdir()
    (here / "file").touch()
    folder = dataset_path("lab/drift-v0")
    (folder / "data").mkdir(parents=True)
    (folder / "data/main_data.hdf5").touch()
    for path, words in (
        ("missing", "missing: does not exist"),
        ("lab/drift-v0", "lab/drift-v0: is a dataset, which 'pbvf report' shows; name the folder"),
        (folder, "drift-v0: is a dataset"),
        ("file", "file: is a file; name the folder of a run"),
        ("empty", "empty: holds neither a training run nor the curve of a fit"),
    ):
        pbvf("plot", path, "--out", "f.png", "-q").refused(2, words)
    pbvf("plot", made / "lqr", "--out", "f.jpg", "-q").refused(2, "f.jpg: figures end in .png")
    shutil.copytree(made / "lqr", here / "copy")
    pbvf("plot", made / "lqr", "copy", "--out", "f.png", "-q").refused(2, "copy: is the run of")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"[]", "metrics.jsonl line 2: is no event with a kind and a step"),
        (b"{", "metrics.jsonl line 2: not valid JSON"),
        (b'{"kind": "fit", "step": 1, "loss": "x"}', "metrics.jsonl: loss is x, no number"),
    ],
)
def test_a_damaged_curve(made, here, line, words):
    (here / "log").mkdir()
    first = (made / "fits/a" / METRICS_FILE).read_bytes().splitlines()[0]
    good = b'{"kind": "fit", "step": 5, "loss": 2.0}'
    path = here / "log" / METRICS_FILE
    path.write_bytes(b"\n".join([first, good, line]))  # a line that is still being written
    assert plotted("log", "--metric", "loss")["panels"][0]["groups"][0]["steps"] == [5]
    path.write_bytes(b"\n".join([first, line, b""]))
    pbvf("plot", "log", "--metric", "loss", "--out", "g.png", "-q").refused(3, words)
    path.write_bytes(good + b"\n")
    pbvf("plot", "log", "--out", "g.png", "-q").refused(3, "does not begin with the settings")
    path.write_bytes(b"")
    pbvf("plot", "log", "--out", "g.png", "-q").refused(5, "log: holds no events")


def test_runs_from_other_policies_are_other_lines(here):
    bases = {"fresh": None, "one": given_policy(), "two": given_policy(seed=1)}
    for name, base in bases.items():
        train_run(run_config(base=base, normalization="none"), here / name, 20)
    groups = plotted(*bases)["panels"][0]["groups"]
    digests = [json.loads((here / name / "config.json").read_text()).get("base") for name in bases]
    assert digests[0] is None
    assert [group["differs"].get("base") for group in groups] == digests


def test_a_figure_says_how_many_seeds_there_are_and_of_one_nothing_else(made):
    for folder, title, explanation in (
        ("two/seed-0", "toyenv:ToyVaried-v0 (1 seed)", None),
        ("two", "toyenv:ToyVaried-v0 (2 seeds)", "line: interquartile mean over the seeds; "
         "thin: each seed"),
    ):  # fmt: skip
        curves = [read_curve(path, "return") for path in curve_folders([made / folder])]
        figure = draw_learning_curves(panels(curves, "return", "iqm"), "return", "iqm")
        assert figure.axes[0].get_title() == title
        assert figure.get_suptitle() == (explanation or "")


def test_what_lines_and_bands_are_is_not_cut_off(made):
    folders = curve_folders([made / "five", made / "two"])
    curves = [read_curve(folder, "return") for folder in folders]
    figure = draw_learning_curves(panels(curves, "return", "iqm"), "return", "iqm")
    figure.draw_without_rendering()
    assert "band: 95 % bootstrap interval;" in figure.get_suptitle().replace("\n", " ")
    (said,) = (t for t in figure.texts if t.get_text() == figure.get_suptitle())
    box = said.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1

"""``pbvf fit-critic`` and ``fit-model`` on the folder of a training run."""

from __future__ import annotations

import shutil

import pytest

from cli_tools import pbvf
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.models.model_file import load_model

TRAIN = ("--critic", "pssvf", "--hidden", 4, "--evaluations", 0, "--seed", 0, "-q")
FIT = ("--critic", "psvf", "--hidden", "8", "--updates", 3, "--seed", 0, "--out", "c")
MODEL = ("--hidden", "16,16", "--members", 2, "--noise", 0, "--no-angles", "--no-mixed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, *more in (("run",), ("step", "--normalization", "per-step")):
        argv = ("--run", folder / name, "--steps", 1_200, *TRAIN, *more)
        assert pbvf("train-online", "toyenv:ToyDrift-v0", *argv).code == 0
    return folder


def test_a_critic_of_a_run(here, folder):
    ran = pbvf("fit-critic", folder / "run", *FIT, "--json").ok()
    assert (ran.json["data_steps"], ran.json["data_episodes"]) == (1_200, 30)
    said = " ".join(ran.err.split())
    assert "steps used 1,200 the finished run episodes used 30: 30 whole" in said
    critic = load_critic(here / "c")
    assert critic.context.environment is not None
    assert critic.context.environment.id == "ToyDrift-v0"
    assert critic.context.dataset == ran.json["dataset"]
    assert pbvf("fit-critic", folder / "run", *FIT, "--json", "-q").json["already_complete"]


def test_what_a_run_did_since_is_other_data(here, folder):
    run = here / "longer"
    shutil.copytree(folder / "run", run)
    assert pbvf("fit-critic", run, *FIT, "-q").code == 0
    argv = ("--run", run, "--steps", 1_240, *TRAIN)
    assert pbvf("train-online", "toyenv:ToyDrift-v0", *argv).code == 0
    pbvf("fit-critic", run, *FIT, "-q").refused(7, "dataset is")
    assert pbvf("fit-critic", run, *FIT, "-q", "--overwrite").code == 0


def test_a_run_and_its_exported_dataset_are_the_same_data(here, folder):
    run = folder / "run"
    export = ("--run", run, "--steps", 1_200, "--export-dataset", "lab/run-v0")
    pbvf("train-online", "toyenv:ToyDrift-v0", *TRAIN, *export).ok()
    digests = {pbvf("info", run, "--json").ok().json["data"]}
    for source in (run, "lab/run-v0"):
        digests.add(pbvf("fit-critic", source, *FIT, "-q", "--json", "--overwrite").json["dataset"])
    assert len(digests) == 1
    # Part of it is other data, also where its first lines say how all of it came about.
    part = ("dataset", "filter", "lab/run-v0", "--dataset", "lab/part-v0", "--episodes", "0-3")
    pbvf(*part, "-q").ok()
    fitted = pbvf("fit-critic", "lab/part-v0", *FIT, "-q", "--json", "--overwrite").ok().json
    assert fitted["dataset"] not in digests


def test_predict_takes_a_run(here, folder):
    assert pbvf("fit-critic", folder / "run", *FIT, "-q").code == 0
    said = pbvf("predict", "c", folder / "run", "-q", "--json").ok().json["policies"]
    assert len(said) == 30
    pbvf("predict", "c", folder / "step", "-q").refused(5, "per-step")


def test_an_unfinished_run_is_said_to_be_one(here, folder):
    run = here / "stopped"
    shutil.copytree(folder / "run", run)
    (run / "result.json").unlink()  # the last thing that a run writes
    ran = pbvf("fit-critic", run, *FIT, "--json").ok()
    assert "steps used 1,200 what the unfinished run has on disk" in " ".join(ran.err.split())


def test_a_model_of_a_run_and_rounds_in_it(here, folder):
    ran = pbvf(
        "fit-model", folder / "run", *MODEL, "--updates", 1_500, "--seed", 0, "--out", "m",
        "--json", "-q",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.json["data_steps"] == 1_200
    assert load_model(here / "m").dataset == ran.json["dataset"]
    ran = pbvf(
        "fit-critic", folder / "run", "--critic", "pssvf", "--model", "m", "--rounds", 1,
        "--hidden", 8, "--force", "--compare", 0, "--seed", 0, "--out", "c", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "other data" not in ran.err
    assert ran.json["horizon"] == 40
    assert ran.json["data_episodes"] == 30


def test_errors_that_users_can_see(here, folder):
    pbvf("fit-critic", folder / "step", *FIT, "-q").refused(
        5, "has no policies that could be named; train with --normalization episode"
    )
    pbvf("fit-model", folder / "run", "--out", "m", "--require-manifest", "-q").refused(
        4, "a run has no manifest"
    )
    shutil.copytree(folder / "run", here / "several" / "seed-0")
    pbvf("fit-critic", here / "several", *FIT, "-q").refused(2, "holds 1 run (seed-0); name one")
    shutil.copytree(folder / "run", here / "newer")
    text = (here / "newer" / "config.json").read_text()
    (here / "newer" / "config.json").write_text(text.replace("{", '{"version": 99,', 1))
    assert pbvf("fit-critic", here / "newer", *FIT, "-q").code == 5
    (here / "newer" / "config.json").write_text("{")
    assert pbvf("fit-critic", here / "newer", *FIT, "-q").code == 3

"""``pbvf fit-model`` from a user's side."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from cli_tools import make, pbvf
from pbvf_datasets import load_dataset
from pbvf_offline.models.model_file import load_model
from untagged import make_untagged

SHAPE = ("--hidden", "8,8", "--batch-size", "8", "--members", 2)
SMALL = (*SHAPE, "-q", "--json")
FIXED = (*SMALL, "--noise", 0.1, "--no-angles", "--unroll", 2, "--no-mixed", "--updates", 30)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(
        tmp_path_factory.mktemp("made"),
        "collect toyenv:ToyVaried-v0 --dataset lab/varied-v0 --steps 600 --seed 0 "
        "--perturb-every 12",
        "collect toyenv:ToyDiscrete-v0 --dataset lab/discrete-v0 --steps 60 --seed 0 --stochastic",
        "collect toyenv:Toy-v0 --dataset lab/one-v0 --steps 4 --seed 0",
    )


@pytest.fixture(autouse=True)
def datasets(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "datasets"))
    return made / "datasets"


def fit(*argv: object, dataset: str = "lab/varied-v0"):
    ran = pbvf("fit-model", dataset, "--out", "m.safetensors", *argv).ok()
    return ran.json


def test_json_holds_what_the_interface_promises(here):
    argv = ("--updates", 60, "--trial-updates", 15, "--seed", 0)
    result = fit(*SMALL, *argv)
    assert result["model"] == "m.safetensors"
    assert result["updates"] == 60
    assert result["loss"] > 0  # fewer updates than a stretch of the record
    assert result["seconds"] > 0
    # Trials and the check take time and are no updates.
    assert result["updates_per_second"] > result["updates"] / result["seconds"]
    check = result["check"]
    assert check["steps"][0] == 10
    for name in (
        "correlation",
        "slope",
        "error",
        "coverage",
        "calibrated",
        "spread",
        "pieces",
        "reached",
        "state_error",
    ):
        assert len(check[name]) == len(check["steps"])
    assert isinstance(result["fit_for"], list)
    assert [trial["mixed"] for trial in result["trials"]] == [False, False, False, False, True]
    *tried, mixed = result["trials"]
    alike = [trial for trial in tried if trial["angles"] == result["angles"]]
    best = min(alike, key=lambda trial: trial["score"] * (1.1 if trial["noise"] else 1.0))
    assert result["noise"] == mixed["noise"] == best["noise"]
    assert result["mixed"] == (mixed["score"] <= 1.25 * best["score"])
    assert (result["recovery"], result["huber"], result["unroll"]) == (0.2, 0.1, 1)
    again = fit(*SMALL, *argv)
    assert again["already_complete"]
    assert again["check"] == check
    verified = pbvf("dataset", "verify", "m.safetensors", "--json", "-q").ok()
    assert verified.json["kind"] == "model"
    assert verified.json["status"] == "intact"


def test_given_settings_are_not_chosen_and_equal_ones_give_equal_bytes(here):
    result = fit(*FIXED, "--seed", 1)
    assert result["trials"] == []
    assert (result["noise"], result["angles"], result["unroll"]) == (0.1, False, 2)
    first = (here / "m.safetensors").read_bytes()
    fit(*FIXED, "--seed", 1, "--overwrite")
    assert (here / "m.safetensors").read_bytes() == first
    settings = load_model(here / "m.safetensors").ensemble.settings
    assert (settings.members, settings.hidden, settings.batch_size) == (2, (8, 8), 8)


def test_bfloat16_is_a_choice_that_changes_the_numbers_a_little(here):
    losses = [
        fit(*FIXED, "--seed", 1, "--precision", name, "--updates", 100, "--overwrite")["loss"]
        for name in ("bfloat16", "float32")
    ]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert load_model(here / "m.safetensors").asked["bfloat16"] is False  # as files have it
    again = ("fit-model", "lab/varied-v0", "--out", "m.safetensors", *FIXED, "--seed", 1)
    pbvf(*again, "--updates", 100, "--precision", "bfloat16").refused(
        7, 'precision is "float32" there and "bfloat16" here'
    )
    pbvf(*again, "--precision", "half").refused(2, "--precision: 'half' is not one of float32, bf")


def test_discrete_actions_of_stochastic_policies_and_ends(here):
    result = fit(*FIXED, "--seed", 0, "--validation-episodes", 0.5, dataset="lab/discrete-v0")
    assert result["check"]["length_error"] is not None


def test_people_read_what_it_is_fit_for(here, monkeypatch):
    monkeypatch.setattr("pbvf_cli.shared.terminal.progress._LINE_SECONDS", 0.0)
    argv = ("--hidden", "8,8", "--updates", 5, "--trial-updates", 2, "--seed", 1, "--mixed")
    ran = pbvf("fit-model", "lab/varied-v0", "--out", "m.safetensors", *argv).ok()
    assert "fit for" in ran.out
    assert "nothing: its check failed" in ran.out
    assert "after steps" in ran.out
    words = " ".join(ran.out.split())
    assert "unroll 1 step by 2 networks, 10 steps by 2 networks" in words
    assert "chosen by the check of 4 short trainings: a near tie goes to angles, to no" in words
    assert re.search(
        "tried noise 0.03 with angles, mixed: error .* spreads at the longest", ran.err
    )
    check = load_model(here / "m.safetensors").check
    assert check is not None
    table = words[words.index(" missed ") :]
    assert all(", ".join(horizon.missed) in table for horizon in check.horizons)
    assert re.search(r"trying settings: 8/8 updates,.* trial 4 of 4\n", ran.err)


def test_settings_that_decide_nothing_are_not_shown(here):
    chosen = ("--noise", 0, "--no-angles", "--no-mixed", "--updates", 5, "--seed", 1)
    argv = ("fit-model", "lab/varied-v0", "--out", "m.safetensors", *SHAPE, *chosen)
    ran = pbvf(*argv).ok()
    for name in ("trial-updates", "recovery"):
        assert f" {name} " not in ran.err
        shown = pbvf(*argv, f"--{name}", 1, "--overwrite").ok().err
        assert re.search(rf" {name} +1(\.0)? +given", shown)


def test_the_time_says_of_how_many_updates_it_is(here):
    chosen = ("--noise", 0.1, "--no-angles", "--no-mixed", "--seed", 1)
    argv = ("fit-model", "lab/varied-v0", "--out", "m.safetensors", *SHAPE, *chosen)
    assert " for the last " not in pbvf(*argv, "--updates", 200).ok().out
    ran = pbvf(*argv, "--updates", 250).ok()
    done = re.search(r" s for the last (\d+) of 250 updates ", ran.out)
    assert done is not None
    assert int(done[1]) >= 50  # more, since the rate has begun to fall


def test_other_settings_are_a_conflict(here):
    fit(*FIXED, "--seed", 0)
    pbvf("fit-model", "lab/varied-v0", "--out", "m.safetensors", *FIXED, "--seed", 2).refused(
        7, "seed is 0 there and 2 here"
    )


def test_what_was_interrupted_is_not_lost_to_fewer_updates(here):
    fit(*FIXED, "--seed", 0, "--updates", 40)
    left = here / ".m.safetensors.partial"
    (here / "m.safetensors").rename(left)
    command = ("fit-model", "lab/varied-v0", "--out", "m.safetensors", *FIXED)
    pbvf(*command, "--seed", 0).refused(
        7, "it has 40 of 40 updates of an interrupted fit, and 30 were asked for"
    )
    before = left.read_bytes()
    left.unlink()
    fit(*FIXED, "--seed", 0)
    left.write_bytes(before)
    loud = [word for word in command if word not in ("-q", "--json")]
    ran = pbvf(*loud, "--seed", 0).ok()
    assert "nothing to do" in ran.out
    assert "note: .m.safetensors.partial has 40 of 40 updates of an interrupted fit" in ran.err
    assert left.read_bytes() == before


def test_errors_that_users_can_see(here, datasets):
    argv = ("--out", "m.safetensors", *FIXED, "--seed", 0)
    pbvf("fit-model", "lab/one-v0", *argv).refused(5, "1 episode, of which 1 would be held out")
    for option, value in (
        ("--members", 65),
        ("--validation-episodes", 1.0),
        ("--validation-episodes", 0),
        ("--noise", -1),
        ("--lr", 0),
        ("--hidden", "linear"),
        ("--updates", 0),
        ("--trial-updates", 0),
        ("--batch-size", 0),
    ):
        ran = pbvf("fit-model", "lab/varied-v0", *argv, option, value)
        assert ran.code == 2, option
        assert option in ran.error
    ran = pbvf("fit-model", "lab/varied-v0", *argv, "--lr", 1e30, "--updates", 2_000)
    assert ran.code == 8
    shutil.copytree(datasets / "lab" / "varied-v0", here / "bad")
    (here / "bad" / "data" / "main_data.hdf5").write_bytes(b"x")
    assert pbvf("fit-model", "bad", *argv).code in (3, 4)
    pbvf("fit-model", "lab/varied-v0", *argv, "--out", here).refused(2, "is a folder")


def test_a_dataset_without_policies_has_its_actions_replayed(here, made):
    """The same steps, written by stock Minari: the same trainings, another check."""
    tagged = load_dataset("lab/varied-v0")
    make_untagged("theirs/varied-v0", list(tagged.episodes), tagged.policies)
    known = fit(*FIXED, "--seed", 0)
    (here / "m.safetensors").unlink()
    command = ("fit-model", "theirs/varied-v0", "--out", "m.safetensors", *FIXED, "--seed", 0)
    ran = pbvf(*command, warns=True).ok()
    assert (ran.json["loss"], ran.json["data_steps"]) == (known["loss"], known["data_steps"])
    assert (ran.json["check"]["replayed"], known["check"]["replayed"]) == (True, False)
    assert (ran.json["check"]["episode_steps"], ran.json["check"]["time_limit"]) == (20, None)
    assert pbvf("info", "m.safetensors", "--json").ok().json["check"]["replayed"] is True
    assert pbvf(*command, warns=True).ok().json["already_complete"]
    assert pbvf(*command, "--updates", 40, warns=True).ok().json["updates"] == 40
    ran = pbvf("fit-critic", "theirs/varied-v0", "--critic", "psvf", "--out", "c", warns=True)
    assert ran.code == 5
    assert "'pbvf dataset tag'" in ran.err

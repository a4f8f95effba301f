"""``pbvf predict`` from a user's side."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from cli_tools import pbvf
from pbvf_offline.policies.files import load_policies

KEYS = {"index", "predicted", "low", "high", "inside", "imagined"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, critics, policies, a model that passes its check and one that does not."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "datasets"))
        collect = ["--steps", 1_200, "--seed", 0, "-q", "--perturb-every", 10]
        told = pbvf("collect", "toyenv:ToyDrift-v0", "--dataset", "lab/drift-v0", *collect)
        assert told.code == 0
        for name, more in (("theta", ()), ("actions", ("--fingerprint", 6))):
            fit = ["--critic", "psvf", "--hidden", "8", "--updates", 20, "--seed", 0, "-q", *more]
            assert pbvf("fit-critic", "lab/drift-v0", *fit, "--out", folder / name).code == 0
        grow = ["--from-scratch", 3, "--steps", 5, "--restarts", 2, "--seed", 0, "-q"]
        assert pbvf("synthesize", folder / "theta", *grow, "--out", folder / "grown").code == 0
        deep = [*grow, "--policy", "4", "--out", folder / "deep"]
        assert pbvf("synthesize", folder / "actions", *deep).code == 0
        shape = ["--hidden", "16,16", "--members", 2, "--noise", 0, "--no-angles", "--seed", 0]
        for name, updates in (("good", 1_500), ("bad", 1)):
            argv = ["--out", folder / name, "--updates", updates, *shape, "-q"]
            assert pbvf("fit-model", "lab/drift-v0", *argv).code == 0
    return folder


@pytest.fixture(autouse=True)
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "datasets"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(*argv: object):  # type: ignore[no-untyped-def]
    ran = pbvf("predict", *argv, "-q", "--json")
    assert ran.code == 0, ran.err
    return ran.json


def test_policies_best_first(made: Path) -> None:
    result = told(made / "theta", made / "grown")
    entries = result["policies"]
    assert [set(entry) for entry in entries] == [KEYS] * 3
    values = [entry["predicted"] for entry in entries]
    assert values == sorted(values, reverse=True)
    assert sorted(entry["index"] for entry in entries) == [0, 1, 2]
    assert all(entry["inside"] is True for entry in entries)  # grown in the trust region
    assert all(entry["low"] is entry["high"] is entry["imagined"] is None for entry in entries)
    assert result["interval_of"] is None
    assert result["units"] == {"predicted": "return discounted by 0.99", "imagined": None}
    synthesized = load_policies(made / "grown").origin["result"]["predicted"]
    assert values == pytest.approx(sorted(synthesized, reverse=True), abs=1e-5)


def test_an_output_never_replaces_its_input(made: Path, here: Path) -> None:
    shutil.copy(made / "grown", here / "copy")
    whole = (here / "copy").read_bytes()
    best = ("predict", made / "theta", "copy", "--top", 1)
    fine_tuned = ("synthesize", made / "theta", "--from", "copy", "--steps", 2)
    for command in (best, fine_tuned):
        ran = pbvf(*command, "--out", "copy", "--overwrite")
        assert (ran.code, "would replace what it is made from" in ran.error) == (2, True)
    assert (here / "copy").read_bytes() == whole


def test_the_policies_of_a_dataset(made: Path) -> None:
    entries = told(made / "theta", "lab/drift-v0")["policies"]
    again = told(made / "theta", made / "datasets" / "lab" / "drift-v0")["policies"]
    assert entries == again
    assert len(entries) > 100
    assert 0.9 < np.mean([entry["inside"] for entry in entries]) < 1.0
    shown = pbvf("predict", made / "theta", "lab/drift-v0")
    assert "90 % interval of" in shown.out


def test_the_best_are_written_once(made: Path, here: Path) -> None:
    argv = [made / "theta", "lab/drift-v0", "--top", 4, "--out", "best"]
    first = told(*argv)
    best = load_policies(here / "best")
    assert len(best.policies) == 4
    assert best.environment is not None
    assert best.environment.id == "ToyDrift-v0"
    index = [entry["index"] for entry in first["policies"][:4]]
    assert best.origin["result"]["index"] == index
    again = told(made / "theta", "best")
    assert [entry["predicted"] for entry in again["policies"]] == pytest.approx(
        [entry["predicted"] for entry in first["policies"][:4]], abs=1e-5
    )
    before = (here / "best").read_bytes()
    assert first["already_complete"] is False
    assert told(*argv)["already_complete"] is True
    ran = pbvf("predict", *argv[:3], 5, *argv[4:])
    assert ran.code == 7
    assert "top" in ran.error
    ran = pbvf("predict", made / "actions", *argv[1:])
    assert ran.code == 7
    assert "critic" in ran.error
    assert (here / "best").read_bytes() == before
    assert pbvf("predict", *argv[:3], 5, *argv[4:], "--overwrite", "-q").code == 0
    assert len(load_policies(here / "best").policies) == 5


def test_more_than_there_are(made: Path, here: Path) -> None:
    told(made / "theta", made / "grown", "--top", 9, "--out", "all")
    assert len(load_policies(here / "all").policies) == 3


def test_with_a_model(made: Path) -> None:
    result = told(made / "actions", made / "deep", "--model", made / "good")
    assert result["interval_of"] == "imagined"
    unit = "undiscounted return of whole episodes, with any survival bonus"
    assert result["units"]["imagined"] == unit
    shown = pbvf("predict", made / "actions", made / "deep", "--model", made / "good")
    assert "predicted is the" in shown.out
    assert unit in shown.out
    assert 0 <= result["coverage"] <= 1
    for entry in result["policies"]:
        assert entry["low"] <= entry["imagined"] <= entry["high"]
    shorter = told(made / "actions", made / "deep", "--model", made / "good", "--horizon", 3)
    assert shorter["policies"] != result["policies"]
    for mine, theirs in zip(result["policies"], shorter["policies"], strict=True):
        assert mine["predicted"] == theirs["predicted"]


def test_a_model_that_failed_its_check_is_refused(made: Path) -> None:
    ran = pbvf("predict", made / "theta", made / "grown", "--model", made / "bad")
    assert ran.code == 5
    assert "bad: the model's own check" in ran.error


def test_a_critic_of_parameters_reads_no_other_architecture(made: Path) -> None:
    ran = pbvf("predict", made / "theta", made / "deep")
    assert ran.code == 5
    assert f"{made / 'deep'}: the critic evaluates" in ran.error


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["--top", 2], "--top"),
        (["--out", "p"], "--out"),
        (["--horizon", 5], "--horizon"),
        (["--top", 0, "--out", "p"], "--top"),
    ],
)
def test_what_makes_no_sense(argv: list[object], option: str, made: Path) -> None:
    ran = pbvf("predict", made / "theta", made / "grown", *argv)
    assert ran.code == 2
    assert option in ran.error


def test_policies_that_are_not_there(made: Path) -> None:
    ran = pbvf("predict", made / "theta", "nowhere")
    assert ran.code == 2
    assert "nowhere" in ran.error
    ran = pbvf("predict", made / "grown", made / "grown")
    assert ran.code == 5
    assert "policies file" in ran.error


# ---------------------------------------------------------------------- synthesize --model


GROW = ("--from-scratch", 3, "--steps", 5, "--restarts", 2, "--seed", 0, "-q", "--json")
ENV = ("--evaluate", "--evaluate-every", 5, "--episodes", 1, "--env", "toyenv:ToyDrift-v0")


@pytest.mark.parametrize(("critic", "more"), [("theta", ()), ("actions", ("--policy", "4"))])
def test_grown_policies_are_held_against_the_datas(
    critic: str, more: tuple[str, ...], made: Path
) -> None:
    argv = ["synthesize", made / critic, *GROW, *more, "--out", "p"]
    ran = pbvf(*argv, "--model", made / "good")
    assert ran.code == 0, ran.err
    result = ran.json
    best = result["data_cautious"]
    assert len(best) == 5
    assert best == sorted(best, reverse=True)
    assert len(result["cautious"]) == 3
    assert result["above_data"] == [value > best[0] for value in result["cautious"]]
    plain = pbvf(*argv[:-1], "q").json
    for key in ("predicted", "chosen_step", "objective"):
        assert plain[key] == result[key]
    assert plain["cautious"] is plain["above_data"] is plain["data_cautious"] is None
    assert pbvf(*argv, "--model", made / "good").json["already_complete"] is True


def test_where_nothing_is_gained_it_says_so(made: Path) -> None:
    argv = ["--from-scratch", 2, "--steps", 0, "--restarts", 1, "--seed", 0, "-q"]
    ran = pbvf("synthesize", made / "theta", *argv, "--model", made / "good", "--out", "p")
    assert ran.code == 0, ran.err
    assert "not above the data" in ran.out
    assert "best of the data by the same estimate" in ran.out


def test_what_is_asked_for_later_is_added(made: Path) -> None:
    argv = ["synthesize", made / "theta", *GROW, "--out", "p"]
    assert pbvf(*argv).json["already_complete"] is False
    measured = pbvf(*argv, *ENV).json
    held = pbvf(*argv, "--model", made / "good").json
    assert held["already_complete"] is False
    assert held["returns"] == measured["returns"]
    assert held["curve"] == measured["curve"]
    both = pbvf(*argv, *ENV, "--model", made / "good").json
    assert both["already_complete"] is True
    assert both["cautious"] == held["cautious"]
    at_once = pbvf(*argv[:-1], "q", *ENV, "--model", made / "good")
    assert at_once.code == 0
    assert Path("q").read_bytes() == Path("p").read_bytes()


def test_an_unfit_model_says_nothing_of_grown_policies(made: Path) -> None:
    argv = ["synthesize", made / "theta", *GROW, "--out", "p", "--model", made / "bad"]
    ran = pbvf(*argv)
    assert ran.code == 5
    assert "bad: the model's own check" in ran.error
    assert not Path("p").exists()

"""``pbvf predict`` from a user's side."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_tools import pbvf
from faults import unreadable
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.models.model_file import load_model
from pbvf_offline.policies.files import load_policies
from pbvf_offline.policies.policy import Policies
from pbvf_offline.synthesis.model_evaluation import ImaginedReturns

GROW = ("--from-scratch", 3, "--steps", 5, "--restarts", 2, "--seed", 0, "-q", "--json")
KEYS = {"index", "predicted", "low", "high", "inside", "imagined"}


@pytest.fixture(autouse=True)
def _datasets(drift: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(drift / "datasets"))


def told(*argv: object):  # type: ignore[no-untyped-def]
    ran = pbvf("predict", *argv, "-q", "--json").ok()
    return ran.json


def test_policies_best_first(drift: Path) -> None:
    result = told(drift / "theta", drift / "grown")
    entries = result["policies"]
    assert [set(entry) for entry in entries] == [KEYS] * 3
    values = [entry["predicted"] for entry in entries]
    assert values == sorted(values, reverse=True)
    assert sorted(entry["index"] for entry in entries) == [0, 1, 2]
    assert all(entry["inside"] is True for entry in entries)  # grown in the trust region
    assert all(entry["low"] is entry["high"] is entry["imagined"] is None for entry in entries)
    assert result["interval_of"] is None
    assert result["units"] == {"predicted": "return discounted by 0.99", "imagined": None}
    synthesized = load_policies(drift / "grown").origin["result"]["predicted"]
    assert values == pytest.approx(sorted(synthesized, reverse=True), abs=1e-5)


def test_the_other_order_is_told(drift: Path) -> None:
    for first in ("lab/drift-v0", drift / "grown"):
        ran = pbvf("predict", first, drift / "theta")
        ran.refused(2, f"the critic comes first; use: pbvf predict {drift / 'theta'} {first}")


def test_an_output_never_replaces_its_input(drift: Path, here: Path) -> None:
    shutil.copy(drift / "grown", here / "copy")
    whole = (here / "copy").read_bytes()
    best = ("predict", drift / "theta", "copy", "--top", 1)
    fine_tuned = ("synthesize", drift / "theta", "--from", "copy", "--steps", 2)
    for command in (best, fine_tuned):
        pbvf(*command, "--out", "copy", "--overwrite").refused(
            2, "would replace what it is made from"
        )
    assert (here / "copy").read_bytes() == whole


def test_the_policies_of_a_dataset(drift: Path) -> None:
    entries = told(drift / "theta", "lab/drift-v0")["policies"]
    again = told(drift / "theta", drift / "datasets" / "lab" / "drift-v0")["policies"]
    assert entries == again
    assert len(entries) > 100
    assert 0.9 < np.mean([entry["inside"] for entry in entries]) < 1.0
    shown = pbvf("predict", drift / "theta", "lab/drift-v0")
    assert "90 % interval     needs --model, or a pssvf fitted with" in shown.out


def test_the_best_are_written_once(drift: Path, here: Path) -> None:
    argv = [drift / "theta", "lab/drift-v0", "--top", 4, "--out", "best"]
    first = told(*argv)
    best = load_policies(here / "best")
    assert len(best.policies) == 4
    assert best.environment is not None
    assert best.environment.id == "ToyDrift-v0"
    index = [entry["index"] for entry in first["policies"][:4]]
    assert best.origin["result"]["index"] == index
    again = told(drift / "theta", "best")
    assert [entry["predicted"] for entry in again["policies"]] == pytest.approx(
        [entry["predicted"] for entry in first["policies"][:4]], abs=1e-5
    )
    before = (here / "best").read_bytes()
    assert first["already_complete"] is False
    assert told(*argv)["already_complete"] is True
    pbvf("predict", *argv[:3], 5, *argv[4:]).refused(7, "top")
    pbvf("predict", drift / "actions", *argv[1:]).refused(7, "critic")
    assert (here / "best").read_bytes() == before
    assert pbvf("predict", *argv[:3], 5, *argv[4:], "--overwrite", "-q").code == 0
    assert len(load_policies(here / "best").policies) == 5


def test_more_than_there_are(drift: Path, here: Path) -> None:
    told(drift / "theta", drift / "grown", "--top", 9, "--out", "all")
    assert len(load_policies(here / "all").policies) == 3


def test_with_a_model(drift: Path) -> None:
    result = told(drift / "actions", drift / "deep", "--model", drift / "good")
    assert result["interval_of"] == "imagined"
    unit = "undiscounted return of whole episodes, with any survival bonus"
    assert result["units"]["imagined"] == unit
    shown = pbvf("predict", drift / "actions", drift / "deep", "--model", drift / "good")
    assert "predicted is the" in shown.out
    assert unit in shown.out
    assert "3, the one with the highest predicted return first" in shown.out
    assert 0 <= result["coverage"] <= 1
    for entry in result["policies"]:
        assert entry["low"] <= entry["imagined"] <= entry["high"]
    shorter = told(drift / "actions", drift / "deep", "--model", drift / "good", "--horizon", 3)
    assert shorter["policies"] != result["policies"]
    for mine, theirs in zip(result["policies"], shorter["policies"], strict=True):
        assert mine["predicted"] == theirs["predicted"]


def test_a_model_that_failed_its_check_is_refused(drift: Path) -> None:
    predict = ("predict", drift / "theta", drift / "grown")
    synthesize = ("synthesize", drift / "theta", *GROW, "--out", "p")
    fit = ("fit-critic", "lab/drift-v0", "--critic", "pssvf", "--out", "p")
    for command in (predict, synthesize, fit):
        pbvf(*command, "--model", drift / "bad").refused(5, "bad: the model's own check")
    assert not Path("p").exists()


@pytest.mark.parametrize("name", ["theta", "manifest.json", "main_data.hdf5"])
def test_what_may_not_be_read_is_a_matter_of_permission(drift: Path, name: str) -> None:
    with unreadable(name):
        ran = pbvf("predict", drift / "theta", "lab/drift-v0", "-q")
    ran.refused(6, f"{name}: permission denied; allow reading it")


def test_a_critic_of_parameters_reads_no_other_architecture(drift: Path) -> None:
    pbvf("predict", drift / "theta", drift / "deep").refused(
        5, f"{drift / 'deep'}: the critic evaluates"
    )


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["--top", 2], "--top"),
        (["--out", "p"], "--out"),
        (["--horizon", 5], "--horizon"),
        (["--top", 0, "--out", "p"], "--top"),
    ],
)
def test_what_makes_no_sense(argv: list[object], option: str, drift: Path) -> None:
    pbvf("predict", drift / "theta", drift / "grown", *argv).refused(2, option)


def damaged(path: Path, kind: str, change: Callable[[dict[str, Any]], object]) -> str:
    """Write a file like another, with other arrays; return its name."""
    content, tensors = decode(kind, path.read_bytes(), str(path))
    arrays = {name: array.copy() for name, array in tensors.items()}
    change(arrays)
    Path("other").write_bytes(encode(kind, content, arrays))
    return "other"


def test_a_critic_whose_predictions_are_no_numbers_is_named(drift: Path) -> None:
    def huge(arrays: dict[str, Any]) -> None:
        for name, array in arrays.items():
            if name.startswith("critic/network"):
                array.fill(3e38)

    critic = damaged(drift / "theta", "critic", huge)
    words = "other: the critic's predictions for 3 of 3 policies are not finite; fit it"
    for more in ((), ("--json",), ("--top", 1, "--out", "p")):
        pbvf("predict", critic, drift / "grown", "-q", *more).refused(8, words)
    pbvf(
        "policies", "export", drift / "grown", "--top", 1, "--critic", critic, "--out", "p"
    ).refused(8, words)
    played = "pbvf_offline.rollout.evaluation.evaluate_policies"
    with pytest.MonkeyPatch.context() as patch:  # it is told before anything is played
        patch.setattr(played, lambda *_, **__: pytest.fail("nothing is played"))
        for more in ((), ("--index", 2), ("--top", 1)):
            ran = pbvf("evaluate", drift / "grown", "--critic", critic, *more, *ENV[-2:])
            ran.refused(8, "other: the critic's predictions for ", " are not finite; fit it")
    grow = ("synthesize", critic, *GROW, "--out", "p")
    pbvf(*grow).refused(8, "other: the objective or its gradient is not finite at step 0")
    assert not Path("p").exists()


def test_a_critic_that_divides_by_nothing_is_damaged(drift: Path) -> None:
    critic = damaged(drift / "theta", "critic", lambda a: a["critic/theta_scale"].fill(0.0))
    for command in (("predict", critic, drift / "grown"), ("info", critic)):
        pbvf(*command).refused(3, "other: critic/theta_scale is not positive")
    assert pbvf("verify", critic).code == 3


def test_policies_without_parameters_in_another_normaliser_are_named(drift: Path) -> None:
    """In that of the critic, or in that of the model alone."""

    def tiny(arrays: dict[str, Any]) -> None:
        arrays["obs_std"][1] = 1e-300

    bad, name = damaged(drift / "grown", "policies", tiny), "other: policy 1 cannot be expressed in"
    commands: tuple[tuple[object, ...], ...] = (
        ("predict", drift / "theta", bad),
        ("predict", drift / "theta", bad, "--model", drift / "good"),
        ("evaluate", bad, "--critic", drift / "theta", *ENV[-2:]),
        ("evaluate", bad, "--critic", drift / "theta", "--index", 1, *ENV[-2:]),
        ("evaluate", bad, "--critic", drift / "theta", "--top", 1, *ENV[-2:]),
        ("policies", "export", bad, "--critic", drift / "theta", "--top", 1, "--out", "p"),
        ("synthesize", drift / "theta", "--from", bad, "--steps", 1, "--seed", 0, "--out", "p"),
    )
    for command in commands:
        pbvf(*command, "-q").refused(5, name, "down to 1e-300", "; leave such policies out")
    one = ("evaluate", bad, "--critic", drift / "theta", "--episodes", 1, *ENV[-2:])
    assert pbvf(*one, "--index", 0, "-q").code == 0
    assert not Path("p").exists()


def test_policies_without_parameters_in_the_models_normaliser_are_named(
    drift: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = load_model(drift / "good").ensemble.scales.normaliser
    known = Policies.in_normaliser

    def in_normaliser(self: Policies, mean: Any, std: Any, numbers: Any = None) -> Any:
        if np.array_equal(std, own.std):
            raise IncompatibleError("policy 0 cannot be expressed", remedy="leave it out")
        return known(self, mean, std, numbers)

    monkeypatch.setattr(Policies, "in_normaliser", in_normaliser)
    ran = pbvf("predict", drift / "theta", drift / "grown", "--model", drift / "good", "-q")
    ran.refused(5, f"{drift / 'grown'}: policy 0 cannot be expressed; leave it out")


def test_a_model_whose_returns_are_no_numbers_is_named(drift: Path) -> None:
    path = drift / "good"
    content, tensors = decode("model", path.read_bytes(), str(path))
    content = json.loads(json.dumps(content))
    content["progress"]["reward"] = [1e308, 1.0, 1e308, 1e308]
    Path("huge").write_bytes(encode("model", content, tensors))
    fit = ("fit-critic", "lab/drift-v0", "--critic", "pssvf", "--hidden", 8, "--rounds", 1)
    for command in (
        ("predict", drift / "theta", drift / "grown"),
        ("synthesize", drift / "theta", *GROW, "--out", "p"),
        (*fit, "--compare", 0, "--seed", 0, "--out", "p"),
    ):
        ran = pbvf(*command, "--model", "huge", "-q")
        ran.refused(8, "huge: the learned environment's returns are not finite; learn it again")
    assert not Path("p").exists()


def test_policies_that_are_not_there(drift: Path) -> None:
    pbvf("predict", drift / "theta", "nowhere").refused(2, "nowhere")
    pbvf("predict", drift / "grown", drift / "grown").refused(5, "policies file")


def test_a_model_of_another_environment_than_the_critics_is_refused(drift: Path) -> None:
    other = EnvReference("ToyDrift-v0", None, {"length": 9})
    replace(load_model(drift / "good"), environment=other).save(Path("other"))
    predict = ("predict", drift / "theta", drift / "grown")
    synthesize = ("synthesize", drift / "theta", *GROW, "--out", "p")
    for command in (predict, synthesize):
        pbvf(*command, "--model", "other").refused(
            5,
            "other: this model is of ToyDrift-v0 with length=9, and the critic is of ToyDrift-v0 ",
            "or leave --model out",
        )
    assert not Path("p").exists()


def test_a_model_of_another_environment_serves_the_critic_that_was_fitted_with_it(
    drift: Path,
) -> None:
    other = EnvReference("ToyDrift-v0", None, {"length": 9})
    replace(load_model(drift / "good"), environment=other).save(Path("other"))
    fit = ("fit-critic", "lab/drift-v0", "--critic", "pssvf", "--hidden", 8, "--rounds", 1)
    more = ("--compare", 0, "--force", "--seed", 0, "--out", "c")
    assert pbvf(*fit, "--model", "other", *more, warns=True).code == 0
    ran = pbvf("predict", "c", drift / "grown", "--model", "other", warns=True)
    assert ran.code == 0


# ---------------------------------------------------------------------- synthesize --model

ENV = ("--evaluate", "--evaluate-every", 5, "--episodes", 1, "--env", "toyenv:ToyDrift-v0")


@pytest.mark.parametrize(("critic", "more"), [("theta", ()), ("actions", ("--policy", "4"))])
def test_grown_policies_are_held_against_the_datas(
    critic: str, more: tuple[str, ...], drift: Path
) -> None:
    argv = ["synthesize", drift / critic, *GROW, *more, "--out", "p"]
    ran = pbvf(*argv, "--model", drift / "good", "--candidates", 1).ok()
    result = ran.json
    best = result["data_cautious"]
    assert len(best) == 5
    assert best == sorted(best, reverse=True)
    assert len(result["cautious"]) == 3
    assert result["above_data"] == [value > best[0] for value in result["low"]]
    plain = pbvf(*argv[:-1], "q").json
    for key in ("predicted", "chosen_step", "objective"):
        assert plain[key] == result[key]
    for key in ("cautious", "low", "high", "above_data", "data_cautious"):
        assert plain[key] is None
    assert pbvf(*argv, "--model", drift / "good").json["already_complete"] is True


def test_a_model_of_one_network_is_said_to_be_why_there_is_no_interval(
    drift: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImaginedReturns, "interval", None)
    shown = pbvf("predict", drift / "theta", "lab/drift-v0", "--model", drift / "good").ok()
    assert "none: the model has one network" in shown.out
    assert "needs --model" not in shown.out


def test_where_nothing_is_gained_it_says_so(drift: Path) -> None:
    argv = ["--from-scratch", 2, "--steps", 0, "--restarts", 1, "--seed", 0, "-q"]
    ran = pbvf("synthesize", drift / "theta", *argv, "--model", drift / "good", "--out", "p").ok()
    assert "not above the data" in ran.out
    assert "best of the data by the same estimate" in ran.out


def test_above_the_data_is_said_where_the_whole_interval_is(
    drift: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["synthesize", drift / "theta", "--from-scratch", 1, "--steps", 0, "--restarts", 1]
    argv += ["--seed", 0, "--model", drift / "good", "-q"]
    found = pbvf(*argv, "--out", "first", "--json").json
    low, cautious = found["low"][0], found["cautious"][0]
    assert low < cautious < found["high"][0]
    for name, best, words in (
        ("sure", low - 1, "  above the data"),
        ("perhaps", (low + cautious) / 2, "  perhaps above the data"),
        ("not", cautious + 1, "  not above the data"),
    ):
        monkeypatch.setattr(
            "pbvf_offline.synthesis.to_file.best_of_the_data",
            lambda *_, best=best, **__: np.full(5, best),
        )
        ran = pbvf(*argv, "--out", name).ok()
        assert words in ran.out
        assert f"{low:.6g} to {found['high'][0]:.6g}" in ran.out
        assert load_policies(Path(name)).origin["result"]["above_data"] == [name == "sure"]


def test_of_longer_episodes_than_the_check_saw_nothing_is_sure(
    drift: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imagined episodes have 40 steps, and the check is made to have looked at fewer."""
    model = load_model(drift / "good")
    assert model.check is not None
    low = "pbvf_offline.synthesis.to_file.best_of_the_data"
    monkeypatch.setattr(low, lambda *_, **__: np.full(5, -1e6))
    argv = ["synthesize", drift / "theta", *GROW]
    sure = pbvf(*argv, "--model", drift / "good", "--out", "p").ok().json
    assert all(sure["above_data"])
    for steps, said in ((40, False), (41, True)):
        last = replace(model.check.horizons[-1], steps=steps, reached=4)
        replace(model, check=replace(model.check, horizons=(last,))).save(Path("early"))
        ran = pbvf(*argv, "--model", "early", "--out", f"p{steps}").ok()
        assert ran.json["above_data"] == [said] * 3
        assert ran.json["low"] == (sure["low"] if said else [None] * 3)
        assert ran.json["high"] == (sure["high"] if said else [None] * 3)
        pbvf("info", f"p{steps}").ok()
        assert pbvf(*argv, "--model", "early", "--out", f"p{steps}").json["already_complete"]
        shown = pbvf(*argv[:-1], "--model", "early", "--out", f"p{steps}").ok().out
        assert ("not known" in shown) != said
        held = pbvf("predict", drift / "theta", f"p{steps}", "--model", "early", "--json").json
        assert {one["low"] is not None for one in held["policies"]} == {said}
        told = pbvf("predict", drift / "theta", f"p{steps}", "--model", "early").ok().err
        assert f"early: its check says nothing of policies that act for {steps} steps" in told


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("low", [0.5], "has 1 values of low for 2 policies"),
        ("low", "abc", "values of low that"),
        ("low", None, "values of low that"),
        ("low", [1e9, 1e9], "values of high that"),
        ("low", [None, 0.5], "values of high that"),
        ("high", [None, 1e9], "values of high that"),
        ("above_data", ["yes", "no"], "values of above_data that"),
        ("above_data", [True, True], "values of above_data that"),
        ("above_data", None, "values of above_data that"),
        ("data_cautious", [], "values of data_cautious that"),
        ("data_cautious", [1.0, 2.0], "values of data_cautious that"),
        ("cautious", None, "values of cautious that"),
        ("cautious", [True, False], "values of cautious that"),
        ("chosen_step", [-1, 0], "values of chosen_step that"),
        ("chosen_step", [0, 1], "values of chosen_step that"),  # of 0 steps
        ("distance", [0.5, -0.5], "values of distance that"),
        ("cautious", [1e9, 0.5], "values of cautious that"),
        ("predicted", [0.5, None], "values of predicted that"),
        ("curve", [{"step": 0, "returns": [1.0], "predicted": [1.0]}], "values of curve that"),
    ],
)
def test_a_result_that_contradicts_itself_is_damage(
    name: str, values: object, words: str, drift: Path
) -> None:
    argv = ["synthesize", drift / "theta", "--from-scratch", 2, "--steps", 0, "--restarts", 1]
    argv += ["--seed", 0, "--model", drift / "good", "-q", "--out", "p"]
    pbvf(*argv).ok()
    stored = load_policies(Path("p"))
    result = stored.origin["result"] | {name: values}
    replace(stored, origin=stored.origin | {"result": result}).save(Path("p"))
    pbvf(*argv).refused(3, words)
    pbvf("info", "p").refused(3, words)
    checked = pbvf("verify", "p")
    assert checked.code == 3
    assert words in checked.err


def test_what_is_asked_for_later_is_added(drift: Path) -> None:
    argv = ["synthesize", drift / "theta", *GROW, "--out", "p"]
    assert pbvf(*argv).json["already_complete"] is False
    measured = pbvf(*argv, *ENV).json
    held = pbvf(*argv, "--model", drift / "good").json
    assert held["already_complete"] is False
    assert held["returns"] == measured["returns"]
    assert held["curve"] == measured["curve"]
    both = pbvf(*argv, *ENV, "--model", drift / "good").json
    assert both["already_complete"] is True
    assert both["cautious"] == held["cautious"]
    pbvf(*argv[:-1], "q", *ENV, "--model", drift / "good", "--candidates", 1).ok()
    assert Path("q").read_bytes() == Path("p").read_bytes()


def test_a_horizon_has_a_limit(drift: Path) -> None:
    asked = ("predict", drift / "theta", drift / "grown", "--model", drift / "good")
    pbvf(*asked, "--horizon", 10**12).refused(2, "--horizon: 1000000000000 is not in 1 … 1,000,000")

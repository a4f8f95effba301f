"""``pbvf fit-critic --model`` from a user's side."""

from __future__ import annotations

import itertools
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from cli_tools import make, pbvf
from pbvf_cli.shared.errors import Stopped
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.fit.rounds import RoundSettings
from pbvf_offline.models.check import ModelCheck
from pbvf_offline.models.model_file import load_model
from pbvf_offline.policies.files import load_policies
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator

SMALL = ("--hidden", "8", "--rounds", 2, "--compare", 0, "-q", "--json")


@pytest.fixture(autouse=True)
def _datasets(drift: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(drift / "datasets"))


def fit(drift, *argv: object, name: str = "good"):
    return pbvf(
        "fit-critic", "lab/drift-v0", "--critic", "pssvf", "--out", "c.safetensors",
        "--model", drift / name, *SMALL, *argv,
    )  # fmt: skip


def test_settings_are_shown_before_the_first_round_and_an_interrupt_starts_over(
    here, drift, monkeypatch
):
    def stopped(*args: object, **kwargs: object) -> None:
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr("pbvf_offline.synthesis.rounds_to_file.imagined_rounds", stopped)
    argv = ["fit-critic", "lab/drift-v0", "--critic", "pssvf", "--out", "c.safetensors"]
    ran = pbvf(*argv, "--model", drift / "good", "--seed", 3)
    assert (ran.code, ran.out) == (130, "")
    *table, last = ran.err.splitlines()
    assert any(line.split() == ["seed", "3", "given"] for line in table)
    (compared,) = [line for line in table if line.split()[:1] == ["compare"]]
    assert "3,000 updates: the default recipe is fitted too" in compared
    assert "--compare 0 leaves it out" in compared
    assert last == "interrupted; the same command starts over"
    assert not list(here.glob("*c.safetensors*"))


def test_a_critic_of_imagined_returns_is_a_critic_like_any_other(here, drift):
    ran = fit(drift, "--seed", 0, "--tries", 2).ok()
    result = ran.json
    assert result["critic"] == "c.safetensors"
    assert (result["gamma"], result["reward"]) == (1.0, "raw")
    assert result["horizon"] == 40
    rounds = [(done["attempt"], done["number"]) for done in result["rounds"]]
    assert rounds == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert result["kept"] in result["rounds"]
    grown = pbvf(
        "synthesize", "c.safetensors", "--out", "p.safetensors", "--from-scratch", 2,
        "--steps", 10, "--restarts", 2, "--seed", 0, "-q", "--json",
        "--evaluate", "--env", "toyenv:ToyDrift-v0", "--episodes", 2,
    )  # fmt: skip
    assert grown.code == 0, grown.err
    assert len(grown.json["returns"]) == 2
    assert pbvf("dataset", "verify", "c.safetensors", "--json", "-q").json["status"] == "intact"
    shown = pbvf("info", "c.safetensors", "--json", "-q").json
    before = ran.json["kept"]["number"] * RoundSettings.updates  # not those of later rounds
    assert shown["updates"] == ran.json["updates"] == before
    assert pbvf("evaluate", "p.safetensors", "--env", "toyenv:ToyDrift-v0", "--critic",
                "c.safetensors", "--episodes", 1, "-q", "--json").code == 0  # fmt: skip


def test_an_interrupted_fit_to_the_data_is_named(here, drift):
    plain = ("fit-critic", "lab/drift-v0", "--critic", "psvf", "--seed", 0, "--hidden", "8", "-q")
    pbvf(*plain, "--updates", 2, "--out", "left").ok()
    (here / "left").rename(here / ".c.safetensors.partial")
    fit(drift, "--seed", 0).refused(7, "2 updates of an interrupted fit without --model")
    assert pbvf(*plain, "--updates", 3, "--out", "c.safetensors").code == 0


def test_critics_of_steps_take_discount_and_targets(here, drift):
    argv = (
        "fit-critic", "lab/drift-v0", "--critic", "pavf", "--out", "c.safetensors",
        "--model", drift / "good", *SMALL, "--seed", 0,
    )  # fmt: skip
    ran = pbvf(*argv).ok()
    assert (ran.json["kind"], ran.json["gamma"], ran.json["reward"]) == ("pavf", 0.99, "raw")
    assert load_critic(here / "c.safetensors").fit.settings.n_step == 200
    assert pbvf(*argv).json["already_complete"]
    pbvf(*argv, "--gamma", 0.9).refused(7, "gamma is 0.99 there and 0.9 here")
    pbvf(*argv, "--critic", "psvf").refused(7, 'kind is "pavf" there and "psvf" here')
    assert pbvf(*argv, "--gamma", 0.9, "--n-step", 3, "--overwrite").json["gamma"] == 0.9
    assert load_critic(here / "c.safetensors").fit.settings.n_step == 3
    grown = pbvf(
        "synthesize", "c.safetensors", "--out", "p.safetensors", "--from-scratch", 1,
        "--steps", 2, "--restarts", 1, "--seed", 0, "-q", "--json",
    )  # fmt: skip
    assert grown.code == 0, grown.err
    said = pbvf("predict", "c.safetensors", "p.safetensors", "-q", "--json").json
    assert said["units"]["predicted"] == "cautious imagined return discounted by 0.9"


def test_deep_policies_climb_a_critic_of_what_policies_do(here, drift):
    ran = fit(drift, "--fingerprint", 8, "--policy", 6, "--seed", 0)
    assert ran.code == 0, ran.err
    assert fit(drift, "--fingerprint", 8, "--policy", 6).json["already_complete"]
    other = fit(drift, "--fingerprint", 8)
    assert other.code == 7
    assert "policy is [6] there and not given here" in other.error
    grow = ("synthesize", "c.safetensors", "--steps", 2, "--restarts", 1, "--seed", 0, "--json")
    for argv, arch in (((), "6"), (("--policy", "linear"), "linear")):
        out = f"{arch}.safetensors"
        ran = pbvf(*grow, "--from-scratch", 1, *argv, "--out", out)
        assert ran.code == 0, ran.err
        assert load_policies(here / out).policies.spec.arch == arch
        words = " ".join(ran.err.split())
        assert ("policy 6 that of its rounds" in words) == (arch == "6")
    assert pbvf("predict", "c.safetensors", "6.safetensors", "-q", "--json").code == 0


def test_policies_climb_in_the_trust_region_of_the_rounds(here, drift):
    ran = fit(drift, "--radius", 0.5, "--leaders", 3, "--seed", 0)
    assert ran.code == 0, ran.err
    imagined = load_critic(here / "c.safetensors").imagined
    assert (imagined.settings.radius, imagined.settings.leaders) == (0.5, 3)
    fit(drift, "--seed", 0).refused(7, "radius is 0.5 there and 1.0 here")
    grow = ("synthesize", "c.safetensors", "--from-scratch", 2, "--steps", 5, "--restarts", 2)
    ran = pbvf(*grow, "--seed", 0, "--out", "p", "--json").ok()
    assert re.search(r" radius +0.5 +that of its rounds", ran.err)
    assert max(ran.json["distance"]) <= 0.5001
    other = pbvf(*grow, "--seed", 0, "--out", "q", "--radius", 1, "--json").ok()
    assert re.search(r" radius +1(\.0)? +given", other.err)
    fit(drift, "--leaders", -1).refused(2, "--leaders")
    pbvf("fit-critic", "lab/drift-v0", "--critic", "psvf", "--radius", 1, "--out", "d").refused(
        2, "--radius: has no meaning without --model"
    )


def test_the_better_of_two_critics_stands_and_is_named(here, drift):
    model = ("--model", drift / "good", "--hidden", 8, "--rounds", 2, "--compare", 40)
    argv = ("fit-critic", "lab/drift-v0", "--critic", "pssvf", "--out", "c.safetensors", *model)
    ran = pbvf(*argv, "--seed", 0, "--json").ok()
    shown = [line.split(":")[0] for line in ran.err.splitlines() if line.startswith("comparing,")]
    assert [stage.removeprefix("comparing, ") for stage, _ in itertools.groupby(shown)] == [
        "climbing the imagined critic",
        "imagining its policies",
        "fitting the default recipe",
        "climbing the default recipe's critic",
        "imagining its policies",
    ]
    said = ran.json["comparison"]
    assert said["kind"] == "psvf"  # the data are fragments
    better = said["imagined"] >= said["recipe"]
    assert ran.json["stands"] == ("imagined" if better else "recipe")
    assert ran.json["kind"] == ("pssvf" if better else "psvf")
    assert fit(drift, "--compare", 40).json["comparison"] == said
    fit(drift, "--compare", 41).refused(7, "compare is 40 there and 41 here")
    shown = pbvf(*argv)
    words = " ".join(shown.ok().out.split())
    assert "from the default recipe's psvf, cautious" in words
    stands = "the critic of imagined episodes" if better else "the default recipe's critic"
    assert f"what stands {stands}" in words
    assert ("note: the file holds the default recipe's psvf" in shown.err) != better
    grow = ("--out", "p.safetensors", "--from-scratch", 1, "--steps", 2, "--restarts", 1)
    pbvf("synthesize", "c.safetensors", *grow, "--seed", 0, "-q", "--json").ok()


def test_the_model_chooses_among_candidates(here, drift):
    fit(drift, "--seed", 0).ok()
    grow = ("synthesize", "c.safetensors", "--from-scratch", 2, "--steps", 4)
    alone = pbvf(*grow, "--seed", 0, "--out", "alone.safetensors", "--json").ok()
    best = pbvf(*grow, "--seed", 0, "--model", drift / "good", "--out", "best.safetensors").ok()
    assert "candidates 32 default" in " ".join(best.err.split())
    settings = load_policies(here / "best.safetensors").origin["settings"]
    assert (settings["restarts"], settings["candidates"]) == (32, 32)
    # What is there was chosen by the critic, and is held against the data as it is.
    seen = pbvf(*grow, "--model", drift / "good", "--out", "alone.safetensors", "-q", "--json").ok()
    assert seen.json["chosen_step"] == alone.json["chosen_step"]
    again = pbvf(*grow, "--model", drift / "good", "--out", "best.safetensors", "-q", "--json")
    assert again.ok().json["already_complete"]
    assert min(again.json["cautious"]) >= min(seen.json["cautious"])
    other = ("--model", drift / "good", "--candidates", 2, "--out", "best.safetensors", "-q")
    pbvf(*grow, *other).refused(7, "candidates is 32 there and 2 here")
    pbvf(*grow, "--candidates", 2, "--out", "p.safetensors").refused(2, "--candidates: a learned")
    few = ("--restarts", 6, "--model", drift / "good", "--out", "few.safetensors", "--json")
    pbvf(*grow, *few, "--seed", 0, "-q").ok()
    assert load_policies(here / "few.safetensors").origin["settings"]["candidates"] == 2


def test_one_seed_gives_the_same_bytes_and_more_rounds_those_of_a_longer_search(here, drift):
    assert fit(drift, "--seed", 3).code == 0
    first = (here / "c.safetensors").read_bytes()
    again = fit(drift)
    assert again.json["already_complete"]
    assert again.json["seed"] == 3
    assert (here / "c.safetensors").read_bytes() == first
    fit(drift, "--rounds", 1).refused(7, "exists with 2 rounds, 1 were asked for")
    assert fit(drift, "--rounds", 3).code == 0
    longer = (here / "c.safetensors").read_bytes()
    assert fit(drift, "--rounds", 3, "--overwrite", "--seed", 3).code == 0
    assert (here / "c.safetensors").read_bytes() == longer
    assert load_critic(here / "c.safetensors").encode() == longer


def test_other_settings_are_a_conflict(here, drift):
    assert fit(drift, "--seed", 3).code == 0
    fit(drift, "--seed", 3, "--caution", 2).refused(
        7, "settings: caution is 1.0 there and 2.0 here; choose"
    )


def test_grown_policies_are_judged_with_the_caution_of_their_critic(here, drift):
    fit(drift, "--seed", 3, "--caution", 3).ok()
    grown = pbvf(
        "synthesize", "c.safetensors", "--from-scratch", 2, "--steps", 5, "--restarts", 1,
        "--seed", 0, "--model", drift / "good", "--out", "p.safetensors", "-q", "--json",
    ).ok().json  # fmt: skip
    model, policies = load_model(drift / "good"), load_policies(here / "p.safetensors").policies
    cautious = ModelEvaluator.of(model, 40, 3.0).evaluate(policies).cautious
    np.testing.assert_allclose(grown["cautious"], cautious, rtol=1e-6)
    assert np.all(cautious < ModelEvaluator.of(model, 40).evaluate(policies).cautious)


def test_a_model_whose_check_failed_needs_force(here, drift):
    ran = fit(drift, name="bad")
    assert ran.code == 5
    why = "the model's own check failed, so whole episodes are not imagined in it: after 10 steps"
    assert f"{why} of held-out episodes the " in ran.error
    assert " is not at most 0.75 of the spread; collect more data" in ran.error
    assert "leave --model out, or use it all the same with --force" in ran.error
    argv = ("fit-critic", "lab/drift-v0", "--critic", "pssvf", "--out", "c.safetensors", "--force")
    argv = (*argv, "--model", drift / "bad", *SMALL[:-2], "--seed", 0)
    check = load_model(drift / "bad").check
    assert check is not None
    refusal = check.refusal
    for shown in (pbvf(*argv).ok(), pbvf(*argv).ok()):  # also when complete
        words = f"warning: {drift / 'bad'}: {refusal}; it is used all the same (--force)"
        assert words in shown.err.splitlines()
        assert refusal in " ".join(shown.out.split())
    assert pbvf(*argv, "--json").json["model_refusal"] == refusal
    alone = pbvf("info", "c.safetensors")  # where the model is not at hand
    assert "unfit for whole episodes by its own check, and used by --force" in alone.ok().out
    assert pbvf("info", "c.safetensors", "--json").json["model_unfit"]
    pbvf("push", "c.safetensors", "alone", "--license", "MIT", "-q").ok()
    failed = "| fitted with a model that failed | `unfit for whole episodes by its check` |"
    assert failed in Path("alone/README.md").read_text()
    pbvf("push", "c.safetensors", drift / "bad", "all", "--license", "MIT", "-q").ok()
    assert f"| fitted with a model that failed | `{refusal}` |" in Path("all/README.md").read_text()
    told = pbvf("info", "c.safetensors", drift / "bad", "-q").ok().out
    assert "1 update, unfit for whole episodes" in told
    fit(drift, "--seed", 0, "--overwrite").ok()
    assert fit(drift).json["model_refusal"] is None
    assert "unfit" not in pbvf("info", "c.safetensors", drift / "good", "-q").ok().out
    assert "unfit" not in pbvf("info", "c.safetensors", "-q").ok().out
    assert pbvf("info", "c.safetensors", "--json").json["model_unfit"] is False


def test_what_the_check_could_not_look_at_is_said(here, drift, monkeypatch):
    argv = ("fit-critic", "lab/drift-v0", "--critic", "pssvf", "--model", drift / "good")
    argv = (*argv, *SMALL[:-2], "--seed", 0)
    words = "its check says nothing of policies that act for 50 steps"
    assert words not in pbvf(*argv, "--out", "c.safetensors").ok().err
    unseen = property(lambda check: "policies that act for 50 steps and more: few last so long")
    monkeypatch.setattr(ModelCheck, "unseen", unseen)
    assert f"note: {drift / 'good'}: {words}" in pbvf(*argv, "--out", "d.safetensors").ok().err
    shown = " ".join(pbvf("info", drift / "good").ok().out.split())
    assert "not checked policies that act for 50 steps and more" in shown


def test_progress_says_where_the_critic_discounts(here, drift, monkeypatch):
    monkeypatch.setattr("pbvf_cli.shared.terminal.progress._LINE_SECONDS", 0.0)
    argv = ("fit-critic", "lab/drift-v0", "--model", drift / "good", *SMALL[:-2], "--seed", 0)
    for kind, words in (("pssvf", ""), ("psvf", r" \(discounted\)")):
        ran = pbvf(*argv, "--critic", kind, "--out", kind).ok()
        assert re.search(rf"the critic says [-\d.]+{words}, the model ", ran.err), ran.err


def test_errors_that_users_can_see(here, drift):
    argv = ("fit-critic", "lab/drift-v0", "--out", "c.safetensors", "-q")
    for option, value in (("--lr", 0.1), ("--reward", "raw"), ("--batch-size", 3)):
        ran = pbvf(*argv, "--critic", "psvf", "--model", drift / "good", option, value)
        assert ran.code == 2
        assert ran.error.startswith(f"error: {option}: has no meaning beside --model")
    for option, value in (("--updates", 5), ("--lr", 0.1), ("--gamma", 1), ("--n-step", 2)):
        ran = pbvf(*argv, "--critic", "pssvf", "--model", drift / "good", option, value)
        assert ran.code == 2
        assert ran.error.startswith(f"error: {option}: has no meaning beside --model")
    for option in (
        ("--rounds", 5),
        ("--tries", 1),
        ("--caution", 1),
        ("--force",),
        ("--policy", 8),
        ("--compare", 3),
    ):
        ran = pbvf(*argv, "--critic", "pssvf", *option)
        assert ran.code == 2
        assert ran.error.startswith(f"error: {option[0]}: has no meaning without --model")
    fit(drift, "--policy", "8,8").refused(
        2, "--policy: a critic of parameters reads those of linear policies", "add --fingerprint N"
    )
    fit(drift, "--caution", -1).refused(2, "--caution")
    assert fit(drift, name="none").code == 2
    make(here, "collect toyenv:ToyWide-v0 --dataset lab/other-v0 --steps 52 --seed 0")
    (here / "damaged").write_bytes((drift / "good").read_bytes()[:-9])
    assert fit(here, name="damaged").code == 3
    other = (
        "fit-critic", "datasets/lab/other-v0", "--critic", "pssvf", "--out", "c.safetensors",
        "--model", drift / "good", *SMALL,
    )  # fmt: skip
    pbvf(*other).refused(
        5, "this model is of ToyDrift-v0, and the data are of ToyWide-v0", "with --force"
    )
    ran = pbvf(*other, "--force", warns=True)
    assert "is used in ToyWide-v0: this is another environment" in ran.err
    assert ran.code == 5
    assert f"{drift / 'good'}: the policies have other observations or actions" in ran.err


def test_policies_that_are_squashed_otherwise_are_refused_with_the_models_file(here, drift):
    collect = "collect toyenv:ToyDrift-v0 --dataset lab/clipped-v0 --steps 120 --seed 0"
    fit = "fit-critic lab/clipped-v0 --critic psvf --hidden 8 --updates 2 --seed 0"
    make(here, f"{collect} --squash none", f"{fit} --out critic")
    data, model = "datasets/lab/clipped-v0", ("--model", drift / "good", "-q")
    for command in (
        ("fit-critic", data, "--critic", "pssvf", "--out", "c.safetensors"),
        ("predict", "critic", data),
    ):
        ran = pbvf(*command, *model)
        ran.refused(5, f"{drift / 'good'}: ", "squash none against tanh; give a model")

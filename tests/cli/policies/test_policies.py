"""``pbvf synthesize`` and ``pbvf evaluate`` from a user's side."""

from __future__ import annotations

import importlib.util
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import imageio.v3
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled

from cli_tools import make, pbvf, rows
from pbvf_cli.shared.outputs.video import record_video
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.policies.files import PoliciesFile, load_policies

POLICIES = 4


ENVIRONMENTS = {
    "lqr": "LQR-v0",
    "toy": "toyenv:Toy-v0",
    "pair": "toyenv:ToyPair-v0",
    "varied": "toyenv:ToyVaried-v0",
    "discrete": "toyenv:ToyDiscrete-v0",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets, critics and policies of a few environments, made by the commands themselves."""
    folder = tmp_path_factory.mktemp("made")
    for name, env in ENVIRONMENTS.items():
        data, critic = f"lab/{name}-v0", f"{name}-critic"
        make(
            folder,
            f"collect {env} --dataset {data} --episodes 12 --seed 0",
            f"fit-critic {data} --critic psvf --hidden 8 --updates 20 --seed 0 --out {critic}",
            f"synthesize {critic} --from-scratch {POLICIES} --steps 3 --seed 0 --out {name}",
        )
    return folder


@pytest.fixture(autouse=True)
def _datasets(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "datasets"))


def synthesize(critic, *argv: object):
    ran = pbvf("synthesize", critic, "--out", "p", "--seed", 0, "-q", "--json", *argv).ok()
    return ran.json


def evaluate(policies, *argv: object):
    ran = pbvf("evaluate", policies, "-q", "--json", *argv).ok()
    return ran.json


# ------------------------------------------------------------------------- synthesize


def test_synthesize_json_holds_what_the_interface_promises(made, here):
    result = synthesize(made / "lqr-critic", "--from-scratch", 3, "--steps", 4)
    assert result["policies"] == "p"
    for key in ("predicted", "chosen_step", "objective", "distance"):
        assert len(result[key]) == 3
    assert all(0 <= step <= 4 for step in result["chosen_step"])
    assert result["returns"] is result["closest"] is result["curve"] is None
    assert len(load_policies(here / "p").policies) == 3


def test_default_is_five_policies_and_a_learning_rate(made):
    ran = pbvf("synthesize", made / "lqr-critic", "--out", "p", "--steps", 1)
    shown = rows(ran.err)
    assert (shown["from-scratch"], shown["lr"]) == ("5 default", "0.05 default")
    assert "chosen step" in ran.out


def test_evaluation_measures_and_changes_nothing(made):
    critic = made / "lqr-critic"
    plain = synthesize(critic, "--steps", 6)
    argv = ["--steps", 6, "--evaluate", "--evaluate-every", 2, "--episodes", 1]
    measured = synthesize(critic, *argv)
    for key in ("predicted", "chosen_step", "objective"):
        assert measured[key] == plain[key]
    assert [point["step"] for point in measured["curve"]] == [0, 2, 4, 6]
    assert all(len(p["returns"]) == len(p["predicted"]) == 5 for p in measured["curve"])
    assert len(measured["closest"]) == 5
    # The LQR starts where it always starts, so one episode is the return itself.
    assert evaluate("p", "--episodes", 1)["means"] == measured["returns"]
    again = synthesize(critic, *argv)
    assert again["already_complete"] is True
    assert again["returns"] == measured["returns"]


def test_states_may_come_from_a_dataset(made):
    for name, sigma in (("one", 1), ("two", 2)):
        argv = ["--dataset", f"lab/{name}-v0", "--episodes", 4, "--sigma", sigma, "--seed", 9]
        assert pbvf("collect", "toyenv:Toy-v0", *argv, "-q").code == 0
    own = synthesize(made / "toy-critic", "--steps", 3, "--states", 7)
    argv = ["--out", "q", "--seed", 0, "-q", "--json", "--steps", 3, "--states", 7]
    other = pbvf("synthesize", made / "toy-critic", *argv, "--dataset", "lab/one-v0").json
    assert own["objective"] != other["objective"]
    pbvf("synthesize", made / "toy-critic", *argv, "--dataset", "lab/two-v0").refused(7, "states")
    # Of other widths, and of as many observations in another environment.
    for dataset in ("lab/lqr-v0", "lab/varied-v0"):
        pbvf("synthesize", made / "toy-critic", "--out", "r", "--dataset", dataset).refused(
            5, dataset
        )


def test_the_same_twice_then_other_settings(made, here):
    first = synthesize(made / "toy-critic", "--steps", 3)
    before = (here / "p").read_bytes()
    again = pbvf("synthesize", made / "toy-critic", "--out", "p", "--steps", 3).ok()
    assert "already complete" in again.err
    assert "stored in the output" in again.err
    pbvf("synthesize", made / "toy-critic", "--out", "p", "--steps", 4).refused(
        7, "steps is 3 there and 4 here"
    )
    assert (here / "p").read_bytes() == before
    pbvf("policies", "export", "p", "--format", "policies", "--out", "one").ok()
    other = "it holds other policies than those asked for; choose another --out"
    pbvf("synthesize", made / "toy-critic", "--out", "one").refused(7, other)
    pbvf("policies", "export", "one", "--format", "policies", "--out", "p").refused(7, other)
    assert synthesize(made / "toy-critic", "--steps", 4, "--overwrite") != first


def test_no_trust_region_takes_the_last_step(made):
    assert (
        synthesize(made / "toy-critic", "--steps", 3, "--no-trust-region")["chosen_step"] == [3] * 5
    )


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_a_critic_is_not_replaced_by_policies(made, here, overwrite):
    shutil.copy(made / "lqr-critic", "c")
    before = Path("c").read_bytes()
    ran = pbvf("synthesize", "c", "--out", "c", "--steps", 1, "--seed", 0, *overwrite)
    assert (ran.code, Path("c").read_bytes() == before) == (7, True)
    assert "no policies file, so it is not replaced" in ran.error


@pytest.mark.parametrize("command", ["synthesize", "fit-critic", "fit-model"])
@pytest.mark.parametrize("content", [b"", b"mine", b"my notes of today"])
def test_a_file_of_somebody_elses_at_the_output_is_a_conflict(made, here, command, content):
    (here / "notes.txt").write_bytes(content)
    inputs = {"synthesize": [made / "lqr-critic"], "fit-critic": ["lab/lqr-v0", "--critic", "psvf"]}
    ran = pbvf(command, *inputs.get(command, ["lab/lqr-v0"]), "--out", "notes.txt", "-q")
    ran.refused(7, "so it is not replaced")
    assert (here / "notes.txt").read_bytes() == content


def test_a_critic_that_is_missing_or_of_another_kind(made):
    pbvf("synthesize", "nowhere", "--out", "p").refused(2, "nowhere: does not exist")
    pbvf("synthesize", made / "toy", "--out", "p").refused(5, "policies file")


@pytest.mark.parametrize("name", ["critic.pkl", "critic.safetensors"])
def test_case_22_a_pickle_is_not_opened(here, made, name):
    class Bomb:
        def __reduce__(self):
            return (open, (str(here / "boom"), "w"))

    (here / name).write_bytes(pickle.dumps(Bomb()))
    for argv in (
        ["synthesize", name, "--out", "p"],
        ["evaluate", made / "toy", "--critic", name],
        ["evaluate", name],
    ):
        ran = pbvf(*argv).refused(4, "safetensors")
        assert "weights_only" not in ran.error
    assert not (here / "boom").exists()


def with_environment(path, out, reference):
    """Write a critic or policies file again with another environment in it."""
    try:
        file = load_policies(path)
        replace(file, environment=reference).save(out)
    except Exception:
        critic = load_critic(path)
        replace(critic, context=replace(critic.context, environment=reference)).save(out)


@pytest.mark.parametrize(
    "reference",
    [
        EnvReference("Evil-v0", "evilmod"),
        EnvReference("evilmod:Evil-v0"),
        EnvReference("Swimmer-v5", None, {"xml_file": "/etc/hostname"}),
        EnvReference("Swimmer-v5", None, {}, ("xml_file",)),
    ],
)
def test_case_31_a_file_imports_and_opens_nothing(made, here, monkeypatch, reference):
    (here / "evilmod.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(here))
    for source, command in (("toy", ["evaluate"]), ("toy-critic", ["synthesize", "--out", "q"])):
        out = here / f"evil-{source}"
        with_environment(made / source, out, reference)
        argv = [command[0], out, *command[1:], *(["--evaluate"] if len(command) > 1 else [])]
        pbvf(*argv).refused(4, "--env")
        pbvf(*argv, "--env", "toyenv:Toy-v0", warns=True).ok()


# --------------------------------------------------------------------------- evaluate


def test_evaluate_json_holds_what_the_interface_promises(made):
    result = evaluate(made / "toy", "--episodes", 3, "--critic", made / "toy-critic", "--seed", 0)
    returns = np.array(result["returns"])
    assert returns.shape == (POLICIES, 3)
    assert np.array(result["discounted_returns"]).shape == (POLICIES, 3)
    assert result["mean"] == pytest.approx(returns.mean())
    assert result["means"] == pytest.approx(returns.mean(axis=1).tolist())
    assert result["gamma"] == 0.99
    assert len(result["predicted"]) == POLICIES
    assert -1 <= result["rank_correlation"] <= 1
    assert evaluate(made / "toy", "--episodes", 3, "--seed", 0)["returns"] == result["returns"]


def test_the_spread_over_episodes_is_the_sample_deviation_as_elsewhere(made):
    def deviations(episodes):
        argv = ("evaluate", made / "toy", "--episodes", episodes, "--seed", 0)
        returns = np.array(pbvf(*argv, "-q", "--json").ok().json["returns"])
        lines = pbvf(*argv, "-q").ok().out.partition("std")[2].splitlines()[2:]
        return [line.split()[2] for line in lines], returns

    shown, returns = deviations(3)
    assert np.ptp(returns, axis=1).min() > 0
    np.testing.assert_allclose([float(s) for s in shown], returns.std(axis=1, ddof=1), rtol=1e-3)
    assert deviations(1)[0] == ["-"] * POLICIES


def test_predictions_agree_with_synthesis(made, here):
    grown = synthesize(made / "toy-critic", "--steps", 2)
    result = evaluate("p", "--critic", made / "toy-critic", "--episodes", 1)
    assert result["predicted"] == pytest.approx(grown["predicted"], rel=1e-6)


def test_policies_whose_returns_differ_by_luck_alone_are_equal():
    from scipy.stats import f_oneway

    from pbvf_cli.commands.evaluate import _are_equal

    noise = np.random.default_rng(0).normal(size=(5, 10))
    assert not _are_equal(noise + 10.0 * np.arange(5)[:, None])
    assert not _are_equal(np.arange(5.0)[:, None])  # one episode each says nothing of luck
    assert _are_equal(np.full((3, 4), 500.0))
    assert not _are_equal(np.full((3, 4), 500.0) + np.arange(3)[:, None])
    # Equal policies are told apart one time in twenty, however many they are.
    rng = np.random.default_rng(1)
    for policies in (2, 5, 20):
        found = [_are_equal(360 + 5 * rng.normal(size=(policies, 10))) for _ in range(400)]
        assert 0.91 <= np.mean(found) <= 0.99
    one = noise[:, :3]
    expected = f_oneway(*one).pvalue > 0.05
    assert _are_equal(one) == expected


def test_rank_correlation_is_that_of_scipy_and_null_below_three(made, here):
    from scipy.stats import spearmanr

    result = evaluate(made / "toy", "--critic", made / "toy-critic", "--seed", 0)
    means = np.mean(result["discounted_returns"], axis=1)
    expected = spearmanr(result["predicted"], means).statistic
    assert result["rank_correlation"] == pytest.approx(expected)
    file = load_policies(made / "toy")
    replace(file, policies=file.policies.select([0, 1])).save(here / "two")
    assert evaluate("two", "--critic", made / "toy-critic")["rank_correlation"] is None


def test_policies_are_judged_in_the_critics_normaliser(made, here):
    from pbvf_offline.policies.policy import Policies

    file = load_policies(made / "toy")
    p = file.policies
    mean, std = p.obs_mean + 0.5, p.obs_std * 2
    theta = p.in_normaliser(mean[0], std[0])
    PoliciesFile(Policies(p.spec, theta, mean, std), file.environment).save(here / "same")
    argv = ["--critic", made / "toy-critic", "--seed", 0, "--episodes", 2]
    ours, theirs = evaluate("same", *argv), evaluate(made / "toy", *argv)
    assert ours["predicted"] == pytest.approx(theirs["predicted"], rel=1e-4)
    np.testing.assert_allclose(ours["returns"], theirs["returns"], rtol=1e-5)


@pytest.mark.usefixtures("forking")
def test_much_work_is_shared_by_the_cores_without_being_asked(made, monkeypatch):
    monkeypatch.setenv("PBVF_WORKERS", "2")
    argv = ("evaluate", made / "toy", "--seed", 0, "--episodes")
    few, many = pbvf(*argv, 1).ok(), pbvf(*argv, 400).ok()
    assert rows(few.err)["workers"] == "1 default"
    assert rows(many.err)["workers"].startswith("2 default for up to ")
    assert pbvf(*argv, 400, "--workers", 1).ok().out == many.out
    for wrong in ("many", "0", "9" * 5_000):
        monkeypatch.setenv("PBVF_WORKERS", wrong)
        pbvf(*argv, 1).refused(2, "PBVF_WORKERS", "or unset it")


def test_discounted_returns_use_gamma(made):
    result = evaluate(made / "lqr", "--episodes", 1, "--gamma", 0)
    # With gamma 0 only the first reward counts: -1 - a^2 at s = 1.
    first = np.array(result["discounted_returns"])[:, 0]
    policies = load_policies(made / "lqr").policies
    actions = [policies.actor(k).act(np.ones(1))[0][0] for k in range(POLICIES)]
    np.testing.assert_allclose(first, -1 - np.square(actions))


def test_case_24_another_version_of_the_environment_warns_once(made):
    argv = [
        "evaluate",
        made / "pair",
        "--env",
        "toyenv:ToyPair-v1",
        "--critic",
        made / "pair-critic",
    ]
    ran = pbvf(*argv, "-q", "--json", "--episodes", 1, warns=True).ok()
    assert ran.err.startswith("warning: ")
    assert ran.err.count("\n") == 1
    assert "ToyPair-v0" in ran.err
    assert "ToyPair-v1: rewards differ between" in ran.err
    assert ran.json["mean"] > 0
    argv = ["synthesize", made / "pair-critic", "--out", "p", "--evaluate", "--steps", 1, "-q"]
    ran = pbvf(*argv, "--env", "toyenv:ToyPair-v1", warns=True).ok()
    assert "rewards differ between" in ran.err


def test_another_environment_altogether_warns_too(made):
    argv = ["evaluate", made / "toy", "--env", "toyenv:ToyLimit-v0", "-q", "--episodes", 1]
    ran = pbvf(*argv, warns=True).ok()
    assert "another environment" in ran.err


LONG = {"length": 30}
LIMIT = 20  # both by far from Toy-v0's own episodes of 5 steps


def long_policies(made, here, **more):
    """Write policies and a critic that come from Toy-v0 with other arguments and a time limit."""
    reference = EnvReference("Toy-v0", "toyenv", {**LONG, "max_episode_steps": LIMIT, **more})
    for name in ("toy", "toy-critic"):
        with_environment(made / name, here / name, reference)


@pytest.mark.parametrize("named", [(), ("--env", "toyenv:Toy-v0")])
def test_the_environments_arguments_are_those_in_the_file(made, here, named):
    long_policies(made, here)
    shared = ("--episodes", 1, "--seed", 0)
    ran = pbvf("evaluate", "toy", *named, *shared, "--gamma", 1, "--json").ok()
    assert ran.json["env_kwargs"] == LONG
    assert ran.json["max_episode_steps"] == LIMIT
    shown = rows(ran.err)
    assert shown["env-kwargs"] == '{"length": 30} stored in the file'
    assert shown["max-episode-steps"] == "20 stored in the file"
    # A reward is at most 1 and seldom far from it, so returns tell the lengths.
    assert LIMIT / 2 < ran.json["mean"] <= LIMIT
    people = pbvf("evaluate", "toy", *named, *shared, "-q").ok()
    assert "with length=30, max_episode_steps=20" in people.out
    grown = pbvf("synthesize", "toy-critic", "--out", "q", "--evaluate", *named, *shared, "--steps",
                 1, "-q", "--json").ok().json  # fmt: skip
    assert (grown["env_kwargs"], grown["max_episode_steps"]) == (LONG, LIMIT)
    assert LIMIT / 2 < np.mean(grown["returns"]) <= LIMIT


@pytest.mark.parametrize(
    ("given", "kwargs", "limit", "length"),
    [
        (("--env-kwargs", '{"length": 9}'), {"length": 9}, LIMIT, 9),
        (("--env-kwargs", "{}"), {}, LIMIT, 5),
        (("--max-episode-steps", 8), LONG, 8, 8),
        (
            ("--env-kwargs", '{"length": 9, "max_episode_steps": 7}'),
            {"length": 9, "max_episode_steps": 7},
            7,
            7,
        ),
    ],
)
def test_given_arguments_replace_those_in_the_file_and_one_line_warns(
    made, here, given, kwargs, limit, length
):
    long_policies(made, here)
    argv = ["evaluate", "toy", "--critic", "toy-critic", "--env", "toyenv:Toy-v0", *given]
    ran = pbvf(*argv, "--episodes", 1, "-q", "--json", warns=True).ok()
    assert (ran.json["env_kwargs"], ran.json["max_episode_steps"]) == (kwargs, limit)
    assert length / 2 < ran.json["mean"] <= length
    (line,) = ran.err.splitlines()
    assert line.startswith(
        "warning: toy comes from Toy-v0 with length=30, max_episode_steps=20 and is used in Toy-v0 "
    )


def test_a_critic_of_other_arguments_than_the_policies_is_warned_of(made, here):
    long_policies(made, here)
    argv = ["evaluate", "toy", "--critic", made / "toy-critic", "--episodes", 1, "-q"]
    assert "Toy-v0 with no arguments and is used in" in pbvf(*argv, warns=True).ok().err


@pytest.mark.parametrize(
    "unsafe", [{"log": "/tmp/x"}, {"max_episode_steps": True}, {"max_episode_steps": 0}]
)
def test_what_a_file_may_not_set_is_not_taken_over_and_warned_of(made, here, unsafe):
    long_policies(made, here, **unsafe)
    argv = ["evaluate", "toy", "--env", "toyenv:Toy-v0", "--episodes", 1, "-q", "--json"]
    ran = pbvf(*argv, warns=True).ok()
    assert ran.json["env_kwargs"] == LONG
    assert ran.err.count("warning: ") == ran.err.count("\n") == 1


@pytest.mark.parametrize("option", ["--policies", "--base"])
def test_collect_takes_the_arguments_of_given_policies(made, here, option):
    long_policies(made, here)
    file = load_policies(here / "toy")
    replace(file, policies=file.policies.select([0])).save(here / "one")
    collect = ("collect", "toyenv:Toy-v0", option, "one", "--episodes", 2, "--seed", 0, "-q")
    ran = pbvf(*collect, "--dataset", "lab/own-v0", "--overwrite", "--json").ok()
    assert (ran.json["env_kwargs"], ran.json["max_episode_steps"]) == (LONG, LIMIT)
    assert ran.json["steps"] == 2 * LIMIT
    other = ("--env-kwargs", '{"length": 9}', "--dataset", "lab/other-v0", "--overwrite", "--json")
    ran = pbvf(*collect, *other, warns=True).ok()
    assert ran.json["steps"] == 2 * 9
    assert ran.err.startswith("warning: one comes from Toy-v0 with length=30, max_episode_steps=20")


def test_spaces_or_policies_that_do_not_fit_exit_5(made):
    pbvf("evaluate", made / "toy", "--env", "LQR-v0").refused(
        5, "observe 3 numbers and their actions are 1 number (float32) in [-1, 1]; of the"
    )
    bounds = pbvf("evaluate", made / "toy", "--env", "toyenv:ToyAsym-v0")
    assert bounds.code == 5
    pbvf("evaluate", made / "toy", "--critic", made / "lqr-critic").refused(5, "evaluates")
    grown = pbvf("synthesize", made / "toy-critic", "--out", "p", "--evaluate", "--env", "LQR-v0")
    assert grown.code == 5


def test_max_episode_steps_is_a_time_limit(made):
    argv = ["--env", "toyenv:Endless-v0", "--max-episode-steps", 3, "--episodes", 2]
    ran = pbvf("evaluate", made / "toy", *argv, "-q", "--json", warns=True)
    assert all(r <= 3 for rs in ran.json["returns"] for r in rs)


def test_an_unknown_environment_is_asked_for(made, here):
    replace(load_policies(made / "toy"), environment=None).save(here / "nameless")
    pbvf("evaluate", "nameless").refused(2, "--env")
    pbvf("evaluate", "nameless", "--overwrite").refused(2, "--overwrite: replaces a video")


def test_a_table_for_people(made):
    ran = pbvf("evaluate", made / "toy", "--critic", made / "toy-critic", "--episodes", 2)
    assert "rank correlation" in ran.out
    unit = load_critic(made / "toy-critic").unit
    assert f"predicted is the  {unit}" in ran.out
    assert "stored in the critic" in ran.err
    alone = pbvf("evaluate", made / "toy", "--episodes", 2).ok()
    assert "predicted" not in alone.out


@pytest.mark.parametrize(
    ("command", "argv", "words"),
    [
        ("synthesize", ["--from-scratch", "0"], "--from-scratch"),
        ("synthesize", ["--steps", "-1"], "--steps"),
        ("synthesize", ["--lr", "nan"], "--lr"),
        ("synthesize", ["--radius", "0"], "--radius"),
        ("synthesize", ["--radius", "1", "--no-trust-region"], "--radius"),
        ("synthesize", ["--env", "LQR-v0"], "--evaluate"),
        ("synthesize", ["--evaluate-every", "2"], "--evaluate"),
        ("synthesize", ["--episodes", "2"], "--evaluate"),
        ("synthesize", ["--evaluate", "--env-kwargs", "{}"], "--env"),
        ("synthesize", ["--evaluate", "--env", "toyenv:Nope-v0"], "Nope"),
        ("synthesize", ["--evaluate", "--env", "toyenv:ToyFree-v0"], "--max-episode-steps"),
        ("synthesize", ["--evaluate", "--env", "toyenv:ToyDict-v0"], "supported are"),
        ("synthesize", ["--out", "."], "folder"),
        ("synthesize", ["--seed", "-1"], "--seed"),
        ("evaluate", ["--episodes", "0"], "--episodes"),
        ("evaluate", ["--gamma", "2"], "--gamma"),
        ("evaluate", ["--seed", "-1"], "--seed"),
        ("evaluate", ["--env-kwargs", "{}"], "--env"),
        ("evaluate", ["--env", "nomodule:X-v0"], "nomodule"),
        ("evaluate", ["--env", "toyenv:Endless-v0"], "--max-episode-steps"),
        ("evaluate", ["--video", "film.avi"], ".mp4 or .gif"),
        ("evaluate", ["--critic", "nowhere"], "nowhere"),
    ],
)
def test_wrong_usage_exits_2(made, here, command, argv, words):
    of = {"synthesize": (made / "toy-critic", "--out", "p"), "evaluate": (made / "toy",)}
    pbvf(command, *of[command], *argv).refused(2, words)
    assert not (here / "p").exists()


# ------------------------------------------------------------------------------ video


def test_video_films_the_first_episode(made, here):
    result = evaluate(made / "toy", "--video", "a/film.gif", "--episodes", 2)
    assert result["frames"] == 6  # five steps and the start
    assert (here / "a/film.gif").read_bytes()[:4] == b"GIF8"
    assert [p.name for p in (here / "a").iterdir()] == ["film.gif"]
    ran = pbvf("evaluate", made / "toy", "--video", "a/film.gif")
    assert ran.code == 7
    assert evaluate(made / "toy", "--video", "a/film.gif", "--overwrite")["frames"] == 6


@pytest.mark.parametrize("name", ["film.gif", "film.mp4"])
def test_a_video_of_others_is_never_replaced(made, here, name):
    if name.endswith("mp4"):
        pytest.importorskip("imageio_ffmpeg")
    evaluate(made / "toy", "--video", name)
    if name.endswith("gif"):
        assert len(imageio.v3.imread(name)) == 6
    whole = (here / name).read_bytes()
    (here / name).write_bytes(whole[:-1])
    pbvf("evaluate", made / "toy", "--video", name, "--overwrite").refused(7, "no video made by")
    assert (here / name).read_bytes() == whole[:-1]


def test_filming_tells_how_far_it_is(made, here, monkeypatch):
    from pbvf_cli.shared.terminal import progress

    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    ran = pbvf("evaluate", made / "toy", "--video", "film.gif", "--episodes", 1).ok()
    told = [line for line in ran.err.splitlines() if line.startswith("filming: ")]
    assert len(told) == 6
    assert told[-1].startswith("filming: 6/101 frames")  # its time limit is 100


def test_a_film_of_few_frames_leaves_steps_out(made, here):
    file = load_policies(made / "toy")
    told = []
    frames, every = record_video(
        EnvConfig("toyenv:Toy-v0"),
        file.policies,
        here / "film.gif",
        seed=0,
        episodes=1,
        progress=lambda *numbers: told.append(numbers),
        most=40,
    )
    assert (frames, every) == (2, 3)  # steps 0 and 3 of 5; its time limit is 100
    assert told == [(1, 34), (2, 34)]


def test_video_without_its_extra_says_what_to_install(made, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda n, *a: None if n == "imageio_ffmpeg" else find(n, *a)
    )
    pbvf("evaluate", made / "toy", "--video", "film.mp4").refused(
        2, "pip install 'pbvf-offline[video]'"
    )


def test_video_of_an_environment_without_images(made):
    pbvf("evaluate", made / "lqr", "--video", "film.gif", "-q").refused(2, "rgb_array")


@pytest.mark.parametrize(
    ("error", "mujoco", "words"),
    [
        (RuntimeError("no GL here"), True, ("MUJOCO_GL=egl", "no GL here")),
        (RuntimeError("no GL here"), False, ("needs a screen", "no GL here")),
        (
            DependencyNotInstalled("pip install pygame"),
            True,
            ("pygame", "install what it"),
        ),
    ],
)
def test_a_machine_that_cannot_render_exits_6_and_leaves_no_file(
    made, here, monkeypatch, error, mujoco, words
):
    import toyenv

    def fail(self):
        raise error

    monkeypatch.setattr(toyenv.ToyEnv, "render", fail)
    if mujoco:
        stand_in = SimpleNamespace(set_mju_user_warning=lambda function: None)
        monkeypatch.setitem(sys.modules, "mujoco", stand_in)
    else:
        monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    ran = pbvf("evaluate", made / "toy", "--video", "film.gif", "-q").refused(6, *words)
    assert ("MUJOCO_GL" in ran.error) == ("MUJOCO_GL=egl" in words)
    assert list(here.iterdir()) in ([], [here / "cache"])


@pytest.mark.parametrize(
    ("render", "words"),
    [
        (lambda self: {}["frame"], ("raised KeyError: 'frame' while it was rendered", ".py:")),
        (lambda self: None, ("its image has shape () and dtype object",)),
    ],
)
def test_a_render_that_is_wrong_is_not_the_machines_fault(made, here, monkeypatch, render, words):
    import toyenv

    monkeypatch.setattr(toyenv.ToyEnv, "render", render)
    pbvf("evaluate", made / "toy", "--video", "film.gif", "-q").refused(2, "Toy-v0: ", *words)
    assert list(here.iterdir()) in ([], [here / "cache"])


def test_an_environment_that_fails_while_it_is_filmed_is_named(made, monkeypatch):
    import toyenv

    def fail(self, action):
        raise ZeroDivisionError("in the user's code")

    monkeypatch.setattr(toyenv.ToyEnv, "step", fail)
    pbvf("evaluate", made / "toy", "--video", "film.gif", "-q").refused(
        2, "Toy-v0: the environment raised ZeroDivisionError", "test_policies.py:", "(in fail)"
    )


def test_a_video_that_cannot_be_written_exits_6(made, here):
    (here / "file").write_text("")
    ran = pbvf("evaluate", made / "toy", "--video", "file/film.gif", "-q")
    assert ran.code == 6


# ------------------------------------------------------------------------- no network


def test_case_26_everything_works_without_a_network(made, here, monkeypatch):
    import socket

    def refuse(*_: object) -> None:
        raise OSError("no network")

    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    argv = ["--dataset", "lab/offline-v0", "--steps", 20, "-q"]
    assert pbvf("collect", "toyenv:Toy-v0", *argv).code == 0
    argv = ["--critic", "psvf", "--hidden", "8", "--updates", 3, "--out", "c", "-q"]
    assert pbvf("fit-critic", "lab/offline-v0", *argv).code == 0
    assert pbvf("synthesize", "c", "--steps", 2, "--out", "p", "--evaluate", "-q").code == 0
    assert pbvf("evaluate", "p", "--critic", "c", "--episodes", 1, "-q").code == 0

"""``pbvf collect`` from a user's side: what is stored, printed and refused."""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path

import numpy as np
import pytest

from cli_tools import content, digest, pbvf
from pbvf_cli.shared.terminal import progress
from pbvf_datasets import load_dataset

ID = "lab/toy-v0"
TOY = ("toyenv:Toy-v0", "--dataset", ID)


def load(dataset: str = ID):
    return load_dataset(dataset, cache=False)


def collect(env: str, *argv: object, dataset: str = ID):
    ran = pbvf("collect", f"toyenv:{env}", "--dataset", dataset, "--json", "-q", *argv).ok()
    return ran.json


def test_json_holds_what_the_interface_promises(root):
    result = collect("Toy-v0", "--episodes", 4, "--seed", 3)
    assert result["dataset"] == ID
    assert result["path"] == str(root / ID)
    assert (result["episodes"], result["steps"], result["policies"]) == (4, 20, 4)
    assert (result["seed"], result["warmup_steps"], result["cut"]) == (3, 50, 0)
    assert result["seconds"] > 0
    assert result["steps_per_second"] == pytest.approx(20 / result["seconds"])
    returns = load().trajectories.returns()
    assert result["return"] == {
        "mean": pytest.approx(returns.mean()),
        "min": pytest.approx(returns.min()),
        "max": pytest.approx(returns.max()),
    }


def test_settings_go_to_stderr_and_the_table_to_stdout(root):
    ran = pbvf("collect", *TOY, "--steps", 10, "--sigma", 0.25).ok()
    table = {line.split()[0]: line for line in ran.err.splitlines() if line.strip()}
    assert table["sigma"].split() == ["sigma", "0.25", "given"]
    assert "default" in table["policy"]
    assert "drawn" in table["seed"]
    assert str(root / ID) in ran.out
    assert "sigma" not in ran.out


def test_the_warm_up_shows_settings_and_progress(monkeypatch):
    """Ten episodes of a slow environment take minutes, before the first that is stored."""
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    ran = pbvf("collect", *TOY, "--steps", 10, "--warmup-episodes", 3).ok()
    lines = [line.partition(" episodes")[0].strip() for line in ran.err.splitlines()]
    shown = [k for k, line in enumerate(lines) if line.startswith("warming up")]
    assert [lines[k] for k in shown] == [f"warming up: {k}/3" for k in (1, 2, 3)]
    assert ran.err.index("warmup-episodes") < ran.err.index("warming up")
    assert ran.err.index("warming up: 3/3") < ran.err.index("collecting")


def test_defaults_come_from_the_paper():
    ran = pbvf("collect", "LQR-v0", "--dataset", ID, "--episodes", 2)
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in ran.err.splitlines()[3:]}
    assert rows["squash"] == "none paper default for LQR"
    assert rows["normalize"] == "no paper default for LQR"
    assert rows["sigma"] == "0.5 paper default for LQR"
    assert load().spec.squash == "none"


def test_the_backend_is_shown_and_refused_where_it_knows_no_bytes():
    words = ("--dataset", ID, "--steps", 60, "--warmup-episodes", 0, "--json")
    ran = pbvf("collect", "Reacher-v5", *words).ok()
    assert re.search(r"^ *backend +native +default *$", ran.err, re.M)
    assert ran.json["backend"] == "native"
    pbvf("collect", *TOY, "--episodes", 1, "--backend", "native").refused(2, "--backend", "leave")
    played = pbvf("evaluate", ID, "--top", 1, "--backend", "gymnasium", "--json").ok()
    assert re.search(r"^ *backend +gymnasium +given *$", played.err, re.M)
    assert played.json["backend"] == "gymnasium"


@pytest.mark.parametrize("env", ["Swimmer-v5", "Hopper-v5"])
def test_case_1_real_environments_whose_infos_differ(env):
    ran = pbvf("collect", env, "--dataset", ID, "--steps", 30, "--warmup-episodes", 0, "--json")
    assert ran.json["steps"] == 30


def test_case_2_the_seed_decides_the_bytes(root):
    for name, seed in (("a-v0", 0), ("b-v0", 0), ("c-v0", 1)):
        collect("Toy-v0", "--steps", 12, "--seed", seed, dataset=f"lab/{name}")
    data = {n: (root / "lab" / n / "data/main_data.hdf5").read_bytes() for n in ("a-v0", "b-v0")}
    assert data["a-v0"] == data["b-v0"]
    assert data["a-v0"] != (root / "lab/c-v0/data/main_data.hdf5").read_bytes()
    assert json.loads((root / "lab/a-v0/manifest.json").read_text())["provenance"]["seed"] == 0
    starts = load("lab/a-v0").trajectories.initial_observations
    assert len({tuple(s) for s in starts.tolist()}) == 3


def test_case_3_a_drawn_seed_is_printed_and_repeats_the_bytes(root, monkeypatch, tmp_path):
    result = collect("Toy-v0", "--steps", 12)
    first = content(root / ID)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "other"))
    again = collect("Toy-v0", "--steps", 12, "--seed", result["seed"])
    assert again["seed"] == result["seed"]
    assert content(tmp_path / "other" / ID) == first


def test_case_4_the_budget_cuts_the_last_episode():
    result = collect("Toy-v0", "--steps", 12)
    assert (result["episodes"], result["steps"], result["cut"]) == (3, 12, 1)
    data = load()
    t = data.transitions
    assert data.trajectories.lengths.tolist() == [5, 5, 2]
    assert (t.terminated[-1], t.truncated[-1]) == (False, True)
    assert data.trajectories.cut.tolist() == [False, False, True]
    whole = data.trajectories.returns()[:2]
    assert result["return"]["mean"] == pytest.approx(whole.mean())
    assert result["return"]["max"] == pytest.approx(whole.max())


def test_no_whole_episode_has_no_return():
    result = collect("Toy-v0", "--steps", 3)
    assert result["return"] == {"mean": None, "min": None, "max": None}


def test_case_7_an_env_without_an_end(root):
    pbvf("collect", "toyenv:Endless-v0", "--dataset", ID, "--episodes", 2).refused(
        2, "--max-episode-steps"
    )
    assert not (root / ID).exists()
    given = collect("Endless-v0", "--episodes", 2, "--max-episode-steps", 4)
    assert (given["episodes"], given["steps"]) == (2, 8)


def test_case_7_a_step_budget_ends_it():
    result = collect("Endless-v0", "--steps", 10_050, "--warmup-episodes", 1)
    assert (result["episodes"], result["steps"], result["cut"]) == (1, 10_050, 1)


@pytest.mark.parametrize("env", ["ToyDict-v0", "ToyText-v0", "ToyImage-v0"])
def test_case_10_unsupported_observations(root, env):
    pbvf("collect", f"toyenv:{env}", "--dataset", ID, "--steps", 10).refused(
        2, "supported are 1-D Box"
    )
    assert not (root / ID).exists()


def test_case_12_wide_policies_come_back_bit_for_bit():
    collect("ToyWide-v0", "--steps", 10, "--policy", "64,64")
    data = load()
    t = data.transitions
    assert data.theta.shape[1] > 16_384
    for k in range(10):
        action, _ = data.policies.actor(int(t.policy[k])).act(t.obs[k])
        np.testing.assert_allclose(action, t.action[k], rtol=0, atol=2e-5)


def test_case_13_complete_then_conflict_then_overwrite(root):
    collect("Toy-v0", "--steps", 10, "--seed", 1)
    before = content(root / ID)
    again = pbvf("collect", *TOY, "--steps", 10, "--seed", 1).ok()
    assert "already complete" in again.err
    assert pbvf("collect", *TOY, "--steps", 10, "--json").json["already_complete"] is True
    pbvf("collect", *TOY, "--steps", 10, "--seed", 1, "--sigma", 1).refused(7, "sigma")
    more = "give another dataset id and another --seed"
    pbvf("collect", *TOY, "--steps", 20, "--seed", 1).refused(7, "steps", more)
    other = pbvf("collect", *TOY, "--steps", 20, "--seed", 2).refused(7, "seed")
    assert more not in other.error
    assert content(root / ID) == before
    assert collect("Toy-v0", "--steps", 10, "--sigma", 1, "--overwrite")["seed"] != 1
    assert content(root / ID) != before


def test_case_15_a_place_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file" / "below"))
    pbvf("collect", *TOY, "--steps", 10).refused(6, str(tmp_path / "file"))


def test_case_15_a_full_disk_ends_in_one_line_and_the_same_command_goes_on(root):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        ran = pbvf("collect", *TOY, "--steps", 300, "--seed", 0, "-q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ran.code == 6
    assert ran.error
    assert not (root / ID).exists()
    collect("Toy-v0", "--steps", 300, "--seed", 0)
    collect("Toy-v0", "--steps", 300, "--seed", 0, dataset="lab/other-v0")
    assert (
        load().trajectories.returns().tolist()
        == load("lab/other-v0").trajectories.returns().tolist()
    )


@pytest.mark.parametrize(
    ("name", "new"),
    [("Swimmer-v3", "Swimmer-v5"), ("Hopper-v3", "Hopper-v5"), ("Reacher-v2", "Reacher-v5")],
)
def test_case_23_the_papers_names(name, new):
    pbvf("collect", name, "--dataset", ID).refused(2, f"use {new}")


def test_case_29_nothing_of_this_machine_is_inside(root, tmp_path):
    collect("Toy-v0", "--steps", 10, "--env-kwargs", json.dumps({"log": str(tmp_path / "log.txt")}))
    for name, data in content(root / ID).items():
        assert str(tmp_path).encode() not in data, name
        assert str(Path.home()).encode() not in data, name
    card = (root / ID / "README.md").read_text()
    assert "--env-kwargs" in card


def test_case_30_the_card_says_that_there_is_no_licence(root):
    collect("Toy-v0", "--steps", 10)
    assert "| licence | none given |" in (root / ID / "README.md").read_text()


def test_licence_authors_and_the_command_that_repeats_it_are_on_the_card(root):
    argv = ["--steps", 10, "--perturb-every", 2, "--license", "CC-BY-4.0"]
    collect("Toy-v0", *argv, "--author", "A. One", "--author", "B. Two", "--seed", 5)
    card = (root / ID / "README.md").read_text()
    assert "| authors | A. One, B. Two |" in card
    assert "| licence | CC-BY-4.0 |" in card
    line = next(line for line in card.splitlines() if line.startswith("pbvf collect "))
    import shlex

    before = digest(root, ID)
    words = shlex.split(line)[1:]
    assert pbvf(*words, "--overwrite").code == 0
    assert digest(root, ID) == before


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_environment_that_fails_is_exit_2_with_file_and_line(workers):
    argv = ("collect", "toyenv:ToyBroken-v0", "--dataset", ID, "--workers", workers, "-q")
    ran = pbvf(*argv).refused(
        2,
        "ToyBroken-v0: the environment raised RuntimeError: the toy broke in step 2 of episode 0",
        "; --debug shows the traceback",
    )
    assert re.search(r"toyenv\.py:\d+ \(in step\);", ran.error)
    shown = pbvf(*argv, "--debug").err
    assert 'raise RuntimeError("the toy broke")' in shown
    assert shown.splitlines()[-1] == ran.error


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_observation_that_does_not_fit_its_space_exits_2(monkeypatch, workers):
    import toyenv

    observe = toyenv.ToyEnv._observe
    monkeypatch.setattr(
        toyenv.ToyEnv, "_observe", lambda self: observe(self) + (1j if self._t == 3 else 0)
    )
    pbvf("collect", *TOY, "--steps", 50, "--workers", workers, "-q").refused(
        2,
        "Toy-v0: its observation has dtype complex128, its space says float64, in step 3 of ep",
    )


def test_nan_from_the_environment_exits_8():
    pbvf("collect", "toyenv:ToyNaN-v0", "--dataset", ID, "--steps", 10).refused(
        8, "observation in step 3 of episode 0"
    )


def test_a_schedule_decides_how_the_noise_is_drawn(root):
    usual = collect("Toy-v0", "--episodes", 4, "--seed", 3)
    plain = load().theta
    mirrored = collect(
        "Toy-v0", "--episodes", 4, "--seed", 3, "--schedule", "mirrored", dataset="lab/pairs-v0"
    )
    theta = load("lab/pairs-v0").theta
    assert np.array_equal(theta[::2], plain[::2])
    middle = (theta[0] + theta[1]) / 2
    assert (theta[2] + theta[3]) / 2 == pytest.approx(middle, abs=1e-6)
    assert theta[0] != pytest.approx(middle, abs=1e-2)
    card = (root / "lab/pairs-v0" / "README.md").read_text()
    assert "--schedule mirrored" in card
    assert "--schedule" not in (root / ID / "README.md").read_text()
    # A dataset without a choice is what it was; another schedule is another dataset.
    again = pbvf("collect", *TOY, "--episodes", 4, "--seed", 3, "--schedule", "independent").ok()
    assert "already complete" in again.err
    other = pbvf("collect", *TOY, "--episodes", 4, "--seed", 3, "--schedule", "mirrored")
    assert other.code == 7
    assert "schedule" in other.err
    back = pbvf("collect", TOY[0], "--dataset", "lab/pairs-v0", "--episodes", 4, "--seed", 3)
    assert back.code == 7
    assert "schedule" in back.err
    assert usual["steps"] == mirrored["steps"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["Nothing-v0", "--dataset", ID], "Nothing"),
        (["bad name", "--dataset", ID], "malformed"),
        (["nomodule:Toy-v0", "--dataset", ID], "nomodule"),
        (["toyenv:Toy-v0"], "--dataset"),
        ([*TOY[:2], "../x-v0"], "not a dataset id"),
        ([*TOY[:2], "lab/noversion"], "not a dataset id"),
        ([*TOY, "--steps", 5, "--episodes", 5], "--episodes"),
        ([*TOY, "--sigma", "-1"], "--sigma"),
        ([*TOY, "--sigma", "nan"], "--sigma"),
        ([*TOY, "--perturb-every", "0"], "--perturb-every"),
        ([*TOY, "--perturb-every", "often"], "--perturb-every"),
        ([*TOY, "--policy", "wide"], "--policy"),
        ([*TOY, "--license", "MIT\nyours"], "--license"),
        ([*TOY, "--env-kwargs", "[1]"], "--env-kwargs"),
        ([*TOY, "--env-kwargs", '{"unknown": 1}'], "--env-kwargs"),
        ([*TOY, "--env-kwargs", '{"render_mode": "rgb_array"}'], "--env-kwargs: render_mode"),
        ([*TOY, "--seed", "-1"], "--seed"),
        ([*TOY, "--seed", "4294967296"], "--seed"),
        ([*TOY, "--base", "a", "--policies", "b"], "--base"),
        ([*TOY, "--policies", "p", "--perturb-every", "episode"], "--perturb-every"),
        ([*TOY, "--policies", "p", "--sigma", "1"], "--sigma"),
        ([*TOY, "--policies", "p", "--schedule", "mirrored"], "--schedule"),
        ([*TOY, "--schedule", "odd"], "independent, mirrored"),
        ([*TOY, "--policies", "p", "--no-normalize"], "--normalize"),
        ([*TOY, "--base", "p", "--normalize"], "--normalize"),
        ([*TOY, "--base", "p", "--policy", "linear"], "--policy"),
        ([*TOY, "--base", "p", "--stochastic"], "--stochastic"),
        ([*TOY, "--base", "p", "--warmup-episodes", "3"], "--warmup-episodes"),
        ([*TOY, "--base", "missing.safetensors"], "missing.safetensors"),
        ([*TOY, "--no-normalize", "--warmup-episodes", "7"], "--warmup-episodes"),
    ],
)
def test_wrong_usage_exits_2_before_anything_is_written(root, argv, words):
    pbvf("collect", *argv).refused(2, words)
    assert not root.exists() or not any(root.rglob("*.hdf5"))


def test_given_policies_are_rolled_out_in_turn_and_one_can_be_perturbed(tmp_path):
    from pbvf_offline.policies.files import PoliciesFile
    from pbvf_offline.policies.policy import Policies

    collect("Toy-v0", "--episodes", 3, "--seed", 1, dataset="lab/source-v0")
    source = load("lab/source-v0").policies
    several, one = tmp_path / "several.safetensors", tmp_path / "one.safetensors"
    PoliciesFile(source).save(several)
    PoliciesFile(source.select([1])).save(one)
    result = collect("Toy-v0", "--episodes", 5, "--policies", several)
    data = load()
    # A name that is no text in this locale enters no file.
    strange = one.rename(tmp_path / "one\udce9")
    collect("Toy-v0", "--episodes", 1, "--policies", strange, dataset="lab/strange-v0")
    command = load("lab/strange-v0").manifest["provenance"]["command"]
    assert "--policies 'one\ufffd'" in command
    one = strange.rename(one)
    assert isinstance(data.policies, Policies)
    assert result["policies"] == 3
    assert result["warmup_steps"] == 0
    assert data.transitions.policy[::5].tolist() == [0, 1, 2, 0, 1]
    np.testing.assert_array_equal(data.theta, source.theta)
    collect("Toy-v0", "--episodes", 2, "--base", one, "--sigma", 0.1, dataset="lab/near-v0")
    near = load("lab/near-v0")
    assert 0 < np.abs(near.theta - source.theta[1]).max() < 1
    np.testing.assert_array_equal(near.obs_mean, source.obs_mean[[1, 1]])
    pbvf("collect", *TOY[:2], "lab/x-v0", "--base", several).refused(2, "3 policies")
    wrong = pbvf("collect", "LQR-v0", "--dataset", "lab/x-v0", "--base", one, "--episodes", 1)
    assert wrong.code == 5

"""``pbvf train-online``: what it prints, how it goes on, what it refuses."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from cli_tools import content, pbvf, rows, start, wait_for, wait_for_group
from pbvf_cli.shared.terminal import progress
from pbvf_cli.shared.terminal.output import number
from pbvf_datasets import load_dataset
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.io.lock import locked
from pbvf_offline.policies.files import load_policies
from pbvf_offline.rollout.workers import ordered_map
from pbvf_runs import train as runs
from pbvf_runs.loggers import EVENTS_FOLDER, METRICS_FILE

QUICK = ("--evaluations", 4, "--evaluation-episodes", 2, "--hidden", 8)


def train(env, run, *argv, critic="pssvf", quiet=True):
    return pbvf(
        "train-online", env, "--critic", critic, "--run", run, *QUICK, *argv, *["-q"] * quiet
    )


def trained(env, run, *argv, critic="pssvf"):
    ran = train(env, run, "--json", *argv, critic=critic).ok()
    return ran.json


def kept(run):
    """Return what a run must hold in the same bytes however it got there."""
    return {
        name: data
        for name, data in content(run).items()
        if not {METRICS_FILE, EVENTS_FOLDER} & set(Path(name).parts)
    }


def scalars(run):
    """Return ``{(name, step): value}`` of the run's TensorBoard files."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in sorted((run / EVENTS_FOLDER).iterdir()):
        data = path.read_bytes()
        while data:  # records: length, its checksum, content, its checksum
            (size,) = struct.unpack("Q", data[:8])
            event = Event.FromString(data[12 : 12 + size])
            found |= {(v.tag, event.step): v.simple_value for v in event.summary.value}
            data = data[size + 16 :]
    return found


def events(run, kind):
    lines = [json.loads(line) for line in (run / METRICS_FILE).read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


# ------------------------------------------------------------------------ what it prints


def test_one_run_in_json(tmp_path):
    run = tmp_path / "run"
    out = trained("LQR-v0", run, "--steps", 220, "--seed", 3)
    assert out["run"] == str(run)
    assert (out["steps"], out["episodes"], out["seed"]) == (220, 4, 3)
    assert [e["step"] for e in out["evaluations"]] == [55, 110, 165, 220]
    means = [np.mean(e["returns"]) for e in out["evaluations"]]
    assert out["average_return"] == pytest.approx(np.mean(means))
    assert out["last20_return"] == pytest.approx(means[-1])
    assert [e["returns"] for e in events(run, "evaluation")] == [
        e["returns"] for e in out["evaluations"]
    ]
    shown = scalars(run)
    for step, mean in zip((55, 110, 165, 220), means, strict=True):
        assert shown["evaluation/mean_return", step] == pytest.approx(mean, rel=1e-6)
    got = [e["return"] for e in events(run, "episode")]
    assert len(got) == 4
    assert out["perturbed_return"] == pytest.approx(np.mean(got))
    assert load_critic(out["critic"]).critic.config.gamma == out["settings"]["gamma"] == 1.0
    assert len(load_policies(out["policy"]).policies) == 1
    assert out["preset"] == "the paper's LQR"
    assert out["seconds"] > 0
    assert (out["kind"], out["architecture"], out["stochastic"]) == ("pssvf", "linear", False)
    assert out["snapshots"] == []
    assert out["dataset"] is None
    assert out["already_complete"] is False


def test_returns_without_survival_are_null_where_there_is_no_bonus(tmp_path):
    # Sums of the LQR's rewards differ in their last bits; that is no bonus.
    argv = ["--steps", 500, "--seed", 0, "--hidden", "64,64", "--evaluations", 100]
    out = trained("LQR-v0", tmp_path / "lqr", *argv)
    assert {e["returns_without_survival"] for e in out["evaluations"]} == {None}
    assert out["average_return_without_survival"] is None
    assert out["last20_return_without_survival"] is None
    # All that an inverted pendulum is paid is the bonus.
    out = trained("InvertedPendulum-v5", tmp_path / "pendulum", "--steps", 40, "--seed", 0)
    assert out["average_return"] > 1
    assert out["average_return_without_survival"] == out["last20_return_without_survival"] == 0.0


def test_a_run_without_evaluations_has_no_average(tmp_path):
    out = trained("toyenv:Toy-v0", tmp_path / "run", "--steps", 3, "--evaluations", 0, "--seed", 0)
    assert out["evaluations"] == []
    assert out["average_return"] is None
    assert out["last20_return"] is None
    assert out["perturbed_return"] is None  # no whole episode either
    ran = train("toyenv:Toy-v0", tmp_path / "run", "--steps", 3, "--evaluations", 0).ok()
    assert "average return" in ran.out


def test_people_see_the_settings_with_their_sources_and_a_table(tmp_path):
    argv = ["--steps", 100, "--seed", 0, "--evaluations", 10]
    ran = train("CartPole-v1", tmp_path / "run", *argv, quiet=False).ok()
    rows = [line.split() for line in ran.err.splitlines()]
    assert ["sigma", "1.0", "paper-avg", "for", "CartPole"] in rows
    assert ["steps", "100", "given"] in rows
    assert ["update-every", "episode", "paper", "default", "for", "pssvf"] in rows
    assert ["hidden", "8", "given"] in rows
    table = [line.split() for line in ran.out.splitlines()]
    assert ["step", "mean", "return", "min", "max"] in table
    steps = [row[0] for row in table if len(row) == 4 and row[0].isdigit()]
    assert steps == ["20", "40", "60", "80", "100"]
    assert re.search(r"evaluations +10, of 2 episodes each; .* all, the table has 5\n", ran.out)
    few = train("CartPole-v1", tmp_path / "few", "--steps", 20, "--seed", 0, "--evaluations", 2)
    assert re.search(r"evaluations +2, of 2 episodes each\n", few.ok().out)


def test_the_preset_decides_what_is_not_given(tmp_path):
    # On Acrobot the best for the average and for the last return differ.
    for preset, rate in ((None, 1e-2), ("paper-avg", 1e-2), ("paper-last", 1e-3)):
        argv = [] if preset is None else ["--preset", preset]
        out = trained("Acrobot-v1", tmp_path / str(preset), *argv, "--steps", 1, "--seed", 0)
        assert out["preset"] == f"{preset or 'paper-avg'} for Acrobot"
        assert out["settings"]["lr_policy"] == out["settings"]["lr_critic"] == rate
    out = trained("Acrobot-v1", tmp_path / "own", "--policy", 16, "--steps", 1, "--seed", 0)
    assert out["preset"].startswith("default")


def test_every_setting_can_be_given(tmp_path):
    wanted = {
        "gamma": 0.5,
        "sigma": 0.25,
        "hidden": [8],
        "lr_policy": 0.002,
        "lr_critic": 0.003,
        "batch_size": 7,
        "actor_states": 6,
        "update_every": 5,
        "critic_updates": 3,
        "actor_updates": 2,
        "buffer_size": 40,
        "reward": "without-survival",
        "normalization": "none",
        "biased": True,
    }
    argv = ["--biased", "--stochastic", "--policy", "4", "--squash", "none"]
    for name, value in wanted.items():
        if name not in ("biased", "hidden"):
            argv += [f"--{name.replace('_', '-')}", value]
    run = tmp_path / "run"
    out = trained("toyenv:ToySurvive-v0", run, *argv, "--steps", 30, "--seed", 1, critic="pavf")
    assert {name: out["settings"][name] for name in wanted} == wanted
    spec = load_policies(out["policy"]).policies.spec
    assert (spec.hidden, spec.stochastic, spec.squash) == ((4,), True, "none")
    argv[argv.index("--update-every") + 1] = "episode"
    train("toyenv:ToySurvive-v0", run, *argv, "--steps", 30, "--seed", 1, critic="pavf").refused(
        7, "update-every is 5 there and not given here"
    )


def test_environment_arguments_reach_the_environment(tmp_path):
    argv = ["--env-kwargs", '{"length": null}', "--max-episode-steps", 4, "--seed", 0]
    out = trained("toyenv:Toy-v0", tmp_path / "run", *argv, "--steps", 12)
    assert out["episodes"] == 3
    assert out["environment"] == "toyenv:Toy-v0"


def test_progress_counts_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    ran = train("LQR-v0", tmp_path / "run", "--steps", 100, "--seed", 0, quiet=False)
    assert "training: 100/100 steps" in ran.err
    argv = ["--steps", 100, "--seeds", "4,5"]
    ran = train("LQR-v0", tmp_path / "runs", *argv, quiet=False)
    assert "training: 150/200 steps" in ran.err
    assert "seed 5, last evaluation -" in ran.err.splitlines()[-1]


def test_help_has_examples_and_panels():
    ran = pbvf("train-online", "--help").ok()
    assert ran.out.index("--lr-critic") < ran.out.index("Seldom needed")
    assert ran.out.index("Seldom needed") < ran.out.index("--buffer-size")
    assert "pbvf train-online " in ran.out.split("Examples:")[1]


@pytest.mark.parametrize(("env", "squashes"), [("ToyDiscrete-v0", False), ("Toy-v0", True)])
def test_a_setting_of_no_effect_is_not_shown(env, squashes, tmp_path):
    argv = (f"toyenv:{env}", tmp_path / "run", "--steps", 20, "--seed", 0)
    ran = train(*argv, "--export-dataset", "lab/run-v0", quiet=False).ok()
    info = pbvf("info", "lab/run-v0", "-q").ok().out
    assert re.search(r"^settings +activation relu, .*, kind pssvf, ", info, flags=re.M)
    assert "{" not in info  # which would be JSON
    shown = info.partition(" parameters")[2].splitlines()[0]
    assert ("squash" in rows(ran.err), "squash" in shown) == (squashes, squashes)


# --------------------------------------------------------------------------- going on


def test_an_extension_says_which_measurements_it_leaves_out(tmp_path):
    argv = ("LQR-v0", tmp_path / "run", "--evaluations", 2, "--seed", 0)
    assert "left out" not in train(*argv, "--steps", 100, quiet=False).ok().err
    ran = train(*argv, "--steps", 200, quiet=False).ok()
    assert (
        "note: what was measured at step 50 is left out: --evaluations 2 of 200 steps are at others"
    ) in ran.err
    ran = train(*argv, "--steps", 600, quiet=False).ok()
    assert "note: what was measured at step 100, 200 is left out: --evaluations 2 of 600" in ran.err


def test_the_same_command_finds_the_run_complete_with_its_stored_seed(tmp_path):
    run = tmp_path / "run"
    first = trained("LQR-v0", run, "--steps", 100)
    before = content(run)
    again = trained("LQR-v0", run, "--steps", 100)
    assert content(run) == before
    assert again["already_complete"]
    assert again["seconds"] == 0
    different = ("seconds", "already_complete")
    assert {k: v for k, v in again.items() if k not in different} == {
        k: v for k, v in first.items() if k not in different
    }
    ran = train("LQR-v0", run, "--steps", 100, quiet=False)
    assert f"already complete: {run}" in ran.err
    anew = trained("LQR-v0", run, "--steps", 100, "--overwrite")
    assert anew["seed"] != first["seed"]
    assert not anew["already_complete"]


def test_snapshots_are_listed(tmp_path):
    run = tmp_path / "run"
    out = trained("LQR-v0", run, "--steps", 200, "--snapshots", "100,170", "--seed", 0)
    assert out["snapshots"] == [
        {
            "step": step,
            "critic": str(run / f"critic-0000{step}.safetensors"),
            "policy": str(run / f"policy-0000{step}.safetensors"),
        }
        for step in (100, 170)
    ]
    assert all(
        Path(part[name]).exists() for part in out["snapshots"] for name in ("critic", "policy")
    )


SLOW = ("train-online", "toyenv:ToySlow-v0", "--critic", "psvf", "--hidden", "8")
SLOW += ("--update-every", "4", "--evaluations", "3", "--evaluation-episodes", "1")
SLOW += ("--snapshots", "20", "--steps", "60", "-q")
# A checkpoint every 20 steps, where a run of usual length has one every 20,000.
OFTEN = """
import sys
import pbvf_runs.train
pbvf_runs.train.SHARD_STEPS = 20
from pbvf_cli.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def slow(folder):
    """Return the arguments for a log in a folder, which is part of the settings."""
    return [*SLOW, "--env-kwargs", json.dumps({"log": str(folder / "log.txt")})]


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(runs, "SHARD_STEPS", 20)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the folder of the log, and what a run of ``SLOW`` leaves when left alone."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "SHARD_STEPS", 20)
        ran = pbvf(*slow(folder), "--seed", 0, "--run", folder / "run")
    assert ran.code == 0, ran.err
    files = kept(folder / "run")
    assert sum(name.startswith("episodes/shard-") for name in files) == 3
    return folder, files


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
@pytest.mark.slow
def test_stopped_in_the_middle_the_same_command_continues(tmp_path, undisturbed, number, code):
    folder, expected = undisturbed
    log, run = folder / "log.txt", tmp_path / "run"
    argv = [*slow(folder), "--run", run]
    log.unlink()
    process = start(*argv, "--seed", 0, code=OFTEN)
    wait_for(log, 38, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert out == ""
    if code > 0:
        assert len(err.splitlines()) == 1
        assert "continues" in err
    assert (run / "checkpoint.safetensors").exists()
    assert not (run / "result.json").exists()
    before = len(log.read_text().splitlines())
    ran = pbvf(*argv)  # the seed is that of the folder
    assert ran.code == 0, ran.err
    assert kept(run) == expected
    again = len(log.read_text().splitlines()) - before
    assert again < 60  # what the last checkpoint holds was not run again


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    run = tmp_path / "run"
    trained("LQR-v0", run, "--steps", 200, "--seed", 0)
    expected = kept(run)
    config = (run / "config.json").read_bytes()
    shutil.rmtree(run)
    (run / "episodes").mkdir(parents=True)
    # A kill between two writes leaves temporary names; one before the first, no configuration.
    (run / ".tmp-checkpoint.safetensors").write_bytes(b"half")
    (run / ".metrics.jsonl.tmp").write_bytes(b"half")
    trained("LQR-v0", run, "--steps", 200, "--seed", 0)
    assert kept(run) == expected
    assert (run / "config.json").read_bytes() == config
    (run / ".tmp-pending.safetensors").write_bytes(b"half")
    trained("LQR-v0", run, "--steps", 200, "--seed", 0, "--overwrite")
    assert kept(run) == expected


def test_two_at_once_conflict(tmp_path):
    with locked(tmp_path / "run"):
        ran = train("LQR-v0", tmp_path / "run", "--steps", 50)
    assert ran.code == 7
    assert "another process" in ran.error


# ------------------------------------------------------------------------------ seeds


def test_seeds_are_runs_of_their_own_and_averaged(tmp_path):
    run = tmp_path / "runs"
    out = trained("InvertedPendulum-v5", run, "--steps", 60, "--seeds", "0,2,5")
    single = trained("InvertedPendulum-v5", tmp_path / "two", "--steps", 60, "--seed", 2)
    assert kept(run / "seed-2") == kept(tmp_path / "two")
    assert out["seeds"] == [part["seed"] for part in out["runs"]] == [0, 2, 5]
    assert set(out["runs"][1]) == set(single)
    assert out["runs"][1]["evaluations"] == single["evaluations"]
    for name in ("average_return", "last20_return", "perturbed_return"):
        values = [part[name] for part in out["runs"]]
        assert out[name] == pytest.approx(np.mean(values))
        interval = out[f"{name}_interval"]
        assert interval["std"] == pytest.approx(np.std(values, ddof=1))
        assert interval["values"] == values
        assert interval["low"] is interval["high"] is None  # three values are no interval
    assert out["average_return_without_survival"] == 0.0
    assert out["critic"] == [str(run / f"seed-{k}" / "critic.safetensors") for k in (0, 2, 5)]
    assert out["policy"] == [str(run / f"seed-{k}" / "policy.safetensors") for k in (0, 2, 5)]
    assert out["steps"] == 60
    assert out["episodes"] == [part["episodes"] for part in out["runs"]]
    assert out["evaluations"][1] == {
        "step": 30,
        "returns": [np.mean(part["evaluations"][1]["returns"]) for part in out["runs"]],
    }
    again = trained("InvertedPendulum-v5", run, "--steps", 60, "--seeds", "0,2,5")
    assert again["already_complete"]
    ran = train("InvertedPendulum-v5", run, "--steps", 60, "--seeds", "0,2,5")
    assert "95 %" not in ran.out
    first = out["runs"][0]["average_return"]
    assert f"(of {number(first)}; " in ran.out


def test_one_seed_has_no_interval(tmp_path):
    out = trained("LQR-v0", tmp_path / "runs", "--steps", 100, "--seeds", "7")
    assert out["average_return_interval"] == {
        "values": [out["average_return"]],
        "mean": out["average_return"],
        "std": None,
        "low": None,
        "high": None,
    }
    assert out["average_return_without_survival_interval"] is None


@pytest.mark.usefixtures("forking")
def test_workers_change_no_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    for workers in (1, 3):
        argv = ["--steps", 150, "--seeds", "0-2", "--workers", workers]
        ran = train("LQR-v0", tmp_path / str(workers), *argv, quiet=False).ok()
    assert "training: 3/3 runs" in ran.err
    assert kept(tmp_path / "1") == kept(tmp_path / "3")


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_seed_loses_no_other(tmp_path, workers):
    run = tmp_path / "runs"
    trained("LQR-v0", run / "seed-1", "--steps", 100, "--seed", 1, "--sigma", 0.1)
    argv = ["--steps", 100, "--seeds", "0-2", "--workers", workers]
    train("LQR-v0", run, *argv).refused(
        7,
        "seed 1: it exists with other settings: sigma is 0.1 there and 0.5 here",
        "1 of 3 seeds failed",
    )
    for seed in (0, 2):
        assert json.loads((run / f"seed-{seed}/result.json").read_text())["steps"] == 100
    assert content(run / "seed-1")["config.json"].count(b'"sigma": 0.1') == 1


class Slow:
    """A job whose items take so long that no worker should hold two."""

    def start(self):
        return self.run

    def run(self, item):
        time.sleep(0.3)
        return os.getpid()


@pytest.mark.usefixtures("forking")
def test_long_jobs_are_spread_over_all_workers():
    assert len(set(ordered_map(Slow(), range(4), 4, queued=1))) == 4


@pytest.mark.usefixtures("often")
@pytest.mark.slow
def test_interrupting_workers_leaves_no_process_and_the_command_continues(tmp_path, undisturbed):
    folder, expected = undisturbed
    log, run = folder / "log.txt", tmp_path / "runs"
    log.unlink(missing_ok=True)
    argv = [*slow(folder), "--run", run, "--seeds", "0-1"]
    process = start(*argv, "--workers", 2, start_new_session=True)
    wait_for(log, 10, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert len(err.splitlines()) == 1
    wait_for_group(process)
    pbvf(*argv).ok()
    assert kept(run / "seed-0") == expected


# ---------------------------------------------------------------- from a given policy


@pytest.fixture
def base(here):
    """A policies file of one policy, which was made with another time limit."""
    argv = ("--dataset", "lab/base-v0", "--episodes", 3, "--seed", 0, "--max-episode-steps", 30)
    pbvf("collect", "toyenv:ToyDrift-v0", *argv, "-q").ok()
    best = ("--index", 0, "--out", "base.safetensors", "-q")
    pbvf("policies", "export", "lab/base-v0", *best).ok()
    return here / "base.safetensors"


def test_a_run_from_a_policy_of_a_dataset(base, here, root):
    ran = train("toyenv:ToyDrift-v0", "run", "--base", base, "--steps", 120, "--seed", 0,
                "--export-dataset", "lab/b-v0", "--json", quiet=False).ok()  # fmt: skip
    assert ran.json["max_episode_steps"] == 30  # as the file has it
    assert [e["step"] for e in ran.json["evaluations"]] == [0, 30, 60, 90, 120]
    assert "the base's normaliser stays" in ran.err
    given = load_policies(base).policies
    np.testing.assert_array_equal(load_policies(here / "run/policy.safetensors").policies.obs_std,
                                  given.obs_std)  # fmt: skip
    sha256 = pbvf("info", base, "--json").json["sha256"]
    assert pbvf("info", "run", "--json").json["base"] == sha256
    assert sha256 in pbvf("info", "run").out
    assert pbvf("verify", "run", "--json", "-q").ok().json["status"] == "intact"
    card = (root / "lab/b-v0/README.md").read_text()
    command = next(line for line in card.splitlines() if "pbvf train-online" in line)
    words = shlex.split(command.strip("` "))
    assert words[words.index("--base") + 1] == base.name
    words[words.index("--run") + 1] = "again"
    pbvf(*words[1:], "--overwrite", "-q").ok()
    assert kept(here / "again") == kept(here / "run")


def test_seeds_from_one_policy_in_several_processes(base, here):
    argv = ("--base", base, "--steps", 60, "--seeds", "0-1")
    one = trained("toyenv:ToyDrift-v0", "one", *argv)
    trained("toyenv:ToyDrift-v0", "two", *argv, "--workers", 2)
    assert kept(here / "one") == kept(here / "two")
    assert one["evaluations"][0]["step"] == 0


def test_what_does_not_go_with_a_base(base, here):
    run = ("run", "--steps", 60, "--base", base)
    for code, env, argv, words in (
        (2, "toyenv:ToyDrift-v0", ("--policy", "4"), "--policy: does not go with --base"),
        (2, "toyenv:ToyDrift-v0", ("--normalization", "episode"), "keeps the normaliser"),
    ):
        train(env, *run, *argv).refused(code, words)
    ran = pbvf("train-online", "LQR-v0", "--critic", "psvf", "--run", *run, "-q", warns=True)
    assert ran.code == 5
    assert "error: LQR-v0: the policies observe" in ran.err
    pbvf("policies", "export", "lab/base-v0", "--out", "all", "-q").ok()
    train("toyenv:ToyDrift-v0", *run[:-1], "all").refused(2, "where one is needed")
    assert not (here / "run").exists()
    trained("toyenv:ToyDrift-v0", *run, "--seed", 0)
    pbvf("policies", "export", "lab/base-v0", "--index", 1, "--out", "other", "-q").ok()
    train("toyenv:ToyDrift-v0", *run[:-1], "other").refused(7, "base is ")


# ---------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("code", "env", "critic", "argv", "words"),
    [
        (2, "Nope-v0", "pssvf", (), "Nope-v0"),
        (2, "Swimmer-v3", "pssvf", (), "use Swimmer-v5"),
        (2, "toyenv:Endless-v0", "pssvf", (), "--max-episode-steps"),
        (2, "toyenv:ToyDict-v0", "pssvf", (), "observation space"),
        (2, "CartPole-v1", "psvf", ("--biased",), "--biased: the psvf"),
        (2, "LQR-v0", "pssvf", ("--preset", "paper-avg"), "--preset: the paper has no"),
        (2, "CartPole-v1", "pssvf", ("--preset", "paper-avg", "--policy", "16"), "linear, 32"),
        (5, "CartPole-v1", "pavf", (), "continuous actions"),
        (2, "CartPole-v1", "pssvf", ("--reward", "without-survival"), "--reward: the environment"),
        (2, "toyenv:ToyBroken-v0", "pssvf", (), "the toy broke"),
        (2, "LQR-v0", "pssvf", ("--seed", 0, "--seeds", "0-1"), "--seed or --seeds"),
        (2, "LQR-v0", "pssvf", ("--seeds", "2-1"), "--seeds"),
        (2, "LQR-v0", "pssvf", ("--seeds", "4294967296"), "out of range"),
        (2, "LQR-v0", "pssvf", ("--seed", -1), "--seed: -1 is not a whole number from 0"),
        (2, "LQR-v0", "pssvf", ("--update-every", "0"), "--update-every"),
        (2, "LQR-v0", "pssvf", ("--gamma", 1.5), "--gamma"),
        (2, "LQR-v0", "pssvf", ("--sigma", -1), "--sigma"),
        (2, "LQR-v0", "pssvf", ("--lr-policy", 0), "--lr-policy"),
        (2, "LQR-v0", "pssvf", ("--lr-critic", "nan"), "--lr-critic"),
        (2, "LQR-v0", "pssvf", ("--snapshots", "20,500"), "--snapshots"),
        (2, "LQR-v0", "pssvf", ("--snapshots", "x"), "--snapshots"),
        (2, "LQR-v0", "pssvf", ("--policy", "wide"), "--policy"),
        (2, "LQR-v0", "pssvf", ("--env-kwargs", "{"), "--env-kwargs"),
        (2, "LQR-v0", "pssvf", ("--license", "MIT"), "--export-dataset"),
        (2, "LQR-v0", "pssvf", ("--author", "A"), "--export-dataset"),
        (2, "LQR-v0", "pssvf", ("--export-dataset", "lab/b-v0", "--license", ""), "--license: ''"),
        (2, "LQR-v0", "pssvf", ("--hidden", "linear"), "--hidden: 'linear' is not 1 to 16"),
        (2, "LQR-v0", "pssvf", ("--export-dataset", "../x-v0"), "../x-v0"),
        (2, "LQR-v0", "pssvf", ("--export-dataset", "lab/b-v0", "--seeds", "0-1"), "seed-N"),
        (
            2,
            "LQR-v0",
            "psvf",
            ("--export-dataset", "lab/b-v0", "--normalization", "per-step"),
            "--normalization episode",
        ),
        (2, "LQR-v0", "pssvf", ("--seeds", "0-99999999999"), "--seeds"),
        (8, "toyenv:ToyNaN-v0", "pssvf", (), "NaN"),
        (8, "LQR-v0", "pssvf", ("--sigma", "1e300"), "a perturbed parameter is not finite"),
        (8, "toyenv:ToyHuge-v0", "pssvf", (), "beyond single precision"),
        (8, "toyenv:ToyNaNSurvive-v0", "pssvf", (), "reward_survive in step"),
    ],
)
def test_refusals_are_one_line(tmp_path, root, code, env, critic, argv, words):
    ran = train(env, tmp_path / "run", "--steps", 100, *argv, critic=critic)
    assert ran.code == code, ran.err
    assert words in ran.error
    assert not root.exists()
    if code != 8:  # the folder is free for the right words
        assert not (tmp_path / "run").exists()


def test_wrong_words_do_not_cost_the_run_that_is_there(tmp_path):
    run = tmp_path / "run"
    trained("CartPole-v1", run, "--steps", 50, "--seed", 0)
    before = content(run)
    ran = train("CartPole-v1", run, "--steps", 50, "--overwrite", critic="pavf")
    assert ran.code == 5
    assert content(run) == before


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--sigma", 0.125), "sigma is 0.5 there and 0.125 here; choose another --run, or start"),
        (("--precision", "bfloat16"), 'precision is "float32" there and "bfloat16" here'),
        (("--steps", 50), "has 100 steps, 50 were asked for"),
        (("--seeds", "0-1"), "single run"),
    ],
)
def test_another_run_in_the_same_folder_is_a_conflict(tmp_path, argv, words):
    run = tmp_path / "run"
    trained("LQR-v0", run, "--steps", 100, "--seed", 0)
    before = content(run)
    train("LQR-v0", run, "--steps", 100, *argv).refused(7, words)
    assert content(run) == before


def test_the_run_may_be_the_current_folder_but_no_file(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    out = trained("LQR-v0", ".", "--steps", 50, "--seed", 0)
    assert out["critic"] == str(tmp_path / "here" / "critic.safetensors")
    (tmp_path / "file").write_text("")
    for name, words in ((tmp_path / "file", "is a file"), ("/", "no folder above")):
        train("LQR-v0", name, "--steps", 50).refused(2, words)


def test_divergence_keeps_the_last_checkpoint(tmp_path):
    run = tmp_path / "run"
    argv = ["--lr-critic", 1e30, "--update-every", 120, "--seed", 0]
    trained("LQR-v0", run, "--steps", 100, *argv, critic="psvf")
    before = (run / "checkpoint.safetensors").read_bytes()
    ran = train("LQR-v0", run, "--steps", 200, *argv, critic="psvf")
    ran.refused(8, f"{run}: the ", "--lr-critic")
    assert (run / "checkpoint.safetensors").read_bytes() == before
    # Up to there the run is as good as it was.
    assert trained("LQR-v0", run, "--steps", 100, *argv, critic="psvf")["steps"] == 100


# --------------------------------------------------------------------- what comes of it


def test_the_training_episodes_become_a_dataset(tmp_path, root):
    run = tmp_path / "run"
    argv = ["--steps", 220, "--seed", 0, "--export-dataset", "lab/online-v0"]
    argv += ["--license", "CC0-1.0", "--author", "A. Nonymous"]
    out = trained("LQR-v0", run, *argv, critic="psvf")
    assert out["dataset"] == str(root / "lab/online-v0")
    assert len(load_dataset("lab/online-v0").transitions) == 220
    card = (root / "lab/online-v0/README.md").read_text()
    assert "pbvf train-online LQR-v0 --critic psvf" in card
    assert "CC0-1.0" in card
    assert str(tmp_path) not in card
    before = content(root / "lab/online-v0")
    assert trained("LQR-v0", run, *argv, critic="psvf")["already_complete"]
    assert content(root / "lab/online-v0") == before
    # The command of the card makes the same dataset, from another folder.
    other = trained("LQR-v0", tmp_path / "other", *argv, "--overwrite", critic="psvf")
    assert content(root / "lab/online-v0") == before
    assert other["perturbed_return"] == out["perturbed_return"]
    train("LQR-v0", run, *argv[:-4], "--license", "MIT", critic="psvf").refused(7, "lab/online-v0")


def test_the_command_on_the_card_is_whole(tmp_path, root):
    argv = ["--steps", 12, "--seed", 0, "--stochastic", "--biased", "--export-dataset", "lab/b-v0"]
    argv += ["--env-kwargs", '{"obs_dim": 4}', "--max-episode-steps", 3, "--policy", 4]
    trained("toyenv:Toy-v0", tmp_path / "run", *argv, critic="pavf")
    before = content(root / "lab/b-v0")
    manifest = json.loads(before["manifest.json"])
    card = before["README.md"].decode()
    line = next(line for line in card.splitlines() if "pbvf train-online" in line)
    words = shlex.split(line.strip("` "))
    assert words[:2] == ["pbvf", "train-online"]
    words[words.index("--run") + 1] = str(tmp_path / "again")
    pbvf(*words[1:], "--overwrite", "-q").ok()
    assert content(root / "lab/b-v0") == before
    assert manifest["digest"] in (root / "lab/b-v0/manifest.json").read_text()


def test_a_run_of_several_seeds_can_be_exported_one_by_one(tmp_path, root):
    run = tmp_path / "runs"
    trained("LQR-v0", run, "--steps", 100, "--seeds", "0-1")
    argv = ["--steps", 100, "--seed", 1, "--export-dataset", "lab/one-v0"]
    out = trained("LQR-v0", run / "seed-1", *argv)
    assert out["already_complete"]
    assert load_dataset("lab/one-v0").trajectories.cut.tolist() == [False, False]


@pytest.mark.parametrize("critic", ["pssvf", "psvf", "pavf"])
def test_critic_and_policy_serve_the_other_commands(tmp_path, root, critic):
    argv = ["--steps", 90, "--seed", 0, "--snapshots", 60]
    out = trained("InvertedPendulum-v5", tmp_path / "run", *argv, critic=critic)
    for file in (out["critic"], out["snapshots"][0]["critic"]):
        ran = pbvf(
            "synthesize", file, "--from-scratch", 2, "--steps", 5, "--restarts", 1, "--evaluate",
            "--episodes", 1, "--out", tmp_path / "p.safetensors", "--overwrite", "--json", "-q",
            "--seed", 0,
        )  # fmt: skip
        assert ran.code == 0, ran.err
        assert len(ran.json["returns"]) == 2
    for file in (out["policy"], out["snapshots"][0]["policy"]):
        ran = pbvf(
            "evaluate", file, "--critic", out["critic"], "--episodes", 2, "--seed", 0, "--json",
            "-q",
        )  # fmt: skip
        assert ran.code == 0, ran.err
        assert np.shape(ran.json["returns"]) == (1, 2)
        assert np.isfinite(ran.json["predicted"]).all()


# ------------------------------------------------------------------- nothing is lost


def test_a_conflict_of_the_export_is_found_before_training(tmp_path):
    run, argv = tmp_path / "run", ["--seed", 0, "--export-dataset", "lab/run-v0"]
    trained("LQR-v0", run, "--steps", 100, *argv)
    before = kept(run)
    for more in (["--steps", 150], ["--steps", 100, "--license", "MIT"]):
        train("LQR-v0", run, *argv, *more).refused(7, "--export-dataset")
        assert kept(run) == before
    assert trained("LQR-v0", run, "--steps", 100, *argv)["already_complete"] is True

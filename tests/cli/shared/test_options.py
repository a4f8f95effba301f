"""Reading option texts, and where values come from."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer

from cli_tools import pbvf, run_process
from make_episodes import BOX_SPEC
from pbvf_cli.app import COMMANDS
from pbvf_cli.shared import devices, values
from pbvf_cli.shared.command import Given, command
from pbvf_cli.shared.options import DeviceName
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import UsageError
from pbvf_offline.fit.rounds import round_defaults
from pbvf_offline.fit.settings import FitSettings, fit_defaults
from pbvf_offline.online.settings import OnlineSettings, online_defaults
from pbvf_offline.presets.offline import policy_defaults
from pbvf_offline.records import Defaults, Field, Record, fields, setting
from pbvf_offline.setting_types import Seed
from pbvf_runs.settings import CollectSettings, collect_defaults


def test_numbers_are_sorted_and_unique():
    assert values.parse_numbers("1000,500,1000", "--snapshots") == (500, 1000)
    assert values.parse_numbers(None, "--snapshots") is None


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "-5,10", "1.5"])
def test_other_lists_are_refused(text):
    with pytest.raises(UsageError, match=r"--snapshots.*500,1000"):
        values.parse_numbers(text, "--snapshots")


def test_numbers_of_absurd_size_are_refused():
    with pytest.raises(UsageError, match="--snapshots"):
        values.parse_numbers(f"5,{2**53}", "--snapshots")


@pytest.mark.parametrize("text", ["", "  ", "MIT\nevil", "a\x1b[2J", "x\udcffy", "x" * 201])
def test_a_licence_is_one_short_printable_line(text):
    with pytest.raises(UsageError, match=r"^--license: .*CC-BY-4\.0"):
        values.licence(text, "--license")
    assert values.licence("LicenseRef-ours é", "--license") == "LicenseRef-ours é"


@pytest.mark.parametrize("name", ["", " ", "A\nB", "Ren\udce9", "x" * 201])
def test_an_author_is_one_short_printable_line(here, name):
    argv = ("collect", "LQR-v0", "--dataset", "lab/x-v0", "--episodes", 1)
    pbvf(*argv, "--author", "René", "--author", name).refused(2, "--author: ", "is not a name")
    assert not (here / "datasets").exists()


def test_an_environment_is_shown_with_its_arguments():
    form = SettingsTable()
    plain = values.EnvOptions("LQR-v0", None, None)
    form.environment(plain.config(), plain)
    full = values.EnvOptions("LQR-v0", '{"a": 1}', 5)
    form.environment(full.config(), full)
    own = "the environment's own"
    assert [(s.name, s.shown, s.source) for s in form.settings] == [
        ("environment", "LQR-v0", "given"),
        ("env-kwargs", "-", own),
        ("max-episode-steps", "-", own),
        ("wrapper", "-", "default"),
        ("environment", "LQR-v0", "given"),
        ("env-kwargs", '{"a": 1}', "given"),
        ("max-episode-steps", "5", "given"),
        ("wrapper", "-", "default"),
    ]


ABSURD = str(2**53)


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (("collect", "LQR-v0", "--dataset", "lab/x-v0"), "--steps"),
        (("collect", "LQR-v0", "--dataset", "lab/x-v0"), "--episodes"),
        (("collect", "LQR-v0", "--dataset", "lab/x-v0"), "--warmup-episodes"),
        (("collect", "LQR-v0", "--dataset", "lab/x-v0"), "--max-episode-steps"),
        (("collect", "LQR-v0", "--dataset", "lab/x-v0"), "--perturb-every"),
        (("collect", "LQR-v0", "--dataset", "lab/x-v0"), "--workers"),
        (("fit-critic", "x", "--critic", "psvf", "--out", "c"), "--updates"),
        (("fit-critic", "x", "--critic", "psvf", "--out", "c"), "--snapshots"),
        (("synthesize", "x", "--out", "p"), "--from-scratch"),
        (("synthesize", "x", "--out", "p"), "--steps"),
        (("synthesize", "x", "--out", "p"), "--states"),
        (("synthesize", "x", "--out", "p"), "--restarts"),
        (("synthesize", "x", "--out", "p", "--evaluate"), "--episodes"),
        (("synthesize", "x", "--out", "p", "--evaluate"), "--evaluate-every"),
        (("evaluate", "x"), "--episodes"),
        (("evaluate", "x"), "--max-episode-steps"),
        (("train-online", "LQR-v0", "--critic", "pssvf", "--run", "r"), "--steps"),
        (("train-online", "LQR-v0", "--critic", "pssvf", "--run", "r"), "--max-episode-steps"),
        (("train-online", "LQR-v0", "--critic", "pssvf", "--run", "r"), "--evaluations"),
        (("train-online", "LQR-v0", "--critic", "pssvf", "--run", "r"), "--evaluation-episodes"),
        (("train-online", "LQR-v0", "--critic", "pssvf", "--run", "r"), "--update-every"),
        (("reproduce", "table", "--out", "o"), "--workers"),
        (("dataset", "filter", "x", "--dataset", "lab/x-v0"), "--min-steps"),
    ],
)
def test_absurd_counts_are_exit_2_before_anything_is_made(here, argv, option):
    ran = pbvf(*argv, option, ABSURD)
    assert ran.code == 2
    assert ran.error.startswith(f"error: {option}: ")
    assert ABSURD in ran.error
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--episodes", "٢"), ("--episodes", "1_0"), ("--seed", "٢"), ("--sigma", "٢"),
        ("--policy", "٣"), ("--perturb-every", "٢"), ("--policy", "3_2"),
    ],
)  # fmt: skip
def test_numbers_have_ascii_digits(here, option, value):
    argv = ("collect", "LQR-v0", "--dataset", "lab/x-v0", option, value)
    pbvf(*argv).refused(2, value)
    assert not (here / "datasets").exists()


@pytest.mark.parametrize("limit", ["true", "0", "-1", "2.5", '"7"'])
def test_a_time_limit_among_the_kwargs_is_a_number_of_steps(here, limit):
    argv = ("--env-kwargs", f'{{"max_episode_steps": {limit}}}', "--episodes", 1)
    pbvf("collect", "LQR-v0", "--dataset", "lab/x-v0", *argv).refused(2, "max_episode_steps is")
    assert not (here / "datasets").exists()


def test_kwargs_are_a_json_object():
    assert values.parse_kwargs('{"a": [1, "b"]}') == {"a": [1, "b"]}
    assert values.parse_kwargs(None) == {}


@pytest.mark.parametrize("text", ["[1]", "{", "{'a': 1}", '{"a": NaN}', '{"a": 1, "a": 2}', "1"])
def test_other_kwargs_are_refused(text):
    with pytest.raises(UsageError, match="--env-kwargs"):
        values.parse_kwargs(text)


@dataclass(frozen=True)
class Example(Record):
    gamma: Annotated[float, setting("Discount.", ge=0, le=1)]
    every: Annotated[int, setting("Steps.", ge=1, blank="episode")] | None = None
    hidden: Annotated[tuple[int, ...], setting("Sizes.", blank="linear")] = (8,)
    check: Annotated[bool, setting("Whether.", option="--check/--no-check")] = True
    seed: Seed = 0
    activation: str = "relu"


def shown(argv: list[str]) -> tuple[Example, dict[str, tuple[str, str]]]:
    """Return the record that options make, and the rows that people read."""
    found: list[Any] = []
    table = SettingsTable()

    @command("pbvf example")
    def example(*, given: Given[Example], sink: Sink) -> None:
        del sink
        defaults = Defaults(Example(0.9), {"gamma": "paper default"})
        found.append(table.fill(given, defaults, stored_seed=lambda asked: asked.seed + 5))

    app = typer.Typer()
    app.command()(example)
    typer.main.get_command(app).main(argv, standalone_mode=False)
    return found[0], {s.name: (s.shown, s.source) for s in table.settings}


def test_what_is_not_given_is_the_default_with_its_source():
    record, rows = shown([])
    assert record == Example(0.9, seed=5)
    assert rows == {
        "gamma": ("0.9", "paper default"),
        "every": ("episode", "default"),
        "hidden": ("8", "default"),
        "check": ("yes", "default"),
        "seed": ("5", "stored in the output"),
    }


def test_what_is_given_is_given_also_where_it_equals_the_default():
    argv = ["--gamma", "0.9", "--every", "episode", "--hidden", "8", "--check", "--seed", "5"]
    record, rows = shown(argv)
    assert record == Example(0.9, seed=5)
    assert {source for _, source in rows.values()} == {"given"}


def test_texts_become_values():
    record, rows = shown(["--every", "3", "--hidden", "linear", "--no-check", "--seed", "0"])
    assert record == Example(0.9, 3, (), check=False)
    assert rows["hidden"] == ("linear", "given")
    assert rows["check"] == ("no", "given")
    assert record.words() == [
        *("--gamma", "0.9", "--every", "3", "--hidden", "linear", "--no-check", "--seed", "0"),
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--gamma", "2"], "--gamma: 2.0 is not a number in [0, 1]"),
        (["--gamma", "x"], "--gamma: 'x' is not a number in [0, 1]"),
        (["--every", "0"], "--every: 0 is not a whole number from 1 or episode"),
        (["--every", "1.5"], "--every: '1.5' is not a whole number from 1 or episode"),
        (["--hidden", "8,"], "--hidden: '8,' is not whole numbers or linear"),
        (["--seed", "-1"], "--seed: -1 is not a whole number from 0 to 4,294,967,295"),
    ],
)
def test_other_texts_are_refused_and_the_message_names_the_option(argv, message):
    with pytest.raises(UsageError) as caught:
        shown(argv)
    assert str(caught.value) == message


def test_a_drawn_seed_is_a_seed():
    table = SettingsTable()
    assert 0 <= table.seed(None, lambda: None) < 2**32
    assert table.settings[0].source == "drawn"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_listed_and_has_a_help_with_an_example(name):
    *group, last = name.split()
    assert f" {last} " in pbvf(*group, "--help").out
    ran = pbvf(*name.split(), "--help").ok()
    assert f"pbvf {name}" in " ".join(ran.out.split("Example")[1].split())
    assert all(option in ran.out for option in ("--json", "--quiet", "--debug"))


HEAVY = {"torch", "numpy", "gymnasium", "h5py", "minari", "scipy", "matplotlib"}


@pytest.mark.parametrize("argv", [["--help"], ["collect", "--help"], ["fit-critic", "--help"]])
def test_help_imports_only_what_it_needs(argv):
    code = (
        f"import sys; from pbvf_cli.__main__ import main; code = main({argv}); "
        f"print(code, {HEAVY} & set(sys.modules), file=sys.stderr)"
    )
    assert run_process(code=code).err == "0 set()\n"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("pbvf col", {"collect"}),
        ("pbvf dataset ", {"merge", "filter", "split", "verify"}),
        ("pbvf collect LQR-v0 --sq", {"--squash"}),
        ("pbvf collect LQR-v0 --squash ", {"tanh", "none"}),
        ("pbvf fit-critic x --critic ", {"pssvf", "psvf", "pavf"}),
    ],
)
def test_shell_completion(monkeypatch, typed, expected):
    monkeypatch.setenv("_PBVF_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" ")) - 1))
    ran = pbvf()
    assert expected <= set(ran.out.split()), ran


def test_output_may_not_be_a_folder(tmp_path):
    with pytest.raises(UsageError, match="folder"):
        values.output_file(tmp_path)


def test_device():
    import torch

    assert devices.torch_device(DeviceName.CPU) == torch.device("cpu")
    automatic = devices.torch_device(DeviceName.AUTO)
    assert (automatic.type == "cuda") == torch.cuda.is_available()


@pytest.mark.parametrize(
    ("name", "found", "what"),
    [
        ("cuda", 0, "CUDA is not available"),
        ("cuda:0", 0, "CUDA is not available"),
        ("cuda:1", 1, "cuda:1 is not here: there is one, cuda:0"),
        ("cuda:2", 2, "cuda:2 is not here: there are 2, numbered from 0"),
        ("mps", 2, "MPS is not available"),
    ],
)
def test_a_device_that_is_not_there_is_wrong_usage(name, found, what, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: found > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: found)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(UsageError, match=rf"--device.*{what}"):
        devices.torch_device(DeviceName(name))


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1", "mps"])
def test_the_device_asked_for(name, monkeypatch):
    import torch

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert devices.torch_device(DeviceName(name)) == torch.device(name)
    assert devices.torch_device(DeviceName.AUTO) == torch.device("cuda")
    assert devices.torch_device(DeviceName.CPU) == torch.device("cpu")


def test_where_a_learned_environment_is(capsys):
    import torch

    sink = Sink(json_only=False, quiet=False)
    for name in ("cpu", "cuda:1"):
        assert devices.with_doubles(torch.device(name), sink) == torch.device(name)
    assert capsys.readouterr().err == ""
    assert devices.with_doubles(torch.device("mps"), sink) == torch.device("cpu")
    assert "needs double precision, which mps has not; it runs on cpu" in capsys.readouterr().err


def test_cublas_adds_up_in_one_order_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    devices.torch_device(DeviceName.AUTO)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    devices.torch_device(DeviceName.AUTO)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:-1", "cuda:01", "mps:0", "CUDA", ""])
def test_what_is_no_device(name):
    pbvf("evaluate", "X", "--device", name).refused(2, "--device", "cuda:N")


def test_a_device_changes_nothing_where_only_environments_run(capsys):
    for name in ("cuda", "cuda:1", "mps"):
        devices.runs_on_cpu(DeviceName(name), Sink(json_only=False, quiet=False))
        assert f"CPU; --device {name} changes nothing" in capsys.readouterr().err
    for name in ("auto", "cpu"):
        devices.runs_on_cpu(DeviceName(name), Sink(json_only=False, quiet=False))
        assert capsys.readouterr().err == ""


def said_defaults(field: Field) -> list[Any]:
    """Return the values that the help of a setting names as defaults."""
    assert field.about is not None
    found = []
    for word in (field.about.default or "").replace(";", " ").split():
        with contextlib.suppress(UsageError):
            found.append(field.parse(word))
    return found


@pytest.mark.parametrize("env", ["Swimmer-v5", "Hopper-v5", "LQR-v0", "Ant-v5"])
@pytest.mark.parametrize("critic", ["pssvf", "psvf", "pavf"])
def test_the_help_names_every_default_that_is_used(critic: str, env: str) -> None:
    in_help = {(r, f.name): f for r in (FitSettings, OnlineSettings) for f in fields(r)}
    for record, usual in (
        (FitSettings, fit_defaults(critic, env, BOX_SPEC).settings),
        (OnlineSettings, online_defaults(critic, env, BOX_SPEC, seed=0).settings),
        (FitSettings, round_defaults(critic, env).settings),  # fit-critic --model has its options
    ):
        for name in ("hidden", "gamma", "batch_size", "n_step", "update_every", "critic_updates",
                     "actor_updates", "actor_states", "reward", "average"):  # fmt: skip
            field = in_help.get((record, name))
            if field is None or not hasattr(usual, name) or (critic, name) == ("pssvf", "n_step"):
                continue
            assert getattr(usual, name) in said_defaults(field), (field.option, usual)
    collected = collect_defaults(EnvConfig(env), "lab/x-v0").settings
    steps, sigma = (f for f in fields(CollectSettings) if f.name in ("steps", "sigma"))
    assert collected.steps in said_defaults(steps)
    assert collected.sigma in said_defaults(sigma)
    policy = policy_defaults(env).settings
    assert policy.squash in {f.name: said_defaults(f) for f in fields(type(policy))}["squash"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--perturb-every", ("collect", "3", "episode")),
        ("--policy", ("collect", "linear", "64,64")),
        ("--squash", ("collect", "tanh", "none")),
        ("--update-every", ("train-online", "3", "episode")),
        ("--normalization", ("train-online", "episode", "per-step", "none")),
        ("--reward", ("fit-critic", "raw", "without-survival")),
    ],
)
def test_options_take_the_words_of_their_help(option: str, words: tuple[str, ...]) -> None:
    name, *good = words
    told = pbvf(name, "--help").ok().out
    place = {"collect": ("x:X-v0", "--dataset", "lab/x-v0"),
             "train-online": ("x:X-v0", "--critic", "pssvf", "--run", "r"),
             "fit-critic": ("lab/x-v0", "--critic", "pssvf", "--out", "c")}[name]  # fmt: skip
    for word in good:
        assert word in told or word.strip("0123456789,") == ""
        pbvf(name, *place, option, word).refused(2, "x")  # only what comes after is missing
        assert option not in pbvf(name, *place, option, word).err
    pbvf(name, *place, option, "no").refused(2, option)

"""Reading option texts, and where values come from."""

from __future__ import annotations

import re

import pytest

from cli_tools import pbvf
from pbvf_cli.shared import devices, values
from pbvf_cli.shared.form import Form, Setting, paper_source
from pbvf_cli.shared.options import DeviceName
from pbvf_cli.shared.output import Sink
from pbvf_offline.errors import UsageError


def test_numbers_are_sorted_and_unique():
    assert values.parse_numbers("1000,500,1000", "--snapshots") == (500, 1000)
    assert values.parse_numbers(None, "--snapshots") is None


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "-5,10", "1.5"])
def test_other_lists_are_refused(text):
    with pytest.raises(UsageError, match=r"--snapshots.*500,1000"):
        values.parse_numbers(text, "--snapshots")


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_fractions_outside_are_refused(value):
    with pytest.raises(UsageError, match=r"--gamma.*\[0, 1\]"):
        values.fraction(value, "--gamma")


def test_fraction_may_exclude_one():
    assert values.fraction(1.0, "--gamma") == 1.0
    with pytest.raises(UsageError, match=r"\[0, 1\)"):
        values.fraction(1.0, "--validation-policies", below_one=True)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_positive(value):
    with pytest.raises(UsageError, match="--lr"):
        values.positive(value, "--lr")


def test_sizes():
    assert values.parse_sizes("64,32", "--hidden") == (64, 32)
    assert values.parse_sizes("linear", "--policy") == ()
    with pytest.raises(UsageError, match=r"--hidden.*'64,x'"):
        values.parse_sizes("64,x", "--hidden")


def test_a_critic_has_a_hidden_layer():
    assert values.parse_hidden("64,32") == (64, 32)
    assert values.parse_hidden(None) is None
    with pytest.raises(UsageError, match=r"^--hidden: .*hidden layer"):
        values.parse_hidden("linear")


@pytest.mark.parametrize(("number", "least"), [(0, 1), (-1, 0), (10**12 + 1, 1), (10**30, 0)])
def test_counts_have_a_range(number, least):
    with pytest.raises(UsageError, match=rf"^--steps: {number} is not in {least} … 1,000,000,"):
        values.count(number, "--steps", least=least)
    assert values.count(10**12, "--steps") == 10**12
    assert values.count(None, "--steps") is None
    assert values.count(10**30, "--n-step", most=None) == 10**30
    with pytest.raises(UsageError, match="--n-step: 0 is not at least 1"):
        values.count(0, "--n-step", most=None)


def test_numbers_and_steps_of_absurd_size_are_refused():
    with pytest.raises(UsageError, match="--snapshots"):
        values.parse_numbers(f"5,{2**53}", "--snapshots")
    with pytest.raises(UsageError, match="--perturb-every"):
        values.steps_or_episode(str(2**53), "--perturb-every")


@pytest.mark.parametrize("text", ["", "  ", "MIT\nevil", "a\x1b[2J", "x\udcffy", "x" * 201])
def test_a_licence_is_one_short_printable_line(text):
    with pytest.raises(UsageError, match=r"^--license: .*CC-BY-4\.0"):
        values.licence(text, "--license")
    assert values.licence("LicenseRef-ours é", "--license") == "LicenseRef-ours é"


def test_a_dataset_to_make_needs_an_id():
    assert values.target_dataset("lab/x-v0") == "lab/x-v0"
    with pytest.raises(UsageError, match="--dataset: is missing"):
        values.target_dataset(None)


def test_options_with_a_default_in_the_signature():
    form = Form()
    form.option("workers", 1, 1)
    form.option("workers", 2, 1)
    form.option("license", None, None, "the inputs'")
    form.rights("MIT", ("Ada",))
    assert [s.source for s in form.settings] == [
        "default", "given", "the inputs'", "given", "given",
    ]  # fmt: skip


def test_an_environment_is_shown_with_its_arguments():
    form = Form()
    form.environment(values.env_config("LQR-v0", None, None))
    form.environment(values.env_config("LQR-v0", '{"a": 1}', 5))
    assert [(s.name, s.shown) for s in form.settings] == [
        ("environment", "LQR-v0"),
        ("environment", "LQR-v0"),
        ("env-kwargs", '{"a": 1}'),
        ("max-episode-steps", "5"),
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
def test_absurd_counts_are_exit_2_before_anything_is_made(tmp_path, monkeypatch, argv, option):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    ran = pbvf(*argv, option, ABSURD)
    assert ran.code == 2
    assert ran.error.startswith(f"error: {option}: ")
    assert ABSURD in ran.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ("collect",), ("fit-critic",), ("fit-model",), ("synthesize",), ("evaluate",),
        ("train-online",), ("reproduce",),
        ("dataset", "merge"), ("dataset", "filter"), ("dataset", "split"),
    ],
)  # fmt: skip
def test_no_name_of_an_option_is_cut_in_a_terminal_of_80_columns(monkeypatch, command):
    from typer import rich_utils

    monkeypatch.setattr(rich_utils, "MAX_WIDTH", 80)
    ran = pbvf(*command, "--help")
    assert ran.code == 0
    shown = [line for line in ran.out.splitlines() if re.match(r"│ +\*? *--", line)]
    assert len(shown) > 5
    assert [line for line in shown if re.search(r"--[a-z-]*…", line)] == []


def test_kwargs_are_a_json_object():
    assert values.parse_kwargs('{"a": [1, "b"]}') == {"a": [1, "b"]}
    assert values.parse_kwargs(None) == {}


@pytest.mark.parametrize("text", ["[1]", "{", "{'a': 1}", '{"a": NaN}', '{"a": 1, "a": 2}', "1"])
def test_other_kwargs_are_refused(text):
    with pytest.raises(UsageError, match="--env-kwargs"):
        values.parse_kwargs(text)


def test_form_remembers_where_values_come_from():
    form = Form()
    assert form.choose("sigma", 2.0, 0.5, "paper default") == 2.0
    assert form.choose("steps", None, lambda: 7, "paper default") == 7
    form.show("workers", 1, "default")
    assert form.settings == [
        Setting("sigma", 2.0, "given"),
        Setting("steps", 7, "paper default"),
        Setting("workers", 1, "default"),
    ]


def test_seed_is_given_or_stored_or_drawn():
    form = Form()
    assert form.seed(0, lambda: 5) == 0
    assert form.seed(None, lambda: 5) == 5
    assert 0 <= form.seed(None, lambda: None) < 2**32
    assert [s.source for s in form.settings] == ["given", "stored in the output", "drawn"]


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_out_of_range(seed):
    with pytest.raises(UsageError, match="--seed"):
        Form().seed(seed)


def test_paper_source_names_only_environments_of_the_paper():
    assert paper_source("Swimmer-v5") == "paper default for Swimmer-v5"
    assert paper_source("Mine-v0") == paper_source(None) == "paper default"


def test_output_may_not_be_a_folder(tmp_path):
    with pytest.raises(UsageError, match="folder"):
        values.output_file(tmp_path)


def test_device():
    import torch

    assert devices.torch_device(DeviceName.CPU) == torch.device("cpu")
    automatic = devices.torch_device(DeviceName.AUTO)
    assert (automatic.type == "cuda") == torch.cuda.is_available()


def test_cuda_without_cuda_is_wrong_usage(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match=r"--device.*CUDA is not available"):
        devices.torch_device(DeviceName.CUDA)


def test_cuda_changes_nothing_where_only_environments_run(capsys):
    devices.runs_on_cpu(DeviceName.CUDA, Sink(json_only=False, quiet=False))
    assert "CPU" in capsys.readouterr().err
    devices.runs_on_cpu(DeviceName.AUTO, Sink(json_only=False, quiet=False))
    assert capsys.readouterr().err == ""

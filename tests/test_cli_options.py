"""Reading option texts, and where values come from."""

from __future__ import annotations

import pytest

from pbvf_cli import options
from pbvf_cli.options import DeviceName, Form, Setting
from pbvf_cli.output import Sink
from pbvf_offline.errors import UsageError


def test_numbers_are_sorted_and_unique():
    assert options.parse_numbers("1000,500,1000", "--snapshots") == (500, 1000)
    assert options.parse_numbers(None, "--snapshots") is None


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "-5,10", "1.5"])
def test_other_lists_are_refused(text):
    with pytest.raises(UsageError, match=r"--snapshots.*500,1000"):
        options.parse_numbers(text, "--snapshots")


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_fractions_outside_are_refused(value):
    with pytest.raises(UsageError, match=r"--gamma.*\[0, 1\]"):
        options.fraction(value, "--gamma")


def test_fraction_may_exclude_one():
    assert options.fraction(1.0, "--gamma") == 1.0
    with pytest.raises(UsageError, match=r"\[0, 1\)"):
        options.fraction(1.0, "--validation-policies", below_one=True)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_positive(value):
    with pytest.raises(UsageError, match="--lr"):
        options.positive(value, "--lr")


def test_sizes():
    assert options.parse_sizes("64,32", "--hidden") == (64, 32)
    assert options.parse_sizes("linear", "--policy") == ()
    with pytest.raises(UsageError, match=r"--hidden.*'64,x'"):
        options.parse_sizes("64,x", "--hidden")


def test_kwargs_are_a_json_object():
    assert options.parse_kwargs('{"a": [1, "b"]}') == {"a": [1, "b"]}
    assert options.parse_kwargs(None) == {}


@pytest.mark.parametrize("text", ["[1]", "{", "{'a': 1}", '{"a": NaN}', '{"a": 1, "a": 2}', "1"])
def test_other_kwargs_are_refused(text):
    with pytest.raises(UsageError, match="--env-kwargs"):
        options.parse_kwargs(text)


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
    assert options.paper_source("Swimmer-v5") == "paper default for Swimmer-v5"
    assert options.paper_source("Mine-v0") == options.paper_source(None) == "paper default"


def test_output_may_not_be_a_folder(tmp_path):
    with pytest.raises(UsageError, match="folder"):
        options.output_file(tmp_path)


def test_device():
    import torch

    assert options.torch_device(DeviceName.CPU) == torch.device("cpu")
    automatic = options.torch_device(DeviceName.AUTO)
    assert (automatic.type == "cuda") == torch.cuda.is_available()


def test_cuda_without_cuda_is_wrong_usage(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match=r"--device.*CUDA is not available"):
        options.torch_device(DeviceName.CUDA)


def test_cuda_changes_nothing_where_only_environments_run(capsys):
    options.runs_on_cpu(DeviceName.CUDA, Sink(json_only=False, quiet=False))
    assert "CPU" in capsys.readouterr().err
    options.runs_on_cpu(DeviceName.AUTO, Sink(json_only=False, quiet=False))
    assert capsys.readouterr().err == ""

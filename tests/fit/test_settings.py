"""Settings of a fit: ranges, defaults, and where the defaults come from."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from libtools import box_spec, fit_settings
from pbvf_offline.errors import UsageError
from pbvf_offline.fit.augment import RELABEL
from pbvf_offline.fit.settings import default_fit_settings, fit_defaults, paper_fit_settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.0}, "--lr: 0.0 is not a finite number above 0"),
        ({"lr": float("nan")}, "--lr: nan is not"),
        ({"lr": float("inf")}, "--lr: inf is not"),
        ({"batch_size": 0}, "--batch-size: 0 is not a whole number from 1 to 1,000,000"),
        ({"batch_size": 1_000_001}, "--batch-size"),
        ({"validation": 1.0}, "--validation-policies: 1.0 is not a number in [0, 1)"),
        ({"validation": -0.1}, "--validation-policies"),
        ({"average": 1.0}, "--average"),
        ({"gamma": 1.1}, "--gamma"),
        ({"n_step": 0}, "--n-step"),
        ({"relabel": 1001.0}, "--relabel"),
        ({"reward": "both"}, "--reward: both is not one of raw, without-survival"),
        ({"hidden": ()}, "--hidden"),
        ({"hidden": (64,) * 17}, "--hidden"),
        ({"seed": 2**32}, "--seed"),
        ({"activation": "elu"}, "activation: elu is not one of relu, tanh"),
    ],
)
def test_refused_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        fit_settings(**change)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 0.0},
        {"gamma": 1.0},
        {"n_step": 10**30},
        {"relabel": 1000.0},
        {"average": 0.0},
        {"batch_size": 1_000_000},
        {"hidden": (64,) * 16},
        {"seed": 2**32 - 1},
    ],
)
def test_the_ends_of_ranges_are_allowed(change: dict[str, Any]) -> None:
    settings = fit_settings(**change)
    assert type(settings).from_dict(settings.to_dict(), "x") == settings


def test_the_paper_is_named_only_where_it_gives_the_value() -> None:
    swimmer = fit_defaults("psvf", "Swimmer-v5", box_spec())
    assert swimmer.settings.gamma == 0.999
    assert swimmer.source_of("gamma") == "paper default for Swimmer"
    assert swimmer.source_of("batch_size") == "paper default for psvf"
    other = fit_defaults("psvf", "Mine-v0", box_spec())
    assert (other.settings.gamma, other.source_of("gamma")) == (0.99, "default")
    for name in ("n_step", "average", "standardise", "bound_values", "validation"):
        assert other.source_of(name) == "default"
    assert fit_defaults("pssvf", None, box_spec()).source_of("hidden") == "the authors' code"


def test_the_default_reward_is_one_that_the_data_have() -> None:
    with_bonus = fit_defaults("pssvf", "Hopper-v5", box_spec())
    assert with_bonus.settings.reward == "without-survival"
    assert with_bonus.source_of("reward") == "paper default for Hopper"
    without = fit_defaults("pssvf", "Hopper-v5", box_spec(), survival_bonus=False)
    assert without.settings.reward == "raw"
    assert without.source_of("reward") == "the dataset reports no survival bonus"


def test_relabelling_is_left_out_where_it_cannot_be_done() -> None:
    stochastic = default_fit_settings("psvf", None, box_spec(stochastic=True), seed=3)
    assert (stochastic.relabel, stochastic.seed) == (0.0, 3)
    assert default_fit_settings("psvf", None, box_spec(), seed=0).relabel > 0


def test_the_papers_critic_adds_nothing() -> None:
    usual = default_fit_settings("psvf", None, box_spec(), seed=0)
    for settings in (usual, dataclasses.replace(usual, augment="blur")):
        paper = paper_fit_settings(settings)
        assert (paper.n_step, paper.augment, paper.relabel) == (1, RELABEL, 0.0)
        assert (paper.average, paper.bound_values, paper.standardise) == (0.0, False, False)


def test_reading_the_settings_imports_no_array_library() -> None:
    code = "import sys, pbvf_offline.fit.settings; print({'numpy', 'torch'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"

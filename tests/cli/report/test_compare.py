"""``pbvf compare`` from a user's side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import toyenv  # noqa: F401
from cli_tools import pbvf, rows
from libtools import make_policies
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import ConflictError
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_runs.compare.figures import new_figure, save_figure
from pbvf_runs.compare.statistics import estimate, interquartile_mean

VARIED = "toyenv:ToyVaried-v0"  # the length of an episode depends on its seed


def file(name: str, count: int, *, env: str = VARIED, hidden=(), seed: int = 0, limit=None) -> Path:
    config = EnvConfig(env, max_episode_steps=limit)
    toy = make_env(config)
    spec = spec_for_env(toy, hidden)
    toy.close()
    PoliciesFile(make_policies(spec, count, seed), config.reference()).save(Path(name))
    return Path(name)


def compared(*argv: object):
    return pbvf("compare", *argv, "--episodes", 3, "--seed", 0, "-q", "--json").ok().json


def test_both_sides_are_played_as_evaluate_plays_them(here):
    one, other = file("one", 6), file("deep", 5, hidden=(4,), seed=1)
    out = compared(one, other)
    for path, side in zip((one, other), out["sides"], strict=True):
        alone = pbvf("evaluate", path, "--episodes", 3, "--seed", 0, "-q", "--json").ok().json
        assert side["returns"] == alone["returns"]
        assert side["means"] == alone["means"]
        assert side["iqm"] == estimate(interquartile_mean, np.array(alone["means"])).to_dict()
    first, second = (np.array(side["means"]) for side in out["sides"])
    better = np.mean((first[:, None] > second) + 0.5 * (first[:, None] == second))
    assert out["probability_of_improvement"]["value"] == pytest.approx(better)
    assert out["difference"]["value"] == pytest.approx(first.mean() - second.mean())
    for name in ("difference", "probability_of_improvement"):
        assert out[name]["low"] <= out[name]["value"] <= out[name]["high"]
    turned = compared(other, one)
    assert turned["difference"]["value"] == -out["difference"]["value"]
    assert (out["env"], out["episodes"], out["seed"], out["out"]) == ("ToyVaried-v0", 3, 0, None)


def test_the_policies_of_a_dataset(here):
    argv = ("--dataset", "lab/x-v0", "--episodes", 6, "--seed", 0, "-q")
    pbvf("collect", VARIED, *argv).ok()
    out = compared(file("one", 2), "lab/x-v0")
    assert [side["policies"] for side in out["sides"]] == ["one", "lab/x-v0"]
    alone = pbvf("evaluate", "lab/x-v0", "--episodes", 3, "--seed", 0, "-q", "--json").ok().json
    assert out["sides"][1]["returns"] == alone["returns"]


def test_the_same_policies_are_as_good_as_themselves(here):
    out = compared(file("one", 5), "one")
    assert out["sides"][0]["returns"] == out["sides"][1]["returns"]
    assert out["difference"]["value"] == 0
    assert out["probability_of_improvement"]["value"] == 0.5


def test_few_policies_have_values_and_no_interval(here):
    file("few", 4)
    file("more", 5)
    ran = pbvf("compare", "few", "more", "--episodes", 2, "--seed", 0).ok()
    assert "no interval of fewer than five policies" in ran.err
    shown = rows(ran.out)
    assert "95 %" not in shown["few"]
    assert shown["few"].count(";") == 3
    assert "95 %" in shown["more"]
    assert "few less more " in ran.out
    assert "P(few > more) " in ran.out
    out = compared("few", "more")
    assert out["difference"]["low"] is out["sides"][0]["iqm"]["low"] is None
    assert out["sides"][1]["iqm"]["low"] is not None


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_figure_is_written_once_and_in_the_same_bytes(here, suffix):
    figure = f"figure{suffix}"
    file("one", 5)
    file("other", 3, seed=1)
    assert compared("one", "other", "--out", figure)["already_complete"] is False
    image = (here / figure).read_bytes()
    assert image.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    assert compared("one", "other", "--out", figure)["already_complete"] is True
    pbvf("compare", "one", "one", "--out", figure, "--seed", 0, "-q").refused(
        7, f"{figure}: exists with other content"
    )
    assert (here / figure).read_bytes() == image
    pbvf("compare", "one", "one", "--out", figure, "--overwrite", "--seed", 0, "-q").ok()
    assert (here / figure).read_bytes() != image
    pbvf("compare", "one", "other", "--out", figure, "--overwrite", "--seed", 0, "-q").ok()


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_figure_of_others_is_never_replaced(here, suffix):
    figure = here / f"figure{suffix}"
    drawn = new_figure(2, 2)
    drawn.savefig(figure, metadata={})
    for content in (figure.read_bytes(), b"", b"tEXtSoftware\0pbvf-offline"):
        figure.write_bytes(content)
        for overwrite in ((), ("--overwrite",)):
            for argv in (("compare", "missing", "missing"), ("plot", "missing")):
                pbvf(*argv, "--out", figure, *overwrite, "-q").refused(
                    7, f"{figure}: exists and is no figure made by pbvf-offline"
                )
            with pytest.raises(ConflictError):
                save_figure(drawn, figure)
        assert figure.read_bytes() == content


def test_a_figure_names_the_arguments_of_the_environment(here):
    file("one", 5, limit=3)
    compared("one", "one", "--out", "figure.svg")
    assert "ToyVaried-v0 with max_episode_steps=3, 3 episodes" in (here / "figure.svg").read_text()


def test_a_name_that_says_no_format_is_refused_before_anything_is_played(here):
    pbvf("compare", "missing", "missing", "--out", "figure.jpg").refused(2, "figures end in .png")
    pbvf("compare", "missing", "missing", "--overwrite").refused(2, "replaces a figure, and none")


def test_policies_of_other_environments(here):
    file("one", 2)
    file("pair", 2, env="toyenv:ToyPair-v0")
    file("short", 2, limit=3)
    file("wide", 2, env="toyenv:ToyWide-v0")
    for other, words in (("pair", "ToyPair-v0"), ("short", "max_episode_steps=3")):
        ran = pbvf("compare", "one", other, "--seed", 0, "-q", warns=True).ok()
        assert "comes from" in ran.err
        assert words in ran.err
    pbvf("compare", "one", "wide", "--seed", 0, "-q").refused(5, "the policies observe 300")
    pbvf("compare", "wide", "one", "--seed", 0, "-q").refused(5, "the policies observe 3 ")

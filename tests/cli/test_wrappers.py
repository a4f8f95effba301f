"""``--wrapper``: from a collection through every file to a measurement without `--env`."""

from __future__ import annotations

import json

import pytest

from cli_tools import pbvf
from pbvf_datasets import load_dataset
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.policies.files import load_policies

STACK = ("--wrapper", 'frame-stack:{"stack_size": 2}', "--wrapper", "time-feature")
SEED = ("--seed", 0, "-q", "--json")


def ok(*argv):
    return pbvf(*argv).ok()


def test_a_wrapped_environment_goes_through_all_files(here):
    collect = ("collect", "LQR-v0", *STACK, "--dataset", "lab/l-v0", "--episodes", 6, *SEED)
    ok(*collect)
    assert load_dataset("lab/l-v0", cache=False).spec.obs_dim == 3
    folder = here / "datasets/lab/l-v0"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["version"] == 2
    assert [w["name"] for w in manifest["provenance"]["environment"]["wrappers"]] == [
        "frame-stack",
        "time-feature",
    ]
    assert (
        """--wrapper 'frame-stack:{"stack_size": 2}' --wrapper time-feature"""
        in (folder / "README.md").read_text()
    )
    assert ok("dataset", "verify", folder, "--json").json["status"] == "intact"
    # Another wrapper is another dataset.
    assert pbvf("collect", "LQR-v0", *collect[6:]).code == 7

    fit = ("--critic", "psvf", "--updates", 5, "--out", "critic", *SEED)
    ok("fit-critic", "lab/l-v0", *fit)
    grow = ("--from-scratch", 2, "--steps", 2, "--evaluate", "--episodes", 1, "--out", "p", *SEED)
    ok("synthesize", "critic", *grow)
    assert [w.name for w in load_policies(here / "p").environment.wrappers] == [
        "frame-stack",
        "time-feature",
    ]
    stored = ok("evaluate", "p", "--episodes", 1, *SEED).json["returns"]
    named = ("evaluate", "p", "--env", "LQR-v0", "--episodes", 1, *SEED)
    assert ok(*named).json["returns"] == ok(*named, *STACK).json["returns"] == stored
    assert pbvf(*named, "--wrapper", "time-feature").code == 5


def test_a_run_in_a_wrapped_environment(here):
    train = ("train-online", "LQR-v0", "--critic", "pssvf", "--evaluations", 1, "--run", "run")
    ok(*train, *STACK, "--steps", 60, *SEED)
    assert json.loads((here / "run/config.json").read_text())["version"] == 2
    ok(*train, *STACK, "--steps", 120, *SEED)
    assert "wrappers" in pbvf(*train, "--steps", 120, *SEED).err
    ok("evaluate", "run/policy.safetensors", "--episodes", 1, *SEED)


def test_a_wrapper_that_is_not_installed_here(here):
    collect = ("collect", "LQR-v0", "--wrapper", "time-feature", "--dataset", "lab/l-v0")
    ok(*collect, "--episodes", 2, *SEED)
    ok("fit-critic", "lab/l-v0", "--critic", "psvf", "--updates", 2, "--out", "critic", *SEED)
    content, tensors = decode("critic", (here / "critic").read_bytes(), "x")
    content["environment"]["wrappers"] = [{"name": "their-own", "kwargs": {}}]
    (here / "critic").write_bytes(encode("critic", content, tensors))
    ran = pbvf("synthesize", "critic", "--evaluate", "--out", "p", *SEED)
    assert ran.code == 4
    assert "'their-own' is not installed" in ran.err
    assert "--env" in ran.err


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        ("absent", "choose one of"),
        ("frame-stack:3", "not a JSON object"),
        ("frame-stack:{", "--wrapper"),
        ('frame-stack:{"stack_size": "a/b"}', "something else"),
        ("frame-stack", "stack_size"),
    ],
)
def test_wrong_usage(here, wrapper, words):
    argv = ("collect", "LQR-v0", "--dataset", "lab/l-v0", "--episodes", 1)
    pbvf(*argv, "--wrapper", wrapper, "-q").refused(2, words)
    assert not (here / "datasets").exists()


def test_datasets_of_other_wrappers_are_not_merged(here):
    same_spaces = '{"max_action": 100.0, "min_action": -100.0}'
    more = ("--episodes", 1, "-q")
    ok("collect", "LQR-v0", "--dataset", "lab/a-v0", *more)
    wrapped = ("--wrapper", f"rescale-action:{same_spaces}")
    ok("collect", "LQR-v0", *wrapped, "--dataset", "lab/b-v0", *more)
    ok("collect", "LQR-v0", *wrapped, "--dataset", "lab/c-v0", *more)
    pbvf("dataset", "merge", "lab/a-v0", "lab/b-v0", "--dataset", "lab/ab-v0", "-q").refused(
        5, f"wrappers rescale-action:{same_spaces} against none"
    )
    ok("dataset", "merge", "lab/b-v0", "lab/c-v0", "--dataset", "lab/bc-v0", "-q")

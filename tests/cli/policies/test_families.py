"""Policies of another family through every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from torch import nn

import toyenv  # noqa: F401
from cli_tools import Ran, pbvf
from exchange_tools import acts, executed, network, observations, run_onnx, run_recipe, save
from pbvf_datasets import load_dataset
from pbvf_offline.critics import CRITICS
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.exchange.stable_baselines import from_sb3
from pbvf_offline.policies.files import load_policies

TOY = "toyenv:ToyAsym-v0"  # 3 observations, 1 action in [-0.3, 0.7]
RELU = ["--activation", "relu"]


def run(*argv: object) -> Ran:
    return pbvf(*argv).ok()


def told(*argv: object) -> dict[str, Any]:
    result: dict[str, Any] = run(*argv, "--json", "-q").json
    return result


def collected(dataset: str, *argv: object, episodes: int = 4) -> Any:
    run("collect", TOY, "--dataset", dataset, "--episodes", episodes, "--seed", 0, "-q", *argv)
    assert told("dataset", "verify", dataset)["status"] == "intact"
    return load_dataset(dataset)


def assert_exports_act(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare both exports of a file's first policy with the policy."""
    for name in ("policy.safetensors", "policy.onnx"):
        run("policies", "export", file, "--index", 0, "--out", name, "--overwrite")
    obs = observations().astype(np.float64)
    ours = acts(load_policies(Path(file)).policies, obs)
    theirs = run_recipe(Path("policy.safetensors").absolute(), obs, monkeypatch)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run_onnx("policy.onnx", obs), ours, rtol=0, atol=1e-6)
    assert len(np.unique(ours)) > 20


@pytest.mark.parametrize("source", ["SAC", "TD3", "Sequential"])
def test_a_relu_actor_trained_elsewhere(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    obs = observations()
    if source == "Sequential":
        module = network(3, 16, 16, 1, between=nn.ReLU)
        state: dict[str, Any] = module.state_dict()
        theirs = executed(module(torch.from_numpy(obs)), -0.3, 0.7)
        argv = RELU
    else:
        world = make_env(EnvConfig(TOY))
        kwargs: dict[str, Any] = {"buffer_size": 100, "learning_starts": 10, "seed": 0}
        model = getattr(stable_baselines3, source)(
            "MlpPolicy", world, device="cpu", policy_kwargs={"net_arch": [16, 16]}, **kwargs
        )
        model.learn(40)
        state = model.policy.state_dict()
        theirs, _ = model.predict(obs, deterministic=True)
        argv = ["--format", "sb3", *RELU]
    source_file = save("weights", state)
    save("check", {"obs": torch.from_numpy(obs), "action": torch.from_numpy(theirs)})
    made = told(
        *("policies", "import", source_file, "--env", TOY, "--out", "p", "--check", "check"), *argv
    )
    assert made["spec"]["family"] == "relu-mlp"
    assert made["check"]["largest_difference"] < 1e-6
    policies = load_policies(Path("p")).policies
    np.testing.assert_allclose(acts(policies, obs), theirs, rtol=0, atol=1e-6)
    if source != "Sequential":
        live = from_sb3(model, world)
        assert live.spec == policies.spec
        np.testing.assert_array_equal(live.theta, policies.theta)
    data = collected("lab/theirs-v0", "--policies", "p")
    assert data.spec == policies.spec
    np.testing.assert_array_equal(data.theta, policies.theta)
    assert_exports_act("p", monkeypatch)
    assert "linear layers with ReLU between them" in run("policies", "info", "p").out


@pytest.mark.parametrize("critic", CRITICS)
def test_fit_and_synthesize(critic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = collected("lab/relu-v0", "--policy", "8,8", "--family", "relu-mlp", episodes=12)
    assert data.spec.arch == "8,8 relu-mlp"
    assert len(data.theta) > 10
    fit = ["--critic", critic, "--updates", 30, "--hidden", 16, "--seed", 0, "-q"]
    run("fit-critic", "lab/relu-v0", *fit, "--out", "critic.safetensors")
    synthesis = ["--from-scratch", 2, "--steps", 10, "--seed", 0, "-q"]
    made = told("synthesize", "critic.safetensors", *synthesis, "--out", "grown.safetensors")
    assert len(made["predicted"]) == 2
    grown = load_policies(Path("grown.safetensors")).policies
    assert grown.spec == data.spec
    assert_exports_act("grown.safetensors", monkeypatch)


def test_a_fresh_policy_is_what_its_family_draws() -> None:
    """The same numbers as with tanh, since both draw alike; other actions."""
    relu = collected("lab/relu-v0", "--policy", 8, "--family", "relu-mlp", "--sigma", 0)
    tanh = collected("lab/tanh-v0", "--policy", 8, "--sigma", 0)
    np.testing.assert_array_equal(relu.theta, tanh.theta)
    assert not np.array_equal(relu.transitions.action, tanh.transitions.action)


def test_the_family_is_part_of_what_a_dataset_is() -> None:
    argv = ["collect", TOY, "--dataset", "lab/x-v0", "--episodes", 2, "--seed", 0, "--policy", 8]
    shown = run(*argv)
    assert row_of(shown.err, "family") == "family tanh-mlp default"
    manifest = Path("datasets/lab/x-v0/manifest.json")
    before = manifest.read_bytes()
    assert "family" not in json.loads(before)["provenance"]["settings"]
    assert json.loads(before)["version"] == 1
    assert "already complete" in run(*argv, "--family", "tanh-mlp").err
    pbvf(*argv, "--family", "relu-mlp").refused(7, "family")
    assert manifest.read_bytes() == before
    shown = run(*argv, "--family", "relu-mlp", "--overwrite")
    assert row_of(shown.err, "family") == "family relu-mlp given"
    assert json.loads(manifest.read_bytes())["version"] == 2  # version 0.1 asks for an upgrade
    assert "--policy 8 --family relu-mlp" in Path("datasets/lab/x-v0/README.md").read_text()
    assert "8 relu-mlp" in run("dataset", "info", "lab/x-v0").out
    pbvf(*argv).refused(7, "family")


def row_of(text: str, name: str) -> str:
    """Return a row of the table of settings, its columns one space apart."""
    (row,) = [line.split() for line in text.splitlines() if line.split()[:1] == [name]]
    return " ".join(row)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--family", "gru"], "--family: there is no policy family 'gru'; choose one of tanh-mlp"),
        (["--family", "relu-mlp", "--policies", "p"], "--family: does not go with --policies"),
        (["--family", "relu-mlp", "--base", "p"], "--family: does not go with --base"),
    ],
)
def test_families_that_cannot_be_asked_for(argv: list[str], words: str) -> None:
    pbvf("collect", TOY, "--dataset", "lab/x-v0", "--episodes", 1, *argv).refused(2, words)


def test_online_training_of_another_family() -> None:
    argv = ["train-online", TOY, "--critic", "psvf", "--policy", 8, "--run", "run", "--seed", 0]
    argv += ["--steps", 60, "--evaluations", 1, "--evaluation-episodes", 1, "-q"]
    relu = [*argv, "--family", "relu-mlp"]
    pbvf(*relu, "--preset", "paper-avg").refused(
        2, "--preset: the paper has no policies of the family relu-mlp"
    )
    made = told(*relu, "--export-dataset", "lab/trained-v0")
    assert load_policies(Path(made["policy"])).policies.spec.family == "relu-mlp"
    assert told("dataset", "verify", "lab/trained-v0")["status"] == "intact"
    assert load_dataset("lab/trained-v0").spec.arch == "8 relu-mlp"
    assert "--policy 8 --family relu-mlp" in Path("datasets/lab/trained-v0/README.md").read_text()
    assert told(*relu)["already_complete"] is True
    pbvf(*argv).refused(7, "family")

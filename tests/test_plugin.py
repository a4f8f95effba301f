"""An installed package adds members to registries; nothing of this project changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_tools import ROOT, SOURCES, start
from pbvf_datasets import load_dataset


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of ``tests/plugin``, installed into a folder of its own without a network."""
    target = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"),
            *("--no-build-isolation", "--disable-pip-version-check", "--target", str(target)),
            str(ROOT / "tests" / "plugin"),
        ],
        check=True,
    )
    return target


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def paths(installed: Path | None) -> dict[str, str]:
    folders = SOURCES if installed is None else [*SOURCES, installed]
    return {"PYTHONPATH": os.pathsep.join(map(str, folders))}


def ran(installed: Path | None, *argv: object, code: int = 0) -> tuple[str, str]:
    process = start(*argv, env=paths(installed))
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    return out, err


def json_of(installed: Path, *argv: object) -> Any:
    return json.loads(ran(installed, *argv, "--json", "-q")[0])


@pytest.mark.slow
def test_commands_use_what_a_package_adds(installed: Path, place: Path) -> None:
    assert "lab-huber" in ran(installed, "fit-critic", "--help")[0]
    sphere = ("collect", "toyenv:Toy-v0", "--dataset", "lab/sphere-v0", "--episodes", 20)
    json_of(installed, *sphere, "--schedule", "lab-sphere", "--sigma", 0.5, "--seed", 1)
    theta = load_dataset("lab/sphere-v0", cache=False).theta.astype(float)
    center = np.linalg.lstsq(  # equally far from all: 2 x . c = x^2 - r^2 + c^2
        np.column_stack([2 * theta, np.ones(20)]), np.square(theta).sum(axis=1), rcond=None
    )[0][:-1]
    distance = np.linalg.norm(theta - center, axis=1)
    assert distance == pytest.approx(np.full(20, 0.5 * np.sqrt(theta.shape[1])), rel=1e-3)

    critic = place / "critic.safetensors"
    fit = ("fit-critic", "lab/sphere-v0", "--critic", "lab-huber", "--seed", 0, "--out", critic)
    assert json_of(installed, *fit)["kind"] == "lab-huber"
    assert json_of(installed, *fit, "--updates", 80)["updates"] == 80
    several = ("--critic", "lab-huber", "--seeds", "0-1", "--out", critic)
    _, err = ran(installed, "fit-critic", "lab/sphere-v0", *several, code=5)
    assert "--seeds: critics of kind lab-huber cannot be fitted several at once" in err
    model, dreamt = place / "model.safetensors", place / "dreamt.safetensors"
    learn = ("--hidden", "8", "--noise", 0, "--no-angles", "--no-mixed", "--updates", 50)
    json_of(installed, "fit-model", "lab/sphere-v0", *learn, "--seed", 0, "--out", model)
    rounds = ("--critic", "lab-huber", "--model", model, "--force", "--rounds", 1, "--seed", 0)
    rounds = (*rounds, "--compare", 20)
    fitted = json_of(installed, "fit-critic", "lab/sphere-v0", *rounds, "--out", dreamt)
    assert (fitted["kind"], fitted["gamma"]) == ("lab-huber", 1.0)
    assert fitted["comparison"]["kind"] == "lab-huber"
    policies = place / "policies.safetensors"
    made = json_of(
        installed,
        *("synthesize", critic, "--from-scratch", 2, "--steps", 3, "--no-evaluate"),
        *("--seed", 0, "--out", policies),
    )
    assert len(made["predicted"]) == 2
    # Without the package the file is whole, and says what is missing.
    _, err = ran(None, "synthesize", critic, "--out", place / "other.safetensors", code=5)
    assert "install the package that adds this kind" in err

    run = place / "run"
    train = ("train-online", "toyenv:Toy-v0", "--critic", "lab-huber", "--steps", 40)
    json_of(installed, *train, "--run", run, "--logger", "lab-csv", "--seed", 0)
    lines = (run / "logs" / "lab-csv").read_text().splitlines()
    assert len(lines) == 8
    assert not (run / "metrics.jsonl").exists()


@pytest.mark.slow
def test_policies_of_a_family_that_a_package_adds(installed: Path, place: Path) -> None:
    """A convolution, from collecting to ONNX."""
    collected = ("collect", "toyenv:Toy-v0", "--dataset", "lab/conv-v0", "--episodes", 12)
    json_of(installed, *collected, "--policy", 4, "--family", "lab-conv", "--seed", 1)
    assert json_of(installed, "dataset", "verify", "lab/conv-v0")["status"] == "intact"
    critic, grown = place / "critic.safetensors", place / "grown.safetensors"
    fit = ("--critic", "pavf", "--updates", 20, "--relabel", 0.1, "--seed", 0)
    json_of(installed, "fit-critic", "lab/conv-v0", *fit, "--out", critic)
    synthesis = ("--from-scratch", 2, "--steps", 3, "--no-evaluate", "--seed", 0)
    json_of(installed, "synthesize", critic, *synthesis, "--out", grown)
    for name in ("policy.onnx", "policy.safetensors"):
        json_of(installed, "policies", "export", grown, "--index", 0, "--out", place / name)
    online = ("--critic", "psvf", "--policy", 4, "--family", "lab-conv", "--steps", 60)
    json_of(installed, "train-online", "toyenv:Toy-v0", *online, "--run", place / "run")
    # Without the package each file is whole, and says what is missing.
    for argv in (
        ("policies", "info", grown),
        ("evaluate", grown),
        ("fit-critic", "lab/conv-v0", "--critic", "pavf", "--out", place / "other"),
        ("synthesize", critic, "--out", place / "other"),
    ):
        _, err = ran(None, *argv, code=5)
        assert "of the family 'lab-conv', which is not installed; install the package" in err


def test_what_a_package_adds_conforms(installed: Path) -> None:
    tests = [f"{ROOT}/tests/{name}.py" for name in (
        "critics/test_conformance", "policies/test_families", "rollout/test_schedules",
        "runs/test_loggers",
    )]  # fmt: skip
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "lab", *tests],
        env={**os.environ, **paths(installed)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout
    assert "failed" not in process.stdout

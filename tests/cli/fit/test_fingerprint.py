"""Critics that read what policies do, and policies of other architectures, from a user's side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cli_tools import make, pbvf
from pbvf_offline.policies.files import load_policies

FIT = "--critic psvf --hidden 8 --updates 20 --seed 0"
GROW = ("--steps", 4, "--restarts", 2, "--seed", 0, "-q", "--json")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets of linear policies, each with a critic of parameters and one of actions."""
    folder = tmp_path_factory.mktemp("made")
    for env in ("ToyPair", "ToyDiscrete"):
        data = f"lab/{env.lower()}-v0"
        make(
            folder,
            f"collect toyenv:{env}-v0 --dataset {data} --episodes 12 --seed 0",
            f"fit-critic {data} {FIT} --out {env}-theta",
            f"fit-critic {data} {FIT} --out {env}-actions --fingerprint 6",
        )
    return folder


@pytest.fixture(autouse=True)
def _datasets(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "datasets"))


def version(path: Path) -> int:
    image = path.read_bytes()
    header = json.loads(image[8 : 8 + int.from_bytes(image[:8], "little")])
    return int(json.loads(header["__metadata__"]["pbvf"])["version"])


@pytest.mark.parametrize("env", ["ToyPair", "ToyDiscrete"])
def test_deep_policies_from_a_critic_of_linear_ones(env: str, made: Path) -> None:
    critic = made / f"{env}-actions"
    argv = ["--policy", "6,5", "--from-scratch", 3, "--out", "deep", "--evaluate"]
    measure = ["--evaluate-every", 2, "--episodes", 2]
    grown = pbvf("synthesize", critic, *GROW, *argv, *measure).ok()
    policies = load_policies(Path("deep")).policies
    assert policies.spec.hidden == (6, 5)
    assert all(distance <= 1 + 1e-6 for distance in grown.json["distance"])
    assert len(grown.json["closest"]) == 3
    told = pbvf("evaluate", "deep", "--critic", critic, "--episodes", 2, "-q", "--json")
    assert told.json["predicted"] == pytest.approx(grown.json["predicted"], abs=1e-5)
    for more in (["--policy", "6"], []):
        pbvf("synthesize", critic, *GROW, "--from-scratch", 3, *more, "--out", "deep").refused(
            7, "hidden"
        )


def test_another_family(made: Path) -> None:
    argv = ["--policy", "4", "--family", "relu-mlp", "--out", "relu"]
    assert pbvf("synthesize", made / "ToyPair-actions", *GROW, *argv).code == 0
    assert load_policies(Path("relu")).policies.spec.arch == "4 relu-mlp"


@pytest.mark.parametrize(
    ("argv", "option"), [(["--policy", "8"], "--policy"), (["--family", "relu-mlp"], "--family")]
)
def test_a_critic_of_parameters_takes_no_other_policies(
    argv: list[str], option: str, made: Path, here: Path
) -> None:
    ran = pbvf("synthesize", made / "ToyPair-theta", *GROW, *argv, "--out", "p")
    assert ran.code == 2
    assert ran.error.startswith(f"error: {option}: ")
    assert "--fingerprint" in ran.error
    assert not (here / "p").exists()


def test_other_policies_cannot_be_compared_with_a_critic_of_parameters(made: Path) -> None:
    argv = ["--policy", "8", "--out", "deep"]
    assert pbvf("synthesize", made / "ToyPair-actions", *GROW, *argv).code == 0
    pbvf("evaluate", "deep", "--critic", made / "ToyPair-theta").refused(
        5, "evaluates deterministic linear policies", "--fingerprint"
    )
    ran = pbvf("synthesize", made / "ToyPair-theta", "--from", "deep", "--out", "p")
    assert ran.code == 5
    pbvf("synthesize", made / "ToyDiscrete-actions", "--from", "deep", "--out", "p").refused(
        5, "same observations, actions and squash"
    )


def test_the_format_version_tells_of_fingerprints(made: Path) -> None:
    assert version(made / "ToyPair-theta") == 1
    assert version(made / "ToyPair-actions") == 2
    assert pbvf("dataset", "verify", made / "ToyPair-actions").code == 0


def test_asking_for_another_fingerprint_is_a_conflict(made: Path, here: Path) -> None:
    shutil.copy(made / "ToyPair-actions", here / "c")
    fit = ["lab/toypair-v0", "--critic", "psvf", "--hidden", "8", "--updates", 20, "-q"]
    again = pbvf("fit-critic", *fit, "--fingerprint", 6, "--out", "c", "--json")
    assert again.json["already_complete"] is True
    for more in (["--fingerprint", 5], []):
        pbvf("fit-critic", *fit, *more, "--out", "c").refused(7, "fingerprint")


# ------------------------------------------------------------------------------ --from


@pytest.mark.parametrize("name", ["theta", "actions"])
def test_given_policies_are_climbed_further(name: str, made: Path) -> None:
    critic = made / f"ToyPair-{name}"
    first = pbvf("synthesize", critic, *GROW, "--from-scratch", 3, "--out", "first").json
    argv = ["--seed", 1, "-q", "--json", "--from", "first", "--steps", 20]
    ran = pbvf("synthesize", critic, *argv, "--out", "second").ok()
    assert len(ran.json["predicted"]) == 3
    assert np.all(np.array(ran.json["objective"]) >= np.array(first["objective"]) - 1e-6)
    assert pbvf("synthesize", critic, *argv, "--out", "second").json["already_complete"] is True
    # Other policies to start from, or none, are another synthesis.
    assert pbvf("synthesize", critic, *GROW, "--from-scratch", 3, "--out", "other").code == 0
    moved = ["--from-scratch", 3, "--restarts", 1, "--steps", 20, "--seed", 1]
    for change in (["--from", "second", *argv[:3], "--steps", 20], moved):
        pbvf("synthesize", critic, *change, "--out", "second").refused(7, "started-from")


def test_stochastic_policies_are_read_with_their_noise(made: Path) -> None:
    collect = ["--dataset", "lab/noisy-v0", "--episodes", 12, "--seed", 0, "-q", "--stochastic"]
    assert pbvf("collect", "toyenv:ToyPair-v0", *collect).code == 0
    fit = ["--critic", "pavf", "--hidden", "8", "--updates", 5, "--fingerprint", 3, "-q"]
    assert pbvf("fit-critic", "lab/noisy-v0", *fit, "--out", "c").code == 0
    assert pbvf("synthesize", "c", *GROW, "--policy", "4", "--out", "p").code == 0
    assert load_policies(Path("p")).policies.spec.stochastic


@pytest.mark.parametrize("value", ["-1", "4097", "many"])
def test_a_fingerprint_out_of_range(value: str) -> None:
    pbvf(
        "fit-critic", "lab/toypair-v0", *FIT.split(), "--out", "c", f"--fingerprint={value}"
    ).refused(2, "--fingerprint")


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["--from-scratch", 3], "--from-scratch"),
        (["--policy", "4"], "--policy"),
        (["--family", "relu-mlp"], "--family"),
        (["--restarts", 2], "--restarts"),
        ([], "x"),
    ],
)
def test_what_does_not_go_with_given_policies(argv: list[object], option: str, made: Path) -> None:
    ran = pbvf("synthesize", made / "ToyPair-theta", "--from", "x", *argv, "--out", "p")
    assert ran.code == 2
    words = "does not go with --from" if argv else "does not exist"
    assert ran.error.startswith(f"error: {option}: {words}")

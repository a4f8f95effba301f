"""``--device`` of every command: on a GPU where there is one, and on one that stands in for it."""

from __future__ import annotations

import dataclasses
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from cli_tools import ROOT, pbvf
from libtools import make_policies
from model_tools import SETTINGS, target_data
from pbvf_cli.commands.parts import fit_imagined
from pbvf_cli.shared import devices
from pbvf_offline.fit.rounds import RoundSettings, round_defaults
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.environment import ImaginedVectorEnv
from pbvf_offline.models.imagine import imagine
from pbvf_offline.models.noise import action_noise
from pbvf_offline.models.scales import Scales
from pbvf_offline.policies.batch import has_bfloat16
from pbvf_offline.records import Defaults
from stand_in import CPU, THERE, Standing

DATA = "lab/drift-v0"
QUICK = ("--seed", 0, "--json", "-q")
FIT = ("fit-critic", DATA, "--hidden", 8, "--updates", 20)
MODEL = (
    "fit-model", DATA, "--hidden", "8,8", "--members", 2, "--updates", 20, "--batch-size", 16,
    "--trial-updates", 5,
)  # fmt: skip
ROUNDS = ("fit-critic", DATA, "--model", "{drift}/good", "--hidden", 8, "--rounds", 1)
CLIMB = ("--steps", 6, "--restarts", 2)
TRAIN = ("--steps", 200, "--evaluations", 2, "--evaluation-episodes", 1, "--hidden", 8)
COMMANDS: dict[str, tuple[object, ...]] = {
    "fit-critic psvf": (*FIT, "--critic", "psvf", "--validation-policies", 0.2),
    "fit-critic pavf": (*FIT, "--critic", "pavf", "--relabel", 0),
    "fit-critic --fingerprint": (*FIT, "--critic", "psvf", "--fingerprint", 4),
    "fit-model": (*MODEL, "--noise", 0.1),
    "rounds of returns": (*ROUNDS, "--critic", "pssvf", "--compare", 5, "--leaders", 2),
    "rounds of steps": (
        *ROUNDS, "--critic", "psvf", "--fingerprint", 4, "--policy", "4", "--compare", 0,
        "--leaders", 2,
    ),
    "synthesize": ("synthesize", "{drift}/theta", *CLIMB, "--from-scratch", 2),
    "synthesize outside": ("synthesize", "{drift}/theta", "--steps", 6, "--no-trust-region"),
    "synthesize --policy": ("synthesize", "{drift}/actions", *CLIMB, "--policy", "4"),
    "synthesize --model": (
        "synthesize", "{drift}/theta", "--model", "{drift}/good", "--candidates", 2, *CLIMB,
    ),
    "predict": ("predict", "{drift}/actions", "{drift}/deep", "--model", "{drift}/good"),
    "evaluate": (
        "evaluate", "{drift}/grown", "--critic", "{drift}/theta", "--env", "toyenv:ToyDrift-v0",
        "--episodes", 1,
    ),
    "export": ("policies", "export", DATA, "--critic", "{drift}/theta", "--top", 2),
    "train-online pssvf": ("train-online", "toyenv:ToyDrift-v0", "--critic", "pssvf", *TRAIN),
    "train-online psvf": ("train-online", "toyenv:ToyDrift-v0", "--critic", "psvf", *TRAIN),
    "train-online pavf": (
        "train-online", "toyenv:ToyDrift-v0", "--critic", "pavf", "--stochastic", *TRAIN,
    ),
}  # fmt: skip
WITHOUT_OUT = ("predict", "evaluate")


@pytest.fixture(autouse=True)
def _datasets(drift: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(drift / "datasets"))


@pytest.fixture(autouse=True)
def _small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(kind: str, env_id: str | None) -> Defaults[RoundSettings]:
        usual = round_defaults(kind, env_id)
        few = {"known": 4, "fresh": 4, "starts": 2, "steps": 4, "updates": 5}
        return Defaults(dataclasses.replace(usual.settings, **few), usual.sources)

    monkeypatch.setattr(fit_imagined, "round_defaults", small)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standing]:
    """``--device cuda`` is the device that stands in for a GPU."""
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    places = {"cpu": CPU, "cuda": THERE}
    monkeypatch.setattr(devices, "torch_device", places.__getitem__)
    with Standing() as mode:
        yield mode


@pytest.fixture
def card() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")


@pytest.fixture(params=["standing", pytest.param("card", marks=pytest.mark.cuda)])
def _device(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(request.param)


def run(drift: Path, device: str, out: str, *argv: object) -> dict[str, Any]:
    """Run a command on a device and return its JSON; ``out`` is where it writes, if it does."""
    written = () if argv[0] in WITHOUT_OUT else ("--run" if argv[0] == "train-online" else "--out",)
    placed = [arg.format(drift=drift) if isinstance(arg, str) else arg for arg in argv]
    seed = QUICK[2:] if argv[0] in ("predict", "policies") else QUICK
    argv = (*placed, *written, *([out] if written else ()), "--device", device, *seed)
    return pbvf(*argv).ok().json


def measured(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers with a decimal point in a JSON value, but for times."""
    if isinstance(value, float) and not name.endswith(("seconds", "per_second")):
        yield name, value
    parts = value.items() if isinstance(value, dict) else ()
    parts = enumerate(value) if isinstance(value, list) else parts
    for key, part in parts:
        yield from measured(part, f"{name}/{key}")


def assert_alike(one: Path, other: Path) -> None:
    """Check that the numbers in two files, or the critics of two runs, are nearly the same."""
    files = (path / "critic.safetensors" if path.is_dir() else path for path in (one, other))
    ours, theirs = (load_file(path) for path in files)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-2, atol=1e-3, err_msg=name)


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_on_a_device_what_it_says_on_the_cpu(here, drift, name):
    there, own = (run(drift, device, device, *COMMANDS[name]) for device in ("cuda", "cpu"))
    assert dict(measured(there)) == pytest.approx(dict(measured(own)), rel=1e-2, abs=1e-3)
    if COMMANDS[name][0] not in WITHOUT_OUT:
        assert_alike(here / "cuda", here / "cpu")


@pytest.mark.usefixtures("_device")
def test_several_critics_at_once(here, drift):
    argv = (*FIT, "--critic", "psvf")
    pbvf(*argv, "--seeds", "0-1", "--out", "c", "--device", "cuda", "--json", "-q").ok()
    run(drift, "cpu", "cpu", *argv)
    assert_alike(here / "c-seed-0", here / "cpu")


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("argv", [(*FIT, "--critic", "psvf"), MODEL], ids=["critic", "model"])
@pytest.mark.parametrize("order", [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_what_one_device_began_another_goes_on_with(here, drift, argv, order):
    for updates, device in zip((20, 30), order, strict=True):
        last = run(drift, device, "c", *argv, "--updates", updates)
    assert not last["already_complete"]
    run(drift, order[-1], "whole", *argv, "--updates", 30)
    assert_alike(here / "c", here / "whole")
    if order[0] == order[1]:  # the same seed on the same device: the same bytes
        assert (here / "c").read_bytes() == (here / "whole").read_bytes()


@pytest.mark.usefixtures("_device")
def test_a_run_goes_on_on_another_device(here, drift):
    argv = COMMANDS["train-online psvf"]
    run(drift, "cuda", "run", *argv)
    for folder in ("run", "whole"):
        run(drift, "cpu", folder, *argv, "--steps", 400)
    assert_alike(here / "run", here / "whole")


@pytest.mark.parametrize(
    ("argv", "option", "most"),
    [
        ((*FIT, "--critic", "psvf"), "--updates", 1),
        ((*MODEL, "--noise", 0, "--angles", "--no-mixed"), "--updates", 1),
        (COMMANDS["synthesize outside"], "--steps", 2),
        (COMMANDS["synthesize"], "--steps", 2),
    ],
    ids=["critic", "model", "ascent", "confined"],
)
def test_a_step_waits_for_a_gpu_as_seldom_as_it_can(here, drift, standing, argv, option, most):
    waits = []
    for steps in (20, 40):
        before = standing.back.total()
        run(drift, "cuda", f"of-{steps}", *argv, option, steps)
        waits.append(standing.back.total() - before)
    assert 0 < (waits[1] - waits[0]) / 20 <= most


def test_noise_stored_actions_and_a_vector_environment_are_brought_to_the_device(standing):
    data, rng = target_data(), np.random.default_rng(0)
    spec, scales = data.policies.spec, Scales.of(data, np.arange(len(data)))
    drawing = dataclasses.replace(spec, stochastic=True)
    starts = data.initial_observations[:2].astype(np.float64)
    noise = action_noise(drawing, rng, 4, SETTINGS.members, len(starts))
    theta, actions = make_policies(drawing, 3).theta, torch.ones(3, 4, spec.actions.outputs)
    said = []
    for place in (CPU, THERE):
        ensemble = Ensemble(spec, scales, SETTINGS).to(place)
        env = ImaginedVectorEnv(ensemble, starts, 3, 4)
        env.reset(seed=0)
        drawn = imagine(ensemble, drawing, theta, starts, 4, noise=noise, record=True)
        given = imagine(ensemble, spec, theta[:, :0], starts, 4, actions=actions)
        rewards = env.step(np.zeros((3, spec.actions.outputs), np.float32))[1]
        said.append((drawn.returns, drawn.recording.states, given.returns, rewards))
    for own, there in zip(*said, strict=True):
        np.testing.assert_array_equal(own, there)


def test_the_device_that_stands_in_keeps_its_tensors_apart(standing):
    there = torch.ones(2, device=THERE)
    with pytest.raises(RuntimeError, match="in one operation"):
        there + torch.ones(2)
    with pytest.raises(RuntimeError, match="numpy"):
        there.numpy()
    before = standing.back.total()
    assert (there + 1).cpu().tolist() == [2, 2]
    assert standing.back.total() == before + 1


@pytest.mark.usefixtures("_device")
def test_the_benchmark_runs(here, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cuda", "--small", "--json", "g.json"])
    runpy.run_path(str(ROOT / "benchmarks" / "gpu.py"), run_name="__main__")
    results = json.loads(Path("g.json").read_text())["results"]
    assert len(results) == 10 + has_bfloat16(torch.device("cuda"))
    assert all(result["rate"] > 0 for result in results)


@pytest.mark.cuda
@pytest.mark.usefixtures("card")
def test_which_cards_there_are_and_what_they_hold(here, drift):
    argv = (*FIT, "--critic", "psvf", "--json", "-q", "--out", "c", "--seed", 0)
    pbvf(*argv, "--device", "cuda:0").ok()
    pbvf(*argv, "--device", "cuda:99").refused(2, "--device: cuda:99 is not here")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        more = (*argv, "--overwrite", "--batch-size", 100_000, "--device", "cuda")
        pbvf(*more).refused(6, "the device has not enough memory")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

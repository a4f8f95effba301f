"""``pbvf policies import | export | info`` from a user's side."""

from __future__ import annotations

import os
import pickle
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import toyenv  # noqa: F401
from cli_tools import ROOT, Ran, pbvf, rows
from exchange_tools import acts, executed, network, run_onnx
from libtools import box_spec, discrete_spec, make_policies
from pbvf_datasets import load_dataset
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.io.lock import locked
from pbvf_offline.policies.files import PoliciesFile, load_policies

TOY = "toyenv:ToyAsym-v0"  # 3 observations, 1 action in [-0.3, 0.7]
LOW, HIGH = -0.3, 0.7


def weights(name: str = "w.safetensors", *sizes: int, seed: int = 0, **more: Any) -> nn.Sequential:
    module = network(*(sizes or (3, 8, 1)), seed=seed)
    save_file({**module.state_dict(), **more}, name)
    return module


def bring(*argv: object, files: tuple[str, ...] = ("w.safetensors",), out: str = "p") -> Ran:
    return pbvf("policies", "import", *files, "--env", TOY, "--out", out, *argv)


def brought(*argv: object, **kwargs: Any) -> dict[str, Any]:
    ran = bring("--json", "-q", *argv, **kwargs).ok()
    return ran.json


def hand_made(
    name: str = "given", rows: int = 3, spec: Any = None, origin: Any = None, mean: Any = None
) -> PoliciesFile:
    spec = spec or box_spec(3, (8,), low=LOW, high=HIGH)
    file = PoliciesFile(
        make_policies(spec, rows, mean=mean), EnvReference("Toy-v0", "toyenv"), origin or {}
    )
    file.save(Path(name))
    return file


# --------------------------------------------------------------------------------- import


@pytest.mark.parametrize("squash", ["tanh", "none"])
def test_a_module_trained_elsewhere_becomes_a_tagged_dataset(squash: str) -> None:
    mean, std = torch.tensor([0.5, -0.5, 2.0]), torch.tensor([0.5, 2.0, 1.0])
    modules = [
        weights(f"{k}.safetensors", 3, 16, 16, 1, seed=k, obs_mean=mean, obs_std=std)
        for k in range(2)
    ]
    made = brought("--squash", squash, files=("0.safetensors", "1.safetensors"))
    assert made["count"] == 2
    argv = ["--dataset", "lab/theirs-v0", "--episodes", 4, "--seed", 0, "-q"]
    pbvf("collect", TOY, "--policies", "p", *argv).ok()
    data = load_dataset("lab/theirs-v0")
    assert data.theta.shape[0] == 2
    steps = data.transitions
    assert set(steps.policy.tolist()) == {0, 1}
    thetas = load_policies(Path("p")).policies.theta
    for row in (0, 1):
        (number,) = [k for k in (0, 1) if np.array_equal(thetas[k], data.theta[row])]
        mine = steps.policy == row
        obs = torch.from_numpy(steps.obs[mine].astype(np.float32))
        with torch.no_grad():
            theirs = executed(modules[number]((obs - mean) / std), LOW, HIGH, squash)
        np.testing.assert_allclose(steps.action[mine].reshape(-1, 1), theirs, rtol=0, atol=1e-6)
        assert len(np.unique(theirs)) > 3


def test_import_says_what_it_took_and_assumed() -> None:
    weights("w.safetensors", obs_mean=torch.zeros(3), obs_std=torch.ones(3), log_std=torch.zeros(1))
    ran = bring().ok()
    shown = rows(ran.err)
    assert shown["activation"].startswith("tanh ")
    assert shown["squash"] == "tanh default"
    assert "tanh between the layers is assumed" in ran.err
    assert "left out: log_std" in ran.err
    assert "tensor obs_mean" in ran.out
    made = brought("--overwrite")
    assert made["policies"] == "p"
    assert made["layers"] == ["0", "2"]
    assert made["left_out"] == ["log_std"]
    assert made["normaliser"] == "tensor obs_mean"
    assert (made["env"], made["parameters"]) == (TOY, 41)
    assert made["spec"]["hidden"] == [8]
    assert made["check"] is None
    assert made["rounded"] is False


def test_import_options() -> None:
    module = weights("w.safetensors", 3, 8, 1)
    np.save("mean.npy", [1.0, 2.0, 3.0])
    argv = ["--obs-mean", "mean.npy", "--obs-std", "[1, 2, 4]", "--layers", "0.weight, 2"]
    brought(*argv, "--stochastic", "--log-std", "[-1]", "--activation", "tanh")
    policies = load_policies(Path("p")).policies
    assert policies.obs_std.tolist() == [[1, 2, 4]]
    assert policies.spec.stochastic
    assert policies.theta[0, 0] == -1
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_array_equal(policies.theta[0, 1:], flat)


def test_the_lqr_is_not_squashed_unless_asked() -> None:
    weights("w.safetensors", 1, 1)
    for argv, squash in (([], "none"), (["--squash", "tanh"], "tanh")):
        out = f"p-{squash}"
        ran = pbvf(
            *("policies", "import", "w.safetensors", "--env", "LQR-v0", "--out", out, "--json"),
            *argv,
        )
        assert ran.json["spec"]["squash"] == squash


def test_import_can_be_checked() -> None:
    module = weights()
    obs = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = {"tanh": module(obs), "relu": module[2](torch.relu(module[0](obs)))}
    for name, output in outputs.items():
        save_file({"obs": obs, "action": torch.from_numpy(executed(output, LOW, HIGH))}, name)
    bring("--check", "relu").refused(
        5, "relu: the imported policy acts otherwise: actions differ by up"
    )
    assert not Path("p").exists()
    made = brought("--check", "tanh")
    assert made["check"]["rows"] == 50
    assert made["check"]["largest_difference"] < 1e-6
    assert "50 actions equal" in bring("--check", "tanh").out
    bring("--check", "tanh", files=("w.safetensors", "w.safetensors")).refused(2, "--check")


def test_import_twice_then_otherwise() -> None:
    weights()
    assert brought()["already_complete"] is False
    before = Path("p").read_bytes()
    again = bring().ok()
    assert "already complete" in again.err
    bring("--squash", "none").refused(7, 'squash is "tanh" there and "none" here')
    Path("other").write_text("mine")
    assert bring(out="other").code == 7
    assert Path("other").read_text() == "mine"
    assert Path("p").read_bytes() == before
    brought("--squash", "none", "--overwrite")
    assert Path("p").read_bytes() != before
    with locked(Path("q")):
        bring(out="q").refused(7, "another process")
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--layers", "0,"], "--layers"),
        (["--layers", "0,1"], "no linear layer '1'"),
        (["--obs-mean", "[1, 2, 3]"], "--obs-std"),
        (["--obs-mean", "[1, x]"], "--obs-mean"),
        (["--obs-mean", "nope", "--obs-std", "nope"], "no tensor 'nope'"),
        (["--obs-mean", "nope.npy", "--obs-std", "[1]"], "nope.npy"),
        (["--obs-mean", "[0, 0, 0]", "--obs-std", "[1, 1, 0]"], "not positive"),
        (["--stochastic"], "log_std"),
        (["--squash", "clip"], "--squash"),
        (["--format", "jax"], "--format"),
        (["--env-kwargs", "[]"], "--env-kwargs"),
        (["--env", "Swimmer-v3"], "v5"),
        (["--env", "toyenv:ToyDict-v0"], "supported are"),
        (["--out", "."], "folder"),
        (["--check", "nowhere"], "nowhere: does not exist"),
        (["nowhere.safetensors"], "nowhere.safetensors: does not exist"),
        (["pipe"], "regular file"),
        (["."], "regular file"),
    ],
)
def test_wrong_usage_of_import_exits_2(argv: list[str], words: str) -> None:
    weights()
    os.mkfifo("pipe")
    bring(*argv).refused(2, words)
    assert not Path("p").exists()


def test_import_of_a_file_of_this_project() -> None:
    hand_made("theirs")
    bring(files=("theirs",)).refused(5, "needs no import")


class Bomb:
    def __reduce__(self) -> Any:
        return (open, ("boom", "w"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("w.pt", "torch"),
        ("w.pth", "legacy"),
        ("w.safetensors", "torch"),
        ("w.safetensors", "legacy"),
        ("w.safetensors", "pickle"),
        ("w.zip", "sb3"),
        ("w.safetensors", "sb3"),
    ],
)
def test_case_22_pickles_are_not_opened(name: str, kind: str) -> None:
    if kind == "sb3":
        from stable_baselines3 import PPO

        model = PPO("MlpPolicy", make_env(EnvConfig(TOY)), n_steps=8, batch_size=8, device="cpu")
        model.save(Path(name).with_suffix(".zip"))
        Path(name).with_suffix(".zip").rename(name)
    elif kind == "pickle":
        Path(name).write_bytes(pickle.dumps({"weight": Bomb()}))
    else:
        torch.save({"weight": Bomb()}, name, _use_new_zipfile_serialization=kind == "torch")
    for argv in (
        ["import", name, "--env", TOY, "--out", "p"],
        ["export", name, "--out", "p"],
        ["info", name],
    ):
        ran = pbvf("policies", *argv).refused(4, name)
        assert "weights_only" not in ran.error
        assert "torch.load" not in ran.error
    assert "safetensors.torch.save_file(module.state_dict()" in bring(files=(name,)).error
    weights("good")
    for option in ("--obs-mean", "--obs-std", "--log-std", "--check"):
        assert bring(option, name, files=("good",)).code == 4
    assert not Path("boom").exists()
    assert not Path("p").exists()


# --------------------------------------------------------------------------------- export


def test_one_policy_or_all_of_them() -> None:
    file = hand_made()
    ran = pbvf(
        "policies", "export", "given", "--index", 1, "--out", "one.safetensors", "--json"
    ).ok()
    assert ran.json["files"] == [{"path": "one.safetensors", "policy": 1}]
    assert (ran.json["format"], ran.json["dtype"]) == ("torch", "float64")
    ran = pbvf("policies", "export", "given", "--out", "all.onnx", "--json")
    assert [f["path"] for f in ran.json["files"]] == [f"all-{k}.onnx" for k in range(3)]
    assert ran.json["format"] == "onnx"
    obs = np.random.default_rng(0).normal(0, 1, (20, 3))
    for k in range(3):
        ours = acts(file.policies, obs, k)
        np.testing.assert_allclose(run_onnx(f"all-{k}.onnx", obs), ours, rtol=0, atol=1e-6)
    hand_made("single", rows=1)
    ran = pbvf("policies", "export", "single", "--out", "s.safetensors").ok()
    assert Path("s.safetensors").exists()
    assert "computes in float64" in ran.out


def test_an_export_says_its_activation_when_it_is_imported_again() -> None:
    spec = box_spec(3, (8,), low=LOW, high=HIGH, family="relu-mlp")
    theta = hand_made("relu", rows=1, spec=spec).policies.theta
    assert pbvf("policies", "export", "relu", "--out", "w.safetensors").code == 0
    ran = bring().ok()
    assert "assumed" not in ran.err
    back = load_policies(Path("p")).policies
    assert back.spec.family == "relu-mlp"
    np.testing.assert_array_equal(back.theta, theta)
    assert brought("--activation", "tanh", "--overwrite")["spec"].get("family") is None


def test_export_twice_then_otherwise() -> None:
    hand_made()
    argv = ["policies", "export", "given", "--out", "e"]
    assert pbvf(*argv).code == 0
    again = pbvf(*argv, "--json")
    assert again.json["already_complete"] is True
    assert "already complete" in again.err
    before = Path("e-2").read_bytes()
    pbvf(*argv, "--dtype", "float32").refused(7, "e-0: exists with other content")
    assert Path("e-2").read_bytes() == before
    assert pbvf(*argv, "--dtype", "float32", "--overwrite").code == 0
    assert Path("e-2").read_bytes() != before


def test_export_of_stochastic_policies_says_what_it_is() -> None:
    hand_made("noisy", spec=box_spec(3, stochastic=True))
    ran = pbvf("policies", "export", "noisy", "--out", "e", "--index", 0)
    assert "the export is their mean action" in ran.err
    hand_made("choice", spec=discrete_spec(3, stochastic=True))
    ran = pbvf("policies", "export", "choice", "--out", "f.onnx", "--index", 0)
    assert "most likely action" in ran.err
    assert "3 choices from 0" in ran.out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--index", "3"], "--index: 3 is not in 0 … 2"),
        (["--index", "-1"], "--index"),
        (["--format", "tf"], "--format"),
        (["--dtype", "float16"], "--dtype"),
        (["--out", "."], "folder"),
    ],
)
def test_wrong_usage_of_export_exits_2(argv: list[str], words: str) -> None:
    hand_made()
    pbvf("policies", "export", "given", "--out", "e", *argv).refused(2, words)
    assert sorted(p.name for p in Path().iterdir()) == ["given"]


def test_export_and_info_of_what_is_no_policies_file() -> None:
    hand_made()
    whole = Path("given").read_bytes()
    Path("bad").write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    weights("foreign")
    for name, code in (("bad", 3), ("foreign", 5), ("nowhere", 2), (".", 2)):
        for argv in (["export", name, "--out", "e"], ["info", name]):
            ran = pbvf("policies", *argv)
            assert ran.code == code, ran.err
            assert ran.error
    assert not Path("e").exists()


def test_places_that_refuse_exit_6() -> None:
    weights()
    hand_made()
    Path("file").write_text("")
    for argv in (
        ["import", "w.safetensors", "--env", TOY, "--out", "file/p"],
        ["export", "given", "--out", "file/e"],
    ):
        pbvf("policies", *argv).refused(6, "file")


# ----------------------------------------------------------------------------------- info


def test_info() -> None:
    origin = {"made_by": "synthesize", "critic": "ab" * 32, "settings": {"seed": 1}, "n": 3}
    file = hand_made(rows=30, origin=origin, mean=[1.0, 2.0, 3.0])
    shown = pbvf("policies", "info", "given").ok()
    assert shown.err == ""
    for words in ("30 (30 distinct)", "toyenv:Toy-v0", "deterministic, 8", "synthesize", "10 more"):
        assert words in shown.out
    told = pbvf("policies", "info", "given", "--json").json
    assert (told["policies"], told["distinct"], told["parameters"]) == (30, 30, 41)
    assert told["env"] == "toyenv:Toy-v0"
    assert told["spec"] == file.policies.spec.to_dict()
    assert told["origin"] == origin
    assert told["normalised"] is True
    assert told["log_std"] is None
    norms = np.linalg.norm(file.policies.theta, axis=1)
    np.testing.assert_allclose(told["theta_norms"], norms, rtol=1e-6)
    assert told["obs_mean"][29] == [1.0, 2.0, 3.0]


def test_info_of_equal_and_of_stochastic_policies() -> None:
    file = hand_made("noisy", rows=2, spec=box_spec(3, stochastic=True))
    doubled = PoliciesFile(file.policies.select([0, 1, 0]))
    doubled.save(Path("doubled"))
    told = pbvf("policies", "info", "doubled", "--json").json
    assert (told["policies"], told["distinct"]) == (3, 2)
    assert told["env"] is None
    assert told["normalised"] is False
    assert told["log_std"] == [[float(v)] for v in file.policies.theta[[0, 1, 0], 0]]
    assert "not named" in pbvf("policies", "info", "doubled").out


def test_info_builds_and_prints_nothing_that_a_file_asks_for(here: Path) -> None:
    (here / "evilmod.py").write_text("open('boom', 'w')")
    file = hand_made("evil", origin={"made_by": "\x1b[2J\nerror: all is lost", "note": "x" * 500})
    PoliciesFile(
        file.policies,
        EnvReference("Evil-v0", "evilmod", {"xml_file": "/etc/hostname"}),
        file.origin,
    ).save(Path("evil"))
    ran = pbvf("policies", "info", "evil").ok()
    assert "\x1b" not in ran.out
    assert not [line for line in ran.out.splitlines() if line.startswith("error")]
    assert pbvf("policies", "export", "evil", "--index", 0, "--out", "e").code == 0
    assert not (here / "boom").exists()


# ----------------------------------------------------------------------------------- docs

# The same at a size for tests: what is replaced must be there, so that it cannot rot.
SMALLER = {
    "--episodes 20": "--episodes 1",
    'PPO("MlpPolicy", env, device="cpu").learn(20_000)': (
        'PPO("MlpPolicy", env, device="cpu", n_steps=32, batch_size=32).learn(32)'
    ),
}


def test_the_page_on_other_programs_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "interop.md").read_text()
    page, _, _ = page.partition("## Environments of other packages")  # which are extras
    for old, new in SMALLER.items():
        assert old in page, f"interop.md no longer says {old!r}"
        page = page.replace(old, new)
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == [
        *("python", "bash", "python", "python", "bash"),
        *("bash", "python", "bash", "python", "python", "bash", "python"),
    ]
    names: dict[str, Any] = {"__name__": "interop"}
    for language, text in blocks:
        if language == "python":
            exec(compile(text, "interop.md", "exec"), names)
            continue
        for command in text.splitlines():
            program, *arguments = shlex.split(command)
            assert program == "pbvf"
            ran = pbvf(*arguments)
            assert ran.code == 0, f"{command}: {ran.err}"
    steps = load_dataset("lab/theirs-v0").transitions
    with torch.no_grad():
        theirs = names["actor"](torch.from_numpy(steps.obs).float()).tanh().numpy()
        exported = names["act"](torch.from_numpy(steps.obs)).numpy()
    np.testing.assert_allclose(steps.action, theirs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(steps.action, exported, rtol=0, atol=1e-6)
    graph = names["session"].run(None, {"obs": steps.obs})[0]
    np.testing.assert_allclose(steps.action, graph, rtol=0, atol=1e-6)
    for one, other in (("ppo", "ppo-too"), ("best", "highest")):
        live, file = (load_policies(Path(f"{name}.safetensors")) for name in (one, other))
        np.testing.assert_array_equal(live.policies.theta, file.policies.theta)


def test_every_key_is_on_the_page_of_commands() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    section = page.split("## `pbvf policies`")[1].split("\n## ")[0]
    weights()
    hand_made()
    for told in (
        brought(),
        pbvf("policies", "export", "given", "--out", "e", "--json").json,
        pbvf("policies", "info", "given", "--json").json,
    ):
        for key in set(told) - {"already_complete", "path"}:
            assert f"`{key}`" in section, key


def test_an_export_never_replaces_its_own_input(tmp_path):
    file = tmp_path / "policies.safetensors"
    PoliciesFile(make_policies(box_spec(3), 1)).save(file)
    before = file.read_bytes()
    pbvf("policies", "export", file, "--out", file, "--overwrite").refused(2, "is the input too")
    assert file.read_bytes() == before

"""Policies to torch modules, state dicts and ONNX; what a network computes is tested by family."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy
import torch
from safetensors.torch import load_file

import toyenv  # noqa: F401
from exchange_tools import (
    acts,
    assert_acts_as,
    description,
    flat,
    observations,
    run_onnx,
    run_recipe,
)
from libtools import box_spec, discrete_spec, make_policies
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import ConflictError, IncompatibleError, UsageError
from pbvf_offline.exchange.exporter import ExportFormat, export_policies, to_module
from pbvf_offline.exchange.importer import import_weights
from pbvf_offline.exchange.interpret import ImportSettings, _check_bounds, _Tensors
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec

ROOT = Path(__file__).resolve().parents[2]
SPECS = {
    "deep": box_spec(4, (16, 16), act_dim=2, low=-0.3, high=0.7),
    "clipped": box_spec(3, (8,), squash="none"),
    "noisy": box_spec(3, (8,), act_dim=2, stochastic=True, family="relu-mlp"),
    "double": box_spec(3, (8,), low=-0.1, high=0.7, dtype="float64"),
    "half": box_spec(3, (8,), low=-0.1, high=0.7, dtype="float16"),
    "discrete": discrete_spec(3, (8,), n=4, start=2, family="relu-mlp"),
    "one": discrete_spec(3, (), n=2, stochastic=True),
}


def wide(name: str, rows: int = 3) -> Policies:
    """Policies whose normaliser matters: large means, small and large deviations."""
    spec, rng = SPECS[name], np.random.default_rng(7)
    mean = rng.normal(0, 50, spec.obs_dim)
    return make_policies(spec, rows, mean=mean, std=rng.uniform(0.05, 20, spec.obs_dim))


def seen(policies: Policies, rows: int = 100) -> np.ndarray:
    """Raw observations (rows, obs_dim) float64 around a policy's normaliser."""
    rng = np.random.default_rng(2)
    mean, std = policies.obs_mean[0], policies.obs_std[0]
    obs: np.ndarray = rng.normal(mean, 1.5 * std, (rows, policies.spec.obs_dim))
    return obs


@pytest.mark.parametrize("name", SPECS)
def test_every_export_acts_as_its_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    policies = wide(name)
    obs = seen(policies)
    graphs = export_policies(policies, tmp_path / "policy.onnx", file_format="onnx")
    assert [file.path.name for file in graphs] == [f"policy-{k}.onnx" for k in range(3)]
    module = to_module(policies, 0)
    for row in range(3):
        (made,) = export_policies(policies, tmp_path / f"{row}" / "policy.safetensors", row=row)
        assert made.row == graphs[row].row == row
        assert_acts_as(policies, row, obs, run_recipe(made.path, obs, monkeypatch))
        assert_acts_as(policies, row, obs, run_onnx(graphs[row].path, obs))
        module.load_state_dict(load_file(made.path))  # all names, and no others
        with torch.no_grad():
            assert_acts_as(policies, row, obs, module(torch.from_numpy(obs)).numpy())
    noisy = policies.spec.stochastic
    assert ("stochastic" in description(made.path)) is noisy
    model = onnx.load(graphs[0].path)
    onnx.checker.check_model(model, full_check=True)
    assert ("stochastic" in model.doc_string) is noisy


def test_a_module_of_a_row_that_is_there() -> None:
    policies = wide("deep")
    module = to_module(policies, 1)
    np.testing.assert_array_equal(flat(module).astype(np.float32), policies.theta[1])
    obs = torch.from_numpy(seen(policies))
    single = to_module(policies, 1).float()(obs).detach()
    np.testing.assert_allclose(single.numpy(), module(obs).detach().numpy(), atol=1e-4)
    for row in (3, -1):
        with pytest.raises(UsageError, match=f"no policy {row} among 3"):
            to_module(policies, row)


def world(spec: PolicySpec, **changes: Any) -> EnvConfig:
    actions: Any = spec.actions
    spaces = {"discrete": (4, 2)}
    if spec.is_continuous:
        spaces = {"low": actions.low[0], "high": actions.high[0], "act_dim": actions.dim}
    return EnvConfig("Toy-v0", {"obs_dim": spec.obs_dim, **spaces, **changes})


@pytest.mark.parametrize("name", ["deep", "clipped", "noisy", "discrete"])
def test_what_was_exported_comes_back_the_same(tmp_path: Path, name: str) -> None:
    spec, policies = SPECS[name], wide(name)
    (made,) = export_policies(policies, tmp_path / "w", row=1)
    settings = ImportSettings(squash=spec.squash, stochastic=spec.stochastic)
    back = import_weights([made.path], world(spec), settings, tmp_path / "p").file.policies
    assert (back.spec.arch, back.spec.stochastic) == (spec.arch, spec.stochastic)
    for part in ("theta", "obs_mean", "obs_std"):
        np.testing.assert_array_equal(getattr(back, part), getattr(policies, part)[1:2])
    if spec.is_continuous:
        with pytest.raises(IncompatibleError, match="action_low"):
            import_weights([made.path], world(spec, low=-5.0), settings, tmp_path / "q")


@pytest.mark.parametrize("name", ["deep", "clipped", "double", "discrete"])
def test_float32_for_runtimes_without_float64(tmp_path: Path, name: str) -> None:
    spec = SPECS[name]
    policies = make_policies(spec, 1, mean=np.full(spec.obs_dim, 0.5), std=np.full(spec.obs_dim, 2))
    obs = observations(spec.obs_dim)
    (made,) = export_policies(policies, tmp_path / "p.onnx", file_format="onnx", dtype="float32")
    kinds = {t.data_type for t in onnx.load(made.path).graph.initializer}
    assert (onnx.TensorProto.DOUBLE in kinds) is (name == "double")  # its actions are float64
    action = run_onnx(made.path, obs)
    np.testing.assert_allclose(action, acts(policies, obs), rtol=0, atol=1e-6)
    (made,) = export_policies(policies, tmp_path / "p", dtype="float32")
    tensors = safetensors.numpy.load_file(made.path)
    assert {str(t.dtype) for t in tensors.values()} <= {"float32", "int64"}


def test_float32_bounds_of_a_float64_space_are_those_of_the_space(tmp_path: Path) -> None:
    """0.1 in single precision is another number."""
    spec = box_spec(3, (8,), low=-0.1, high=0.1, dtype="float64")
    (made,) = export_policies(make_policies(spec, 1), tmp_path / "w", dtype="float32")
    tensors = safetensors.numpy.load_file(made.path)
    _check_bounds(_Tensors(tensors, "w"), spec)
    with pytest.raises(IncompatibleError, match="the environment's"):
        _check_bounds(
            _Tensors(tensors, "w"), box_spec(3, (8,), low=-0.11, high=0.1, dtype="float64")
        )


@pytest.mark.parametrize("file_format", ["torch", "onnx"])
def test_an_export_is_the_same_bytes_each_time(tmp_path: Path, file_format: Any) -> None:
    def export() -> list[Any]:
        return export_policies(wide("noisy", 12), tmp_path / "p", file_format=file_format)

    made = export()
    assert [f.path.name for f in made][:3] == ["p-00", "p-01", "p-02"]
    images = [file.path.read_bytes() for file in made]
    assert all(file.already_complete for file in export())
    made[4].path.unlink()
    assert [file.already_complete for file in export()].count(False) == 1
    assert [file.path.read_bytes() for file in made] == images


@pytest.mark.parametrize("file_format", ["torch", "onnx"])
def test_an_export_writes_over_nothing_but_exports(
    tmp_path: Path, file_format: ExportFormat
) -> None:
    policies = wide("deep")
    other = {"torch": "onnx", "onnx": "torch"}[file_format]
    export_policies(policies, tmp_path / "p-1", row=0, file_format=other)
    for mine in (b"mine", (tmp_path / "p-1").read_bytes()):
        (tmp_path / "p-1").write_bytes(mine)
        for overwrite in (False, True):
            with pytest.raises(ConflictError, match="p-1: exists and is no policy that was exp"):
                export_policies(
                    policies, tmp_path / "p", file_format=file_format, overwrite=overwrite
                )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p-1"]
    (tmp_path / "p-1").unlink()
    made = export_policies(policies, tmp_path / "p", file_format=file_format, dtype="float32")
    with pytest.raises(ConflictError, match="p-0: exists with other content"):
        export_policies(policies, tmp_path / "p", file_format=file_format)
    before = made[1].path.read_bytes()
    export_policies(policies, tmp_path / "p", file_format=file_format, overwrite=True)
    assert made[1].path.read_bytes() != before


def test_onnx_is_asked_for_when_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)  # as if it were not installed
    with pytest.raises(UsageError, match=r"pbvf-offline\[onnx\]"):
        export_policies(wide("deep"), tmp_path / "p", file_format="onnx")
    assert list(tmp_path.iterdir()) == []


def test_reading_and_writing_weights_needs_no_torch(tmp_path: Path) -> None:
    check = (
        "import sys\n"
        "from pbvf_offline.exchange import exporter, importer, onnx_graph\n"
        "found = {'torch', 'onnx', 'stable_baselines3'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", check], check=True, env=environment)
    # And acting by what was written needs torch and safetensors alone.
    (made,) = export_policies(wide("deep"), tmp_path / "policy.safetensors", row=0)
    recipe = description(made.path).split("\n\n", maxsplit=1)[1]
    check = (
        f"{recipe}\nimport sys\nassert act(torch.zeros(5, 4)).shape == (5, 2)\n"
        "assert not [name for name in sys.modules if name.startswith('pbvf')]\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True, cwd=tmp_path)


def test_no_warnings_from_the_runtime(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    policies = wide("deep")
    (made,) = export_policies(policies, tmp_path / "p", row=0, file_format="onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_onnx(made.path, seen(policies))
    assert capfd.readouterr().err == ""

"""What every policy family holds, those of installed packages included.

All forms of a network are compared in float64: they differ by the order of summation alone, which
is below 1e-9 of the outputs here. Executed actions are float32: within 1e-6 of the range.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from exchange_tools import acts, assert_acts_as, run_onnx, run_recipe
from libtools import box_spec, discrete_spec
from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_offline.exchange.exporter import export_policies, to_module
from pbvf_offline.exchange.state_dict import policy_tensors
from pbvf_offline.policies.batch import network_output, squashed
from pbvf_offline.policies.families import DEFAULT_FAMILY, FAMILIES
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.policies.recompute import Recomputation
from pbvf_offline.policies.spec import PolicySpec

OBS_DIM = 6
SIZES: tuple[tuple[int, ...], ...] = ((), (5,), (4, 3))
SPECS = {
    "box": lambda **k: box_spec(OBS_DIM, act_dim=2, low=-0.3, high=0.7, **k),
    "clipped": lambda **k: box_spec(
        OBS_DIM, low=-0.3, high=0.7, dtype="float64", squash="none", **k
    ),
    "stochastic-box": lambda **k: box_spec(OBS_DIM, act_dim=2, stochastic=True, **k),
    "choice": lambda **k: discrete_spec(OBS_DIM, n=4, start=2, **k),
}


def spec_of(family: str, kind: str, hidden: tuple[int, ...]) -> PolicySpec:
    return SPECS[kind](family=family, hidden=hidden)


def accepts(family: str, hidden: tuple[int, ...]) -> bool:
    """Whether a family has networks of these sizes."""
    try:
        spec_of(family, "box", hidden)
    except UsageError:
        return False
    return True


ARCHITECTURES = [
    (family, sizes) for family in FAMILIES for sizes in SIZES if accepts(family, sizes)
]
every_family = pytest.mark.parametrize("family", FAMILIES)
every_spec = pytest.mark.parametrize(
    "spec",
    [spec_of(name, kind, hidden) for name, hidden in ARCHITECTURES for kind in SPECS],
    ids=lambda spec: f"{spec.arch}-{'box' if spec.is_continuous else 'choice'}",
)


def policies_of(spec: PolicySpec, rows: int = 3) -> Policies:
    """Policies far from zero, whose normalisers matter."""
    rng = np.random.default_rng(7)
    theta = np.stack([2 * init_theta(spec, rng) for _ in range(rows)])
    mean, std = rng.normal(0, 50, (rows, OBS_DIM)), rng.uniform(0.05, 20, (rows, OBS_DIM))
    return Policies(spec, theta, mean, std)


def seen(policies: Policies, row: int = 0, count: int = 40) -> np.ndarray:
    """Raw observations (count, obs_dim) around a policy's normaliser."""
    rng = np.random.default_rng(2)
    return rng.normal(policies.obs_mean[row], 1.5 * policies.obs_std[row], (count, OBS_DIM))


def acted(policies: Policies, row: int, obs: np.ndarray) -> np.ndarray:
    """Outputs (N, outputs) of the actor, one observation at a time."""
    actor = policies.actor(row)
    return np.array([actor.logits(o) for o in obs])


@every_family
def test_a_family_has_some_network_and_its_own_name(family: str) -> None:
    assert FAMILIES[family].name == family
    assert [sizes for name, sizes in ARCHITECTURES if name == family]


def test_acting_needs_no_torch() -> None:
    """Workers that roll policies out never import it."""
    script = """
import json, sys
import numpy as np
from pbvf_offline.policies.actor import Actor
from pbvf_offline.policies.policy import init_theta
from pbvf_offline.policies.spec import PolicySpec
for data in json.loads(sys.argv[1]):
    spec = PolicySpec.from_dict(data, "spec")
    theta = init_theta(spec, np.random.default_rng(0))
    Actor(spec, theta, np.zeros(spec.obs_dim), np.ones(spec.obs_dim)).act(np.ones(spec.obs_dim))
found = {"torch", "onnx"} & set(sys.modules)
assert not found, found
"""
    specs = [spec_of(name, "box", hidden).to_dict() for name, hidden in ARCHITECTURES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", script, json.dumps(specs)]
    subprocess.run(argv, check=True, env=environment)


@every_spec
def test_fresh_parameters(spec: PolicySpec) -> None:
    theta = np.stack([init_theta(spec, np.random.default_rng(k)) for k in range(50)])
    assert theta.shape == (50, spec.size)
    assert theta.dtype == np.float32
    assert np.array_equal(theta[3], init_theta(spec, np.random.default_rng(3)))
    assert len(np.unique(theta, axis=0)) == 50
    network = theta[:, spec.log_std_size :]
    assert np.abs(network).max() <= 1  # no layer has fewer than one input
    assert np.abs(network).max(axis=0).min() > 0.01  # and every parameter is drawn


@every_spec
def test_an_actor_leaves_its_observation_and_itself_as_they_are(spec: PolicySpec) -> None:
    actor = policies_of(spec).actor(0)
    obs = np.array([1, 0, 1, 1, 0, 1])
    first = actor.logits(obs.astype(np.float64))
    before = first.copy()
    for dtype in ("float32", "int64", "uint8", "bool"):
        kept = obs.astype(dtype)
        out = actor.logits(kept)
        assert out.dtype == np.float64
        np.testing.assert_array_equal(out, before)
        np.testing.assert_array_equal(kept, obs)
        out[:] = 99
    np.testing.assert_array_equal(first, before)


@every_spec
def test_many_at_once_act_as_one_at_a_time(spec: PolicySpec) -> None:
    policies = policies_of(spec)
    recomputed = Recomputation(policies)
    rows, counts = [2, 0, 1, 1, 0], [7, 7, 7, 3, 0]
    obs = np.concatenate([seen(policies, row, n) for row, n in zip(rows, counts, strict=True)])
    out = recomputed.outputs(rows, counts, obs)
    start = 0
    for row, count in zip(rows, counts, strict=True):
        for k in range(start, start + count):
            theirs = policies.actor(row).logits(obs[k])
            np.testing.assert_allclose(out[k], theirs, rtol=1e-9, atol=1e-9)
        start += count
    actions = recomputed.actions(acted(policies, 0, obs))
    np.testing.assert_array_equal(actions, acts(policies, obs))
    if spec.network.single_precision(spec):
        narrow = recomputed.outputs(rows, counts, obs, np.float32)
        np.testing.assert_allclose(narrow, out, rtol=0, atol=1e-4)


@every_spec
def test_networks_in_rows_act_with_the_same_bits(spec: PolicySpec) -> None:
    policies = policies_of(spec)
    network = spec.network.stacked(spec, 4)  # one row stays empty
    for row in range(3):
        wide = policies.theta[row, spec.log_std_size :].astype(np.float64)
        network.place(row, wide, policies.obs_mean[row], policies.obs_std[row])
    for k in range(10):
        obs = np.stack([seen(policies, row)[k] for row in (0, 1, 2, 2)])
        out = network(obs)
        for row in range(3):
            assert out[row].tobytes() == policies.actor(row).logits(obs[row]).tobytes()


@every_spec
def test_the_torch_form_computes_the_same(spec: PolicySpec) -> None:
    policies = policies_of(spec)
    normal = np.random.default_rng(3).normal(0, 1.5, (10, OBS_DIM))
    theta, obs = torch.from_numpy(policies.theta).double(), torch.from_numpy(normal)
    out = network_output(spec, theta, obs)  # three policies in the same states
    own = network_output(spec, theta, obs[:3].unsqueeze(1)).squeeze(1)  # each in its own
    assert out.shape == (3, 10, spec.actions.outputs)
    for row in range(3):
        raw = normal * policies.obs_std[row] + policies.obs_mean[row]
        np.testing.assert_allclose(out[row], acted(policies, row, raw), rtol=1e-9, atol=1e-9)
        assert torch.allclose(own[row], out[row, row], rtol=1e-12)
        alone = network_output(spec, theta[row], obs)
        assert torch.allclose(alone, out[row], rtol=1e-12)


@every_spec
def test_gradients_in_theta_by_finite_differences(spec: PolicySpec) -> None:
    theta = torch.from_numpy(policies_of(spec, 2).theta).double().requires_grad_()
    obs = torch.from_numpy(np.random.default_rng(3).normal(0, 1, (3, OBS_DIM)))

    def form(theta: torch.Tensor) -> torch.Tensor:
        out = network_output(spec, theta, obs)
        return squashed(spec, out) if spec.is_continuous else out

    assert torch.autograd.gradcheck(form, theta)


@every_spec
def test_re_expressed_policies_act_the_same(spec: PolicySpec) -> None:
    policies = policies_of(spec)
    rng = np.random.default_rng(4)
    mean, std = rng.normal(0, 50, OBS_DIM), rng.uniform(0.05, 20, OBS_DIM)
    theta = policies.in_normaliser(mean, std)
    moved = Policies(spec, theta, np.tile(mean, (3, 1)), np.tile(std, (3, 1)))
    for row in range(3):
        obs = seen(policies, row)
        before, after = acted(policies, row, obs), acted(moved, row, obs)
        # float32 parameters: a normaliser far away costs digits.
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-3)
    assert np.array_equal(theta[:, : spec.log_std_size], policies.theta[:, : spec.log_std_size])
    same = policies.in_normaliser(policies.obs_mean[1], policies.obs_std[1])
    assert same[1].tobytes() == policies.theta[1].tobytes()


@every_spec
def test_the_last_layer_is_linear_in_its_parameters(spec: PolicySpec) -> None:
    policies = policies_of(spec)
    params = policies.params[0].astype(np.float64)
    normal = np.random.default_rng(3).normal(0, 1.5, (10, OBS_DIM))
    raw = normal * policies.obs_std[0] + policies.obs_mean[0]
    columns = spec.network.last_layer(spec)
    assert len(np.unique(columns)) == columns.size
    last = params[columns]
    features = spec.network.features(spec, params, normal)
    assert columns.shape == (spec.actions.outputs, features.shape[1] + 1)
    out = features @ last[:, :-1].T + last[:, -1]
    np.testing.assert_allclose(out, acted(policies, 0, raw), rtol=1e-9, atol=1e-9)


@every_spec
def test_the_module_acts_the_same_and_is_an_ordinary_one(spec: PolicySpec) -> None:
    policies = policies_of(spec)
    state = torch.get_rng_state()
    module = to_module(policies, 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert set(module.state_dict()) == set(policy_tensors(policies.select([1])))
    numbers = sum(p.numel() for p in module.parameters())
    assert numbers == spec.size - spec.log_std_size
    obs = seen(policies, 1)
    tensor = torch.from_numpy(obs)
    with torch.no_grad():
        batch = module(tensor)
        single = torch.stack([module(o) for o in tensor[:10]])
        grid = module(tensor.reshape(4, 10, -1))
    assert torch.equal(grid.reshape(batch.shape), batch)
    assert_acts_as(policies, 1, obs, batch.numpy())
    assert_acts_as(policies, 1, obs[:10], single.numpy())
    if spec.is_continuous:
        module(tensor).sum().backward()
        assert any(p.grad is not None and p.grad.any() for p in module.parameters())
        assert module.float()(tensor).dtype == getattr(torch, spec.actions.dtype)


@every_spec
def test_exported_files_act_the_same(
    spec: PolicySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = policies_of(spec)
    obs = seen(policies, 2)
    (made,) = export_policies(policies, tmp_path / "policy.safetensors", row=2)
    assert_acts_as(policies, 2, obs, run_recipe(made.path, obs, monkeypatch))
    (made,) = export_policies(policies, tmp_path / "policy.onnx", row=2, file_format="onnx")
    assert_acts_as(policies, 2, obs, run_onnx(made.path, obs))
    # The batch axis is dynamic.
    parts = [run_onnx(made.path, obs[k : k + 13]) for k in range(0, len(obs), 13)]
    assert_acts_as(policies, 2, obs, np.concatenate(parts))


@every_spec
def test_the_json_form(spec: PolicySpec) -> None:
    data = json.loads(json.dumps(spec.to_dict(), allow_nan=False))
    assert PolicySpec.from_dict(data, "file") == spec
    assert ("family" in data) is (spec.family != DEFAULT_FAMILY)
    assert spec.format_version == (1 if spec.family == DEFAULT_FAMILY else 2)


def test_without_a_family_it_is_the_default_one() -> None:
    """As files of version 0.1 are, which have no families."""
    data = box_spec(3, (4,)).to_dict()
    assert set(data) == {"obs_dim", "hidden", "actions", "squash", "stochastic"}
    assert PolicySpec.from_dict(data, "file").family == "tanh-mlp"


@pytest.mark.parametrize(
    ("family", "error", "words"),
    [
        ("gru", IncompatibleError, "'gru', which is not installed; install the package"),
        (3, Exception, "holds 3 where a str belongs"),
    ],
)
def test_a_family_that_is_not_there(family: Any, error: Any, words: str) -> None:
    data = {**box_spec(3).to_dict(), "family": family}
    with pytest.raises(error, match=words) as caught:
        PolicySpec.from_dict(data, "file")
    assert str(caught.value).startswith("file: ")
    with pytest.raises(UsageError, match=r"no policy family 'gru'.*tanh-mlp, relu-mlp"):
        box_spec(3, family="gru")


def test_a_family_whose_package_is_broken(tmp_path: Path) -> None:
    """The file is not damaged; the package is named."""
    (tmp_path / "broken.py").write_text("raise RuntimeError('no')\n")
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    group = "pbvf_offline.policy_families"
    (info / "entry_points.txt").write_text(f"[{group}]\nbroken-mlp = broken:MLP\n")
    script = """
import json, sys
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.policies.spec import PolicySpec
try:
    PolicySpec.from_dict(json.loads(sys.argv[1]), "file")
except IncompatibleError as error:
    print(error)
"""
    data = json.dumps({**box_spec(3).to_dict(), "family": "broken-mlp"})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    argv = [sys.executable, "-c", script, data]
    told = subprocess.run(argv, check=True, env=environment, capture_output=True, text=True).stdout
    assert told.startswith("file: the policy family 'broken-mlp' of the package broken cannot be")
    assert "mend or uninstall broken" in told


def test_networks_by_hand() -> None:
    # 1 -> 2 -> 1 in obs = 3, seen as (3 - 1) / 2 = 1: hidden layers 0.5 * 1 - 0.1 = 0.4 and
    # -1 * 1 + 0.2 = -0.8, output 2 f(0.4) + 3 f(-0.8) + 0.25.
    theta = np.array([[0.5, -1.0, -0.1, 0.2, 2.0, 3.0, 0.25]], np.float32)
    for family, wanted in (
        ("relu-mlp", 2 * 0.4 + 0.25),
        ("tanh-mlp", 2 * np.tanh(0.4) + 3 * np.tanh(-0.8) + 0.25),
    ):
        spec = box_spec(1, (2,), family=family)
        policies = Policies(spec, theta, np.ones((1, 1)), np.full((1, 1), 2.0))
        assert policies.actor(0).logits(np.array([3.0])) == pytest.approx([wanted], abs=1e-6)

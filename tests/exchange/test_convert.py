"""Policies from torch modules and Stable-Baselines3, and to torch modules and ONNX."""

from __future__ import annotations

import builtins
import json
import os
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.numpy
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import toyenv  # noqa: F401
from libtools import box_spec, discrete_spec, make_policies
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    DivergedError,
    IncompatibleError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.exchange.exporter import export_policies, to_module
from pbvf_offline.exchange.importer import ImportSettings, from_state_dict, import_weights
from pbvf_offline.exchange.layer_names import find_layers, natural
from pbvf_offline.exchange.stable_baselines import ClippedObservationsWarning, from_sb3
from pbvf_offline.exchange.weight_files import numbers_or_name, read_npy, read_weights
from pbvf_offline.policies.files import load_policies
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec

ASYMMETRIC = "ToyAsym-v0"  # 3 observations, 1 action in [-0.3, 0.7]
ROOT = Path(__file__).resolve().parents[2]


def env(name: str = ASYMMETRIC, **kwargs: Any) -> Any:
    return make_env(EnvConfig(name, kwargs))


def network(*sizes: int, seed: int = 0) -> nn.Sequential:
    """A tanh network with a linear output, as people write them."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for k in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[k], sizes[k + 1]), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def observations(dim: int = 3, rows: int = 200) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 1.5, (rows, dim)).astype(np.float32)


def acts(policies: Policies, obs: np.ndarray, row: int = 0) -> np.ndarray:
    """The policy's mean actions, one observation at a time."""
    actor = policies.actor(row)
    if policies.spec.is_continuous:
        return np.array([actor.to_action(actor.logits(o)) for o in obs])
    return np.array([policies.spec.actions.start + np.argmax(actor.logits(o)) for o in obs])


def squashed(out: torch.Tensor, low: Any, high: Any, squash: str) -> np.ndarray:
    low, high = torch.as_tensor(low), torch.as_tensor(high)
    if squash == "tanh":
        out = low + (torch.tanh(out) + 1) / 2 * (high - low)
    return out.clamp(low, high).detach().numpy()


# ------------------------------------------------------------------- torch modules, in


@pytest.mark.parametrize("squash", ["tanh", "none"])
@pytest.mark.parametrize("hidden", [(), (8,), (16, 16), (64, 64)])
def test_an_imported_module_acts_as_its_source(hidden: tuple[int, ...], squash: Any) -> None:
    toy = env(act_dim=2)
    module = network(3, *hidden, 2)
    policies = from_state_dict(module.state_dict(), toy, ImportSettings(squash=squash))
    assert policies.spec.hidden == hidden
    assert policies.spec.squash == squash
    assert len(policies) == 1
    obs = observations()
    space = toy.action_space
    theirs = squashed(module(torch.from_numpy(obs)), space.low, space.high, squash)
    np.testing.assert_allclose(acts(policies, obs), theirs, rtol=0, atol=1e-6)
    assert len(np.unique(theirs)) > 50
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_array_equal(policies.theta[0], flat)


def test_an_imported_discrete_module_chooses_as_its_source() -> None:
    toy = env("ToyDiscrete-v0")  # 4 choices from 2
    module = network(3, 8, 4)
    policies = from_state_dict(module.state_dict(), toy)
    obs = observations()
    theirs = 2 + module(torch.from_numpy(obs)).argmax(-1).numpy()
    np.testing.assert_array_equal(acts(policies, obs), theirs)
    assert len(np.unique(theirs)) > 2


class Named(nn.Module):
    def __init__(self, **layers: nn.Linear) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


def of(**shapes: tuple[int, int]) -> dict[str, torch.Tensor]:
    """A state dict with layers of these (in, out)."""
    torch.manual_seed(3)
    module = Named(**{name: nn.Linear(*shape) for name, shape in shapes.items()})
    return dict(module.state_dict())


@pytest.mark.parametrize(
    ("shapes", "order"),
    [
        ({"fc1": (3, 8), "fc2": (8, 8), "mu": (8, 1)}, ["fc1", "fc2", "mu"]),
        # By shapes alone, against the alphabet.
        ({"wide": (3, 9), "narrow": (9, 5), "a": (5, 1)}, ["wide", "narrow", "a"]),
        ({"input": (3, 8), "hidden": (8, 8), "a": (8, 1)}, ["input", "hidden", "a"]),
    ],
)
def test_the_order_of_layers_comes_from_shapes_and_numbers(
    shapes: dict[str, tuple[int, int]], order: list[str]
) -> None:
    state = of(**shapes)
    policies = from_state_dict(state, env())
    expected = [state[f"{name}.{kind}"].numpy() for name in order for kind in ("weight", "bias")]
    np.testing.assert_array_equal(policies.theta[0], np.concatenate([e.ravel() for e in expected]))


def test_numbers_in_names_count_as_numbers() -> None:
    module = network(3, *[4] * 6, 1)  # layers 0, 2, …, 12; as text 10 comes before 2
    policies = from_state_dict(module.state_dict(), env())
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_array_equal(policies.theta[0], flat)
    assert sorted(["l10", "l9", "l1.2", "l1.10"], key=natural) == ["l1.2", "l1.10", "l9", "l10"]


def test_an_order_that_is_not_clear_is_asked_for() -> None:
    shapes = {"first": (3, 8), "left": (8, 8), "right": (8, 8), "out": (8, 1)}
    state = of(**shapes)
    with pytest.raises(UsageError, match="several orders") as caught:
        from_state_dict(state, env())
    assert "first,left,right,out or first,right,left,out" in str(caught.value)
    given = {}
    for order in (("first", "left", "right", "out"), ("first", "right", "left", "out")):
        given[order] = from_state_dict(state, env(), ImportSettings(layers=order)).theta
    a, b = given.values()
    assert not np.array_equal(a, b)


def test_a_single_layer_without_a_name() -> None:
    layer = nn.Linear(3, 1)
    policies = from_state_dict(layer.state_dict(), env())
    assert policies.spec.arch == "linear"
    np.testing.assert_array_equal(policies.theta[0, :3], layer.weight.detach().numpy()[0])


def test_layers_without_bias_have_zeros() -> None:
    module = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 1))
    policies = from_state_dict(module.state_dict(), env())
    assert not policies.theta[0, 12:16].any()
    obs = observations()
    theirs = squashed(module(torch.from_numpy(obs)), -0.3, 0.7, "tanh")
    np.testing.assert_allclose(acts(policies, obs), theirs, atol=1e-6)


def test_more_than_one_network_is_not_guessed_from() -> None:
    state = {f"actor.{k}": v for k, v in network(3, 8, 1).state_dict().items()}
    state |= {f"critic.{k}": v for k, v in network(4, 8, 1).state_dict().items()}
    with pytest.raises(UsageError, match=r"--layers actor\.0,actor\.2") as caught:
        from_state_dict(state, env())
    assert "critic.0" in str(caught.value)
    policies = from_state_dict(state, env(), ImportSettings(layers=("actor.0", "actor.2")))
    flat = torch.nn.utils.parameters_to_vector(network(3, 8, 1).parameters()).detach().numpy()
    np.testing.assert_array_equal(policies.theta[0], flat)


@pytest.mark.parametrize("between", [nn.LayerNorm(8), nn.BatchNorm1d(8), nn.PReLU()])
def test_layers_that_a_policy_cannot_have_are_not_dropped(between: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(3, 8), between, nn.Tanh(), nn.Linear(8, 1))
    with pytest.raises(UsageError, match=r"more than the layers of one policy: 1\.") as caught:
        from_state_dict(module.state_dict(), env())
    assert "no part in acting" in str(caught.value)


def test_networks_that_lead_elsewhere() -> None:
    for sizes in ((4, 8, 1), (3, 8, 2), (3, 1, 1, 2)):
        with pytest.raises(IncompatibleError, match="do not lead from 3 observations to 1"):
            from_state_dict(network(*sizes).state_dict(), env())
    with pytest.raises(IncompatibleError, match="no linear layers"):
        from_state_dict(nn.Conv1d(3, 1, 2).state_dict(), env())
    state = network(3, 8, 1).state_dict()
    for layers, error in (
        (("2", "0"), IncompatibleError),
        (("0",), IncompatibleError),
        (("0", "1"), UsageError),
        (("0", "0"), IncompatibleError),
    ):
        with pytest.raises(error):
            from_state_dict(state, env(), ImportSettings(layers=layers))


def test_a_search_among_many_layers_ends() -> None:
    shapes = {f"{chr(97 + k) * 3}.weight": (8, 8) for k in range(16)}
    with pytest.raises((IncompatibleError, UsageError)):
        find_layers(shapes, (), 8, 3, "w")
    crowd = {f"{name}{k}.weight": (8, 8) for k in range(50) for name in map(chr, range(97, 120))}
    with pytest.raises((IncompatibleError, UsageError)):
        find_layers(crowd, (), 8, 3, "w")


@pytest.mark.parametrize("activation", ["sigmoid", "identity"])
def test_other_activations_cannot_be_expressed(activation: str) -> None:
    state = network(3, 8, 1).state_dict()
    with pytest.raises(IncompatibleError, match=f"{activation} cannot be expressed.*tanh"):
        from_state_dict(state, env(), ImportSettings(activation=activation))


def test_a_normaliser_beside_the_weights() -> None:
    module = network(3, 8, 1)
    mean, std = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.5, 3.0, 1.0])
    state = {**module.state_dict(), "obs_mean": mean, "rms.std": std[None]}
    settings = ImportSettings(obs_std="rms.std")  # obs_mean is found by its name
    policies = from_state_dict(state, env(), settings)
    obs = observations()
    theirs = squashed(module((torch.from_numpy(obs) - mean) / std), -0.3, 0.7, "tanh")
    np.testing.assert_allclose(acts(policies, obs), theirs, atol=1e-6)
    given = ImportSettings(obs_mean=mean.double().numpy(), obs_std=std.double().numpy())
    again = from_state_dict(module.state_dict(), env(), given)
    np.testing.assert_array_equal(again.obs_std, policies.obs_std)
    np.testing.assert_array_equal(acts(again, obs), acts(policies, obs))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (ImportSettings(obs_mean="m"), UsageError, "both --obs-mean and --obs-std"),
        (ImportSettings(obs_mean="m", obs_std="nope"), UsageError, "no tensor 'nope'"),
        (ImportSettings(obs_mean="m", obs_std="0.weight"), IncompatibleError, r"shape \(8, 3\)"),
        (ImportSettings(obs_mean="m", obs_std="zero"), UsageError, "not positive.*epsilon"),
        (ImportSettings(obs_mean="m", obs_std="nan"), DamagedError, "NaN"),
        (ImportSettings(stochastic=True), UsageError, "no tensor 'log_std'"),
        (ImportSettings(stochastic=True, log_std="m"), IncompatibleError, r"\(1,\) is needed"),
    ],
)
def test_numbers_that_do_not_fit(settings: ImportSettings, error: Any, words: str) -> None:
    state = {
        **network(3, 8, 1).state_dict(),
        "m": torch.zeros(3),
        "zero": torch.tensor([1.0, 0.0, 1.0]),
        "nan": torch.tensor([1.0, float("nan"), 1.0]),
    }
    settings = ImportSettings(**{**vars(settings), "layers": ("0", "2")})
    with pytest.raises(error, match=words):
        from_state_dict(state, env(), settings)


def test_a_stochastic_policy_keeps_its_noise(rng: np.random.Generator) -> None:
    toy = env(act_dim=2)
    module = network(3, 8, 2)
    state = {**module.state_dict(), "log_std": torch.tensor([[-1.0, 0.5]])}
    settings = ImportSettings(stochastic=True, squash="none")
    policies = from_state_dict(state, toy, settings)
    assert policies.spec.stochastic
    np.testing.assert_array_equal(policies.theta[0, :2], np.float32([-1.0, 0.5]))
    actor = policies.actor(0)
    drawn = np.array([actor.act(np.zeros(3), rng)[1] for _ in range(4000)])
    np.testing.assert_allclose(drawn.std(0), np.exp([-1.0, 0.5]), rtol=0.05)
    # The same without the tensor, and without the noise.
    given = ImportSettings(stochastic=True, squash="none", log_std=np.array([-1.0, 0.5]))
    again = from_state_dict(module.state_dict(), toy, given)
    np.testing.assert_array_equal(again.theta, policies.theta)
    mean = from_state_dict(state, toy, ImportSettings(squash="none"))
    np.testing.assert_array_equal(mean.theta[0], policies.theta[0, 2:])


def save(path: Path, state: Any, **metadata: str) -> Path:
    save_file(dict(state), path, metadata=metadata or None)
    return path


def load(tmp_path: Path, state: Any, settings: ImportSettings | None = None, **kwargs: Any) -> Any:
    source = save(tmp_path / "weights.safetensors", state)
    config = EnvConfig(ASYMMETRIC)
    out = tmp_path / "policies.safetensors"
    return import_weights([source], config, settings or ImportSettings(), out, **kwargs)


def test_a_file_becomes_a_policies_file(tmp_path: Path) -> None:
    module = network(3, 8, 1)
    made = load(tmp_path, module.state_dict())
    assert made.layers == ("0", "2")
    assert made.left_out == ()
    assert made.normaliser is None
    assert not made.rounded
    file = load_policies(tmp_path / "policies.safetensors")
    assert file.environment is not None
    assert file.environment.id == ASYMMETRIC
    assert file.origin["made_by"] == "import"
    obs = observations()
    theirs = squashed(module(torch.from_numpy(obs)), -0.3, 0.7, "tanh")
    np.testing.assert_allclose(acts(file.policies, obs), theirs, atol=1e-6)
    text = (tmp_path / "policies.safetensors").read_bytes()
    assert str(tmp_path).encode() not in text


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_precisions(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {
        name: value.to(dtype) for name, value in network(3, 8, 1).double().state_dict().items()
    }
    if dtype is torch.float64:
        state["0.weight"] += 1e-12  # more digits than float32 has
    made = load(tmp_path, state)
    expected = np.concatenate([value.float().numpy().ravel() for value in state.values()])
    np.testing.assert_array_equal(made.file.policies.theta[0], expected)
    assert made.rounded is (dtype is torch.float64)


def test_integers_are_no_layers(tmp_path: Path) -> None:
    state = {"weight": torch.ones(1, 3, dtype=torch.int64)}
    with pytest.raises(IncompatibleError, match="int64"):
        load(tmp_path, state)


def test_several_files_are_one_policy_each(tmp_path: Path) -> None:
    sources = [
        save(tmp_path / f"{k}.safetensors", network(3, 8, 1, seed=k).state_dict()) for k in range(3)
    ]
    out = tmp_path / "p"
    made = import_weights(sources, EnvConfig(ASYMMETRIC), ImportSettings(), out)
    assert len(made.file.policies) == len(np.unique(made.file.policies.theta, axis=0)) == 3
    sources.append(save(tmp_path / "3.safetensors", network(3, 9, 1).state_dict()))
    with pytest.raises(IncompatibleError, match=r"3\.safetensors: is a deterministic 9"):
        import_weights(sources, EnvConfig(ASYMMETRIC), ImportSettings(), tmp_path / "q")
    assert not (tmp_path / "q").exists()


def test_numbers_that_float32_cannot_hold(tmp_path: Path) -> None:
    for value in (float("nan"), float("inf"), 1e300):
        state = network(3, 1).double().state_dict()
        state["0.bias"][0] = value
        with pytest.raises(DamagedError, match="NaN, infinite or too large"):
            load(tmp_path, state)


def test_checking_against_actions_of_the_source(tmp_path: Path) -> None:
    module = network(3, 8, 1)
    obs = torch.from_numpy(observations())
    action = torch.from_numpy(squashed(module(obs), -0.3, 0.7, "tanh"))
    right = save(tmp_path / "right.safetensors", {"obs": obs, "action": action})
    made = load(tmp_path, module.state_dict(), check=right)
    assert made.checked is not None
    assert made.checked[0] == 200
    assert 0 < made.checked[1] < 1e-6
    relu = nn.Sequential(module[0], nn.ReLU(), module[2])
    other = torch.from_numpy(squashed(relu(obs), -0.3, 0.7, "tanh"))
    wrong = save(tmp_path / "wrong.safetensors", {"obs": obs, "action": other})
    with pytest.raises(IncompatibleError, match="acts otherwise: actions differ by up to"):
        load(tmp_path, module.state_dict(), check=wrong, overwrite=True)
    assert load(tmp_path, module.state_dict(), check=right).already_complete
    for tensors, error in (
        ({"obs": obs}, UsageError),
        ({"obs": obs, "action": action[:5]}, IncompatibleError),
        ({"obs": obs[:, :2].contiguous(), "action": action}, IncompatibleError),
        ({"obs": obs[:0], "action": action[:0]}, IncompatibleError),
        ({"obs": obs, "action": action * float("nan")}, IncompatibleError),
    ):
        with pytest.raises(error):
            load(tmp_path, module.state_dict(), check=save(tmp_path / "c", tensors))


def test_checking_choices(tmp_path: Path) -> None:
    module = network(3, 8, 4)
    source = save(tmp_path / "w", module.state_dict())
    obs = torch.from_numpy(observations())
    choice = 2 + module(obs).argmax(-1)
    config = EnvConfig("ToyDiscrete-v0")

    def attempt(action: torch.Tensor) -> Any:
        check = save(tmp_path / "c", {"obs": obs, "action": action})
        out = tmp_path / "p"
        return import_weights([source], config, ImportSettings(), out, check=check).checked

    assert attempt(choice) == (200, 0.0)
    for wrong in (choice - 2, 7 - choice, choice.double() + 0.5):
        with pytest.raises(IncompatibleError, match=r"% of 200 choices differ"):
            attempt(wrong)


def test_an_output_is_replaced_on_request_only(tmp_path: Path) -> None:
    assert not load(tmp_path, network(3, 8, 1).state_dict()).already_complete
    out = tmp_path / "policies.safetensors"
    before = out.read_bytes()
    stamp = out.stat().st_mtime_ns
    assert load(tmp_path, network(3, 8, 1).state_dict()).already_complete
    assert out.stat().st_mtime_ns == stamp
    with pytest.raises(ConflictError, match='squash is "tanh" there and "none" here'):
        load(tmp_path, network(3, 8, 1).state_dict(), ImportSettings(squash="none"))
    with pytest.raises(ConflictError, match="sources"):
        load(tmp_path, network(3, 8, 1, seed=5).state_dict())
    given = ImportSettings(obs_mean=np.ones(3), obs_std=np.ones(3))
    with pytest.raises(ConflictError, match="other content"):
        load(tmp_path, network(3, 8, 1).state_dict(), given)
    assert out.read_bytes() == before
    load(tmp_path, network(3, 8, 1, seed=5).state_dict(), overwrite=True)
    assert out.read_bytes() != before
    out.write_bytes(b"notes")
    with pytest.raises(ConflictError, match="other content"):
        load(tmp_path, network(3, 8, 1).state_dict())


# ------------------------------------------------------------------- files of strangers


def image(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [1, 3], "data_offsets": [0, 12], **changes}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 8,
        b"{}",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 10) + b"{}",
        image(b"{"),
        image(b'{"a": NaN}'),
        image(b'{"w": 1, "w": 2}'),
        image({"w": 1}),
        image(entry(shape="x"), b"\0" * 12),
        image(entry(shape=[-1, -3]), b"\0" * 12),
        image(entry(shape=[1, 3.0]), b"\0" * 12),
        image(entry(shape=[True, 3]), b"\0" * 12),
        image(entry(shape=[1, 4]), b"\0" * 12),
        image(entry(shape=[10**6, 10**6], data_offsets=[0, 4 * 10**12]), b"\0" * 12),
        image(entry(data_offsets=[4, 16]), b"\0" * 12),
        image(entry(data_offsets=[12, 0]), b"\0" * 12),
        image(entry(data_offsets=[0]), b"\0" * 12),
        image(entry(dtype=5), b"\0" * 12),
        image({"w": {"dtype": "F32", "shape": [1, 3]}}),
        image(entry(), b"\0" * 16),
        image({**entry(), "v": entry()["w"]}, b"\0" * 12),
        image(b"[" * 5000 + b"]" * 5000),
        image(entry(shape=[1] * 30, data_offsets=[0, 4]), b"\0" * 12),
    ],
)
def test_damaged_weights(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        read_weights(path)


def test_every_truncation_of_weights_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path / "w", network(3, 4, 1).state_dict())
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises((DamagedError, UnsafeError)):
            read_weights(path)


def test_odd_but_valid_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(
        image(
            {
                "scalar": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]},
                "none": {"dtype": "F32", "shape": [0, 10**30], "data_offsets": [8, 8]},
                "at3": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
            },
            struct.pack("<qf", 7, 1.5),
        )
    )
    tensors, _ = read_weights(path)
    assert (tensors["scalar"], tensors["at3"].tolist()) == (7, [1.5])
    assert tensors["none"].size == 0
    for dtype in ("F8_E4M3", "BF16"):
        path.write_bytes(image(entry(dtype=dtype), b"\0" * 12))
        with pytest.raises(IncompatibleError, match=dtype):
            read_weights(path)
    path.write_bytes(image({**entry(), "__metadata__": {"pbvf": "{}"}}, b"\0" * 12))
    with pytest.raises(IncompatibleError, match="a file of this project"):
        read_weights(path)


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (builtins.open, (str(self.target), "w"))


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.safetensors", "w.npy"])
@pytest.mark.parametrize("legacy", [False, True])
def test_pickles_are_refused_with_a_recipe(tmp_path: Path, name: str, legacy: bool) -> None:
    path, boom = tmp_path / name, tmp_path / "boom"
    torch.save({"0.weight": Bomb(boom)}, path, _use_new_zipfile_serialization=not legacy)
    reads = [read_weights, read_npy, lambda p: numbers_or_name(str(p), "--obs-mean")]
    for read in reads:
        with pytest.raises(UnsafeError) as caught:
            read(path)
        assert "save" in str(caught.value)
        assert "weights_only" not in str(caught.value)
        assert "torch.load" not in str(caught.value)
    assert not boom.exists()


def test_a_broken_torch_archive_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    path.write_bytes(b"\x00\x01\x02 not a zip any more")
    with pytest.raises(UnsafeError, match="save_file"):
        read_weights(path)


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(UnsafeError, match=r"over the limit|holes"):
        read_weights(path)


def test_arrays_of_numpy(tmp_path: Path) -> None:
    path = tmp_path / "mean.npy"
    for array in (
        np.array([1.0, 2.5]),
        np.array([1, 2], np.int32),
        np.array([[1.0], [2.0]], np.float32),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(3.0),
    ):
        np.save(path, array)
        read = read_npy(path)
        assert read.dtype == np.float64
        np.testing.assert_array_equal(read, array)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedError):
            read_npy(path)
    np.save(path, np.array(["a"]))
    with pytest.raises(UsageError, match="not numbers"):
        read_npy(path)
    np.save(path, np.array([Bomb(tmp_path / "boom")], dtype=object), allow_pickle=True)
    with pytest.raises(UnsafeError, match="pickled"):
        read_npy(path)
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1L,), }",  # Python 2
        "{'descr': 'nope', 'fortran_order': False, 'shape': (1,), }",
        "__import__('os').system('true')",
        "(" * 3000,
        "[]",
    ],
)
def test_headers_of_numpy_that_promise_too_much(tmp_path: Path, header: str) -> None:
    path = tmp_path / "mean.npy"
    text = header.encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * 8)
    with pytest.raises(DamagedError):
        read_npy(path)


def test_numbers_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("m.npy", np.array([1.0, 2.0]))
    np.testing.assert_array_equal(numbers_or_name("m.npy", "--obs-mean"), [1, 2])
    np.testing.assert_array_equal(numbers_or_name(" [1, 2.5e3]", "--obs-mean"), [1, 2500])
    assert numbers_or_name("rms.mean", "--obs-mean") == "rms.mean"
    for text in ("[1, 'a']", '[1, "a"]', "[1, [2]]", "[NaN]", "[true]", "[1" + "0" * 400 + "]"):
        with pytest.raises(UsageError, match="--obs-mean"):
            numbers_or_name(text, "--obs-mean")
    with pytest.raises(UsageError, match="does not exist"):
        numbers_or_name("other.npy", "--obs-mean")


# -------------------------------------------------------------------- Stable-Baselines3


TANH = {"activation_fn": nn.Tanh}
CONTINUOUS = ["PPO", "A2C", "DDPG", "TD3", "SAC", "ARS"]


def sb3(algorithm: str, env: Any, policy: str = "MlpPolicy", **kwargs: Any) -> Any:
    import sb3_contrib
    import stable_baselines3

    kwargs.setdefault("policy_kwargs", {**TANH, "net_arch": [8, 8]})
    if algorithm == "PPO":
        kwargs |= {"n_steps": 16, "batch_size": 16}
    if algorithm in ("DDPG", "TD3", "SAC", "DQN"):
        kwargs |= {"buffer_size": 100}
    if algorithm == "ARS" and policy == "MlpPolicy":
        kwargs |= {"zero_policy": False}
    library = sb3_contrib if algorithm == "ARS" else stable_baselines3
    state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    try:
        model = getattr(library, algorithm)(policy, env, seed=0, device="cpu", **kwargs)
        with torch.no_grad():  # far from the initial values, so that bounds and biases matter
            for parameter in model.policy.parameters():
                parameter.mul_(1.5).add_(0.1 * torch.randn_like(parameter))
        return model
    finally:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])  # noqa: NPY002


@pytest.mark.parametrize("arch", [[], [8, 8]])
@pytest.mark.parametrize("algorithm", CONTINUOUS)
def test_a_continuous_sb3_actor(algorithm: str, arch: list[int]) -> None:
    toy = env(act_dim=2)
    nets = {"pi": arch, "vf" if algorithm in ("PPO", "A2C") else "qf": [4]}
    model = sb3(
        algorithm, toy, policy_kwargs={**TANH, "net_arch": arch if algorithm == "ARS" else nets}
    )
    policies = from_sb3(model, toy)
    assert policies.spec.hidden == tuple(arch)
    assert policies.spec.squash == ("none" if algorithm in ("PPO", "A2C") else "tanh")
    assert not policies.spec.stochastic
    obs = observations()
    theirs, _ = model.predict(obs, deterministic=True)
    np.testing.assert_allclose(acts(policies, obs), theirs, rtol=0, atol=1e-6)
    assert len(np.unique(theirs)) > 50
    np.testing.assert_array_equal(from_sb3(model.policy, toy).theta, policies.theta)


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "DQN", "ARS"])
def test_a_discrete_sb3_actor(algorithm: str) -> None:
    cart = gym.make("CartPole-v1")
    model = sb3(algorithm, cart)
    policies = from_sb3(model, cart)
    obs = observations(4)
    theirs, _ = model.predict(obs, deterministic=True)
    np.testing.assert_array_equal(acts(policies, obs), theirs)
    assert len(np.unique(theirs)) == 2


@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
def test_noise_of_an_sb3_actor(algorithm: str) -> None:
    toy = env(act_dim=2)
    model = sb3(algorithm, toy)
    policies = from_sb3(model, toy, stochastic=True)
    log_std = model.policy.log_std.detach().numpy()
    np.testing.assert_array_equal(policies.theta[0, :2], log_std)
    np.testing.assert_array_equal(policies.theta[0, 2:], from_sb3(model, toy).theta[0])
    cart = gym.make("CartPole-v1")
    assert from_sb3(sb3(algorithm, cart), cart, stochastic=True).spec.stochastic


@pytest.mark.parametrize("algorithm", ["DDPG", "SAC", "ARS"])
def test_noise_that_a_policy_cannot_have(algorithm: str) -> None:
    with pytest.raises(UsageError, match="neither a Gaussian"):
        from_sb3(sb3(algorithm, env()), env(), stochastic=True)


@pytest.mark.parametrize("algorithm", ["PPO", "TD3", "SAC", "DQN"])
def test_other_activations_of_an_sb3_actor(algorithm: str) -> None:
    world = gym.make("CartPole-v1") if algorithm == "DQN" else env()
    model = sb3(algorithm, world, policy_kwargs={"activation_fn": nn.ELU})
    with pytest.raises(IncompatibleError, match=r"ELU.*tanh or relu between them"):
        from_sb3(model, world)
    # Without hidden layers there is no activation.
    linear = sb3(algorithm, world, policy_kwargs={"activation_fn": nn.ELU, "net_arch": []})
    assert from_sb3(linear, world).spec.arch == "linear"


def test_sb3_actors_with_other_parts() -> None:
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Extractor(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, features_dim=3)
            self.layer = nn.Linear(3, 3)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return self.layer(obs)

    class Doubling(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, features_dim=3)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return 2 * obs

    toy = env()
    extra = {**TANH, "features_extractor_class": Extractor}
    with pytest.raises(IncompatibleError, match="features extractor Extractor"):
        from_sb3(sb3("PPO", toy, policy_kwargs=extra), toy)
    with pytest.raises(IncompatibleError, match="features extractor Extractor"):
        from_sb3(sb3("TD3", toy, policy_kwargs=extra), toy)
    # What its layers do not show, its actions do.
    hidden = {**TANH, "features_extractor_class": Doubling}
    with pytest.raises(IncompatibleError, match="acts otherwise than its layers say"):
        from_sb3(sb3("PPO", toy, policy_kwargs=hidden), toy)
    # State-dependent exploration: SAC clips the mean, PPO does not.
    with pytest.raises(IncompatibleError, match="Hardtanh"):
        from_sb3(sb3("SAC", toy, use_sde=True), toy)
    sde = sb3("PPO", toy, use_sde=True)
    obs = observations()
    theirs, _ = sde.predict(obs, deterministic=True)
    np.testing.assert_allclose(acts(from_sb3(sde, toy), obs), theirs, atol=1e-6)
    with pytest.raises(UsageError, match="noise"):
        from_sb3(sde, toy, stochastic=True)


@pytest.mark.parametrize(
    ("algorithm", "policy", "kwargs"),
    [
        ("SAC", "MlpPolicy", {"use_sde": True, "policy_kwargs": {**TANH, "clip_mean": 0.0}}),
        ("ARS", "LinearPolicy", {"policy_kwargs": {}}),
        ("ARS", "LinearPolicy", {"policy_kwargs": {"with_bias": True, "squash_output": True}}),
    ],
)
def test_rarer_sb3_actors(algorithm: str, policy: str, kwargs: dict[str, Any]) -> None:
    toy = env()
    model = sb3(algorithm, toy, policy, **kwargs)
    policies = from_sb3(model, toy)
    obs = observations()
    theirs, _ = model.predict(obs, deterministic=True)
    np.testing.assert_allclose(acts(policies, obs), theirs, rtol=0, atol=1e-6)
    settings = ImportSettings(layout="sb3", activation="tanh", squash=policies.spec.squash)
    file = from_state_dict(model.policy.state_dict(), toy, settings)
    np.testing.assert_array_equal(file.theta, policies.theta)


def test_what_is_no_sb3_actor() -> None:
    for thing in (network(3, 1), object(), Named(mu=nn.Linear(3, 1))):
        with pytest.raises(UsageError, match="no Stable-Baselines3 policy"):
            from_sb3(thing, env())


def test_an_sb3_actor_in_another_environment() -> None:
    model = sb3("PPO", env())
    for other in (env("Toy-v0"), env(act_dim=2), env(obs_dim=4), env("ToyDiscrete-v0")):
        with pytest.raises(IncompatibleError, match="the environment offers"):
            from_sb3(model, other)


def test_actions_that_sb3_counts_from_zero() -> None:
    shifted = env("ToyDiscrete-v0")  # its choices start at 2; sb3 answers 0 to 3
    model = sb3("PPO", shifted)
    with pytest.raises(IncompatibleError, match="acts otherwise"):
        from_sb3(model, shifted)


def test_parameters_that_are_not_finite() -> None:
    model = sb3("PPO", env())
    nn.init.constant_(model.policy.action_net.bias, float("nan"))
    with pytest.raises(DivergedError, match="NaN"):
        from_sb3(model, env())


def test_the_normaliser_of_an_sb3_model() -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    vec = VecNormalize(DummyVecEnv([env]), clip_obs=5.0)
    model = sb3("PPO", vec)
    rows = np.random.default_rng(0).normal([1, -3, 0.1], [2, 0.5, 0.01], (1000, 3))
    vec.obs_rms.update(rows)
    with pytest.warns(ClippedObservationsWarning, match="at 5"):
        policies = from_sb3(model, env())
    assert policies.obs_std[0, 2] < 0.02
    theirs, _ = model.predict(vec.normalize_obs(rows[:200]), deterministic=True)
    np.testing.assert_allclose(acts(policies, rows[:200]), theirs, rtol=0, atol=1e-6)
    # The policy alone knows of no normaliser; it can be given.
    assert (from_sb3(model.policy, env()).obs_std == 1).all()
    vec.clip_obs = np.inf
    given = from_sb3(model.policy, env(), normalizer=vec)
    np.testing.assert_array_equal(given.obs_mean, policies.obs_mean)
    vec.norm_obs = False
    assert (from_sb3(model, env()).obs_mean == 0).all()


def test_looking_at_an_sb3_model_changes_nothing() -> None:
    model = sb3("TD3", env())
    model.policy.train(True)
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    from_sb3(model, env())
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002
    assert model.policy.training
    for name, value in model.policy.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("algorithm", [*CONTINUOUS, "DQN", "PPO-discrete"])
def test_sb3_names_in_a_file(tmp_path: Path, algorithm: str) -> None:
    discrete = algorithm in ("DQN", "PPO-discrete")
    name = "CartPole-v1" if discrete else ASYMMETRIC
    world = env(name)
    model = sb3(algorithm.removesuffix("-discrete"), world)
    source = save(tmp_path / "w", model.policy.state_dict())
    kwargs: dict[str, Any] = {"layout": "sb3", "activation": "tanh"}
    if algorithm == "ARS":
        kwargs["squash"] = "tanh"  # MlpPolicy squashes, LinearPolicy does not
    made = import_weights([source], EnvConfig(name), ImportSettings(**kwargs), tmp_path / "p")
    live = from_sb3(model, world)
    assert made.file.policies.spec == live.spec
    np.testing.assert_array_equal(made.file.policies.theta, live.theta)
    if algorithm in ("PPO", "A2C"):
        kwargs["stochastic"] = True
        noisy = from_state_dict(model.policy.state_dict(), world, ImportSettings(**kwargs))
        np.testing.assert_array_equal(noisy.theta, from_sb3(model, world, stochastic=True).theta)
    if algorithm in ("DDPG", "TD3", "SAC"):
        actor = from_state_dict(model.actor.state_dict(), world, ImportSettings(**kwargs))
        np.testing.assert_array_equal(actor.theta, live.theta)


def test_sb3_files_do_not_tell_everything() -> None:
    toy = env()
    relu = sb3("TD3", toy, policy_kwargs={"net_arch": [4]}).policy.state_dict()
    with pytest.raises(UsageError, match=r"ReLU.*--activation relu"):
        from_state_dict(relu, toy, ImportSettings(layout="sb3"))
    with pytest.raises(IncompatibleError, match="sigmoid cannot be expressed"):
        from_state_dict(relu, toy, ImportSettings(layout="sb3", activation="sigmoid"))
    # Tanh is what PPO has unless told otherwise.
    ppo = sb3("PPO", toy).policy.state_dict()
    assert from_state_dict(ppo, toy, ImportSettings(layout="sb3")).spec.squash == "none"
    ars = sb3("ARS", toy, "LinearPolicy", policy_kwargs={}).policy.state_dict()
    with pytest.raises(UsageError, match="--squash"):
        from_state_dict(ars, toy, ImportSettings(layout="sb3"))
    linear = from_state_dict(ars, toy, ImportSettings(layout="sb3", squash="none"))
    assert linear.theta[0, -1] == 0  # its layer has no bias
    sde = sb3("SAC", toy, use_sde=True).policy.state_dict()
    with pytest.raises(IncompatibleError, match="clips its mean"):
        from_state_dict(sde, toy, ImportSettings(layout="sb3", activation="tanh"))
    with pytest.raises(IncompatibleError, match="no Stable-Baselines3 actor"):
        from_state_dict(network(3, 8, 1).state_dict(), toy, ImportSettings(layout="sb3"))
    extractor = {**ppo, "features_extractor.layer.weight": torch.zeros(3, 3)}
    with pytest.raises(IncompatibleError, match="features extractor"):
        from_state_dict(extractor, toy, ImportSettings(layout="sb3"))
    with pytest.raises(IncompatibleError, match="do not lead"):
        from_state_dict(ppo, env(act_dim=2), ImportSettings(layout="sb3"))


# --------------------------------------------------------------------------------- export

SPECS = {
    "linear": box_spec(3),
    "deep": box_spec(4, (16, 16), act_dim=2, low=-0.3, high=0.7),
    "clipped": box_spec(3, (8,), squash="none"),
    "noisy": box_spec(3, (8,), act_dim=2, stochastic=True),
    "double": box_spec(3, (8,), low=-0.1, high=0.7, dtype="float64"),
    "half": box_spec(3, (8,), low=-0.1, high=0.7, dtype="float16"),
    "discrete": discrete_spec(3, (8,), n=4, start=2),
    "one": discrete_spec(3, (), n=2, stochastic=True),
}
TOLERANCE = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-3}


def wide(spec: PolicySpec, rows: int = 3) -> Policies:
    """Policies whose normaliser matters: large means, small and large deviations."""
    rng = np.random.default_rng(7)
    mean = rng.normal(0, 50, spec.obs_dim)
    return make_policies(spec, rows, mean=mean, std=rng.uniform(0.05, 20, spec.obs_dim))


def seen(policies: Policies, rows: int = 100) -> np.ndarray:
    """Raw observations (rows, obs_dim) float64 around a policy's normaliser."""
    rng = np.random.default_rng(2)
    obs: np.ndarray = rng.normal(
        policies.obs_mean[0], 1.5 * policies.obs_std[0], (rows, policies.spec.obs_dim)
    )
    return obs


def assert_equal(policies: Policies, row: int, obs: np.ndarray, action: np.ndarray) -> None:
    ours = acts(policies, obs, row)
    assert action.dtype == ours.dtype
    assert action.shape == ours.shape
    if policies.spec.is_continuous:
        spread = np.subtract(policies.spec.actions.high, policies.spec.actions.low)
        away = np.abs(action.astype(np.float64) - ours) / spread
        assert away.max() <= TOLERANCE[policies.spec.actions.dtype]
        assert (action >= np.array(policies.spec.actions.low, action.dtype)).all()
        assert (action <= np.array(policies.spec.actions.high, action.dtype)).all()
    else:
        np.testing.assert_array_equal(action, ours)
    assert len(np.unique(ours)) > 1


@pytest.mark.parametrize("name", SPECS)
def test_a_module_acts_as_its_policy(name: str) -> None:
    policies = wide(SPECS[name])
    obs = seen(policies)
    for row in range(len(policies)):
        module = to_module(policies, row)
        with torch.no_grad():
            batch = module(torch.from_numpy(obs))
            assert_equal(policies, row, obs, batch.numpy())
            single = torch.stack([module(torch.from_numpy(o)) for o in obs[:10]])
            grid = module(torch.from_numpy(obs.reshape(10, 10, -1)))
        assert_equal(policies, row, obs[:10], single.numpy())
        assert torch.equal(grid.reshape(batch.shape), batch)


def test_a_module_is_an_ordinary_one() -> None:
    policies = wide(SPECS["deep"])
    state = torch.get_rng_state()
    module = to_module(policies, 1)
    assert torch.equal(torch.get_rng_state(), state)
    obs = torch.from_numpy(seen(policies))
    module(obs).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())
    single = to_module(policies, 1).float()
    assert single(obs.float()).dtype == torch.float32
    np.testing.assert_allclose(
        single(obs).detach().numpy(), module(obs).detach().numpy(), atol=1e-4
    )
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().float().numpy()
    np.testing.assert_array_equal(flat, policies.theta[1])
    with pytest.raises(UsageError, match="no policy 3 among 3"):
        to_module(policies, 3)
    with pytest.raises(UsageError, match="no policy -1"):
        to_module(policies, -1)


@pytest.mark.parametrize("name", SPECS)
def test_an_exported_state_dict_brings_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    policies = wide(SPECS[name])
    (made,) = export_policies(policies, tmp_path / "policy.safetensors", row=2)
    assert made.row == 2
    module = to_module(policies, 0)
    module.load_state_dict(load_file(made.path))  # all names, and no others
    obs = seen(policies)
    with torch.no_grad():
        assert_equal(policies, 2, obs, module(torch.from_numpy(obs)).numpy())
    with safe_open(made.path, framework="numpy") as file:
        (text,) = file.metadata().values()
    recipe = text.split("\n\n", maxsplit=1)[1]
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(recipe, namespace)
    tensor = torch.from_numpy(obs)
    assert_equal(policies, 2, obs, namespace["act"](tensor).numpy())
    single = torch.stack([namespace["act"](row) for row in tensor])
    assert_equal(policies, 2, obs, single.numpy())
    assert ("stochastic" in text) is policies.spec.stochastic


@pytest.mark.parametrize("name", ["deep", "clipped", "noisy", "discrete"])
def test_what_was_exported_comes_back_the_same(tmp_path: Path, name: str) -> None:
    spec = SPECS[name]
    policies = wide(spec)
    actions = (
        {"low": spec.actions.low[0], "high": spec.actions.high[0], "act_dim": spec.actions.dim}
        if spec.is_continuous
        else {"discrete": (4, 2)}
    )
    (made,) = export_policies(policies, tmp_path / "w", row=1)
    settings = ImportSettings(squash=spec.squash, stochastic=spec.stochastic)
    world = EnvConfig("Toy-v0", {"obs_dim": spec.obs_dim, **actions})
    back = import_weights([made.path], world, settings, tmp_path / "p").file.policies
    assert back.spec.hidden == spec.hidden
    np.testing.assert_array_equal(back.theta, policies.theta[1:2])
    np.testing.assert_array_equal(back.obs_mean, policies.obs_mean[1:2])
    np.testing.assert_array_equal(back.obs_std, policies.obs_std[1:2])
    other = EnvConfig("Toy-v0", {"obs_dim": spec.obs_dim, **actions, "low": -5.0})
    if spec.is_continuous:
        with pytest.raises(IncompatibleError, match="action_low"):
            import_weights([made.path], other, settings, tmp_path / "q")


def run_onnx(path: Path, obs: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (action,) = session.run(None, {"obs": obs})
    result: np.ndarray = action
    return result


@pytest.mark.parametrize("name", SPECS)
def test_an_onnx_graph_acts_as_its_policy(tmp_path: Path, name: str) -> None:
    policies = wide(SPECS[name])
    obs = seen(policies)
    made = export_policies(policies, tmp_path / "policy.onnx", file_format="onnx")
    assert [file.path.name for file in made] == [f"policy-{k}.onnx" for k in range(3)]
    for file in made:
        for rows in (1, 7, 100):  # the batch axis is dynamic
            assert_equal(
                policies,
                file.row,
                obs,
                np.concatenate(
                    [run_onnx(file.path, obs[k : k + rows]) for k in range(0, 100, rows)]
                ),
            )
    model = onnx.load(made[0].path)
    onnx.checker.check_model(model, full_check=True)
    assert ("stochastic" in model.doc_string) is policies.spec.stochastic


@pytest.mark.parametrize("name", ["deep", "clipped", "double", "discrete"])
def test_float32_for_runtimes_without_float64(tmp_path: Path, name: str) -> None:
    spec = SPECS[name]
    policies = make_policies(spec, 1, mean=np.full(spec.obs_dim, 0.5), std=np.full(spec.obs_dim, 2))
    obs = observations(spec.obs_dim)
    (made,) = export_policies(policies, tmp_path / "p.onnx", file_format="onnx", dtype="float32")
    kinds = {t.data_type for t in onnx.load(made.path).graph.initializer}
    double = onnx.TensorProto.DOUBLE
    assert (double in kinds) is (name == "double")  # its actions are float64
    action = run_onnx(made.path, obs)
    np.testing.assert_allclose(action, acts(policies, obs), rtol=0, atol=1e-6)
    (made,) = export_policies(policies, tmp_path / "p", dtype="float32")
    tensors = safetensors.numpy.load_file(made.path)
    assert {str(t.dtype) for t in tensors.values()} <= {"float32", "int64"}


def test_an_export_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    policies = wide(SPECS["noisy"], 12)
    for file_format in ("torch", "onnx"):
        made = export_policies(policies, tmp_path / file_format, file_format=file_format)
        assert [f.path.name for f in made][:3] == [f"{file_format}-{k}" for k in ("00", "01", "02")]
        images = [file.path.read_bytes() for file in made]
        again = export_policies(policies, tmp_path / file_format, file_format=file_format)
        assert all(file.already_complete for file in again)
        made[4].path.unlink()
        third = export_policies(policies, tmp_path / file_format, file_format=file_format)
        assert [file.already_complete for file in third].count(False) == 1
        assert [file.path.read_bytes() for file in third] == images


def test_an_export_writes_over_nothing(tmp_path: Path) -> None:
    policies = wide(SPECS["linear"])
    (tmp_path / "p-1").write_bytes(b"mine")
    with pytest.raises(ConflictError, match="p-1: exists with other content"):
        export_policies(policies, tmp_path / "p")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p-1"]
    export_policies(policies, tmp_path / "p", overwrite=True)
    assert (tmp_path / "p-1").read_bytes() != b"mine"


def test_onnx_is_asked_for_when_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"pbvf-offline\[onnx\]"):
        export_policies(wide(SPECS["linear"]), tmp_path / "p", file_format="onnx")
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
    export_policies(wide(SPECS["deep"]), tmp_path / "policy.safetensors", row=0)
    with safe_open(tmp_path / "policy.safetensors", framework="numpy") as file:
        recipe = file.metadata()["description"].split("\n\n", maxsplit=1)[1]
    check = (
        f"{recipe}\nimport sys\nassert act(torch.zeros(5, 4)).shape == (5, 2)\n"
        "assert not [name for name in sys.modules if name.startswith('pbvf')]\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True, cwd=tmp_path)


def test_no_warnings_from_the_runtime(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    policies = wide(SPECS["deep"])
    (made,) = export_policies(policies, tmp_path / "p", row=0, file_format="onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_onnx(made.path, seen(policies))
    assert capfd.readouterr().err == ""

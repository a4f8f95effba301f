"""Networks of other programs, and exported policies run by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.policies.policy import Policies

ASYMMETRIC = "ToyAsym-v0"  # 3 observations, 1 action in [-0.3, 0.7]


def env(name: str = ASYMMETRIC, **kwargs: Any) -> Any:
    return make_env(EnvConfig(name, kwargs))


def network(*sizes: int, seed: int = 0, between: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers of these sizes with an activation between them, as people write them."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for k in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[k], sizes[k + 1]), between()]
    return nn.Sequential(*layers[:-1])


def flat(module: nn.Module) -> np.ndarray:
    """Return a module's parameters as one vector."""
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def observations(dim: int = 3, rows: int = 200) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 1.5, (rows, dim)).astype(np.float32)


def acts(policies: Policies, obs: np.ndarray, row: int = 0) -> np.ndarray:
    """Return the policy's mean actions, one observation at a time."""
    actor = policies.actor(row)
    if policies.spec.is_continuous:
        return np.array([actor.to_action(actor.logits(o)) for o in obs])
    return np.array([policies.spec.actions.start + np.argmax(actor.logits(o)) for o in obs])


def executed(out: torch.Tensor, low: Any, high: Any, squash: str = "tanh") -> np.ndarray:
    """Return a network's outputs as actions within bounds."""
    low, high = torch.as_tensor(low), torch.as_tensor(high)
    if squash == "tanh":
        out = low + (torch.tanh(out) + 1) / 2 * (high - low)
    return out.clamp(low, high).detach().numpy()


def save(path: str | Path, state: Any, **metadata: str) -> Path:
    save_file(dict(state), path, metadata=metadata or None)
    return Path(path)


def run_onnx(path: str | Path, obs: np.ndarray) -> np.ndarray:
    """Return what an ONNX graph does."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (action,) = session.run(None, {"obs": obs})
    result: np.ndarray = action
    return result


def description(path: Path) -> str:
    """Return the text that an exported state dict brings."""
    with safe_open(path, framework="numpy") as file:
        (text,) = file.metadata().values()
    return str(text)


def run_recipe(path: Path, obs: np.ndarray, monkeypatch: Any) -> np.ndarray:
    """Return what the lines of torch in an exported ``policy.safetensors`` do."""
    monkeypatch.chdir(path.parent)
    names: dict[str, Any] = {}
    exec(description(path).split("\n\n", maxsplit=1)[1], names)
    action: np.ndarray = names["act"](torch.from_numpy(obs)).numpy()
    return action


TOLERANCE = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-3}


def assert_acts_as(policies: Policies, row: int, obs: np.ndarray, action: np.ndarray) -> None:
    """Whether actions are those of a policy, to what their type can hold of the range."""
    ours, actions = acts(policies, obs, row), policies.spec.actions
    assert (action.dtype, action.shape) == (ours.dtype, ours.shape)
    if policies.spec.is_continuous:
        low, high = (np.array(end, action.dtype) for end in (actions.low, actions.high))
        away = np.abs(action.astype(np.float64) - ours) / np.subtract(actions.high, actions.low)
        assert away.max() <= TOLERANCE[actions.dtype]
        assert np.all((action >= low) & (action <= high))
    else:
        np.testing.assert_array_equal(action, ours)
    assert len(np.unique(ours)) > 1

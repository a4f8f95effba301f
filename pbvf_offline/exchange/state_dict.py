"""One policy as plain named tensors, with the lines of torch that make it act."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec

ExportType = Literal["float64", "float32"]


def policy_tensors(policies: Policies, dtype: ExportType = "float64") -> dict[str, NDArray[Any]]:
    """Return a single policy as the state dict of its torch module.

    ``net.…``: the network's parameters as its family names them; ``obs_mean`` and ``obs_std``
    (obs_dim,); ``action_low`` and ``action_high`` (act_dim,), or ``action_start`` () int64;
    ``log_std`` (act_dim,) where there is one, which takes no part in the mean action. All that is
    not an integer is of type ``dtype``.
    """
    spec = policies.spec
    tensors: dict[str, Any] = {"obs_mean": policies.obs_mean[0], "obs_std": policies.obs_std[0]}
    if spec.log_std_size:
        tensors["log_std"] = policies.theta[0, : spec.log_std_size]
    if isinstance(spec.actions, BoxActions):
        tensors["action_low"] = np.array(spec.actions.low)
        tensors["action_high"] = np.array(spec.actions.high)
    tensors |= spec.network.tensors(spec, policies.params[0])
    result = {name: np.ascontiguousarray(array, np.dtype(dtype)) for name, array in tensors.items()}
    if not isinstance(spec.actions, BoxActions):
        result["action_start"] = np.array(spec.actions.start, np.int64)
    return result


def encode_state_dict(policies: Policies, dtype: ExportType = "float64") -> bytes:
    """Return :func:`policy_tensors` as a safetensors file, described in its metadata."""
    spec = policies.spec
    text = f"{summary(spec)} In plain PyTorch:\n\n{recipe(spec, dtype)}"
    tensors = policy_tensors(policies, dtype)
    # One entry of metadata: several would stand in no fixed order.
    return bytes(safetensors.numpy.save(tensors, metadata={"description": text}))


def summary(spec: PolicySpec) -> str:
    """Return in words what an exported policy is."""
    network = spec.network.summary(spec)
    text = f"A policy: {network}; raw observations in, executed actions out."
    if spec.stochastic:
        mean = "mean" if spec.is_continuous else "most likely action"
        text += f" The policy is stochastic; this is its {mean}."
    return text


def activation_in(text: str) -> str | None:
    """Return the activation of an exported policy's layers, from its :func:`summary`."""
    found = re.match(r"A policy: (\w+) network [0-9 -]+; raw observations in", text)
    return found[1] if found else None


def recipe(spec: PolicySpec, dtype: ExportType) -> str:
    """Return the lines of torch that act by an exported state dict."""
    lines = [
        "import torch",
        "from safetensors.torch import load_file",
        "",
        'w = load_file("policy.safetensors")',
        "",
        f"def act(obs):  # (..., {spec.obs_dim}) tensor",
        f'    x = (obs.to(torch.{dtype}) - w["obs_mean"]) / w["obs_std"]',
    ]
    lines += [f"    {line}" for line in spec.network.recipe(spec)]
    if isinstance(spec.actions, BoxActions):
        lines.append('    low, high = w["action_low"], w["action_high"]')
        if spec.squash == "tanh":
            lines.append("    x = low + (torch.tanh(x) + 1) / 2 * (high - low)")
        kind = f"torch.{spec.actions.dtype}"
        lines.append(f"    return x.to({kind}).clamp(low.to({kind}), high.to({kind}))")
    else:
        lines.append('    return w["action_start"] + x.argmax(-1)')
    return "\n".join(lines) + "\n"

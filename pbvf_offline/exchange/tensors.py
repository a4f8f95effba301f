"""One policy as plain named tensors, with the lines of torch that make it act."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from pbvf_offline.policies.policy import BoxActions, Policies, PolicySpec, split_theta

ExportType = Literal["float64", "float32"]


def policy_tensors(policies: Policies, dtype: ExportType = "float64") -> dict[str, NDArray[Any]]:
    """Return a single policy as the state dict of its torch module.

    ``net.0.weight``, ``net.0.bias``, ``net.2.weight``, … (out, in) and (out,), as of a
    ``Sequential`` of Linear and Tanh; ``obs_mean`` and ``obs_std`` (obs_dim,); ``action_low`` and
    ``action_high`` (act_dim,), or ``action_start`` () int64; ``log_std`` (act_dim,) where there is
    one, which takes no part in the mean action.

    Args:
        policies: One policy.
        dtype: Type of all that is not an integer.
    """
    spec = policies.spec
    log_std, layers = split_theta(spec, policies.theta[0])
    tensors: dict[str, Any] = {
        "obs_mean": policies.obs_mean[0],
        "obs_std": policies.obs_std[0],
    }
    if spec.log_std_size:
        tensors["log_std"] = log_std
    if isinstance(spec.actions, BoxActions):
        tensors["action_low"] = np.array(spec.actions.low)
        tensors["action_high"] = np.array(spec.actions.high)
    for k, (weight, bias) in enumerate(layers):
        tensors[f"net.{2 * k}.weight"] = weight
        tensors[f"net.{2 * k}.bias"] = bias
    result = {name: np.ascontiguousarray(array, np.dtype(dtype)) for name, array in tensors.items()}
    if not isinstance(spec.actions, BoxActions):
        result["action_start"] = np.array(spec.actions.start, np.int64)
    return result


def encode_safetensors(policies: Policies, dtype: ExportType, text: str) -> bytes:
    """Return the bytes of a safetensors file of a single policy.

    Args:
        policies: One policy.
        dtype: Type of all that is not an integer.
        text: What its metadata say of it. One entry: several would stand in no fixed order.
    """
    tensors = policy_tensors(policies, dtype)
    return bytes(safetensors.numpy.save(tensors, metadata={"description": text}))


def summary(spec: PolicySpec) -> str:
    """Return in words what an exported policy is."""
    layers = " - ".join(str(n) for n in (spec.obs_dim, *spec.hidden, spec.actions.outputs))
    text = f"A policy: tanh network {layers}; raw observations in, executed actions out."
    if spec.stochastic:
        mean = "mean" if spec.is_continuous else "most likely action"
        text += f" The policy is stochastic; this is its {mean}."
    return text


def description(spec: PolicySpec, dtype: ExportType) -> str:
    """Return what an exported state dict is, and the torch that acts by it."""
    return f"{summary(spec)} In plain PyTorch:\n\n{recipe(spec, dtype)}"


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
    for k in range(len(spec.layers)):
        line = f'x @ w["net.{2 * k}.weight"].T + w["net.{2 * k}.bias"]'
        last = k == len(spec.layers) - 1
        lines.append(f"    x = {line}" if last else f"    x = torch.tanh({line})")
    if isinstance(spec.actions, BoxActions):
        lines.append('    low, high = w["action_low"], w["action_high"]')
        if spec.squash == "tanh":
            lines.append("    x = low + (torch.tanh(x) + 1) / 2 * (high - low)")
        kind = f"torch.{spec.actions.dtype}"
        lines.append(f"    return x.to({kind}).clamp(low.to({kind}), high.to({kind}))")
    else:
        lines.append('    return w["action_start"] + x.argmax(-1)')
    return "\n".join(lines) + "\n"

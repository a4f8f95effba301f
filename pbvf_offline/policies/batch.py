"""Policies as differentiable functions of theta: the torch twin of :mod:`policy`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pbvf_offline.errors import UsageError
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.setting_types import Precision

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_CPU: Final = torch.device("cpu")


def double_device(device: torch.device) -> torch.device:
    """Return where to compute in double precision: the device itself, or the CPU for MPS."""
    return torch.device("cpu") if device.type == "mps" else device


def has_bfloat16(device: torch.device = _CPU) -> bool:
    """Return whether a device multiplies bfloat16 numbers by instructions of its own."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return device.type == "cpu" and ("avx512_bf16" in flags or "amx_bf16" in flags)


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse bfloat16 on a device that has no instructions for it.

    Raises:
        UsageError: It has none.
    """
    if precision == "bfloat16" and not has_bfloat16(device):
        raise UsageError(
            f"this {device.type} has no instructions for bfloat16",
            where="--precision",
            remedy="leave it out: float32 runs everywhere",
        )


def network_output(spec: PolicySpec, theta: Tensor, obs: Tensor) -> Tensor:
    """Return the raw outputs (…, S, outputs) of policies theta (…, D) in normalised observations.

    obs are (…, S, obs_dim), S states for each theta; leading axes broadcast. Outputs are before
    squashing; the logits when actions are discrete.
    """
    return spec.network.torch.outputs(spec, theta[..., spec.log_std_size :], obs)


def squashed(spec: PolicySpec, out: Tensor) -> Tensor:
    """Return the actions that pre-squash outputs (…, act_dim) execute, in the critic's unit.

    With ``squash="tanh"`` that is ``tanh(out)`` in [-1, 1]; with ``none`` ``out`` clipped to the
    action bounds, as :func:`pbvf_offline.policies.actions.box_action` executes it: a critic must
    not be asked about actions that never occur.

    Raises:
        TypeError: Actions are discrete.
    """
    if spec.squash == "tanh":
        return torch.tanh(out)
    low, high = _bounds(spec, out)
    return torch.clamp(out, low, high)


def log_prob(spec: PolicySpec, theta: Tensor, obs: Tensor, sample: Tensor) -> Tensor:
    """Return the log density of what a stochastic policy drew, (…, S).

    Continuous actions: of the Gaussian sample *before* squashing. The tanh adds a term that
    does not depend on theta, so it cancels in every ratio and gradient and is left out.
    Discrete actions: the log probability of the choice.

    Args:
        spec: Architecture of stochastic policies.
        theta: (…, D).
        obs: (…, S, obs_dim) normalised.
        sample: (…, S, act_dim) pre-squash samples, or (…, S) int64 choices counted from 0.
    """
    out = network_output(spec, theta, obs)
    if not spec.is_continuous:
        return torch.log_softmax(out, dim=-1).gather(-1, sample.unsqueeze(-1)).squeeze(-1)
    log_std = theta[..., : spec.log_std_size].unsqueeze(-2)
    away = (sample - out) * torch.exp(-log_std)
    return (-0.5 * away.square() - log_std - _HALF_LOG_2PI).sum(dim=-1)


def to_unit(spec: PolicySpec, action: Tensor) -> Tensor:
    """Map stored actions (…, act_dim) to the unit of :func:`squashed`.

    Raises:
        TypeError: Actions are discrete.
    """
    low, high = _bounds(spec, action)
    return action if spec.squash == "none" else (action - low) / (high - low) * 2 - 1


def _bounds(spec: PolicySpec, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the action bounds (act_dim,) in the dtype and on the device of a tensor."""
    if not isinstance(spec.actions, BoxActions):
        raise TypeError("discrete actions have no unit")
    low, high = (
        torch.tensor(bound, dtype=like.dtype, device=like.device)
        for bound in (spec.actions.low, spec.actions.high)
    )
    return low, high

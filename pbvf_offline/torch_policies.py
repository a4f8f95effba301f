"""Policies as differentiable functions of theta: the torch twin of :mod:`policies`."""

from __future__ import annotations

import torch
from torch import Tensor

from pbvf_offline.policies import PolicySpec


def network_output(spec: PolicySpec, theta: Tensor, obs: Tensor) -> Tensor:
    """Return the raw outputs of policies in normalised observations.

    Args:
        spec: Architecture.
        theta: (…, D).
        obs: (…, S, obs_dim) normalised, S states for each theta; leading axes broadcast.

    Returns:
        (…, S, outputs), before squashing; the logits when actions are discrete.
    """
    start = spec.log_std_size
    x = obs
    last = len(spec.layers) - 1
    for k, (out, inp) in enumerate(spec.layers):
        weight = theta[..., start : start + out * inp].reshape(*theta.shape[:-1], out, inp)
        start += out * inp
        bias = theta[..., start : start + out]
        start += out
        x = x @ weight.transpose(-1, -2) + bias.unsqueeze(-2)
        if k < last:
            x = torch.tanh(x)
    return x


def unit_action(spec: PolicySpec, theta: Tensor, obs: Tensor) -> Tensor:
    """Return deterministic continuous actions in the critic's unit.

    With ``squash="tanh"`` that is ``tanh(output)`` in [-1, 1]; with ``none`` the output itself.
    Arguments and shapes as in :func:`network_output`.
    """
    out = network_output(spec, theta, obs)
    return torch.tanh(out) if spec.squash == "tanh" else out


def to_unit(spec: PolicySpec, action: Tensor) -> Tensor:
    """Map stored actions (…, act_dim) to the unit of :func:`unit_action`.

    Raises:
        TypeError: Actions are discrete.
    """
    from pbvf_offline.policies import BoxActions

    if not isinstance(spec.actions, BoxActions):
        raise TypeError("discrete actions have no unit")
    if spec.squash == "none":
        return action
    low = torch.tensor(spec.actions.low, dtype=action.dtype, device=action.device)
    high = torch.tensor(spec.actions.high, dtype=action.dtype, device=action.device)
    return (action - low) / (high - low) * 2 - 1

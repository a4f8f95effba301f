"""Multilayer perceptrons in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pbvf_offline.policies.families.mlp import MLP
from pbvf_offline.policies.spec import PolicySpec


class MLPTorch:
    """The torch form of a multilayer perceptron.

    Args:
        family: The family.
    """

    def __init__(self, family: MLP) -> None:
        self._family = family
        self._activate: Callable[[Tensor], Tensor] = getattr(torch, family.activation.name)
        self._module: type[nn.Module] = getattr(nn, family.activation.module)

    def outputs(self, spec: PolicySpec, params: Tensor, obs: Tensor) -> Tensor:
        """Return outputs (…, S, outputs) of params (…, n) in obs (…, S, obs_dim)."""
        x = obs
        for k, (weight, bias) in enumerate(self._family.layers(spec, params)):
            if k:
                x = self._activate(x)
            x = x @ weight.transpose(-1, -2) + bias.unsqueeze(-2)
        return x

    def module(self, spec: PolicySpec) -> nn.Sequential:
        """Return linear layers with activations between them, float64."""
        modules: list[nn.Module] = []
        for out, inp in self._family.shapes(spec):
            # Through meta: the default initialisation draws from torch's global generator.
            layer = nn.Linear(inp, out, device="meta", dtype=torch.float64)
            modules += [layer.to_empty(device="cpu"), self._module()]
        return nn.Sequential(*modules[:-1])

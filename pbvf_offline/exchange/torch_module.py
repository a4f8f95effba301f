"""One policy as a torch module that needs nothing around it."""

from __future__ import annotations

import torch
from torch import Tensor

from pbvf_offline.exchange.state_dict import policy_tensors
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.policy import Policies


class PolicyModule(torch.nn.Module):
    """Raw observations in, executed actions out.

    Its state dict is what :func:`~pbvf_offline.exchange.state_dict.policy_tensors` describes.

    Args:
        policies: One policy.
    """

    obs_mean: Tensor
    obs_std: Tensor
    action_low: Tensor
    action_high: Tensor
    action_start: Tensor

    def __init__(self, policies: Policies) -> None:
        super().__init__()
        spec = policies.spec
        self.net = spec.network.torch.module(spec)
        state = {name: torch.from_numpy(array) for name, array in policy_tensors(policies).items()}
        for name, tensor in state.items():
            if not name.startswith("net."):
                self.register_buffer(name, tensor.clone())
        self.load_state_dict(state)
        self._squashes = spec.squash == "tanh"
        self._action: torch.dtype | None = None
        if isinstance(spec.actions, BoxActions):
            self._action = getattr(torch, spec.actions.dtype)

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions (…, act_dim) in their own dtype, discrete: (…) int64, for raw obs."""
        out: Tensor = self.net((obs.to(self.obs_mean.dtype) - self.obs_mean) / self.obs_std)
        if self._action is None:
            return self.action_start + out.argmax(-1)
        if self._squashes:
            half = (self.action_high - self.action_low) / 2
            out = (torch.tanh(out) + 1) * half + self.action_low
        low, high = self.action_low.to(self._action), self.action_high.to(self._action)
        return out.to(self._action).clamp(low, high)

"""Several critics of one kind as one, in whose tensors they lie one after the other.

A member axis stands in front of everything: weights (out, in) become (M, in, out), biases (n,)
become (M, 1, n), buffers (…) become (M, 1, …), and what a loss is given and returns is
(M, B, …) and (M,). Each member's numbers depend on that member alone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pbvf_offline.critics.base import Critic
from pbvf_offline.errors import IncompatibleError


def stack(members: Sequence[Tensor]) -> Tensor:
    """Return parameters (out, in) or (n,) of M networks as one tensor."""
    if members[0].dim() == 1:
        return torch.stack([member.unsqueeze(0) for member in members])
    # As they are multiplied: then gradients are laid out like that too, and nothing is copied.
    return torch.stack([member.t() for member in members])


def unstack(stacked: Tensor, like: Tensor) -> list[Tensor]:
    """Undo :func:`stack`: return M tensors of the shape of ``like``, which share its memory."""
    return [member[0] if like.dim() == 1 else member.t() for member in stacked]


def stacked_critic(critics: Sequence[Critic]) -> Critic:
    """Return critics of one configuration as one, with weights of its own.

    Only its :meth:`Critic.loss` is meant to be used.

    Raises:
        IncompatibleError: Such critics have parameters elsewhere than in their network.
    """
    whole = copy.deepcopy(critics[0])
    if len(list(whole.parameters())) != len(list(whole.network.parameters())):
        raise one_at_a_time(whole)
    for module, *parts in zip(whole.modules(), *(c.modules() for c in critics), strict=True):
        for name, _ in list(module.named_parameters(recurse=False)):
            members = [getattr(part, name).detach() for part in parts]
            setattr(module, name, nn.Parameter(stack(members)))
        for name, _ in list(module.named_buffers(recurse=False)):
            members = [getattr(part, name) for part in parts]
            setattr(module, name, torch.stack(members).unsqueeze(1))
    return whole


def one_at_a_time(critic: Critic) -> IncompatibleError:
    """Return the refusal of critics whose loss does not know a member axis."""
    return IncompatibleError(
        f"critics of kind {critic.kind.name} cannot be fitted several at once",
        where="--seeds",
        remedy="run the command once with each --seed",
    )

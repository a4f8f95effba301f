"""Policy families by name: the networks that a policy can be.

A family says how parameters are laid out, how fresh ones are drawn, how a network acts, how it
is re-expressed in another normaliser, and how it is written for other programs. See
:class:`~pbvf_offline.policies.families.base.PolicyFamily`, which a new one implements; another
package adds one with an entry point of the group ``pbvf_offline.policy_families``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pbvf_offline.registry import Member, Registry

if TYPE_CHECKING:
    from pbvf_offline.policies.families.base import PolicyFamily

DEFAULT_FAMILY: Final = "tanh-mlp"

FAMILIES: Final[Registry[PolicyFamily]] = Registry(
    "policy family",
    "pbvf_offline.policy_families",
    {
        DEFAULT_FAMILY: Member(
            "pbvf_offline.policies.families.mlp:TANH_MLP", "linear layers with tanh between them"
        ),
        "relu-mlp": Member(
            "pbvf_offline.policies.families.mlp:RELU_MLP", "linear layers with ReLU between them"
        ),
    },
)

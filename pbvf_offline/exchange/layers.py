"""Linear layers with an activation between them, from other programs, as a policy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import IncompatibleError
from pbvf_offline.policies.families import FAMILIES
from pbvf_offline.policies.families.mlp import MLP, TANH_MLP

Layer = tuple[NDArray[Any], NDArray[Any]]
"""Weight (out, in) and bias (out,)."""


def mlp_families() -> dict[str, MLP]:
    """Return the families of linear layers by the activation between them."""
    families = (family for family in FAMILIES.values() if isinstance(family, MLP))
    return {family.activation.name: family for family in families}


def expressible() -> str:
    """Return in words what can be a policy, for messages."""
    activations = " or ".join(mlp_families())
    return f"policies here are linear layers with {activations} between them"


def family_of(activation: str | None, layers: int, where: str) -> MLP:
    """Return the family of policies with an activation between their layers.

    Args:
        activation: Its name; None: not said, which means tanh.
        layers: Number of layers. A single one has nothing between, and tanh.
        where: The source, for messages.

    Raises:
        IncompatibleError: No family has that activation.
    """
    if activation is None:
        return TANH_MLP
    families = mlp_families()
    if activation.lower() not in families:
        raise IncompatibleError(
            f"hidden layers with {activation} cannot be expressed",
            where=where,
            remedy=expressible(),
        )
    return families[activation.lower()] if layers > 1 else TANH_MLP


def to_float32(arrays: list[NDArray[Any]]) -> tuple[NDArray[np.float32], bool]:
    """Return arrays as one (n,) float32, and whether digits were lost."""
    with np.errstate(over="ignore"):  # what overflows is not finite, and refused
        narrow = [np.asarray(array).astype(np.float32).ravel() for array in arrays]
    lost = any(np.any(a != np.ravel(b)) for a, b in zip(narrow, arrays, strict=True))
    return np.concatenate(narrow), bool(lost)

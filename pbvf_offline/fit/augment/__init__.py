"""Fit-time augmentation: other policies that a critic is shown in the place of those that acted.

A new augmentation is one file: a module of this package, called as users call the augmentation,
with a function ``make`` that does what :data:`Make` says. A package adds one with the entry point
group ``pbvf_offline.augmentations``. Augmentations that add trajectories have no place here yet:
:mod:`pbvf_offline.synthesis.rounds` imagines those of policies that the critic itself proposes.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pbvf_offline.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from pbvf_offline.critics.base import ThetaDraw
    from pbvf_offline.policies.normaliser import Normaliser
    from pbvf_offline.rollout.episodes import Trajectories

RELABEL: Final = "relabel"
"""The augmentation that is used unless another is asked for."""

if TYPE_CHECKING:
    Make = Callable[[Trajectories, NDArray[np.float32], Normaliser, float, torch.device], ThetaDraw]
    """``make(data, theta, normaliser, strength, device)``.

    ``theta`` (P, D) are the dataset's policies in the critic's ``normaliser``; the strength is
    positive, and its unit the augmentation's own. Raises IncompatibleError where the policies do
    not allow it.
    """

AUGMENTATIONS: Registry[Make] = Registry(
    "augmentation",
    "pbvf_offline.augmentations",
    {module.name: f"{__name__}.{module.name}:make" for module in pkgutil.iter_modules(__path__)},
)

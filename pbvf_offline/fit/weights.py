"""A critic's weights and its optimiser's moments as named tensors, and back."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np
import torch

from pbvf_offline.critics import Critic
from pbvf_offline.errors import DamagedError
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.steps import MOMENTS, Fit, make_optimiser
from pbvf_offline.io.tensor_file import Tensors, array_of
from pbvf_offline.policies.normaliser import Normaliser


def fit_tensors(fit: Fit) -> Tensors:
    """Return a critic's weights and its optimiser's moments by name."""
    tensors: Tensors = {}
    for name, weight in fit.critic.state_dict().items():
        tensors[f"critic/{name}"] = weight.cpu().numpy()
    for name, parameter in fit.online.named_parameters():
        if fit.averaged is not None:
            tensors[f"online/{name}"] = parameter.detach().cpu().numpy()
        state = fit.optimiser.state.get(parameter)
        if state:
            for key in MOMENTS:
                tensors[f"{key}/{name}"] = state[key].cpu().numpy()
    return tensors


def stored_fit(
    critic: Critic,
    settings: FitSettings,
    normaliser: Normaliser,
    tensors: Tensors,
    updates: int,
    where: str,
) -> Fit:
    """Return a fit as it was after ``updates`` gradient steps, without its record.

    Args:
        critic: A critic of the right kind and sizes; it takes the stored weights.
        settings: What decides the fit.
        normaliser: The critic's normaliser.
        tensors: See :func:`fit_tensors`.
        updates: Gradient steps done.
        where: The file, for messages.

    Raises:
        DamagedError: A tensor is missing, misshapen or out of range, or there is one too many.
    """
    names = critic.state_dict()
    extra = sorted(n for n in tensors if n.startswith("critic/") and n[7:] not in names)
    if extra:
        raise DamagedError(f"holds weights that its configuration lacks: {extra[0]}", where=where)
    _load(((f"critic/{name}", weight) for name, weight in names.items()), tensors, where)
    if bool((critic.theta_scale < torch.finfo(torch.float32).tiny).any()):
        raise DamagedError("critic/theta_scale is not positive", where=where)
    online = copy.deepcopy(critic) if settings.average > 0 else critic
    if online is not critic:
        _load(((f"online/{n}", weight) for n, weight in online.named_parameters()), tensors, where)
    optimiser = make_optimiser(online, settings.lr)
    if updates > 0:
        for name, parameter in online.named_parameters():
            moments = {key: torch.empty_like(parameter) for key in MOMENTS}
            _load(((f"{key}/{name}", value) for key, value in moments.items()), tensors, where)
            if bool((moments["exp_avg_sq"] < 0).any()):
                raise DamagedError(f"exp_avg_sq/{name} is out of range", where=where)
            step = torch.tensor(float(updates), dtype=torch.float32, device=parameter.device)
            optimiser.state[parameter] = {"step": step, **moments}
    averaged = None if online is critic else critic
    return Fit(settings, online, averaged, normaliser, optimiser, updates)


def _load(named: Iterable[tuple[str, torch.Tensor]], tensors: Tensors, where: str) -> None:
    """Put stored numbers into tensors."""
    with torch.no_grad():
        for name, value in named:
            given = array_of(tensors, name, tuple(value.shape), np.float32, where)
            value.copy_(torch.from_numpy(given.copy()))

"""Fit a critic to a dataset: one loop for every kind, resumable at any update.

Which entries update u draws is a pure function of the seed and u, and the file holds
the optimiser's state, so a fit that was interrupted or extended ends with the bytes of
an undisturbed one.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.critics import Critic, CriticConfig, TrainingSet, make_critic
from pbvf_offline.errors import DivergedError, IncompatibleError
from pbvf_offline.fit.augment import AUGMENTATIONS
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.validation import split_policies
from pbvf_offline.policies.normaliser import Normaliser, RunningStatistics
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import chosen_rewards, value_bounds
from pbvf_offline.seeding import Stream, generator

_BLOCK = 256  # updates whose batches are drawn together
RECORD_EVERY = 100


@dataclass
class Fit:
    """A critic in training.

    Attributes:
        settings: What decides the fit.
        online: The network that takes the gradient steps.
        averaged: The running average of its weights, when wanted.
        normaliser: The critic's normaliser.
        optimiser: Adam over the critic's weights.
        updates: Gradient steps done.
        record: ``(update, mean loss of the updates since the one before)``.
        pending: Losses since the last entry of the record.
        whole: False while an update is under way, when nothing may be saved.
    """

    settings: FitSettings
    online: Critic
    averaged: Critic | None
    normaliser: Normaliser
    optimiser: torch.optim.Adam
    updates: int = 0
    record: list[tuple[int, float]] = field(default_factory=list)
    pending: list[float] = field(default_factory=list)
    whole: bool = True

    @property
    def critic(self) -> Critic:
        """What the fit has come to: the averaged network, else the one that learns."""
        return self.online if self.averaged is None else self.averaged

    @property
    def loss(self) -> float | None:
        """Mean loss of the last recorded stretch."""
        if self.record:
            return self.record[-1][1]
        return float(np.mean(self.pending)) if self.pending else None


def shared_normaliser(data: Trajectories) -> Normaliser:
    """Return the normaliser a critic works in.

    That of the policies when they share one; otherwise the statistics of all stored
    observations, in which every policy can be re-expressed exactly.
    """
    policies = data.policies
    mean, std = policies.obs_mean[0], policies.obs_std[0]
    if np.all(policies.obs_mean == mean) and np.all(policies.obs_std == std):
        return Normaliser(mean.copy(), std.copy())
    statistics = RunningStatistics(policies.spec.obs_dim)
    statistics.update(data.observations)
    return statistics.freeze()


def start_fit(data: Trajectories, settings: FitSettings, device: torch.device) -> Fit:
    """Return a fit at update 0 with fresh weights.

    Raises:
        IncompatibleError: The critic cannot be fitted to such policies or data.
    """
    if not data.tagged:
        raise IncompatibleError(
            "the data do not say which policies acted",
            remedy="tag the dataset with them, with 'pbvf dataset tag'",
        )
    config = CriticConfig(
        spec=data.policies.spec,
        hidden=settings.hidden,
        activation=settings.activation,
        gamma=settings.gamma,
        reward=settings.reward,
        n_step=settings.n_step,
        standardise=settings.standardise,
        fingerprint=settings.fingerprint,
    )
    rng = generator(settings.seed, Stream.CRITIC_INIT)
    critic = make_critic(settings.kind, config, rng)
    normaliser = shared_normaliser(data)
    critic.view.choose_states(data, normaliser, generator(settings.seed, Stream.SUBSAMPLE, 3))
    if settings.standardise:
        critic.standardise_to(data.policies.in_normaliser(normaliser.mean, normaliser.std))
    critic = critic.to(device)
    averaged = copy.deepcopy(critic) if settings.average > 0 else None
    return Fit(settings, critic, averaged, normaliser, make_optimiser(critic, settings.lr))


def make_optimiser(critic: Critic, lr: float) -> torch.optim.Adam:
    """Return Adam over a critic's weights; fused, which is the fastest on CPU and CUDA."""
    return torch.optim.Adam(critic.parameters(), lr=lr, fused=True)


def held_out_policies(data: Trajectories, settings: FitSettings) -> NDArray[np.bool_]:
    """Return the (P,) mask of policies kept from the fit for validation."""
    return split_policies(len(data.policies), settings.validation, settings.seed)


def training_set(fit: Fit, data: Trajectories, device: torch.device) -> TrainingSet:
    """Return the tensors that the fit learns from.

    Raises:
        IncompatibleError: Nothing is left to learn from.
        DivergedError: The rewards are beyond single precision.
    """
    settings = fit.settings
    prepared = fit.critic.training_set(
        data, fit.normaliser, held_out_policies(data, settings), device
    )
    if len(prepared) == 0:
        raise IncompatibleError("there is nothing to learn from", remedy="hold out fewer policies")
    if settings.bound_values:
        rewards = chosen_rewards(data, fit.critic.config.reward)
        bounds = value_bounds(data, rewards, settings.gamma, held_out_policies(data, settings))
        largest = 0.0 if bounds is None else max(map(abs, bounds))
        if largest > torch.finfo(torch.float32).max:
            raise DivergedError(
                f"values up to {largest:.3g} are beyond single precision",
                remedy="scale the rewards, or use --no-bound-values",
            )
        prepared = dataclasses.replace(prepared, bounds=bounds)
    if settings.relabel > 0:
        draw = AUGMENTATIONS[settings.augment](
            data, prepared.theta.cpu().numpy(), fit.normaliser, settings.relabel, device
        )
        prepared = dataclasses.replace(prepared, augmentation=draw)
        if fit.critic.noise_shape(prepared) != draw.noise_shape:
            raise IncompatibleError(
                "this critic draws actions and cannot be shown other parameters",
                remedy="use --relabel 0",
            )
    return prepared


def _average(averaged: Critic, online: Critic, decay: float, updates: int) -> None:
    """Move averaged weights towards the online ones.

    By ``max(1 - decay, 1 / (updates + 1))``: a plain mean at first, exponential later. The
    rule does not know how many updates will follow, so a fit can be extended.
    """
    weight = max(1.0 - decay, 1.0 / (updates + 1))
    with torch.no_grad():
        torch._foreach_lerp_(list(averaged.parameters()), list(online.parameters()), weight)


def batch_indices(
    settings: FitSettings,
    entries: int,
    start: int,
    stop: int,
    noise_shape: tuple[int, ...] | None = None,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32] | None]]:
    """Yield what updates start … stop - 1 draw: entries uniform with replacement, and noise.

    Args:
        settings: Batch size and seed.
        entries: Number of entries to draw from.
        start: First update.
        stop: One past the last update.
        noise_shape: Shape of the standard normal numbers wanted for each entry, if any.

    Yields:
        ``(index (batch_size,), noise (batch_size, *noise_shape) or None)``.
    """
    size = settings.batch_size
    for block in range(start // _BLOCK, (stop + _BLOCK - 1) // _BLOCK):
        rng = generator(settings.seed, Stream.BATCH, block)
        drawn = rng.integers(entries, size=(_BLOCK, size))
        for k in range(_BLOCK):
            # Drawn also for updates that are passed over, so that each has its own numbers.
            update = block * _BLOCK + k
            if update >= stop:
                break
            noise = (
                None
                if noise_shape is None
                else rng.standard_normal((size, *noise_shape), dtype=np.float32)
            )
            if update >= start:
                yield drawn[k], noise


def advance(
    fit: Fit,
    prepared: TrainingSet,
    until: int,
    *,
    after_update: Callable[[Fit], None] | None = None,
) -> None:
    """Take gradient steps up to update ``until``.

    Args:
        fit: The fit, changed in place.
        prepared: Its training set.
        until: Number of updates wanted in all.
        after_update: Called after every update, for progress and checkpoints; what it
            raises stops the loop between two whole updates.

    Raises:
        DivergedError: The loss or a weight is NaN or infinite; the fit stands at the
            update before.
    """
    critic, entry = fit.online, prepared.entry
    everything = bool((entry == torch.arange(len(prepared), device=entry.device)).all())
    shape = critic.noise_shape(prepared)
    for drawn, numbers in batch_indices(fit.settings, len(prepared), fit.updates, until, shape):
        index: Tensor = torch.from_numpy(drawn).to(entry.device)
        noise = None if numbers is None else torch.from_numpy(numbers).to(entry.device)
        gradient_step(fit, prepared, index if everything else entry[index], noise)
        if after_update is not None:
            after_update(fit)
    check_weights(fit)


def gradient_step(
    fit: Fit, prepared: TrainingSet, index: Tensor, noise: Tensor | None = None
) -> None:
    """Take one gradient step on the entries ``index`` (B,) of a training set.

    Raises:
        DivergedError: The loss is NaN or infinite; the fit is unchanged.
    """
    descend(fit, fit.online.loss(prepared, index, noise))


def descend(fit: Fit, loss: Tensor) -> None:
    """Take one gradient step down a loss of the online critic.

    Raises:
        DivergedError: The loss is NaN or infinite; the fit is unchanged.
    """
    value = loss.item()
    if not math.isfinite(value):
        raise DivergedError(
            f"the loss is {value} at update {fit.updates + 1}",
            remedy="lower --lr (online: --lr-critic); the last good file was kept",
        )
    fit.optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    fit.whole = False
    fit.optimiser.step()
    fit.updates += 1
    if fit.averaged is not None:
        _average(fit.averaged, fit.online, fit.settings.average, fit.updates)
    fit.pending.append(value)
    if fit.updates % RECORD_EVERY == 0:
        fit.record.append((fit.updates, float(np.mean(fit.pending))))
        fit.pending.clear()
    fit.whole = True


def check_weights(fit: Fit) -> None:
    """Check that a critic is still finite.

    Raises:
        DivergedError: A weight is NaN or infinite.
    """
    if not all(bool(torch.isfinite(p).all()) for p in fit.online.parameters()):
        raise DivergedError(
            f"the critic's weights are not finite after update {fit.updates}",
            remedy="lower --lr (online: --lr-critic); the last good file was kept",
        )

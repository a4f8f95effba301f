"""Fit a critic to a dataset, or several at once: one loop for all, resumable at any update.

Which entries update u draws is a pure function of the seed and u, and the file holds
the optimiser's state, so a fit that was interrupted or extended ends with the bytes of
an undisturbed one.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.critics import CriticConfig, TrainingSet, make_critic
from pbvf_offline.errors import DivergedError, IncompatibleError
from pbvf_offline.fit.augment import AUGMENTATIONS
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.steps import Fit, Group, check_weights, make_optimiser
from pbvf_offline.fit.validation import split_policies
from pbvf_offline.policies.normaliser import Normaliser, RunningStatistics
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import chosen_rewards, discounted_to_go, value_bounds
from pbvf_offline.seeding import Stream, generator

_BLOCK = 256  # updates whose batches are drawn together
_LEARNABLE = (0.01, 10_000.0)  # largest values that 2,000 updates learned to rank, and to predict


class RewardScaleWarning(UserWarning):
    """Rewards are too small or too large to be learned as they are."""


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


def held_out_policies(data: Trajectories, settings: FitSettings) -> NDArray[np.bool_]:
    """Return the (P,) mask of policies kept from the fit for validation."""
    return split_policies(len(data.policies), settings.validation, settings.seed)


def training_set(
    fit: Fit, data: Trajectories, device: torch.device, like: TrainingSet | None = None
) -> TrainingSet:
    """Return the tensors that the fit learns from.

    Args:
        fit: The fit.
        data: The dataset.
        device: Where the tensors go.
        like: The set of a fit that differs in its seed alone, whose tensors are shared.

    Raises:
        IncompatibleError: Nothing is left to learn from.
        DivergedError: The rewards are beyond single precision.

    Warns:
        RewardScaleWarning: The rewards are so small or large that they will not be learned.
    """
    settings = fit.settings
    held_out = held_out_policies(data, settings)
    if like is not None and not held_out.any():
        return like
    prepared = fit.critic.training_set(data, fit.normaliser, held_out, device)
    if like is not None:
        prepared = dataclasses.replace(like, entry=prepared.entry)
    if len(prepared) == 0:
        raise IncompatibleError("there is nothing to learn from", remedy="hold out fewer policies")
    rewards = chosen_rewards(data, fit.critic.config.reward)
    if settings.bound_values:
        bounds = value_bounds(data, rewards, settings.gamma, held_out)
        largest = 0.0 if bounds is None else max(map(abs, bounds))
        if largest > torch.finfo(torch.float32).max:
            raise DivergedError(
                f"values up to {largest:.3g} are beyond single precision",
                remedy="scale the rewards, or use --no-bound-values",
            )
        prepared = dataclasses.replace(prepared, bounds=bounds)
    if like is None:
        _warn_of_scale(discounted_to_go(rewards, data.start, settings.gamma))
    if settings.relabel > 0 and like is None:
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


def _warn_of_scale(values: NDArray[np.float64]) -> None:
    """Warn where sums of rewards (N,) are such that the steps of Adam cannot learn them."""
    sizes = np.abs(values)
    largest, typical = float(sizes.max(initial=0.0)), float(np.median(sizes))
    if 0 < largest < _LEARNABLE[0]:
        what = f"are {largest:.3g} at most, too small for a critic to tell policies apart"
    elif typical > _LEARNABLE[1]:
        what = (
            f"are mostly beyond {typical:.3g}, more than a critic reaches, so it predicts too "
            "little, though it may rank policies"
        )
    else:
        return
    warnings.warn(
        f"the data's values {what}; collect with rewards that are scaled to values between 0.1 and "
        "1,000 (gymnasium.wrappers.TransformReward in a module of yours)",
        RewardScaleWarning,
        stacklevel=2,
    )


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

    def after(group: Group) -> None:
        if after_update is not None:
            after_update(group.fits[0])

    for error in advance_several([fit], [prepared], until, after_update=after).values():
        raise error


def advance_several(
    fits: Sequence[Fit],
    prepared: Sequence[TrainingSet],
    until: int,
    *,
    after_update: Callable[[Group], None],
) -> dict[int, DivergedError]:
    """Take gradient steps with several fits at once, up to update ``until``.

    Each makes the updates that it would make alone. Those that are behind catch up first.

    Args:
        fits: Fits that differ in their seeds alone, changed in place.
        prepared: Their training sets, which share their tensors.
        until: Number of updates wanted in all; a fit that has more is left alone.
        after_update: Called after every update with the fits that took it, whose weights are up
            to date after :meth:`Group.settle`. What it raises stops the loop between two whole
            updates, with all weights up to date.

    Returns:
        By its place, why a fit was given up: its loss or a weight was NaN or infinite. It stands
        at the update before; the others went on without it.

    Raises:
        IncompatibleError: Such critics can only be fitted one at a time.
    """
    wrong: dict[int, DivergedError] = {}
    while True:
        going = [k for k, fit in enumerate(fits) if k not in wrong and fit.updates < until]
        if not going:
            return wrong
        steps = sorted({fits[k].updates for k in going} | {until})
        now = [k for k in going if fits[k].updates == steps[0]]
        here, sets = [fits[k] for k in now], [prepared[k] for k in now]
        found = _advance_group(here, sets, steps[1], after_update)
        wrong |= {now[place]: error for place, error in found.items()}


def _advance_group(
    fits: Sequence[Fit],
    prepared: Sequence[TrainingSet],
    until: int,
    after_update: Callable[[Group], None],
) -> dict[int, DivergedError]:
    """Take gradient steps with fits that stand at the same update, until one of them diverges."""
    group, batch = Group(fits), _shared(prepared)
    shape = group.online.noise_shape(batch)
    device = batch.entry.device
    rows = [
        None if bool((part.entry == torch.arange(len(part), device=device)).all()) else part.entry
        for part in prepared
    ]
    draws = (
        batch_indices(fit.settings, len(part), fit.updates, until, shape)
        for fit, part in zip(fits, prepared, strict=True)
    )
    try:
        for drawn in zip(*draws, strict=True):
            places = [torch.from_numpy(index).to(device) for index, _ in drawn]
            index = _one_or_stacked(
                [at if row is None else row[at] for row, at in zip(rows, places, strict=True)]
            )
            numbers = [torch.from_numpy(noise) for _, noise in drawn if noise is not None]
            noise = _one_or_stacked(numbers).to(device) if numbers else None
            if wrong := group.descend(group.online.loss(batch, index, noise)):
                return wrong
            after_update(group)
    finally:
        group.settle()
    broken: dict[int, DivergedError] = {}
    for place, fit in enumerate(fits):
        try:
            check_weights(fit)
        except DivergedError as error:
            broken[place] = error
    return broken


def _one_or_stacked(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))


def _shared(prepared: Sequence[TrainingSet]) -> TrainingSet:
    """Return the one set that losses of several fits are taken of."""
    first = prepared[0]
    bounds = [part.bounds for part in prepared if part.bounds is not None]
    if len(set(bounds)) < 2:
        return first
    columns = torch.tensor(bounds, dtype=torch.float32, device=first.entry.device).unsqueeze(-1)
    return dataclasses.replace(first, bounds=(columns[:, 0], columns[:, 1]))

"""Fit a critic to a dataset, or several at once: one loop for all, resumable at any update.

Which entries update u draws is a pure function of the seed and u, and the file holds
the optimiser's state, so a fit that was interrupted or extended ends with the bytes of
an undisturbed one.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
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
from pbvf_offline.io import columns
from pbvf_offline.policies.normaliser import Normaliser, RunningStatistics
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import chosen_rewards, discounted_to_go, value_bounds
from pbvf_offline.seeding import Stream, generator

_BLOCK = 256  # updates whose batches are drawn together
_MEDIAN_OF = 1_000_000
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
    fit: Fit,
    data: Trajectories,
    device: torch.device,
    like: TrainingSet | None = None,
    *,
    scaled_later: bool = False,
) -> TrainingSet:
    """Return the tensors that the fit learns from.

    Args:
        fit: The fit.
        data: The dataset.
        device: Where the tensors go.
        like: The set of a fit that differs in its seed alone, whose tensors are shared.
        scaled_later: Whether values of any size are brought to unit spread before they are
            learned, so that there is nothing to warn of.

    Raises:
        IncompatibleError: Nothing is left to learn from.
        DivergedError: The rewards are beyond single precision.

    Warns:
        RewardScaleWarning: The rewards are so small or large that they will not be learned.
    """
    settings = fit.settings
    held_out = held_out_policies(data, settings)
    if like is not None and not held_out.any():
        return dataclasses.replace(like, seen=_seen(fit, data, like))
    prepared = fit.critic.training_set(data, fit.normaliser, held_out, device)
    if like is not None:
        prepared = dataclasses.replace(like, entry=prepared.entry)
    prepared = dataclasses.replace(prepared, seen=_seen(fit, data, prepared))
    if len(prepared) == 0:
        raise IncompatibleError("there is nothing to learn from", remedy="hold out fewer policies")
    rewards = chosen_rewards(data, fit.critic.config.reward)
    if settings.bound_values:
        bounds = value_bounds(data, rewards, settings.gamma, held_out)
        largest = 0.0 if bounds is None else max(map(abs, bounds))
        if largest > torch.finfo(torch.float32).max:
            raise DivergedError(
                f"values up to {largest:.3g} are beyond single precision",
                remedy="scale the rewards",
            )
        prepared = dataclasses.replace(prepared, bounds=bounds)
    if like is None and not scaled_later:
        _warn_of_scale(data, rewards, settings.gamma)
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


def _seen(fit: Fit, data: Trajectories, prepared: TrainingSet) -> Tensor | None:
    """Return what the critic sees of each policy (P, width), if it never changes in the fit."""
    view = fit.critic.view
    if fit.settings.relabel > 0 or not view.any_architecture:
        return None
    theta = prepared.theta
    return torch.from_numpy(view.rows(data.policies.spec, theta.cpu().numpy())).to(theta.device)


def _warn_of_scale(data: Trajectories, rewards: NDArray[np.float64], gamma: float) -> None:
    """Warn where sums of rewards (N,) are such that the steps of Adam cannot learn them."""
    largest, every, some = 0.0, -(-len(data) // _MEDIAN_OF), []
    for first, part in data.parts():
        values = discounted_to_go(rewards[first : first + len(part)], part.start, gamma)
        sizes = np.abs(values)
        largest = float(sizes.max(initial=largest))
        some.append(sizes[-first % every :: every])
    typical = float(np.median(np.concatenate(some)))
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
        "1,000 (gymnasium.wrappers.TransformReward in a module of yours; where the environment "
        "reports info['reward_survive'], the same factor is due there)",
        RewardScaleWarning,
        stacklevel=2,
    )


def batch_indices(
    settings: FitSettings, entries: int, start: int, stop: int
) -> Iterator[NDArray[np.int64]]:
    """Yield the entries (batch_size,) that updates start … stop - 1 draw.

    They are uniform, with replacement.

    Args:
        settings: Batch size and seed.
        entries: Number of entries to draw from.
        start: First update.
        stop: One past the last update.
    """
    for _, drawn, first in _blocks(settings, entries, start, stop):
        yield from drawn[first : stop - start + first]
        start += len(drawn) - first


def batch_noise(
    settings: FitSettings, entries: int, start: int, stop: int, shape: tuple[int, ...] | None
) -> Iterator[NDArray[np.float32] | None]:
    """Yield standard normal numbers (batch_size, *shape) of updates start … stop - 1, if any.

    Arguments as of :func:`batch_indices`, and the shape of the numbers of an entry.
    """
    if shape is None:
        yield from itertools.repeat(None, stop - start)
        return
    for rng, drawn, first in _blocks(settings, entries, start, stop):
        for update in range(min(len(drawn), stop - start + first)):
            # Drawn also for updates that are passed over, so that each has its own numbers.
            noise = rng.standard_normal((settings.batch_size, *shape), dtype=np.float32)
            if update >= first:
                yield noise
        start += len(drawn) - first


def _blocks(
    settings: FitSettings, entries: int, start: int, stop: int
) -> Iterator[tuple[np.random.Generator, NDArray[np.int64], int]]:
    """Yield of each block of updates its generator, entries (_BLOCK, batch_size), first update."""
    for block in range(start // _BLOCK, -(-stop // _BLOCK)):
        rng = generator(settings.seed, Stream.BATCH, block)
        drawn = rng.integers(entries, size=(_BLOCK, settings.batch_size))
        yield rng, drawn, max(0, start - block * _BLOCK)


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
    spans = [
        (fit.settings, len(part), fit.updates, until)
        for fit, part in zip(fits, prepared, strict=True)
    ]
    indices = zip(*(batch_indices(*span) for span in spans), strict=True)
    noises = zip(*(batch_noise(*span, shape) for span in spans), strict=True)
    try:
        for (here, index), drawn in zip(_loaded(batch, prepared, indices), noises, strict=True):
            numbers = [torch.from_numpy(noise) for noise in drawn if noise is not None]
            noise = _one_or_stacked(numbers).to(batch.theta.device) if numbers else None
            if wrong := group.descend(group.online.loss(here, index, noise)):
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


def _loaded(
    batch: TrainingSet,
    prepared: Sequence[TrainingSet],
    indices: Iterator[tuple[NDArray[np.int64], ...]],
) -> Iterator[tuple[TrainingSet, Tensor]]:
    """Yield for each update a training set of tensors, and the entries of it that are drawn.

    A set that is small is turned into tensors once; of a large one, what many updates draw is
    read together and in order, since rows of files are read slowly one by one.

    Args:
        batch: The set that losses are taken of.
        prepared: The sets of all fits, which differ from it in their entries alone.
        indices: For each update, what each fit draws of its entries (batch_size,).
    """
    size, device = batch.entry_bytes, batch.theta.device
    small = len(batch.value) * size <= columns.AT_ONCE
    here = batch.picked(torch.arange(len(batch.value))) if small else batch
    for first in indices:
        # As many updates as draw what may be in memory at once.
        most = max(1, columns.AT_ONCE // (size * len(first) * len(first[0])))
        drawn = [first, *itertools.islice(indices, most - 1)]
        rows = torch.stack(
            [
                part.entry[torch.from_numpy(np.stack(own))].cpu()
                for part, own in zip(prepared, zip(*drawn, strict=True), strict=True)
            ],
            dim=1,
        )
        if not small:
            used, rows = torch.unique(rows, return_inverse=True)
            here = batch.picked(used)
        for index in rows.to(device):
            yield here, index[0] if len(prepared) == 1 else index


def _one_or_stacked(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))


def _shared(prepared: Sequence[TrainingSet]) -> TrainingSet:
    """Return the one set that losses of several fits are taken of."""
    first = prepared[0]
    if len(prepared) > 1:  # each critic has probing states of its own
        first = dataclasses.replace(first, seen=None)
    bounds = [part.bounds for part in prepared if part.bounds is not None]
    if len(set(bounds)) < 2:
        return first
    columns = torch.tensor(bounds, dtype=torch.float32, device=first.theta.device).unsqueeze(-1)
    return dataclasses.replace(first, bounds=(columns[:, 0], columns[:, 1]))

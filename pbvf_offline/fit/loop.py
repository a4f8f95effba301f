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
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.critics import CRITICS, Critic, CriticConfig, TrainingSet, make_critic
from pbvf_offline.errors import DivergedError, IncompatibleError, UsageError
from pbvf_offline.fit.augment.relabel import can_relabel, make_relabelling
from pbvf_offline.fit.validation import split_policies
from pbvf_offline.policies.normaliser import Normaliser, RunningStatistics
from pbvf_offline.policies.policy import PolicySpec
from pbvf_offline.presets.offline import default_gamma, default_reward
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import RewardChoice, chosen_rewards, value_bounds
from pbvf_offline.seeding import Stream, generator

_BLOCK = 256  # updates whose batches are drawn together
RECORD_EVERY = 100
MAX_BATCH = 1_000_000
MAX_RELABEL = 1_000.0


@dataclass(frozen=True)
class FitSettings:
    """Everything that decides a fit, apart from the data.

    Attributes:
        kind: Which critic, a name in :data:`pbvf_offline.critics.CRITICS`.
        hidden: Sizes of its hidden layers.
        gamma: Discount factor.
        lr: Learning rate of Adam.
        batch_size: Entries a gradient step draws, uniformly with replacement.
        n_step: Longest n-step target of a TD critic.
        reward: Which reward to add up.
        validation: Fraction of policies held out.
        seed: Seed of initial weights, batches and hold-out.
        activation: ``relu`` or ``tanh``.
        relabel: Tolerated change of action of behaviour-preserving relabelling; 0: none.
        bound_values: Keep bootstrapped values within what the data suggest.
        standardise: Show thetas to the network standardised over the dataset.
        average: Decay of the running average of weights that becomes the critic; 0: the
            last weights do.
    """

    kind: str
    hidden: tuple[int, ...]
    gamma: float
    lr: float
    batch_size: int
    n_step: int
    reward: str
    validation: float
    seed: int
    activation: str = "relu"
    relabel: float = 0.0
    bound_values: bool = False
    standardise: bool = False
    average: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise UsageError(f"discount {self.gamma:.3g} is not in [0, 1]", where="--gamma")
        if self.n_step < 1:
            raise UsageError(f"{self.n_step} steps are not at least 1", where="--n-step")
        if self.reward not in get_args(RewardChoice):
            raise UsageError(
                f"{self.reward[:40]!r} is none of {', '.join(get_args(RewardChoice))}",
                where="--reward",
            )
        if not 0.0 <= self.average < 1.0:
            raise UsageError(f"{self.average} is not in [0, 1)", where="--average")
        if not 0.0 <= self.relabel <= MAX_RELABEL:
            raise UsageError(f"{self.relabel} is not in 0 … {MAX_RELABEL:g}", where="--relabel")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise UsageError(f"learning rate {self.lr} is not positive", where="--lr")
        if not 1 <= self.batch_size <= MAX_BATCH:
            raise UsageError(
                f"batch size {self.batch_size} is not in 1 … {MAX_BATCH:,}", where="--batch-size"
            )
        if not 0.0 <= self.validation < 1.0:
            raise UsageError(
                f"fraction {self.validation} is not in [0, 1)", where="--validation-policies"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        data = dataclasses.asdict(self)
        data["hidden"] = list(self.hidden)
        return data


def default_fit_settings(
    kind: str, env_id: str | None, spec: PolicySpec, *, seed: int, validation: float = 0.0
) -> FitSettings:
    """Return this project's default recipe for a critic in an environment.

    Args:
        kind: A name in :data:`pbvf_offline.critics.CRITICS`.
        env_id: The environment's id, for the paper's discount and reward there.
        spec: The policies' architecture; relabelling is left out where it cannot be done.
        seed: Seed of initial weights, batches and hold-out.
        validation: Fraction of policies held out.
    """
    preset = CRITICS[kind].offline
    return FitSettings(
        kind=kind,
        hidden=preset.hidden,
        gamma=default_gamma(kind, env_id),
        lr=preset.lr,
        batch_size=preset.batch_size,
        n_step=preset.n_step,
        reward=default_reward(kind, env_id),
        validation=validation,
        seed=seed,
        relabel=preset.relabel if can_relabel(spec) else 0.0,
        bound_values=preset.bound_values,
        standardise=preset.standardise,
        average=preset.average,
    )


def paper_fit_settings(settings: FitSettings) -> FitSettings:
    """Return the paper's critic with otherwise the same settings: one-step TD, nothing added."""
    return dataclasses.replace(
        settings, n_step=1, relabel=0.0, bound_values=False, standardise=False, average=0.0
    )


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
    config = CriticConfig(
        spec=data.policies.spec,
        hidden=settings.hidden,
        activation=settings.activation,
        gamma=settings.gamma,
        reward=settings.reward,  # type: ignore[arg-type]
        n_step=settings.n_step,
        standardise=settings.standardise,
    )
    rng = generator(settings.seed, Stream.CRITIC_INIT)
    critic = make_critic(settings.kind, config, rng)
    normaliser = shared_normaliser(data)
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
        prepared = dataclasses.replace(prepared, bounds=bounds)
    if settings.relabel > 0:
        relabelling = make_relabelling(
            data, prepared.theta.cpu().numpy(), fit.normaliser, settings.relabel, device
        )
        prepared = dataclasses.replace(prepared, relabelling=relabelling)
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
    loss = fit.online.loss(prepared, index, noise)
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

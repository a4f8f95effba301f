"""What every parameter-based value function has in common."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.critics.kinds import CriticKind
from pbvf_offline.critics.network import SplitMLP
from pbvf_offline.critics.views import make_view, view_width
from pbvf_offline.io.columns import Column
from pbvf_offline.policies.normaliser import Normaliser, column_moments
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.records import Record, since
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.setting_types import MAX_PROBES, Activation, RewardChoice, Width

_CHUNK_VALUES = 16_384  # (theta, state) pairs worked on at once: 2 layers of 512 take 64 MB
_CHUNK_VALUES_GPU = 65_536  # with fewer a GPU waits for its next task most of the time
_NO_SPREAD = 1e-6  # as of normalisers


@dataclass(frozen=True)
class CriticConfig(Record):
    """What a critic estimates and with which network.

    Attributes:
        spec: Architecture of the policies it evaluates.
        hidden: Sizes of its hidden layers.
        activation: ``relu`` or ``tanh``.
        gamma: Discount factor of the values.
        reward: Which reward the values add up.
        n_step: Longest n-step target of a TD critic; 1 is the paper's.
        standardise: Show policies to the network with the dataset's mean taken off and divided
            by its spread, dimension by dimension; the paper shows theta as it is.
        fingerprint: Number of probing states by which it reads a policy; 0: it reads theta.

    Raises:
        UsageError: A value is out of range.
    """

    spec: PolicySpec
    hidden: Annotated[tuple[Width, ...], Meta(min_length=1, max_length=16)]
    activation: Activation = "relu"
    gamma: Annotated[float, Meta(ge=0, le=1)] = 0.99
    reward: RewardChoice = "raw"
    n_step: Annotated[int, Meta(ge=1)] = 1
    standardise: bool = False
    fingerprint: Annotated[int, Meta(ge=0, le=MAX_PROBES), since(2)] = 0


class Critic(torch.nn.Module, ABC):
    """A value function whose inputs include the policy's parameters.

    A new kind is a module with a subclass, and an entry in :mod:`pbvf_offline.critics.kinds`.

    Args:
        config: What it estimates.
        rng: Source of its initial weights.
    """

    kind: ClassVar[CriticKind]
    """Its entry in the table of kinds."""

    def __init__(self, config: CriticConfig, rng: np.random.Generator) -> None:
        super().__init__()
        self.check(config.spec)
        self.config = config
        self.view = make_view(config.spec, config.fingerprint)
        self.network = SplitMLP(self.inputs(config), config.hidden, config.activation, rng)
        self.theta_center: Tensor
        self.theta_scale: Tensor
        self.register_buffer("theta_center", torch.zeros(self.view.width))
        self.register_buffer("theta_scale", torch.ones(self.view.width))

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.network.first_bias.device

    def standardise_to(self, theta: NDArray[np.float32]) -> None:
        """Take center and scale of what the network sees from policies theta (P, D)."""
        mean, variance = column_moments(self.view.rows(self.config.spec, theta))
        scale = np.sqrt(variance)
        spread = scale[scale > _NO_SPREAD]
        typical = float(np.median(spread)) if spread.size else 1.0
        # A direction without spread says nothing; dividing by its spread would make it loud.
        scale = np.where(scale < 1e-3 * typical, typical, scale)
        self.theta_center.copy_(torch.from_numpy(mean))
        self.theta_scale.copy_(torch.from_numpy(scale))

    def theta_part(self, theta: Tensor) -> Tensor:
        """Return what thetas (…, D) add to the first layer: (…, hidden[0])."""
        return self._seen_part(self.view(self.config.spec, theta))

    def entries_part(self, batch: TrainingSet, index: Tensor, theta: Tensor) -> Tensor:
        """Return :meth:`theta_part` of the policies of entries.

        Args:
            batch: The training set. Where it holds what the critic sees of each policy, that is
                not computed again.
            index: (…) int64, the entries.
            theta: (…, D) their policies.
        """
        if batch.seen is None:
            return self.theta_part(theta)
        return self._seen_part(batch.seen[batch.policy[index]])

    def _seen_part(self, seen: Tensor) -> Tensor:
        if self.config.standardise:
            seen = (seen - self.theta_center) / self.theta_scale
        return self.network.part("theta", seen)

    def of_policies(self, spec: PolicySpec) -> Critic:
        """Return the critic of policies of another architecture that has the same weights.

        Raises:
            IncompatibleError: It does not read such policies.
        """
        self.view.check(self.config.spec, spec)
        other = copy.copy(self)  # shares the weights
        other.config = dataclasses.replace(self.config, spec=spec)
        return other

    @classmethod
    def check(cls, spec: PolicySpec) -> None:
        """Refuse policies that this critic cannot evaluate.

        Raises:
            IncompatibleError: The spec does not fit.
        """

    @classmethod
    def inputs(cls, config: CriticConfig) -> dict[str, int]:
        """Return the widths of the network's input parts by name, ``theta`` first."""
        spec = config.spec
        seen = view_width(spec, config.fingerprint)
        widths = {"theta": seen, "obs": spec.obs_dim, "action": spec.actions.outputs}
        return {name: widths[name] for name in cls.kind.inputs}

    @abstractmethod
    def training_set(
        self,
        data: Trajectories,
        normaliser: Normaliser,
        held_out: NDArray[np.bool_],
        device: torch.device,
    ) -> TrainingSet:
        """Return what the loss needs, once, as tensors.

        Args:
            data: The dataset.
            normaliser: The critic's normaliser: thetas are re-expressed in it and
                observations are shown in it.
            held_out: (P,) policies whose values must not be learned from: their entries are
                left out of ``entry``, and nothing else depends on it. Statistics of
                observations and parameters are those of all policies.
            device: Where the tensors go.
        """

    @abstractmethod
    def loss(self, batch: TrainingSet, index: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the mean loss of the entries ``index`` (B,) of a training set.

        So that several critics can be fitted at once, a loss takes a member axis in front of
        everything, and returns the mean of each member (M,): reduce over the last axis, and
        count axes from the back. See :mod:`pbvf_offline.critics.stacked`.

        Args:
            batch: The training set.
            index: (B,) or (M, B) int64 steps or episodes.
            noise: (B, *shape) or (M, B, *shape) standard normal numbers, of the shape that
                :meth:`noise_shape` says.
        """

    def noise_shape(self, batch: TrainingSet) -> tuple[int, ...] | None:
        """Return the shape of the random numbers that the loss needs for each entry, if any."""
        return None if batch.augmentation is None else batch.augmentation.noise_shape

    def actor_step(
        self, theta: Tensor, batch: TrainingSet, index: Tensor, *, biased: bool = False
    ) -> ActorStep:
        """Return the actor's objective and its gradient in theta, from replayed entries.

        Args:
            theta: (1, D) the learned policy in the critic's normaliser.
            batch: The replay.
            index: (B,) int64, the entries whose states the objective averages over; a
                value function without states does not look at them.
            biased: Leave out the gradient of Q in theta (the PAVF's ablation).
        """
        del biased  # only a PAVF has two terms
        states = theta.new_zeros(1, 0) if batch.obs is None else batch.states(index)
        return ActorStep(*self.objective_and_gradient(theta, states))

    def state_part(self, states: Tensor) -> Tensor:
        """Return what normalised states (S, obs_dim) add to the first layer: (S, hidden[0])."""
        return self.network.part("obs", states)

    @abstractmethod
    def values(self, theta: Tensor, states: Tensor, state_part: Tensor) -> Tensor:
        """Return the value of each policy in each state, differentiable in theta.

        Args:
            theta: (K, D) in the critic's normaliser.
            states: (S, obs_dim) normalised.
            state_part: (S, hidden[0]), :meth:`state_part` of the states.

        Returns:
            (K, S), or (K, 1) when the value does not depend on the state.
        """

    @abstractmethod
    def paired_values(self, theta: Tensor, states: Tensor) -> Tensor:
        """Return the value (B,) of each policy (B, D) in its own normalised state (B, obs_dim)."""

    def objective(self, theta: Tensor, states: Tensor) -> Tensor:
        """Return the mean value over the states, (K,), for each theta (K, D).

        This is what actors ascend: V(theta) for the PSSVF, the mean over states of
        V(s, theta) for the PSVF and of Q(s, pi_theta(s), theta) for the PAVF.
        """
        with torch.no_grad():
            return self._sum_over_states(theta, states, None)

    def objective_and_gradient(self, theta: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return :meth:`objective` (K,) and its gradient in theta (K, D), nothing else's."""
        gradient = torch.zeros_like(theta)
        return self._sum_over_states(theta, states, gradient), gradient

    def _sum_over_states(
        self,
        theta: Tensor,
        states: Tensor,
        gradient: Tensor | None,
        values: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        values = self.values if values is None else values
        most = _CHUNK_VALUES if theta.device.type == "cpu" else _CHUNK_VALUES_GPU
        size = max(1, most // max(1, theta.shape[0]))
        parts: list[Tensor] = []
        pieces = torch.split(states, size) if self.kind.depends_on_state else (states[:1],)
        total = sum(piece.shape[0] for piece in pieces)
        for piece in pieces:
            with torch.no_grad():
                part = self.state_part(piece)
            leaf = theta.detach().requires_grad_(gradient is not None)
            per_theta = values(leaf, piece, part).sum(dim=1) / total
            if gradient is not None:
                gradient += torch.autograd.grad(per_theta.sum(), leaf)[0]
            parts.append(per_theta.detach())
        # Added up on the CPU, where callers look at them; a GPU is waited for once.
        mean = torch.zeros(theta.shape[0], dtype=torch.float64)
        for sums in torch.stack(parts).cpu().double():
            mean += sums
        return mean


@dataclass(frozen=True)
class ActorStep:
    """What one actor update climbs.

    Attributes:
        objective: (1,) float64, the estimated objective.
        gradient: (1, D), its gradient in theta.
        effective_samples: Kish's effective sample size of the importance weights as a
            fraction of the batch, where there are such weights.
    """

    objective: Tensor
    gradient: Tensor
    effective_samples: float | None = None


class ThetaDraw(Protocol):
    """Draws parameters to learn from in the place of those that acted."""

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the standard normal numbers that it needs for each drawn theta."""

    def draw(self, theta: Tensor, rows: Tensor, noise: Tensor) -> Tensor:
        """Return parameters (B, D).

        Args:
            theta: (P, D) the dataset's policies in the critic's normaliser; not changed.
            rows: (B,) int64, which of them acted.
            noise: (B, *noise_shape) standard normal.
        """


@dataclass(frozen=True)
class TrainingSet:
    """What a loss indexes; which columns are set depends on the critic.

    A column is a tensor, or makes the rows that it is asked for from data that stay where they
    are; :meth:`picked` turns some entries into tensors.

    Attributes:
        entry: (M,) int64, the rows of the columns below that may be drawn.
        theta: (P, D) float32, every policy in the critic's normaliser.
        policy: (N,) int64, row of ``theta``.
        value: (N,) float32, the reward part of the target.
        obs: (R, obs_dim) float32, normalised observations.
        obs_row: (N,) int64, row of ``obs`` that the step started from.
        boot_row: (N,) int64, row of ``obs`` to bootstrap from.
        discount: (N,) float32, factor of the bootstrapped value.
        action: (N, action inputs) float32, in the critic's unit; one-hot for choices.
        sample: (N, act_dim) float32 pre-squash samples of stochastic policies, or (N,) int64
            choices counted from 0.
        augmentation: Draws other parameters in the place of those that acted, when wanted.
        bounds: Smallest and largest bootstrapped value that the data allow, when wanted:
            numbers, or of several critics with bounds of their own tensors (M, 1).
        seen: (P, width) float32, what one critic sees of each policy, where that is worth keeping:
            the fingerprints of networks take most of an update's time.
    """

    entry: Column
    theta: Tensor
    policy: Column
    value: Column
    obs: Column | None = None
    obs_row: Column | None = None
    boot_row: Column | None = None
    discount: Column | None = None
    action: Column | None = None
    sample: Column | None = None
    augmentation: ThetaDraw | None = None
    bounds: tuple[Any, Any] | None = None
    seen: Tensor | None = None

    def thetas(self, index: Tensor, noise: Tensor | None) -> Tensor:
        """Return the parameters (…, D) of the entries ``index`` (…), drawn anew where wanted."""
        rows = self.policy[index]
        if self.augmentation is None or noise is None:
            return self.theta[rows]
        flat = noise.reshape(-1, *self.augmentation.noise_shape)
        return self.augmentation.draw(self.theta, rows.reshape(-1), flat).reshape(*rows.shape, -1)

    def bootstrap(self, index: Tensor, ahead: Tensor) -> Tensor:
        """Return the targets (B,): ``value + discount * V(boot state)``, the latter bounded.

        Raises:
            ValueError: The set was made for a Monte Carlo critic.
        """
        if self.discount is None:
            raise ValueError("this training set has no transitions")
        if self.bounds is not None:
            ahead = ahead.clamp(*self.bounds)
        return self.value[index] + self.discount[index] * ahead

    def states(self, index: Tensor) -> Tensor:
        """Return the normalised observations (B, obs_dim) that entries started from.

        Raises:
            ValueError: The set was made for a Monte Carlo critic.
        """
        return self._observations(self.obs_row, index)

    def next_states(self, index: Tensor) -> Tensor:
        """Return those (B, obs_dim) to bootstrap from; raises what :meth:`states` does."""
        return self._observations(self.boot_row, index)

    def _observations(self, rows: Column | None, index: Tensor) -> Tensor:
        if self.obs is None or rows is None:
            raise ValueError("this training set has no transitions")
        return self.obs[rows[index]]

    def picked(self, rows: Tensor) -> TrainingSet:
        """Return a set of the entries ``rows`` (m,) alone, with the observations they need.

        Its columns are tensors.
        """
        arrays: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value[rows]
            for name in (*_OF_STEPS, *_OF_OBSERVATIONS)
        }
        needed = [name for name in _OF_OBSERVATIONS if arrays[name] is not None]
        if self.obs is not None and needed:
            used = torch.cat([arrays[name] for name in needed])
            kept, place = torch.unique(used, return_inverse=True)
            arrays |= zip(needed, torch.split(place, len(rows)), strict=True)
            arrays["obs"] = self.obs[kept]
        entry = torch.arange(len(rows), device=rows.device)
        return dataclasses.replace(self, entry=entry, **arrays)

    @property
    def entry_bytes(self) -> int:
        """Memory that each entry takes as tensors."""
        one = self.picked(torch.zeros(1, dtype=torch.int64))
        columns = (getattr(one, name) for name in ("obs", *_OF_STEPS, *_OF_OBSERVATIONS))
        return sum(column.nbytes for column in columns if column is not None)

    def __len__(self) -> int:
        return len(self.entry)


_OF_STEPS = ("policy", "value", "discount", "action", "sample")
_OF_OBSERVATIONS = ("obs_row", "boot_row")


def joined(sets: Sequence[TrainingSet]) -> TrainingSet:
    """Return several sets as one, whose bounds hold those of all.

    Args:
        sets: At least one; all of one critic, and without augmentation.
    """
    policies = np.cumsum([0, *(len(part.theta) for part in sets)]).tolist()
    observations = np.cumsum([0, *(0 if p.obs is None else len(p.obs) for p in sets)]).tolist()
    entries = np.cumsum([0, *(len(part.value) for part in sets)]).tolist()
    shifts = {"entry": entries, "policy": policies, **dict.fromkeys(_OF_OBSERVATIONS, observations)}
    arrays: dict[str, Any] = {}
    for name in ("entry", "theta", "seen", "obs", *_OF_STEPS, *_OF_OBSERVATIONS):
        parts = [getattr(part, name) for part in sets]
        if parts[0] is not None:
            shift = shifts.get(name, [0] * len(parts))
            parts = [part + by if by else part for part, by in zip(parts, shift, strict=False)]
            arrays[name] = torch.cat(parts)
    bounds = [part.bounds for part in sets if part.bounds is not None]
    both = (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None
    return dataclasses.replace(sets[0], **arrays, bounds=both)

"""Critic files: all that evaluating and synthesizing policies needs, without the dataset."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray

from pbvf_offline.critics import CRITICS, Critic, CriticConfig, make_critic
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.fit.critic_context import CriticContext, stored_context
from pbvf_offline.fit.loop import Fit, held_out_policies
from pbvf_offline.fit.rounds import ImaginedFit
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.validation import validate
from pbvf_offline.fit.weights import fit_tensors, stored_fit
from pbvf_offline.io.durable import write_file
from pbvf_offline.io.tensor_file import Tensors, array_of, decode, encode, read_tensor_file
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.records import Record, since
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.seeding import Stream, generator

KIND = "critic"

_Number = Annotated[float, Meta(gt=-1e300, lt=1e300)]


@dataclass(frozen=True)
class _Content(Record):
    """What the header of a critic file holds."""

    kind: str
    config: CriticConfig
    settings: FitSettings
    updates: Annotated[int, Meta(ge=0, lt=2**31)]
    record: tuple[tuple[int, _Number], ...]
    pending: tuple[_Number, ...]
    environment: EnvReference | None
    dataset: str
    validation: dict[str, Any] | None
    quantile: Annotated[float, Meta(gt=0, lt=1e300)]
    imagined: Annotated[ImaginedFit | None, since(2)] = None


@dataclass(frozen=True)
class CriticFile:
    """A fitted critic with its context.

    Attributes:
        fit: The critic, its settings, optimiser state and record.
        context: What it keeps of the dataset.
        validation: Predicted against observed returns of held-out policies, or None.
        imagined: How it was fitted to imagined returns, if it was.
    """

    fit: Fit
    context: CriticContext
    validation: Mapping[str, Any] | None = None
    imagined: ImaginedFit | None = None

    @property
    def critic(self) -> Critic:
        """The network."""
        return self.fit.critic

    @property
    def spec(self) -> PolicySpec:
        """Architecture of the policies that the critic evaluates."""
        return self.fit.critic.config.spec

    @property
    def normaliser(self) -> Normaliser:
        """The normaliser in which the critic sees thetas and observations."""
        return self.fit.normaliser

    def normalised(self, observations: NDArray[np.float64]) -> torch.Tensor:
        """Return raw observations (S, obs_dim) as the critic sees them, on its device."""
        device = next(self.critic.parameters()).device
        return torch.from_numpy(self.normaliser.apply(observations).astype(np.float32)).to(device)

    def predict(self, theta: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the prediction (K,) for thetas (K, D) in the critic's normaliser.

        The mean value over the stored initial observations, or V(theta) itself.
        """
        device = next(self.critic.parameters()).device
        states = self.normalised(self.context.initial_observations)
        return self.critic.objective(torch.from_numpy(theta).to(device), states).numpy()

    def encode(self) -> bytes:
        """Return the file's bytes."""
        fit, context = self.fit, self.context
        content = _Content(
            kind=fit.critic.kind.name,
            config=fit.critic.config,
            settings=fit.settings,
            updates=fit.updates,
            record=tuple(fit.record),
            pending=tuple(fit.pending),
            environment=context.environment,
            dataset=context.dataset,
            validation=None if self.validation is None else dict(self.validation),
            quantile=context.region.quantile,
            imagined=self.imagined,
        )
        normaliser = {"obs_mean": fit.normaliser.mean, "obs_std": fit.normaliser.std}
        return encode(KIND, content, normaliser | context.tensors() | fit_tensors(fit))

    def save(self, path: Path) -> None:
        """Write the file whole or not at all.

        Raises:
            ResourceError: The disk or a permission refuses.
        """
        write_file(path, self.encode())


def finished_file(fit: Fit, data: Trajectories, context: CriticContext) -> CriticFile:
    """Return the file of a fit as it stands, with its validation."""
    held = held_out_policies(data, fit.settings)
    result = validate(fit.critic, fit.normaliser, data, held) if held.any() else None
    return CriticFile(fit, context, None if result is None else result.to_dict())


def load_critic(path: Path, device: torch.device | None = None) -> CriticFile:
    """Read and check a critic file.

    Raises:
        UsageError: It does not exist.
        UnsafeError: It is a pickle.
        DamagedError: It is damaged or contradicts itself.
        IncompatibleError: It is of another kind or a newer version, or nothing that is installed
            here has such critics.
    """
    where = str(path)
    header, tensors = decode(KIND, read_tensor_file(path), where)
    content = _Content.from_dict(header, where)
    if content.kind not in CRITICS:
        raise IncompatibleError(
            f"holds a critic of kind {content.kind[:40]!r}, which this program does not know",
            where=where,
            remedy="upgrade pbvf-offline, or install the package that adds this kind",
        )
    spec = content.config.spec
    _check_size(content.config, tensors, where)
    try:
        critic = make_critic(content.kind, content.config, generator(0, Stream.CRITIC_INIT))
    except UsageError as error:
        raise DamagedError(error.what, where=where) from error
    mean, std = (
        array_of(tensors, name, (spec.obs_dim,), np.float64, where).copy()
        for name in ("obs_mean", "obs_std")
    )
    if np.any(std <= 0):
        raise DamagedError("its parts contradict each other", where=where)
    critic = critic if device is None else critic.to(device)
    fit = stored_fit(
        critic, content.settings, Normaliser(mean, std), tensors, content.updates, where
    )
    fit.record, fit.pending = list(content.record), list(content.pending)
    context = stored_context(
        tensors,
        spec,
        content.quantile,
        environment=content.environment,
        dataset=content.dataset,
        where=where,
    )
    return CriticFile(fit, context, content.validation, content.imagined)


def _check_size(config: CriticConfig, tensors: Tensors, where: str) -> None:
    """Refuse a file of a few bytes that asks for a network of any size."""
    sizes = (*config.hidden, 1)
    declared = config.spec.size * sizes[0] + sum(a * b for a, b in itertools.pairwise(sizes))
    stored = sum(array.size for name, array in tensors.items() if name.startswith("critic/"))
    if declared > stored:
        raise DamagedError(
            f"declares a network of {declared:,} weights and holds {stored:,}", where=where
        )

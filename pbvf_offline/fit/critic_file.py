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
from numpy.typing import ArrayLike, NDArray

from pbvf_offline.critics import CRITICS, Critic, CriticConfig, make_critic
from pbvf_offline.critics.views import view_width
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    DamagedError,
    DivergedError,
    IncompatibleError,
    UsageError,
    counted,
    shorten,
)
from pbvf_offline.fit.critic_context import CriticContext, stored_context
from pbvf_offline.fit.loop import held_out_policies
from pbvf_offline.fit.rounds import ImaginedFit, RoundSettings
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.steps import Fit
from pbvf_offline.fit.validation import validate
from pbvf_offline.fit.weights import fit_tensors, stored_fit
from pbvf_offline.io.durable import write_file
from pbvf_offline.io.tensor_file import Tensors, array_of, decode, encode, read_tensor_file
from pbvf_offline.policies.normaliser import SMALLEST_STD, Normaliser
from pbvf_offline.policies.policy import Policies
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
    quantile: Annotated[float, Meta(ge=1e-12, lt=1e300)]
    imagined: Annotated[ImaginedFit | None, since(2)] = None


@dataclass(frozen=True)
class CriticFile:
    """A fitted critic with its context.

    Attributes:
        fit: The critic, its settings, optimiser state and record.
        context: What it keeps of the dataset.
        validation: Predicted against observed returns of held-out policies, or None.
        imagined: How a critic was fitted to imagined returns, if one was; it is this one unless
            its comparison says otherwise.
        where: The file that holds it, for messages; None where none is known.
    """

    fit: Fit
    context: CriticContext
    validation: Mapping[str, Any] | None = None
    imagined: ImaginedFit | None = None
    where: str | None = None

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

    @property
    def unit(self) -> str:
        """What :meth:`predict` predicts, in words."""
        gamma = self.fit.settings.gamma
        text = "undiscounted return" if gamma == 1.0 else f"return discounted by {gamma:g}"
        if self.imagined is not None and self.imagined.stands:
            text = f"cautious imagined {text}"
        return text + self.less_bonus

    @property
    def less_bonus(self) -> str:
        """What to add to the name of a sum of its rewards; empty where they are the raw ones."""
        return "" if self.fit.settings.reward == "raw" else ", without the survival bonus"

    @property
    def caution(self) -> float:
        """Standard deviations that its rounds took off imagined returns, or would by default."""
        return RoundSettings.caution if self.imagined is None else self.imagined.settings.caution

    @property
    def updates(self) -> int:
        """Gradient steps that made the critic; of imagined episodes, those before its round."""
        imagined = self.imagined
        if imagined is None or not imagined.stands:
            return self.fit.updates
        return imagined.kept.number * imagined.settings.updates

    def normalised(self, observations: NDArray[np.float64]) -> torch.Tensor:
        """Return raw observations (S, obs_dim) as the critic sees them, on its device."""
        with np.errstate(over="ignore"):  # whoever uses what comes of it refuses what is not finite
            rows = self.normaliser.apply(observations).astype(np.float32)
        return torch.from_numpy(rows).to(self.critic.device)

    def critic_of(self, spec: PolicySpec | None) -> Critic:
        """Return the critic of policies of a spec, with the same weights; None: its own.

        Raises:
            IncompatibleError: It does not read such policies.
        """
        return self.critic if spec in (None, self.spec) else self.critic.of_policies(spec)

    def policies(self, thetas: ArrayLike, spec: PolicySpec | None = None) -> Policies:
        """Return thetas (K, D) in the critic's normaliser as policies, of its own spec if None.

        Raises:
            IncompatibleError: They are of another size.
            UsageError: They are no finite numbers.
        """
        own, theta = self.normaliser, self._thetas(thetas, spec)
        rows = (len(theta), 1)
        return Policies(spec or self.spec, theta, np.tile(own.mean, rows), np.tile(own.std, rows))

    def _thetas(self, thetas: ArrayLike, spec: PolicySpec | None) -> NDArray[np.float32]:
        size = (spec or self.spec).size
        remedy = f"give Policies, or thetas of shape (K, {size})"
        try:
            given = np.asarray(thetas)
            if given.dtype.kind == "O":
                given = np.asarray(given.tolist())  # of what they are: numbers, or something else
        except (TypeError, ValueError, RuntimeError) as error:
            what = f"the policies are no array of numbers: {shorten(error)}"
            raise UsageError(what, remedy=remedy) from error
        if given.dtype.kind not in "fiub":
            raise UsageError(f"the policies are no numbers, but {given.dtype}", remedy=remedy)
        with np.errstate(over="ignore"):
            theta = np.require(given, np.float32, ["C", "W"])  # as torch wants them
        if theta.ndim != 2 or theta.shape[1] != size:
            raise IncompatibleError(
                f"the policies have shape {theta.shape}, and (K, {size}) is needed"
            )
        return theta

    def predict(
        self, policies: Policies | ArrayLike, spec: PolicySpec | None = None
    ) -> NDArray[np.float64]:
        """Return the prediction (K,) for policies.

        The mean value over the stored initial observations, or V(theta) itself.

        Args:
            policies: K policies of any normaliser; or thetas (K, D), which do not tell theirs and
                must be in the critic's.
            spec: Architecture of thetas; the critic's own when None.

        Raises:
            IncompatibleError: The critic does not read such policies.
            UsageError: They are no numbers.
        """
        own = self.normaliser
        critic = self.critic_of(policies.spec if isinstance(policies, Policies) else spec)
        if isinstance(policies, Policies):
            theta = policies.in_normaliser(own.mean, own.std)
        else:
            theta = self._thetas(policies, spec)
        states = self.normalised(self.context.initial_observations)
        return critic.objective(torch.from_numpy(theta).to(critic.device), states).numpy()

    def distance(self, theta: torch.Tensor, spec: PolicySpec | None = None) -> torch.Tensor:
        """Return the distance (K,) of thetas (K, D) from the dataset's policies, differentiable.

        It is in units of the 95 % quantile of the dataset policies' own distances: 1 is the edge
        of the trust region. Arguments and errors as in :meth:`predict`.
        """
        critic, region = self.critic_of(spec), self.context.region
        return region.distance(critic.view.place(critic.config.spec, theta)) / region.quantile

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


def finite_predictions(critic: CriticFile, predicted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return predictions (K,) of a critic, which are numbers that can be compared and written.

    Raises:
        DivergedError: Some are NaN or infinite.
    """
    count = int((~np.isfinite(predicted)).sum())
    if count:
        raise DivergedError(
            f"the critic's predictions for {count:,} of {counted(len(predicted), 'policy')} are "
            "not finite",
            where=critic.where,
            remedy="fit it to rewards of a smaller scale, or leave out policies with huge "
            "parameters",
        )
    return predicted


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
    config, settings = content.config, content.settings
    if (content.kind, config.gamma, config.reward) != (
        settings.kind,
        settings.gamma,
        settings.reward,
    ):
        raise DamagedError("its parts contradict each other", where=where)
    spec = config.spec
    check_size(content.config, tensors, where)
    try:
        critic = make_critic(content.kind, content.config, generator(0, Stream.CRITIC_INIT))
    except UsageError as error:
        raise DamagedError(error.what, where=where) from error
    mean, std = (
        array_of(tensors, name, (spec.obs_dim,), np.float64, where).copy()
        for name in ("obs_mean", "obs_std")
    )
    if np.any(std < SMALLEST_STD):
        raise DamagedError("its parts contradict each other", where=where)
    critic = critic if device is None else critic.to(device)
    fit = stored_fit(
        critic, content.settings, Normaliser(mean, std), tensors, content.updates, where
    )
    fit.record, fit.pending = list(content.record), list(content.pending)
    context = stored_context(
        tensors,
        critic,
        content.quantile,
        environment=content.environment,
        dataset=content.dataset,
        where=where,
    )
    return CriticFile(fit, context, content.validation, content.imagined, where)


def check_size(config: CriticConfig, tensors: Tensors, where: str) -> None:
    """Refuse a file of a few bytes that asks for a network of any size.

    Raises:
        DamagedError: It holds fewer weights than such a critic has.
    """
    sizes = (view_width(config.spec, config.fingerprint), *config.hidden, 1)
    declared = sum(a * b for a, b in itertools.pairwise(sizes))
    stored = sum(array.size for name, array in tensors.items() if name.startswith("critic/"))
    if declared > stored:
        raise DamagedError(
            f"declares a network of {declared:,} weights and holds {stored:,}", where=where
        )

"""Critic files: all that evaluating and synthesizing policies needs, without the dataset."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.critics import CRITICS, Critic, CriticConfig, make_critic
from pbvf_offline.critics.trust_region import TrustRegion
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.fit.loop import Fit, held_out_policies, make_optimiser
from pbvf_offline.fit.rounds import ImaginedFit
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.validation import validate
from pbvf_offline.io.durable import write_file
from pbvf_offline.io.tensor_file import Tensors, decode, encode, read_tensor_file
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import chosen_rewards, segment_starts
from pbvf_offline.seeding import Stream, generator

KIND = "critic"
MAX_OBSERVATIONS = 10_000
MAX_INITIAL = 1_000
MAX_POLICIES = 1_000
_CONTENT = {
    "kind",
    "config",
    "settings",
    "updates",
    "record",
    "pending",
    "environment",
    "dataset",
    "validation",
    "quantile",
}


@dataclass(frozen=True)
class CriticContext:
    """What a critic file keeps of the dataset, fixed before the first update.

    Attributes:
        environment: The environment of the dataset, when known.
        dataset: The dataset's digest.
        observations: (≤ 10,000, obs_dim) float64 raw observations, for objectives.
        initial_observations: (≤ 1,000, obs_dim) float64 raw, for predictions.
        theta: (≤ 1,000, D) float32 dataset policies in the critic's normaliser.
        returns: (same,) float64, mean undiscounted return of each policy's segments, in
            the critic's reward; segments that a step budget cut count only for policies
            that have no others.
        region: Where the critic can be trusted.
    """

    environment: EnvReference | None
    dataset: str
    observations: NDArray[np.float64]
    initial_observations: NDArray[np.float64]
    theta: NDArray[np.float32]
    returns: NDArray[np.float64]
    region: TrustRegion


def make_context(
    data: Trajectories,
    normaliser: Normaliser,
    settings: FitSettings,
    *,
    environment: EnvReference | None,
    dataset: str,
) -> CriticContext:
    """Collect what a critic file keeps of its dataset; subsamples come from the fit's seed."""
    return context_of(
        data.observations,
        data.obs_index,
        data.initial_observations,
        data.policies.in_normaliser(normaliser.mean, normaliser.std),
        _policy_returns(data, settings),
        seed=settings.seed,
        environment=environment,
        dataset=dataset,
    )


def context_of(
    observations: NDArray[Any],
    acted_on: NDArray[np.int64],
    initial: NDArray[Any],
    theta: NDArray[np.float32],
    returns: NDArray[np.float64],
    *,
    seed: int,
    environment: EnvReference | None,
    dataset: str,
) -> CriticContext:
    """Return what a critic file keeps of such data.

    Args:
        observations: (R, obs_dim) raw.
        acted_on: Rows of ``observations`` that were acted on.
        initial: (E, obs_dim) raw first observations.
        theta: (P, D) policies in the critic's normaliser.
        returns: (P,) their returns, see :class:`CriticContext`.
        seed: Seed of the subsamples.
        environment: The environment, when known.
        dataset: Digest of where the data are from.
    """

    def some(rows: int, most: int, which: int) -> NDArray[np.int64]:
        if rows <= most:
            return np.arange(rows)
        rng = generator(seed, Stream.SUBSAMPLE, which)
        return np.sort(rng.choice(rows, most, replace=False))

    kept = some(len(theta), MAX_POLICIES, 2)
    states = observations[acted_on[some(len(acted_on), MAX_OBSERVATIONS, 0)]]
    return CriticContext(
        environment=environment,
        dataset=dataset,
        observations=states.astype(np.float64),
        initial_observations=initial[some(len(initial), MAX_INITIAL, 1)].astype(np.float64),
        theta=theta[kept],
        returns=returns[kept],
        region=TrustRegion.of(theta),
    )


def _policy_returns(data: Trajectories, settings: FitSettings) -> NDArray[np.float64]:
    """Return the (P,) mean undiscounted return of each policy's segments."""
    starts = segment_starts(data)
    rewards = chosen_rewards(data, settings.reward)
    totals = np.add.reduceat(rewards, starts[:-1])
    policy = data.policy[starts[:-1]]
    episode = data.episode[starts[:-1]]
    # Only the last segment of a cut episode was cut itself.
    final = np.append(episode[1:] != episode[:-1], True)
    whole = ~(data.cut[episode] & final)
    whole |= ~np.isin(policy, policy[whole])
    size = len(data.policies)
    count = np.bincount(policy[whole], minlength=size)
    return np.bincount(policy[whole], totals[whole], size) / np.maximum(count, 1)


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
        content = {
            "kind": fit.critic.kind.name,
            "config": fit.critic.config.to_dict(),
            "settings": fit.settings.to_dict(),
            "updates": fit.updates,
            "record": [[u, loss] for u, loss in fit.record],
            "pending": fit.pending,
            "environment": None if context.environment is None else context.environment.to_dict(),
            "dataset": context.dataset,
            "validation": self.validation,
            "quantile": context.region.quantile,
        }
        if self.imagined is not None:  # which files of earlier versions lack
            content["imagined"] = self.imagined.to_dict()
        tensors: Tensors = {
            "obs_mean": fit.normaliser.mean,
            "obs_std": fit.normaliser.std,
            "observations": context.observations,
            "initial_observations": context.initial_observations,
            "dataset_theta": context.theta,
            "dataset_returns": context.returns,
            "region_center": context.region.center,
            "region_factor": context.region.factor,
        }
        return encode(KIND, content, tensors | fit_tensors(fit))

    def save(self, path: Path) -> None:
        """Write the file whole or not at all.

        Raises:
            ResourceError: The disk or a permission refuses.
        """
        write_file(path, self.encode())


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
            for key in ("exp_avg", "exp_avg_sq"):
                tensors[f"{key}/{name}"] = state[key].cpu().numpy()
    return tensors


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
        IncompatibleError: It is of another kind or a newer version.
    """
    where = str(path)
    content, tensors = decode(KIND, read_tensor_file(path), where)
    if set(content) - {"imagined"} != _CONTENT:
        raise DamagedError("lacks a part of a critic file", where=where)
    if not isinstance(content["kind"], str) or content["kind"] not in CRITICS:
        raise IncompatibleError(
            f"holds a critic of kind {content['kind']!r}, which this program does not know",
            where=where,
            remedy="upgrade pbvf-offline, or install the package that adds this kind",
        )
    config = CriticConfig.from_dict(content["config"], where)
    settings = FitSettings.from_dict(content["settings"], f"{where}: fit settings")
    # A file of a few bytes may ask for a network of any size: what it holds decides.
    sizes = (*config.hidden, 1)
    declared = config.spec.size * sizes[0] + sum(a * b for a, b in itertools.pairwise(sizes))
    stored = sum(array.size for name, array in tensors.items() if name.startswith("critic/"))
    if declared > stored:
        raise DamagedError(
            f"declares a network of {declared:,} weights and holds {stored:,}", where=where
        )
    try:
        critic = make_critic(content["kind"], config, generator(0, Stream.CRITIC_INIT))
    except UsageError as error:
        raise DamagedError(error.what, where=where) from error
    load_weights(critic, tensors, where)
    spec = config.spec
    shapes: dict[str, tuple[int, ...]] = {
        "obs_mean": (spec.obs_dim,),
        "obs_std": (spec.obs_dim,),
        "observations": (-1, spec.obs_dim),
        "initial_observations": (-1, spec.obs_dim),
        "dataset_theta": (-1, spec.size),
        "dataset_returns": (-1,),
        "region_center": (spec.size,),
    }
    for name, shape in shapes.items():
        _check_array(tensors.get(name), name, shape, where)
    factor = tensors.get("region_factor")
    full = (spec.size, spec.size)
    _check_array(
        factor,
        "region_factor",
        full if factor is not None and factor.ndim == 2 else full[:1],
        where,
    )
    quantile, updates = content["quantile"], content["updates"]
    record, pending = content["record"], content["pending"]
    if (
        not _is_number(quantile)
        or quantile <= 0
        or type(updates) is not int
        or not 0 <= updates < 2**31
        or not isinstance(record, list)
        or not all(
            isinstance(r, list) and len(r) == 2 and type(r[0]) is int and _is_number(r[1])
            for r in record
        )
        or not isinstance(pending, list)
        or not all(map(_is_number, pending))
        or not isinstance(content["dataset"], str)
        or len(tensors["dataset_theta"]) != len(tensors["dataset_returns"])
        or not (content["validation"] is None or isinstance(content["validation"], dict))
        or np.any(tensors["obs_std"] <= 0)
        or min(len(tensors["observations"]), len(tensors["initial_observations"])) == 0
    ):
        raise DamagedError("its parts contradict each other", where=where)
    if device is not None:
        critic = critic.to(device)
    online = copy.deepcopy(critic) if settings.average > 0 else critic
    if online is not critic:
        _load_parameters(online, tensors, where)
    optimiser = make_optimiser(online, settings.lr)
    load_optimiser(online, optimiser, tensors, updates, where)
    environment = content["environment"]
    fit = Fit(
        settings,
        online,
        None if online is critic else critic,
        Normaliser(tensors["obs_mean"].copy(), tensors["obs_std"].copy()),
        optimiser,
        updates,
        [(u, float(loss)) for u, loss in record],
        [float(loss) for loss in pending],
    )
    context = CriticContext(
        environment=None if environment is None else EnvReference.from_dict(environment, where),
        dataset=content["dataset"],
        observations=tensors["observations"],
        initial_observations=tensors["initial_observations"],
        theta=tensors["dataset_theta"],
        returns=tensors["dataset_returns"],
        region=TrustRegion(
            tensors["region_center"].copy(), tensors["region_factor"].copy(), float(quantile)
        ),
    )
    imagined = content.get("imagined")
    return CriticFile(
        fit,
        context,
        content["validation"],
        None if imagined is None else ImaginedFit.from_dict(imagined, f"{where}: imagined"),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and abs(value) < 1e300


def _check_array(array: NDArray[Any] | None, name: str, shape: tuple[int, ...], where: str) -> None:
    fits = (
        array is not None
        and array.ndim == len(shape)
        and all(want in (-1, got) for want, got in zip(shape, array.shape, strict=True))
    )
    if not fits or array is None:
        given = "missing" if array is None else f"of shape {array.shape}"
        raise DamagedError(f"{name} is {given}, expected {shape}", where=where)
    dtype = np.float32 if name == "dataset_theta" else np.float64
    if array.dtype != dtype or not np.all(np.isfinite(array)):
        raise DamagedError(f"{name} is not finite {np.dtype(dtype)}", where=where)


def load_weights(critic: Critic, tensors: Tensors, where: str) -> None:
    """Put stored weights into a critic.

    Raises:
        DamagedError: They are missing, misshapen or not finite.
    """
    state = critic.state_dict()
    for name, weight in state.items():
        given = tensors.get(f"critic/{name}")
        if given is None or given.shape != tuple(weight.shape) or given.dtype != np.float32:
            shape = "missing" if given is None else f"{given.dtype} of shape {given.shape}"
            raise DamagedError(
                f"critic/{name} is {shape}, expected float32 of shape {tuple(weight.shape)}",
                where=where,
            )
        if not np.all(np.isfinite(given)):
            raise DamagedError(f"critic/{name} holds NaN or infinite values", where=where)
        weight.copy_(torch.from_numpy(given.copy()))
    expected = {f"critic/{name}" for name in state}
    extra = sorted(n for n in tensors if n.startswith("critic/") and n not in expected)
    if extra:
        raise DamagedError(f"holds weights that its configuration lacks: {extra[0]}", where=where)


def _load_parameters(online: Critic, tensors: Tensors, where: str) -> None:
    """Put the weights that learn beside the averaged ones."""
    with torch.no_grad():
        for name, parameter in online.named_parameters():
            given = tensors.get(f"online/{name}")
            if (
                given is None
                or given.shape != tuple(parameter.shape)
                or given.dtype != np.float32
                or not np.all(np.isfinite(given))
            ):
                raise DamagedError(
                    f"online/{name} is missing, misshapen or not finite", where=where
                )
            parameter.copy_(torch.from_numpy(given.copy()))


def load_optimiser(
    critic: Critic,
    optimiser: torch.optim.Adam,
    tensors: Tensors,
    updates: int,
    where: str,
) -> None:
    """Put stored moments into Adam, as they were after ``updates`` steps.

    Raises:
        DamagedError: They are missing, misshapen or out of range.
    """
    if updates == 0:
        return
    for name, parameter in critic.named_parameters():
        state: dict[str, torch.Tensor] = {
            "step": torch.tensor(float(updates), dtype=torch.float32, device=parameter.device)
        }
        for key in ("exp_avg", "exp_avg_sq"):
            given = tensors.get(f"{key}/{name}")
            if (
                given is None
                or given.shape != tuple(parameter.shape)
                or given.dtype != np.float32
                or not np.all(np.isfinite(given))
                or (key == "exp_avg_sq" and np.any(given < 0))
            ):
                raise DamagedError(
                    f"{key}/{name} is missing, misshapen or out of range", where=where
                )
            state[key] = torch.from_numpy(given.copy()).to(parameter.device)
        optimiser.state[parameter] = state

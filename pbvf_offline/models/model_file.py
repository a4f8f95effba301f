"""Model files: an ensemble with all that training it on, checking it and playing in it needs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray

from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError
from pbvf_offline.io.durable import write_file
from pbvf_offline.io.tensor_file import Tensors, array_of, decode, encode, read_tensor_file
from pbvf_offline.models.check import ModelCheck
from pbvf_offline.models.choice import Trial
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.scales import RewardScale, Scales, action_width
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.models.training import ModelFit, Snapshot, start_training
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.records import Record, setting, since

KIND = "model"
MAX_INITIAL = 1_000
_ARRAYS = ("obs_mean", "obs_std", "change_mean", "change_std", "low", "high")
_MOMENTS = ("weight", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class _Progress(Record):
    """What of a training is no array."""

    spec: PolicySpec
    updates: Annotated[int, setting("Updates done.", ge=0)]
    total: Annotated[int, setting("Updates wanted.", ge=1, lt=2**31)]
    fall: Annotated[int, setting("Update from which the learning rate falls.", ge=0)] | None
    record: tuple[tuple[int, float], ...]
    pending: tuple[float, ...]
    fall_pending: tuple[float, ...]
    reward: tuple[float, float, float, float]
    ends: bool
    end_reward: Annotated[tuple[float, float, float, float] | None, since(2)] = None
    limits: Annotated[tuple[tuple[bool, ...], tuple[bool, ...]] | None, since(2)] = None
    exploded: Annotated[int, Meta(ge=0), since(2)] = 0
    fall_exploded: Annotated[int, Meta(ge=0), since(2)] = 0


@dataclass(frozen=True)
class ModelFile:
    """An ensemble, trained or in training, with its context.

    Attributes:
        fit: The ensemble with its training.
        asked: What was asked for, as the program that made it knows it; a choice that was
            left to the check is in the ensemble's own settings.
        environment: The environment of the dataset, when known.
        dataset: The dataset's digest.
        initial_observations: (≤ 1,000, obs_dim) float64 raw first observations of episodes.
        trials: The short trainings by which settings were chosen.
        check: What the held-out episodes say; None before the training is finished.
        where: The file that holds it, for messages; None where none is known.
    """

    fit: ModelFit
    asked: Mapping[str, Any]
    environment: EnvReference | None
    dataset: str
    initial_observations: NDArray[np.float64]
    trials: tuple[Trial, ...] = field(default=())
    check: ModelCheck | None = None
    where: str | None = None

    @property
    def ensemble(self) -> Ensemble:
        """The networks."""
        return self.fit.ensemble

    def encode(self) -> bytes:
        """Return the file's bytes."""
        fit, ensemble = self.fit, self.fit.ensemble
        scales, fall = ensemble.scales, fit.before_fall
        progress = _Progress(
            spec=ensemble.spec,
            updates=fit.updates,
            total=fit.total,
            fall=None if fall is None else fall.updates,
            record=tuple(fit.record),
            pending=tuple(fit.pending),
            fall_pending=() if fall is None else fall.pending,
            reward=scales.reward,
            ends=scales.ends,
            end_reward=scales.end_reward,
            exploded=fit.exploded,
            fall_exploded=0 if fall is None else fall.exploded,
            limits=(tuple(scales.low_is_limit.tolist()), tuple(scales.high_is_limit.tolist())),
        )
        content = {
            "settings": ensemble.settings,
            "asked": dict(self.asked),
            "progress": progress,
            "environment": self.environment,
            "dataset": self.dataset,
            "trials": self.trials,
            "check": self.check,
        }
        tensors: Tensors = {
            "obs_mean": scales.normaliser.mean,
            "obs_std": scales.normaliser.std,
            "change_mean": scales.change_mean,
            "change_std": scales.change_std,
            "low": scales.low,
            "high": scales.high,
            "action_std": scales.action_std,
            "initial_observations": self.initial_observations,
        }
        tensors |= _snapshot_tensors(ensemble, fit.snapshot(), "")
        if fall is not None:
            tensors |= _snapshot_tensors(ensemble, fall, "fall/")
        return encode(KIND, content, tensors)

    def save(self, path: Path) -> None:
        """Write the file whole or not at all.

        Raises:
            ResourceError: The disk or a permission refuses.
        """
        write_file(path, self.encode())


def _snapshot_tensors(ensemble: Ensemble, snapshot: Snapshot, prefix: str) -> Tensors:
    names = [name for name, _ in ensemble.named_parameters()]
    kinds = zip(_MOMENTS, (snapshot.weights, snapshot.first, snapshot.second), strict=True)
    return {
        f"{prefix}{kind}/{name}": value.cpu().numpy()
        for kind, values in kinds
        for name, value in zip(names, values, strict=False)  # no moments before update 1
    }


def load_model(path: Path, device: torch.device | None = None) -> ModelFile:
    """Read and check a model file.

    Args:
        path: The file.
        device: Where the networks are to be; the CPU when None.

    Raises:
        UsageError: It does not exist.
        UnsafeError: It is a pickle.
        DamagedError: It is damaged or contradicts itself.
        IncompatibleError: It is of another kind or a newer version.
    """
    where = str(path)
    content, tensors = decode(KIND, read_tensor_file(path), where)
    names = {"settings", "asked", "progress", "environment", "dataset", "trials", "check"}
    if set(content) != names or not isinstance(content["trials"], list):
        raise DamagedError("lacks a part of a model file", where=where)
    if not isinstance(content["asked"], dict) or not isinstance(content["dataset"], str):
        raise DamagedError("lacks a part of a model file", where=where)
    settings = ModelSettings.from_dict(content["settings"], where)
    progress = _Progress.from_dict(content["progress"], where)
    if not (progress.fall or 0) <= progress.updates <= progress.total:
        raise DamagedError("its numbers of updates contradict each other", where=where)
    spec = progress.spec
    _check_size(spec, settings, tensors, where)
    scales = _scales(spec, progress, tensors, where)
    fit = start_training(Ensemble(spec, scales, settings).to(device), progress.total)
    now = _snapshot(fit.ensemble, tensors, "", progress.updates, progress.pending, where)
    fit.restore(dataclasses.replace(now, exploded=progress.exploded))
    fit.record = list(progress.record)
    if progress.fall is not None:
        fall = _snapshot(
            fit.ensemble, tensors, "fall/", progress.fall, progress.fall_pending, where
        )
        fit.before_fall = dataclasses.replace(fall, exploded=progress.fall_exploded)
    environment, check = content["environment"], content["check"]
    initial = array_of(tensors, "initial_observations", (-1, spec.obs_dim), np.float64, where)
    if len(initial) == 0:
        raise DamagedError("has no first observations of episodes", where=where)
    return ModelFile(
        fit=fit,
        asked=content["asked"],
        environment=None if environment is None else EnvReference.from_dict(environment, where),
        dataset=content["dataset"],
        initial_observations=initial.copy(),
        trials=tuple(Trial.from_dict(trial, where) for trial in content["trials"]),
        check=None if check is None else ModelCheck.from_dict(check, where),
        where=where,
    )


def _check_size(spec: PolicySpec, settings: ModelSettings, tensors: Tensors, where: str) -> None:
    """Refuse a file of a few bytes that asks for a network of any size."""
    sizes = (spec.obs_dim + action_width(spec), *settings.hidden, spec.obs_dim + 1)
    declared = settings.members * sum(a * b for a, b in itertools.pairwise(sizes))
    stored = sum(array.size for name, array in tensors.items() if name.startswith("weight/"))
    if declared > stored:
        raise DamagedError(
            f"declares networks of {declared:,} weights and holds {stored:,}", where=where
        )


def _scales(spec: PolicySpec, progress: _Progress, tensors: Tensors, where: str) -> Scales:
    arrays = {
        name: array_of(tensors, name, (spec.obs_dim,), np.float64, where).copy() for name in _ARRAYS
    }
    action_std = array_of(tensors, "action_std", (action_width(spec),), np.float64, where).copy()
    reward, end = RewardScale(*progress.reward), progress.end_reward
    end_reward = None if end is None else RewardScale(*end)
    rewards = [reward] if end_reward is None else [reward, end_reward]
    spreads = [scale.std for scale in rewards]
    positive = (arrays["obs_std"], arrays["change_std"], action_std, np.array(spreads))
    bounded = all(scale.low <= scale.high for scale in rewards)
    bounded &= bool(np.all(arrays["low"] <= arrays["high"]))
    whole = progress.ends or end_reward is None
    no_limits = (False,) * spec.obs_dim
    low_is_limit, high_is_limit = progress.limits or (no_limits, no_limits)
    whole &= len(low_is_limit) == len(high_is_limit) == spec.obs_dim
    if any(np.any(values <= 0) for values in positive) or not bounded or not whole:
        raise DamagedError("its scales contradict each other", where=where)
    return Scales(
        normaliser=Normaliser(arrays["obs_mean"], arrays["obs_std"]),
        change_mean=arrays["change_mean"],
        change_std=arrays["change_std"],
        action_std=action_std,
        low=arrays["low"],
        high=arrays["high"],
        low_is_limit=np.array(low_is_limit, bool),
        high_is_limit=np.array(high_is_limit, bool),
        reward=reward,
        ends=progress.ends,
        end_reward=end_reward,
    )


def _snapshot(
    ensemble: Ensemble,
    tensors: Tensors,
    prefix: str,
    updates: int,
    pending: tuple[float, ...],
    where: str,
) -> Snapshot:
    if not all(math.isfinite(loss) for loss in pending):
        raise DamagedError("its losses are not finite", where=where)
    parts: list[tuple[torch.Tensor, ...]] = []
    for kind in _MOMENTS:
        values = []
        for name, parameter in ensemble.named_parameters():
            if kind == "weight" or updates:
                full = f"{prefix}{kind}/{name}"
                array = array_of(tensors, full, tuple(parameter.shape), np.float32, where).copy()
                if kind == "exp_avg_sq" and np.any(array < 0):
                    raise DamagedError(f"{full} is out of range", where=where)
                values.append(torch.from_numpy(array))
        parts.append(tuple(values))
    return Snapshot(updates, parts[0], parts[1], parts[2], pending)

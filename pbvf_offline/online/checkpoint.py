"""Training runs as files: checkpoints to go on from, and what a run leaves behind."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta

from pbvf_offline.critics import CRITICS
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError
from pbvf_offline.fit.critic_context import context_of
from pbvf_offline.fit.critic_file import CriticFile, check_size
from pbvf_offline.fit.weights import fit_tensors, stored_fit
from pbvf_offline.io.tensor_file import Tensors, array_of, decode, encode
from pbvf_offline.online.replay import least_values
from pbvf_offline.online.settings import OnlineSettings
from pbvf_offline.online.training import Training, critic_config, start_training
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.records import Record

KIND = "checkpoint"


_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class CheckpointContent(Record):
    """What the header of a checkpoint holds."""

    settings: OnlineSettings
    spec: PolicySpec
    steps: _Count
    episodes: _Count
    rounds: _Count
    objective: float | None
    updates: Annotated[int, Meta(ge=0, lt=2**31)]
    record: tuple[tuple[int, float], ...]
    pending: tuple[float, ...]
    observed: _Count
    replay: dict[str, _Count]
    extra: dict[str, Any]


def encode_checkpoint(training: Training, extra: dict[str, Any]) -> bytes:
    """Return a run that stands at the start of an episode as the bytes of a file.

    Args:
        training: The run.
        extra: JSON of the caller, given back by :func:`decode_checkpoint`.
    """
    numbers, arrays = training.replay.state()
    fit, statistics = training.fit, training.statistics
    content = CheckpointContent(
        settings=training.settings,
        spec=training.spec,
        steps=training.steps,
        episodes=training.episodes,
        rounds=training.rounds,
        objective=training.objective,
        updates=fit.updates,
        record=tuple(fit.record),
        pending=tuple(fit.pending),
        observed=statistics.count,
        replay=numbers,
        extra=extra,
    )
    tensors: Tensors = {
        "theta": training.theta.detach().cpu().numpy(),
        "mean": statistics.mean,
        "squares": statistics.squares,
        "obs_mean": training.normaliser.mean,
        "obs_std": training.normaliser.std,
        **fit_tensors(fit),
        **{f"replay/{name}": array for name, array in arrays.items()},
    }
    state = training.actor.state.get(training.theta)
    if state:
        tensors |= {f"actor/{key}": state[key].cpu().numpy() for key in _MOMENTS}
    return encode(KIND, content, tensors)


def checkpoint_content(image: bytes, where: str) -> tuple[CheckpointContent, Tensors]:
    """Return the checked header of a checkpoint, and its tensors, which are not checked.

    Raises:
        DamagedError: Its bytes are damaged, or its header is malformed.
        IncompatibleError: It is of another kind or a newer version.
    """
    header, tensors = decode(KIND, image, where)
    return CheckpointContent.from_dict(header, where), tensors


def decode_checkpoint(
    image: bytes,
    settings: OnlineSettings,
    spec: PolicySpec,
    *,
    obs_dtype: Any,
    device: torch.device,
    where: str,
    look: bool = False,
) -> tuple[Training, dict[str, Any]]:
    """Return the run in a checkpoint's bytes, and the caller's JSON.

    With ``look`` it is no run to go on with: its replay buffer has room for what is stored alone,
    whatever the settings ask for.

    Raises:
        DamagedError: It is damaged, or of another run.
        IncompatibleError: It is of another kind or a newer version.
    """
    content, tensors = checkpoint_content(image, where)
    if content.settings != settings or content.spec != spec:
        raise DamagedError("is a checkpoint of another run", where=where)
    _check_sizes(content, tensors, where)
    theta = array_of(tensors, "theta", (1, spec.size), np.float32, where)
    room = max(1, content.replay.get("size", 0)) if look else settings.buffer_size
    built = dataclasses.replace(settings, buffer_size=room)
    training = start_training(spec, built, obs_dtype=obs_dtype, device=device)
    training.settings = settings
    mean, squares, obs_mean, obs_std = (
        array_of(tensors, name, (spec.obs_dim,), np.float64, where).copy()
        for name in ("mean", "squares", "obs_mean", "obs_std")
    )
    normaliser = Normaliser(obs_mean, obs_std)
    critic, updates = training.fit.critic, content.updates
    training.fit = stored_fit(critic, training.fit.settings, normaliser, tensors, updates, where)
    training.fit.record, training.fit.pending = list(content.record), list(content.pending)
    training.steps, training.episodes = content.steps, content.episodes
    training.rounds, training.objective = content.rounds, content.objective
    statistics = training.statistics
    statistics.count, statistics.mean, statistics.squares = content.observed, mean, squares
    training.normaliser = normaliser
    with torch.no_grad():
        training.theta.copy_(torch.from_numpy(theta.copy()))
    if "actor/step" in tensors:
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_MOMENTS[:2], theta.shape)
        training.actor.state[training.theta] = {
            key: torch.from_numpy(
                array_of(tensors, f"actor/{key}", shapes.get(key, ()), np.float32, where).copy()
            ).to(device)
            for key in _MOMENTS
        }
    prefix = "replay/"
    replay = {n[len(prefix) :]: a for n, a in tensors.items() if n.startswith(prefix)}
    training.replay.restore(content.replay, replay, normaliser, where)
    return training, content.extra


def _check_sizes(content: CheckpointContent, tensors: Tensors, where: str) -> None:
    """Refuse a file of a few bytes that asks for a critic or a replay buffer of any size."""
    spec, settings, numbers = content.spec, content.settings, content.replay
    check_size(critic_config(spec, settings), tensors, where)
    monte_carlo = CRITICS.choose(settings.kind).monte_carlo
    declared = least_values(spec, numbers, monte_carlo=monte_carlo)
    stored = sum(array.size for name, array in tensors.items() if name.startswith("replay/"))
    if declared > stored:
        what = f"declares a replay buffer of {declared:,} values and holds {stored:,}"
        raise DamagedError(what, where=where)
    room = settings.buffer_size
    if max(numbers.get("size", 0), numbers.get("at", 0) + 1) > room:
        what = f"its replay buffer of {room:,} entries cannot hold what it says"
        raise DamagedError(what, where=where)


def critic_file(training: Training, environment: EnvReference, source: str) -> CriticFile:
    """Return a run's critic as a file that synthesizes and evaluates without the run.

    Its policies are re-expressed in the run's last normaliser, so that they act as they did. With
    ``--normalization per-step`` the critic itself was shown their parameters as they acted, so
    that there the trust region and the nearest policies are approximate.

    Args:
        training: The run, at any step.
        environment: Its environment.
        source: Digest that names the run, in the place of a dataset's.
    """
    replay, normaliser = training.replay, training.normaliser
    policies, returns = replay.policies()
    observations = replay.observations
    if len(observations) == 0:  # a Monte Carlo replay before its first episode ended
        observations = replay.initial_observations
    context = context_of(
        training.fit.critic,
        observations.__getitem__,
        len(observations),
        replay.initial_observations,
        policies.in_normaliser(normaliser.mean, normaliser.std),
        returns,
        seed=training.settings.seed,
        environment=environment,
        dataset=source,
    )
    training.fit.normaliser = normaliser
    return CriticFile(training.fit, context)

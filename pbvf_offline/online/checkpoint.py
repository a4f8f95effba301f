"""Training runs as files: checkpoints to go on from, and what a run leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError
from pbvf_offline.fit.critic_file import (
    CriticFile,
    context_of,
    fit_tensors,
    load_optimiser,
    load_weights,
)
from pbvf_offline.io.tensor_file import Tensors, decode, encode
from pbvf_offline.online.loop import Training, start_training
from pbvf_offline.online.settings import OnlineSettings
from pbvf_offline.policies.normaliser import Normaliser, RunningStatistics
from pbvf_offline.policies.spec import PolicySpec

KIND = "checkpoint"


def encode_checkpoint(training: Training, extra: dict[str, Any]) -> bytes:
    """Return a run that stands at the start of an episode as the bytes of a file.

    Args:
        training: The run.
        extra: JSON of the caller, given back by :func:`decode_checkpoint`.
    """
    numbers, arrays = training.replay.state()
    fit, statistics = training.fit, training.statistics
    content = {
        "settings": training.settings.to_dict(),
        "spec": training.spec.to_dict(),
        "steps": training.steps,
        "episodes": training.episodes,
        "rounds": training.rounds,
        "objective": training.objective,
        "updates": fit.updates,
        "record": [[update, loss] for update, loss in fit.record],
        "pending": fit.pending,
        "observed": statistics.count,
        "replay": numbers,
        "extra": extra,
    }
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
        for key in ("exp_avg", "exp_avg_sq", "step"):
            tensors[f"actor/{key}"] = state[key].cpu().numpy()
    return encode(KIND, content, tensors)


def decode_checkpoint(
    image: bytes,
    settings: OnlineSettings,
    spec: PolicySpec,
    *,
    obs_dtype: Any,
    device: torch.device,
    where: str,
) -> tuple[Training, dict[str, Any]]:
    """Return the run in a checkpoint's bytes, and the caller's JSON.

    Raises:
        DamagedError: It is damaged, or of another run.
        IncompatibleError: It is of another kind or a newer version.
    """
    content, tensors = decode(KIND, image, where)
    training = start_training(spec, settings, obs_dtype=obs_dtype, device=device)
    try:
        if content["settings"] != settings.to_dict() or content["spec"] != spec.to_dict():
            raise DamagedError("is a checkpoint of another run", where=where)
        fit = training.fit
        load_weights(fit.online, tensors, where)
        fit.updates = int(content["updates"])
        load_optimiser(fit.online, fit.optimiser, tensors, fit.updates, where)
        fit.record = [(int(update), float(loss)) for update, loss in content["record"]]
        fit.pending = [float(loss) for loss in content["pending"]]
        training.steps, training.episodes = int(content["steps"]), int(content["episodes"])
        training.rounds = int(content["rounds"])
        objective = content["objective"]
        training.objective = None if objective is None else float(objective)
        training.statistics = RunningStatistics.restored(
            int(content["observed"]), tensors["mean"], tensors["squares"]
        )
        training.normaliser = fit.normaliser = Normaliser(
            tensors["obs_mean"].copy(), tensors["obs_std"].copy()
        )
        with torch.no_grad():
            training.theta.copy_(torch.from_numpy(tensors["theta"].copy()))
        if "actor/step" in tensors:
            training.actor.state[training.theta] = {
                key: torch.from_numpy(tensors[f"actor/{key}"].copy()).to(device)
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
        prefix = "replay/"
        replay = {n[len(prefix) :]: a for n, a in tensors.items() if n.startswith(prefix)}
        training.replay.restore(content["replay"], replay, training.normaliser, where)
        return training, dict(content["extra"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DamagedError(f"is not a whole checkpoint: {error}", where=where) from error


def critic_file(training: Training, environment: EnvReference, source: str) -> CriticFile:
    """Return a run's critic as a file that synthesizes and evaluates without the run.

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
        observations,
        np.arange(len(observations)),
        replay.initial_observations,
        policies.in_normaliser(normaliser.mean, normaliser.std),
        returns,
        seed=training.settings.seed,
        environment=environment,
        dataset=source,
    )
    training.fit.normaliser = normaliser
    return CriticFile(training.fit, context)

"""Policies from the weights of other programs' modules.

Linear layers with one activation between them become
:class:`~pbvf_offline.policies.policy.Policies`, from the tensors of a file
(:func:`import_weights`) or a state dict (:func:`from_state_dict`). Actors of live
Stable-Baselines3 models are read in :mod:`pbvf_offline.exchange.stable_baselines`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pbvf_offline.envs.make import Env, close_env, make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import (
    ConflictError,
    IncompatibleError,
    PbvfError,
    UsageError,
)
from pbvf_offline.exchange.compare import differences, how_far
from pbvf_offline.exchange.interpret import ImportSettings, Interpreted, interpret
from pbvf_offline.exchange.layer_names import listed
from pbvf_offline.exchange.output import already_written, refuse_own_input
from pbvf_offline.exchange.state_dict import activation_in
from pbvf_offline.exchange.weight_files import as_array, description_of, read_weights
from pbvf_offline.io.lock import locked
from pbvf_offline.io.tensor_file import tensor_kind
from pbvf_offline.io.work_folder import refuse_difference
from pbvf_offline.policies.files import PoliciesFile, concatenate, load_policies
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec

CHECK_TOLERANCE = 1e-5
_CHECK_ROWS = 10_000


@dataclass(frozen=True)
class Imported:
    """What an import came to.

    Attributes:
        file: The policies file.
        first: What was read of the first source.
        rounded: Whether weights of any had more digits than float32 holds.
        checked: Rows of observations and actions compared, and their largest difference in
            units of the range (discrete: 0); None: not asked for.
        already_complete: Whether nothing had to be done.
    """

    file: PoliciesFile
    first: Interpreted
    rounded: bool
    checked: tuple[int, float] | None
    already_complete: bool


def import_weights(
    sources: Sequence[Path],
    env: EnvConfig,
    settings: ImportSettings,
    out: Path,
    *,
    check: Path | None = None,
    overwrite: bool = False,
) -> Imported:
    """Make a policies file of the weights of modules, one policy a file.

    Args:
        sources: safetensors files of state dicts, all of one architecture.
        env: The environment that the policies act in; it gives the spaces and bounds.
        settings: How the tensors are read.
        out: The policies file.
        check: A safetensors file with ``obs`` (N, obs_dim) and what the source does there,
            ``action`` (N, act_dim) or, discrete, (N,); for a single source.
        overwrite: Replace what stands at ``out``.

    Raises:
        UsageError: A file or tensor is missing, or it is not clear which layers are the policy.
        DamagedError: A file is damaged, or its numbers are not finite.
        UnsafeError: A file is a pickle.
        IncompatibleError: The module is no such policy, does not fit the environment, or acts
            otherwise than ``check`` says.
        ConflictError: ``out`` holds something else.
    """
    if check is not None and len(sources) != 1:
        raise UsageError("compares one file's policy", where="--check", remedy="import one file")
    built = make_env(env)
    spaces = spec_for_env(built, ())
    close_env(built)
    parts, digests = [], []
    for source in sources:
        tensors, image = read_weights(source)
        activation = settings.activation or activation_in(description_of(image))
        told = dataclasses.replace(settings, activation=activation)
        parts.append(interpret(tensors, spaces, told, str(source)))
        digests.append(hashlib.sha256(image).hexdigest())
    for source, part in zip(sources, parts, strict=True):
        if part.policies.spec != parts[0].policies.spec:
            raise IncompatibleError(
                f"is a {_architecture(part.policies.spec)} policy, {sources[0]} a "
                f"{_architecture(parts[0].policies.spec)} one",
                where=source,
                remedy="import policies of each architecture into a file of their own",
            )
    policies = concatenate([part.policies for part in parts])
    checked = None if check is None else _check_file(policies, check)
    first = parts[0]
    origin = {
        "made_by": "import",
        "layout": settings.layout,
        "layers": list(first.layers),
        "sources": digests,
    }
    file = PoliciesFile(policies, env.reference(), origin)
    refuse_own_input(out, sources)
    with locked(out, look=True) as refusal:
        done = _already_written(out, file, overwrite=overwrite)
        if not done:
            if refusal is not None:
                raise refusal
            file.save(out)
    rounded = any(part.rounded for part in parts)
    return Imported(file, first, rounded, checked, done)


def from_state_dict(
    state: Mapping[str, Any], env: Env, settings: ImportSettings | None = None
) -> Policies:
    """Return the policy that a module's state dict holds, as one row.

    Args:
        state: Tensors or arrays by name, such as ``module.state_dict()``.
        env: The environment that it acts in; it gives the spaces and bounds.
        settings: How the tensors are read.

    Raises:
        UsageError: It is not clear which layers are the policy, or a tensor is missing.
        IncompatibleError: The module is no such policy, or does not fit the environment.
        DamagedError: Numbers are not finite.
    """
    tensors = {name: as_array(value) for name, value in state.items()}
    spaces = spec_for_env(env, ())
    return interpret(tensors, spaces, settings or ImportSettings(), "the state dict").policies


def _architecture(spec: PolicySpec) -> str:
    kind = "stochastic" if spec.stochastic else "deterministic"
    return f"{kind} {spec.arch} {spec.squash}"


def _check_file(policies: Policies, path: Path) -> tuple[int, float]:
    """Compare with actions of the source; return the rows and the largest difference."""
    tensors, _ = read_weights(path)
    where = str(path)
    if not {"obs", "action"} <= set(tensors):
        raise UsageError(
            f"has the tensors {listed(tensors)}; 'obs' and 'action' are needed",
            where=where,
            remedy="write observations and what the source does there with safetensors",
        )
    obs, action = tensors["obs"], tensors["action"]
    spec = policies.spec
    rows = len(obs) if obs.ndim else 0
    wanted = (rows, spec.actions.dim) if spec.is_continuous else (rows,)
    if rows == 0 or obs.shape != (rows, spec.obs_dim) or action.size != math.prod(wanted):
        raise IncompatibleError(
            f"obs has shape {obs.shape} and action {action.shape}; (N, {spec.obs_dim}) and "
            f"{f'(N, {spec.actions.dim})' if spec.is_continuous else '(N,)'} are needed",
            where=where,
        )
    action = action.reshape(wanted)[:_CHECK_ROWS]
    away = differences(policies, obs[:_CHECK_ROWS].astype(np.float64), action)
    worst = float(away.max())
    if worst > CHECK_TOLERANCE:
        raise IncompatibleError(
            f"the imported policy acts otherwise: {how_far(spec, away)}",
            where=where,
            remedy="check the order of the layers, --activation, --squash and the normaliser",
        )
    return len(away), worst


def _already_written(path: Path, made: PoliciesFile, *, overwrite: bool) -> bool:
    """Whether the file stands there already.

    Raises:
        ConflictError: It holds something else; if that is a policies file, what differs.
    """
    try:
        return already_written(
            path,
            made.encode(),
            overwrite=overwrite,
            is_own=lambda there: tensor_kind(there) == "policies",
            what="policies file",
        )
    except ConflictError:
        try:
            there = load_policies(path)
        except PbvfError:
            there = None
        if there is not None:
            refuse_difference(_summary(there), _summary(made), path)
        raise


def _summary(file: PoliciesFile) -> dict[str, Any]:
    """Return what an import decides, for messages."""
    spec, origin = file.policies.spec, file.origin
    sources = origin.get("sources")
    return {
        "made_by": origin.get("made_by"),
        "env": None if file.environment is None else file.environment.name,
        "policies": len(file.policies),
        "architecture": spec.arch,
        "squash": spec.squash,
        "stochastic": spec.stochastic,
        "layers": origin.get("layers"),
        "sources": [str(digest)[:12] for digest in sources] if isinstance(sources, list) else None,
    }

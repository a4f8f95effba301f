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
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.envs.make import Env, close_env, make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    IncompatibleError,
    PbvfError,
    UsageError,
)
from pbvf_offline.exchange.compare import differences, how_far
from pbvf_offline.exchange.layer_names import (
    Named,
    bias_of,
    check_chain,
    find_layers,
    given_layers,
    linear_layers,
    listed,
    sb3_layers,
    weight_of,
)
from pbvf_offline.exchange.layers import Layer, family_of, to_float32
from pbvf_offline.exchange.output import refuse_own_input, stands
from pbvf_offline.exchange.state_dict import activation_in
from pbvf_offline.exchange.weight_files import Weights, as_array, description_of, read_weights
from pbvf_offline.io.lock import locked
from pbvf_offline.io.work_folder import refuse_difference
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.files import PoliciesFile, concatenate, load_policies
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.setting_types import Squash

Layout = Literal["torch", "sb3"]
Numbers = NDArray[np.float64] | str  # given, or the name of a tensor

CHECK_TOLERANCE = 1e-5
_CHECK_ROWS = 10_000
_OWN = ("action_low", "action_high", "action_start")  # in files that this project exported


@dataclass(frozen=True)
class ImportSettings:
    """How tensors of other programs are read as a policy.

    Attributes:
        layout: ``torch``: any module's names. ``sb3``: those of Stable-Baselines3's policies.
        layers: Names of the linear layers in the order in which they act, without ``.weight``;
            None: the file is one policy and its names tell.
        squash: ``tanh`` or ``none``; None: what the names tell, else ``tanh``.
        stochastic: Whether the policy draws its actions.
        activation: What lies between the layers, such as ``tanh`` or ``relu``; None: what a file
            that this project exported says, or what the names tell, else ``tanh``.
        obs_mean: (obs_dim,) of the normaliser, or the tensor that holds it; None: the tensor
            ``obs_mean`` if there is one.
        obs_std: (obs_dim,) likewise.
        log_std: (act_dim,) of a stochastic policy over continuous actions, or the tensor that
            holds it; None: the tensor ``log_std``.
    """

    layout: Layout = "torch"
    layers: tuple[str, ...] | None = None
    squash: Squash | None = None
    stochastic: bool = False
    activation: str | None = None
    obs_mean: Numbers | None = None
    obs_std: Numbers | None = None
    log_std: Numbers | None = None


@dataclass(frozen=True)
class Imported:
    """What an import came to.

    Attributes:
        file: The policies file.
        layers: The names of the layers taken, of the first source.
        left_out: Tensors that no part of the policy was taken from, of the first source.
        rounded: Whether weights had more digits than float32 holds.
        normaliser: Where the normaliser is from: ``given``, ``tensor NAME`` or None: there is none.
        checked: Rows of observations and actions compared, and their largest difference in
            units of the range (discrete: 0); None: not asked for.
        already_complete: Whether nothing had to be done.
    """

    file: PoliciesFile
    layers: tuple[str, ...]
    left_out: tuple[str, ...]
    rounded: bool
    normaliser: str | None
    checked: tuple[int, float] | None = None
    already_complete: bool = False


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
    parts, digests = [], []
    try:
        for source in sources:
            tensors, image = read_weights(source)
            told = activation_in(description_of(image))
            one = settings
            if settings.activation is None and told is not None:
                one = dataclasses.replace(settings, activation=told)
            parts.append(_interpret(tensors, built, one, str(source)))
            digests.append(hashlib.sha256(image).hexdigest())
    finally:
        close_env(built)
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
        done = _stands(out, file, overwrite=overwrite)
        if not done:
            if refusal is not None:
                raise refusal
            file.save(out)
    rounded = any(part.rounded for part in parts)
    return Imported(file, first.layers, first.left_out, rounded, first.normaliser, checked, done)


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
    return _interpret(tensors, env, settings or ImportSettings(), "the state dict").policies


# ------------------------------------------------------------------------ reading tensors


@dataclass(frozen=True)
class _Interpreted:
    policies: Policies
    layers: tuple[str, ...]
    left_out: tuple[str, ...]
    rounded: bool
    normaliser: str | None


class _Tensors:
    """The tensors of a source, which remember what was taken.

    Args:
        tensors: Arrays by name.
        where: The source, for messages.
    """

    def __init__(self, tensors: Weights, where: str) -> None:
        self.all = tensors
        self.where = where
        self.taken: set[str] = set()
        self.shapes = {name: array.shape for name, array in tensors.items()}

    def layer(self, name: str) -> Layer:
        """Take a linear layer; without a bias it has zeros."""
        self.taken |= {weight_of(name), bias_of(name)}
        weight = self.all[weight_of(name)]
        bias = self.all.get(bias_of(name), np.zeros(weight.shape[0], np.float32))
        for array in (weight, bias):
            if array.dtype.kind != "f":
                raise IncompatibleError(
                    f"layer {name!r} is of type {array.dtype}",
                    where=self.where,
                    remedy="save it as float32 or float64",
                )
        return weight, bias

    def source(self, given: Numbers | None, name: str) -> Numbers | None:
        """Return where numbers are: as given, or in the tensor called like the option."""
        return name if given is None and name in self.all else given

    def vector(self, source: Numbers, size: int, option: str) -> NDArray[np.float64]:
        """Take given numbers or a tensor's as (size,); axes of length 1 do not count."""
        if isinstance(source, str):
            if source not in self.all:
                raise UsageError(
                    f"has no tensor {source!r}; it has {listed(self.all)}",
                    where=self.where,
                    remedy=f"give {option} as a tensor's name, a JSON list or an .npy file",
                )
            self.taken.add(source)
            array = self.all[source]
        else:
            array = source
        long = [n for n in array.shape if n != 1]
        if array.size != size or len(long) > 1:
            raise IncompatibleError(
                f"{option} has shape {array.shape}, ({size},) is needed", where=self.where
            )
        return array.astype(np.float64).reshape(size)


def _interpret(tensors: Weights, env: Env, settings: ImportSettings, where: str) -> _Interpreted:
    """Read tensors as one policy; every tensor that has a part in it is named."""
    source = _Tensors(tensors, where)
    plain = spec_for_env(env, ())
    named = _named(source, plain, settings)
    layers = [source.layer(name) for name in named.layers]
    spec = spec_for_env(
        env,
        tuple(len(bias) for _, bias in layers[:-1]),
        squash=_squash(settings, named, plain, where) or "tanh",
        stochastic=settings.stochastic,
        family=family_of(settings.activation or named.activation, len(layers), where).name,
    )
    _check_bounds(source, spec)
    parts = [array for layer in layers for array in layer]
    if spec.log_std_size:
        parts.insert(0, _log_std(source, settings, spec))
    mean, std, normaliser = _normaliser(source, settings, spec)
    theta, rounded = to_float32(parts)
    if not (np.isfinite(theta).all() and np.isfinite(mean).all() and np.isfinite(std).all()):
        raise DamagedError("holds numbers that are NaN, infinite or too large", where=where)
    if not (std > 0).all():
        raise UsageError(
            "the standard deviation has entries that are not positive",
            where=where,
            remedy="give what observations are divided by, with the source's own epsilon in it",
        )
    return _Interpreted(
        Policies(spec, theta[None], mean[None], std[None]),
        named.layers,
        tuple(sorted(set(tensors) - source.taken)),
        rounded,
        normaliser,
    )


def _named(source: _Tensors, plain: PolicySpec, settings: ImportSettings) -> Named:
    """Return the layers that are the policy."""
    obs_dim, outputs = plain.obs_dim, plain.actions.outputs
    linear = linear_layers(source.shapes)
    if settings.layers is not None:
        named = given_layers(linear, settings.layers, source.where)
    elif settings.layout == "sb3":
        named = sb3_layers(source.shapes, source.where)
    else:
        numbers = [
            source.source(getattr(settings, option), option)
            for option in ("obs_mean", "obs_std", "log_std")
        ]
        explained = {name for name in numbers if isinstance(name, str)} | set(_OWN)
        named = find_layers(source.shapes, explained, obs_dim, outputs, source.where)
    check_chain(linear, named.layers, obs_dim, outputs, source.where)
    hidden = len(named.layers) > 1
    if hidden and settings.layout == "sb3" and not (settings.activation or named.activation):
        raise UsageError(
            "does not say its activation, which is ReLU in this kind of policy unless "
            "policy_kwargs named another",
            where=source.where,
            remedy="give --activation relu, or --activation tanh if it was made with "
            "activation_fn=torch.nn.Tanh",
        )
    return named


def _squash(settings: ImportSettings, named: Named, plain: PolicySpec, where: str) -> Squash | None:
    """Return the squashing as given, or as the names tell; None: neither."""
    squash = settings.squash or (named.squash if plain.is_continuous else None)
    if squash is None and plain.is_continuous and settings.layout == "sb3":
        raise UsageError(
            "does not say whether its output goes through a tanh",
            where=where,
            remedy="give --squash tanh or none, as squash_output was",
        )
    return squash


def _log_std(source: _Tensors, settings: ImportSettings, spec: PolicySpec) -> NDArray[np.float64]:
    given = source.source(settings.log_std, "log_std")
    if given is None:
        raise UsageError(
            "has no tensor 'log_std'",
            where=source.where,
            remedy="give --log-std, or no --stochastic",
        )
    return source.vector(given, spec.actions.dim, "--log-std")


def _normaliser(
    source: _Tensors, settings: ImportSettings, spec: PolicySpec
) -> tuple[NDArray[np.float64], NDArray[np.float64], str | None]:
    """Return mean and standard deviation (obs_dim,), and in words where they are from."""
    mean = source.source(settings.obs_mean, "obs_mean")
    std = source.source(settings.obs_std, "obs_std")
    if mean is None and std is None:
        return np.zeros(spec.obs_dim), np.ones(spec.obs_dim), None
    if mean is None or std is None:
        raise UsageError(
            "a normaliser is a mean and a standard deviation; only one of them is there",
            where=source.where,
            remedy="give both --obs-mean and --obs-std",
        )
    return (
        source.vector(mean, spec.obs_dim, "--obs-mean"),
        source.vector(std, spec.obs_dim, "--obs-std"),
        f"tensor {mean}" if isinstance(mean, str) else "given",
    )


def _check_bounds(source: _Tensors, spec: PolicySpec) -> None:
    """Check bounds in a file that this project exported against the environment's."""
    actions = spec.actions
    if isinstance(actions, BoxActions):
        wanted: dict[str, Any] = {"action_low": actions.low, "action_high": actions.high}
        dtype = actions.dtype
    else:
        wanted, dtype = {"action_start": actions.start}, "int64"
    for name in sorted(set(_OWN) & set(source.all)):
        source.taken.add(name)
        there = source.all[name].astype(dtype)
        if name not in wanted or not np.array_equal(there, np.array(wanted[name], dtype)):
            raise IncompatibleError(
                f"its {name} is {there.tolist()}, the environment's {wanted.get(name)}",
                where=source.where,
                remedy="name the environment that it was made for",
            )


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


# -------------------------------------------------------------------------- the output


def _stands(path: Path, made: PoliciesFile, *, overwrite: bool) -> bool:
    """Whether the file stands there already.

    Raises:
        ConflictError: It holds something else; if that is a policies file, what differs.
    """
    try:
        return stands(path, made.encode(), overwrite=overwrite)
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

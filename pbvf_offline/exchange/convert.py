"""Policies from and to other programs: torch modules, Stable-Baselines3 actors, ONNX.

In: linear layers with tanh between them become
:class:`~pbvf_offline.policies.policy.Policies`, from the tensors of a file
(:func:`import_weights`), a state dict (:func:`from_state_dict`) or a live Stable-Baselines3
model (:func:`from_sb3`). Out: one policy becomes a torch module (:func:`to_module`) or a
file that others read (:func:`export_policies`), with the normaliser, the squashing and the bounds
inside: raw observations in, executed actions out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
    TANH_ONLY,
    Named,
    bias_of,
    check_chain,
    find_layers,
    given_layers,
    listed,
    sb3_layers,
    weight_of,
)
from pbvf_offline.exchange.stable_baselines import ClippedObservationsWarning, from_sb3
from pbvf_offline.exchange.tensors import ExportType, description, encode_safetensors
from pbvf_offline.exchange.weight_files import Weights, as_array, read_weights
from pbvf_offline.io.tensor_file import locked, read_file, refuse_difference, write_file
from pbvf_offline.policies.files import PoliciesFile, concatenate, load_policies
from pbvf_offline.policies.policy import BoxActions, Policies, PolicySpec
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.setting_types import Squash

if TYPE_CHECKING:
    from pbvf_offline.exchange.torch_module import PolicyModule

Layout = Literal["torch", "sb3"]
ExportFormat = Literal["torch", "onnx"]
Numbers = NDArray[np.float64] | str  # given, or the name of a tensor

__all__ = [
    "ClippedObservationsWarning",
    "ExportFormat",
    "Exported",
    "ImportSettings",
    "Imported",
    "export_policies",
    "from_sb3",
    "from_state_dict",
    "import_weights",
    "to_module",
]

CHECK_TOLERANCE = 1e-5
_CHECK_ROWS = 10_000
_ORIGIN = "import"


@dataclass(frozen=True)
class ImportSettings:
    """How tensors of other programs are read as a policy.

    Attributes:
        layout: ``torch``: any module's names. ``sb3``: those of Stable-Baselines3's policies.
        layers: Names of the linear layers in the order in which they act, without ``.weight``;
            None: the file is one policy and its names tell.
        squash: ``tanh`` or ``none``; None: what the names tell, else ``tanh``.
        stochastic: Whether the policy draws its actions.
        activation: What lies between the layers; None: not said. Only ``tanh`` is possible.
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
            parts.append(_interpret(tensors, built, settings, str(source)))
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
        "made_by": _ORIGIN,
        "layout": settings.layout,
        "layers": list(first.layers),
        "sources": digests,
    }
    file = PoliciesFile(policies, env.reference(), origin)
    _refuse_own_input(out, sources)
    with locked(out, look=True) as refusal:
        done = _standing(out, file.encode(), overwrite=overwrite, made=file)
        if not done:
            if refusal is not None:
                raise refusal
            file.save(out)
    return Imported(
        file,
        first.layers,
        first.left_out,
        any(part.rounded for part in parts),
        first.normaliser,
        checked,
        done,
    )


def _refuse_own_input(out: Path, sources: Sequence[Path]) -> None:
    """Refuse to write over what was read.

    Raises:
        UsageError: The output is one of the inputs.
    """
    for source in sources:
        if out.exists() and source.exists() and out.samefile(source):
            raise UsageError("is the input too", where=out, remedy="name another --out")


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


def _interpret(tensors: Weights, env: Env, settings: ImportSettings, where: str) -> _Interpreted:
    """Read tensors as one policy; every tensor that has a part in it is named."""
    plain = spec_for_env(env, ())
    obs_dim, outputs = plain.obs_dim, plain.actions.outputs
    shapes = {name: array.shape for name, array in tensors.items()}
    statistics = {
        option: _source(getattr(settings, option), option, shapes)
        for option in ("obs_mean", "obs_std", "log_std")
    }
    own = {"action_low", "action_high", "action_start"} & set(shapes)
    if settings.layers is not None:
        named = given_layers(shapes, settings.layers, obs_dim, outputs, where)
    elif settings.layout == "sb3":
        named = sb3_layers(shapes, where)
        check_chain(shapes, named.layers, obs_dim, outputs, where)
    else:
        explained = {name for name in statistics.values() if isinstance(name, str)} | own
        named = find_layers(shapes, explained, obs_dim, outputs, where)
    _check_activation(settings, named, where)
    squash = settings.squash or (named.squash if plain.is_continuous else None)
    if squash is None and plain.is_continuous and settings.layout == "sb3":
        raise UsageError(
            "does not say whether its output goes through a tanh",
            where=where,
            remedy="give --squash tanh or none, as squash_output was",
        )
    layers = [_layer(tensors, name, where) for name in named.layers]
    spec = spec_for_env(
        env,
        tuple(int(weight.shape[0]) for weight, _ in layers[:-1]),
        squash=squash or "tanh",
        stochastic=settings.stochastic,
    )
    _check_bounds(tensors, own, spec, where)
    parts = [array for layer in layers for array in layer]
    taken = {key for name in named.layers for key in (weight_of(name), bias_of(name))} | own
    if spec.log_std_size:
        log_std = statistics["log_std"]
        if log_std is None:
            raise UsageError(
                "has no tensor 'log_std'", where=where, remedy="give --log-std, or no --stochastic"
            )
        parts.insert(0, _vector(tensors, log_std, spec.actions.dim, "--log-std", where))
        taken |= {log_std} if isinstance(log_std, str) else set()
    mean, std = np.zeros(obs_dim), np.ones(obs_dim)
    pair = statistics["obs_mean"], statistics["obs_std"]
    if (pair[0] is None) != (pair[1] is None):
        raise UsageError(
            "a normaliser is a mean and a standard deviation; only one of them is there",
            where=where,
            remedy="give both --obs-mean and --obs-std",
        )
    if pair[0] is not None and pair[1] is not None:
        mean = _vector(tensors, pair[0], obs_dim, "--obs-mean", where)
        std = _vector(tensors, pair[1], obs_dim, "--obs-std", where)
        taken |= {name for name in pair if isinstance(name, str)}
    with np.errstate(over="ignore"):  # what overflows is not finite, and refused
        narrow = [part.astype(np.float32) for part in parts]
    rounded = any(bool(np.any(a != b)) for a, b in zip(narrow, parts, strict=True))
    theta = np.concatenate([part.ravel() for part in narrow])
    if not (np.isfinite(theta).all() and np.isfinite(mean).all() and np.isfinite(std).all()):
        raise DamagedError("holds numbers that are NaN, infinite or too large", where=where)
    if not (std > 0).all():
        raise UsageError(
            "the standard deviation has entries that are not positive",
            where=where,
            remedy="give what observations are divided by, with the source's own epsilon in it",
        )
    left_out = tuple(sorted(set(tensors) - taken))
    origin = None if pair[0] is None else "given"
    if isinstance(pair[0], str):
        origin = f"tensor {pair[0]}"
    return _Interpreted(
        Policies(spec, theta[None], mean[None], std[None]),
        named.layers,
        left_out,
        rounded,
        origin,
    )


def _source(given: Numbers | None, option: str, shapes: Mapping[str, Any]) -> Numbers | None:
    """Return where numbers are: as given, or the tensor that is called like the option."""
    if given is not None:
        return given
    return option if option in shapes else None


def _check_activation(settings: ImportSettings, named: Named, where: str) -> None:
    """Check what is known of the hidden layers' activation, which no tensor tells.

    Raises:
        IncompatibleError: It is not tanh.
        UsageError: Nobody said, and Stable-Baselines3's default would not be tanh.
    """
    if settings.activation not in (None, "tanh"):
        raise IncompatibleError(
            f"hidden layers with {settings.activation} cannot be expressed",
            where=where,
            remedy=TANH_ONLY,
        )
    hidden = len(named.layers) > 1
    if hidden and settings.layout == "sb3" and not (settings.activation or named.activation):
        raise UsageError(
            "does not say its activation, which is ReLU in this kind of policy unless "
            "policy_kwargs named another",
            where=where,
            remedy="if it was made with activation_fn=torch.nn.Tanh, give --activation tanh; "
            "ReLU policies cannot be expressed",
        )


def _layer(tensors: Weights, name: str, where: str) -> tuple[NDArray[Any], NDArray[Any]]:
    weight = tensors[weight_of(name)]
    bias = tensors.get(bias_of(name), np.zeros(weight.shape[0], np.float32))
    for array in (weight, bias):
        if array.dtype.kind != "f":
            raise IncompatibleError(
                f"layer {name!r} is of type {array.dtype}",
                where=where,
                remedy="save it as float32 or float64",
            )
    return weight, bias


def _vector(
    tensors: Weights, source: Numbers, size: int, option: str, where: str
) -> NDArray[np.float64]:
    """Return given numbers or a tensor's as (size,); axes of length 1 do not count."""
    if isinstance(source, str):
        if source not in tensors:
            raise UsageError(
                f"has no tensor {source!r}; it has {listed(tensors)}",
                where=where,
                remedy=f"give {option} as a tensor's name, a JSON list or an .npy file",
            )
        array = tensors[source]
    else:
        array = source
    long = [n for n in array.shape if n != 1]
    if array.size != size or len(long) > 1:
        raise IncompatibleError(
            f"{option} has shape {array.shape}, ({size},) is needed", where=where
        )
    return array.astype(np.float64).reshape(size)


def _check_bounds(tensors: Weights, own: set[str], spec: PolicySpec, where: str) -> None:
    """Check bounds in a file of :func:`export_policies` against the environment's."""
    actions = spec.actions
    if isinstance(actions, BoxActions):
        wanted: dict[str, Any] = {"action_low": actions.low, "action_high": actions.high}
        dtype = actions.dtype
    else:
        wanted, dtype = {"action_start": actions.start}, "int64"
    for name in sorted(own):
        there = tensors[name].astype(dtype)
        if name not in wanted or not np.array_equal(there, np.array(wanted[name], dtype)):
            raise IncompatibleError(
                f"its {name} is {there.tolist()}, the environment's {wanted.get(name)}",
                where=where,
                remedy="name the environment that it was made for",
            )


def _architecture(spec: PolicySpec) -> str:
    return f"{'stochastic' if spec.stochastic else 'deterministic'} {spec.arch} {spec.squash}"


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
            remedy="check the order of the layers, their activation, --squash and the normaliser",
        )
    return len(away), worst


# -------------------------------------------------------------------------------- export


@dataclass(frozen=True)
class Exported:
    """One policy in a file that other programs read.

    Attributes:
        path: The file.
        row: The policy's row in the policies file.
        already_complete: Whether the file stood there already.
    """

    path: Path
    row: int
    already_complete: bool


def to_module(policies: Policies, row: int = 0) -> PolicyModule:
    """Return one policy as a torch module: raw observations in, executed actions out.

    Normaliser, squashing, scaling and clipping are inside. It computes in float64, as policies
    here act; ``.float()`` makes it a float32 module. A stochastic policy acts by its mean, or
    its most likely choice.

    Args:
        policies: K policies.
        row: Which one.

    Raises:
        UsageError: There is no such row.
    """
    from pbvf_offline.exchange.torch_module import PolicyModule

    return PolicyModule(_row(policies, row))


def export_policies(
    policies: Policies,
    out: Path,
    *,
    row: int | None = None,
    file_format: ExportFormat = "torch",
    dtype: ExportType = "float64",
    overwrite: bool = False,
) -> list[Exported]:
    """Write policies for programs that know nothing of this one, one file each.

    Args:
        policies: K policies.
        out: The file; for several policies ``NAME-0.EXT``, ``NAME-1.EXT``, … beside it.
        row: Which policy; None: all.
        file_format: ``torch``: a state dict as safetensors; ``onnx``: a graph.
        dtype: What the file computes in. float64 acts as policies here do; float32 is for
            runtimes that have nothing else.
        overwrite: Replace what stands there.

    Raises:
        UsageError: There is no such row, or onnx is not installed.
        ConflictError: A file holds something else; none is written then.
    """
    rows = range(len(policies)) if row is None else [row]
    digits = len(str(len(policies) - 1))

    def place(k: int) -> Path:
        if len(rows) == 1:
            return out
        return out.with_name(f"{out.stem}-{k:0{digits}d}{out.suffix}")

    with locked(out, look=True) as refusal:
        images, done = {}, {}
        for k in rows:
            one = _row(policies, k)
            if file_format == "onnx":
                from pbvf_offline.exchange.onnx_graph import encode_onnx

                images[k] = encode_onnx(one, dtype)
            else:
                images[k] = encode_safetensors(one, dtype, description(one.spec, dtype))
            done[k] = _standing(place(k), images[k], overwrite=overwrite)
        if refusal is not None and not all(done.values()):
            raise refusal
        for k in rows:
            if not done[k]:
                write_file(place(k), images[k])
    return [Exported(place(k), k, done[k]) for k in rows]


def _row(policies: Policies, row: int) -> Policies:
    if not 0 <= row < len(policies):
        raise UsageError(
            f"there is no policy {row} among {len(policies)}",
            remedy=f"count from 0 to {len(policies) - 1}",
        )
    return policies.select([row])


def _standing(
    path: Path, image: bytes, *, overwrite: bool, made: PoliciesFile | None = None
) -> bool:
    """Whether a file holds these very bytes already.

    Args:
        path: The output.
        image: What it is to hold.
        overwrite: Whether anything else may be replaced.
        made: The policies file that ``image`` is, to name what differs.

    Raises:
        ConflictError: It holds something else.
    """
    if overwrite or not path.exists():
        return False
    standing = read_file(path)
    if standing == image:
        return True
    if made is not None:
        try:
            there = load_policies(path)
        except PbvfError:
            there = None
        if there is not None:
            refuse_difference(_summary(there), _summary(made), path)
    raise ConflictError(
        "exists with other content",
        where=path,
        remedy="choose another --out, or start anew with --overwrite",
    )


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

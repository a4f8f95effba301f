"""Tensors of other programs as one policy: which are its layers, and what lies between them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.exchange.layer_names import (
    Named,
    bias_of,
    check_chain,
    expressible,
    find_layers,
    given_layers,
    linear_layers,
    listed,
    mlp_families,
    sb3_layers,
    weight_of,
)
from pbvf_offline.exchange.weight_files import Weights
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.families import DEFAULT_FAMILY
from pbvf_offline.policies.normaliser import NOT_POSITIVE, SMALLEST_STD
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.setting_types import Squash

Layout = Literal["torch", "sb3"]
Numbers = NDArray[np.float64] | str  # given, or the name of a tensor

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
class Interpreted:
    """One policy of the tensors of a source.

    Attributes:
        policies: One policy.
        layers: The names of its layers.
        left_out: Tensors that no part of it was taken from.
        assumed: Whether tanh between the layers is an assumption: neither the user nor the file
            said so.
        rounded: Whether weights had more digits than float32 holds.
        normaliser: Where the normaliser is from: ``given``, ``tensor NAME`` or None: there is none.
    """

    policies: Policies
    layers: tuple[str, ...]
    left_out: tuple[str, ...]
    assumed: bool
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

    def layer(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
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


def interpret(
    tensors: Weights, spaces: PolicySpec, settings: ImportSettings, where: str
) -> Interpreted:
    """Read tensors as one policy; every tensor that has a part in it is named.

    Args:
        tensors: Arrays by name.
        spaces: A spec of the environment's spaces; its architecture does not matter.
        settings: How the tensors are read.
        where: The source, for messages.

    Raises:
        UsageError: It is not clear which layers are the policy, or a tensor is missing.
        IncompatibleError: They are no such policy, or do not fit the spaces.
        DamagedError: Numbers are not finite.
    """
    source = _Tensors(tensors, where)
    named = _named(source, spaces, settings)
    layers = [source.layer(name) for name in named.layers]
    spec = dataclasses.replace(
        spaces,
        hidden=tuple(len(bias) for _, bias in layers[:-1]),
        squash=_squash(settings, named, spaces, where) or "tanh",
        stochastic=settings.stochastic,
        family=_family(settings.activation or named.activation, len(layers), where),
    )
    _check_bounds(source, spec)
    parts = [array for layer in layers for array in layer]
    if spec.log_std_size:
        parts.insert(0, _log_std(source, settings, spec))
    mean, std, normaliser = _normaliser(source, settings, spec)
    with np.errstate(over="ignore"):  # what overflows is not finite, and refused
        narrow = [part.astype(np.float32) for part in parts]
    rounded = any(bool(np.any(a != b)) for a, b in zip(narrow, parts, strict=True))
    theta = np.concatenate([part.ravel() for part in narrow])
    if not (np.isfinite(theta).all() and np.isfinite(mean).all() and np.isfinite(std).all()):
        raise DamagedError("holds numbers that are NaN, infinite or too large", where=where)
    if not (std >= SMALLEST_STD).all():
        raise UsageError(
            f"the standard deviation has entries that are {NOT_POSITIVE}",
            where=where,
            remedy="give what observations are divided by, with the source's own epsilon in it",
        )
    return Interpreted(
        Policies(spec, theta[None], mean[None], std[None]),
        named.layers,
        tuple(sorted(set(tensors) - source.taken)),
        settings.activation is None and len(layers) > 1,
        rounded,
        normaliser,
    )


def _named(source: _Tensors, spaces: PolicySpec, settings: ImportSettings) -> Named:
    """Return the layers that are the policy."""
    obs_dim, outputs = spaces.obs_dim, spaces.actions.outputs
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


def _squash(
    settings: ImportSettings, named: Named, spaces: PolicySpec, where: str
) -> Squash | None:
    """Return the squashing as given, or as the names tell; None: neither."""
    squash = settings.squash or (named.squash if spaces.is_continuous else None)
    if squash is None and spaces.is_continuous and settings.layout == "sb3":
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
        there = source.all[name]
        # An export of float32 holds the bounds of a float64 space as far as it can.
        narrow = there.dtype.kind == "f" and there.dtype.itemsize < np.dtype(dtype).itemsize
        coarser = there.dtype if narrow else np.dtype(dtype)
        expected = np.array(wanted.get(name, []), dtype).astype(coarser)
        if name not in wanted or not np.array_equal(there.astype(coarser), expected):
            raise IncompatibleError(
                f"its {name} is {there.tolist()}, the environment's {wanted.get(name)}",
                where=source.where,
                remedy="name the environment that it was made for",
            )


def _family(activation: str | None, layers: int, where: str) -> str:
    """Return the family with an activation, None: tanh, between a number of layers.

    A single one has nothing between, and is of the default family.

    Raises:
        IncompatibleError: No family has that activation.
    """
    families = mlp_families()
    if activation is not None and activation.lower() not in families:
        raise IncompatibleError(
            f"hidden layers with {activation} cannot be expressed",
            where=where,
            remedy=expressible(),
        )
    if activation is None or layers == 1:
        return DEFAULT_FAMILY
    return families[activation.lower()].name

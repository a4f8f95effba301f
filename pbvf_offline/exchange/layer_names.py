"""Which tensors of a state dict are a policy's layers, and in which order.

A state dict is names and shapes; it says neither in what order layers act nor what lies
between them. So an order is taken only where shapes, or numbers in the names, leave no other,
and only if every tensor of the file has a part in it. Otherwise the user names the layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_offline.policies.families import FAMILIES
from pbvf_offline.policies.families.mlp import MLP
from pbvf_offline.policies.spec import MAX_LAYERS
from pbvf_offline.setting_types import Squash

Shapes = Mapping[str, tuple[int, ...]]
Linear = Mapping[str, tuple[int, int]]

_SHOWN = 8
_LONG = 80
_MAX_VISITS = 5_000  # of a search that a network's own names end after a few
_MAX_SUGGESTIONS = 3
_MAX_PREFIXES = 200
_EXTRACTOR = re.compile(r"(^|\.)(\w+_)?features_extractor\.")


@dataclass(frozen=True)
class Named:
    """The layers of a policy in a state dict.

    Attributes:
        layers: Names of the layers in the order in which they act, without ``.weight``.
        squash: What the names say of the squashing; None: nothing.
        activation: What the names say of the activation; None: nothing.
    """

    layers: tuple[str, ...]
    squash: Squash | None = None
    activation: str | None = None


def mlp_families() -> dict[str, MLP]:
    """Return the families of linear layers by the activation between them."""
    families = (family for family in FAMILIES.values() if isinstance(family, MLP))
    return {family.activation.name: family for family in families}


def expressible() -> str:
    """Return in words what can be a policy, for messages."""
    activations = " or ".join(mlp_families())
    return f"policies here are linear layers with {activations} between them"


def weight_of(layer: str) -> str:
    """Return the name of a layer's weight; the module itself is the layer of name ``""``."""
    return f"{layer}.weight" if layer else "weight"


def bias_of(layer: str) -> str:
    """Return the name of a layer's bias."""
    return f"{layer}.bias" if layer else "bias"


def linear_layers(shapes: Shapes) -> dict[str, tuple[int, int]]:
    """Return ``(out, in)`` of each linear layer, in the natural order of the names.

    A layer is a 2-D ``NAME.weight``; a ``NAME.bias`` beside it has to be as long as its rows.
    """
    found = {}
    for name in sorted(shapes, key=natural):
        layer, _, last = name.rpartition(".")
        shape = shapes[name]
        if last == "weight" and len(shape) == 2 and min(shape) > 0:
            bias = shapes.get(bias_of(layer))
            if bias is None or bias == (shape[0],):
                found[layer] = (shape[0], shape[1])
    return found


def natural(name: str) -> list[tuple[int, int | str]]:
    """Return a key that sorts ``net.10`` after ``net.2``."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name)]


def given_layers(linear: Linear, layers: Sequence[str], where: str) -> Named:
    """Return layers that the user named, in the user's order.

    Raises:
        UsageError: One is not there.
    """
    for layer in layers:
        if layer not in linear:
            raise UsageError(
                f"has no linear layer {layer!r}; it has {listed(linear)}",
                where=where,
                remedy="name its layers with --layers",
            )
    return Named(tuple(layers))


def find_layers(
    shapes: Shapes, explained: Iterable[str], obs_dim: int, outputs: int, where: str
) -> Named:
    """Find the layers of a state dict that is one policy and nothing else.

    Args:
        shapes: The shape of each tensor.
        explained: Tensors that are no layers: statistics, bounds, ``log_std``.
        obs_dim: Number of observations.
        outputs: Number of network outputs.
        where: The file, for messages.

    Raises:
        UsageError: Tensors are left over, or several orders are possible.
        IncompatibleError: There are no layers, or they do not lead from observations to actions.
    """
    linear = linear_layers(shapes)
    if not linear:
        raise IncompatibleError(
            f"has no linear layers (a 2-D NAME.weight with its NAME.bias) among {listed(shapes)}",
            where=where,
            remedy=expressible(),
        )
    parts = {key for layer in linear for key in (weight_of(layer), bias_of(layer))}
    left = sorted(set(shapes) - parts - set(explained), key=natural)
    orders = _orders(linear, obs_dim, outputs)
    if len(orders) == 1 and not left:
        return Named(orders[0])
    if len(orders) > 1:
        raise UsageError(
            f"several orders of its layers fit: {_joined(orders)}",
            where=where,
            remedy="give the one in which they act with --layers",
        )
    suggestions = _suggestions(linear, obs_dim, outputs)
    if not suggestions:
        raise _leads_elsewhere(linear, obs_dim, outputs, where)
    others = left or [layer for layer in linear if layer not in suggestions[0]]
    raise UsageError(
        f"holds more than the layers of one policy: {listed(others)}",
        where=where,
        remedy=f"if those have no part in acting, name the layers: --layers {_joined(suggestions)}",
    )


def _orders(linear: Linear, obs_dim: int, outputs: int) -> list[tuple[str, ...]]:
    """Return up to two orders in which all layers lead from observations to outputs.

    Layers whose names differ in numbers alone keep the order of the numbers.
    """
    if len(linear) > MAX_LAYERS + 1:
        return []
    queues: dict[str, list[str]] = {}
    for layer in sorted(linear, key=natural):
        queues.setdefault(re.sub(r"\d+", "#", layer), []).append(layer)
    visits = 0

    def extend(path: tuple[str, ...], width: int) -> Iterator[tuple[str, ...]]:
        nonlocal visits
        visits += 1
        if len(path) == len(linear) and width == outputs:
            yield path
        for queue in queues.values():
            following = next((layer for layer in queue if layer not in path), None)
            if following is None or linear[following][1] != width or visits > _MAX_VISITS:
                continue
            yield from extend((*path, following), linear[following][0])

    found = []
    for order in extend((), obs_dim):
        found.append(order)
        if len(found) == 2:
            break
    return found if visits <= _MAX_VISITS else []


def _suggestions(linear: Linear, obs_dim: int, outputs: int) -> list[tuple[str, ...]]:
    """Return what might be policies: parts of the module that lead from observations to actions."""
    prefixes = {""}
    for layer in linear:
        words = layer.split(".")
        if words[-1].isdecimal():
            words.pop()  # one of a Sequential's is no network
        prefixes |= {".".join(words[: k + 1]) for k in range(len(words))}
    found: list[tuple[str, ...]] = []
    for prefix in sorted(prefixes, key=natural)[:_MAX_PREFIXES]:
        group = {
            layer: shape
            for layer, shape in linear.items()
            if not prefix or layer == prefix or layer.startswith(prefix + ".")
        }
        orders = _orders(group, obs_dim, outputs)
        if orders and not any(set(orders[0]) <= set(other) for other in found):
            found.append(orders[0])
    return found[:_MAX_SUGGESTIONS]


def sb3_layers(shapes: Shapes, where: str) -> Named:
    """Find a Stable-Baselines3 actor by its names in ``model.policy.state_dict()``.

    Raises:
        IncompatibleError: The names are of none of its actors, or of one with other parts.
    """
    if any(_EXTRACTOR.search(name) for name in shapes):
        raise IncompatibleError(
            "has a features extractor of its own", where=where, remedy=expressible()
        )
    linear = linear_layers(shapes)
    named = _sb3_actor(shapes, linear, where) or _sb3_network(shapes, linear)
    if named is None:
        raise IncompatibleError(
            f"has no Stable-Baselines3 actor's layers among {listed(shapes)}",
            where=where,
            remedy="write model.policy.state_dict(), or name the layers with --format torch "
            "--layers",
        )
    return named


def _numbered(linear: Linear, prefix: str) -> tuple[str, ...]:
    pattern = re.escape(prefix) + r"\.\d+"
    return tuple(layer for layer in linear if re.fullmatch(pattern, layer))


def _sb3_actor(shapes: Shapes, linear: Linear, where: str) -> Named | None:
    """Find an actor of SAC, DDPG or TD3, whose output goes through a tanh."""
    for actor in ("actor.", ""):
        latent = _numbered(linear, f"{actor}latent_pi")
        mean = _numbered(linear, f"{actor}mu")
        state_dependent = weight_of(f"{actor}log_std") in shapes
        if f"{actor}mu" in linear and (latent or state_dependent):  # SAC
            return Named((*latent, f"{actor}mu"), squash="tanh")
        if mean and (latent or state_dependent or f"{actor}log_std" in shapes):
            raise IncompatibleError(
                "clips its mean before the tanh (use_sde with clip_mean)",
                where=where,
                remedy=expressible(),
            )
        if mean:
            return Named(mean, squash="tanh")
    return None


def _sb3_network(shapes: Shapes, linear: Linear) -> Named | None:
    """Find the network of a policy that has no actor: A2C and PPO, ARS, DQN."""
    if "action_net" in linear:
        # Of use_sde, squashing or not, log_std is a matrix.
        plain = len(shapes.get("log_std", ())) <= 1
        hidden = _numbered(linear, "mlp_extractor.policy_net")
        return Named((*hidden, "action_net"), "none" if plain else None, activation="tanh")
    for prefix in ("action_net", "q_net.q_net", "q_net"):
        layers = _numbered(linear, prefix)
        if layers:
            return Named(layers)
    return None


def check_chain(
    linear: Linear, layers: Sequence[str], obs_dim: int, outputs: int, where: str
) -> None:
    """Check that layers lead from observations to outputs.

    Raises:
        IncompatibleError: They do not.
    """
    chain = [linear[layer] for layer in layers]
    if [inp for _, inp in chain] != [obs_dim, *(out for out, _ in chain[:-1])] or (
        chain[-1][0] != outputs
    ):
        raise _leads_elsewhere({layer: linear[layer] for layer in layers}, obs_dim, outputs, where)


def _leads_elsewhere(linear: Linear, obs_dim: int, outputs: int, where: str) -> IncompatibleError:
    shapes = listed(f"{layer or 'weight'} ({out}, {inp})" for layer, (out, inp) in linear.items())
    return IncompatibleError(
        f"its layers {shapes} do not lead from {obs_dim} observations to {outputs} outputs",
        where=where,
        remedy="name the environment that it was made for, and its layers in order with --layers",
    )


def listed(names: Iterable[str]) -> str:
    """Return names for a message, the first few of many."""
    words = [name if len(name) <= _LONG else name[:_LONG] + "…" for name in names]
    text = ", ".join(words[:_SHOWN])
    more = len(words) - _SHOWN
    return f"{text}, … ({more} more)" if more > 0 else text or "nothing"


def _joined(orders: Iterable[Sequence[str]]) -> str:
    return " or ".join(",".join(name[:_LONG] for name in order) for order in orders)

"""The architecture of a policy: everything but its numbers, and its JSON form."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.families import DEFAULT_FAMILY, FAMILIES
from pbvf_offline.policies.families.base import PolicyFamily
from pbvf_offline.setting_types import Squash

MAX_LAYERS = 16
MAX_WIDTH = 65_536
MAX_PARAMETERS = 100_000_000


@dataclass(frozen=True)
class PolicySpec:
    """Architecture of a policy: everything but its numbers.

    Attributes:
        obs_dim: Number of observation dimensions.
        hidden: Sizes that the family gives a meaning; for an MLP those of its hidden layers, and
            empty for a linear policy.
        actions: The action space.
        squash: ``tanh`` maps the output into the bounds; ``none`` only clips it.
        stochastic: A tanh of a Gaussian (continuous) or a categorical (discrete).
        family: Name of the policy family; see :mod:`pbvf_offline.policies.families`.

    Raises:
        UsageError: A size is out of range, ``squash="none"`` with discrete actions, or there is
            no such family.
    """

    obs_dim: int
    hidden: tuple[int, ...]
    actions: BoxActions | DiscreteActions
    squash: Squash = "tanh"
    stochastic: bool = False
    family: str = DEFAULT_FAMILY

    def __post_init__(self) -> None:
        if not 1 <= self.obs_dim <= 1_000_000:
            raise UsageError(f"observation dimension {self.obs_dim} is not in 1 … 1,000,000")
        if len(self.hidden) > MAX_LAYERS or any(not 1 <= h <= MAX_WIDTH for h in self.hidden):
            raise UsageError(
                f"hidden sizes {list(self.hidden)} are not at most {MAX_LAYERS} numbers "
                f"in 1 … {MAX_WIDTH}"
            )
        if self.squash not in ("tanh", "none"):
            raise UsageError(f"squash {self.squash!r} is neither 'tanh' nor 'none'")
        if self.squash == "none" and not self.is_continuous:
            raise UsageError("squash 'none' is for continuous actions; these are discrete")
        if self.size > MAX_PARAMETERS:
            raise UsageError(
                f"a policy of {self.size:,} parameters is over the limit of {MAX_PARAMETERS:,}"
            )

    @property
    def network(self) -> PolicyFamily:
        """The family, which says what the network computes."""
        return FAMILIES.choose(self.family)

    @property
    def log_std_size(self) -> int:
        """Number of leading ``log_std`` entries in theta."""
        return self.actions.dim if self.stochastic and self.is_continuous else 0

    @property
    def size(self) -> int:
        """Number of parameters D."""
        return self.log_std_size + self.network.size(self)

    @property
    def is_continuous(self) -> bool:
        """Whether actions are a box."""
        return isinstance(self.actions, BoxActions)

    @property
    def sizes(self) -> str:
        """The hidden sizes as users type them: ``linear`` or ``64,64``."""
        return ",".join(str(h) for h in self.hidden) or "linear"

    @property
    def arch(self) -> str:
        """The sizes, and the family where it is not the default: ``64,64 relu-mlp``."""
        return self.sizes if self.family == DEFAULT_FAMILY else f"{self.sizes} {self.family}"

    @property
    def description(self) -> str:
        """What such policies are, in words."""
        kind = "stochastic" if self.stochastic else "deterministic"
        return f"{kind} {self.arch} policies from {self.obs_dim} observations to {self.actions}"

    @property
    def traits(self) -> dict[str, object]:
        """All that it consists of, by the name that it has in messages about differences."""
        return {
            "observations": self.obs_dim,
            "architecture": self.arch,
            "squash": self.squash,
            "stochastic": self.stochastic,
            "policy's actions": self.actions,
        }

    @property
    def format_version(self) -> int:
        """The lowest format version that has such policies."""
        return 1 if self.family == DEFAULT_FAMILY else 2

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that files carry.

        The default family is not written: its files keep the bytes they had before there were
        families.
        """
        if isinstance(self.actions, BoxActions):
            actions: dict[str, Any] = {
                "kind": "box",
                "low": list(self.actions.low),
                "high": list(self.actions.high),
                "dtype": self.actions.dtype,
            }
        else:
            actions = {"kind": "discrete", "n": self.actions.n, "start": self.actions.start}
        data: dict[str, Any] = {
            "obs_dim": self.obs_dim,
            "hidden": list(self.hidden),
            "actions": actions,
            "squash": self.squash,
            "stochastic": self.stochastic,
        }
        return data if self.family == DEFAULT_FAMILY else {**data, "family": self.family}

    @classmethod
    def from_dict(cls, data: object, where: str | os.PathLike[str]) -> PolicySpec:
        """Read the JSON form strictly; without a family it is the default one.

        Args:
            data: Parsed JSON.
            where: The file and the entry in it, for messages.

        Raises:
            DamagedError: A key is missing, unknown or of the wrong type.
            IncompatibleError: No family of that name is installed here, or it cannot be imported.
        """
        try:
            return cls(**_fields(data))
        except (UsageError, DamagedError) as error:
            raise DamagedError(f"policy spec: {error.what}", where=where) from error
        except IncompatibleError as error:
            raise IncompatibleError(error.what, where=where, remedy=error.remedy) from error


def _fields(data: object) -> dict[str, Any]:
    """Return the arguments of a spec from its JSON form."""
    keys = {"obs_dim", "hidden", "actions", "squash", "stochastic"}
    named = {"family"} if isinstance(data, Mapping) and "family" in data else set()
    fields = _exact(data, keys | named, "spec")
    family = _typed(fields["family"], str) if named else DEFAULT_FAMILY
    if family not in FAMILIES:
        raise IncompatibleError(
            f"its policies are of the family {family[:40]!r}, which is not installed",
            remedy="install the package that brings it, or upgrade pbvf-offline",
        )
    try:
        FAMILIES[family]
    except UsageError as error:  # its package is broken, not the file
        raise IncompatibleError(error.what, remedy=error.remedy) from error
    if not isinstance(fields["hidden"], list):
        raise DamagedError(f"spec.hidden is {fields['hidden']!r}, not a list")
    return {
        "obs_dim": _typed(fields["obs_dim"], int),
        "hidden": tuple(_typed(h, int) for h in fields["hidden"]),
        "actions": _actions(fields["actions"]),
        "squash": _typed(fields["squash"], str),
        "stochastic": _typed(fields["stochastic"], bool),
        "family": family,
    }


def _actions(data: object) -> BoxActions | DiscreteActions:
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind == "box":
        box = _exact(data, {"kind", "low", "high", "dtype"}, "spec.actions")
        return BoxActions(_numbers(box["low"]), _numbers(box["high"]), _typed(box["dtype"], str))
    if kind == "discrete":
        discrete = _exact(data, {"kind", "n", "start"}, "spec.actions")
        return DiscreteActions(_typed(discrete["n"], int), _typed(discrete["start"], int))
    raise DamagedError(f"spec.actions.kind is {kind!r}, not 'box' or 'discrete'")


def _typed(value: object, kind: type) -> Any:
    if type(value) is not kind:
        raise DamagedError(f"holds {value!r} where a {kind.__name__} belongs")
    return value


def _numbers(values: object) -> tuple[float, ...]:
    if not isinstance(values, list) or any(type(v) not in (int, float) for v in values):
        raise DamagedError(f"holds {values!r} where a list of numbers belongs")
    try:
        return tuple(float(v) for v in values)
    except OverflowError as error:
        raise DamagedError("holds a number too large for a float") from error


def _exact(data: object, keys: set[str], name: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping) or set(data) != keys:
        given = sorted(data) if isinstance(data, Mapping) else data
        raise DamagedError(f"{name} has {given!r}, expected the keys {sorted(keys)}")
    return data


def parse_arch(text: str) -> tuple[int, ...]:
    """Parse an architecture as users type it.

    >>> parse_arch("linear"), parse_arch("64,64")
    ((), (64, 64))

    Raises:
        UsageError: The text is neither ``linear`` nor sizes such as ``64,64``.
    """
    if text.strip().lower() in ("linear", "[]"):
        return ()
    try:
        sizes = tuple(int(part) for part in text.strip().strip("[]").split(","))
    except ValueError:
        sizes = (0,)
    if "_" in text or not text.isascii():  # which Python takes for digits too
        sizes = (0,)
    if len(sizes) > MAX_LAYERS or any(not 1 <= size <= MAX_WIDTH for size in sizes):
        raise UsageError(
            f"architecture {text!r} is not understood",
            remedy="give 'linear' or sizes such as '32' or '64,64'",
        )
    return sizes

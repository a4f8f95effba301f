"""Several datasets as one training set, which is what their merge would be, without writing it.

The flat arrays of all are laid end to end in the training cache, under the digests of all.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.statistics import row_keys
from pbvf_datasets.read.cache import load_cache, scratch_folder, store_cache
from pbvf_datasets.read.flatten import ScratchError, fresh_columns
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import UNKNOWN, IncompatibleError, UsageError, differences
from pbvf_offline.io.formats import digest_of_several
from pbvf_offline.io.strict_json import canonical_json
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Trajectories

_OF_POLICIES: Final = ("theta", "obs_mean", "obs_std")
_OF_EPISODES: Final = ("start", "cut", "seeds")


@dataclass(frozen=True)
class Part:
    """One of several datasets.

    Attributes:
        name: What a user calls it.
        trajectories: Its episodes.
        environment: Their environment, when known.
        digest: By which it is named.
        spaces: Observation and action space as text, when known.
        vouched: Whether it is known that the environment has the module, the arguments and the
            wrappers that it is said to have, and no others.
    """

    name: str
    trajectories: Trajectories
    environment: EnvReference | None
    digest: str
    spaces: tuple[str, str] | None = None
    vouched: bool = True


def join(parts: Sequence[Part]) -> tuple[Trajectories, str]:
    """Return the episodes of several datasets in their order, and the digests that name them.

    Policies that several have are one. Nothing is copied again while the training cache holds
    the result.

    Raises:
        IncompatibleError: They differ in environment, spaces, policy architecture or arrays.
        UsageError: Two of them share episodes.
    """
    for other in parts[1:]:
        if differing := differences(_traits(other), _traits(parts[0])):
            raise IncompatibleError(
                f"it does not fit {parts[0].name}: {differing}",
                where=other.name,
                remedy="give only what has the same environment, spaces and policy architecture",
            )
    _refuse_repeats(parts)
    digest = digest_of_several([part.digest for part in parts])
    key = hashlib.sha256(digest.encode()).hexdigest()
    found = load_cache(key)
    if found is None:
        found = _laid_out([part.trajectories for part in parts])
        if found.tagged and store_cache(key, found):
            found = load_cache(key) or found
    return found, digest


def _laid_out(parts: Sequence[Trajectories]) -> Trajectories:
    with contextlib.suppress(ScratchError):
        if (scratch := scratch_folder()) is not None:
            return _end_to_end(parts, scratch)
    return _end_to_end(parts, None)


def _end_to_end(parts: Sequence[Trajectories], scratch: Path | None) -> Trajectories:
    policies, local = _together([part.policies for part in parts])
    steps = sum(map(len, parts))
    names = [f.name for f in fields(Trajectories) if f.name not in ("policies", *_OF_EPISODES)]
    names = [name for name in names if getattr(parts[0], name) is not None]
    with fresh_columns(scratch) as fresh:
        columns = {name: fresh(getattr(parts[0], name), steps) for name in names}
        for part, own in zip(parts, local, strict=True):
            for _, piece in part.parts():
                for name in names:
                    values = getattr(piece, name)
                    columns[name].extend(own[values] if name == "policy" else values)
        flat: dict[str, Any] = {name: column.done() for name, column in columns.items()}
    lengths = np.concatenate([part.lengths for part in parts])
    return Trajectories(
        policies=policies,
        start=np.concatenate([[0], np.cumsum(lengths)]),
        cut=np.concatenate([part.cut for part in parts]),
        seeds=np.concatenate([part.seeds for part in parts]),
        **flat,
    )


def _together(several: Sequence[Policies]) -> tuple[Policies, list[NDArray[np.int32]]]:
    """Return all policies, each once, and the row of each one of each part; of none it is -1."""
    rows: dict[bytes, int] = {}
    local, kept = [], []
    for policies in several:
        known = len(rows)
        arrays = [getattr(policies, name) for name in _OF_POLICIES]
        own = np.array([rows.setdefault(key, len(rows)) for key in row_keys(*arrays)], np.int32)
        _, first = np.unique(own, return_index=True)
        kept.append(policies.select(np.sort(first[own[first] >= known])))
        local.append(np.append(own, np.int32(-1)))
    joined = (np.concatenate([getattr(p, name) for p in kept]) for name in _OF_POLICIES)
    return Policies(several[0].spec, *joined), local


# ---------------------------------------------------------------- do they fit together


_MERGE: Final = ", or merge them with 'pbvf dataset merge', which leaves copies out"


def _refuse_repeats(parts: Sequence[Part]) -> None:
    """Refuse datasets that share episodes, which would count twice."""
    known: dict[bytes, str] = {}
    for part in parts:
        own = list(_episode_keys(part.trajectories))
        shared = [known[key] for key in own if key in known]
        if shared:
            raise UsageError(
                f"{len(shared)} of its {len(own)} episodes are in {shared[0]} too",
                where=part.name,
                remedy="give what has no episodes in common"
                + _MERGE * all(other.trajectories.tagged for other in parts),
            )
        known |= dict.fromkeys(own, part.name)


def _episode_keys(data: Trajectories) -> Iterator[bytes]:
    """Yield a digest of what tells each episode from others."""
    for _, piece in data.parts():
        for i, (begin, end) in enumerate(zip(piece.start[:-1], piece.start[1:], strict=True)):
            digest = hashlib.blake2b(piece.rewards[begin:end].tobytes(), digest_size=20)
            digest.update(piece.observations[[begin + i, end + i]].tobytes())
            digest.update(piece.actions[begin:end].tobytes())
            digest.update(piece.seeds[i].tobytes())
            if data.tagged:
                digest.update(data.policies.theta[piece.policy[begin]].tobytes())
            yield digest.digest()


def _traits(part: Part) -> dict[str, Any]:
    """Return all that must be equal, by the name it has in messages."""
    data, environment = part.trajectories, part.environment
    spec = data.policies.spec
    of_environment = ("module", "arguments", "time limit", "wrappers", "withheld arguments")
    traits: dict[str, Any] = {
        "environment": "not named" if environment is None else environment.id,
        **dict.fromkeys(of_environment, UNKNOWN),
    }
    if environment is not None:
        kwargs = {k: v for k, v in environment.kwargs.items() if k != "max_episode_steps"}
        traits["arguments"] = canonical_json(kwargs).decode()
        if part.vouched:  # Minari's metadata, all there is without a manifest, know none of these
            traits["module"] = environment.module or "none"
            traits["time limit"] = environment.kwargs.get("max_episode_steps", "the registered one")
            traits["wrappers"] = ", ".join(map(str, environment.wrappers)) or "none"
            traits["withheld arguments"] = ", ".join(environment.withheld) or "none"
    spaces = (UNKNOWN, UNKNOWN) if part.spaces is None else part.spaces
    traits |= zip(("observation space", "action space"), spaces, strict=True)
    return traits | {
        "policies": "known" if data.tagged else "not known",
        **spec.traits,
        "type of stored observations": str(data.observations.dtype),
        "survival bonus": "reported" if data.reward_survive is not None else "not reported",
        "pre-squash actions": "stored" if data.pre_action is not None else "not stored",
    }

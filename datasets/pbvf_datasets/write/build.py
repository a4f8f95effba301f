"""Lay out the files of a finished dataset, from its episodes, in a folder of their own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.card import card_text
from pbvf_datasets.format.croissant import croissant_bytes
from pbvf_datasets.format.manifest import (
    build_manifest,
    file_entry,
    manifest_bytes,
    tool_version,
    versions,
)
from pbvf_datasets.format.schema import (
    CARD_FILE,
    CROISSANT_FILE,
    DATA_FILE,
    FIELDS,
    MANIFEST_FILE,
    METADATA_FILE,
    serialize_space,
)
from pbvf_offline.errors import DivergedError
from pbvf_offline.io.durable import remove_tree, write_durably
from pbvf_offline.io.strict_json import canonical_json
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode

if TYPE_CHECKING:
    import gymnasium as gym


@dataclass(frozen=True)
class DatasetFacts:
    """What is known of a dataset apart from its episodes.

    Attributes:
        dataset_id: ``namespace/name-vN``.
        spec: Architecture of all policies.
        spaces: Of observations and actions.
        identity: What must be equal for the same dataset; goes into the manifest as it is.
        env_spec: For stock Minari, without path-like arguments; None when there is none.
        sources: The datasets that it is made of.
        warmup_steps: Steps run for the normaliser and not stored.
        command: A command line that makes the same dataset, or None.
    """

    dataset_id: str
    spec: PolicySpec
    spaces: tuple[gym.spaces.Box, gym.spaces.Box | gym.spaces.Discrete]
    identity: Mapping[str, Any]
    env_spec: str | None
    sources: Sequence[Any]
    warmup_steps: int
    command: str | None


def lay_out(build: Path, facts: DatasetFacts, episodes: Iterable[Episode]) -> dict[str, Any]:
    """Write all files of a dataset to ``build``, whatever was there, and return the manifest.

    The manifest is written last, when all that it lists is on disk.

    Raises:
        OSError: The disk refuses.
    """
    from pbvf_datasets.write.hdf5 import write_episodes

    remove_tree(build)
    data = build / "data"
    build.mkdir()
    data.mkdir()
    seen = _Seen()
    write_episodes(build / DATA_FILE, seen.watch(episodes), facts.spec)
    provenance = _provenance(facts, seen)
    files = {DATA_FILE: file_entry(build / DATA_FILE)}
    metadata = _metadata(facts, seen, files[DATA_FILE]["size"])
    write_durably(build / METADATA_FILE, metadata)  # syncs the folder of the data too
    files[METADATA_FILE] = file_entry(build / METADATA_FILE)
    card = card_text(
        facts.dataset_id,
        provenance,
        spec=facts.spec,
        returns=seen.returns,
        command=facts.command,
        data_sha256=files[DATA_FILE]["sha256"],
    )
    write_durably(build / CARD_FILE, card.encode("utf-8"), sync=False)
    described = croissant_bytes(facts.dataset_id, provenance, files=files, arrays=seen.arrays)
    write_durably(build / CROISSANT_FILE, described, sync=False)
    manifest = build_manifest(build, provenance, known=files)
    write_durably(build / MANIFEST_FILE, manifest_bytes(manifest))
    return manifest


@dataclass
class _Seen:
    """What the other files tell of all episodes, gathered while they are written."""

    policies: set[bytes] = field(default_factory=set)
    normalisers: set[bytes] = field(default_factory=set)
    arrays: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)  # of whole episodes
    cut: int = 0
    terminated: int = 0

    def watch(self, episodes: Iterable[Episode]) -> Iterator[Episode]:
        for episode in episodes:
            self._add(episode)
            yield episode

    def _add(self, episode: Episode) -> None:
        if not self.arrays:
            for known in FIELDS:
                array = getattr(episode, known.attribute)
                if array is not None:
                    self.arrays[known.name] = (str(array.dtype), array.shape[1:])
        for theta, mean, std in zip(episode.theta, episode.obs_mean, episode.obs_std, strict=True):
            normaliser = mean.tobytes() + std.tobytes()
            self.normalisers.add(_digest(normaliser))
            self.policies.add(_digest(theta.tobytes() + normaliser))
        self.lengths.append(len(episode))
        self.terminated += bool(episode.terminated[-1])
        if episode.cut == "none":
            self.returns.append(total_reward(episode.rewards))
        else:
            self.cut += 1


def _provenance(facts: DatasetFacts, seen: _Seen) -> dict[str, Any]:
    lengths = seen.lengths
    provenance = {
        "tool": tool_version(),
        **facts.identity,
        "versions": versions(),
        "warmup_steps": facts.warmup_steps,
        "stats": {
            "episodes": len(lengths),
            "steps": sum(lengths),
            "policies": len(seen.policies),
            "normalisers": len(seen.normalisers),
            "cut": seen.cut,
            "terminated": seen.terminated,
            "length": {
                "mean": sum(lengths) / len(lengths),
                "min": min(lengths),
                "max": max(lengths),
            },
            "return": return_stats(seen.returns),
        },
        "command": facts.command,
    }
    if facts.sources:
        provenance["sources"] = facts.sources
    return provenance


def _metadata(facts: DatasetFacts, seen: _Seen, size: int) -> bytes:
    """Return ``metadata.json`` as stock Minari wants it."""
    kind = "stochastic" if facts.spec.stochastic else "deterministic"
    metadata: dict[str, Any] = {
        "total_episodes": len(seen.lengths),
        "total_steps": sum(seen.lengths),
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": serialize_space(facts.spaces[0]),
        "action_space": serialize_space(facts.spaces[1]),
        "dataset_id": facts.dataset_id,
        "minari_version": versions()["minari"],
        "dataset_size": round(size / 1e6, 1),
        "algorithm_name": tool_version(),
        "description": f"{len(seen.policies):,} {kind} {facts.spec.arch} policies; infos hold the "
        "parameters that acted at each step.",
    }
    if facts.identity["authors"]:
        metadata["author"] = facts.identity["authors"]
    if facts.env_spec is not None:
        metadata["env_spec"] = facts.env_spec
    return canonical_json(metadata)


def return_stats(returns: Sequence[float]) -> dict[str, float] | None:
    """Return mean, min and max of whole episodes' returns, or None without any."""
    if not returns:
        return None
    # fsum does not depend on the order; halves keep a sum of huge returns finite.
    mean = math.fsum(r / 2 / len(returns) for r in returns) * 2
    return {"mean": mean, "min": min(returns), "max": max(returns)}


def total_reward(rewards: NDArray[np.float64]) -> float:
    """Return the exact sum of rewards (T,): it does not depend on how they lie in memory.

    Raises:
        DivergedError: It is infinite.
    """
    try:
        total = math.fsum(rewards.tolist())
    except OverflowError:
        total = math.inf
    if not math.isfinite(total):
        raise DivergedError("the rewards of an episode add up to infinity")
    return total


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()

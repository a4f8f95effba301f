"""Lay out the files of a finished dataset, from its episodes, in a folder of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
)
from pbvf_datasets.format.spaces import serialize_space
from pbvf_datasets.format.statistics import Tally, total_reward
from pbvf_offline.errors import counted
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
        repeatable: False where an episode came out otherwise when it was played again.
    """

    dataset_id: str
    spec: PolicySpec
    spaces: tuple[gym.spaces.Box, gym.spaces.Box | gym.spaces.Discrete]
    identity: Mapping[str, Any]
    env_spec: str | None
    sources: Sequence[Any]
    warmup_steps: int
    command: str | None
    repeatable: bool


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
        returns=seen.tally.returns,
        command=facts.command,
        data_sha256=files[DATA_FILE]["sha256"],
    )
    write_durably(build / CARD_FILE, card.encode("utf-8"), sync=False)
    described = croissant_bytes(facts.dataset_id, provenance, files=files, arrays=seen.arrays)
    write_durably(build / CROISSANT_FILE, described, sync=False)
    manifest = build_manifest(build, provenance, known=files)
    write_durably(build / MANIFEST_FILE, manifest_bytes(manifest))
    return manifest


class _Seen:
    """What the other files tell of all episodes, gathered while they are written."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.arrays: dict[str, tuple[str, tuple[int, ...]]] = {}

    def watch(self, episodes: Iterable[Episode]) -> Iterator[Episode]:
        for episode in episodes:
            if not self.arrays:
                found = ((field.name, getattr(episode, field.attribute)) for field in FIELDS)
                self.arrays = {n: (str(a.dtype), a.shape[1:]) for n, a in found if a is not None}
            self.tally.add(
                episode.rewards,
                terminated=bool(episode.terminated[-1]),
                cut=episode.cut,
                normalisers=(episode.obs_mean, episode.obs_std),
                theta=episode.theta,
                total=total_reward(episode.rewards),
            )
            yield episode


def _provenance(facts: DatasetFacts, seen: _Seen) -> dict[str, Any]:
    provenance = {
        "tool": tool_version(),
        **facts.identity,
        "versions": versions(),
        "warmup_steps": facts.warmup_steps,
        "stats": seen.tally.stats(),
        "command": facts.command,
    }
    if not facts.repeatable:
        provenance["repeatable"] = False
    if facts.sources:
        provenance["sources"] = facts.sources
    return provenance


def _metadata(facts: DatasetFacts, seen: _Seen, size: int) -> bytes:
    """Return ``metadata.json`` as stock Minari wants it."""
    kind = "stochastic" if facts.spec.stochastic else "deterministic"
    metadata: dict[str, Any] = {
        "total_episodes": len(seen.tally.lengths),
        "total_steps": seen.tally.steps,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": serialize_space(facts.spaces[0]),
        "action_space": serialize_space(facts.spaces[1]),
        "dataset_id": facts.dataset_id,
        "minari_version": versions()["minari"],
        "dataset_size": round(size / 1e6, 1),
        "algorithm_name": tool_version(),
        "description": f"{counted(len(seen.tally.policies), f'{kind} {facts.spec.arch} policy')}; "
        "infos hold the parameters that acted at each step.",
    }
    if facts.identity["authors"]:
        metadata["author"] = facts.identity["authors"]
    if facts.env_spec is not None:
        metadata["env_spec"] = facts.env_spec
    return canonical_json(metadata)

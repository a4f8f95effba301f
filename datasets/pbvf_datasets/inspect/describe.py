"""Describe: what is in a dataset.

A description needs no transitions: counts, settings and versions stand in the manifest, and of
each episode only what is small is read: its rewards, how it ended, the policy tag and the
normalisers. The form of every array is checked, and the values of those that are read. Nothing
that a file names is imported, built or opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.names import resolve_dataset
from pbvf_datasets.format.schema import is_not_repeatable
from pbvf_datasets.format.statistics import Ends, Tally
from pbvf_datasets.read.dataset import folder_environment
from pbvf_datasets.read.folder_episodes import folder_episodes
from pbvf_datasets.read.untrusted import open_folder
from pbvf_offline.policies.spec import PolicySpec

HISTOGRAM_BINS: Final = 10

_SMALL: Final = ("rewards", "terminations", "truncations", "infos/obs_mean", "infos/obs_std")


@dataclass(frozen=True)
class Histogram:
    """How many episodes have a return in which range.

    Attributes:
        edges: bins + 1 ascending numbers, in the reward's unit.
        counts: Episodes in each bin; the last includes its upper edge.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: NDArray[np.float64], bins: int = HISTOGRAM_BINS) -> Histogram:
        """Count finite values, at least one, in bins of equal width between the extremes."""
        low, high = float(values.min()), float(values.max())
        # Halved before the difference is taken, so that huge returns cannot overflow.
        if not high / 2 - low / 2 > 0:
            return cls((low, high), (len(values),))
        part = (values / 2 - low / 2) / (high / 2 - low / 2)
        index = np.minimum((part * bins).astype(np.int64), bins - 1)
        inner = [low / bins * (bins - k) + high / bins * k for k in range(1, bins)]
        return cls((low, *inner, high), tuple(np.bincount(index, minlength=bins).tolist()))


@dataclass(frozen=True)
class Description:
    """What is in a dataset.

    Attributes:
        dataset: Its id as its metadata give it, else the folder's name.
        path: The folder.
        verified: Whether a manifest vouches for its content.
        digest: The manifest's digest; without a manifest, one of the files' hashes.
        lengths: (E,) steps of each episode.
        returns: Undiscounted returns of the whole episodes, in the reward's unit.
        policies: Number of distinct policies.
        segments: Number of stretches in which one policy acts, over all episodes.
        terminated: Episodes whose task ended.
        truncated: Episodes that a time limit or the writer ended.
        cut: Episodes that a step budget cut short.
        spec: Architecture of the policies.
        normalisers: Number of distinct normalisers.
        obs_mean: (obs_dim,) of the normaliser when there is just one.
        obs_std: (obs_dim,) likewise.
        observation_space: In words.
        action_space: In words.
        environment: ``id``, ``module``, ``kwargs`` and ``withheld``, or None.
        provenance: Of the manifest, or None.
        metadata: Minari's.
        sizes: Bytes of each file.
    """

    dataset: str
    path: Path
    verified: bool
    digest: str
    lengths: NDArray[np.int64]
    returns: NDArray[np.float64]
    policies: int
    segments: int
    terminated: int
    truncated: int
    cut: int
    spec: PolicySpec
    normalisers: int
    obs_mean: NDArray[np.float64] | None
    obs_std: NDArray[np.float64] | None
    observation_space: str
    action_space: str
    environment: Mapping[str, Any] | None
    provenance: Mapping[str, Any] | None
    metadata: Mapping[str, Any]
    sizes: Mapping[str, int]

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.lengths)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.lengths.sum())

    @property
    def env(self) -> str | None:
        """The environment as a user would type it."""
        return environment_name(self.environment)

    @property
    def ends(self) -> Ends:
        """How the episodes ended."""
        return Ends(self.episodes, self.terminated, self.cut)

    @property
    def license(self) -> str | None:
        """The licence's identifier, or None when none was given."""
        given = None if self.provenance is None else self.provenance["license"]
        return given if isinstance(given, str) else None

    @property
    def repeatable(self) -> bool | None:
        """False where the same seeds need not give these episodes again, None where nobody knows.

        That is, when an episode was played again, it came out otherwise.
        """
        failed = self.provenance is not None and is_not_repeatable(self.provenance)
        return False if failed else None

    @property
    def histogram(self) -> Histogram | None:
        """Returns of the whole episodes; None when there are none to count."""
        finite = self.returns[np.isfinite(self.returns)]
        return Histogram.of(finite) if finite.size else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        provenance = self.provenance or {}
        histogram, spec = self.histogram, self.spec
        return {
            "dataset": self.dataset,
            "path": os.fspath(self.path),
            "verified": self.verified,
            "digest": self.digest,
            "episodes": self.episodes,
            "steps": self.steps,
            "policies": self.policies,
            "segments": self.segments,
            "ends": self.ends.to_dict(),
            "length": _summary(self.lengths),
            "return": _summary(self.returns),
            "histogram": None
            if histogram is None
            else {"edges": list(histogram.edges), "counts": list(histogram.counts)},
            "policy": {**spec.to_dict(), "arch": spec.arch, "parameters": spec.size},
            "normalisers": self.normalisers,
            "obs_mean": None if self.obs_mean is None else self.obs_mean.tolist(),
            "obs_std": None if self.obs_std is None else self.obs_std.tolist(),
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "env": self.env,
            "env_kwargs": dict((self.environment or {}).get("kwargs", {})),
            "environment": None if self.environment is None else dict(self.environment),
            "license": self.license,
            "authors": provenance.get("authors", self.metadata.get("author")),
            "tool": provenance.get("tool"),
            "versions": provenance.get("versions"),
            "minari_version": self.metadata.get("minari_version"),
            "seed": provenance.get("seed"),
            "repeatable": self.repeatable,
            "settings": provenance.get("settings"),
            "warmup_steps": provenance.get("warmup_steps"),
            "command": provenance.get("command"),
            "sources": [
                {key: source[key] for key in ("id", "digest", "episodes", "steps")}
                for source in provenance.get("sources", ())
            ],
            "provenance": self.provenance,
            "sizes": dict(self.sizes),
            "size": sum(self.sizes.values()),
        }


def environment_name(environment: Mapping[str, Any] | None) -> str | None:
    """Return an environment as a user would type it, ``module:Name-v0`` or the id alone."""
    if environment is None:
        return None
    module = environment["module"]
    return environment["id"] if module is None else f"{module}:{environment['id']}"


def _summary(values: NDArray[Any]) -> dict[str, float] | None:
    if not values.size:
        return None
    mean = float(np.mean(values / 2)) * 2  # halves keep a sum of huge returns finite
    return {"mean": mean, "min": values.min().item(), "max": values.max().item()}


def describe(dataset: str | os.PathLike[str], *, require_manifest: bool = False) -> Description:
    """Return what is in a dataset, without reading its observations and actions.

    Args:
        dataset: A Minari id (``namespace/name-v0``) or the path of a dataset folder.
        require_manifest: Refuse a folder without a manifest instead of warning.

    Raises:
        UsageError: There is no such dataset.
        DamagedError: A file is damaged or contradicts itself.
        UnsafeError: A file could run code, read other files or exhaust the machine, or a
            manifest is required and missing.
        IncompatibleError: A newer format, spaces that are not supported, no policy tags, or
            policies of several architectures.
        ResourceError: A file may not be read.
    """
    path = resolve_dataset(dataset)
    with open_folder(path, require_manifest=require_manifest) as folder:
        provenance = None if folder.manifest is None else folder.manifest["provenance"]
        # With a manifest the number of policies is known; thetas can be large.
        fields = _SMALL if provenance is not None else (*_SMALL, "infos/theta")
        tally = Tally()
        for episode in folder_episodes(folder, fields=fields):
            episode.count_in(tally)
            mean, std = episode.arrays["infos/obs_mean"], episode.arrays["infos/obs_std"]
        one = len(tally.normalisers) == 1
        return Description(
            dataset=folder.id,
            path=path,
            verified=folder.verified,
            digest=folder.digest,
            lengths=np.array(tally.lengths, np.int64),
            returns=np.array(tally.returns),
            policies=len(tally.policies) if provenance is None else provenance["stats"]["policies"],
            segments=tally.segments,
            terminated=tally.terminated,
            truncated=len(tally.lengths) - tally.terminated - tally.cut,
            cut=tally.cut,
            spec=episode.spec,
            normalisers=len(tally.normalisers),
            obs_mean=mean[0] if one else None,
            obs_std=std[0] if one else None,
            observation_space=str(folder.observation_space),
            action_space=str(folder.action_space),
            environment=folder_environment(folder),
            provenance=provenance,
            metadata=folder.metadata,
            sizes=_sizes(path),
        )


def _sizes(path: Path) -> dict[str, int]:
    """Return the bytes of each file of a dataset."""
    sizes = {}
    for folder in (path, path / "data"):
        for entry in sorted(folder.iterdir()):
            status = entry.lstat()
            if stat.S_ISREG(status.st_mode):
                sizes[str(entry.relative_to(path))] = status.st_size
    return sizes

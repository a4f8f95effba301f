"""The inputs of merge, filter and split: opened as untrusted folders, compared, read in turn."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.environment import safe_env_spec, safe_environment
from pbvf_datasets.format.episode_rules import OPTIONAL, DatasetForm, spec_fits_spaces
from pbvf_datasets.format.names import resolve_dataset
from pbvf_datasets.format.schema import METADATA_FILE
from pbvf_datasets.format.spaces import serialize_space
from pbvf_datasets.format.statistics import total_reward
from pbvf_datasets.read.dataset import environment_of
from pbvf_datasets.read.episodes import CheckedEpisode
from pbvf_datasets.read.folder_episodes import folder_episodes
from pbvf_datasets.read.untrusted import open_folder
from pbvf_datasets.write.selection import Facts
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    UNKNOWN,
    DamagedError,
    DivergedError,
    IncompatibleError,
    UsageError,
    differences,
)
from pbvf_offline.io.strict_json import canonical_json, parse_json

if TYPE_CHECKING:
    from pbvf_datasets.read.untrusted_hdf5 import GuardedFile
    from pbvf_offline.policies.spec import PolicySpec

_ENGINES: Final = ("gymnasium", "mujoco")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Source:
    """One input, checked and hashed once; a context manager.

    Its HDF5 file is open only while :meth:`episodes` reads: HDF5 keeps megabytes for each open one.

    Args:
        name: Id or folder.
        root: Folder of datasets.
        require_manifest: Refuse a folder without a manifest.
        untagged: For an input that does not say which policies acted, their architecture; see
            :func:`pbvf_datasets.read.episodes.with_stand_in`.

    Raises:
        IncompatibleError: Such policies cannot act there; and as ``open_folder`` and
            :meth:`episodes`.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        root: Path | None,
        *,
        require_manifest: bool,
        untagged: PolicySpec | None = None,
    ) -> None:
        self.name = os.fspath(name)
        self._untagged = untagged
        self.folder = open_folder(
            resolve_dataset(name, root), require_manifest=require_manifest, keep_mismatches=True
        )
        try:
            if untagged is not None:
                self._check_policies(untagged)
            self._read_small_parts()
            if self.folder.mismatches:
                self.check()  # what is wrong inside tells more than a digest
        except BaseException:
            self.folder.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.close()

    def _check_policies(self, spec: PolicySpec) -> None:
        for problem in spec_fits_spaces(spec, self.folder.spaces):
            what = f"the policies do not fit the dataset: {problem.what}"
            raise IncompatibleError(what, where=self.folder.path)

    def _read_small_parts(self) -> None:
        """Read the first episode's form, and what the files say of origins."""
        folder = self.folder
        self.episode_count, self.step_count = folder.total_episodes, folder.total_steps
        (first,) = self.episodes([0])
        self.spec: PolicySpec = first.spec
        self.form = DatasetForm.of(first.arrays)
        provenance = None if folder.manifest is None else folder.manifest["provenance"]
        self.provenance: dict[str, Any] | None = provenance
        self.id: str = folder.id
        where = str(folder.path / METADATA_FILE)
        try:
            text = folder.metadata.get("env_spec")
            self.env_spec: str | None = None if text is None else safe_env_spec(text)
            self.environment: dict[str, Any] | None = (
                _named_environment(folder.metadata, where, self.time_limit)
                if provenance is None
                else provenance["environment"]
            )
            if self.environment is not None:
                self.environment = safe_environment(self.environment)
        except UsageError as error:
            raise DamagedError(error.what, where=where) from error
        self.license: str | None = None if provenance is None else provenance["license"]
        self.authors: tuple[str, ...] = _authors(folder.metadata, provenance)

    @property
    def time_limit(self) -> object:
        """Steps after which the environment truncates, where the files tell."""
        if self.env_spec is None:
            return None
        return parse_json(self.env_spec, "env_spec", allow_infinity=True).get("max_episode_steps")

    def episodes(self, indices: Sequence[int] | None = None) -> Iterator[CheckedEpisode]:
        """Yield checked episodes; see :func:`pbvf_datasets.read.folder_episodes.folder_episodes`.

        Where one turns out to be bad, all are read, so that the first bad one is named.

        Raises:
            DamagedError: Also when the file is not the one that was hashed any more.
        """
        try:
            with self._reading():
                yield from folder_episodes(self.folder, indices=indices, untagged=self._untagged)
        except (DamagedError, IncompatibleError):
            if indices is not None:
                self.check()
            raise

    def check(self) -> None:
        """Check all episodes.

        Raises:
            DamagedError: One is malformed.
            IncompatibleError: One is not like the first.
        """
        for _ in self.episodes():
            pass

    def short_digests(self) -> NDArray[np.uint64]:
        """Return a number for each episode, equal for equal episodes, from its smaller arrays.

        Raises:
            DamagedError: An array cannot be read, or ``total_steps`` of the metadata is wrong.
        """
        found = np.empty(self.episode_count, np.uint64)
        steps = 0
        try:
            with self._reading() as data:
                root = data.begin()
                for i in range(self.episode_count):
                    group = root.group(b"episode_%d" % i)
                    rewards = group.array(b"rewards").read()
                    theta = group.group(b"infos").array(b"theta").read()
                    digest = hashlib.blake2b(rewards.tobytes() + theta.tobytes(), digest_size=8)
                    found[i] = int.from_bytes(digest.digest(), "little")
                    steps += rewards.size
        except DamagedError:
            self.check()  # what the rules say of it tells more
            raise
        if steps != self.step_count:
            self.check()
        return found

    @contextlib.contextmanager
    def _reading(self) -> Iterator[GuardedFile]:
        try:
            yield self.folder.open_data()
        finally:
            self.folder.close_data()

    def entry(self) -> dict[str, Any]:
        """Return what the manifest of a dataset made of this one holds about it."""
        origin = self.provenance
        made_of = origin["settings"].get("sources") if origin and "sources" in origin else None
        made_of = made_of if isinstance(made_of, list) else []
        return {
            "id": self.id,
            "digest": self.folder.digest,
            "verified": self.folder.verified,
            "episodes": self.episode_count,
            "steps": self.step_count,
            "from": [d for d in made_of if isinstance(d, str) and _SHA256.fullmatch(d)],
            "provenance": None
            if origin is None
            else {k: v for k, v in origin.items() if k not in ("sources", "spec", "known_as")},
        }


def _named_environment(
    metadata: Mapping[str, Any], where: str, limit: object
) -> dict[str, Any] | None:
    """Return the environment of Minari's metadata with its time limit, if it is not the usual."""
    from gymnasium.envs.registration import registry

    environment = environment_of(metadata, where)
    if environment is None or type(limit) is not int or environment["id"] not in registry:
        return environment
    if registry[environment["id"]].max_episode_steps != limit:
        environment["kwargs"] = {**environment["kwargs"], "max_episode_steps": limit}
    return environment


def _authors(metadata: Mapping[str, Any], provenance: Mapping[str, Any] | None) -> tuple[str, ...]:
    named = metadata.get("author") if provenance is None else provenance["authors"]
    if isinstance(named, str):
        named = [named]
    if not isinstance(named, list):
        return ()
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str)))


def read_facts(source: Source) -> Facts:
    """Read and check all episodes of an input, chosen or not."""
    rows: dict[bytes, int] = {}
    found: list[tuple[int, float, bool, bool, int]] = []
    policies: list[list[int]] = []
    for episode in source.episodes():
        with infinite_return_is_damage(source, episode):
            total = total_reward(episode.arrays["rewards"])
        seed = -1 if episode.seed is None else episode.seed
        ended = bool(episode.arrays["terminations"][-1])
        found.append((len(episode), total, ended, episode.cut != "none", seed))
        policies.append([rows.setdefault(key, len(rows)) for key in episode.policy_keys()])
    steps, returns, terminated, cut, seeds = zip(*found, strict=True)
    return Facts(
        np.array(steps, np.int64),
        np.array(returns, np.float64),
        np.array(terminated, np.bool_),
        np.array(cut, np.bool_),
        np.array(seeds, np.int64),
        policies,
    )


@contextlib.contextmanager
def infinite_return_is_damage(source: Source, episode: CheckedEpisode) -> Iterator[None]:
    """Name the episode of an input whose rewards add up to infinity.

    Raises:
        DamagedError: They do.
    """
    try:
        yield
    except DivergedError as error:
        where = f"{source.folder.data_file}: episode_{episode.index}"
        raise DamagedError(error.what, where=where) from error


# ---------------------------------------------------------------- do they fit together


def check_compatible(sources: Sequence[Source]) -> None:
    """Check that episodes of all inputs can stand in one dataset.

    Raises:
        IncompatibleError: They cannot; the message names all that differs from the first.
    """
    first = sources[0]
    for other in sources[1:]:
        if differing := differences(_traits(other), _traits(first)):
            raise IncompatibleError(
                f"it does not fit {first.name}: {differing}",
                where=other.name,
                remedy="merge only what has the same environment, spaces and policy architecture",
            )


def _traits(source: Source) -> dict[str, Any]:
    """Return all that must be equal, by the name it has in messages."""
    spec, environment = source.spec, source.environment
    traits: dict[str, Any] = {"environment": "not named" if environment is None else None}
    for name in ("module", "arguments", "withheld arguments", "wrappers", "time limit"):
        traits[name] = UNKNOWN
    if environment is not None:
        kwargs = {k: v for k, v in environment["kwargs"].items() if k != "max_episode_steps"}
        traits["environment"] = environment["id"]
        traits["arguments"] = canonical_json(kwargs).decode()
        if source.env_spec is not None:
            traits["time limit"] = source.time_limit
    if environment is not None and source.provenance is not None:
        # Minari's metadata, all there is without a manifest, know none of these.
        traits["module"] = environment["module"] or "none"
        wrappers = EnvReference.from_dict(environment, "environment").wrappers
        traits["wrappers"] = ", ".join(map(str, wrappers)) or "none"
        traits["withheld arguments"] = _withheld(source, environment)
    traits["observation space"] = serialize_space(source.folder.observation_space)
    traits["action space"] = serialize_space(source.folder.action_space)
    traits |= spec.traits
    traits["type of stored observations"] = str(source.form.obs_dtype)
    for name in OPTIONAL:
        traits[f"array {name}"] = "present" if name in source.form.optional else "absent"
    return traits


def _withheld(source: Source, environment: Mapping[str, Any]) -> str:
    """Return the names of arguments that no file holds, and digests that tell values apart."""
    names = environment["withheld"]
    if not names or source.provenance is None:
        return "none" if not names else ", ".join(names)
    origins = [source.provenance]
    origins += [e["provenance"] or {} for e in source.provenance.get("sources", [])]
    settings = [origin.get("settings", {}) for origin in origins]
    digests = sorted({s["env_kwargs"] for s in settings if isinstance(s.get("env_kwargs"), str)})
    return f"{', '.join(names)} ({', '.join(d[:16] for d in digests)})"


def common_license(sources: Sequence[Source]) -> str | None:
    """Return the licence that all inputs have.

    Raises:
        UsageError: They differ; having none differs from having one.
    """
    by_license: dict[str | None, str] = {}
    for source in sources:
        by_license.setdefault(source.license, source.name)
    if len(by_license) > 1:
        found = ", ".join(f"{name}: {given or 'none'}" for given, name in by_license.items())
        raise UsageError(
            f"the licences of the inputs differ ({found})",
            where="--license",
            remedy="give one that all of them permit",
        )
    return next(iter(by_license))


def version_notes(sources: Sequence[Source]) -> Iterator[str]:
    """Yield a sentence for each engine of which the data were collected with several versions."""
    for engine in _ENGINES:
        found: set[str] = set()
        for entry in input_history(sources):
            versions = {} if entry["provenance"] is None else entry["provenance"]["versions"]
            if not entry["from"] and isinstance(versions.get(engine), str):
                found.add(versions[engine])
        if len(found) > 1:
            yield f"the inputs were collected with different versions of {engine}: " + ", ".join(
                sorted(found)
            )


def input_history(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Return the inputs and all that they were made of, each once, the earliest first."""
    entries: dict[str, dict[str, Any]] = {}
    for source in sources:
        older = [] if source.provenance is None else source.provenance.get("sources", [])
        for entry in (*older, source.entry()):
            entries.setdefault(entry["digest"], entry)
    # What an input says of itself goes before what another one says of it.
    entries.update({source.folder.digest: source.entry() for source in sources})
    return list(entries.values())

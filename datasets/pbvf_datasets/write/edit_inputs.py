"""The inputs of merge, filter and split: opened through the door, compared, read in turn."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.checks import EpisodeChecker, show
from pbvf_datasets.format.environment import safe_env_spec, safe_environment
from pbvf_datasets.format.schema import (
    BLOB,
    FIELDS,
    METADATA_FILE,
    resolve_dataset,
    serialize_space,
)
from pbvf_datasets.read.assemble import Assembler, check_spec, check_tags, read_episode
from pbvf_datasets.read.dataset import check_names, environment_of, episode_arrays
from pbvf_datasets.read.untrusted import open_suspect
from pbvf_datasets.write.selection import Facts
from pbvf_offline.errors import (
    DamagedError,
    DivergedError,
    IncompatibleError,
    PbvfError,
    UsageError,
)
from pbvf_offline.io.strict_json import canonical_json, parse_json
from pbvf_offline.rollout.episodes import Episode

if TYPE_CHECKING:
    from pbvf_datasets.read.untrusted_hdf5 import GuardedFile, GuardedGroup
    from pbvf_offline.policies.spec import PolicySpec

_ENGINES: Final = ("gymnasium", "mujoco")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_OPTIONAL: Final = tuple(field for field in FIELDS if not field.required)


class Source:
    """One input, checked and hashed once; a context manager.

    Its HDF5 file is open only inside :meth:`reading`: HDF5 keeps megabytes for each open one.

    Args:
        name: Id or folder.
        root: Folder of datasets.
        require_manifest: Refuse a folder without a manifest.
    """

    def __init__(
        self, name: str | os.PathLike[str], root: Path | None, *, require_manifest: bool
    ) -> None:
        self.name = os.fspath(name)
        self.folder = open_suspect(resolve_dataset(name, root), require_manifest=require_manifest)
        try:
            self._look()
            if self.folder.mismatch is not None:
                read_facts(self)  # what is wrong inside tells more than a digest
                with self.reading():
                    raise self.folder.mismatch
        except BaseException:
            self.folder.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.folder.close()

    def _look(self) -> None:
        """Read what is small: counts, the first episode's form, what the files say of origins."""
        folder = self.folder
        self.episodes, self.steps = folder.total_episodes, folder.total_steps
        self._identity = _identity(folder.data_file)
        with self.reading() as data:
            if self.episodes == 0:
                raise DamagedError("it holds no episode", where=folder.data_file)
            first = data.first()
            self.spec: PolicySpec = first[0]
            spaces = (folder.observation_space, folder.action_space)
            check_spec(self.spec, *spaces, f"{folder.data_file}: episode_0/{BLOB}")
            self.obs_dtype: str = str(first[1].observations.dtype)
            self.optional = tuple(
                f.name for f in _OPTIONAL if getattr(first[1], f.attribute) is not None
            )
        with self.reading() as data:
            steps = sum(data.total_steps(i) for i in range(self.episodes))
        if steps != self.steps:
            with self.reading() as data:
                for i in range(self.episodes):
                    data.episode(i)  # one may be wrong about itself: that is closer to the truth
                raise DamagedError(
                    f"its total_steps is {self.steps:,}, but the episodes have {steps:,} steps",
                    where=folder.path / METADATA_FILE,
                )
        provenance = None if folder.manifest is None else folder.manifest["provenance"]
        self.provenance: dict[str, Any] | None = provenance
        where = str(folder.path / METADATA_FILE)
        given = folder.metadata.get("dataset_id")
        self.id: str = given if isinstance(given, str) else folder.path.name
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

    @contextlib.contextmanager
    def reading(self) -> Iterator[Reader]:
        """Open the HDF5 file for one pass, in which each episode is read at most once.

        Raises:
            DamagedError: It is not the file that was hashed any more.
        """
        data = self.folder.open_data()
        try:
            if _identity(self.folder.data_file) != self._identity:
                raise DamagedError(
                    "the file changed while it was being read", where=self.folder.data_file
                )
            yield Reader(self, data)
        except DamagedError:
            data.walk()  # a file that is dangerous elsewhere is reported as that
            raise
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
            "episodes": self.episodes,
            "steps": self.steps,
            "from": [d for d in made_of if isinstance(d, str) and _SHA256.fullmatch(d)],
            "provenance": None
            if origin is None
            else {k: v for k, v in origin.items() if k not in ("sources", "spec")},
        }


def _identity(path: Path) -> tuple[int, int, int, int]:
    info = path.stat()
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


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


class Reader:
    """The open HDF5 file of one input, an episode at a time."""

    def __init__(self, source: Source, data: GuardedFile) -> None:
        self._source = source
        self._data = data
        self._root = data.begin()
        check_names(source.folder, self._root)

    def _group(self, i: int) -> GuardedGroup:
        return self._root.group(b"episode_%d" % i)

    def _where(self, i: int) -> Callable[[str], str]:
        def where(name: str) -> str:
            return self._data.where(f"episode_{i}/{name}" if name else f"episode_{i}")

        return where

    def total_steps(self, i: int) -> int:
        """Return what an episode says about its own length."""
        total = self._group(i).integer(b"total_steps")
        if total is None:
            raise DamagedError("it has no attribute total_steps", where=self._where(i)(""))
        return total

    def first(self) -> tuple[PolicySpec, Episode]:
        """Return the first episode and its policies' architecture."""
        return self._read(0)

    def episode(self, i: int) -> Episode:
        """Return an episode as it is stored, after checks of its form.

        Raises:
            DamagedError: It is malformed.
            IncompatibleError: It is not like the first one.
        """
        source = self._source
        try:
            spec, episode = self._read(i)
        except DamagedError as error:
            raise self.wrong(i, error) from error
        optional = tuple(f.name for f in _OPTIONAL if getattr(episode, f.attribute) is not None)
        flags = episode.terminated.view(np.uint8) | episode.truncated.view(np.uint8)
        if (
            spec != source.spec
            or str(episode.observations.dtype) != source.obs_dtype
            or optional != source.optional
            or flags.max() > 1
        ):
            raise self.wrong(i)
        return episode

    def _read(self, i: int) -> tuple[PolicySpec, Episode]:
        where = self._where(i)
        group = self._group(i)
        arrays = episode_arrays(group)
        check_tags(arrays, where)
        total = group.integer(b"total_steps")
        spec, episode = read_episode(arrays, group.integer(b"seed"), where)
        if total != len(episode):
            raise DamagedError(
                f"its total_steps is {total}, but it has {len(episode)} rewards", where=where("")
            )
        return spec, episode

    def likeness(self, i: int) -> int:
        """Return a number that is equal for equal episodes, from their smaller arrays."""
        group = self._group(i)
        digest = hashlib.blake2b(digest_size=8)
        digest.update(group.array(b"rewards").read().tobytes())
        digest.update(group.group(b"infos").array(b"theta").read().tobytes())
        return int.from_bytes(digest.digest(), "little")

    def wrong(self, i: int, error: PbvfError | None = None) -> PbvfError:
        """Return what is wrong with an episode, in the words of the reader of whole datasets.

        Args:
            i: The episode, which has failed a quicker check.
            error: What that check said.
        """
        folder = self._source.folder
        assembler = Assembler(str(folder.data_file), folder.observation_space, folder.action_space)
        try:
            self._data.forget()
            for k in dict.fromkeys((0, i)):
                group = self._group(k)
                total, seed = group.integer(b"total_steps"), group.integer(b"seed")
                assembler.add(f"episode_{k}", episode_arrays(group), total_steps=total, seed=seed)
            assembler.finish()
        except (DamagedError, IncompatibleError) as found:
            return found
        what = "it does not fit the format" if error is None else error.what
        return DamagedError(what, where=self._where(i)(""))


def read_facts(source: Source) -> Facts:
    """Read and check all episodes of an input, chosen or not."""
    folder = source.folder
    checker = EpisodeChecker(source.spec, (folder.observation_space, folder.action_space))
    rows: dict[bytes, int] = {}
    found: list[tuple[int, float, bool, bool, int]] = []
    policies: list[list[int]] = []
    with source.reading() as data:
        for i in range(source.episodes):
            episode = data.episode(i)
            try:
                checker.check(episode, "episode")
                total = _total(episode)
            except (UsageError, DivergedError) as error:
                raise data.wrong(i, error) from error
            seed = -1 if episode.seed is None else episode.seed
            ended = bool(episode.terminated[-1])
            found.append((len(episode), total, ended, episode.cut != "none", seed))
            policies.append([rows.setdefault(key, len(rows)) for key in _policy_keys(episode)])
    steps, returns, terminated, cut, seeds = zip(*found, strict=True)
    return Facts(
        np.array(steps, np.int64),
        np.array(returns, np.float64),
        np.array(terminated, np.bool_),
        np.array(cut, np.bool_),
        np.array(seeds, np.int64),
        policies,
    )


def _total(episode: Episode) -> float:
    try:
        return math.fsum(episode.rewards.tolist())
    except OverflowError as error:
        raise DivergedError(
            "the rewards of an episode add up to infinity", where="rewards"
        ) from error


def _policy_keys(episode: Episode) -> Iterator[bytes]:
    for parts in zip(episode.theta, episode.obs_mean, episode.obs_std, strict=True):
        yield hashlib.blake2b(b"".join(p.tobytes() for p in parts), digest_size=16).digest()


# ----------------------------------------------------------------------- do they fit at all


def check_compatible(sources: Sequence[Source]) -> None:
    """Check that episodes of all inputs can stand in one dataset.

    Raises:
        IncompatibleError: They cannot; the message names all that differs from the first.
    """
    first = sources[0]
    for other in sources[1:]:
        differences = list(_differences(first, other))
        if differences:
            raise IncompatibleError(
                f"it does not fit {first.name}: {'; '.join(differences)}",
                where=other.name,
                remedy="merge only what has the same environment, spaces and policy architecture",
            )


def _differences(one: Source, other: Source) -> Iterator[str]:
    sides = [_traits(one), _traits(other)]
    for name in sides[0]:
        a, b = (side[name] for side in sides)
        if a is not _UNKNOWN and b is not _UNKNOWN and a != b:
            yield f"{name} {show(b)} against {show(a)}"


_UNKNOWN: Final = object()


def _traits(source: Source) -> dict[str, Any]:
    """Return all that must be equal, by the name it has in messages."""
    spec, environment = source.spec, source.environment
    traits: dict[str, Any] = {"environment": "not named" if environment is None else None}
    for name in ("module", "arguments", "withheld arguments", "time limit"):
        traits[name] = _UNKNOWN
    if environment is not None:
        kwargs = {k: v for k, v in environment["kwargs"].items() if k != "max_episode_steps"}
        traits["environment"] = environment["id"]
        traits["arguments"] = canonical_json(kwargs).decode()
        if source.env_spec is not None:
            traits["time limit"] = source.time_limit
    if environment is not None and source.provenance is not None:
        # Minari's metadata, all there is without a manifest, know neither of these.
        traits["module"] = environment["module"]
        traits["withheld arguments"] = _withheld(source, environment)
    traits["observation space"] = serialize_space(source.folder.observation_space)
    traits["action space"] = serialize_space(source.folder.action_space)
    traits["architecture"] = spec.arch
    traits["squash"] = spec.squash
    traits["stochastic"] = spec.stochastic
    traits["policy's actions"] = str(spec.actions)
    traits["type of stored observations"] = source.obs_dtype
    for field in _OPTIONAL:
        traits[f"array {field.name}"] = "present" if field.name in source.optional else "absent"
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
        for entry in ledger(sources):
            versions = {} if entry["provenance"] is None else entry["provenance"]["versions"]
            if not entry["from"] and isinstance(versions.get(engine), str):
                found.add(versions[engine])
        if len(found) > 1:
            yield f"the inputs were collected with different versions of {engine}: " + ", ".join(
                sorted(found)
            )


def ledger(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Return the inputs and all that they were made of, each once, the earliest first."""
    entries: dict[str, dict[str, Any]] = {}
    for source in sources:
        older = [] if source.provenance is None else source.provenance.get("sources", [])
        for entry in (*older, source.entry()):
            entries.setdefault(entry["digest"], entry)
    # What an input says of itself goes before what another one says of it.
    entries.update({source.folder.digest: source.entry() for source in sources})
    return list(entries.values())


# ------------------------------------------------------------------------------ duplicates


def repeats(sources: Sequence[Source]) -> list[set[int]]:
    """Return the episodes of each input that another input has too and that are left out.

    Rewards and parameters are looked at first; only where both are equal, all arrays are.
    """
    left_out: list[set[int]] = [set() for _ in sources]
    suspects = _alike(sources)
    groups: dict[bytes, list[tuple[int, int, int | None]]] = {}
    for s, source in enumerate(sources):
        rows = np.flatnonzero(suspects[s]).tolist()
        if not rows:
            continue
        try:
            with source.reading() as data:
                for i in rows:
                    episode = data.episode(i)
                    groups.setdefault(_content(episode), []).append((s, i, episode.seed))
        except (DamagedError, IncompatibleError):
            read_facts(source)  # an earlier episode may be bad too, and comes first
            raise
    for group in groups.values():
        for s, i in _surplus(group):
            left_out[s].add(i)
    return left_out


def _alike(sources: Sequence[Source]) -> list[NDArray[np.bool_]]:
    """Return for each input which episodes look like one of another input."""
    keys = []
    for source in sources:
        with source.reading() as data:
            keys.append(
                np.fromiter(
                    (data.likeness(i) for i in range(source.episodes)), np.uint64, source.episodes
                )
            )
    every = np.concatenate(keys)
    owner = np.repeat(np.arange(len(sources)), [len(k) for k in keys])
    values, row = np.unique(every, return_inverse=True)
    low, high = np.full(len(values), len(sources)), np.full(len(values), -1)
    np.minimum.at(low, row, owner)
    np.maximum.at(high, row, owner)
    shared = (low < high)[row]
    return np.split(shared, np.cumsum([len(k) for k in keys])[:-1])


def _content(episode: Episode) -> bytes:
    """Return a digest of all of an episode but its seed."""
    digest = hashlib.blake2b(episode.cut.encode(), digest_size=20)
    for field in FIELDS:
        array = getattr(episode, field.attribute)
        if array is not None:
            digest.update(canonical_json([field.name, array.dtype.str, list(array.shape)]))
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


def _surplus(group: Sequence[tuple[int, int, int | None]]) -> Iterator[tuple[int, int]]:
    """Yield which of equal episodes to leave out, so that no two inputs bring the same one.

    An episode matches one of an earlier input with the same seed, or either has none; of such
    a pair the one with a seed stays. Inside one input, equal episodes never match.

    Args:
        group: ``(input, episode, seed)`` of episodes with equal content, inputs in order.
    """
    kept: dict[int | None, list[tuple[int, int]]] = {}
    for s in dict.fromkeys(entry[0] for entry in group):
        free = Counter({seed: len(places) for seed, places in kept.items()})
        anyone = list(free.elements())
        new: list[tuple[int | None, tuple[int, int]]] = []
        own = [entry for entry in group if entry[0] == s]
        for _, i, seed in sorted(own, key=lambda entry: entry[2] is None):
            match = seed if free[seed] else None
            if not free[match] and seed is None:
                while anyone and not free[anyone[-1]]:
                    anyone.pop()
                match = anyone[-1] if anyone else None
            if not free[match]:
                new.append((seed, (s, i)))
                continue
            free[match] -= 1
            if match is None and seed is not None:
                yield kept[None].pop(0)
                new.append((seed, (s, i)))
            else:
                yield s, i
        for seed, place in new:
            kept.setdefault(seed, []).append(place)

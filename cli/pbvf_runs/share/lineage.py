"""What things were made from, by digest: a policy's critic, a critic's model and dataset, a run.

Every file names what it was made from by a digest, and nobody keeps a list. So of things that are
given together it can be said which was made from which, and what is not among them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pbvf_offline.errors import PbvfError
from pbvf_offline.io.formats import each_digest
from pbvf_offline.io.reading import file_digest
from pbvf_runs.records import POLICY_FILE, StoredConfig, StoredResult
from pbvf_runs.share.kinds import kind_of

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_DATA: Final = ("dataset", "run")
ORIGINS: Final = {
    "critic": ("grown through", ("critic",)),
    "run": ("trained in", ("run",)),
    "started_from": ("climbed on from", ("policies",)),
    "taken_from": ("chosen from", ("policies", *_DATA)),
    "states_from": ("states from", _DATA),
    "imagined_in": ("judged in", ("model",)),
    "model": ("judged in", ("model",)),
    "sources": ("imported from", ("weights",)),
}
"""What the origin of a policies file says, in words, and what each may be."""


@dataclass(frozen=True)
class Source:
    """What something was made from.

    Attributes:
        relation: How, in words.
        digest: By which it is named.
        kinds: What it may be.
    """

    relation: str
    digest: str
    kinds: tuple[str, ...]

    @property
    def what(self) -> str:
        """What it may be, in words, and the digest by which it is named."""
        return f"{' or '.join(self.kinds)} {self.digest}"


@dataclass(frozen=True)
class Thing:
    """One thing that can be made from others, or others from it.

    Attributes:
        name: What to call it.
        kind: What it is.
        path: Where it is.
        bundle: Which bundle it is a part of, or None.
    """

    name: str
    kind: str
    path: Path
    bundle: str | None = None

    def record(self) -> dict[str, Any]:
        """Return what it says of what it was made from, and of a critic its own kind.

        Raises:
            PbvfError: It cannot be read.
        """
        read = _RECORDS.get(self.kind)
        return {} if read is None else read(self.path)

    def digests(self) -> set[str]:
        """Return the digests by which others name it.

        Raises:
            PbvfError: It cannot be read.
        """
        if self.kind == "dataset":
            return set(_dataset_digests(self.path))
        if self.kind == "run":
            return set(_run_digests(self.path))
        return {file_digest(self.path)}


@dataclass(frozen=True)
class Tie:
    """One thing and something that it was made from.

    Attributes:
        name: The thing.
        kind: What it is.
        source: What it was made from.
        found: Which of the others that is, or None.
        fits: False where others of its kind are given, and none of what it was made from in this
            way is among them. What is shared in
            one bundle need not be of each other.
        shown: The thing's name for people: of a critic with its kind, which a name need not tell.
        found_shown: The same of what was found.
    """

    name: str
    kind: str
    source: Source
    found: str | None
    fits: bool
    shown: str
    found_shown: str | None


def things(name: str) -> list[Thing]:
    """Return what an id or path names: itself, or the parts of a bundle, or each of several runs.

    Raises:
        UsageError: There is nothing, or it is a part of something else.
    """
    from pbvf_datasets.format.bundle import parse_bundle, parts_of
    from pbvf_datasets.format.manifest import read_plain
    from pbvf_datasets.format.schema import MANIFEST_FILE
    from pbvf_runs.data import runs_in

    kind, path = kind_of(name)
    if kind == "bundle":
        where = path / MANIFEST_FILE
        parts = parts_of(parse_bundle(read_plain(where), where))
        return [Thing(str(path / part.name), part.kind, path / part.name, name) for part in parts]
    if kind == "runs":
        return [Thing(str(run), "run", run) for run in runs_in(path)]
    return [Thing(name, kind, path)]


def lineage(given: Sequence[Thing]) -> list[Tie]:
    """Return what each of several things was made from, and which of the others that is.

    Raises:
        PbvfError: One cannot be read.
    """
    known = {digest: thing.name for thing in given for digest in thing.digests()}
    records = [thing.record() for thing in given]
    met = {  # of several datasets one is enough
        thing.name: {s.relation for s in sources_of(thing.kind, record) if s.digest in known}
        for thing, record in zip(given, records, strict=True)
    }
    shown = {
        thing.name: f"{thing.name} ({record['critic']})" if "critic" in record else thing.name
        for thing, record in zip(given, records, strict=True)
    }
    return [
        Tie(
            thing.name,
            thing.kind,
            source,
            known.get(source.digest),
            source.digest in known
            or (source.relation in met[thing.name])
            or not _others(thing, given) & set(source.kinds),
            shown[thing.name],
            shown.get(known.get(source.digest, "")),
        )
        for thing, record in zip(given, records, strict=True)
        for source in sources_of(thing.kind, record)
    ]


def _others(thing: Thing, given: Sequence[Thing]) -> set[str]:
    """Return of which kinds those are that one thing could be expected to be made from."""
    return {
        other.kind
        for other in given
        if other.kind != thing.kind and (other.bundle is None or other.bundle != thing.bundle)
    }


# ------------------------------------------------------------------------------- sources


def sources_of(kind: str, record: Mapping[str, Any]) -> list[Source]:
    """Return what something was made from, by what ``pbvf info`` tells of it.

    Args:
        kind: What it is.
        record: Of a critic ``dataset`` and ``model``; of a model ``dataset``; of policies
            ``origin``; of a dataset ``provenance``; of a run ``base``.
    """
    find = _SOURCES.get(kind)
    return [] if find is None else list(dict.fromkeys(find(record)))


def _of_critic(record: Mapping[str, Any]) -> Iterator[Source]:
    yield from _all_named("fitted to", record["dataset"])
    yield from _named("imagined in", record["model"], ("model",))


def _of_model(record: Mapping[str, Any]) -> Iterator[Source]:
    yield from _all_named("learned from", record["dataset"])


def _of_policies(record: Mapping[str, Any]) -> Iterator[Source]:
    origin = record["origin"]
    for name, (relation, kinds) in ORIGINS.items():
        value = origin.get(name)
        # Policies that were taken from others were there before the critic was asked.
        ranked = name == "critic" and "taken_from" in origin
        for digest in value if isinstance(value, list) else [value]:
            yield from _named("ranked by" if ranked else relation, digest, kinds)


def _of_dataset(record: Mapping[str, Any]) -> Iterator[Source]:
    provenance = record["provenance"]
    if provenance is None:
        return
    settings = provenance["settings"]
    sources = settings.get("sources")
    for digest in sources if isinstance(sources, list) else ():
        yield from _named("made from", digest, ("dataset",))
    acted = "tagged with" if settings.get("operation") == "tag" else "rolls out"
    for name, relation in (("base", "perturbs"), ("policies", acted)):
        yield from _named(relation, settings.get(name), ("policies",))
    yield from _named("episodes of", _exporting_run(provenance), ("run",))


def _of_run(record: Mapping[str, Any]) -> Iterator[Source]:
    yield from _named("started from", record["base"], ("policies",))


_SOURCES: Final = {
    "critic": _of_critic,
    "model": _of_model,
    "policies": _of_policies,
    "dataset": _of_dataset,
    "run": _of_run,
}


def _named(relation: str, digest: Any, kinds: tuple[str, ...]) -> Iterator[Source]:
    """Yield a source, if what a file says is a digest: anything may stand there."""
    if isinstance(digest, str) and _DIGEST.fullmatch(digest):
        yield Source(relation, digest, kinds)


def _all_named(relation: str, dataset: str) -> Iterator[Source]:
    for digest in each_digest(dataset):
        yield from _named(relation, digest, _DATA)


def _exporting_run(provenance: Mapping[str, Any]) -> str | None:
    """Return the digest of the run whose episodes a dataset holds, if it was exported from one."""
    from pbvf_runs.export import is_exported

    if not is_exported(provenance):
        return None
    own = ("made by", "steps", "version")
    settings = {key: value for key, value in provenance["settings"].items() if key not in own}
    steps = provenance["settings"].get("steps")
    with contextlib.suppress(PbvfError):
        if type(steps) is int:
            return StoredConfig.from_dict(settings, "settings").source(steps)
    return None


# -------------------------------------------------------------------------------- records


def _critic(path: Path) -> dict[str, Any]:
    from pbvf_offline.fit.critic_file import load_critic

    file = load_critic(path)
    model = None if file.imagined is None else file.imagined.model
    kind = file.critic.kind.name
    return {"critic": kind, "dataset": file.context.dataset, "model": model}


def _model(path: Path) -> dict[str, Any]:
    from pbvf_offline.models.model_file import load_model

    return {"dataset": load_model(path).dataset}


def _policies(path: Path) -> dict[str, Any]:
    from pbvf_offline.policies.files import load_policies

    return {"origin": load_policies(path).origin}


def _dataset(path: Path) -> dict[str, Any]:
    from pbvf_datasets.read.untrusted import open_folder

    with open_folder(path, warn=False) as folder:
        manifest = folder.manifest
    return {"provenance": None if manifest is None else manifest["provenance"]}


def _run(path: Path) -> dict[str, Any]:
    from pbvf_runs.data import run_config

    return {"base": run_config(path).base}


_RECORDS: Final = {
    "critic": _critic,
    "model": _model,
    "policies": _policies,
    "dataset": _dataset,
    "run": _run,
}


# -------------------------------------------------------------------------------- digests


def _dataset_digests(path: Path) -> Iterator[str]:
    from pbvf_datasets import load_dataset
    from pbvf_datasets.format.manifest import known_as
    from pbvf_datasets.read.untrusted import open_folder
    from pbvf_offline.envs.reference import EnvReference
    from pbvf_runs.data import episodes_digest
    from pbvf_runs.export import is_exported

    with open_folder(path, warn=False) as folder:
        yield folder.digest
        manifest = folder.manifest
    if manifest is None:
        return
    yield from known_as(manifest)  # licence or authors were set after it was used
    if is_exported(manifest["provenance"]):
        data = load_dataset(path)  # what is fitted to it names its episodes, as of the run
        if data.environment is not None:
            environment = EnvReference.from_dict(data.environment, str(path))
            yield episodes_digest(data.trajectories, environment)


def _run_digests(path: Path) -> Iterator[str]:
    from pbvf_runs.data import load_run, run_config

    config, result = run_config(path), StoredResult.read(path)
    if result is not None:
        yield config.source(result.steps)
        yield from result.files.values()  # its critic and its policy
    stem = POLICY_FILE.partition(".")[0]
    for snapshot in path.glob(f"{stem}-*.safetensors"):
        steps = snapshot.name.removeprefix(f"{stem}-").partition(".")[0]
        if steps.isascii() and steps.isdecimal():
            yield config.source(int(steps))
    with contextlib.suppress(PbvfError):  # it keeps no episodes, or none is finished
        yield load_run(path).digest

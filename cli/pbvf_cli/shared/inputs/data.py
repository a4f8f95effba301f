"""What commands learn from: a dataset, or the episodes of a training run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pbvf_offline.errors import (
    DivergedError,
    IncompatibleError,
    PbvfError,
    UnsafeError,
    UsageError,
    naming,
)

if TYPE_CHECKING:
    from pbvf_cli.shared.settings import SettingsTable
    from pbvf_offline.envs.reference import EnvReference
    from pbvf_offline.rollout.episodes import Trajectories


_FROM_DATASET: Final = {
    "policies": "'pbvf policies export DATASET --out FILE' makes one of its policies",
    "critic": "'pbvf fit-critic' makes one of it",
    "model": "'pbvf fit-model' makes one of it",
}


@dataclass(frozen=True)
class Data:
    """Policy-tagged episodes to learn from.

    Attributes:
        trajectories: The episodes.
        environment: Their environment, when known.
        digest: Digest of the dataset; of a run, and of a dataset exported from one, that of its
            episodes; of several, those of all.
        manifest: Digest of a dataset's manifest; None for a run.
        spaces: Observation and action space of a dataset as text.
        vouched: Whether a manifest, or a run, says what the environment is.
    """

    trajectories: Trajectories
    environment: EnvReference | None
    digest: str
    manifest: str | None = None
    spaces: tuple[str, str] | None = None
    vouched: bool = True

    def digest_in(self, out: Path) -> str:
        """Return the digest by which what is fitted to the data at ``out`` is to name them.

        A file begun when datasets exported from a run were named by their manifest goes on so.
        """
        from pbvf_offline.io.output_file import partial_path
        from pbvf_offline.io.reading import open_regular
        from pbvf_offline.io.strict_json import parse_json
        from pbvf_offline.io.tensor_file import read_header

        for path in (partial_path(out), out):
            with contextlib.suppress(PbvfError, OSError, LookupError, TypeError):
                with open_regular(path) as file:
                    entry = parse_json(read_header(file, path)["__metadata__"]["pbvf"], path)
                if entry["content"]["dataset"] == self.manifest:
                    return str(self.manifest)
        return self.digest

    @property
    def env_id(self) -> str | None:
        """The environment's id, when known."""
        return None if self.environment is None else self.environment.id

    @property
    def env_name(self) -> str | None:
        """The environment as a user would type it, with its module; None when not known."""
        return None if self.environment is None else self.environment.name

    @property
    def counts(self) -> dict[str, int]:
        """What a result says of the data."""
        return {
            "data_episodes": self.trajectories.episodes,
            "data_steps": len(self.trajectories),
            "cut_episodes": int(self.trajectories.cut.sum()),
        }


def refuse_bundle(
    path: Path, kinds: Mapping[str, str], wanted: str = "dataset folder", of_run: str = ""
) -> None:
    """Refuse a bundle where one thing in it is wanted, and name those that would do.

    Args:
        path: What may be a bundle.
        kinds: The kinds of parts that would do, each with what to call it.
        wanted: What a path of another kind would have to be.
        of_run: The file of a run that is meant; the run itself when empty.

    Raises:
        UsageError: It is one.
        PbvfError: It is one, and its manifest cannot be read.
    """
    from pbvf_datasets.format.bundle import is_bundle, parse_bundle, parts_of
    from pbvf_datasets.format.manifest import read_plain
    from pbvf_datasets.format.schema import MANIFEST_FILE

    if not is_bundle(path):
        return
    where = path / MANIFEST_FILE
    parts = [
        part for part in parts_of(parse_bundle(read_plain(where), where)) if part.kind in kinds
    ]
    if parts:
        named = [
            f"{path / part.name / (of_run if part.kind == 'run' else '')} ({kinds[part.kind]})"
            for part in parts
        ]
        remedy = f"name {' or '.join(named)}"
    else:
        remedy = f"it holds no {' and no '.join(kinds)}; 'pbvf info' tells what it holds"
    raise UsageError(f"this is not a {wanted} but a bundle", where=path, remedy=remedy)


def refuse_folder(path: Path, kind: str, of_run: str | None = None) -> None:
    """Refuse the folder of something whose file is wanted, and say which file would do.

    Args:
        path: What is to be a file.
        kind: The kind of file that is wanted, such as ``critic``.
        of_run: The name of such a file in the folder of a run; None where a run has none.

    Raises:
        UsageError: It is a bundle, a run, or a dataset (also one that is named by its id).
        PbvfError: It is a bundle, and its manifest cannot be read.
    """
    from pbvf_datasets.format.names import resolve_dataset
    from pbvf_datasets.read.untrusted import is_dataset
    from pbvf_runs.folder import is_run

    if path.is_file():
        return
    folder = path
    with contextlib.suppress(UsageError):  # it is no dataset's id; what is wrong, its reader says
        folder = resolve_dataset(str(path))
    article = f"not a {kind} file but"
    kinds = {kind: kind} | ({} if of_run is None else {"run": f"{kind} of a run"})
    refuse_bundle(folder, kinds, f"{kind} file", of_run or "")
    if is_run(folder):
        named = f"name {folder}/{of_run}, which a finished run has"
        remedy = _FROM_DATASET[kind] if of_run is None else named
        raise UsageError(f"this is {article} a run", where=folder, remedy=remedy)
    if is_dataset(folder):
        raise UsageError(f"this is {article} a dataset", where=path, remedy=_FROM_DATASET[kind])


def open_data(
    name: str, table: SettingsTable, *, require_manifest: bool, untagged: bool = False
) -> Data:
    """Open a dataset, or the folder of a run with what is finished of it; add it to the table.

    With ``untagged`` it may be a dataset that does not say which policies acted.

    Raises:
        PbvfError: As ``load_dataset`` and ``load_run`` do.
    """
    from pbvf_datasets import load_dataset
    from pbvf_datasets.format.names import resolve_dataset
    from pbvf_datasets.format.spaces import serialize_space
    from pbvf_datasets.read.untrusted import is_dataset
    from pbvf_offline.envs.reference import EnvReference
    from pbvf_runs.data import episodes_digest, runs_in, runs_text
    from pbvf_runs.export import is_exported
    from pbvf_runs.folder import is_run

    path = resolve_dataset(name)
    if is_run(path):
        return _run(path, table, require_manifest=require_manifest)
    refuse_bundle(path, {"run": "a run"})
    if not is_dataset(path) and (runs := runs_in(path)):
        raise UsageError(f"holds {runs_text(runs)}", where=path, remedy="name one of them")
    data = load_dataset(path, require_manifest=require_manifest, untagged=untagged)
    known = data.environment
    environment = None if known is None else EnvReference.from_dict(known, str(path))
    digest = data.digest
    if environment is not None and data.manifest and is_exported(data.manifest["provenance"]):
        # What is fitted to a run, and to the dataset exported from it, is of the same data.
        digest = episodes_digest(data.trajectories, environment)
    spaces = serialize_space(data.observation_space), serialize_space(data.action_space)
    vouched = data.manifest is not None
    opened = Data(data.trajectories, environment, digest, data.digest, spaces, vouched)
    table.show("dataset", name)
    table.show("environment", opened.env_name, "stored in the dataset")
    _show_untagged(opened, table)
    return opened


def open_all(
    names: Sequence[str], table: SettingsTable, *, require_manifest: bool, untagged: bool = False
) -> Data:
    """Open one or several, as :func:`open_data` does; several are one training set.

    Raises:
        IncompatibleError: They differ in environment, spaces or policy architecture.
        UsageError: Two of them share episodes.
        PbvfError: As ``load_dataset`` and ``load_run`` do.
    """
    if len(names) == 1:
        return open_data(names[0], table, require_manifest=require_manifest, untagged=untagged)

    from pbvf_cli.shared.settings import SettingsTable
    from pbvf_datasets.read.joined import Part, join

    parts = []
    for name in names:
        one = open_data(name, SettingsTable(), require_manifest=require_manifest, untagged=untagged)
        known = one.environment, one.digest, one.spaces, one.vouched
        parts.append(Part(name, one.trajectories, *known))
    trajectories, digest = join(parts)
    table.show("datasets", tuple(names))
    data = Data(trajectories, parts[0].environment, digest)
    table.show("environment", data.env_name, "stored in the first of them")
    _show_untagged(data, table)
    return data


def naming_data(names: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """Have errors about data that name no file name the datasets or runs: of policies, say.

    A policy or episode that such an error numbers is one of all of them together.
    """
    return naming(", ".join(names), IncompatibleError, DivergedError)


def _show_untagged(data: Data, table: SettingsTable) -> None:
    if not data.trajectories.tagged:
        table.show("policies", "not known: the check replays stored actions", "no policy tags")


def _run(path: Path, table: SettingsTable, *, require_manifest: bool) -> Data:
    from pbvf_datasets.format.statistics import Ends
    from pbvf_runs.data import load_run

    if require_manifest:
        raise UnsafeError(
            "a run has no manifest",
            where=path,
            remedy="make a dataset of it with train-online --export-dataset",
        )
    run = load_run(path)
    data = Data(run.trajectories, run.environment, run.digest)
    table.show("run", path)
    said = "the finished run" if run.finished else "what the unfinished run has on disk"
    table.show("steps used", f"{len(run.trajectories):,}", said)
    table.show("episodes used", str(Ends.of_data(run.trajectories)), said)
    table.show("environment", data.env_name, "stored in the run")
    return data

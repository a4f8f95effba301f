"""Datasets under the loupe: whether they are whole, true to themselves, and safe to open.

A dataset comes in through the door (:mod:`pbvf_datasets.read.untrusted`) and is looked at episode
by episode, so that memory holds one episode whatever the size of the dataset. All that
is wrong is collected, not only the first find: after each the look goes on wherever that
is safe, that is, where no object is used that was not checked.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from pbvf_datasets.format.schema import (
    BLOB,
    FIELDS,
    MANIFEST_FILE,
    METADATA_FILE,
    parse_episode_blob,
)
from pbvf_datasets.inspect.findings import (
    FOUND,
    MAX_PROBLEMS,
    Findings,
    Verification,
    check_environment,
)
from pbvf_datasets.inspect.recompute import expected_action, wrong_actions
from pbvf_datasets.read.assemble import Assembler, check_tags, read_blob
from pbvf_datasets.read.dataset import environment_of
from pbvf_datasets.read.untrusted import CardWarning, CheckedFolder, UnverifiedWarning, open_suspect
from pbvf_datasets.read.untrusted_hdf5 import GuardedArray, GuardedFile, GuardedGroup
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    PbvfError,
    ResourceError,
    UnsafeError,
    printable,
)
from pbvf_offline.io.strict_json import parse_json
from pbvf_offline.policies.spec import PolicySpec

if TYPE_CHECKING:
    from pbvf_offline.rollout.episodes import Trajectories

Progress = Callable[[int, int], None]

_MAX_ATTRIBUTE_BYTES: Final = 2**20
_LONG: Final = 10_000  # steps of an episode whose actions are worth a thread
_NAMES: Final = frozenset((*(f.name for f in FIELDS), BLOB))
_OPTIONAL: Final = tuple(f.name for f in FIELDS if not f.required)


def verify_dataset(folder: Path, *, progress: Progress | None = None) -> Verification:
    """Check a dataset's folder; see :func:`verify`.

    Raises:
        UsageError: There is no such folder.
        ResourceError: It cannot be read, or memory is short.
    """
    found = Findings()
    checked: CheckedFolder | None = None
    look: _DatasetLook | None = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            checked = open_suspect(folder)
        except FOUND as error:
            found.add(error)
    notes = [
        str(w.message) for w in caught if issubclass(w.category, CardWarning | UnverifiedWarning)
    ]
    if checked is not None:
        with checked:
            # The networks are small. Threads of a BLAS would wait for each other at every layer,
            # on a busy machine for most of the time; one that checks while another reads does not.
            with (
                threadpool_limits(1, user_api="blas"),
                ThreadPoolExecutor(max_workers=1) as worker,
            ):
                look = _DatasetLook(checked, found, progress, worker)
                try:
                    look.run()
                except MemoryError as error:
                    raise ResourceError(
                        "there is not enough memory to check it", where=folder
                    ) from error
            _add_mismatches(checked, found)
            if look.unchecked is not None:
                notes.append(f"{folder}: {look.unchecked}")
    if found.more:
        notes.append(f"{folder}: there are more than {MAX_PROBLEMS:,} problems; not all are listed")
    safe, reason = _for_minari(found, checked, look)
    manifest = (folder / MANIFEST_FILE).is_file() if checked is None else checked.verified
    status = found.status(verified=manifest)
    whole = checked is not None and status in ("intact", "unverified")
    return Verification(
        path=folder,
        kind="dataset",
        status=status,
        problems=tuple(found.problems),
        warnings=tuple(notes),
        safe_for_minari=safe,
        minari_reason=reason,
        manifest=manifest,
        digest=checked.digest if checked is not None and whole else None,
        counts={} if look is None else look.counts,
    )


def _add_mismatches(folder: CheckedFolder, found: Findings) -> None:
    """Note all files that are not those which the manifest lists."""
    if folder.mismatch is None or folder.manifest is None:
        return
    found.add(folder.mismatch)
    for name, digest in folder.hashes.items():
        where = str(folder.path / name)
        if digest != folder.manifest["files"][name]["sha256"] and where != folder.mismatch.where:
            found.add(DamagedError("its sha256 is not the one in its manifest", where=where))


def _for_minari(
    found: Findings, folder: CheckedFolder | None, look: _DatasetLook | None
) -> tuple[bool, str]:
    """Return whether stock Minari may open the folder, and why."""
    unsafe = found.first(UnsafeError)
    if unsafe is not None:
        return False, f"{unsafe.where}: {unsafe.what}"
    if folder is None or look is None or not look.walked:
        first = found.problems[0] if found.problems else None
        return False, "it could not be looked at to its end" + (f" ({first})" if first else "")
    if look.odd_attribute is not None:
        return False, look.odd_attribute
    reason = (
        "both spaces are stored, so no environment is built, and its HDF5 file holds nothing "
        "but plain groups and arrays of numbers that are really there"
    )
    spec = folder.metadata.get("env_spec")
    entry = parse_json(spec, METADATA_FILE, allow_infinity=True) if spec else {}
    point = entry.get("entry_point")
    if isinstance(point, str):
        reason += f"; its recover_environment() would import {printable(point)}"
    return True, reason


class _DatasetLook:
    """One pass over a dataset that the door has let in.

    Attributes:
        walked: Whether the kind of every object in the HDF5 file is known.
        odd_attribute: An attribute that stock Minari had better not read, in words.
        unchecked: What there was no way to check, in words.
        counts: Episodes, steps and policies, once all were counted.
    """

    def __init__(
        self,
        folder: CheckedFolder,
        found: Findings,
        progress: Progress | None,
        worker: Executor,
    ) -> None:
        self.walked = False
        self.odd_attribute: str | None = None
        self.unchecked: str | None = None
        self.counts: dict[str, int] = {}
        self._folder, self._found, self._progress = folder, found, progress
        self._worker = worker
        # Where digests vouch for the bytes, arrays that nobody uses need not be read.
        self._doubtful = folder.manifest is None or folder.mismatch is not None
        self._spec: PolicySpec | None = None
        self._tag: tuple[bytes, PolicySpec] | None = None  # the last one, as stored and read
        self._form: tuple[np.dtype[Any], frozenset[str]] | None = None
        self._policies: set[bytes] = set()
        self._untagged = False
        self._returns: list[float] = []
        self._largest = 1.0
        self._lengths: list[int] = []
        self._good = self._steps = self._cut = self._terminated = 0

    def run(self) -> None:
        """Look at everything; what is wrong goes to the findings."""
        folder, found = self._folder, self._found
        self._check_environment()
        try:
            data = folder.open_data()
            root = data.begin()
        except FOUND as error:
            found.add(error)
            return
        self.walked = True
        total = folder.total_steps
        for i in self._indices(data, root):
            if found.full:
                self.walked = False
                found.more = True
                return
            self._episode(data, root, i)
            if self._progress is not None:
                self._progress(min(self._steps, total), total)
        found.settle()
        if self._good == folder.total_episodes > 0:
            self.counts = {
                "episodes": self._good,
                "steps": self._steps,
                "policies": len(self._policies),
            }
            self._check_totals()
        try:
            folder.check_unchanged()
        except DamagedError as error:
            found.add(error)

    def _indices(self, data: GuardedFile, root: GuardedGroup) -> list[int]:
        """Return the episodes that are there, in order; note those that should not or should be."""
        expected = self._folder.total_episodes
        prefix = b"episode_"
        there: list[int] = []
        for name in root.members:
            digits = name[len(prefix) :]
            if name.startswith(prefix) and digits.isdigit() and len(digits) <= 18:
                number = int(digits)
                if name == b"%s%d" % (prefix, number):
                    there.append(number)
                    continue
            try:
                root.check(name)
            except FOUND as error:
                self._note_structure(error)
            text = printable(name.decode("utf-8", "surrogateescape"))
            self._found.add(DamagedError("this is not an episode", where=data.where(text)))
        there.sort()
        says = f"there are {len(there)}, but {METADATA_FILE} says total_episodes {expected}"
        counted = sum(number < expected for number in there)
        if counted < expected:
            gap = next((i for i, number in enumerate(there) if i != number), len(there))
            self._found.add(
                DamagedError(f"the episode is missing: {says}", where=data.where(f"episode_{gap}"))
            )
        if counted < len(there):
            self._found.add(
                DamagedError(
                    f"the episode is not counted: {says}",
                    where=data.where(f"episode_{there[counted]}"),
                )
            )
        if not there and expected == 0:
            self._found.add(DamagedError("it holds no episode", where=data.path))
        return there

    # -- one episode

    def _episode(self, data: GuardedFile, root: GuardedGroup, i: int) -> None:
        found = self._found
        before = found.count
        try:
            group = root.group(b"episode_%d" % i)
        except FOUND as error:
            self._note_structure(error)
            return
        total = seed = None
        try:
            total, seed = group.integer(b"total_steps"), group.integer(b"seed")
            if total is None:
                raise DamagedError("it has no attribute total_steps", where=data.where(group.place))
            self._look_at_attributes(data, group)
        except FOUND as error:
            found.add(error)
        arrays: dict[str, GuardedArray] = {}
        self._open(group, "", arrays)
        tagged = True
        if found.count == before:
            tagged = self._is_tagged(data, group.place, arrays)
        whole = False
        if tagged and found.count == before and self._has_same_spec(data, group.place, arrays):
            assembler = Assembler(
                str(data.path),
                self._folder.observation_space,
                self._folder.action_space,
                steps=next(iter(arrays["rewards"].shape), 0) if "rewards" in arrays else 0,
            )
            try:
                assembler.add(group.place, arrays, total_steps=total, seed=seed)
                episode = assembler.finish()
            except FOUND as error:
                found.add(error)
            else:
                whole = True
                self._check_form(data, group.place, arrays, episode)
                self._check_actions(data.where(f"{group.place}/actions"), episode)
                self._count(episode, assembler.policy_digests)
        if not whole and (tagged or self._doubtful):
            # What else is wrong with it? Until now only the first find is known.
            for name, array in arrays.items():
                self._read(data.where(f"{group.place}/{name}"), array)

    def _is_tagged(self, data: GuardedFile, place: str, arrays: Mapping[str, GuardedArray]) -> bool:
        """Return whether an episode has policy tags; their absence is noted once."""
        try:
            check_tags(arrays, lambda name: data.where(f"{place}/{name}" if name else place))
        except DamagedError as error:
            self._found.add(error)
        except IncompatibleError as error:
            if not self._untagged:  # Minari's own datasets have none anywhere
                self._untagged = True
                self._found.add(error)
            return False
        return True

    def _has_same_spec(
        self, data: GuardedFile, place: str, arrays: Mapping[str, GuardedArray]
    ) -> bool:
        """Return whether an episode's policies have the architecture of the dataset's others.

        Where the tag cannot be read, the answer is left to those who know what is wrong.
        """
        where = data.where(f"{place}/{BLOB}")
        try:
            blob = read_blob(arrays[BLOB], where)
            if self._tag is None or self._tag[0] != blob:
                self._tag = blob, parse_episode_blob(blob, where)[0]
        except (KeyError, *FOUND):
            return True
        spec = self._tag[1]
        first = self._spec = self._spec or spec
        if spec != first:
            self._found.add(
                IncompatibleError(
                    f"its policies ({spec.arch}) have another architecture than those before "
                    f"({first.arch})",
                    where=where,
                    remedy="keep policies of different architectures in datasets of their own",
                )
            )
        return spec == first

    def _open(self, group: GuardedGroup, prefix: str, arrays: dict[str, GuardedArray]) -> None:
        """Check all members of an episode and collect those that the format knows."""
        for member in group.members:
            name = prefix + member.decode("utf-8", "surrogateescape")
            try:
                if name in _NAMES:
                    arrays[name] = group.array(member)
                elif name == "infos":
                    self._open(group.group(member), "infos/", arrays)
                else:
                    group.check(member, read=self._doubtful)
            except FOUND as error:
                self._note_structure(error)

    def _note_structure(self, error: PbvfError) -> None:
        self._found.add(error)
        if not isinstance(error, UnsafeError):
            self.walked = False

    def _read(self, where: str, array: GuardedArray) -> None:
        try:
            values = array.read()
        except DamagedError as error:
            self._found.add(error)
            return
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            self._found.add(DamagedError("it holds NaN or infinite values", where=where))

    def _check_form(
        self,
        data: GuardedFile,
        place: str,
        arrays: Mapping[str, GuardedArray],
        episode: Trajectories,
    ) -> None:
        """Check that an episode has the optional arrays and the dtype of the first one."""
        dtype = episode.observations.dtype
        optional = frozenset(name for name in _OPTIONAL if name in arrays)
        self._form = self._form or (dtype, optional)
        if dtype != self._form[0]:
            self._found.add(
                DamagedError(
                    f"it is {dtype}; {self._form[0]} is expected",
                    where=data.where(f"{place}/observations"),
                )
            )
        for name in sorted(optional ^ self._form[1]):
            self._found.add(
                IncompatibleError(
                    "some episodes have it and some do not", where=data.where(f"{place}/{name}")
                )
            )

    def _check_actions(self, where: str, episode: Trajectories) -> None:
        if episode.policies.spec.stochastic and episode.pre_action is None:
            self.unchecked = (
                "its policies are stochastic, and without pre-squash actions (infos/pre_action) "
                "nothing tells whether they took the stored ones"
            )
            return
        if len(episode) < _LONG:
            error = _action_error(where, episode)
            if error is not None:
                self._found.add(error)
        else:  # while the next episode is being read
            self._found.add_later(self._worker.submit(_action_error, where, episode))

    def _count(self, episode: Trajectories, policies: Iterable[bytes]) -> None:
        self._good += 1
        self._steps += len(episode)
        self._policies.update(policies)
        self._lengths.append(len(episode))
        if episode.cut[0]:
            self._cut += 1
        else:
            self._terminated += bool(episode.terminated[-1])
            with np.errstate(over="ignore"):
                self._returns.append(float(episode.rewards.sum()))
                self._largest = max(self._largest, float(np.abs(episode.rewards).sum()))

    def _look_at_attributes(self, data: GuardedFile, group: GuardedGroup) -> None:
        """Look for attributes that could exhaust a reader who takes all, as Minari does.

        Raises:
            DamagedError: One cannot be read.
        """
        from h5py import h5a, h5t

        if self.odd_attribute is not None:
            return
        plain = (h5t.INTEGER, h5t.FLOAT, h5t.ENUM, h5t.STRING)
        total = 0
        try:
            for index in range(h5a.get_num_attrs(group.id)):
                attribute = h5a.open(group.id, index=index)
                kind, shape = attribute.get_type(), attribute.get_space().get_simple_extent_dims()
                count = math.prod(shape or ())
                total += count * kind.get_size()
                text = kind.get_class() == h5t.STRING and kind.is_variable_str()
                if (
                    kind.get_class() not in plain
                    or (text and count > 1)
                    or total > _MAX_ATTRIBUTE_BYTES
                ):
                    name = printable(attribute.name.decode("utf-8", "surrogateescape"))
                    self.odd_attribute = (
                        f"{data.where(group.place)}: its attribute {name} is larger, or of another "
                        "kind, than a reader can take without thought"
                    )
                    return
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
            data.place = group.place
            raise data.damaged(error) from error

    # -- all episodes

    def _check_environment(self) -> None:
        """Look for an environment that no file of this project names."""
        manifest, folder = self._folder.manifest, self._folder
        try:
            if manifest is not None:
                environment = manifest["provenance"]["environment"]
                check_environment(environment, f"{folder.path / MANIFEST_FILE}: environment")
            else:
                # Without a manifest another program wrote it: only its form is checked.
                environment_of(folder.metadata, str(folder.path / METADATA_FILE))
        except FOUND as error:
            self._found.add(error)

    def _check_totals(self) -> None:
        """Compare what metadata and manifest say about the data with the data."""
        folder, found = self._folder, self._found
        if self._steps != folder.total_steps:
            found.add(
                DamagedError(
                    f"its total_steps is {folder.total_steps:,}, but the episodes have "
                    f"{self._steps:,} steps",
                    where=folder.path / METADATA_FILE,
                )
            )
        if folder.manifest is None or self._spec is None:
            return
        provenance = folder.manifest["provenance"]
        stats, where = provenance["stats"], folder.path / MANIFEST_FILE
        if provenance["spec"] != self._spec.to_dict():
            found.add(DamagedError("its spec is not that of the policies in the data", where=where))
        own = {**self.counts, "cut": self._cut, "terminated": self._terminated}
        for name, there in own.items():
            if name in stats and stats[name] != there:
                found.add(
                    DamagedError(
                        f"its stats say {name} {stats[name]!r}; the data have {there:,}",
                        where=where,
                    )
                )
        lengths = {"min": min(self._lengths), "max": max(self._lengths)}
        says = stats.get("length")
        if says is not None and (
            not isinstance(says, dict) or any(says.get(key) != lengths[key] for key in lengths)
        ):
            found.add(
                DamagedError(
                    f"its stats say length {_short(says)}; the data have {lengths}", where=where
                )
            )
        says, returns = stats["return"], _return_stats(self._returns)
        if (says is None) != (returns is None) or (
            says is not None and returns is not None and not self._agree(says, returns)
        ):
            found.add(
                DamagedError(f"its stats say return {says}; the data have {returns}", where=where)
            )

    def _agree(self, says: Mapping[str, float], there: Mapping[str, float]) -> bool:
        # Sums of rewards differ in their last digits with the order of summation.
        return all(abs(says[key] - there[key]) <= 1e-9 * self._largest for key in there)


def _action_error(where: str, episode: Trajectories) -> DamagedError | None:
    """Return what is wrong with the actions of an episode, or None."""
    wrong = wrong_actions(episode)
    if not wrong.size:
        return None
    step = int(wrong[0])
    return DamagedError(
        f"the actions of {wrong.size:,} of {len(episode):,} steps are not those of the "
        f"policies that the tags name, the first at step {step}: "
        f"{_short(episode.actions[step])} is stored, "
        f"{_short(expected_action(episode, step))} is what its policy does",
        where=where,
    )


def _return_stats(returns: list[float]) -> dict[str, float] | None:
    if not returns:
        return None
    mean = math.fsum(r / len(returns) for r in returns) if all(map(math.isfinite, returns)) else 0.0
    return {"mean": mean, "min": min(returns), "max": max(returns)}


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:79] + "…"

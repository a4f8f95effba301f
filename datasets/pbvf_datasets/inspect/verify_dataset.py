"""Whether a dataset is whole, true to itself, and safe to open.

All problems are collected, not only the first: after each the search goes on wherever that is
safe. Memory holds two episodes at most, whatever the size of the dataset.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from pbvf_datasets.format.dataset_rules import stats_true
from pbvf_datasets.format.recompute import action_error
from pbvf_datasets.format.schema import DATASET_FILES, MANIFEST_FILE, METADATA_FILE
from pbvf_datasets.format.statistics import Ends, Tally
from pbvf_datasets.inspect.findings import (
    FOUND,
    MAX_PROBLEMS,
    Findings,
    Verification,
    check_environment,
    warn_of_unlisted,
)
from pbvf_datasets.inspect.minari_safety import not_checked, odd_attribute, safe_for_minari
from pbvf_datasets.read.dataset import environment_of
from pbvf_datasets.read.episodes import CheckedEpisode
from pbvf_datasets.read.folder_episodes import folder_episodes
from pbvf_datasets.read.untrusted import CardWarning, CheckedFolder, UnverifiedWarning, open_folder
from pbvf_datasets.read.untrusted_hdf5 import GuardedGroup
from pbvf_offline.errors import DamagedError, PbvfError, ResourceError, UnsafeError
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories

Progress = Callable[[int, int], None]

LONG_EPISODE: Final = 10_000
"""Actions of an episode of so many steps are recomputed in a thread while the next is read."""


def verify_dataset(folder: Path, *, progress: Progress | None = None) -> Verification:
    """Check a dataset's folder; see :func:`pbvf_datasets.inspect.verify.verify`.

    Raises:
        UsageError: There is no such folder.
        ResourceError: It cannot be read, or memory is short.
    """
    found = Findings()
    opened: CheckedFolder | None = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            opened = open_folder(folder, keep_mismatches=True)
        except FOUND as error:
            found.add(error)
    notes = [
        str(w.message) for w in caught if issubclass(w.category, CardWarning | UnverifiedWarning)
    ]
    if opened is None:
        manifest, counts, digest = (folder / MANIFEST_FILE).is_file(), {}, None
        ends = None
        unsafe = found.first(UnsafeError)
        reason = not_checked(found.problems) if unsafe is None else f"{unsafe.where}: {unsafe.what}"
        safe = False
    else:
        with opened:
            check = _Check(opened, found, progress)
            check.run()
            safe, reason = safe_for_minari(
                opened, found.problems, walked=check.walked, odd=check.odd_attribute
            )
        if check.unchecked is not None:
            notes.append(f"{folder}: {check.unchecked}")
        manifest, counts, digest = opened.verified, check.counts, opened.digest
        notes += warn_of_unlisted(folder, DATASET_FILES)
        ends = check.ends
    if found.more:
        notes.append(f"{folder}: there are more than {MAX_PROBLEMS:,} problems; not all are listed")
    status = found.status(verified=manifest)
    return Verification(
        path=folder,
        kind="dataset",
        status=status,
        problems=tuple(found.problems),
        warnings=tuple(notes),
        safe_for_minari=safe,
        minari_reason=reason,
        manifest=manifest,
        digest=digest if status in ("intact", "unverified") else None,
        counts=counts,
        ends=ends,
    )


class _TooManyError(Exception):
    """No more problems are listed, so the search for them ends."""


class _Check:
    """One pass over a folder.

    Attributes:
        walked: Whether the kind of every object in the HDF5 file is known.
        odd_attribute: An attribute that stock Minari should not read, in words.
        unchecked: What there was no way to check, in words.
        counts: Episodes, steps and policies, once all were counted.
        ends: How the episodes ended, likewise.
    """

    def __init__(self, folder: CheckedFolder, found: Findings, progress: Progress | None) -> None:
        self.walked = True
        self.odd_attribute: str | None = None
        self.unchecked: str | None = None
        self.counts: dict[str, int] = {}
        self.ends: Ends | None = None
        self._folder, self._found, self._progress = folder, found, progress
        self._tally = Tally()
        self._spec: PolicySpec | None = None

    def run(self) -> None:
        """Check everything; what is wrong goes to the findings.

        Raises:
            ResourceError: Memory is short.
        """
        # The networks are small. Threads of a BLAS would wait for each other at every layer,
        # on a busy machine for most of the time; one that checks while another reads does not.
        try:
            with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(1) as worker:
                self._check_environment()
                self._check_episodes(worker)
                self._found.settle()
        except MemoryError as error:
            raise ResourceError(
                "there is not enough memory to check it", where=self._folder.path
            ) from error
        if len(self._tally.lengths) == self._folder.total_episodes > 0:
            self._check_totals()

    def _report(self, error: PbvfError, /, *, unopened: bool = False) -> None:
        self._found.add(error)
        self.walked = self.walked and not unopened
        if self._found.more:
            raise _TooManyError

    def _check_environment(self) -> None:
        """Check that the environment is one that files of this project name."""
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

    def _check_episodes(self, worker: Executor) -> None:
        folder, tally = self._folder, self._tally
        # Where digests vouch for the bytes, arrays that nobody uses need not be read.
        doubtful = folder.manifest is None or bool(folder.mismatches)
        try:
            for episode in folder_episodes(
                folder, self._report, read_unknown=doubtful, on_group=self._check_attributes
            ):
                self._check_actions(episode, worker)
                episode.count_in(tally)
                self._spec = episode.spec
                if self._progress is not None:
                    self._progress(min(tally.steps, folder.total_steps), folder.total_steps)
        except FOUND as error:
            self.walked = False
            self._found.add(error)
        except _TooManyError:
            self.walked = False

    def _check_attributes(self, group: GuardedGroup) -> None:
        if self.odd_attribute is None:
            self.odd_attribute = odd_attribute(self._folder.open_data(), group)

    def _check_actions(self, episode: CheckedEpisode, worker: Executor) -> None:
        if episode.spec.stochastic and "infos/pre_action" not in episode.arrays:
            self.unchecked = (
                "its policies are stochastic, and without pre-squash actions (infos/pre_action) "
                "nothing tells whether they took the stored ones"
            )
            return
        where = self._folder.open_data().where(f"episode_{episode.index}/actions")
        if len(episode) < LONG_EPISODE:
            error = _action_error(where, episode)
            if error is not None:
                self._report(error)
        else:  # while the next episode is being read
            self._found.add_later(worker.submit(_action_error, where, episode))

    def _check_totals(self) -> None:
        """Compare what the manifest says about the data with the data."""
        folder, tally = self._folder, self._tally
        self.ends = tally.ends
        self.counts = {
            "episodes": len(tally.lengths),
            "steps": tally.steps,
            "policies": len(tally.policies),
        }
        if folder.manifest is None or self._spec is None:
            return
        provenance, where = folder.manifest["provenance"], folder.path / MANIFEST_FILE
        if provenance["spec"] != self._spec.to_dict():
            what = "its spec is not that of the policies in the data"
            self._found.add(DamagedError(what, where=where))
        for problem in stats_true(provenance["stats"], tally):
            self._found.add(problem.kind(problem.what, where=where))


def _action_error(where: str, episode: CheckedEpisode) -> DamagedError | None:
    return action_error(_trajectories(episode), where)


def _trajectories(episode: CheckedEpisode) -> Trajectories:
    """Return one episode as flat arrays, whose policies need not be distinct."""
    arrays = episode.arrays
    pre_action = arrays.get("infos/pre_action")
    theta, mean, std = (arrays[f"infos/{name}"] for name in ("theta", "obs_mean", "obs_std"))
    return Trajectories(
        policies=Policies(episode.spec, theta, mean, std),
        observations=arrays["observations"],
        actions=arrays["actions"],
        rewards=arrays["rewards"],
        terminated=arrays["terminations"],
        truncated=arrays["truncations"],
        policy=arrays["infos/segment"][:-1],
        start=np.array([0, len(episode)]),
        cut=np.array([episode.cut != "none"]),
        seeds=np.array([-1 if episode.seed is None else episode.seed]),
        pre_action=None if pre_action is None else pre_action[:-1],
    )

"""Tag a dataset that names no policies with those that made it, where the actions bear it out.

Every action is computed again from its observation, as ``verify`` does
(:mod:`pbvf_datasets.format.recompute`). One policy acts a whole episode: the one whose actions are
the stored ones at every step. Where none is, or two different ones are, nothing is written; nor
where a discrete one could have done anything at nearly all steps, so that the actions show nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.recompute import LOGIT_TOLERANCE, telling_steps, wrong_steps
from pbvf_datasets.read.episodes import CheckedEpisode
from pbvf_datasets.write.edit import (
    EditResult,
    Pathlike,
    Progress,
    finish_output,
    nothing_left_of_bad_inputs,
    open_output,
)
from pbvf_datasets.write.edit_inputs import Source, infinite_return_is_damage
from pbvf_datasets.write.writer import DatasetWriter
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import IncompatibleError, UsageError, counted, shorten
from pbvf_offline.io.reading import file_digest
from pbvf_offline.io.strict_json import canonical_json
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.files import load_policies
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.recompute import Recomputation
from pbvf_offline.rollout.episodes import Episode

_MOST_AT_ONCE: Final = 2**16  # actions recomputed at once
_TELLING: Final = 0.1  # of an episode's steps: at which some choice must be wrong


def tag_dataset(
    dataset: Pathlike,
    dataset_id: str,
    policies: Path,
    *,
    order: Sequence[int] | None = None,
    unchecked: bool = False,
    license: str | None = None,
    authors: Sequence[str] = (),
    root: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EditResult:
    """Make a tagged dataset of one that does not say which policies acted.

    Args:
        dataset: Id or folder.
        dataset_id: The new dataset's id.
        policies: A policies file with those that made it; only the ones that acted are stored.
        order: The row of the policy that acted in each episode; None: it is found.
        unchecked: Believe that stochastic policies acted, whose actions cannot be computed
            again. The settings in the manifest say so.
        license: Its licence.
        authors: Names; the source's when empty.
        root: Folder of datasets; Minari's when None.
        overwrite: Start over whatever is there.
        progress: Called now and then.

    Raises:
        UsageError: The dataset is tagged already, ``order`` does not fit it, or ``unchecked`` is
            for policies that can be checked.
        IncompatibleError: The policies do not fit the dataset or did not act in it, several
            did as far as can be told, nearly any action would pass for theirs, or they are
            stochastic.
        DamagedError: The dataset or the file is damaged.
        UnsafeError: The dataset could do harm.
        ConflictError: The output exists with other settings, or another process writes it.
        ResourceError: The disk or a permission refuses; what is finished is safe.
    """
    file = load_policies(policies)
    held = file.policies
    _refuse_unchecked(held, policies, unchecked=unchecked, ordered=order is not None)
    with Source(dataset, root, require_manifest=False, untagged=held.spec) as source:
        _name_module(source, file.environment)
        if order is not None:
            _check_order(order, source.episode_count, len(held))
        words = ["tag", source.id, "--policies", policies.name, "--dataset", dataset_id]
        words += [] if order is None else ["--order", "order.json"]
        words += ["--unchecked"] if unchecked else []
        words += [] if license is None else ["--license", license]
        words += [word for name in authors for word in ("--author", name)]
        settings = {
            "operation": "tag",
            "policies": file_digest(policies),
            "order": None if order is None else _digest(list(order)),
            "checked": not unchecked,
        }
        with open_output(
            dataset_id,
            [source],
            settings,
            words,
            root,
            license=license,
            authors=authors or None,
            overwrite=overwrite,
        ) as writer:
            started = time.perf_counter()
            before = None if writer.complete else writer.steps_done
            if before is not None:
                with nothing_left_of_bad_inputs(writer):
                    _copy(source, held, order, writer, progress, checked=not unchecked)
            return finish_output(writer, [source], started, before)


def _name_module(source: Source, of_policies: EnvReference | None) -> None:
    """Name the module that registers the environment, which Minari's files leave out."""
    environment = source.environment
    if environment is None or of_policies is None or environment["module"] is not None:
        return
    if environment["id"] == of_policies.id:
        source.environment = {**environment, "module": of_policies.module}


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _refuse_unchecked(policies: Policies, where: Path, *, unchecked: bool, ordered: bool) -> None:
    """Refuse what could be checked and is not to be, or cannot be checked and is to be."""
    if not policies.spec.stochastic:
        if unchecked:
            raise UsageError(
                "is for stochastic policies, and these are not",
                where="--unchecked",
                remedy="leave it out",
            )
        return
    if not unchecked:
        raise IncompatibleError(
            "its policies are stochastic, so that their actions cannot be computed again",
            where=where,
            remedy="import them as deterministic ones if they acted without noise, or give "
            "--unchecked, which the dataset records, if you are certain that they made it",
        )
    if len(policies) > 1 and not ordered:
        raise UsageError(
            f"nothing tells which of the {len(policies):,} stochastic policies acted",
            where="--unchecked",
            remedy="give --order, a JSON list of the row that acted in each episode",
        )


def _check_order(order: Sequence[int], episodes: int, policies: int) -> None:
    if len(order) != episodes:
        raise UsageError(
            f"it has {counted(len(order), 'row')}, and the dataset {counted(episodes, 'episode')}",
            where="--order",
        )
    for i, row in enumerate(order):
        if not 0 <= row < policies:
            raise UsageError(
                f"row {row} of episode {i} is not in 0 … {policies - 1}", where="--order"
            )


def _copy(
    source: Source,
    policies: Policies,
    order: Sequence[int] | None,
    writer: DatasetWriter,
    progress: Progress | None,
    *,
    checked: bool,
) -> None:
    """Add the episodes that are not there yet, each with the policy that acted."""
    rest = range(writer.episodes_done, source.episode_count)
    # None: all of them, so that the totals are checked too.
    wanted = None if len(rest) == source.episode_count else rest
    for episode in source.episodes(wanted) if rest else ():
        row = None if order is None else order[episode.index]
        row = _who_acted(policies, episode, row, source) if checked else row or 0
        with infinite_return_is_damage(source, episode):
            writer.add(_tagged(episode, policies, row))
        if progress is not None:
            progress(writer.episodes_done, source.episode_count)


def _tagged(episode: CheckedEpisode, policies: Policies, row: int) -> Episode:
    one = policies.select([row])
    return replace(episode.episode, theta=one.theta, obs_mean=one.obs_mean, obs_std=one.obs_std)


def _who_acted(
    policies: Policies, episode: CheckedEpisode, given: int | None, source: Source
) -> int:
    """Return the row of the policy whose actions are those of an episode.

    Raises:
        IncompatibleError: No policy is (or the one given is not), several different ones are, or
            nearly all other actions would have passed too.
    """
    rows = np.arange(len(policies), dtype=np.int32) if given is None else np.array([given])
    where = f"{source.folder.data_file}: episode_{episode.index}"
    observations, actions = episode.arrays["observations"], episode.arrays["actions"]
    start, size = 0, 1
    while start < len(actions):
        # Nearly all policies are out after a step or two.
        size = max(1, min(size, _MOST_AT_ONCE // len(rows), len(actions) - start))
        steps = slice(start, start + size)
        first = _first_wrong(policies, rows, observations[steps], actions[steps])
        if not np.any(first == size):
            raise _nobody_acted(policies, rows, first, start, episode, where)
        rows, start, size = rows[first == size], steps.stop, 4 * size
    same = policies.select(rows)
    for name in ("theta", "obs_mean", "obs_std"):
        if np.any(getattr(same, name) != getattr(same, name)[0]):
            raise IncompatibleError(
                f"the policies {', '.join(map(str, rows[:5]))}{', …' if len(rows) > 5 else ''} "
                "of the file would all have done what is stored, so it cannot be told which acted",
                where=where,
                remedy="give --order, a JSON list of the row that acted in each episode",
            )
    row = int(rows[0])
    if isinstance(policies.spec.actions, DiscreteActions):
        _refuse_indifferent(policies, row, observations[: len(actions)], where)
    return row


def _refuse_indifferent(
    policies: Policies, row: int, observations: NDArray[Any], where: str
) -> None:
    """Refuse a policy that could have done anything at nearly all steps of an episode."""
    steps = len(observations)
    telling = sum(
        len(telling_steps(policies, row, observations[start : start + _MOST_AT_ONCE]))
        for start in range(0, steps, _MOST_AT_ONCE)
    )
    if telling < _TELLING * steps:
        raise IncompatibleError(
            f"the actions do not show that policy {row} of the file acted: at "
            f"{steps - telling:,} of {steps:,} steps any action would fit, since the logits of all "
            f"choices are within {LOGIT_TOLERANCE} of the best",
            where=where,
            remedy="give the policies that made it, with the normaliser that they had",
        )


def _first_wrong(
    policies: Policies, rows: NDArray[Any], observations: NDArray[Any], actions: NDArray[Any]
) -> NDArray[np.int64]:
    """Return for each row the first step (n: none) whose stored action is another than its own."""
    count, steps = len(rows), len(actions)
    wrong = wrong_steps(
        policies,
        np.repeat(rows, steps).astype(np.int32),
        np.tile(observations, (count, 1)),
        np.tile(actions, (count,) + (1,) * (actions.ndim - 1)),
    )
    first = np.full(count, steps, np.int64)
    np.minimum.at(first, wrong // steps, wrong % steps)
    return first


def _nobody_acted(
    policies: Policies,
    rows: NDArray[Any],
    first: NDArray[np.int64],
    start: int,
    episode: CheckedEpisode,
    where: str,
) -> IncompatibleError:
    """Say how far the policy that comes nearest is from what is stored."""
    last = int(first.max())
    rows, step = rows[first == last], start + last
    stored = episode.arrays["actions"][step]
    recomputed = Recomputation(policies)
    with np.errstate(all="ignore"):
        seen = np.repeat(episode.arrays["observations"][step : step + 1], len(rows), axis=0)
        outputs = recomputed.outputs(rows.tolist(), [1] * len(rows), seen)
        apart = recomputed.apart(outputs, np.repeat(stored[None], len(rows), axis=0))
        actions = policies.spec.actions
        unit = "in the logits"
        if isinstance(actions, BoxActions):
            apart = (apart / np.subtract(actions.high, actions.low)).max(axis=1)
            unit = "of the range"
    nearest = int(np.argmin(np.where(np.isnan(apart), np.inf, apart)))
    does = recomputed.actions(outputs)[nearest]
    told = "the policy given" if len(policies) == 1 else f"policy {rows[nearest]} of the file"
    return IncompatibleError(
        f"{told} did not act there: at step {step} {shorten(stored, 60)} is stored and "
        f"{shorten(does, 60)} is what it does, {apart[nearest]:.3g} {unit} apart",
        where=where,
        remedy="give the policies that made it, with the normaliser that they had; an episode in "
        "which policies change cannot be tagged",
    )

"""Rounds of ascent and imagination into a critic file; finished work is never overwritten."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pbvf_offline.curve import LossEvents, OnEvent
from pbvf_offline.envs.make import named_limit
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import ConflictError, DivergedError, PbvfError, counted, naming
from pbvf_offline.fit.critic_file import KIND, CriticFile, load_critic
from pbvf_offline.fit.rounds import Round, RoundSettings
from pbvf_offline.fit.steps import Fit
from pbvf_offline.io.durable import remove_file
from pbvf_offline.io.output_file import (
    FINISH_OR_DROP,
    note_staying,
    partial_path,
    unfinished_file,
    writing,
)
from pbvf_offline.io.work_folder import START_ANEW, refuse_difference
from pbvf_offline.models.model_file import ModelFile
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.synthesis.comparison import better_critic
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator
from pbvf_offline.synthesis.rounds import imagined_rounds


@dataclass(frozen=True)
class RoundsResult:
    """What rounds into a file came to.

    Attributes:
        file: The critic.
        seconds: Time spent now; 0 when it was complete before.
        rounds_seconds: The part of it spent in rounds, without the default recipe's fit.
        already_complete: Whether nothing had to be done.
    """

    file: CriticFile
    seconds: float
    rounds_seconds: float
    already_complete: bool


def episode_limit(data: Trajectories, environment: EnvReference | None) -> int:
    """Return the time limit of an episode: of those that one ended, else as registered.

    The longest stored episode where neither says. Of a model's file
    :func:`~pbvf_offline.synthesis.model_evaluation.known_horizon` says the same.
    """
    limit = data.time_limit
    if limit is None and environment is not None:
        limit = named_limit(environment)
    return int(data.lengths.max()) if limit is None else limit


@dataclass(frozen=True)
class RoundCallbacks:
    """What a search calls on its way, for progress; what is raised there stops it.

    Attributes:
        begun: Called when there is something to do, before the first round.
        after_round: Called after each round.
        comparing: Called with how far the comparison with the default recipe is, as ``progress``
            of :func:`pbvf_offline.synthesis.comparison.better_critic` is.
        on_event: Called with each event of the curve: ``round`` by its number over all tries,
            ``recipe`` at every 100th update of the default recipe, the mean loss since the one
            before, and after the last round ``comparison``. Not of rounds that are complete.
        note: Told in a line of an interrupted fit to the data beside rounds that are complete.
    """

    begun: Callable[[], None] | None = None
    after_round: Callable[[Round], None] | None = None
    comparing: Callable[[str, int, int], None] | None = None
    on_event: OnEvent | None = None
    note: Callable[[str], None] | None = None


NO_CALLBACKS: Final = RoundCallbacks()


def rounds_to_file(
    data: Trajectories,
    model: ModelFile,
    settings: RoundSettings,
    out: Path,
    *,
    model_digest: str,
    environment: EnvReference | None,
    dataset: str,
    overwrite: bool = False,
    callbacks: RoundCallbacks = NO_CALLBACKS,
) -> RoundsResult:
    """Fit a critic to imagined episodes, round after round, and write it to ``out``.

    Where the settings say so it is held against the default recipe's critic, and the better of
    the two is written.

    The same call again finds it complete. Interrupted rounds, and more of them, are gone
    over from the first: they take minutes, and one seed gives the same bytes.

    Args:
        data: The dataset, for its policies and initial states.
        model: The environment learned from it.
        settings: What decides the rounds.
        out: The critic file.
        model_digest: Digest of the model's file.
        environment: The dataset's environment.
        dataset: The dataset's digest.
        overwrite: Start over whatever is there; it stays until the new one is finished, and so
            does what was interrupted of a fit to the data themselves.
        callbacks: What is called on the way.

    Raises:
        IncompatibleError: The policies act in another environment than the model's, or what a newer
            version of this program was interrupted in is there.
        ConflictError: ``out`` exists with other settings or more rounds, a fit to the data
            themselves was interrupted there, or another process writes it.
        DivergedError: The critic's loss became NaN or infinite, or returns in the unit of the
            rewards are beyond single precision.
        ResourceError: The disk or a permission refuses.
    """
    with naming(out, DivergedError), writing(out, kind=KIND, overwrite=overwrite) as refusal:
        done = None if overwrite else _finished(out, settings, model_digest, dataset)
        left = None if refusal is not None else _interrupted(out)
        if done is not None:
            if left is not None:
                note_staying(left, callbacks.note)
            return RoundsResult(done, 0.0, 0.0, already_complete=True)
        if refusal is not None:
            raise refusal
        if left is not None and not overwrite:
            raise left  # its own command would go on with it, in the place of these rounds' critic
        if callbacks.begun is not None:
            callbacks.begun()
        started = time.perf_counter()
        horizon = episode_limit(data, environment)
        curve = _Curve(callbacks, settings)
        file = imagined_rounds(
            data,
            model.ensemble,
            settings,
            model=model_digest,
            horizon=horizon,
            environment=environment,
            dataset=dataset,
            unfit=model.check is not None and model.check.refusal is not None,
            where=model.where,
            after_round=curve.after_round,
        )
        rounds_seconds = time.perf_counter() - started
        if settings.compare > 0:
            file = better_critic(
                file,
                data,
                ModelEvaluator.of(model, horizon),
                settings,
                environment=environment,
                dataset=dataset,
                after_update=curve.after_update,
                progress=callbacks.comparing or (lambda *_: None),
            )
            curve.compared(file)
        file.save(out)
        remove_file(partial_path(out))
    seconds = time.perf_counter() - started
    return RoundsResult(file, seconds, rounds_seconds, already_complete=False)


class _Curve:
    """Reports the rounds, and the losses of the default recipe, as they come."""

    def __init__(self, callbacks: RoundCallbacks, settings: RoundSettings) -> None:
        self._callbacks, self._compare, self._rounds = callbacks, settings.compare, 0
        self._losses = LossEvents(callbacks.on_event, "recipe")

    def after_round(self, done: Round) -> None:
        self._rounds += 1
        if self._callbacks.on_event is not None:
            self._callbacks.on_event("round", self._rounds, done.to_dict())
        if self._callbacks.after_round is not None:
            self._callbacks.after_round(done)

    def after_update(self, fit: Fit) -> None:
        self._losses(fit, finished=fit.updates == self._compare)

    def compared(self, file: CriticFile) -> None:
        said = None if file.imagined is None else file.imagined.comparison
        if self._callbacks.on_event is not None and said is not None:
            values = {"imagined": said.imagined, "recipe": said.recipe}
            self._callbacks.on_event("comparison", self._rounds, values)


def stored_rounds_seed(out: Path) -> int | None:
    """Return the seed of the rounds whose critic stands at ``out``, if one does."""
    with contextlib.suppress(PbvfError):
        if out.exists() and (imagined := load_critic(out).imagined) is not None:
            return imagined.settings.seed
    return None


def _interrupted(out: Path) -> PbvfError | None:
    """Return why rounds are not to begin where a fit to the data was interrupted, if one was."""
    try:
        left = unfinished_file(out, load_critic)
    except PbvfError as error:
        return error
    if left is None:
        return None
    return ConflictError(
        f"it has {counted(left.fit.updates, 'update')} of an interrupted fit without --model",
        where=partial_path(out),
        remedy=FINISH_OR_DROP if out.exists() else f"finish it by its own command, {START_ANEW}",
    )


def _finished(out: Path, settings: RoundSettings, model: str, dataset: str) -> CriticFile | None:
    """Return the critic at ``out`` if it has all the rounds asked for.

    Raises:
        ConflictError: It was made otherwise, or has more rounds than asked for.
    """
    if not out.exists():
        return None
    file = load_critic(out)
    imagined = file.imagined
    if imagined is None:
        refuse_difference({"model": None}, {"model": model}, out)
        return None
    theirs: dict[str, Any] = {**vars(imagined.settings), "model": imagined.model}
    theirs["dataset"] = file.context.dataset
    ours = {**vars(settings), "model": model, "dataset": dataset}
    ours["rounds"] = theirs["rounds"]  # more of them are no other settings
    refuse_difference(theirs, ours, out)
    if imagined.settings.rounds > settings.rounds:
        raise ConflictError(
            f"exists with {imagined.settings.rounds} rounds, {settings.rounds} were asked for",
            where=out,
            remedy=START_ANEW,
        )
    return file if imagined.settings.rounds == settings.rounds else None

"""Learning an environment into a file: choose, train, check; continue and extend."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.curve import LossEvents, OnEvent
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    DamagedError,
    DivergedError,
    PbvfError,
    UsageError,
    counted,
    naming,
)
from pbvf_offline.io.durable import remove_file
from pbvf_offline.io.output_file import TrainingPlace, writing
from pbvf_offline.models.check import (
    ModelCheck,
    check_model,
    foreseen_shortage,
    held_out_episodes,
)
from pbvf_offline.models.choice import (
    NOISES,
    TRIAL_VALIDATION,
    ChoiceHooks,
    Trial,
    choose_settings,
)
from pbvf_offline.models.ensemble import Ensemble, Steps
from pbvf_offline.models.model_file import MAX_INITIAL, ModelFile, load_model
from pbvf_offline.models.scales import Scales
from pbvf_offline.models.settings import ModelRequest, ModelSettings, ModelShape, precision_name
from pbvf_offline.models.training import ModelFit, advance, start_training
from pbvf_offline.records import fields
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.seeding import Stream, generator

CHECKPOINT_SECONDS = 20.0
_CHECKED = ("correlation", "slope", "error", "coverage", "state_error")


@dataclass(frozen=True)
class ModelResult:
    """What learning an environment into a file came to.

    Attributes:
        file: The model at the number of updates asked for.
        seconds: Time spent now; 0 when it was complete before.
        training_seconds: The part of it spent in gradient steps, without trials and check.
        updates_done_now: Gradient steps taken now, those of short trainings left out.
        already_complete: Whether nothing had to be done.
    """

    file: ModelFile
    seconds: float
    training_seconds: float
    updates_done_now: int
    already_complete: bool


@dataclass
class Hooks:
    """What is called while a model is made, for progress.

    Attributes:
        trial: Called after each short training.
        trying: Called after each update of short trainings, with those done and wanted in all of
            them, the number of the present one, and how many there are.
        update: Called with updates done, updates wanted and the last loss.
        on_event: Called with each event of the curve from the first on, also of a training that
            goes on or is complete: ``trial`` by its number, ``fit`` at every 100th update, the
            mean loss of a network since the one before, and ``check`` at the last one. Where
            networks that learn ten steps in a row diverge and training starts again, ``fit`` events
            begin again too.
        note: Told in a line what should be known of it: that its check will lack something, or
            that beside a model that is complete lies what was interrupted of a longer training.
    """

    trial: Callable[[Trial], None] | None = None
    trying: Callable[[int, int, int, int], None] | None = None
    update: Callable[[int, int, float], None] | None = None
    on_event: OnEvent | None = None
    note: Callable[[str], None] | None = None


@dataclass(frozen=True)
class ModelPlace(TrainingPlace[ModelFile]):
    """The files of one model as they are found."""

    settings: ModelRequest
    dataset: str
    device: torch.device | None

    def read(self, path: Path) -> ModelFile:
        """Read a model file."""
        return load_model(path, self.device)

    def compared(self, file: ModelFile) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a file was made from, and what this model is made from."""
        theirs = {**_by_options(file.asked), "dataset": file.dataset}
        return theirs, {**_by_options(self.settings.to_dict()), "dataset": self.dataset}

    def updates_of(self, file: ModelFile) -> int:
        """Return how many updates a file is to have at its end."""
        return file.fit.total

    def progress_of(self, file: ModelFile) -> str:
        """Return how many of its updates an unfinished file has, in words."""
        return f"{file.fit.updates:,} of {counted(file.fit.total, 'update')}"


def stored_model_seed(out: Path, request: ModelRequest, dataset: str) -> int | None:
    """Return the seed of the model, finished or not, at ``out``.

    Of a finished and an unfinished one, it is that of the one that was made with these settings,
    whatever their seed, from this dataset.
    """
    return ModelPlace(out, request, dataset, None).stored_seed()


def fit_model_to_file(
    data: Trajectories,
    request: ModelRequest,
    out: Path,
    *,
    updates: int,
    environment: EnvReference | None,
    dataset: str,
    overwrite: bool = False,
    hooks: Hooks | None = None,
    device: torch.device | None = None,
) -> ModelResult:
    """Learn the environment of a dataset and write it to ``out``, with its own check.

    The same call again finds it complete; an interrupted one continues; more updates extend
    it; in each case the file ends with the bytes of an undisturbed training. Short
    trainings that were not finished are made again.

    Args:
        data: The dataset.
        request: What is asked for.
        out: The model file.
        updates: Gradient steps in all.
        environment: The dataset's environment.
        dataset: The dataset's digest.
        overwrite: Start over whatever is there. It stays until the new one is finished; the
            same call without ``overwrite`` goes on where such a training was interrupted,
            unless what is there is the same training with as many updates or more.
        hooks: What is called on the way.
        device: Where to compute; the CPU when None.

    Raises:
        UsageError: A number is out of range.
        DamagedError: ``out`` is a model without a check.
        IncompatibleError: There are too few episodes to hold one out.
        ConflictError: ``out`` exists with other settings or more updates, what was interrupted
            is to have more updates, or another process writes it.
        DivergedError: The loss exploded or is NaN, also without networks that learn ten steps in a
            row, if their choice was open; the last good file is kept.
        ResourceError: The disk or a permission refuses.
    """
    if not 1 <= updates < 2**31:
        raise UsageError(
            f"{updates} updates were asked for; 1 to 2,147,483,647 can be made", where="--updates"
        )
    hooks = hooks or Hooks()
    place = ModelPlace(out, request, dataset, device)
    held = held_out_episodes(data.episodes, request.validation, request.seed)
    with (
        naming(out, DivergedError),
        writing(out, kind="model", overwrite=overwrite) as refusal,
    ):
        done = None if overwrite or place.is_replacement() else place.finished(updates)
        if done is not None and done.check is None:
            raise DamagedError(
                "has no check, which finished training ends with",
                where=out,
                remedy="start over with --overwrite, or remove it",
            )
        if done is not None and done.fit.total == updates:
            if refusal is None:
                place.settle(done, hooks.note)
                _report_trials(done, hooks)
                _report_end(done, LossEvents(hooks.on_event), hooks)
            return ModelResult(done, 0.0, 0.0, 0, already_complete=True)
        if refusal is not None:
            raise refusal
        if overwrite:
            remove_file(place.partial)
        started = time.perf_counter()
        file = place.to_go_on(updates, done) or done
        if file is None:
            _note_shortage(data, held, request.seed, hooks)
            file = _begin(data, request, held, updates, environment, dataset, hooks, device)
        else:
            _report_trials(file, hooks)
        try:
            trained = _train(place, file, data, held, updates, hooks)
        except DivergedError as error:
            if request.mixed is not None or not file.ensemble.settings.mixed:
                raise
            _note_not_mixed(error, hooks)
            file = _not_mixed(file, updates)
            trained = _train(place, file, data, held, updates, hooks)
        result = dataclasses.replace(file, check=trained.check, where=str(out))
        result.save(out)
        remove_file(place.partial)
        _report_end(result, trained.losses, hooks)
    seconds = time.perf_counter() - started
    return ModelResult(result, seconds, trained.seconds, trained.updates, already_complete=False)


@dataclass(frozen=True)
class _Trained:
    """What came of a training: its check, the time that it took, the losses that it reported."""

    check: ModelCheck
    seconds: float
    updates: int
    losses: LossEvents


def _train(
    place: ModelPlace,
    file: ModelFile,
    data: Trajectories,
    held: NDArray[np.bool_],
    updates: int,
    hooks: Hooks,
) -> _Trained:
    """Train to the updates wanted, and check what came of it."""
    started = time.perf_counter()
    fit, losses = file.fit, LossEvents(hooks.on_event)
    keeper = _Keeper(place.partial, file, hooks, losses)
    fit.extend(updates)
    first = fit.updates
    ensemble, learned_from = fit.ensemble, np.flatnonzero(~held[data.episode])
    steps = Steps.of(data, ensemble.scales, learned_from, ensemble.device)
    try:
        advance(fit, steps, updates, keeper)
        seconds = time.perf_counter() - started
        check = check_model(ensemble, data, held, ensemble.settings.seed)
    except DivergedError:
        remove_file(keeper.partial)  # the same training from there would diverge again
        raise
    except BaseException:
        if fit.whole:  # Ctrl-C, SIGTERM: every whole update is kept
            with contextlib.suppress(PbvfError):
                keeper.keep()
        raise
    return _Trained(check, seconds, updates - first, losses)


def _note_shortage(data: Trajectories, held: NDArray[np.bool_], seed: int, hooks: Hooks) -> None:
    if hooks.note is not None and (shortage := foreseen_shortage(data, held, seed)) is not None:
        hooks.note(f"note: {shortage}")


def _not_mixed(file: ModelFile, updates: int) -> ModelFile:
    """Return the same at update 0, with networks of one objective."""
    ensemble = file.ensemble
    settings = dataclasses.replace(ensemble.settings, mixed=False)
    ensemble = Ensemble(ensemble.spec, ensemble.scales, settings).to(ensemble.device)
    return dataclasses.replace(file, fit=start_training(ensemble, updates), check=None)


def _note_not_mixed(error: DivergedError, hooks: Hooks) -> None:
    if hooks.note is not None:
        hooks.note(
            "note: networks that learn ten steps in a row diverge on these data "
            f"({error.what}), so all learn like the others"
        )


def _report_trials(file: ModelFile, hooks: Hooks) -> None:
    for number, trial in enumerate(file.trials, start=1):
        _report_trial(number, trial, hooks)


def _report_trial(number: int, trial: Trial, hooks: Hooks) -> None:
    if hooks.on_event is not None:
        values = {name: getattr(trial, name) for name in ("noise", "angles", "mixed")}
        hooks.on_event("trial", number, values | {"score": trial.check.score})


def _report_end(file: ModelFile, losses: LossEvents, hooks: Hooks) -> None:
    """Report what the file of a finished training holds and was not reported yet."""
    losses(file.fit, finished=True)
    if hooks.on_event is not None and file.check is not None:
        values = {
            f"{name}_{horizon.steps}": getattr(horizon, name)
            for horizon in file.check.horizons
            for name in _CHECKED
        }
        hooks.on_event("check", file.fit.updates, values)


def _begin(
    data: Trajectories,
    request: ModelRequest,
    held: NDArray[np.bool_],
    updates: int,
    environment: EnvReference | None,
    dataset: str,
    hooks: Hooks,
    device: torch.device | None,
) -> ModelFile:
    tried = 0

    def note(trial: Trial) -> None:
        nonlocal tried
        tried += 1
        _report_trial(tried, trial, hooks)
        if hooks.trial is not None:
            hooks.trial(trial)

    shape = {field.name: getattr(request, field.name) for field in fields(ModelShape)}
    share = max(request.validation, TRIAL_VALIDATION)
    settings, trials = choose_settings(
        data,
        held_out_episodes(data.episodes, share, request.seed),
        ModelSettings(
            **shape, recovery=request.recovery, huber=request.huber, unroll=request.unroll
        ),
        noises=NOISES if request.noise is None else (request.noise,),
        angles=(False, True) if request.angles is None else (request.angles,),
        mixed=_mixed(request),
        updates=request.trial_updates,
        hooks=ChoiceHooks(
            note,
            lambda error: _note_not_mixed(error, hooks),
            hooks.trying or (lambda *_: None),
        ),
        device=device,
    )
    scales = Scales.of(data, np.flatnonzero(~held[data.episode]))
    initial = data.initial_observations.astype(np.float64)
    kept = generator(request.seed, Stream.MODEL_CHECK, 1).permutation(len(initial))[:MAX_INITIAL]
    return ModelFile(
        fit=start_training(Ensemble(data.policies.spec, scales, settings).to(device), updates),
        asked=request.to_dict(),
        environment=environment,
        dataset=dataset,
        initial_observations=initial[np.sort(kept)],
        trials=trials,
    )


def _mixed(request: ModelRequest) -> tuple[bool, ...]:
    """Return which answers there are to choose from."""
    if request.members == 1:
        return (False,)
    return (False, True) if request.mixed is None else (request.mixed,)


def _by_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked for, the precision as its option has it."""
    rest = {name: value for name, value in asked.items() if name != "bfloat16"}
    return {**rest, "precision": precision_name(asked.get("bfloat16", False))}


@dataclass
class _Keeper:
    """Writes the unfinished training every so often, reports progress and losses."""

    partial: Path
    file: ModelFile
    hooks: Hooks
    losses: LossEvents
    last: float = 0.0

    def __post_init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, fit: ModelFit) -> None:
        if self.hooks.update is not None:
            losses = fit.pending or [loss for _, loss in fit.record] or [math.nan]
            self.hooks.update(fit.updates, fit.total, losses[-1])
        self.losses(fit)
        if time.monotonic() - self.last > CHECKPOINT_SECONDS:
            self.keep()

    def keep(self) -> None:
        self.file.save(self.partial)
        self.last = time.monotonic()

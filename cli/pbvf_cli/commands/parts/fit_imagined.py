"""``pbvf fit-critic --model``: a critic fitted to imagined episodes, round after round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbvf_cli.shared.errors import signals
from pbvf_cli.shared.inputs.critics import note_unseen, open_model
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, number, time_taken
from pbvf_cli.shared.terminal.progress import COMPARING, Bar, Stages
from pbvf_offline.critics import CRITICS
from pbvf_offline.errors import UsageError, counted
from pbvf_offline.fit.rounds import RoundSettings, round_defaults
from pbvf_offline.io.formats import each_digest

if TYPE_CHECKING:
    import torch

    from pbvf_cli.shared.command import Given
    from pbvf_cli.shared.inputs.data import Data
    from pbvf_cli.shared.outputs.curves import Curve
    from pbvf_offline.fit.rounds import Round
    from pbvf_offline.fit.settings import FitSettings
    from pbvf_offline.synthesis.rounds_to_file import RoundsResult


_STANDS = {True: "the critic of imagined episodes", False: "the default recipe's critic"}
_ALL = ("hidden", "seed", "fingerprint")  # settings of a fit that rounds have too
_OF_STEPS = ("gamma", "n_step")  # those that mean something to a critic that learns from steps


def shared(
    critic: str, given: Given[FitSettings], search: Given[RoundSettings]
) -> Given[RoundSettings]:
    """Return what was given of the settings of rounds, with those that a fit has too.

    Args:
        critic: The kind of critic.
        given: What was given of the settings of a fit.
        search: What was given of the settings that rounds alone have.
    """
    names = _ALL if CRITICS.choose(critic).monte_carlo else (*_ALL, *_OF_STEPS)
    values = {name: given.values[name] for name in names if name in given.values}
    return replace(search, values={**search.values, **values}, names=(*search.names, *names))


def refuse_others(model: Path | None, beside: Sequence[str], without: Sequence[str]) -> None:
    """Refuse options that have no meaning with ``--model``, or without it.

    Args:
        model: The model file, if given.
        beside: Options that were given and mean nothing with it.
        without: Options that were given and mean nothing without it.

    Raises:
        UsageError: There is such an option.
    """
    word, options = ("without", without) if model is None else ("beside", beside)
    for option in options:
        why = "leave it out: imagined returns are of the raw reward"
        remedy = why if option == "--reward" and model is not None else "leave it out"
        raise UsageError(f"has no meaning {word} --model", where=option, remedy=remedy)


def fit_imagined(
    sink: Sink,
    table: SettingsTable,
    data: Data,
    critic: str,
    model: Path,
    given: Given[RoundSettings],
    curve: Curve,
    *,
    device: torch.device,
    overwrite: bool,
    force: bool,
) -> None:
    """Run the rounds and print their result.

    Args:
        sink: The command's output.
        table: The settings so far.
        data: What the critic is fitted to.
        critic: The kind of critic.
        model: The model file.
        given: Settings of the rounds.
        curve: The critic file, and where its curve goes.
        device: Where to compute.
        overwrite: Replace the output, also one of other settings.
        force: Use the model though its check failed.

    Raises:
        IncompatibleError: The model is of another environment or of other policies, or its check
            failed.
        UsageError: The critic would not read the policies that are to climb.
    """
    with signals.held():  # an exception raised while torch loads would abort the process
        from pbvf_cli.shared.inputs.environments import refuse_other_model
        from pbvf_offline.io.reading import file_digest
        from pbvf_offline.models.imagine import refuse_other_policies
        from pbvf_offline.synthesis.rounds_to_file import (
            RoundCallbacks,
            rounds_to_file,
            stored_rounds_seed,
        )

    out = curve.out
    signals.continues = False  # rounds have no file of their progress
    file = open_model(model, device, force=force)
    refuse_other_model(data.environment, "the data are", file.environment, model, force=force)
    own = data.trajectories.policies.spec
    refuse_other_policies(file.ensemble, own, model)
    table.show("model", model)
    settings = table.fill(
        given,
        round_defaults(critic, data.env_id),
        stored_seed=None if overwrite else lambda _: stored_rounds_seed(out),
        hidden=("compare",),
    )
    table.show("compare", *_comparison(settings.compare, given))
    if settings.policy not in (None, own.hidden) and settings.fingerprint == 0:
        raise UsageError(
            f"a critic of parameters reads those of {own.arch} policies, and no others",
            where="--policy",
            remedy="add --fingerprint N: it then reads what policies do",
        )
    curve.show(table)
    sink.settings("pbvf fit-critic", table.settings)
    failed = None if file.check is None else file.check.refusal
    if failed is not None:
        sink.note(f"warning: {model}: {failed}; it is used all the same (--force)")
    note_unseen(model, file, sink)
    known = {data.manifest, *each_digest(data.digest)}
    if not known.issuperset(each_digest(file.dataset)):
        sink.note("note: the model was learned from other data")
    total = settings.rounds
    if settings.tries > 1:
        total += (settings.tries - 1) * min(settings.first_rounds, settings.rounds)
    done = 0
    unit = "" if settings.gamma == 1.0 else " (discounted)"
    with (
        Bar("imagining", "rounds", sink=sink) as bar,
        Stages(COMPARING, sink) as stages,
        curve.opened("fit-critic", table) as on_event,
    ):

        def report(last: Round) -> None:
            nonlocal done
            done += 1
            believed, imagined = number(last.believed, 4), number(last.cautious, 4)
            words = f"the critic says {believed}{unit}, the model {imagined} (cautious)"
            bar.update(done, total, words)

        def comparing(stage: str, done: int, total: int) -> None:
            bar.close()
            stages.update(stage, done, total)

        result = rounds_to_file(
            data.trajectories,
            file,
            settings,
            out,
            model_digest=file_digest(model),
            environment=data.environment,
            dataset=data.digest_in(out),
            overwrite=overwrite,
            # The first round may take a minute.
            callbacks=RoundCallbacks(sink.begin, report, comparing, on_event, sink.note),
        )
    curve.note_missing(sink, complete=result.already_complete)
    _print(sink, out, result, data, failed)


def _comparison(updates: int, given: Given[RoundSettings]) -> tuple[str, str]:
    """Return what is said of the comparison, which may take longer than the rounds."""
    source = "given" if "compare" in given.values else "default; --compare 0 leaves it out"
    what = "the default recipe is fitted too, and held against the result"
    return f"{counted(updates, 'update')}: {what}" if updates else "0: no comparison", source


def _print(sink: Sink, out: Path, result: RoundsResult, data: Data, failed: str | None) -> None:
    """Print the result; ``failed`` is what the check of the model said against it, or None."""
    imagined = result.file.imagined
    if imagined is None:
        raise TypeError("rounds end with a critic that says so")
    kept, settings, compared = imagined.kept, imagined.settings, imagined.comparison
    fit = result.file.fit
    payload: dict[str, Any] = {
        "critic": out,
        "kind": fit.settings.kind,
        "updates": result.file.updates,
        "loss": fit.loss,
        "seconds": result.seconds,
        "gamma": fit.settings.gamma,
        "reward": fit.settings.reward,
        "seed": settings.seed,
        "dataset": result.file.context.dataset,
        **data.counts,
        "model": imagined.model,
        "model_refusal": failed,
        "horizon": imagined.horizon,
        "kept": kept.to_dict(),
        "rounds": [done.to_dict() for done in imagined.rounds],
        "comparison": None if compared is None else compared.to_dict(),
        "stands": "imagined" if imagined.stands else "recipe",
        "snapshots": [],
        "validation": None,
        "already_complete": result.already_complete,
    }
    spent = result.rounds_seconds
    rate = len(imagined.rounds) / spent if spent > 0 else None
    rows = [
        ("critic", str(out)),
        ("rounds", f"{len(imagined.rounds):,}, of {imagined.horizon:,} steps an episode"),
        ("kept", f"round {kept.number} of try {kept.attempt + 1}"),
        ("imagined return, cautious", number(kept.cautious)),
        ("imagined return, mean", number(kept.mean)),
    ]
    if compared is not None:
        rows += [
            ("policies grown from it, cautious", number(compared.imagined)),
            (f"from the default recipe's {compared.kind}, cautious", number(compared.recipe)),
            ("what stands", _STANDS[imagined.stands]),
        ]
    if failed is not None:
        rows.append(("used in spite of", failed))
    rows += [
        ("seed", str(settings.seed)),
        ("time", time_taken(result.seconds, rate, "rounds", spent)),
    ]
    if compared is None and settings.compare > 0:
        sink.note(
            "note: the default recipe diverged, or no ascent could begin in its trust region, so "
            "there was nothing to compare with"
        )
    if compared is not None and not imagined.stands:
        sink.note(
            f"note: the file holds the default recipe's {compared.kind}: policies grown from it "
            f"have a cautious imagined return of {number(compared.recipe, 4)}, those of the "
            f"critic of imagined episodes {number(compared.imagined, 4)}"
        )
    sink.result(payload, rows, place=out)

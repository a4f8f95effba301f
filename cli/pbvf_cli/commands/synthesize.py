"""``pbvf synthesize``: grow policies from random weights, or given ones, by climbing a critic."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import Given, command
from pbvf_cli.shared.inputs.critics import (
    load_evaluator,
    named,
    open_critic,
    refuse_unread,
    warn_if_other_than,
)
from pbvf_cli.shared.options import DeviceName, argument, option
from pbvf_cli.shared.outputs.curves import Curve
from pbvf_cli.shared.registered import CurveLoggers, Wrappers
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, as_payload, number
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline.errors import UsageError
from pbvf_offline.records import Defaults
from pbvf_offline.synthesis.settings import EvaluationSettings, SynthesisSettings

if TYPE_CHECKING:
    from pbvf_offline.fit.critic_file import CriticFile
    from pbvf_offline.policies.policy import Policies
    from pbvf_offline.synthesis.to_file import SynthesisResult

_FRESH = (
    "count",
    "restarts",
    "candidates",
    "hidden",
    "family",
)  # settings of policies from random weights


@command(
    "pbvf synthesize critic.safetensors --out policies.safetensors",
    "pbvf synthesize critic.safetensors --from-scratch 10 --evaluate --out policies.safetensors",
    "pbvf synthesize critic.safetensors --model model.safetensors --out policies.safetensors",
    "pbvf synthesize critic.safetensors --policy 64,64 --out policies.safetensors",
    "pbvf synthesize critic.safetensors --from policies.safetensors --out better.safetensors",
    "pbvf synthesize critic.safetensors --no-trust-region --evaluate --out policies.safetensors",
)
def synthesize(
    critic: Annotated[Path, argument("CRITIC", "A critic file.")],
    *,
    out: Annotated[Path, option("--out", "Where the policies are written.", "FILE")],
    given: Given[SynthesisSettings],
    start: Annotated[
        Path | None,
        option("--from", "Climb from the policies in this file, not from random weights.", "FILE"),
    ] = None,
    dataset: Annotated[
        str | None,
        option("--dataset", "Take the states from this dataset, not from the critic's file.", "ID"),
    ] = None,
    require_manifest: options.RequireManifest = False,
    model: Annotated[
        Path | None,
        option(
            "--model",
            "Choose among --candidates in this learned environment, and hold the result against "
            "the dataset's policies there.",
            "FILE",
        ),
    ] = None,
    evaluate: Annotated[
        bool,
        option(
            "--evaluate/--no-evaluate",
            "Run the policies in the environment, to measure them; the choice is the same.",
        ),
    ] = False,
    env: Annotated[
        str | None, option("--env", "Where to measure; the critic's own by default.", "ENV")
    ] = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    wrapper: Wrappers = None,
    protocol: Given[EvaluationSettings],
    workers: Annotated[
        int | None,
        options.counting(
            "--workers",
            "Processes that run episodes, and that climb where --from-scratch is large; results "
            "do not change.",
            most=options.MOST_WORKERS,
            show_default=options.USUAL_WORKERS,
        ),
    ] = None,
    ray: options.Ray = None,
    threads: options.Threads = None,
    log_dir: options.LogDir = None,
    logger: CurveLoggers = None,
    overwrite: options.Overwrite = False,
    device: options.Device = DeviceName.AUTO,
    sink: Sink,
) -> None:
    """Grow policies from random weights, by gradient ascent on a critic that stays as it is.

    With --from, given policies climb instead. Only --evaluate takes environment steps.
    """
    values.output_file(out, start if overwrite else None)
    curve = Curve(log_dir, logger, out)
    trust_region = given.get("trust_region", True)
    _refuse_contradictions(given, start)
    place = values.EnvOptions(env, env_kwargs, max_episode_steps, wrapper)
    if not evaluate:
        _refuse_measuring([*place.given, *protocol.options()])

    torch_device = devices.torch_device(devices.of_units(device, ray))

    from pbvf_cli.shared.inputs import environments
    from pbvf_offline.io.reading import file_digest
    from pbvf_offline.synthesis.settings import evaluation_defaults
    from pbvf_offline.synthesis.to_file import chosen_by_critic, stored_seed, synthesize_to_file

    environments.silence_gymnasium()
    file = open_critic(critic, torch_device)
    reference = file.context.environment
    env_id = None if reference is None else reference.id
    table = SettingsTable()
    table.show("critic", named(critic, file))
    table.show("out", out)
    devices.use_threads(threads, table)
    started = None if start is None else _started(start, file)
    if start is not None:
        table.show("from", start)
    settings = table.fill(
        given,
        _defaults(
            env_id,
            started,
            file,
            given,
            # What the critic has chosen before is only held against the data.
            judged=model is not None and (overwrite or not chosen_by_critic(out)),
        ),
        stored_seed=None if overwrite else lambda _: stored_seed(out),
        hidden=(*(() if trust_region else ("radius",)), *(() if start is None else _FRESH)),
    )
    _refuse_other_architecture(settings, file)
    evaluation = None
    if evaluate:
        sources = [(reference, critic)]
        config = environments.choose_environment(place, sources, file.spec)
        table.environment(config, place, "env")
        usual = evaluation_defaults(config, seed=settings.seed)
        evaluation = table.fill(protocol, usual)
    observations, digest = None, None
    if dataset is not None:
        table.show("dataset", dataset)
        observations, digest = _states(dataset, file, settings, require_manifest=require_manifest)
    evaluator = None
    if model is not None:
        evaluator = load_evaluator(model, file, None, table, sink)
    curve.show(table)
    engine = devices.units(workers, ray, table, steps=_measured_steps(settings, evaluation))
    sink.settings("pbvf synthesize", table.settings)
    with (
        Bar("climbing", "steps", sink=sink) as climb,
        Bar("measuring", "episodes", sink=sink) as measure,
        Bar("imagining", "policies", sink=sink) as imagine,
        curve.opened("synthesize", table) as on_event,
        engine as at_once,
    ):
        bars = {"synthesize": climb, "evaluate": measure, "imagine": imagine}
        result = synthesize_to_file(
            critic,
            file,
            settings,
            out,
            given=started,
            given_digest=None if start is None else file_digest(start),
            observations=observations,
            states_digest=digest,
            evaluation=evaluation,
            evaluator=evaluator,
            model_digest=None if model is None else file_digest(model),
            workers=at_once,
            overwrite=overwrite,
            progress=lambda stage, done, total: bars[stage].update(done, total),
            on_event=on_event,
        )
    curve.note_missing(sink, complete=result.already_complete)
    measured_in = {} if evaluation is None else environments.environment_payload(evaluation.env)
    _print(sink, out, settings.seed, result, file.unit, measured_in)


def _refuse_contradictions(given: Given[SynthesisSettings], start: Path | None) -> None:
    if "radius" in given.values and not given.get("trust_region", True):
        raise UsageError("does not go with --no-trust-region", where="--radius")
    if start is not None and (other := given.options(*_FRESH)):
        raise UsageError("does not go with --from, whose policies are climbed", where=other[0])


def _defaults(
    env_id: str | None,
    started: Policies | None,
    critic: CriticFile,
    given: Given[SynthesisSettings],
    *,
    judged: bool,
) -> Defaults[SynthesisSettings]:
    """Return the defaults of growing fresh policies, or of climbing given ones."""
    from pbvf_offline.synthesis.settings import synthesis_defaults

    usual = synthesis_defaults(
        env_id,
        trust_region=given.get("trust_region", True),
        restarts=given.get("restarts", None),
        judged=judged and started is None,
    )
    if started is not None:
        return Defaults(replace(usual.settings, count=len(started), restarts=1), usual.sources)
    imagined = critic.imagined
    if imagined is None:
        return usual
    own: dict[str, Any] = {}
    if imagined.settings.policy is not None:
        own["hidden"] = imagined.settings.policy
    if imagined.stands and imagined.settings.radius != usual.settings.radius:
        own["radius"] = imagined.settings.radius
    sources = {**usual.sources, **dict.fromkeys(own, "that of its rounds")}
    return Defaults(replace(usual.settings, **own), sources)


def _measured_steps(settings: SynthesisSettings, evaluation: EvaluationSettings | None) -> int:
    """Return how many environment steps are taken at most."""
    if evaluation is None:
        return 0
    groups = settings.steps // evaluation.every + 3  # on the way, at the ends, the nearest ones
    return devices.steps_of(evaluation.env, groups * settings.count * evaluation.episodes)


def _started(path: Path, critic: CriticFile) -> Policies:
    """Return the policies of a file that are to be climbed.

    Warns where they come from another environment than the critic.

    Raises:
        IncompatibleError: The critic does not read them, or they have no parameters in its
            normaliser.
    """
    from pbvf_cli.shared.inputs.policies import open_policies_file, refuse_unexpressed

    loaded = open_policies_file(path)
    refuse_unread(critic, loaded.policies.spec, path)
    refuse_unexpressed(loaded.policies, critic.normaliser, path)
    warn_if_other_than(critic, loaded.environment, path)
    return loaded.policies


def _refuse_other_architecture(settings: SynthesisSettings, critic: CriticFile) -> None:
    """Refuse fresh policies of an architecture that the critic does not read."""
    view = critic.critic.view
    if settings.spec_like(critic.spec) != critic.spec and not view.any_architecture:
        raise UsageError(
            f"the critic reads parameters of {critic.spec.arch} policies, and no others",
            where="--family" if settings.hidden in (None, critic.spec.hidden) else "--policy",
            remedy="fit it with --fingerprint N: it then reads what policies do",
        )


def _refuse_measuring(given: list[str]) -> None:
    """Refuse options that say how to measure when nothing is measured."""
    if given:
        raise UsageError(
            "says how to measure, but nothing is measured", where=given[0], remedy="add --evaluate"
        )


def _states(
    dataset: str, critic: CriticFile, settings: SynthesisSettings, *, require_manifest: bool
) -> tuple[Any, str]:
    """Return the observations of a dataset that the objective is over, and its digest.

    Warns where they come from another version of the critic's environment, or from the same with
    other arguments.

    Raises:
        IncompatibleError: It is of another environment than the critic.
    """
    from pbvf_cli.shared.inputs.environments import refuse_other_family
    from pbvf_datasets import load_dataset
    from pbvf_offline.envs.reference import EnvReference
    from pbvf_offline.io.mapped import taken
    from pbvf_offline.synthesis.ascent import drawn_rows

    data = load_dataset(dataset, require_manifest=require_manifest)
    known, wanted = data.environment, critic.context.environment
    named = None if known is None else EnvReference.from_dict(known, dataset)
    given, own = (None if one is None else one.id for one in (named, wanted))
    refuse_other_family(given, own, dataset)
    warn_if_other_than(critic, named, dataset)
    flat = data.trajectories
    rows = flat.obs_row_of(drawn_rows(len(flat), settings))
    return taken(flat.observations, rows).astype(float), data.digest


def _print(
    sink: Sink,
    out: Path,
    seed: int,
    result: SynthesisResult,
    unit: str,
    measured_in: dict[str, object],
) -> None:
    header = ["policy", "chosen step", "predicted", "objective", "distance"]
    columns: list[list[str]] = [
        [str(k) for k in range(len(result.predicted))],
        [str(step) for step in result.chosen_step],
        [number(v) for v in result.predicted],
        [number(v) for v in result.objective],
        [number(v, 3) for v in result.distance],
    ]
    if result.returns is not None and result.closest is not None:
        header += ["return", "nearest dataset policy"]
        columns += [[number(v) for v in result.returns], [number(v) for v in result.closest]]
    payload = as_payload(result, "file") | {"policies": out, "seed": seed, **measured_in}
    payload["units"] = {"predicted": unit}
    rows = [("policies", str(out)), ("seed", str(seed)), ("predicted is the", unit)]
    if result.cautious is not None:
        header.append("cautious return")
        columns.append([number(v) for v in result.cautious])
        if result.low is not None and result.high is not None:
            header.append("90 % interval")
            ends = zip(result.low, result.high, strict=True)
            columns.append([_interval(*pair) for pair in ends])
        header.append("held against the data")
        columns.append(_held_against_data(result))
        best = ", ".join(number(v) for v in result.data_cautious or [])
        rows.append(("best of the data by the same estimate", best))
    sink.result(payload, rows, table=(header, list(zip(*columns, strict=True))), place=out)


def _interval(low: float | None, high: float | None) -> str:
    return "not known" if low is None else f"{number(low)} to {number(high)}"


def _held_against_data(result: SynthesisResult) -> list[str]:
    best = (result.data_cautious or [math.inf])[0]
    return [
        "above the data" if sure else f"{'perhaps' if value > best else 'not'} above the data"
        for sure, value in zip(result.above_data or [], result.cautious or [], strict=True)
    ]

"""What the card of a bundle tells of each thing in it, from the thing's own records."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pbvf_datasets.inspect.verify_file import GRAPH, WEIGHTS
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import PbvfError
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.records import Defaults
from pbvf_runs.share.lineage import Thing

MODULE: Final = "MODULE"  # stands in commands for a module, which only a reader may name
_NO_DEFAULT: Final = ("kind", "seed")
_SHOWN: Final = 20  # numbers of a list
_PLAIN: Final = re.compile("[a-z0-9_]{1,40}")
_LARGE: Final = 1e300
_ENV_ID: Final = re.compile(r"(?:[\w.-]+/)?[\w.-]+")


@dataclass
class Facts:
    """What is told of one thing.

    Attributes:
        rows: What it is.
        settings: Each with its value and the default that this is, or ``chosen``.
        checks: What checks said of it.
        commands: How to use it.
    """

    rows: dict[str, object]
    settings: list[tuple[str, object, str]] = field(default_factory=list)
    checks: dict[str, object] = field(default_factory=dict)
    commands: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class Around:
    """What a thing is shared with, as far as its commands name it.

    Attributes:
        names: What things were made from: what each is called there or, of a dataset that is not
            among them, its id; by digest.
        models: Models that may imagine whole episodes, by their own digest and their dataset's.
        failed: What the check of each other model said against it, by its own digest.
    """

    names: Mapping[str, str]
    models: Mapping[str, str]
    failed: Mapping[str, str]

    @classmethod
    def of(cls, parts: Sequence[Thing], names: Mapping[str, str]) -> Around:
        """Return what is around each of several things.

        Raises:
            PbvfError: A model cannot be read.
        """
        from pbvf_offline.models.model_file import load_model

        models: dict[str, str] = {}
        failed: dict[str, str] = {}
        for part in parts:
            if part.kind == "model":
                file = load_model(part.path)
                refusal = None if file.check is None else file.check.refusal
                if refusal is not None:
                    failed |= dict.fromkeys(part.digests(), refusal)
                elif file.check is not None:
                    models |= dict.fromkeys((file.dataset, *part.digests()), part.name)
        return cls(names, models, failed)


def facts_of(part: Thing, around: Around) -> Facts:
    """Return what is told of one thing.

    Raises:
        PbvfError: It cannot be read.
    """
    return _FACTS[part.kind](part, around)


def _about(environment: EnvReference | None, spec: PolicySpec) -> dict[str, object]:
    rows: dict[str, object] = {
        "environment": "not named" if environment is None else environment.name
    }
    if environment is not None and environment.arguments:
        rows["its arguments"] = environment.arguments
    kind = "stochastic" if spec.stochastic else "deterministic"
    rows["policies"] = f"{kind}, {spec.arch}, {spec.size:,} parameters, family {spec.family}"
    return rows


def _settings(
    values: Mapping[str, Any], defaults: Defaults[Any] | None
) -> list[tuple[str, object, str]]:
    """Return settings, each with the default that it equals, else ``chosen``.

    A file does not say whether a value that equals the default was given. The kind of a critic and
    a seed have no default.
    """
    usual = {} if defaults is None else defaults.settings.to_dict()
    return [
        (
            name,
            value,
            defaults.source_of(name)
            if name not in _NO_DEFAULT and defaults is not None and usual.get(name) == value
            else "chosen",
        )
        for name, value in sorted(values.items())
    ]


def _told(values: object) -> dict[str, object]:
    """Return what a file says was measured: numbers, and short lists of them, by plain names."""
    told: dict[str, object] = {}
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if not isinstance(name, str) or _PLAIN.fullmatch(name) is None:
            continue
        many = value if isinstance(value, list) else [value]
        if many and all(isinstance(one, int | float) for one in many):
            # An integer of a file may be larger than any float.
            shown = [f"{one:.4g}" if abs(one) < _LARGE else "…" for one in many[:_SHOWN]]
            told[name.replace("_", " ")] = ", ".join(shown + ["…"] * (len(many) > _SHOWN))
    return told


def _critic(part: Thing, around: Around) -> Facts:
    from pbvf_offline.fit.critic_file import load_critic
    from pbvf_offline.fit.rounds import round_defaults
    from pbvf_offline.fit.settings import fit_defaults

    file = load_critic(part.path)
    environment, imagined = file.context.environment, file.imagined
    env_id = None if environment is None else environment.id
    facts = Facts(
        {
            "critic": file.critic.kind.name,
            "predicts": file.unit,
            **_about(environment, file.spec),
            "gradient steps": file.updates,
        }
    )
    if file.fit.record:
        facts.rows["loss"] = file.fit.record[-1][1]
    usual: Defaults[Any] | None = None
    if imagined is None or not imagined.stands:
        with contextlib.suppress(PbvfError):
            usual = fit_defaults(file.critic.kind.name, env_id, file.spec)
        facts.settings = _settings(file.fit.settings.to_dict(), usual)
    else:
        with contextlib.suppress(PbvfError):
            usual = round_defaults(imagined.settings.kind, env_id)
        facts.settings = _settings(imagined.settings.to_dict(), usual)
        facts.checks["cautious imagined return of its round"] = imagined.kept.cautious
    if imagined is not None and imagined.comparison is not None:
        facts.checks["policies grown from imagined episodes"] = imagined.comparison.imagined
        facts.checks["policies grown by the default recipe"] = imagined.comparison.recipe
    facts.checks |= _told(file.validation)
    asked = "" if imagined is None else imagined.model
    if asked in around.failed:
        facts.checks["fitted with a model that failed"] = around.failed[asked]
    elif imagined is not None and imagined.unfit:
        facts.checks["fitted with a model that failed"] = "unfit for whole episodes by its check"
    model = around.models.get(asked) or around.models.get(file.context.dataset)
    judged = () if model is None else ("--model", model)
    name, grown = part.name, _outside("grown", part)
    facts.commands = [
        ("pbvf", "synthesize", name, "--from-scratch", "5", *judged, "--out", grown),
        ("pbvf", "predict", name, grown, *judged),
    ]
    return facts


def _model(part: Thing, around: Around) -> Facts:
    from pbvf_offline.models.model_file import load_model
    from pbvf_offline.models.settings import ModelRequest

    file = load_model(part.path)
    settings = file.ensemble.settings
    usual = Defaults(ModelRequest(seed=settings.seed), {})  # of those that learn, not of old files
    facts = Facts(
        {
            "networks": settings.members,
            **_about(file.environment, file.ensemble.spec),
            "gradient steps": f"{file.fit.updates:,} of {file.fit.total:,}",
        },
        [
            (name, value, _model_source(name, file.asked) or origin)
            for name, value, origin in _settings(settings.to_dict(), usual)
        ],
    )
    if file.check is not None:
        facts.checks["fit for"] = file.check.fit_for_words
        if file.check.held_words is not None:
            facts.checks["intervals hold"] = file.check.held_words
        if file.check.replayed:
            facts.checks["checked by"] = "replaying stored actions: the data name no policies"
        for horizon in file.check.horizons:
            told = {"correlation": horizon.correlation, "slope": horizon.slope}
            told |= {"error": horizon.error, "spread": horizon.spread}
            values = ", ".join(f"{k} {v:.3g}" for k, v in told.items() if v is not None)
            facts.checks[f"sums of {horizon.steps} held-out steps"] = values
    data = around.names.get(file.dataset, "DATASET")
    more = ("--critic", "pssvf", "--model", part.name, "--out", _outside("critic", part))
    facts.commands = [("pbvf", "fit-critic", data, *more)]
    return facts


def _outside(what: str, part: Thing) -> str:
    """Return a file for what is made of a part: outside the bundle, and no other part's."""
    return f"../{what}-{part.name}"


def _model_source(name: str, asked: Mapping[str, Any]) -> str | None:
    """Return where a setting of a model comes from that has no default of its own."""
    from pbvf_offline.models.settings import MODEL_SOURCES

    if name not in MODEL_SOURCES:
        return None
    if name == "bfloat16":  # a file does not say whether it was given
        return "what that processor had, or chosen"
    return MODEL_SOURCES[name] if asked.get(name) is None else "chosen"


def _policies(part: Thing, _: Around) -> Facts:
    from pbvf_offline.policies.files import load_policies

    file = load_policies(part.path)
    origin, spec = file.origin, file.policies.spec
    made_by, settings = origin.get("made_by"), origin.get("settings")
    facts = Facts({"count": len(file.policies), **_about(file.environment, spec)})
    if isinstance(made_by, str):
        facts.rows["made by"] = made_by
    if isinstance(settings, dict):
        facts.settings = _settings(settings, _synthesis_defaults(file.environment, settings))
    facts.checks = _told(origin.get("result"))
    facts.commands = [_evaluate(part.name, file.environment)]
    return facts


def _evaluate(name: str, environment: EnvReference | None) -> tuple[str, ...]:
    """Return the command that plays policies. Which module to import its reader has to say."""
    place: tuple[str, ...] = ()
    if (
        environment is not None
        and environment.module is not None
        and _ENV_ID.fullmatch(environment.id)
    ):
        place = ("--env", f"{MODULE}:{environment.id}")
    return ("pbvf", "evaluate", name, *place, "--episodes", "10")


def _synthesis_defaults(
    environment: EnvReference | None, settings: Mapping[str, Any]
) -> Defaults[Any] | None:
    from pbvf_offline.synthesis.settings import SynthesisSettings, synthesis_defaults

    with contextlib.suppress(PbvfError):
        made = SynthesisSettings.from_dict(dict(settings), "settings")
        env_id = None if environment is None else environment.id
        return synthesis_defaults(
            env_id,
            count=made.count,
            trust_region=made.trust_region,
            judged=made.candidates > 1,
        )
    return None


def _run(part: Thing, _: Around) -> Facts:
    from pbvf_offline.online.settings import online_defaults
    from pbvf_runs.data import run_config, run_progress
    from pbvf_runs.records import AVERAGES, average_returns

    config, progress = run_config(part.path), run_progress(part.path)
    settings, usual = config.settings, None
    with contextlib.suppress(PbvfError):
        usual = online_defaults(
            settings.kind, config.environment.id, config.spec, seed=0, biased=settings.biased
        )
    facts = Facts(
        {
            "critic": settings.kind,
            **_about(config.environment, config.spec),
            "steps": progress.steps,
            "whole episodes": progress.episodes,
            "state": "finished" if progress.finished else "not finished",
            "measured with": config.evaluation_words,
        },
        _settings(settings.to_dict(), usual),
        {
            AVERAGES[k]: v
            for k, v in average_returns(progress.evaluations, progress.steps).items()
            if v is not None
        },
    )
    if progress.finished:
        out = _outside("critic", part)
        facts.commands = [
            _evaluate(f"{part.name}/policy.safetensors", config.environment),
            ("pbvf", "fit-critic", part.name, "--critic", "psvf", "--out", out),
        ]
    return facts


def _exported(part: Thing, _: Around) -> Facts:
    from pbvf_offline.exchange.exported import read_exported_graph, read_exported_weights

    read = read_exported_graph if part.kind == GRAPH else read_exported_weights
    file = read(part.path)
    return Facts({"format": file.file_format, "holds": file.summary})


_FACTS: Final = {
    "critic": _critic,
    "model": _model,
    "policies": _policies,
    "run": _run,
    WEIGHTS: _exported,
    GRAPH: _exported,
}

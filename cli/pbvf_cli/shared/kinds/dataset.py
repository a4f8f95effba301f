"""Datasets: what is in one, for people and for programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pbvf_cli.shared.terminal.layout import CommandText
from pbvf_cli.shared.terminal.output import Shown, number, pairs, size_text
from pbvf_cli.shared.terminal.policy_text import environment_rows
from pbvf_offline.errors import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pbvf_datasets.inspect.describe import Description, Histogram

_BARS = ("return from", "to", "episodes", "")
_BAR = 20  # characters; with four columns it fits into 60
_ELSEWHERE = ("env", "env_kwargs", "environment", "sources", "base", "policies")
_SHOWN = 12  # numbers of a normaliser; the rest is for --json
_NOT_REPEATABLE = (
    "no: an episode played again from its seed came out otherwise; the environment keeps state, "
    "draws from sources that are not seeded, or was continued on another machine"
)


def show(dataset: str | os.PathLike[str], *, require_manifest: bool = False) -> Shown:
    """Return what is in a dataset; digests and forms are checked.

    Raises:
        PbvfError: As :func:`pbvf_datasets.inspect.describe.describe` does.
    """
    from pbvf_datasets.inspect.describe import describe

    found = describe(dataset, require_manifest=require_manifest)
    bars = None if found.histogram is None else (_BARS, _bars(found.histogram))
    return Shown(found.to_dict(), _rows(found), bars)


def _rows(found: Description) -> list[tuple[str, str]]:
    from pbvf_offline.envs.reference import EnvReference

    provenance = found.provenance or {}
    sizes = sorted(found.sizes.items())
    known = found.environment
    named = None if known is None else EnvReference.from_dict(known, found.path)
    rows = [
        ("dataset", found.dataset),
        ("path", str(found.path)),
        ("verified", "yes: its manifest fits" if found.verified else "no: it has no manifest"),
        ("digest", found.digest),
        *(("known as", was["digest"]) for was in provenance.get("known_as", ())),
        ("licence", found.license or "none given: others may not use it without asking"),
        ("authors", ", ".join(provenance.get("authors", ())) or "none given"),
        ("episodes", str(found.ends)),
        ("steps", number(found.steps)),
        ("steps an episode", _range(found.lengths)),
        ("return of whole episodes", _range(found.returns)),
        ("policies", number(found.policies)),
        ("segments", f"{found.segments:,} ({found.segments / found.episodes:.3g} an episode)"),
        ("policy", _policy(found)),
        ("normaliser", _normaliser(found)),
        ("observations", found.observation_space),
        ("actions", found.action_space),
        *environment_rows(named),
    ]
    if found.repeatable is False:
        rows.append(("repeatable", _NOT_REPEATABLE))
    if found.provenance is not None:
        seed = provenance["seed"]
        rows += [
            ("made by", str(provenance["tool"])),
            ("versions", pairs(provenance["versions"])),
            ("seed", "not known" if seed is None else str(seed)),
            ("warm-up steps", f"{provenance['warmup_steps']:,}, not stored"),
            ("settings", _settings_text(provenance["settings"])),
            ("command", CommandText(provenance.get("command") or "-")),
        ]
        sources = [
            f"{s['id']} ({counted(s['episodes'], 'episode')})"
            for s in provenance.get("sources", ())
        ]
        if sources:
            rows.append(("goes back to", ", ".join(sources)))
    elif isinstance(found.metadata.get("minari_version"), str):
        rows.append(("written by", f"Minari {found.metadata['minari_version']}"))
    files = ", ".join(f"{name} {size_text(size)}" for name, size in sizes)
    return [*rows, ("size", f"{size_text(sum(found.sizes.values()))} ({files})")]


def _range(values: NDArray[Any]) -> str:
    if not values.size:
        return "-"
    low, high = values.min().item(), values.max().item()
    mean = float((values / 2).mean()) * 2
    return f"mean {number(mean)}, {number(low)} to {number(high)}"


def _policy(found: Description) -> str:
    from pbvf_offline.policies.actions import DiscreteActions

    spec = found.spec
    if spec is None:
        return "-"
    kind = "stochastic" if spec.stochastic else "deterministic"
    text = f"{kind}, {spec.arch}, {spec.size:,} parameters"
    # Discrete actions are the largest output, which nothing squashes.
    return text if isinstance(spec.actions, DiscreteActions) else f"{text}, squash {spec.squash}"


def _normaliser(found: Description) -> str:
    if found.obs_mean is None or found.obs_std is None:
        return f"{found.normalisers:,} different ones"
    if not found.obs_mean.any() and (found.obs_std == 1).all():
        return "none (mean 0, std 1)"
    return f"mean {_numbers(found.obs_mean)}; std {_numbers(found.obs_std)}"


def _numbers(values: NDArray[Any]) -> str:
    text = " ".join(number(value, 4) for value in values[:_SHOWN].tolist())
    return f"{text} … ({len(values)})" if len(values) > _SHOWN else text


def _settings_text(settings: Mapping[str, Any]) -> str:
    """Return what was chosen in one line; the policy and the spec have a line of their own."""
    own = chosen(settings)
    nested = own.pop("settings", None)  # of a training run, whose episodes it holds
    if isinstance(nested, dict):
        own |= nested
    return pairs(own | {"policy": None, "spec": None}) or "-"


def chosen(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was chosen; the environment and digests of sources have lines of their own."""
    return {name: value for name, value in settings.items() if name not in _ELSEWHERE}


def _bars(histogram: Histogram) -> list[tuple[str, str, str, str]]:
    edges = [number(edge, 4) for edge in histogram.edges]
    most = max(histogram.counts)
    return [
        (edges[k], edges[k + 1], f"{count:,}", "#" * -(-count * _BAR // most))
        for k, count in enumerate(histogram.counts)
    ]

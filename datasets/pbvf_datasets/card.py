"""The dataset card: ``README.md`` with the header that the Hugging Face Hub reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pbvf_datasets.schema import FORMAT_VERSION
from pbvf_offline.policies import BoxActions, PolicySpec

_BINS = 10
_BAR = 40
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.\-]*")


def card_text(
    dataset_id: str,
    provenance: Mapping[str, Any],
    *,
    spec: PolicySpec,
    returns: Sequence[float],
    command: str | None = None,
) -> str:
    """Return the text of a dataset's card; equal input gives equal text.

    Args:
        dataset_id: ``namespace/name-vN``.
        provenance: As in the manifest.
        spec: Architecture of the policies.
        returns: Undiscounted returns of the whole episodes, in the reward's unit.
        command: What repeats the collection, where one command does.
    """
    stats = provenance["stats"]
    environment = provenance["environment"]
    name = _line(environment["id"]) if environment else "an unnamed environment"
    parts = [
        *_header(dataset_id, provenance["license"]),
        f"# {dataset_id}",
        "",
        f"Trajectories from `{name}`, each step tagged with the parameters of the policy "
        "that acted: data for parameter-based value functions and offline reinforcement "
        "learning.",
        "",
        *_table(
            {
                "episodes": f"{stats['episodes']:,}",
                "steps": f"{stats['steps']:,}",
                "distinct policies": f"{stats['policies']:,}",
                "episodes cut short by the step budget": f"{stats['cut']:,}",
                **_return_rows(stats["return"]),
                "policy": _policy(spec),
                "licence": _line(provenance["license"] or "none given"),
                "authors": ", ".join(_line(a) for a in provenance["authors"]) or "none given",
            }
        ),
        "",
    ]
    if returns:
        parts += ["Returns of whole episodes:", "", "```text", *_histogram(returns), "```", ""]
    parts += ["## How it was made", ""]
    parts += [f"With {_line(provenance['tool'])}, seed {_seed(provenance['seed'])}."]
    if provenance["warmup_steps"]:
        parts += [
            f"The observation normaliser comes from {provenance['warmup_steps']:,} warm-up "
            "steps, which are not stored.",
        ]
    parts += [""]
    if command is not None:
        parts += ["```bash", " ".join(command.split()).replace("```", "'''"), "```", ""]
    rows = {str(k): _json(v) for k, v in sorted(provenance["settings"].items())}
    if rows:
        parts += ["Settings:", "", *_table(rows), ""]
    if environment:
        parts += ["Environment:", "", *_table(_environment_rows(environment)), ""]
    parts += ["Versions:", "", *_table(dict(sorted(provenance["versions"].items()))), ""]
    parts += _loading(dataset_id)
    return "\n".join(parts) + "\n"


def _header(dataset_id: str, license_id: str | None) -> list[str]:
    lines = ["---", f"pretty_name: {json.dumps(dataset_id)}"]
    if license_id is not None:
        if _PLAIN.fullmatch(license_id):
            lines.append(f"license: {json.dumps(license_id.lower())}")
        else:
            lines += ["license: other", f"license_name: {json.dumps(_line(license_id))}"]
    return [
        *lines,
        "task_categories:",
        "- reinforcement-learning",
        "tags:",
        "- reinforcement-learning",
        "- offline-rl",
        "- parameter-based-value-functions",
        "- minari",
        "---",
        "",
    ]


def _loading(dataset_id: str) -> list[str]:
    name = json.dumps(dataset_id)
    return [
        "## How to load it",
        "",
        "With pbvf-offline, which checks every byte first:",
        "",
        "```python",
        "from pbvf_datasets import load_dataset",
        "",
        f"data = load_dataset({name})",
        "data.theta        # (policies, parameters): one row a distinct policy",
        "data.transitions  # obs, action, reward, next_obs, terminated, truncated, policy, episode",
        "```",
        "",
        "With Minari alone:",
        "",
        "```python",
        "import minari",
        "",
        f"for episode in minari.load_dataset({name}):",
        '    theta = episode.infos["theta"]      # (segments, parameters) float32',
        '    segment = episode.infos["segment"]  # (steps + 1,): the row of theta in force',
        '    mean, std = episode.infos["obs_mean"], episode.infos["obs_std"]',
        "```",
        "",
        "Observations, actions and rewards are raw. A policy is its parameters with their",
        "normaliser: the network sees `(obs - obs_mean) / obs_std`. `infos/pbvf` holds the",
        f"architecture as JSON (format version {FORMAT_VERSION}).",
    ]


def _return_rows(stats: Mapping[str, float] | None) -> dict[str, str]:
    if stats is None:
        return {"return of whole episodes": "no whole episode"}
    text = f"mean {_number(stats['mean'])}, {_number(stats['min'])} to {_number(stats['max'])}"
    return {"return of whole episodes": text}


def _policy(spec: PolicySpec) -> str:
    kind = "stochastic" if spec.stochastic else "deterministic"
    if isinstance(spec.actions, BoxActions):
        actions = f"{spec.actions.dim} continuous actions"
    else:
        actions = f"{spec.actions.n} discrete actions"
    return (
        f"{kind}, {spec.arch}, {spec.size:,} parameters, "
        f"{spec.obs_dim:,} observations, {actions}, squash {spec.squash}"
    )


def _environment_rows(environment: Mapping[str, Any]) -> dict[str, str]:
    rows = {"id": _line(environment["id"])}
    if environment["module"] is not None:
        rows["registered by"] = _line(environment["module"])
    if environment["kwargs"]:
        rows["arguments"] = _json(environment["kwargs"])
    if environment["withheld"]:
        rows["arguments not stored"] = ", ".join(_line(w) for w in environment["withheld"])
    return rows


def _histogram(returns: Sequence[float]) -> list[str]:
    low, high = min(returns), max(returns)
    bins = _BINS if high / 2 - low / 2 > 0 else 1
    counts = [0] * bins
    for value in returns:
        # Scaled before the difference is taken, so that huge returns cannot overflow.
        part = (value / 2 - low / 2) / (high / 2 - low / 2) if bins > 1 else 0.0
        counts[min(bins - 1, int(part * bins))] += 1
    edges = [_number(low + (high / bins - low / bins) * k) for k in range(bins)] + [_number(high)]
    width = max(len(edge) for edge in edges)
    size = len(str(max(counts)))
    return [
        f"{edges[k]:>{width}} to {edges[k + 1]:>{width}} | {count:>{size}} "
        f"{'#' * -(-count * _BAR // max(counts))}".rstrip()
        for k, count in enumerate(counts)
    ]


def _number(value: float) -> str:
    return f"{value + 0.0:.4g}"


def _seed(seed: int | None) -> str:
    return "not known" if seed is None else str(seed)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=True)


def _line(text: str) -> str:
    """Keep a stranger's text on one line and out of the way of tables and code fences."""
    return " ".join(str(text).split()).replace("`", "'").replace("|", "/")


def _table(rows: Mapping[str, str]) -> list[str]:
    lines = ["| | |", "|---|---|"]
    return lines + [f"| {_line(k)} | {_line(v)} |" for k, v in rows.items()]

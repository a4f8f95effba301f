"""The card of a bundle: ``README.md``, with the header that the Hugging Face Hub reads of models.

All that stands there comes from the files' own records. What a file says of itself may be hostile,
so it stands in code spans, where nothing but a backtick has an effect.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from pbvf_datasets.format.card import clean, license_lines, paper, rights
from pbvf_datasets.inspect.verify_file import GRAPH, WEIGHTS
from pbvf_runs.share.facts import MODULE, Around, Facts, facts_of
from pbvf_runs.share.lineage import Source, Thing, lineage

_MOST: Final = 400  # characters of a value
_KINDS: Final = {
    "critic": "A parameter-based value function: it says what a policy is worth from the policy's "
    "own parameters, and is differentiable in them.",
    "model": "A learned environment: an ensemble of networks that imagine episodes.",
    "policies": "Policies, each with its parameters and the normaliser of its observations.",
    "run": "A training run with all that continuing it needs: settings, checkpoint, episodes, "
    "metrics, critic and policy. Copy it out of this folder to go on with it.",
    WEIGHTS: "A policy as the weights of a torch module, for programs without pbvf.",
    GRAPH: "A policy as an ONNX graph, for programs without pbvf.",
}
_NO_MODULE: Final = (
    f"`{MODULE}` is left to you: to name a module is to import it, and nothing foreign is imported "
    "unasked. The tables above say which one registered the environment."
)
_HEADER: Final = (
    "library_name: pbvf-offline",
    "pipeline_tag: reinforcement-learning",
    "tags:",
    "- reinforcement-learning",
    "- offline-rl",
    "- parameter-based-value-functions",
)


def bundle_card(
    title: str,
    parts: Sequence[Thing],
    *,
    license: str | None,
    authors: Sequence[str],
    datasets: Mapping[str, str],
) -> str:
    """Return the text of a bundle's card; equal input gives equal text.

    Args:
        title: What to call the bundle.
        parts: What is in it, each named as it is there.
        license: Identifier of the licence, or None.
        authors: Names.
        datasets: Ids of datasets that things in it were made from, by their digests.

    Raises:
        PbvfError: A part cannot be read.
    """
    ties = lineage(parts)
    lines = ["---", *license_lines(license), *_HEADER]
    if datasets:
        ids = dict.fromkeys(datasets.values())
        lines += ["datasets:", *(f"- {json.dumps(one, ensure_ascii=False)}" for one in ids)]
    lines += ["---", "", f"# {clean(title)}", ""]
    lines += [
        "Made with [pbvf-offline](https://pypi.org/project/pbvf-offline/). Of the files listed in "
        "`manifest.json`, `pbvf verify` compares every byte with its digest.",
        "",
    ]
    named = ", ".join(map(clean, authors)) or "none given"
    lines += ["| | |", "|---|---|", f"| licence | {clean(license or 'none given')} |"]
    lines += [f"| authors | {named} |", ""]
    commands: list[tuple[str, ...]] = [("pbvf", "verify", ".")]
    found = {tie.source.digest: tie.found for tie in ties if tie.found is not None}
    around = Around.of(parts, {**datasets, **found})
    for part in parts:
        facts = facts_of(part, around)
        sources = [
            (tie.source, tie.found_shown or datasets.get(tie.source.digest))
            for tie in ties
            if tie.name == part.name
        ]
        lines += _part(part, facts, sources)
        commands += facts.commands
    lines += ["## How to use it", "", "In this folder, once it is here:", "", "```bash"]
    lines += [*(shlex.join(command) for command in commands), "```", ""]
    if any(word.startswith(f"{MODULE}:") for command in commands for word in command):
        lines += [_NO_MODULE, ""]
    lines += [*rights(license, "these files"), "## Citation", "", "```bibtex", paper(), "```"]
    return "\n".join(lines) + "\n"


def _part(part: Thing, facts: Facts, sources: Sequence[tuple[Source, str | None]]) -> list[str]:
    lines = [f"## {_code(part.name)}", "", _KINDS[part.kind], "", *_table(facts.rows)]
    if sources:
        lines += ["What it was made from:", "", "| how | digest | what |", "|---|---|---|"]
        lines += [
            f"| {source.relation} | `{source.digest}` | "
            f"{' or '.join(source.kinds) if name is None else _code(name)} |"
            for source, name in sources
        ]
        lines += [""]
    if facts.settings:
        lines += ["Settings:", "", "| setting | value | which is |", "|---|---|---|"]
        lines += [
            f"| {_code(n)} | {_code(v)} | {clean(origin)} |" for n, v, origin in facts.settings
        ]
        lines += [""]
    if facts.checks:
        lines += ["What checks said:", "", *_table(facts.checks)]
    return lines


def _table(rows: Mapping[str, object]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {clean(k)} | {_code(v)} |" for k, v in rows.items()), ""]


def _code(value: object) -> str:
    """Return a value as a code span, in which nothing has an effect."""
    if isinstance(value, float):
        text = f"{value:.6g}" if math.isfinite(value) else "none"
    elif value is None or isinstance(value, str | int):
        text = "none" if value is None else str(value)
    else:
        text = json.dumps(value, sort_keys=True)
    text = clean(text)
    text = text if len(text) <= _MOST else f"{text[:_MOST]}…"
    return f"`{text}`" if text else "-"

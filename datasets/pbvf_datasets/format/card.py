"""The dataset card: ``README.md`` with the header that the Hugging Face Hub reads.

The figure of returns is text: it shows on the Hub, on GitHub, in a terminal and in a mail, needs
no further file in the format, and has equal bytes whatever drawing library is installed.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pbvf_datasets.format.schema import DATA_FILE, dataset_version, is_not_repeatable
from pbvf_datasets.format.statistics import Ends
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.spec import PolicySpec

_BINS = 10
_BAR = 40
_MOST_SOURCES: Final = 50
_MOST_COMMANDS: Final = 20
_NOT_REPEATABLE: Final = (
    "**Not repeatable.** An episode that was played again from its seed came out otherwise: the "
    "environment keeps state from one episode to the next, draws from sources that are not seeded, "
    "or was continued on another machine. The same command and seed need not give these data again."
)
_BIBTEX = re.compile(r"[\\{}\"#%&$~^_]")

_HUB_LICENSES: Final = """
afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear
bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0
cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0
cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0
cdla-sharing-1.0 ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 gfdl gpl gpl-2.0
gpl-3.0 isc lgpl lgpl-2.1 lgpl-3.0 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1
osl-3.0 pddl postgresql unlicense wtfpl zlib
"""
"""Licences that the Hub knows by name; it refuses a header with any other but ``other``."""
_HUB_NAMES: Final = {"odbl-1.0": "odbl", "odc-by-1.0": "odc-by", "pddl-1.0": "pddl"}


def card_text(
    dataset_id: str,
    provenance: Mapping[str, Any],
    *,
    spec: PolicySpec,
    returns: Sequence[float],
    command: str | None = None,
    data_sha256: str | None = None,
) -> str:
    """Return the text of a dataset's card; equal input gives equal text.

    Args:
        dataset_id: ``namespace/name-vN``.
        provenance: As in the manifest.
        spec: Architecture of the policies.
        returns: Undiscounted returns of the whole episodes, in the reward's unit.
        command: What makes the dataset again, where one command does.
        data_sha256: Digest of the data file, for the citation.
    """
    stats = provenance["stats"]
    environment = provenance["environment"]
    name = clean(environment["id"]) if environment else "an unnamed environment"
    parts = [
        *_header(dataset_id, provenance["license"], stats["steps"]),
        f"# {dataset_id}",
        "",
        f"Trajectories from `{name}`, each step tagged with the parameters of the policy "
        "that acted: data for parameter-based value functions and offline reinforcement "
        "learning.",
        "",
        *_table(
            {
                "episodes": str(Ends.of(stats)),
                "steps": f"{stats['steps']:,}",
                **_length_rows(stats.get("length")),
                "distinct policies": f"{stats['policies']:,}",
                **_return_rows(stats["return"]),
                "policy": _policy(spec),
                "licence": clean(provenance["license"] or "none given"),
                "authors": ", ".join(clean(a) for a in provenance["authors"]) or "none given",
            }
        ),
        "",
    ]
    if returns:
        parts += ["Returns of whole episodes:", "", "```text", *_histogram(returns), "```", ""]
    parts += _making(provenance, command)
    if environment:
        parts += ["Environment:", "", *_table(_environment_rows(environment)), ""]
    parts += ["Versions:", "", *_table(dict(sorted(provenance["versions"].items()))), ""]
    parts += [_loading(dataset_id, dataset_version(provenance)), ""]
    parts += rights(provenance["license"])
    parts += ["## Citation", "", "```bibtex", citation(dataset_id, provenance, data_sha256), ""]
    parts += [paper(), "```"]
    return "\n".join(parts) + "\n"


def citation(dataset_id: str, provenance: Mapping[str, Any], data_sha256: str | None) -> str:
    """Return a BibTeX entry for a dataset; it has no year, since files hold no dates."""
    environment = provenance["environment"]
    title = f"{dataset_id}: policy-tagged trajectories"
    if environment:
        title += f" from {clean(environment['id'])}"
    lines = [f"  title = {{{_bibtex(title)}}}"]
    if provenance["authors"]:
        lines.append(f"  author = {{{' and '.join(_bibtex(a) for a in provenance['authors'])}}}")
    note = f"Made with {_bibtex(provenance['tool'])}"
    if data_sha256 is not None:
        note += f"; SHA-256 of {_bibtex(DATA_FILE)}: {data_sha256}"
    lines.append(f"  note = {{{note}}}")
    key = re.sub(r"[^A-Za-z0-9]+", "-", dataset_id).strip("-") or "dataset"
    return f"@misc{{{key},\n" + ",\n".join(lines) + "\n}"


def clean(text: object) -> str:
    """Keep untrusted text on one line, printable, and without effect on the card's layout."""
    joined = " ".join(str(text).split()).replace("`", "'").replace("|", "/")
    return "".join(c if c.isprintable() else "?" for c in joined)


def _header(dataset_id: str, license_id: str | None, steps: int) -> list[str]:
    return [
        "---",
        f"pretty_name: {json.dumps(dataset_id, ensure_ascii=False)}",
        *license_lines(license_id),
        "task_categories:",
        "- reinforcement-learning",
        "tags:",
        "- reinforcement-learning",
        "- offline-rl",
        "- parameter-based-value-functions",
        "- minari",
        "size_categories:",
        f"- {_size_category(steps)}",
        "---",
        "",
    ]


def license_lines(license_id: str | None) -> list[str]:
    """Return the lines of a card's header that name its licence as the Hub wants it."""
    if license_id is None:
        return []
    known = re.sub(r"-(only|or-later)$", "", clean(license_id).lower())
    known = _HUB_NAMES.get(known, known)
    if known in _HUB_LICENSES.split():
        return [f"license: {json.dumps(known)}"]
    name = json.dumps(clean(license_id), ensure_ascii=False)
    return ["license: other", f"license_name: {name}"]


def _size_category(rows: int) -> str:
    """Return the Hub's name for a number of rows; a row is a step."""
    limits = [10**k for k in range(3, 13)]
    names = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"]
    for k, limit in enumerate(limits):
        if rows < limit:
            return f"n<{names[0]}" if k == 0 else f"{names[k - 1]}<n<{names[k]}"
    return "n>1T"


# ------------------------------------------------------------------------- how it was made


def _making(provenance: Mapping[str, Any], command: str | None) -> list[str]:
    sources = provenance.get("sources") or []
    parts = ["## How it was made", ""]
    if sources:
        parts += [f"From other datasets, with {clean(provenance['tool'])}"]
        parts[-1] += f", seed {provenance['seed']}." if provenance["seed"] is not None else "."
    else:
        parts += [f"With {clean(provenance['tool'])}, seed {_seed(provenance['seed'])}."]
    if provenance["warmup_steps"]:
        parts += [
            f"The observation normaliser comes from {provenance['warmup_steps']:,} warm-up "
            "steps, which are not stored."
            if not sources
            else f"Before, {provenance['warmup_steps']:,} warm-up steps were run for observation "
            "normalisers; they are not stored.",
        ]
    parts += [""]
    if command is not None:
        parts += ["```bash", _command(command), "```", ""]
    if is_not_repeatable(provenance):
        parts += [_NOT_REPEATABLE, ""]
    settings = dict(provenance["settings"])
    settings.pop("env_kwargs", None)  # a digest; the arguments stand with the environment
    if sources:
        settings.pop("sources", None)  # a table of its own
        settings = {key: value for key, value in settings.items() if value is not None}
    rows = {str(k): _json(v) for k, v in sorted(settings.items())}
    if rows:
        parts += ["Settings:", "", *_table(rows), ""]
    return parts + (_sources(sources) if sources else [])


def _sources(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tell of all datasets that this one goes back to, and how the first ones were collected."""
    parts = [
        "It goes back to these datasets (`manifest.json` holds the settings of each):",
        "",
        "| dataset | manifest digest | episodes | steps | seed | licence | how |",
        "|---|---|---|---|---|---|---|",
    ]
    for source in sources[:_MOST_SOURCES]:
        origin = source["provenance"]
        cells = [clean(source["id"]), source["digest"][:16]]
        cells += [f"{source['episodes']:,}", f"{source['steps']:,}"]
        if origin is None:
            cells += ["not known", "not known", "unverified"]
        else:
            how = clean(_operation(source)) if source["from"] else "collected"
            seed = "none" if source["from"] and origin["seed"] is None else _seed(origin["seed"])
            cells += [seed, clean(origin["license"] or "none given"), how]
        parts.append(f"| {' | '.join(cells)} |")
    if len(sources) > _MOST_SOURCES:
        parts += ["", f"and {len(sources) - _MOST_SOURCES:,} more."]
    parts.append("")
    commands = list(dict.fromkeys(_commands(sources)))
    if commands:
        parts += ["The commands that made them:", "", "```bash", *commands[:_MOST_COMMANDS], "```"]
        if len(commands) > _MOST_COMMANDS:
            parts += ["", f"and {len(commands) - _MOST_COMMANDS:,} more, in `manifest.json`."]
        parts.append("")
    return parts


def _operation(source: Mapping[str, Any]) -> str:
    operation = source["provenance"]["settings"].get("operation")
    return operation if isinstance(operation, str) else "made of others"


def _commands(sources: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for source in sources:
        origin = source["provenance"]
        if origin is not None and origin.get("command"):
            yield _command(origin["command"])


def _command(command: str) -> str:
    text = " ".join(command.split()).replace("```", "'''")
    return "".join(c if c.isprintable() else "?" for c in text)


def _loading(dataset_id: str, version: int) -> str:
    name = json.dumps(dataset_id, ensure_ascii=False)
    return string.Template(_text("card_loading.md")).substitute(name=name, version=version)


def paper() -> str:
    """Return the BibTeX entry of the paper that all of this is about."""
    return _text("paper.bib")


def _text(name: str) -> str:
    """Return a text that lies beside this module."""
    return Path(__file__).with_name(name).read_text("utf-8").rstrip("\n")


def rights(license_id: str | None, what: str = "the data") -> list[str]:
    """Return a card's section about its licence."""
    if license_id is None:
        text = f"No licence was given, so others may not use {what} without asking its authors."
    else:
        text = f"{clean(license_id)}."
    return ["## Licence", "", text, ""]


# ------------------------------------------------------------------------------ statistics


def _length_rows(length: Mapping[str, Any] | None) -> dict[str, str]:
    if length is None:
        return {}
    text = f"mean {_number(length['mean'])}, {length['min']:,} to {length['max']:,}"
    return {"steps an episode": text}


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
    rows = {"id": clean(environment["id"])}
    if environment["module"] is not None:
        rows["registered by"] = clean(environment["module"])
    if environment["kwargs"]:
        rows["arguments"] = _json(environment["kwargs"])
    if environment["withheld"]:
        rows["arguments not stored"] = ", ".join(clean(w) for w in environment["withheld"])
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


def _bibtex(text: object) -> str:
    """Return text without what means something to BibTeX or LaTeX."""
    return _BIBTEX.sub(lambda m: f"\\{m[0]}" if m[0] in "#%&$_" else "", clean(text))


def _table(rows: Mapping[str, str]) -> list[str]:
    lines = ["| | |", "|---|---|"]
    return lines + [f"| {clean(k)} | {clean(v)} |" for k, v in rows.items()]

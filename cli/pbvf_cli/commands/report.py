"""``pbvf report``: one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pbvf_cli.shared import options, values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.terminal.output import Sink, one_line, size_text
from pbvf_offline.errors import IncompatibleError, UsageError

if TYPE_CHECKING:
    from pbvf_cli.shared.data import Data
    from pbvf_report.sources import Source

_PLACES = ("path", "run", "runs in", "settings")  # facts that name a place, or stand elsewhere
_ELSEWHERE = {
    "archive": "unpack it with 'pbvf unpack', and give what was in it",
    "bundle": "give the files and runs in it",
    "signature": "give the dataset that it signs",
    "checkpoint": "give the folder of its run",
}


@command(
    "pbvf report lab/swimmer-v0 --out report.html",
    "pbvf report lab/swimmer-v0 critic.safetensors policies.safetensors --out report.html",
    "pbvf report policies.safetensors critic.safetensors --ascent --video --out grown.html",
    "pbvf report runs/pendulum runs/other --out runs.html --json",
)
def report(
    paths: Annotated[
        list[str],
        argument(
            "PATH…",
            "A dataset's id or folder, a critic, model or policies file, the folder of a run or of "
            "several; one or more, which are shown beside each other.",
        ),
    ],
    *,
    out: Annotated[Path, option("--out", "The page, an HTML file.", "FILE", default=False)],
    ascent: Annotated[
        bool,
        option(
            "--ascent", "Climb again, to show the way of policies through their critic, if given."
        ),
    ] = False,
    video: Annotated[
        bool, option("--video", "Film the best policy of each policies file in its environment.")
    ] = False,
    env: Annotated[
        str | None, option("--env", "Where to film; the policies' own by default.", "ENV")
    ] = None,
    require_manifest: options.RequireManifest = False,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Write one page that opens in any browser, without a network, and can be sent by mail.

    What something is, its content tells. Nothing in it is run, and none of its texts becomes
    markup or script of the page.
    """
    from pbvf_cli.shared.report_extras import climbed_again, filmed
    from pbvf_report.page import plotly_script, render, write_page
    from pbvf_report.sections import sections

    values.output_file(out, *paths)
    if env is not None and not video:
        raise UsageError("says where to film", where="--env", remedy="add --video")
    plotly = plotly_script()
    sources = _named([s for path in paths for s in _sources(path, require_manifest)])
    if ascent:
        sources = [climbed_again(source, sources, sink) for source in sources]
    if video:
        sources = [filmed(source, env, sink) for source in sources]
    found = sections(sources)
    page = render(sources, found, plotly)
    there = write_page(out, page, overwrite=overwrite)
    titles = [section.title for section in found]
    payload = {
        "report": out,
        "bytes": len(page),
        "sections": titles,
        "sources": [{"name": source.name, "kind": source.kind} for source in sources],
        "already_complete": there,
    }
    rows = [
        ("report", str(out)),
        ("of", ", ".join(f"{source.kind} {source.name}" for source in sources)),
        ("sections", ", ".join(titles)),
        ("size", size_text(len(page))),
    ]
    sink.result(payload, rows, place=out)


def _named(sources: list[Source]) -> list[Source]:
    """Return sources with names that differ: a second one of a name is numbered."""
    import dataclasses

    counts: dict[str, int] = {}
    result = []
    for source in sources:
        counts[source.name] = count = counts.get(source.name, 0) + 1
        name = source.name if count == 1 else f"{source.name} ({count})"
        result.append(dataclasses.replace(source, name=name))
    return result


def _sources(name: str, require_manifest: bool) -> Iterator[Source]:
    """Yield what an id or a path names, read and checked.

    Raises:
        PbvfError: It is damaged, unsafe or nothing that a page shows.
    """
    from pbvf_cli.shared.kinds import KINDS
    from pbvf_runs.kinds import kind_of

    kind, path = kind_of(name)
    if kind in _ELSEWHERE:
        raise UsageError(f"a report shows no {kind}", where=path, remedy=_ELSEWHERE[kind])
    if kind == "runs":
        from pbvf_runs.data import runs_in

        for run in runs_in(path):
            yield from _sources(str(run), require_manifest)
        return
    from pbvf_report.sources import Source

    shown = KINDS[kind].show(path)
    facts = [(label, one_line(text)) for label, text in shown.rows if label not in _PLACES]
    settings = shown.payload.get("settings")
    if kind == "policies":
        settings = shown.payload["origin"].get("settings")
    yield Source(
        name=one_line(shown.payload.get("dataset", "") if kind == "dataset" else _name(path)),
        kind=kind,
        facts=facts,
        settings=settings if isinstance(settings, dict) else {},
        **_content(kind, path, shown.payload, require_manifest),
    )


def _name(path: Path) -> str:
    """Return the last part of a path; of ``.`` the name of the current folder."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def _content(
    kind: str, path: Path, payload: Mapping[str, Any], require_manifest: bool
) -> dict[str, Any]:
    """Return what a source has beside what ``pbvf info`` prints of it."""
    made_from: tuple[tuple[str, object], ...]
    match kind:
        case "dataset":
            return _dataset(payload, _data(path, require_manifest))
        case "run":
            return _run(path, payload, _data(path, require_manifest))
        case "critic":
            from pbvf_offline.fit.critic_file import load_critic

            made_from = ("the data", payload["dataset"]), ("the model", payload["model"])
            content: dict[str, Any] = {"critic": load_critic(path)}
        case "model":
            from pbvf_offline.models.model_file import load_model

            made_from = (("the data", payload["dataset"]),)
            content = {"model": load_model(path)}
        case _:
            from pbvf_offline.policies.files import load_policies

            made_from = _origins(payload["origin"])
            content = {"policies": load_policies(path)}
    links = [(role, one_line(d)[:64]) for role, d in made_from if isinstance(d, str)]
    return {**content, "digests": [payload["sha256"]], "made_from": links}


def _origins(origin: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    """Return what policies name as made from; nothing in it is checked."""
    imagined = origin.get("imagined_in")
    model = imagined[0] if isinstance(imagined, list) and imagined else origin.get("model")
    return (
        ("the critic", origin.get("critic")),
        ("the model, to compare in", model),
        ("states of", origin.get("states_from")),
        ("policies of", origin.get("started_from")),
        ("policies of", origin.get("taken_from")),
        ("the run", origin.get("run")),
    )


def _dataset(payload: Mapping[str, Any], data: Data | None) -> dict[str, Any]:
    assert data is not None  # a dataset that is shown has episodes
    return {
        "data": data.trajectories,
        "digests": list(dict.fromkeys((payload["digest"], data.digest))),
        "made_from": [
            (one_line(f"the dataset {s['id']}"), s["digest"]) for s in payload["sources"]
        ],
    }


def _run(path: Path, payload: Mapping[str, Any], data: Data | None) -> dict[str, Any]:
    from pbvf_runs.data import run_progress

    digests = [payload["digest"], payload["data"], *payload["files"].values()]
    return {
        "data": None if data is None else data.trajectories,
        "digests": [digest for digest in digests if digest is not None],
        "progress": run_progress(path),
    }


def _data(path: Path, require_manifest: bool) -> Data | None:
    """Return the episodes of a dataset or run; None of a run that has none that can be named."""
    from pbvf_cli.shared.data import open_data
    from pbvf_cli.shared.settings import SettingsTable
    from pbvf_runs.data import is_run

    try:
        return open_data(str(path), SettingsTable(), require_manifest=require_manifest)
    except (IncompatibleError, UsageError):
        if is_run(path):
            return None
        raise

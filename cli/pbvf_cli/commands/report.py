"""``pbvf report``: one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pbvf_cli.shared import options, values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.terminal.output import Sink, one_line, size_text
from pbvf_offline.errors import IncompatibleError, UsageError

if TYPE_CHECKING:
    from pbvf_offline.rollout.episodes import Trajectories
    from pbvf_report.sources import Source

_PLACES = ("path", "run", "runs in", "settings")  # facts that name a place, or stand elsewhere
_SHOWN = ("dataset", "run", "model", "critic", "policies")
_OTHERS = f"give one of these: {', '.join(_SHOWN)}"
_ELSEWHERE = {
    "archive": "unpack it, and give what is in it",
    "signature": "give the dataset that it signs",
    "checkpoint": "give the folder of its run",
    "weights": "import them with 'pbvf policies import'",
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
            "--ascent",
            "Climb again, to show the way of policies through their critic, where that and the "
            "model that chose among candidates are given.",
        ),
    ] = False,
    video: Annotated[
        bool,
        option(
            "--video",
            "Film the best policy of each policies file, and the learned one of each run, in its "
            "environment.",
        ),
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
    from pbvf_cli.commands.parts.report_extras import all_filmed, climbed_again
    from pbvf_report.page import check_page, plotly_script, render, write_page
    from pbvf_report.sections import sections

    values.output_file(out, *paths)
    if env is not None and not video:
        raise UsageError("says where to film", where="--env", remedy="add --video")
    if video:
        from pbvf_cli.shared.outputs.video import check_video

        check_video(Path("film.mp4"), overwrite=True)  # before what takes time
    plotly = plotly_script()
    check_page(out)
    sources = _named([s for path in paths for s in _sources(path, require_manifest)], sink)
    if ascent:
        sources = [climbed_again(source, sources, sink) for source in sources]
    if video:
        sources = all_filmed(sources, env, sink)
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


def _named(found: list[tuple[Source, Path]], sink: Sink) -> list[Source]:
    """Return sources with names that differ: those of one name are numbered.

    The folders that they are in would tell them apart, but are no part of what is shown. So only
    who makes the page is told which is which.
    """
    import dataclasses
    from collections import Counter

    alike = Counter(source.name for source, _ in found)
    counts: Counter[str] = Counter()
    result = []
    for source, path in found:
        counts[source.name] += 1
        name = source.name
        if alike[name] > 1:
            name = f"{name} ({counts[name]})"
            sink.note(f"note: {name} is {path}")
        result.append(dataclasses.replace(source, name=name))
    return result


def _sources(name: str, require_manifest: bool) -> Iterator[tuple[Source, Path]]:
    """Yield what an id or a path names, or the parts of it, read and checked, and where it is.

    Raises:
        PbvfError: It is damaged, unsafe or nothing that a page shows.
    """
    from pbvf_cli.shared.kinds import KINDS
    from pbvf_cli.shared.kinds.dataset import chosen
    from pbvf_report.sources import Source
    from pbvf_runs.share.lineage import sources_of, things

    for thing in things(name):
        kind, path = thing.kind, thing.path
        if kind not in (*_SHOWN, "file"):
            raise UsageError(
                f"a report shows no {kind}", where=path, remedy=_ELSEWHERE.get(kind, _OTHERS)
            )
        try:
            shown = KINDS[kind].show(path)
        except IncompatibleError:
            if kind != "dataset" or (untagged := _untagged(path, require_manifest)) is None:
                raise
            yield untagged, path
            continue
        own = shown.payload.get("digest") or shown.payload["sha256"]
        settings = shown.payload["origin" if kind == "policies" else "settings"]
        if kind == "policies":
            settings = settings.get("settings")
        elif kind == "dataset" and settings is not None:
            settings = chosen(settings)
        called = shown.payload["dataset"] if kind == "dataset" else _name(path)
        source = Source(
            name=one_line(called),
            kind=kind,
            env=one_line(shown.payload["env"] or ""),
            facts=[(label, one_line(text)) for label, text in shown.rows if label not in _PLACES],
            settings=settings if isinstance(settings, dict) else {},
            digests=[own, *sorted(thing.digests() - {own})],
            made_from=[(s.relation, s.digest) for s in sources_of(kind, shown.payload)],
            **_content(kind, path, require_manifest),
        )
        yield source, path


def _name(path: Path) -> str:
    """Return the last part of a path; of ``.`` the name of the current folder."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def _untagged(path: Path, require_manifest: bool) -> Source | None:
    """Return a dataset that does not say which policies acted; None if that is not what it is.

    Raises:
        PbvfError: It cannot be read.
    """
    from pbvf_datasets import load_dataset
    from pbvf_datasets.inspect.describe import environment_name
    from pbvf_report.sources import Source

    found = load_dataset(path, require_manifest=require_manifest, untagged=True)
    data, env = found.trajectories, environment_name(found.environment) or ""
    if data.tagged:
        return None
    lengths = data.lengths
    facts = {
        "policies": "not known: the data name none",
        "episodes": f"{data.episodes:,} ({int(data.cut.sum()):,} cut)",
        "steps": f"{len(data):,} ({lengths.min():,} to {lengths.max():,} an episode)",
        "observations": str(found.observation_space),
        "actions": str(found.action_space),
        "env": env or "not named",
        "written by": f"Minari {found.metadata.get('minari_version')}",
        "digest": found.digest,
    }
    return Source(
        name=one_line(found.id),
        kind="dataset",
        env=one_line(env),
        facts=[(label, one_line(text)) for label, text in facts.items()],
        digests=[found.digest],
        data=data,
    )


def _content(kind: str, path: Path, require_manifest: bool) -> dict[str, Any]:
    """Return what a source has beside what ``pbvf info`` prints of it."""
    from pbvf_offline.policies.files import load_policies

    match kind:
        case "dataset":
            return {"data": _data(path, require_manifest)}
        case "run":
            from pbvf_runs.compare.learning_curves import read_curve
            from pbvf_runs.data import run_progress
            from pbvf_runs.records import POLICY_FILE

            progress = run_progress(path)
            return {
                "data": _data(path, require_manifest),
                "progress": progress,
                "curve": read_curve(path, "return"),
                "learned": load_policies(path / POLICY_FILE) if progress.finished else None,
            }
        case "critic":
            from pbvf_offline.fit.critic_file import load_critic

            return {"critic": load_critic(path)}
        case "model":
            from pbvf_offline.models.model_file import load_model

            return {"model": load_model(path)}
    return {"policies": load_policies(path)}


def _data(path: Path, require_manifest: bool) -> Trajectories | None:
    """Return the episodes of a dataset or run; None of a run that has none that can be named."""
    from pbvf_cli.shared.inputs.data import open_data
    from pbvf_cli.shared.settings import SettingsTable
    from pbvf_runs.folder import is_run

    try:
        opened = open_data(str(path), SettingsTable(), require_manifest=require_manifest)
    except (IncompatibleError, UsageError):
        if is_run(path):
            return None
        raise
    return opened.trajectories

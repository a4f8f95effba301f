"""``pbvf dataset merge``, ``filter``, ``split`` and ``tag``: datasets made of others' episodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pbvf_cli.shared import options, values
from pbvf_cli.shared.command import Given, command
from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import NO_RETURN, Sink, as_payload, return_range, time_taken
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_datasets.write.edit_settings import FilterSettings, SplitSettings
from pbvf_offline.errors import UsageError
from pbvf_offline.records import Defaults

if TYPE_CHECKING:
    from pbvf_datasets.write.edit import EditResult


@command(
    "pbvf dataset merge lab/a-v0 lab/b-v0 --dataset lab/all-v0",
    "pbvf dataset merge downloads/theirs lab/ours-v0 --dataset lab/all-v0 --license CC-BY-4.0",
    continues=True,
)
def merge(
    datasets: Annotated[list[str], argument("DATASET", "Ids or folders, in order.")],
    *,
    dataset: options.DatasetId,
    license_id: Annotated[
        str | None,
        option(
            "--license",
            "Licence of the result.",
            "ID",
            default="that of the inputs, where it is the same",
            callback=options.licence,
        ),
    ] = None,
    keep_duplicates: Annotated[
        bool, option("--keep-duplicates", "Take an episode as often as it is in different inputs.")
    ] = False,
    require_manifest: options.RequireManifest = False,
    overwrite: options.Overwrite = False,
    sink: Sink,
) -> None:
    """Make one dataset of the episodes of several.

    Policies that agree in all four parts are one, whatever dataset they are
    from. Each episode keeps its seed, tags and normaliser, and the manifest
    keeps where everything is from. Inputs of other environments, spaces or
    architectures are refused. An episode that two inputs share is taken once.
    """
    values.check_dataset(dataset)
    table = SettingsTable()
    table.show("inputs", datasets)
    table.show("dataset", dataset)
    table.show("license", license_id, "the inputs'" if license_id is None else "given")
    table.flag("keep-duplicates", keep_duplicates)

    from pbvf_datasets.write.edit import merge as merge_datasets

    sink.settings("pbvf dataset merge", table.settings)
    with Bar("merging", "episodes", sink=sink) as bar:
        result = merge_datasets(
            datasets,
            dataset,
            license=license_id,
            keep_duplicates=keep_duplicates,
            require_manifest=require_manifest,
            overwrite=overwrite,
            progress=bar.update,
        )
    # Each input that repeats another's episodes would weigh them twice in a fit.
    row = ("duplicates left out", f"{result.left_out:,}")
    _print(sink, result, "duplicates", row, result.left_out)


@command(
    "pbvf dataset filter lab/a-v0 --dataset lab/best-v0 --top 0.1",
    "pbvf dataset filter lab/a-v0 --dataset lab/first-v0 --episodes 0-99,200 --no-cut",
    continues=True,
)
def filter_(
    source: options.Dataset,
    *,
    dataset: options.DatasetId,
    given: Given[FilterSettings],
    terminated: Annotated[bool, option("--terminated", "Only episodes whose task ended.")] = False,
    truncated: Annotated[
        bool, option("--truncated", "Only episodes that a limit or budget ended.")
    ] = False,
    require_manifest: options.RequireManifest = False,
    overwrite: options.Overwrite = False,
    sink: Sink,
) -> None:
    """Make a dataset of those episodes that pass every criterion given.

    Returns are undiscounted. Episodes cut short by a step budget have none:
    any criterion on returns leaves them out.
    """
    values.check_dataset(dataset)
    if terminated and truncated:
        raise UsageError(
            "give either --terminated or --truncated, not both",
            remedy="without them both kinds of episodes pass",
        )

    from pbvf_datasets.write.edit import filter_dataset

    ended = terminated if terminated or truncated else None
    settings = FilterSettings(**given.values, terminated=ended)
    table = SettingsTable()
    table.show("input", source)
    table.show("dataset", dataset)
    for name, value in settings.to_dict().items():
        if value is not None and (value is not False or name == "terminated"):
            table.show(name.replace("_", "-"), value)
    sink.settings("pbvf dataset filter", table.settings)
    with Bar("copying", "episodes", sink=sink) as bar:
        result = filter_dataset(
            source,
            dataset,
            settings,
            require_manifest=require_manifest,
            overwrite=overwrite,
            progress=bar.update,
        )
    row = ("episodes left out", f"{result.left_out:,}")
    _print(sink, result, "left_out", row, result.left_out)


@command(
    "pbvf dataset split lab/a-v0 --dataset lab/a-v0 --fractions 0.8,0.2 --seed 0",
    "pbvf dataset split lab/a-v0 --dataset lab/a-v0 --fractions 0.5,0.5 --names one,two "
    "--by policy",
    continues=True,
)
def split(
    source: options.Dataset,
    *,
    dataset: options.DatasetId,
    given: Given[SplitSettings],
    require_manifest: options.RequireManifest = False,
    overwrite: options.Overwrite = False,
    sink: Sink,
) -> None:
    """Split a dataset into several by whole episodes, drawn by the seed.

    '--dataset lab/x-v0' makes lab/x-train-v0, lab/x-test-v0, and so on.
    """
    values.check_dataset(dataset)

    fractions = given.get("fractions")
    if fractions is None:
        raise UsageError("is missing", where="--fractions", remedy="give shares such as 0.8,0.2")

    from pbvf_datasets.format.identity import stored_settings
    from pbvf_datasets.format.names import datasets_root
    from pbvf_datasets.write.edit import split as split_dataset

    usual = SplitSettings(fractions, given.get("names", ()))
    first = usual.dataset_ids(dataset)[0]

    def stored(_: SplitSettings) -> int | None:
        found = stored_settings(first)
        seed = None if found is None else found["seed"]
        return seed if type(seed) is int else None

    table = SettingsTable()
    table.show("input", source)
    table.show("dataset", dataset)
    settings = table.fill(given, Defaults(usual, {}), stored_seed=None if overwrite else stored)
    sink.settings("pbvf dataset split", table.settings)
    with Bar("copying", "episodes", sink=sink) as bar:
        results = split_dataset(
            source,
            dataset,
            settings,
            require_manifest=require_manifest,
            overwrite=overwrite,
            progress=bar.update,
        )
    named = zip(settings.names, settings.fractions, results, strict=True)
    payload = {
        "dataset": dataset,
        "parts": [
            {"name": name, "fraction": share, **_payload(result)} for name, share, result in named
        ],
        "by": settings.by,
        "seed": settings.seed,
        "seconds": sum(result.seconds for result in results),
        "already_complete": all(result.already_complete for result in results),
    }
    header = ("part", "episodes", "cut", "steps", "policies", "return")
    lines = [
        (
            result.dataset,
            *(
                f"{count:,}"
                for count in (result.episodes, result.cut, result.steps, result.policies)
            ),
            return_range(result.returns),
        )
        for result in results
    ]
    sink.result(
        payload,
        [("datasets in", str(datasets_root())), ("seed", str(settings.seed)), ("by", settings.by)],
        table=(header, lines),
        place=", ".join(result.dataset for result in results),
    )


@command(
    "pbvf dataset tag theirs/minari-v0 --policies policies.safetensors --dataset lab/tagged-v0",
    "pbvf dataset tag theirs/minari-v0 --policies policies.safetensors --order rows.json "
    "--dataset lab/tagged-v0 --license CC-BY-4.0",
    continues=True,
)
def tag(
    source: options.Dataset,
    *,
    policies: Annotated[
        Path, option("--policies", "A policies file with the policies that made it.", "FILE")
    ],
    dataset: options.DatasetId,
    order: Annotated[
        Path | None,
        option(
            "--order",
            "A JSON list: the row of the policies file that acted in each episode.",
            "FILE",
            default="found",
        ),
    ] = None,
    unchecked: Annotated[
        bool,
        option("--unchecked", "Believe that stochastic policies acted; the dataset records it."),
    ] = False,
    license_id: options.License = None,
    author: options.Authors = None,
    overwrite: options.Overwrite = False,
    sink: Sink,
) -> None:
    """Tag a dataset that names no policies, such as Minari's own, with those that made it.

    For each episode the policy is found whose actions, computed again, are the stored ones at
    every step. Where none is, nothing is written. 'pbvf policies import' makes a policies file.
    """
    values.check_dataset(dataset)
    table = SettingsTable()
    table.show("input", source)
    table.show("policies", policies)
    table.show("order", order, "default" if order is None else "given")
    table.show("dataset", dataset)
    table.show("license", license_id, "default" if license_id is None else "given")
    table.flag("unchecked", unchecked)
    rows = None if order is None else values.rows_file(order, "--order")

    from pbvf_cli.shared.inputs.data import refuse_folder
    from pbvf_datasets.write.tag import tag_dataset
    from pbvf_runs.records import POLICY_FILE

    refuse_folder(policies, "policies", POLICY_FILE)
    sink.settings("pbvf dataset tag", table.settings)
    with Bar("tagging", "episodes", sink=sink) as bar:
        result = tag_dataset(
            source,
            dataset,
            policies,
            order=rows,
            unchecked=unchecked,
            license=license_id,
            authors=author or (),
            overwrite=overwrite,
            progress=bar.update,
        )
    said = "no: the policies are stochastic" if unchecked else "every action"
    _print(sink, result, "checked", ("checked", said), not unchecked)


def _payload(result: EditResult) -> dict[str, Any]:
    sources = [
        {
            "dataset": source.id,
            "digest": source.digest,
            "verified": source.verified,
            "episodes": source.episodes,
            "steps": source.steps,
        }
        for source in result.sources
    ]
    payload = as_payload(result, "returns", "left_out", "notes")
    payload |= {"ends": result.ends.to_dict(), "return": result.returns or NO_RETURN}
    return {**payload, "sources": sources}


def _print(sink: Sink, result: EditResult, key: str, row: tuple[str, str], value: Any) -> None:
    """Print the result of an edit; ``key``, ``row`` and ``value`` are what it alone has to say."""
    for note in result.notes:
        sink.note(f"note: {note}")
    rows = [
        ("dataset", result.dataset),
        ("path", str(result.path)),
        ("episodes", str(result.ends)),
        row,
        ("steps", f"{result.steps:,}"),
        ("policies", f"{result.policies:,}"),
        ("return", return_range(result.returns)),
        ("licence", result.license or "none"),
        ("time", time_taken(result.seconds, result.steps_per_second, "steps")),
    ]
    sink.result({**_payload(result), key: value}, rows, place=result.path)

"""``pbvf compare``: two sets of policies, played from the same starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pbvf_cli.commands.evaluate import Measurement
from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import Given, command
from pbvf_cli.shared.inputs.policies import Source, open_policies
from pbvf_cli.shared.options import DeviceName, option
from pbvf_cli.shared.registered import Wrappers
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, estimate_text, number
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_cli.shared.values import EnvOptions
from pbvf_offline.errors import counted
from pbvf_offline.records import Defaults

if TYPE_CHECKING:
    from pbvf_offline.envs.reference import EnvConfig
    from pbvf_runs.compare.policies import Comparison, Side


@command(
    "pbvf compare grown.safetensors baseline.safetensors",
    "pbvf compare grown.safetensors baseline.safetensors --episodes 20 --out comparison.pdf",
    "pbvf compare grown.safetensors lab/swimmer-v0 --episodes 1 --workers 2 --json",
)
def compare(
    first: Source,
    second: Source,
    *,
    env: Annotated[
        str | None, option("--env", "Where to run; the policies' own by default.", "ENV")
    ] = None,
    given: Annotated[Given[Measurement], "episodes", "seed"],
    out: Annotated[
        Path | None, option("--out", "Draw a figure: .png, .svg or .pdf.", "FILE")
    ] = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    wrapper: Wrappers = None,
    require_manifest: options.RequireManifest = False,
    workers: options.Workers = None,
    overwrite: Annotated[bool, option("--overwrite", "Replace the figure.")] = False,
    device: options.Device = DeviceName.AUTO,
    sink: Sink,
) -> None:
    """Play two sets of policies from the same starts, and say how sure it is which is better.

    Architectures may differ. Intervals are over policies, so they need five on a side.
    """
    from pbvf_cli.shared.inputs import environments
    from pbvf_runs.compare.figures import check_figure, draw_comparison, keep_figure
    from pbvf_runs.compare.policies import compare_policies

    environments.silence_gymnasium()
    values.replaces(overwrite, out, "a figure")
    if out is not None:
        check_figure(values.output_file(out, first, second))
    devices.runs_on_cpu(device, sink)
    one = open_policies(first, require_manifest=require_manifest)
    other = open_policies(second, require_manifest=require_manifest)
    place = EnvOptions(env, env_kwargs, max_episode_steps, wrapper)
    references = [(one.environment, Path(first)), (other.environment, Path(second))]
    specs = (one.policies.spec, other.policies.spec)
    config = environments.choose_environment(place, references, *specs)
    table = SettingsTable()
    table.show("first", first)
    table.show("second", second)
    table.environment(config, place, "env")
    chosen = table.fill(given, Defaults(Measurement(10, 1.0, seed=0), {}))
    played = (len(one.policies) + len(other.policies)) * chosen.episodes
    workers = devices.choose_workers(workers, devices.steps_of(config, played), table)
    if out is not None:
        table.show("out", out)
    sink.settings("pbvf compare", table.settings)
    with Bar("evaluating", "episodes", sink=sink) as bar:
        found = compare_policies(
            config,
            one.policies,
            other.policies,
            episodes=chosen.episodes,
            seed=chosen.seed,
            workers=workers,
            progress=bar.update,
        )
    complete = False
    if out is not None:
        episodes = f"{counted(chosen.episodes, 'episode')} each"
        title = f"{_place(config)}, {episodes}, seed {chosen.seed}"
        figure = draw_comparison(found, _names(first, second), title)
        complete = keep_figure(figure, out, overwrite=overwrite)
    if found.difference.low is None:
        sink.note("note: there is no interval of fewer than five policies on a side")
    settings = {"episodes": chosen.episodes, "seed": chosen.seed}
    _print(sink, config, (first, second), found, settings, out, already_complete=complete)


def _place(config: EnvConfig) -> str:
    arguments = config.reference().arguments
    return f"{config.name} with {arguments}" if arguments else config.name


def _names(first: str, second: str) -> tuple[str, str]:
    """Return what tells two paths apart: their ends, no longer than it takes."""
    one, other = Path(first).parts, Path(second).parts
    length = 1
    while one[-length:] == other[-length:] and length < max(len(one), len(other)):
        length += 1
    return str(Path(*one[-length:])), str(Path(*other[-length:]))


def _print(
    sink: Sink,
    config: EnvConfig,
    paths: tuple[str, str],
    found: Comparison,
    settings: dict[str, int],
    out: Path | None,
    *,
    already_complete: bool,
) -> None:
    from pbvf_cli.shared.inputs.environments import environment_payload

    sides = tuple(zip(paths, (found.first, found.second), strict=True))
    payload = {
        **environment_payload(config),
        "sides": [_side(path, side) for path, side in sides],
        "difference": found.difference.to_dict(),
        "probability_of_improvement": found.improvement.to_dict(),
        **settings,
        "out": out,
        "already_complete": already_complete,
    }
    one, other = _names(*paths)
    rows = [
        ("environment", _place(config)),
        ("episodes", f"{settings['episodes']} of each policy, from the same starts"),
        (f"{one} less {other}", estimate_text(found.difference)),
        (f"P({one} > {other})", estimate_text(found.improvement)),
        ("seed", str(settings["seed"])),
        *([("figure", str(out))] if out is not None else []),
    ]
    header = ("policies", "number", "mean return", "interquartile mean", "mean returns")
    lines = [
        (
            path,
            str(len(side.means)),
            estimate_text(side.mean),
            estimate_text(side.iqm),
            _values(side),
        )
        for path, side in sides
    ]
    sink.result(payload, rows, table=(header, lines), place=out)


def _values(side: Side) -> str:
    """Return the mean returns of few policies, or the range of those of many."""
    means = [number(mean) for mean in sorted(side.means.tolist())]
    return f"{means[0]} to {means[-1]}" if side.mean.low is not None else "; ".join(means)


def _side(path: str, side: Side) -> dict[str, Any]:
    return {
        "policies": path,
        "count": len(side.means),
        "returns": side.returns,
        "means": side.means,
        "mean": side.mean.to_dict(),
        "iqm": side.iqm.to_dict(),
    }

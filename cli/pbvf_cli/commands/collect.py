"""``pbvf collect``: roll perturbed or given policies out into a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import Given, command
from pbvf_cli.shared.options import DeviceName, option
from pbvf_cli.shared.registered import Wrappers
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import NO_RETURN, Sink, as_payload, return_range, time_taken
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline.errors import UsageError, counted
from pbvf_offline.policies.settings import NewPolicy
from pbvf_runs.settings import FRESH, PERTURBING, CollectSettings

if TYPE_CHECKING:
    from pbvf_offline.envs.reference import EnvConfig
    from pbvf_runs.collection import CollectResult


@command(
    "pbvf collect Swimmer-v5 --dataset lab/swimmer-v0 --steps 100000 --perturb-every 200",
    "pbvf collect mymodule:Mine-v0 --dataset lab/mine-v0 --episodes 500 --policy 64,64 --workers 4",
    "pbvf collect Swimmer-v5 --dataset lab/best-v0 --policies policies.safetensors --episodes 50",
    continues=True,
)
def collect(
    env: options.Environment,
    *,
    dataset: options.DatasetId,
    given: Given[CollectSettings],
    policy: Given[NewPolicy],
    base: Annotated[
        Path | None, option("--base", "Perturb this policy, not a fresh one.", "FILE")
    ] = None,
    policies: Annotated[
        Path | None, option("--policies", "Roll these policies out unperturbed.", "FILE")
    ] = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    wrapper: Wrappers = None,
    workers: options.Workers = None,
    ray: options.Ray = None,
    backend: options.Backend = None,
    license_id: options.License = None,
    author: options.Authors = None,
    overwrite: options.Overwrite = False,
    device: options.Device = DeviceName.AUTO,
    sink: Sink,
) -> None:
    """Collect a dataset: episodes whose every step is tagged with the policy that acted.

    The same command continues an interrupted collection, and finds a finished one complete. A
    finished dataset is not extended: collect another one and use 'pbvf dataset merge'.
    """
    devices.runs_on_cpu(device, sink)
    values.check_dataset(dataset)
    _check_combination(given, policy, base=base, policies=policies)
    place = values.EnvOptions(env, env_kwargs, max_episode_steps, wrapper)

    from pbvf_cli.shared.inputs.environments import (
        choose_backend,
        named_environment,
        silence_gymnasium,
        warn_if_other,
    )
    from pbvf_cli.shared.inputs.policies import open_policies_file
    from pbvf_cli.shared.outputs.card_commands import collect_command
    from pbvf_offline.presets.offline import policy_defaults
    from pbvf_runs.collection import collect as collect_dataset
    from pbvf_runs.collection import stored_seed
    from pbvf_runs.settings import collect_defaults

    silence_gymnasium()
    file = base or policies
    given_base = None if base is None else open_policies_file(base, single=True)
    given_policies = None if policies is None else open_policies_file(policies)
    loaded = given_base or given_policies
    references = [] if loaded is None or file is None else [(loaded.environment, file)]
    config = named_environment(place, references)
    warn_if_other(config.reference(), references)
    table = SettingsTable()
    table.environment(config, place)
    table.show("dataset", dataset)
    if file is None:
        fresh = table.fill(policy, policy_defaults(env))
    else:
        fresh = NewPolicy()
        table.show("base" if policies is None else "policies", file)
    usual = collect_defaults(config, dataset, episodes=given.get("episodes"))
    settings = table.fill(
        given,
        replace(usual, settings=replace(usual.settings, policy=fresh)),
        stored_seed=None if overwrite else lambda _: stored_seed(dataset),
        hidden=_undecided(given, usual.settings, base=base, policies=policies),
    )
    table.rights(license_id, author or ())
    steps = settings.steps or devices.steps_of(config, settings.episodes or 1)
    engine = devices.units(workers, ray, table, steps=steps)
    asked = choose_backend(config, backend, table)
    settings = replace(settings, license=license_id, authors=tuple(author or ()))
    command_text = collect_command(settings, base=base, policies=policies)
    settings = replace(settings, command=command_text)
    sink.settings("pbvf collect", table.settings)
    unit = "steps" if settings.episodes is None else "episodes"
    with (
        engine as at_once,
        Bar("warming up", "episodes", sink=sink) as warm,
        Bar("collecting", unit, sink=sink) as bar,
    ):

        def report(steps_done: int, steps_wanted: int | None, episodes_done: int) -> None:
            warm.close()
            if settings.episodes is None:
                bar.update(steps_done, steps_wanted, counted(episodes_done, "episode"))
            else:
                bar.update(episodes_done, settings.episodes, counted(steps_done, "step"))

        result = collect_dataset(
            settings,
            base=given_base,
            policies=given_policies,
            overwrite=overwrite,
            workers=at_once,
            backend=asked.value,
            progress=report,
            warming=warm.update,
        )
    _print(sink, result, config)


def _check_combination(
    given: Given[CollectSettings],
    policy: Given[NewPolicy],
    *,
    base: Path | None,
    policies: Path | None,
) -> None:
    """Refuse options that decide nothing because a policies file, or another option, decides it.

    Raises:
        UsageError: One was given.
    """
    if given.get("normalize") is False and given.options("warmup_episodes"):
        raise UsageError(
            "does not go with --no-normalize: those episodes are for the normaliser",
            where="--warmup-episodes",
            remedy="leave it out",
        )
    if base is not None and policies is not None:
        raise UsageError(
            "give either --base (perturbed) or --policies (as they are)", where="--policies"
        )
    if base is None and policies is None:
        return
    other = "--base" if policies is None else "--policies"
    perturbing = [] if policies is None else given.options(*PERTURBING)
    for name in perturbing:
        raise UsageError(
            f"does not go with {other}: the policies are rolled out unperturbed, for whole "
            "episodes",
            where=name,
            remedy="leave it out",
        )
    for name in [*policy.options(), *given.options(*FRESH)]:
        raise UsageError(
            f"does not go with {other}: the file holds architecture and normaliser",
            where=name,
            remedy="leave it out",
        )


def _undecided(
    given: Given[CollectSettings],
    usual: CollectSettings,
    *,
    base: Path | None,
    policies: Path | None,
) -> set[str]:
    """Return the settings that decide nothing here."""
    names = {"steps" if usual.steps is None else "episodes"}
    if policies is not None:
        names.update(PERTURBING)
    if base is not None or policies is not None:
        names.update(FRESH)
    elif not given.get("normalize", usual.normalize):
        names.add("warmup_episodes")
    return names


def _print(sink: Sink, result: CollectResult, config: EnvConfig) -> None:
    from pbvf_cli.shared.inputs.environments import environment_payload

    payload = {
        **as_payload(result, "returns"),
        "ends": result.ends.to_dict(),
        "return": result.returns or NO_RETURN,
        **environment_payload(config),
    }
    rows = [
        ("dataset", result.dataset),
        ("path", str(result.path)),
        ("episodes", str(result.ends)),
        ("steps", f"{result.steps:,} ({result.warmup_steps:,} more for the normaliser)"),
        ("policies", f"{result.policies:,}"),
        ("return", return_range(result.returns)),
        ("seed", str(result.seed)),
        ("time", time_taken(result.seconds, result.steps_per_second, "steps")),
    ]
    sink.result(payload, rows, place=result.path)

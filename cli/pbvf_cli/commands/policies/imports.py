"""``pbvf policies import``: policies that were trained elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pbvf_cli.shared import options, values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.registered import Wrappers
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink
from pbvf_cli.shared.terminal.policy_text import ROWS_SHOWN, actions_text, kind_text
from pbvf_offline.errors import UsageError
from pbvf_offline.setting_types import Squash

if TYPE_CHECKING:
    from pbvf_offline.exchange.importer import Imported


@command(
    "pbvf policies import actor.safetensors --env Swimmer-v5 --out mine.safetensors",
    "pbvf policies import both.safetensors --env Swimmer-v5 --layers pi.0,pi.2 "
    "--out mine.safetensors",
    "pbvf policies import ppo.safetensors --format sb3 --env CartPole-v1 "
    "--out ppo-policy.safetensors",
)
def import_policies(
    files: Annotated[
        list[Path], argument("FILE…", "State dicts as .safetensors; each becomes one policy.")
    ],
    *,
    env: Annotated[str, option("--env", "The environment; gives spaces and bounds.", "ENV")],
    out: Annotated[Path, option("--out", "The policies file to write.", "FILE")],
    layout: Annotated[
        Literal["torch", "sb3"] | None,
        option(
            "--format",
            "Names of the tensors: any torch module's, or of model.policy in Stable-Baselines3.",
            default="torch",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        option(
            "--layers",
            "The linear layers in the order in which they act, without .weight.",
            "NAME,NAME",
            default="all of the file, if their order is clear",
        ),
    ] = None,
    activation: Annotated[
        str | None,
        option(
            "--activation",
            "Activation between the layers, tanh or relu; it cannot be read from weights.",
            "NAME",
            default="tanh; sb3 needs it where its own default is not tanh",
        ),
    ] = None,
    squash: Annotated[
        Squash | None,
        option(
            "--squash",
            "tanh: the output's tanh is mapped to the bounds; none: the output is clipped.",
            default="by the names of sb3; else tanh, none for the LQR",
        ),
    ] = None,
    stochastic: Annotated[
        bool, option("--stochastic", "Keep the noise: a Gaussian with log_std, or categorical.")
    ] = False,
    log_std: Annotated[
        str | None,
        option(
            "--log-std",
            "log_std of a stochastic policy.",
            "NAME|JSON|NPY",
            default="the tensor log_std",
        ),
    ] = None,
    obs_mean: Annotated[
        str | None,
        option(
            "--obs-mean",
            "Mean that the module's observations are normalised with.",
            "NAME|JSON|NPY",
            default="the tensor obs_mean, if there is one",
        ),
    ] = None,
    obs_std: Annotated[
        str | None,
        option(
            "--obs-std",
            "What they are divided by.",
            "NAME|JSON|NPY",
            default="the tensor obs_std, if there is one",
        ),
    ] = None,
    check: Annotated[
        Path | None,
        option("--check", "Compare with tensors obs and action of this .safetensors file.", "FILE"),
    ] = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    wrapper: Wrappers = None,
    overwrite: options.Overwrite = False,
    sink: Sink,
) -> None:
    """Make a policies file of weights that were trained elsewhere; collect --policies runs it.

    The module must be linear layers with one activation between them. Pickles (.pt, .pth, .zip)
    are refused.
    """
    values.output_file(out)
    place = values.EnvOptions(env, env_kwargs, max_episode_steps, wrapper)
    config = place.config()

    from pbvf_cli.shared.inputs.environments import silence_gymnasium
    from pbvf_offline.exchange.importer import import_weights
    from pbvf_offline.exchange.interpret import ImportSettings
    from pbvf_offline.exchange.weight_files import numbers_or_name
    from pbvf_offline.presets.offline import env_preset, env_source

    silence_gymnasium()
    table = SettingsTable()
    table.show("files", tuple(path.name for path in files))
    table.environment(config, place, "env")
    names: Literal["torch", "sb3"] = "torch" if layout is None else layout
    table.show("format", names, "default" if layout is None else "given")
    table.show("layers", layers, "found by names and shapes" if layers is None else "given")
    table.choose("activation", activation, "tanh", "default where the file does not name it")
    if names == "torch":
        squash = table.choose("squash", squash, env_preset(env).squash, env_source("squash", env))
    else:
        table.show("squash", squash, "by the names" if squash is None else "given")
    table.flag("stochastic", stochastic)
    sink.settings("pbvf policies import", table.settings)

    def numbers(text: str | None, option: str) -> Any:
        return None if text is None else numbers_or_name(text, option)

    settings = ImportSettings(
        layout=names,
        layers=_names(layers),
        squash=squash,
        stochastic=stochastic,
        activation=activation,
        obs_mean=numbers(obs_mean, "--obs-mean"),
        obs_std=numbers(obs_std, "--obs-std"),
        log_std=numbers(log_std, "--log-std"),
    )
    made = import_weights(files, config, settings, out, check=check, overwrite=overwrite)
    if made.first.assumed and check is None:
        sink.note(
            "note: tanh between the layers is assumed, since weights do not show it; see --check"
        )
    if made.first.left_out:
        sink.note(f"note: left out: {', '.join(made.first.left_out[:ROWS_SHOWN])}")
    if made.rounded:
        sink.note("note: weights were rounded to float32")
    _print(sink, out, made)


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(part.strip().removesuffix(".weight") for part in text.split(","))
    if not all(names):
        raise UsageError(
            f"{text!r} is not a list of names", where="--layers", remedy="give names such as 0,2"
        )
    return names


def _print(sink: Sink, out: Path, made: Imported) -> None:
    policies, reference = made.file.policies, made.file.environment
    checked = None
    if made.checked is not None:
        checked = {"rows": made.checked[0], "largest_difference": made.checked[1]}
    payload = {
        "policies": out,
        "count": len(policies),
        "env": None if reference is None else reference.name,
        "spec": policies.spec.to_dict(),
        "parameters": policies.spec.size,
        "layers": made.first.layers,
        "left_out": made.first.left_out,
        "normaliser": made.first.normaliser,
        "rounded": made.rounded,
        "check": checked,
        "already_complete": made.already_complete,
    }
    rows = [
        ("policies", f"{out} ({len(policies)})"),
        ("kind", kind_text(policies.spec)),
        ("actions", actions_text(policies.spec)),
        ("layers", ", ".join(layer or "(the module itself)" for layer in made.first.layers)),
        ("normaliser", made.first.normaliser or "none"),
    ]
    if made.checked is not None:
        rows.append(("check", f"{made.checked[0]} actions equal, within {made.checked[1]:.2g}"))
    sink.result(payload, rows, place=out)

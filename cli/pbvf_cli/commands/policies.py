"""``pbvf policies``: from and to other programs, and what a policies file holds."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbvf_cli.shared import options, values
from pbvf_cli.shared.form import Form, paper_source
from pbvf_cli.shared.options import DeviceName, SquashName
from pbvf_cli.shared.output import Sink, number
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_offline.exchange.importer import Imported
    from pbvf_offline.policies.files import PoliciesFile
    from pbvf_offline.policies.spec import PolicySpec

IMPORT_EXAMPLES = """Examples:

pbvf policies import actor.safetensors --env Swimmer-v5 --out mine.safetensors

pbvf policies import both.safetensors --env Swimmer-v5 --layers pi.0,pi.2 --out mine.safetensors

pbvf policies import ppo.safetensors --format sb3 --env CartPole-v1 --out ppo-policy.safetensors"""

EXPORT_EXAMPLES = """Examples:

pbvf policies export policies.safetensors --index 0 --out best.safetensors

pbvf policies export policies.safetensors --out policy.onnx"""

INFO_EXAMPLES = """Examples:

pbvf policies info policies.safetensors

pbvf policies info policies.safetensors --json"""

_ROWS_SHOWN = 20


class LayoutName(StrEnum):
    """Whose names the tensors of a file have."""

    TORCH = "torch"
    SB3 = "sb3"


class FormatName(StrEnum):
    """What other programs read."""

    TORCH = "torch"
    ONNX = "onnx"


class ExportTypeName(StrEnum):
    """What an exported policy computes in."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    sub = typer.Typer(
        name="policies",
        help="Policies from other programs, for other programs, and what a file of them holds.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    sub.command("import", epilog=IMPORT_EXAMPLES)(import_policies)
    sub.command("export", epilog=EXPORT_EXAMPLES)(export)
    sub.command("info", epilog=INFO_EXAMPLES)(info)
    app.add_typer(sub)


def import_policies(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="State dicts as .safetensors; each becomes one policy."
        ),
    ],
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="ENV", help="The environment; gives spaces and bounds."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The policies file to write.")
    ] = None,
    layout: Annotated[
        LayoutName,
        typer.Option(
            "--format",
            help="Names of the tensors: any torch module's, or of model.policy in "
            "Stable-Baselines3.",
        ),
    ] = LayoutName.TORCH,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            metavar="NAME,NAME",
            help="The linear layers in the order in which they act, without .weight.",
            show_default="all of the file, if their order is clear",
        ),
    ] = None,
    activation: Annotated[
        str | None,
        typer.Option(
            "--activation",
            metavar="NAME",
            help="What lies between the layers, tanh or relu; weights do not tell.",
            show_default="tanh; sb3 needs it where its own default is not tanh",
        ),
    ] = None,
    squash: Annotated[
        SquashName | None,
        typer.Option(
            "--squash",
            help="tanh: the output's tanh is mapped to the bounds; none: the output is clipped.",
            show_default="by the names of sb3; else tanh, none for the LQR",
        ),
    ] = None,
    stochastic: Annotated[
        bool,
        typer.Option(
            "--stochastic", help="Keep the noise: a Gaussian with log_std, or categorical."
        ),
    ] = False,
    log_std: Annotated[
        str | None,
        typer.Option(
            "--log-std",
            metavar="NAME|JSON|NPY",
            help="log_std of a stochastic policy.",
            show_default="the tensor log_std",
        ),
    ] = None,
    obs_mean: Annotated[
        str | None,
        typer.Option(
            "--obs-mean",
            metavar="NAME|JSON|NPY",
            help="Mean that the module's observations are normalised with.",
            show_default="the tensor obs_mean, if there is one",
        ),
    ] = None,
    obs_std: Annotated[
        str | None,
        typer.Option(
            "--obs-std",
            metavar="NAME|JSON|NPY",
            help="What they are divided by.",
            show_default="the tensor obs_std, if there is one",
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="FILE",
            help="Compare with tensors obs and action of this .safetensors file.",
        ),
    ] = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    overwrite: options.Overwrite = False,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Make a policies file of weights that were trained elsewhere; collect --policies runs it.

    The module must be linear layers with one activation between them. Pickles (.pt, .pth, .zip)
    are refused.
    """
    del debug  # the error boundary looks for it
    sink = Sink(json_only=json_only, quiet=quiet)
    _runs_on_cpu(device, sink)
    if env is None:
        raise UsageError("is missing", where="--env", remedy="name the environment of the policy")
    if out is None:
        raise UsageError("is missing", where="--out", remedy="name the policies file to write")
    values.output_file(out)
    config = values.env_config(env, env_kwargs, max_episode_steps)

    from pbvf_cli.shared.environments import silence_gymnasium
    from pbvf_offline.exchange.importer import ImportSettings, import_weights
    from pbvf_offline.exchange.weight_files import numbers_or_name
    from pbvf_offline.policies.families import DEFAULT_FAMILY
    from pbvf_offline.presets.offline import env_preset

    silence_gymnasium()
    form = Form()
    form.show("files", tuple(path.name for path in files))
    form.show("env", env)
    form.show("format", layout.value, "default" if layout is LayoutName.TORCH else "given")
    form.show("layers", layers, "found by names and shapes" if layers is None else "given")
    form.choose("activation", activation, "tanh", "default where the file does not tell")
    if layout is LayoutName.TORCH:
        default = SquashName(env_preset(env).squash)
        squash = form.choose("squash", squash, default, paper_source(env))
    else:
        form.show("squash", squash, "by the names" if squash is None else "given")
    form.show("stochastic", stochastic, "given" if stochastic else "default")
    sink.settings("pbvf policies import", form.settings)

    def numbers(text: str | None, option: str) -> Any:
        return None if text is None else numbers_or_name(text, option)

    settings = ImportSettings(
        layout=layout.value,
        layers=_names(layers),
        squash=None if squash is None else squash.value,
        stochastic=stochastic,
        activation=activation,
        obs_mean=numbers(obs_mean, "--obs-mean"),
        obs_std=numbers(obs_std, "--obs-std"),
        log_std=numbers(log_std, "--log-std"),
    )
    made = import_weights(files, config, settings, out, check=check, overwrite=overwrite)
    if made.already_complete:
        sink.note(f"already complete: {out}")
    tanh = made.file.policies.spec.family == DEFAULT_FAMILY
    if tanh and len(made.layers) > 1 and activation is None and check is None:
        sink.note(
            "note: tanh between the layers is assumed, since weights do not tell; see --check"
        )
    if made.left_out:
        sink.note(f"note: left out: {', '.join(made.left_out[:_ROWS_SHOWN])}")
    if made.rounded:
        sink.note("note: weights were rounded to float32")
    _print_import(sink, out, made)


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(part.strip().removesuffix(".weight") for part in text.split(","))
    if not all(names):
        raise UsageError(
            f"{text!r} is not a list of names", where="--layers", remedy="give names such as 0,2"
        )
    return names


def _runs_on_cpu(device: DeviceName, sink: Sink) -> None:
    if device is DeviceName.CUDA:
        sink.note("note: files are read and written on the CPU; --device cuda changes nothing here")


def _print_import(sink: Sink, out: Path, made: Imported) -> None:
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
        "layers": made.layers,
        "left_out": made.left_out,
        "normaliser": made.normaliser,
        "rounded": made.rounded,
        "check": checked,
        "already_complete": made.already_complete,
    }
    rows = [
        ("policies", f"{out} ({len(policies)})"),
        ("kind", _kind(policies.spec)),
        ("actions", _actions(policies.spec)),
        ("layers", ", ".join(layer or "(the module itself)" for layer in made.layers)),
        ("normaliser", made.normaliser or "none"),
    ]
    if made.checked is not None:
        rows.append(("check", f"{made.checked[0]} actions equal, within {made.checked[1]:.2g}"))
    sink.result(payload, rows)


def export(
    policies: Annotated[Path, typer.Argument(metavar="POLICIES", help="A policies file.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="The file to write; NAME-0, NAME-1, … beside it for several policies.",
        ),
    ] = None,
    index: Annotated[
        int | None,
        typer.Option(
            "--index", metavar="K", help="One policy, counted from 0.", show_default="all"
        ),
    ] = None,
    file_format: Annotated[
        FormatName | None,
        typer.Option(
            "--format",
            help="torch: a state dict as .safetensors; onnx: a graph.",
            show_default="onnx for .onnx, else torch",
        ),
    ] = None,
    dtype: Annotated[
        ExportTypeName,
        typer.Option(
            "--dtype",
            help="What it computes in: float64 acts as policies here do; float32 is for runtimes "
            "that have nothing else.",
        ),
    ] = ExportTypeName.FLOAT64,
    overwrite: options.Overwrite = False,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Write policies for programs without pbvf: raw observations in, executed actions out.

    Normaliser, squashing and bounds are inside. A stochastic policy becomes its mean action.
    """
    del debug  # the error boundary looks for it
    sink = Sink(json_only=json_only, quiet=quiet)
    _runs_on_cpu(device, sink)
    if out is None:
        raise UsageError("is missing", where="--out", remedy="name the file to write")
    values.output_file(out)
    if file_format is None:
        file_format = FormatName.ONNX if out.suffix.lower() == ".onnx" else FormatName.TORCH

    from pbvf_offline.exchange.exporter import export_policies
    from pbvf_offline.policies.files import load_policies

    loaded = load_policies(policies)
    if out.exists() and out.samefile(policies):
        raise UsageError("is the input too", where=out, remedy="name another --out")
    spec = loaded.policies.spec
    if index is not None and not 0 <= index < len(loaded.policies):
        raise UsageError(
            f"{index} is not in 0 … {len(loaded.policies) - 1}",
            where="--index",
            remedy=f"{policies} holds {len(loaded.policies)} policies",
        )
    if spec.stochastic:
        mean = "mean action" if spec.is_continuous else "most likely action"
        sink.note(f"note: the policies are stochastic; the export is their {mean}")
    done = export_policies(
        loaded.policies,
        out,
        row=index,
        file_format=file_format.value,
        dtype=dtype.value,
        overwrite=overwrite,
    )
    complete = all(file.already_complete for file in done)
    if complete:
        sink.note(f"already complete: {done[0].path}")
    payload = {
        "files": [{"path": file.path, "policy": file.row} for file in done],
        "format": file_format.value,
        "dtype": dtype.value,
        "spec": spec.to_dict(),
        "mean_of_stochastic": spec.stochastic,
        "already_complete": complete,
    }
    shown = done[:_ROWS_SHOWN]
    rows = [(f"policy {file.row}", str(file.path)) for file in shown]
    if len(done) > len(shown):
        rows.append(("…", f"{len(done) - len(shown)} more"))
    rows += [
        ("format", file_format.value),
        ("takes", f"raw observations ({spec.obs_dim}), computes in {dtype.value}"),
        ("gives", _actions(spec)),
    ]
    sink.result(payload, rows)


def info(
    policies: Annotated[Path, typer.Argument(metavar="POLICIES", help="A policies file.")],
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Show what a policies file holds; nothing in it is run, and no environment is built."""
    del debug  # the error boundary looks for it
    sink = Sink(json_only=json_only, quiet=quiet)
    _runs_on_cpu(device, sink)

    import numpy as np

    from pbvf_offline.io.tensor_file import file_digest
    from pbvf_offline.policies.files import load_policies

    loaded = load_policies(policies)
    held, spec = loaded.policies, loaded.policies.spec
    norms = np.linalg.norm(held.theta.astype(np.float64), axis=1)
    log_std = held.theta[:, : spec.log_std_size]
    parts = np.hstack([held.theta.astype(np.float64), held.obs_mean, held.obs_std])
    distinct = len(np.unique(parts, axis=0))
    normalised = bool(np.any(held.obs_mean != 0) or np.any(held.obs_std != 1))
    reference = loaded.environment
    payload = {
        "policies": len(held),
        "distinct": distinct,
        "path": policies,
        "env": None if reference is None else reference.name,
        "env_kwargs": {} if reference is None else reference.kwargs,
        "spec": spec.to_dict(),
        "architecture": spec.arch,
        "parameters": spec.size,
        "theta_norms": norms,
        "log_std": log_std if spec.log_std_size else None,
        "normalised": normalised,
        "obs_mean": held.obs_mean,
        "obs_std": held.obs_std,
        "origin": loaded.origin,
        "sha256": file_digest(policies),
    }
    rows = [
        ("policies", f"{len(held):,} ({distinct:,} distinct)"),
        ("kind", _kind(spec)),
        ("parameters", f"{spec.size:,}"),
        ("observations", f"{spec.obs_dim}, {'normalised' if normalised else 'as they are'}"),
        ("actions", _actions(spec)),
        ("environment", "not named" if reference is None else reference.name),
        *_origin_rows(loaded),
        ("sha256", str(payload["sha256"])),
    ]
    header = ["policy", "norm of theta", "largest |theta|", "mean of obs_mean", "mean of obs_std"]
    largest = np.abs(held.theta).max(axis=1)
    table = [
        [
            str(k),
            number(float(norms[k])),
            number(float(largest[k])),
            number(float(held.obs_mean[k].mean())),
            number(float(held.obs_std[k].mean())),
        ]
        for k in range(min(len(held), _ROWS_SHOWN))
    ]
    if len(held) > _ROWS_SHOWN:
        table.append(["…", f"{len(held) - _ROWS_SHOWN:,} more"])
    sink.result(payload, rows, table=(header, table))


def _origin_rows(loaded: PoliciesFile) -> list[tuple[str, str]]:
    """Return where policies came from, without what is long."""
    rows = []
    for name, value in loaded.origin.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            rows.append((name.replace("_", " "), str(value)[:80]))
        elif name in ("sources", "layers") and isinstance(value, list):
            rows.append((name, ", ".join(str(entry)[:64] for entry in value[:4])))
    return rows or [("origin", "not said")]


def _kind(spec: PolicySpec) -> str:
    from pbvf_offline.policies.families import FAMILIES

    noise = "stochastic" if spec.stochastic else "deterministic"
    return f"{noise}, {spec.sizes}, {FAMILIES.summary(spec.family)}"


def _actions(spec: PolicySpec) -> str:
    from pbvf_offline.policies.actions import BoxActions

    if not isinstance(spec.actions, BoxActions):
        return f"{spec.actions.n} choices from {spec.actions.start}"
    low, high = min(spec.actions.low), max(spec.actions.high)
    how = "by tanh" if spec.squash == "tanh" else "clipped"
    return f"{spec.actions.dim} in [{low:g}, {high:g}] ({how}), {spec.actions.dtype}"

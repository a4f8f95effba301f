"""Options that commands share, how their texts are read, and where a value came from."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pbvf_offline.errors import DamagedError, UsageError

if TYPE_CHECKING:
    import torch

    from pbvf_cli.output import Sink
    from pbvf_offline.envs import EnvConfig

T = TypeVar("T")

_COMMON = "Every command"


class DeviceName(StrEnum):
    """Where tensors live."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class CriticName(StrEnum):
    """Kinds of parameter-based value functions."""

    PSSVF = "pssvf"
    PSVF = "psvf"
    PAVF = "pavf"


class RewardName(StrEnum):
    """Which reward a critic adds up."""

    RAW = "raw"
    WITHOUT_SURVIVAL = "without-survival"


class NormalizationName(StrEnum):
    """How observations are normalised while a policy is learned."""

    EPISODE = "episode"
    PER_STEP = "per-step"
    NONE = "none"


class PresetName(StrEnum):
    """Which of the paper's best hyperparameters."""

    PAPER_AVG = "paper-avg"
    PAPER_LAST = "paper-last"


class SquashName(StrEnum):
    """How a policy's output becomes an action."""

    TANH = "tanh"
    NONE = "none"


Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="Seed of every random number, 0 to 4294967295. Drawn, stored and printed when absent.",
        show_default=False,
    ),
]
Device = Annotated[
    DeviceName,
    typer.Option(
        "--device",
        help="Where tensors live; auto takes CUDA if it is there.",
        rich_help_panel=_COMMON,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel=_COMMON),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No settings, notes or progress.", rich_help_panel=_COMMON),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show tracebacks with errors.", rich_help_panel=_COMMON),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Start anew, whatever stands at the output.")
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers", min=1, metavar="N", help="Processes that run episodes; results do not change."
    ),
]
EnvKwargs = Annotated[
    str | None,
    typer.Option(
        "--env-kwargs", metavar="JSON", help="Arguments of the environment, a JSON object."
    ),
]
MaxEpisodeSteps = Annotated[
    int | None,
    typer.Option(
        "--max-episode-steps",
        min=1,
        metavar="N",
        help="Time limit in place of the environment's own.",
    ),
]
RequireManifest = Annotated[
    bool,
    typer.Option(
        "--require-manifest", help="Refuse a dataset folder that no manifest vouches for."
    ),
]


@dataclass(frozen=True)
class Setting:
    """One setting in force.

    Attributes:
        name: As the option is called, without dashes.
        value: What it is.
        source: Where it is from: ``given``, ``default``, ``paper default for …``.
    """

    name: str
    value: Any
    source: str

    @property
    def shown(self) -> str:
        """The value as people read it."""
        if self.value is None:
            return "-"
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if isinstance(self.value, tuple | list):
            return ",".join(str(v) for v in self.value) or "-"
        if isinstance(self.value, dict):
            return json.dumps(self.value)
        return str(self.value)


class Form:
    """The settings of one command as they are filled in."""

    def __init__(self) -> None:
        self.settings: list[Setting] = []

    def choose(
        self, name: str, given: T | None, default: Callable[[], T] | T, source: str = "default"
    ) -> T:
        """Return what was given, else the default, and remember which.

        Args:
            name: The option without dashes.
            given: What the user gave, or None.
            default: The default, or a function that finds it.
            source: What to call the default's origin.
        """
        if given is not None:
            value, source = given, "given"
        else:
            value = default() if callable(default) else default
        self.settings.append(Setting(name, value, source))
        return value

    def show(self, name: str, value: Any, source: str = "given") -> None:
        """Remember a setting that is not a choice."""
        self.settings.append(Setting(name, value, source))

    def seed(self, given: int | None, stored: Callable[[], int | None] | None = None) -> int:
        """Return the seed: given, else that of an output begun earlier, else a fresh one.

        Raises:
            UsageError: It is out of range.
        """
        from pbvf_offline.seeding import check_seed, draw_seed

        if given is not None:
            value, source = check_seed(given), "given"
        else:
            found = None if stored is None else stored()
            value = draw_seed() if found is None else found
            source = "drawn" if found is None else "stored in the output"
        self.settings.append(Setting("seed", value, source))
        return value


def paper_source(env_id: str | None) -> str:
    """Return what to call a default that :mod:`pbvf_offline.presets` has for an environment."""
    from pbvf_offline.presets import ENVIRONMENTS, env_preset

    known = any(env_preset(env_id) is preset for preset in ENVIRONMENTS.values())
    return f"paper default for {env_id}" if known else "paper default"


def positive(value: float | None, option: str) -> float | None:
    """Check that a number is finite and above 0, where given.

    Raises:
        UsageError: It is not.
    """
    if value is not None and not (math.isfinite(value) and value > 0):
        raise UsageError(f"{value} is not a finite number above 0", where=option)
    return value


def fraction(value: float | None, option: str, *, below_one: bool = False) -> float | None:
    """Check that a number lies in [0, 1], or [0, 1), where given.

    Raises:
        UsageError: It does not.
    """
    if value is not None and not (0.0 <= value < 1.0 or (value == 1.0 and not below_one)):
        end = ")" if below_one else "]"
        raise UsageError(f"{value} is not in [0, 1{end}", where=option)
    return value


def parse_sizes(text: str | None, option: str) -> tuple[int, ...] | None:
    """Read ``linear`` or sizes such as ``64,64``, where given.

    Raises:
        UsageError: It is neither.
    """
    from pbvf_offline.policies import parse_arch

    if text is None:
        return None
    try:
        return parse_arch(text)
    except UsageError as error:
        raise UsageError(error.what, where=option, remedy=error.remedy) from error


def parse_numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """Read whole numbers from 1 such as ``500,1000``, sorted and each once, where given.

    Raises:
        UsageError: It is something else.
    """
    if text is None:
        return None
    try:
        numbers = {int(part) for part in text.split(",")}
    except ValueError:
        numbers = {0}
    if min(numbers) < 1:
        raise UsageError(
            f"{text!r} is not a list of whole numbers from 1",
            where=option,
            remedy="give numbers such as 500,1000",
        )
    return tuple(sorted(numbers))


def steps_or_episode(text: str, option: str) -> int | None:
    """Read a number of steps; None for ``episode``.

    Raises:
        UsageError: It is neither.
    """
    if text == "episode":
        return None
    try:
        steps = int(text)
    except ValueError:
        steps = 0
    if steps < 1:
        raise UsageError(f"{text!r} is neither a whole number from 1 nor 'episode'", where=option)
    return steps


def parse_kwargs(text: str | None) -> dict[str, Any]:
    """Read ``--env-kwargs``: a JSON object, empty when absent.

    Raises:
        UsageError: It is something else.
    """
    from pbvf_offline.strict_json import parse_json

    if text is None:
        return {}
    try:
        value = parse_json(text, "--env-kwargs")
    except DamagedError as error:
        raise UsageError(
            error.what, where="--env-kwargs", remedy="""give an object such as '{"a": 1}'"""
        ) from error
    if not isinstance(value, dict):
        raise UsageError(
            f"{text!r} is not a JSON object",
            where="--env-kwargs",
            remedy="""give an object such as '{"a": 1}'""",
        )
    return value


def output_file(path: Path) -> Path:
    """Check where a file is to be written.

    Raises:
        UsageError: It is a folder.
    """
    if path.is_dir():
        raise UsageError(
            "is a folder", where=path, remedy="name a file, such as critic.safetensors"
        )
    return path


def output_folder(path: Path) -> Path:
    """Check where a folder is to be written; returns it by a name that has a folder above it.

    Raises:
        UsageError: It is a file, or the root of a file system.
    """
    if path.exists() and not path.is_dir():
        raise UsageError("is a file", where=path, remedy="name a folder")
    if path.name not in ("", ".."):
        return path
    full = path.resolve()
    if full.name == "":
        raise UsageError("has no folder above it", where=path, remedy="name another folder")
    return full


def env_config(name: str, kwargs: str | None, max_episode_steps: int | None) -> EnvConfig:
    """Return the environment that a user named.

    Raises:
        UsageError: The arguments are no JSON object.
    """
    from pbvf_offline.envs import EnvConfig

    return EnvConfig(name, parse_kwargs(kwargs), max_episode_steps)


def torch_device(device: DeviceName) -> torch.device:
    """Return the device to compute on; imports torch.

    Raises:
        UsageError: CUDA is asked for and not there.
    """
    from pbvf_cli.errors import signals

    with signals.held():  # an exception raised while torch loads would abort the process
        import torch

    available = torch.cuda.is_available()
    if device is DeviceName.CUDA and not available:
        raise UsageError(
            "CUDA is not available here", where="--device", remedy="give --device cpu or auto"
        )
    return torch.device("cpu" if device is DeviceName.CPU or not available else "cuda")


def runs_on_cpu(device: DeviceName, sink: Sink) -> None:
    """Say that a command which only runs environments has no use for another device."""
    if device is DeviceName.CUDA:
        sink.note("note: environments run on the CPU; --device cuda changes nothing here")

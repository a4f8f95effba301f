"""Options of ``pbvf train-online`` alone."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from pbvf_cli.shared.options import MOST_WORKERS, SquashName, counting, positive

EVALUATIONS: Final = 100
EVALUATION_EPISODES: Final = 10

_RARE = "Seldom needed"


class NormalizationName(StrEnum):
    """How observations are normalised while a policy is learned."""

    EPISODE = "episode"
    PER_STEP = "per-step"
    NONE = "none"


class PresetName(StrEnum):
    """Which of the paper's best hyperparameters."""

    PAPER_AVG = "paper-avg"
    PAPER_LAST = "paper-last"


Run = Annotated[
    Path, typer.Option("--run", metavar="DIR", help="The run's folder; with --seeds, of runs.")
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="ARCH",
        help="The policy's architecture: linear, or sizes such as 64,64.",
        show_default="linear",
    ),
]
Stochastic = Annotated[bool, typer.Option("--stochastic", help="The policy draws its actions.")]
Biased = Annotated[bool, typer.Option("--biased", help="PAVF without the gradient of Q in theta.")]
Steps = Annotated[
    int | None,
    counting(
        "--steps",
        "Environment steps in all; more of them extend a finished run.",
        show_default="100000; Swimmer and Hopper 1000000",
    ),
]
Preset = Annotated[
    PresetName | None,
    typer.Option(
        "--preset",
        help="Insist on the paper's values, best for the average or for the last return.",
        show_default="paper-avg where the paper has it, else this project's values",
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", metavar="0-4", help="Several runs, in the folders seed-0, … of --run."),
]
Workers = Annotated[
    int,
    counting(
        "--workers",
        "Processes that train, each one seed at a time; results do not change.",
        most=MOST_WORKERS,
    ),
]
Sigma = Annotated[
    float | None,
    typer.Option(
        "--sigma",
        metavar="S",
        help="Standard deviation of the parameter noise of each episode.",
        show_default="the preset's",
    ),
]
LrPolicy = Annotated[
    float | None,
    typer.Option(
        "--lr-policy",
        callback=positive,
        help="Learning rate of the policy.",
        show_default="the preset's",
    ),
]
LrCritic = Annotated[
    float | None,
    typer.Option(
        "--lr-critic",
        callback=positive,
        help="Learning rate of the critic.",
        show_default="the preset's",
    ),
]
Normalization = Annotated[
    NormalizationName | None,
    typer.Option(
        "--normalization",
        help="Statistics of observations: frozen within each episode, the authors' step-by-step "
        "rule, or none.",
        show_default="episode; none for the LQR",
    ),
]
Snapshots = Annotated[
    str | None,
    typer.Option(
        "--snapshots",
        metavar="100000,…",
        help="Steps at which critic-0100000.safetensors and policy-0100000.safetensors, … "
        "are kept too.",
    ),
]
ExportDataset = Annotated[
    str | None,
    typer.Option(
        "--export-dataset",
        metavar="ID",
        help="Make a dataset of all training episodes too, such as lab/swimmer-v0.",
    ),
]

# ------------------------------------------------------------------------- seldom needed

Evaluations = Annotated[
    int | None,
    counting(
        "--evaluations",
        "Evaluations of the unperturbed policy, evenly over the run.",
        least=0,
        most=1_000_000,
        show_default=str(EVALUATIONS),
        rich_help_panel=_RARE,
    ),
]
EvaluationEpisodes = Annotated[
    int | None,
    counting(
        "--evaluation-episodes",
        "Episodes of each evaluation.",
        show_default=str(EVALUATION_EPISODES),
        rich_help_panel=_RARE,
    ),
]
UpdateEvery = Annotated[
    str | None,
    typer.Option(
        "--update-every",
        metavar="K|episode",
        help="Steps between rounds of updates.",
        show_default="50; pssvf episode",
        rich_help_panel=_RARE,
    ),
]
CriticUpdates = Annotated[
    int | None,
    counting(
        "--critic-updates",
        "Gradient steps of the critic in a round.",
        least=0,
        show_default="5; pssvf 10",
        rich_help_panel=_RARE,
    ),
]
ActorUpdates = Annotated[
    int | None,
    counting(
        "--actor-updates",
        "Gradient steps of the policy in a round.",
        least=0,
        show_default="1; pssvf 10",
        rich_help_panel=_RARE,
    ),
]
BatchSize = Annotated[
    int | None,
    counting(
        "--batch-size",
        "Entries a gradient step of the critic draws.",
        show_default="128; pssvf 16",
        rich_help_panel=_RARE,
    ),
]
ActorStates = Annotated[
    int | None,
    counting(
        "--actor-states",
        "Replayed states a gradient step of the policy averages over; pssvf has none.",
        show_default="128",
        rich_help_panel=_RARE,
    ),
]
BufferSize = Annotated[
    int | None,
    counting(
        "--buffer-size",
        "Entries of the replay buffer: steps; pssvf episodes.",
        show_default="100000",
        rich_help_panel=_RARE,
    ),
]
Squash = Annotated[
    SquashName | None,
    typer.Option(
        "--squash",
        help="How the policy's output becomes an action.",
        show_default="tanh; none for the LQR",
        rich_help_panel=_RARE,
    ),
]

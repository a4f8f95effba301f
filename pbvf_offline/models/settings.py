"""What decides a learned environment. Imports no array library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, get_args

from msgspec import Meta

from pbvf_offline.errors import UsageError
from pbvf_offline.records import Record, setting
from pbvf_offline.setting_types import Precision, Seed

MODEL_UPDATES = 8_000
"""Gradient steps of a learned environment, where nobody says how many."""

_CHOSEN = "the held-out check chooses"
_OWN = "How the networks learn"


_PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)


def _is_bfloat16(text: str, option: str) -> bool:
    if text not in _PRECISIONS:
        raise UsageError(f"{text[:40]!r} is not one of {', '.join(_PRECISIONS)}", where=option)
    return text == "bfloat16"


def precision_name(bfloat16: bool) -> Precision:
    """Return what the option ``--precision`` calls a value of ``bfloat16``."""
    return "bfloat16" if bfloat16 else "float32"


@dataclass(frozen=True)
class ModelShape(Record):
    """Size and training of an ensemble.

    Attributes:
        seed: Seed of initial weights and batches.
        members: Number M of networks.
        hidden: Sizes of their hidden layers.
        lr: Largest learning rate of Adam.
        batch_size: Steps that each network sees in an update; where they begin is drawn
            uniformly with replacement.
        bfloat16: Multiply between hidden layers in bfloat16, see
            :func:`pbvf_offline.policies.batch.has_bfloat16`.

    Raises:
        UsageError: A value is out of range.
    """

    seed: Seed
    members: Annotated[int, setting("Networks of the ensemble.", ge=1, le=64, default="4")] = 4
    hidden: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=8192)], ...],
        setting(
            "The networks' hidden sizes.",
            min_length=1,
            max_length=16,
            metavar="SIZES",
            default="256,256,256",
        ),
    ] = (256, 256, 256)
    lr: Annotated[
        float, setting("Largest learning rate of Adam.", gt=0, metavar="LR", default="0.004")
    ] = 4e-3
    batch_size: Annotated[
        int,
        setting("Steps that each network sees in an update.", ge=1, le=65_536, default="512"),
    ] = 512
    bfloat16: Annotated[
        bool,
        setting(
            "In which numbers the networks multiply between their hidden layers: float32, or "
            "bfloat16, which takes half the time, with the same checks.",
            option="--precision",
            metavar="|".join(_PRECISIONS),
            default="bfloat16 where the processor has instructions for it",
            panel=_OWN,
            read=_is_bfloat16,
            write=precision_name,
        ),
    ] = False


@dataclass(frozen=True)
class ModelSettings(ModelShape):
    """Everything that decides an ensemble, apart from the data and the number of updates.

    Attributes:
        noise: Standard deviation of the largest noise on the observations that networks
            see in training, in units of the spread of a step's change. 0: none.
        recovery: Share of the noise that the target takes back in one step: at 1 it ends at
            the true next observation, at 0 it is the true change.
        huber: Errors above it, in units of the spread of a step's change (of the reward, of its
            own spread), count by their absolute values and not by their squares. 0: all by
            their squares, as errors of sparse rewards always do.
        angles: Show sine and cosine of the raw observations too.
        unroll: Steps in a row that the networks predict in training, each from the
            observation that the one before led to; 1: single steps.
        mixed: Whether half of the networks learn by another objective, see
            :func:`pbvf_offline.models.objectives.objectives`.
    """

    noise: Annotated[float, setting("Largest noise on the inputs.", ge=0, le=10)] = 0.0
    recovery: Annotated[
        float, setting("Share of the noise taken back in a step.", ge=0, le=1, since=2)
    ] = 1.0
    huber: Annotated[
        float, setting("Errors above it count by their absolute values.", ge=0, since=2)
    ] = 0.0
    angles: bool = False
    unroll: Annotated[int, setting("Steps in a row in training.", ge=1, le=100)] = 1
    mixed: Annotated[
        bool, setting("Whether half of the networks learn by another objective.", since=2)
    ] = False


@dataclass(frozen=True)
class ModelRequest(ModelShape):
    """What is asked of a learned environment; what is None is chosen by the held-out check.

    Attributes:
        validation: Share of the episodes held out for the check.
        noise: Largest noise on the inputs, in units of the spread of a step's change.
        recovery: Share of it that the networks learn to take back in one step.
        huber: Errors above it count by their absolute values.
        angles: Show sine and cosine of the raw observations too.
        unroll: Steps in a row that the networks predict in training.
        mixed: Whether half of the networks learn by another objective, see
            :func:`pbvf_offline.models.objectives.objectives`.
        trial_updates: Updates of each short training that a choice takes.

    Raises:
        UsageError: A value is out of range, or one network is to learn by two objectives.
    """

    validation: Annotated[
        float,
        setting(
            "Share of the episodes held out for the check, at least one.",
            gt=0,
            lt=1,
            option="--validation-episodes",
            metavar="FRACTION",
            default="0.1",
        ),
    ] = 0.1
    noise: (
        Annotated[
            float,
            setting(
                "Largest noise on the observations shown in training, in units of the spread of a "
                "step's change; the networks learn to come back.",
                ge=0,
                le=10,
                metavar="SIZE",
                default=_CHOSEN,
                panel=_OWN,
            ),
        ]
        | None
    ) = None
    recovery: Annotated[
        float,
        setting(
            "Share of that noise that the networks learn to take back in one step. With more they "
            "keep closer to the data, and think too little of policies beyond them.",
            ge=0,
            le=1,
            metavar="SHARE",
            default="0.2",
            panel=_OWN,
        ),
    ] = 0.2
    huber: Annotated[
        float,
        setting(
            "Errors above it, in units of the spread of a step's change, count by their absolute "
            "values, so that rare large ones leave the others their part; 0: all by their squares.",
            ge=0,
            metavar="SIZE",
            default="0.1",
            panel=_OWN,
        ),
    ] = 0.1
    angles: (
        Annotated[
            bool,
            setting(
                "Show sine and cosine of the observations too.",
                option="--angles/--no-angles",
                default=_CHOSEN,
                panel=_OWN,
            ),
        ]
        | None
    ) = None
    unroll: Annotated[
        int,
        setting(
            "Steps in a row that the networks predict in training, each from where the one before "
            "led. More keep errors from adding up, and make policies beyond the data look worse "
            "than they are.",
            ge=1,
            le=100,
            default="1",
            panel=_OWN,
        ),
    ] = 1
    mixed: (
        Annotated[
            bool,
            setting(
                "Let half of the networks learn ten steps in a row, to take back all of the noise, "
                "and by the squares of all errors, so that not all err in the same direction.",
                option="--mixed/--no-mixed",
                default=_CHOSEN,
                panel=_OWN,
            ),
        ]
        | None
    ) = None
    trial_updates: Annotated[
        int,
        setting(
            "Gradient steps of each short training of a choice.",
            ge=1,
            le=2**31 - 1,
            default="3000",
            panel=_OWN,
        ),
    ] = 3_000

    def __post_init__(self) -> None:
        """Check every field, and that there are two networks to learn by two objectives."""
        super().__post_init__()
        if self.mixed and self.members == 1:
            raise UsageError(
                "one network learns by one objective",
                where="--mixed",
                remedy="give --members 2 or more, or leave it out",
            )


MODEL_SOURCES = {
    "noise": _CHOSEN,
    "angles": _CHOSEN,
    "mixed": _CHOSEN,
    "bfloat16": "what this processor has",
}
"""Where the values of a request that the user did not choose come from."""

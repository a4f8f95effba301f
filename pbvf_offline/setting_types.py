"""Types of settings that several records share. Imports no array library."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from pbvf_offline.records import setting

MAX_SEED: Final = 2**32 - 1
MOST: Final = 10**12
MAX_UPDATES: Final = 2**31 - 1  # that a file can hold
"""Most steps, episodes or updates of anything; the dataset format has the same limit."""
MAX_HORIZON: Final = 1_000_000
"""Most steps of an imagined episode, whose noise is drawn at once."""
RARE: Final = "Seldom needed"
"""Heading of the options that few need."""
MAX_PROBES: Final = 4_096
"""Most probing states by which a critic reads a policy."""
PARAMETER_NOISE: Final = "section 4, noise of the policy that acts: θ̃ = θ + ε, ε ~ N(0, σ²I)"
BATCH: Final = "Algorithms 1 to 4, batch of the critic's update"
"""Where in the paper settings of several records stand."""

Activation = Literal["relu", "tanh"]
"""What lies between the layers of a critic."""
RewardChoice = Literal["raw", "without-survival"]
"""Which reward a critic adds up."""
Squash = Literal["tanh", "none"]
"""How a policy's output becomes an action."""
Precision = Literal["float32", "bfloat16"]
"""In which numbers a frozen critic multiplies between its hidden layers."""

Width = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
"""Units of one hidden layer."""

Seed = Annotated[
    int,
    setting(
        f"Seed of every random number, 0 to {MAX_SEED}. Drawn, stored and printed when absent.",
        ge=0,
        le=MAX_SEED,
    ),
]
CriticHidden = Annotated[
    tuple[Width, ...],
    setting(
        "The critic's hidden sizes.",
        min_length=1,
        max_length=16,
        metavar="SIZES",
        default="512,512; pssvf 64,64; with --model 256,256",
    ),
]
Gamma = Annotated[
    float,
    setting(
        "Discount factor.",
        ge=0,
        le=1,
        symbol="γ",
        paper="section 2, discount factor; Algorithm 1 has none",
        metavar="G",
        default="0.99; Swimmer 0.999; pssvf 1",
    ),
]
Climbing = Annotated[
    Precision,
    setting(
        "In which numbers the critic multiplies between its hidden layers while policies climb "
        "it: float32, or bfloat16, about 2.5 times as fast where many states or policies climb.",
        default="float32",
        panel=RARE,
        option="--precision",
        since=2,
    ),
]
Reward = Annotated[
    RewardChoice,
    setting(
        "Which reward the critic adds up: raw, or without-survival.",
        default="raw; pssvf on Hopper without-survival",
    ),
]

"""Types of settings that several records share. Imports no array library."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from pbvf_offline.records import setting

MAX_SEED: Final = 2**32 - 1

Activation = Literal["relu", "tanh"]
"""What lies between the layers of a critic."""
RewardChoice = Literal["raw", "without-survival"]
"""Which reward a critic adds up."""
Squash = Literal["tanh", "none"]
"""How a policy's output becomes an action."""

Seed = Annotated[
    int,
    setting(
        f"Seed of every random number, 0 to {MAX_SEED}. Drawn, stored and printed when absent.",
        ge=0,
        le=MAX_SEED,
    ),
]
Width = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
"""Units of one hidden layer."""

"""What the networks of an ensemble minimise: all the same objective, or two.

Networks that learn by one objective err in the same direction where there are no data. A search
finds the policies there that they agree on, and are wrong about. Networks that learn differently
err differently: of policies beyond the data, ones that predict single steps say too much or about
the truth, and ones that predict ten in a row too little.
"""

from __future__ import annotations

from dataclasses import dataclass

from pbvf_offline.models.settings import ModelSettings

_IN_A_ROW = 10


@dataclass(frozen=True)
class Objective:
    """What a part of the networks minimises.

    Attributes:
        members: Which networks.
        noise: As in :class:`~pbvf_offline.models.settings.ModelSettings`, like the others.
        recovery: Share of the noise that the target takes back.
        huber: Errors above it count by their absolute values; 0: all by their squares.
        unroll: Steps in a row.
    """

    members: slice
    noise: float
    recovery: float
    huber: float
    unroll: int


def objectives(settings: ModelSettings) -> tuple[Objective, ...]:
    """Return what each part of the networks minimises.

    Half of ``mixed`` networks, rounded down, learn ten steps in a row whatever the settings say, to
    take back all of the noise, and by the squares of all errors: by absolute values they would
    shrink what is fast. The others learn as the settings say.
    """
    members, noise = settings.members, settings.noise
    own = members - (members // 2 if settings.mixed else 0)
    first = Objective(slice(0, own), noise, settings.recovery, settings.huber, settings.unroll)
    if own == members:
        return (first,)
    return first, Objective(slice(own, members), noise, 1.0, 0.0, _IN_A_ROW)

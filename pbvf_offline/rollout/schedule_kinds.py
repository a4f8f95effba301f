"""The schedules that ``pbvf collect --schedule NAME`` perturbs one base policy by.

A new one is two files: a module with a subclass of
:class:`~pbvf_offline.rollout.schedules.PerturbationSchedule` that replaces ``theta``, and its
entry here. A package adds one with the entry point group ``pbvf_offline.schedules``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pbvf_offline.registry import Member, Registry

if TYPE_CHECKING:
    from pbvf_offline.rollout.schedules import PerturbationSchedule

INDEPENDENT: Final = "independent"
"""The schedule that is used unless another is asked for."""

SCHEDULES: Registry[type[PerturbationSchedule]] = Registry(
    "schedule",
    "pbvf_offline.schedules",
    {
        INDEPENDENT: Member(
            "pbvf_offline.rollout.schedules:PerturbationSchedule",
            "independent noise in every segment",
        ),
        "mirrored": Member(
            "pbvf_offline.rollout.mirrored:MirroredSchedule",
            "episodes in pairs with opposite noise",
        ),
    },
)

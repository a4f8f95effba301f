"""What commands that ask a critic share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pbvf_offline.errors import IncompatibleError

if TYPE_CHECKING:
    from pbvf_offline.fit.critic_file import CriticFile
    from pbvf_offline.policies.spec import PolicySpec


def refuse_unread(critic: CriticFile, spec: PolicySpec, where: Path | str) -> None:
    """Refuse policies that a critic does not read.

    Args:
        critic: The critic.
        spec: The policies' architecture.
        where: The policies' file, for the message.

    Raises:
        IncompatibleError: Their architecture, observations or actions are others.
    """
    try:
        critic.critic_of(spec)
    except IncompatibleError as error:
        raise IncompatibleError(error.what, where=where, remedy=error.remedy) from error

"""The version of the files that this project writes, one number for all of their kinds.

A file states the lowest version whose readers know all that is in it, so a file that uses nothing
new has the bytes it had before. Every version opens for ever: a field that a file lacks takes its
recorded default (see :class:`pbvf_offline.records.Record`). A file of a newer version than this
program's is refused, and the message says to upgrade.

== ==========================================================================================
1  0.1.0
2  policies of a family other than the MLP with tanh; environments with wrappers; critics fitted
   to imagined returns or with another augmentation than relabelling; critics that read
   fingerprints; models with networks of two objectives, a share of the noise taken back,
   absolute errors, rewards of ends of their own, limits, or a check of intervals and
   lengths; runs and policies made with another precision; datasets from environments that
   are not repeatable, or whose licence or authors were set anew; runs that start from a
   given policy; bundles
== ==========================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from pbvf_offline.errors import DamagedError, IncompatibleError

FORMAT_VERSION: Final = 2
_SEVERAL: Final = "+"


def digest_of_several(digests: Sequence[str]) -> str:
    """Return how a file names several datasets that it was made from together, in their order."""
    return _SEVERAL.join(digests)


def each_digest(named: str) -> list[str]:
    """Return the digests of all datasets that a file names; see :func:`digest_of_several`."""
    return named.split(_SEVERAL)


def check_version(version: object, where: str | os.PathLike[str]) -> None:
    """Check the format version that a file states.

    Raises:
        DamagedError: It is no version.
        IncompatibleError: It is newer than :data:`FORMAT_VERSION`.
    """
    if type(version) is not int or version < 1:
        raise DamagedError(
            f"the format version is {str(version)[:40]}, not a positive integer", where=where
        )
    if version > FORMAT_VERSION:
        raise IncompatibleError(
            f"it has format version {version}; this program reads up to {FORMAT_VERSION}",
            where=where,
            remedy=f"upgrade to a pbvf-offline that reads version {version} "
            "(pip install --upgrade pbvf-offline)",
        )

"""Which arguments of an environment files may hold; light, so that anything can ask."""

from __future__ import annotations

import math
import re
from typing import Final

PACKAGES: Final = {"gymnasium_robotics": "robotics", "minigrid": "minigrid", "shimmy": "dm-control"}
"""Packages that register environments when they are imported, with the extra for each."""
_PLAIN_TEXT = re.compile(r"[\w +-]{0,64}|\d+(\.\d+)*")
_PATH_NAME = re.compile(r"(^|_)(file|path|folder|dir|directory|root|xml|url|uri)s?(_|$)")


def is_portable(name: str, value: object) -> bool:
    """Whether an environment's argument may go into a file, or be taken from one.

    It must be a finite number, a boolean, None, or a text that cannot name a file.
    """
    if type(value) is float:
        return math.isfinite(value)
    if value is None or type(value) in (bool, int):
        return True
    if type(value) is not str or _PATH_NAME.search(name):
        return False
    return _PLAIN_TEXT.fullmatch(value) is not None

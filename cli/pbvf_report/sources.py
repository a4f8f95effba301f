"""What a page is about: files and folders, read and checked before they get here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pbvf_offline.fit.critic_file import CriticFile
    from pbvf_offline.models.model_file import ModelFile
    from pbvf_offline.policies.files import PoliciesFile
    from pbvf_offline.policies.policy import Policies
    from pbvf_offline.rollout.episodes import Trajectories
    from pbvf_runs.compare.learning_curves import Curve
    from pbvf_runs.data import RunProgress


@dataclass(frozen=True)
class Source:
    """One of the things that a page is about.

    Attributes:
        name: What the page calls it.
        kind: ``dataset``, ``run``, ``critic``, ``model`` or ``policies``.
        env: Its environment as a user would type it; "" where it names none.
        facts: Name and value, as ``pbvf info`` prints them.
        settings: What it was made with.
        digests: By which others name it; the first is its own.
        made_from: What it names as made from, in words, and its digest.
        data: Episodes of a dataset or run.
        critic: A critic.
        model: A learned environment.
        policies: A policies file.
        progress: What a run has come to.
        curve: Its learned policies' mean returns over its steps.
        learned: Its learned policy.
        ascent: Gradient step to the policies on their way there.
        no_ascent: Why there is none, though one was asked for.
        film: Of one policy: which one that is, and an MP4 file.
        no_film: Why there is none, though one was asked for.
    """

    name: str
    kind: str
    env: str = ""
    facts: Sequence[tuple[str, str]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    digests: Sequence[str] = ()
    made_from: Sequence[tuple[str, str]] = ()
    data: Trajectories | None = None
    critic: CriticFile | None = None
    model: ModelFile | None = None
    policies: PoliciesFile | None = None
    progress: RunProgress | None = None
    curve: Curve | None = None
    learned: PoliciesFile | None = None
    ascent: Mapping[int, Policies] = field(default_factory=dict)
    no_ascent: str = ""
    film: tuple[str, bytes] | None = None
    no_film: str = ""

    @property
    def title(self) -> str:
        """The name, and of a critic its kind, which a file's name need not tell."""
        return self.name if self.critic is None else f"{self.name} ({self.critic.critic.kind.name})"

    @property
    def result(self) -> Mapping[str, Any]:
        """What was measured of policies, as their file says; nothing in it is checked."""
        origin = {} if self.policies is None else self.policies.origin
        result = origin.get("result")
        return result if isinstance(result, dict) else {}

    def of_each_policy(self, name: str) -> NDArray[np.float64] | None:
        """Return what was measured of each policy, (K,); None where the file has no such list."""
        values = numbers(self.result.get(name))
        if self.policies is None or values is None or len(values) != len(self.policies.policies):
            return None
        return values


def is_digest(text: str) -> bool:
    """Return whether a text is a SHA-256."""
    return re.fullmatch("[0-9a-f]{64}", text) is not None


def place_of(source: Source, sources: Sequence[Source]) -> str:
    """Return words for the environment of a source where the page is about several; else ""."""
    several = len({s.env for s in sources if s.env}) > 1
    return f" in {source.env}" if source.env and several else ""


def in_data(source: Source, sources: Sequence[Source]) -> str:
    """Return what the return of a policy is over the steps that it acted in data, with its unit."""
    bonus = "" if source.critic is None else source.critic.less_bonus
    return f"mean return in the data{place_of(source, sources)} (sum of rewards{bonus})"


def measured(source: Source, sources: Sequence[Source]) -> str:
    """Return what the return of a policy is that was evaluated, with its unit."""
    return f"measured mean return{place_of(source, sources)} (sum of rewards)"


def numbers(value: object) -> NDArray[np.float64] | None:
    """Return a list of finite numbers from a file as an array; None for anything else."""
    if not isinstance(value, list) or not value:
        return None
    if any(type(v) not in (int, float) or not abs(v) < 1e300 for v in value):
        return None
    return np.array(value, np.float64)

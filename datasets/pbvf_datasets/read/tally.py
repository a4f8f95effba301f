"""Counts over the checked episodes of a dataset."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pbvf_datasets.read.episodes import CheckedEpisode


@dataclass
class Tally:
    """What the episodes added so far come to.

    Attributes:
        lengths: Steps of each episode.
        steps: Number of steps.
        returns: Undiscounted return of each whole episode, in the reward's unit.
        largest: The largest sum of absolute rewards of a whole episode, at least 1.
        terminated: Episodes whose task ended.
        truncated: Episodes that a time limit or the writer ended.
        cut: Episodes that a step budget cut short.
        segments: Stretches in which one policy acts.
    """

    lengths: list[int] = field(default_factory=list)
    steps: int = 0
    returns: list[float] = field(default_factory=list)
    largest: float = 1.0
    terminated: int = 0
    truncated: int = 0
    cut: int = 0
    segments: int = 0

    def add(self, episode: CheckedEpisode) -> None:
        """Count an episode, of which rewards and terminations must have been read."""
        self.lengths.append(len(episode))
        self.steps += len(episode)
        self.segments += episode.segments
        if episode.cut != "none":
            self.cut += 1
            return
        rewards = episode.arrays["rewards"]
        with np.errstate(over="ignore"):
            self.returns.append(float(rewards.sum()))
            self.largest = max(self.largest, float(np.abs(rewards).sum()))
        if episode.arrays["terminations"][-1]:
            self.terminated += 1
        else:
            self.truncated += 1

"""Episodes of a schedule, several at a time, in the rows of one set of simulations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.envs.make import Env, time_limit
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.actor import StackedActor
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode, assemble
from pbvf_offline.rollout.native.offer import make_task
from pbvf_offline.rollout.native.simulations import Simulations, unprofiled
from pbvf_offline.rollout.native.tasks import Outcome
from pbvf_offline.rollout.schedules import Schedule, Segment

_FIRST_CAPACITY = 1024


@dataclass
class _Row:
    """The episode in one row.

    Attributes:
        index: Which episode of the schedule.
        seed: What its reset was seeded with.
        start: The line of the log that holds its first observation.
        rng: Its action noise.
        segments: The policies so far.
    """

    index: int
    seed: int
    start: int
    rng: np.random.Generator | None
    segments: list[Segment] = field(default_factory=list)


class Player:
    """Plays episodes in rows; a row whose episode has ended takes the next one.

    What it plays has the bytes of what :func:`pbvf_offline.rollout.loop.run_episode` plays.

    Args:
        env: The environment, for which the backend is native.
        config: What it was built from.
        schedule: Which policies act.
        max_steps: Step limit of each episode; None: the environment's own.
        rows: Number of episodes at a time.

    Attributes:
        rows: As given.
    """

    def __init__(
        self, env: Env, config: EnvConfig, schedule: Schedule, max_steps: int | None, rows: int
    ) -> None:
        spec = schedule.spec
        self._schedule, self.rows = schedule, rows
        self._task = make_task(env, config)
        self._limit = time_limit(env) or math.inf
        self._longest = min(self._limit, max_steps or math.inf)
        self._simulations = Simulations(env, self._task, rows)
        self._actor = StackedActor(spec, rows)
        self._noise = np.zeros((rows, spec.actions.dim)) if spec.stochastic else None
        self._log = _Log(spec, rows)
        self._playing: list[_Row | None] = [None] * rows
        self._reports_survive = False

    def play(self, indices: Sequence[int]) -> Iterator[tuple[int, Episode | None]]:
        """Yield episodes with their index as they end; None for one that is not finite."""
        waiting, t = iter(indices), 0
        for row in range(self.rows):
            self._begin(row, next(waiting, None), t)
        while any(self._playing):
            t, ended, terminated = self._until_an_end(t)
            for row in ended:
                yield self._finish(row, t, terminated=row in terminated)
                self._begin(row, next(waiting, None), t)

    def _until_an_end(self, t: int) -> tuple[int, list[int], set[int]]:
        """Take steps until some episodes end; return the line, and the rows that end and how."""
        log, active = self._log, np.array([row is not None for row in self._playing])
        which = None if active.all() else np.flatnonzero(active).astype(np.int32)
        due, last = t, self._last_line()
        # What is not finite is played again by Gymnasium, which then says so.
        with np.errstate(all="ignore"), unprofiled():
            while True:
                if t >= due:
                    due = self._change_policies(t)
                if t == log.capacity:
                    t = due = self._make_room(t)
                    last = self._last_line()
                    continue
                outcome = self._step(t, which)
                t += 1
                falls = outcome.terminated
                if falls is not None and which is not None:
                    falls = falls & active
                if t >= last or (falls is not None and falls.any()):
                    break
        late = active & (t - log.start >= self._longest)
        ended = late if falls is None else late | falls
        terminated = set() if falls is None else set(np.flatnonzero(falls).tolist())
        return t, np.flatnonzero(ended).tolist(), terminated

    def _last_line(self) -> float:
        """Return the line at which the first of the present episodes has its most steps."""
        return min(row.start for row in self._playing if row is not None) + self._longest

    def _begin(self, row: int, index: int | None, t: int) -> None:
        """Reset a row for an episode; None leaves it empty."""
        if index is None:
            self._playing[row] = None
            return
        schedule, log = self._schedule, self._log
        seed = schedule.reset_seed(index)
        rng = schedule.action_rng(index) if self._noise is not None else None
        self._playing[row] = _Row(index, seed, t, rng)
        log.start[row] = t
        log.observations[t, row] = self._simulations.reset(row, seed)
        log.survive[t, row] = 0.0

    def _change_policies(self, t: int) -> int:
        """Put in the policies that act from here on; return where the next ones do."""
        every, due = self._schedule.perturb_every, t + 2**40
        for row, playing in enumerate(self._playing):
            if playing is None:
                continue
            segments = playing.segments
            following = playing.start if not segments else _change(playing, every)
            if following == t:
                segment = self._schedule.segment(playing.index, len(segments))
                segments.append(segment)
                self._actor.place(row, segment.theta, segment.obs_mean, segment.obs_std)
                following = _change(playing, every)
            due = min(due, following)
        return due

    def _step(self, t: int, which: NDArray[np.int32] | None) -> Outcome:
        log, noise = self._log, self._noise
        if noise is not None:
            for row, playing in enumerate(self._playing):
                if playing is not None and playing.rng is not None:
                    noise[row] = playing.rng.standard_normal(noise.shape[1])
        actions, outputs = self._actor.act(log.observations[t], noise)
        outcome = self._simulations.step(which, actions, log.observations[t + 1])
        log.actions[t], log.rewards[t] = actions, outcome.rewards
        if noise is not None:
            log.pre_actions[t] = outputs
        if outcome.survive is not None:
            self._reports_survive = True
            log.survive[t + 1] = outcome.survive
        return outcome

    def _finish(self, row: int, t: int, *, terminated: bool) -> tuple[int, Episode | None]:
        playing = self._playing[row]
        assert playing is not None
        log, steps = self._log, slice(playing.start, t)
        shown = slice(playing.start, t + 1)
        episode = assemble(
            observations=log.observations[shown, row],
            actions=log.actions[steps, row],
            rewards=log.rewards[steps, row],
            survive=log.survive[shown, row] if self._reports_survive else None,
            pre_actions=None if self._noise is None else log.pre_actions[shown, row],
            segments=playing.segments,
            every=self._schedule.perturb_every,
            terminated=terminated,
            truncated=t - playing.start >= self._limit,
            seed=playing.seed,
        )
        return playing.index, episode if _finite(episode) else None

    def _make_room(self, t: int) -> int:
        """Forget the lines before the longest episode, or double the log where there are few.

        Return the line that is line ``t`` now.
        """
        playing = [row for row in self._playing if row is not None]
        first = min(row.start for row in playing)
        if first < self._log.capacity // 2:
            self._log.grow()
            return t
        self._log.forget(first)
        for row in playing:
            row.start -= first
        return t - first


class _Log:
    """What happened in all rows, a line for each step.

    Attributes:
        capacity: Number of steps that there is room for.
        start: (rows,) the line of each row's first observation.
        observations: (capacity + 1, rows, obs_dim), before each step.
        actions: (capacity + 1, rows, act_dim), as executed.
        rewards: (capacity + 1, rows).
        survive: (capacity + 1, rows), paid at the step that led to an observation.
        pre_actions: (capacity + 1, rows, act_dim); zero where no step was taken.
    """

    _NAMES = ("observations", "actions", "rewards", "survive", "pre_actions")

    def __init__(self, spec: PolicySpec, rows: int) -> None:
        assert isinstance(spec.actions, BoxActions)
        self.capacity, lines = _FIRST_CAPACITY, _FIRST_CAPACITY + 1
        width = spec.actions.dim
        self.start = np.zeros(rows, np.int64)
        self.observations = np.zeros((lines, rows, spec.obs_dim))
        self.actions = np.zeros((lines, rows, width), spec.actions.dtype)
        self.rewards, self.survive = np.zeros((lines, rows)), np.zeros((lines, rows))
        self.pre_actions = np.zeros((lines, rows, width if spec.stochastic else 0))

    def grow(self) -> None:
        """Make room for twice as many steps."""
        self.capacity *= 2
        for name in self._NAMES:
            array = getattr(self, name)
            larger = np.zeros((self.capacity + 1, *array.shape[1:]), array.dtype)
            larger[: len(array)] = array
            setattr(self, name, larger)

    def forget(self, lines: int) -> None:
        """Move all lines up by so many, at least half of them."""
        for name in self._NAMES:
            array = getattr(self, name)
            array[: len(array) - lines] = array[lines:]
        self.start -= lines


def _change(playing: _Row, every: int | None) -> int:
    """Return the line at which the policy of an episode changes next."""
    return playing.start + (2**40 if every is None else len(playing.segments) * every)


def _finite(episode: Episode) -> bool:
    arrays = (episode.observations, episode.rewards, episode.reward_survive)
    return all(array is None or bool(np.isfinite(array).all()) for array in arrays)

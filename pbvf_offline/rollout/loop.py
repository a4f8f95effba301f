"""The only environment loop: policies and seeds in, episodes out.

The unit of work is one episode, a pure function of ``(schedule, index)``. So results do
not depend on the number of workers, and a lost episode can be made again.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import registry
from numpy.typing import NDArray

from pbvf_offline.envs.declared import UnfitError
from pbvf_offline.envs.make import Env, env_name, make_env, registered_limit
from pbvf_offline.envs.process import process_kept
from pbvf_offline.envs.randomness import SharedRandomness
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import DivergedError, PbvfError, UsageError, exception_text
from pbvf_offline.foreign import failure, place_of, stops
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.actor import Actor
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.answers import FLAGS, NUMBERS, Answers
from pbvf_offline.rollout.episodes import Episode, assemble
from pbvf_offline.rollout.native.chunks import Chunks, rows_for
from pbvf_offline.rollout.native.offer import (
    Backend,
    agrees,
    backend_for,
    has_agreed,
    withdraw,
)
from pbvf_offline.rollout.repetition import (
    OTHER_STEPS,
    Again,
    Item,
    Several,
    episode_digest,
    with_repetition,
    without_repetition,
)
from pbvf_offline.rollout.schedules import Schedule, Segment
from pbvf_offline.rollout.workers import Job, is_done_here, ordered_map

_FIRST_CAPACITY = 1024
_MAX_INT32 = 2**31 - 1
_RESET_ANSWER = "observation, info"
_STEP_ANSWER = "observation, reward, terminated, truncated, info"
_Act = Callable[..., tuple[Any, NDArray[np.float64] | None]]


class EpisodeRun:
    """One episode of a schedule under way: this is the environment loop.

    :meth:`advance` goes on where it stopped, so that training can learn in between;
    the arrays grow as steps are taken, and only their first ``steps`` rows count.

    Args:
        env: The environment; it is reset with the schedule's seed.
        schedule: Which policies act.
        index: Which episode of the schedule.
        observe: Called with every observation before it is acted on, and with the last.
        shared: The global random sources, where the caller lends them for the whole episode.

    Attributes:
        observations: (steps + 1 or more, obs_dim), the environment's own dtype.
        actions: (steps or more, act_dim) or (steps or more,), as executed.
        rewards: (steps or more,) float64.
        survive: (steps + 1 or more,) float64, the bonus paid at the step that led to each
            observation.
        pre_actions: (steps + 1 or more, act_dim) float64, of stochastic continuous policies.
        steps: Steps taken so far.
        terminated: Whether the task ended.
        truncated: Whether a time limit ended the episode.
        reports_survive: Whether the environment reported a survival bonus.

    Raises:
        UsageError: The environment could not be reset, or its answer is not what it declared.
        ResourceError: Memory, disk or open files ran out in the environment.
    """

    def __init__(
        self,
        env: Env,
        schedule: Schedule,
        index: int,
        observe: Callable[[NDArray[Any]], None] | None = None,
        shared: SharedRandomness | None = None,
    ) -> None:
        spec = schedule.spec
        self._env, self._schedule, self._index, self._observe = env, schedule, index, observe
        discrete = not isinstance(spec.actions, BoxActions)
        width: tuple[int, ...] = () if discrete else (spec.actions.dim,)
        dtype = spec.actions.dtype if isinstance(spec.actions, BoxActions) else "int64"
        self._capacity = _FIRST_CAPACITY
        rows = self._capacity + 1
        self._answers = Answers(env, spec.obs_dim, index)
        self.observations = np.zeros((rows, spec.obs_dim), self._answers.dtype)
        self.actions = np.zeros((rows, *width), dtype)
        self.rewards, self.survive = np.zeros(rows), np.zeros(rows)
        self.pre_actions = np.zeros((rows, spec.actions.dim))
        self._rng = schedule.action_rng(index) if spec.stochastic else None
        self._keep_pre = spec.stochastic and not discrete
        self._segments: list[Segment] = []
        self._act: _Act | None = None
        self._next_change = 0
        self._shared = shared or SharedRandomness(schedule.reset_seed(index), env)
        self.seed = self._shared.seed
        self.steps = 0
        self.terminated = self.truncated = False
        self.reports_survive = False
        with self._blame(reset=True):
            obs, _ = self._reset()
            # Copied at once: some environments return the same array at every step.
            self.observations[0] = self._answers.observation(obs, 0)
            self._answers.actions(0)
        if observe is not None:
            observe(self.observations[0])

    def _reset(self) -> Any:
        """Reset the environment, with half of the seeds' range where it takes no more.

        Seeds have 32 bits, and some environments refuse more than 31. Only there the highest bit
        is left out: with the same seed all other environments do what they always did.
        """
        try:
            return self._env.reset(seed=self.seed)
        except (OverflowError, ValueError, TypeError, AssertionError):
            if self.seed <= _MAX_INT32:
                raise
        self.seed &= _MAX_INT32
        return self._env.reset(seed=self.seed)

    def _grow(self) -> None:
        """Make room for twice as many steps; what is there stays."""
        self._capacity *= 2
        for name in ("observations", "actions", "rewards", "survive", "pre_actions"):
            array = getattr(self, name)
            larger = np.zeros((self._capacity + 1, *array.shape[1:]), array.dtype)
            larger[: len(array)] = array
            setattr(self, name, larger)

    @property
    def ended(self) -> bool:
        """Whether the environment ended the episode."""
        return self.terminated or self.truncated

    def advance(self, steps: int | None = None) -> bool:
        """Take up to ``steps`` more steps (None: to the end); return whether the episode ended.

        Raises:
            DivergedError: NaN or infinite observations or rewards.
            UsageError: The environment itself raised an exception, or its answer is not what it
                declared.
            ResourceError: Memory, disk or open files ran out in the environment.
        """
        env, schedule, observe = self._env, self._schedule, self._observe
        spec, every, rng, answers = schedule.spec, schedule.perturb_every, self._rng, self._answers
        dtype, shape = answers.dtype, answers.shape
        observations, actions, rewards = self.observations, self.actions, self.rewards
        first = t = self.steps
        stop = math.inf if steps is None else t + steps
        act, next_change, capacity = self._act, self._next_change, self._capacity
        terminated, truncated = self.terminated, self.truncated
        with self._blame(again=steps is not None):
            while not (terminated or truncated) and t < stop:
                if t == next_change or act is None:
                    segment = schedule.segment(self._index, len(self._segments))
                    self._segments.append(segment)
                    act = _acting(spec, segment)
                    next_change = -1 if every is None else t + every
                if t == capacity:
                    self._grow()
                    capacity = self._capacity
                    observations, actions, rewards = self.observations, self.actions, self.rewards
                action, pre = act(observations[t], rng)
                actions[t] = action
                if self._keep_pre:
                    self.pre_actions[t] = pre
                obs, reward, terminated, truncated, info = env.step(action)
                # Numpy casts on assignment whatever is lost, so types are looked at.
                if (
                    type(reward) not in NUMBERS
                    or type(terminated) not in FLAGS
                    or type(truncated) not in FLAGS
                ):
                    answers.scalars(t + 1, reward, terminated, truncated)
                rewards[t] = reward
                self.steps = t = t + 1
                if type(obs) is not np.ndarray or obs.dtype is not dtype or obs.shape != shape:
                    obs = answers.observation(obs, t)
                observations[t] = obs
                if type(info) is not dict:
                    answers.info(info, t)
                if "reward_survive" in info:
                    self.reports_survive = True
                    bonus = info["reward_survive"]
                    answers.number("reward_survive", bonus, t)
                    self.survive[t] = bonus
                if observe is not None:
                    observe(observations[t])
            answers.actions(t)
        self._act, self._next_change = act, next_change
        self.terminated, self.truncated = bool(terminated), bool(truncated)
        self._check_finite(first)
        return self.ended

    @contextlib.contextmanager
    def _blame(self, *, reset: bool = False, again: bool = True) -> Iterator[None]:
        """Turn what the environment raises into an error that names it; ours stay as they are."""
        try:
            with process_kept(), self._shared.lent(again=again):
                yield
        except UnfitError as error:  # below one of our wrappers
            raise self._answers.unfit(error, 0 if reset else self.steps + 1) from error
        except PbvfError:
            raise
        except BaseException as error:
            if stops(error):
                raise
            called = _called_by_loop(error)
            unfit = isinstance(error, ValueError | TypeError) and (
                called is None or (place_of(error) is None and "unpack" in str(error))
            )
            if not unfit and (called is None or _is_ours(called)):
                raise
            # An environment that checks its actions stumbles over what a NaN led to.
            self._check_finite(0)
            name, text = env_name(self._env), exception_text(error)
            doing = "the reset" if reset else f"step {self.steps + 1}"
            if unfit:  # for us, or for one of Gymnasium's wrappers
                wanted = _RESET_ANSWER if reset else _STEP_ANSWER
                raise UsageError(
                    f"the answer of {doing} in episode {self._index} is not ({wanted}): {text}",
                    where=name,
                    remedy="mend the environment" + _or_arguments(self._env),
                ) from error
            raise failure(
                error,
                f"the environment raised {text} in {doing} of episode {self._index}",
                where=name,
                remedy="mend the environment and run the same command again"
                + _or_arguments(self._env),
            ) from error

    def _check_finite(self, first: int) -> None:
        """Check the observations from row ``first`` on, and the rewards of the steps after it.

        Steps are counted from 1 in messages: row 0 of the observations is the reset's.
        """
        stop = self.steps
        for name, begin, values in (
            ("observation", first, self.observations[first : stop + 1]),
            ("reward", first + 1, self.rewards[first:stop, None]),
            ("reward_survive", first + 1, self.survive[first + 1 : stop + 1, None]),
        ):
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                step = begin + int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
                raise DivergedError(
                    f"NaN or infinite {name} in step {step} of episode {self._index}",
                    where=env_name(self._env),
                    remedy="try a smaller --sigma, or mend the environment",
                )

    def episode(self) -> Episode:
        """Return the steps so far as an episode.

        Where the environment has not ended it, it is marked truncated and ``cut: budget``.
        """
        t = self.steps
        return assemble(
            observations=self.observations[: t + 1],
            actions=self.actions[:t],
            rewards=self.rewards[:t],
            survive=self.survive[: t + 1] if self.reports_survive else None,
            pre_actions=self.pre_actions[: t + 1] if self._keep_pre else None,
            segments=self._segments,
            every=self._schedule.perturb_every,
            terminated=self.terminated,
            truncated=self.truncated,
            seed=self.seed,
        )


def run_episode(env: Env, schedule: Schedule, index: int, max_steps: int | None = None) -> Episode:
    """Run one episode of a schedule.

    Args:
        env: The environment; it is reset with the schedule's seed.
        schedule: Which policies act.
        index: Which episode of the schedule.
        max_steps: Stop here when the environment has not ended by itself; the episode is
            then marked truncated and ``cut: budget``.

    Raises:
        DivergedError: NaN or infinite observations or rewards.
        UsageError: The environment itself raised an exception, or its answer is not what it
            declared.
        ResourceError: Memory, disk or open files ran out in the environment.
    """
    shared = SharedRandomness(schedule.reset_seed(index), env)
    with shared.lent(again=False):
        run = EpisodeRun(env, schedule, index, shared=shared)
        run.advance(max_steps)
    return run.episode()


def _acting(spec: PolicySpec, segment: Segment) -> _Act:
    """Return what chooses the actions of a segment.

    Perturbed beyond all bounds, it shows in what it does: a divergence, which says more than what
    numpy would warn of.
    """
    with np.errstate(all="ignore"):
        act = Actor(spec, segment.theta, segment.obs_mean, segment.obs_std, trusted=True).act
    return act if np.isfinite(segment.theta).all() else np.errstate(all="ignore")(act)


def _or_arguments(env: Env) -> str:
    """Return what else may be to blame for a failure of an environment that was given arguments."""
    usual = None if env.spec is None else registry.get(env.spec.id)
    given = usual is not None and env.spec is not None and env.spec.kwargs != usual.kwargs
    return ", or check --env-kwargs" if given else ""


def _called_by_loop(error: BaseException) -> FrameType | None:
    """Return the frame of what this module had called when it failed; None where it failed here."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    here = max(k for k, frame in enumerate(frames) if frame.f_globals.get("__name__") == __name__)
    return frames[here + 1] if here + 1 < len(frames) else None


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame is of this project, and of no environment or wrapper in it."""
    of_environment = isinstance(frame.f_locals.get("self"), gym.Env)
    return str(frame.f_globals.get("__name__", "")).startswith("pbvf_") and not of_environment


@dataclass(frozen=True)
class EpisodeJob:
    """Runs episodes of a schedule in one process; the environment is built on first use.

    Attributes:
        config: The environment.
        schedule: Which policies act.
        max_steps: Step limit of each episode; None: the environment's own.
        reduce: What to keep of each episode; None keeps it whole.
        backend: What plays them; all give the same bytes.
    """

    config: EnvConfig
    schedule: Schedule
    max_steps: int | None = None
    reduce: Callable[[Episode], Any] | None = None
    backend: Backend = "auto"

    def start(self) -> Callable[[Item], Any]:
        """Build the environment and return the function from episode to result."""
        env = make_env(self.config)
        player: Any = None

        def play(index: int) -> Episode:
            return run_episode(env, self.schedule, index, self.max_steps)

        def run(item: Item) -> Any:
            nonlocal player
            if isinstance(item, Again):
                return digest_again(env, self.schedule, item, self.max_steps)
            if isinstance(item, Several):
                from pbvf_offline.rollout.native.play import Player
                from pbvf_offline.rollout.native.run import play_several

                rows = min(rows_for(self.schedule.spec), len(item.indices))
                if player is None or player.rows != rows:
                    player = Player(env, self.config, self.schedule, self.max_steps, rows)
                return play_several(player, item, play, self.reduce)
            episode = play(item if isinstance(item, int) else item.index)
            result = episode if self.reduce is None else self.reduce(episode)
            return result if isinstance(item, int) else (result, episode_digest(episode))

        return run


def digest_again(env: Env, schedule: Schedule, item: Again, max_steps: int | None) -> str | None:
    """Return the digest of an episode after others; None where the environment failed in one."""
    few = OTHER_STEPS if max_steps is None else min(OTHER_STEPS, max_steps)
    try:
        for other in item.others:
            run_episode(env, schedule, other, few)
        return episode_digest(run_episode(env, schedule, item.index, max_steps))
    except (UsageError, DivergedError):
        return None  # what a user asked for has not failed


def run_episodes(
    job: EpisodeJob,
    indices: Iterable[int] | None,
    *,
    workers: int = 1,
    differs: Callable[[], None] | None = None,
    stored: Episode | None = None,
    budget: int | None = None,
) -> Iterator[Any]:
    """Yield the results of a job's episodes in order of ``indices`` (None: 0, 1, 2, …).

    A single worker is this process itself. Where the native backend plays them, Gymnasium plays the
    first one too, once for each kind of policies in a process; if it comes out otherwise, Gymnasium
    plays all, with a warning.

    Args:
        job: What to play.
        indices: Which episodes.
        workers: Number of processes.
        differs: Where given, the first episode is played once more, after some steps of others,
            before its result is yielded; called if it comes out otherwise.
        stored: Episode 0 as an earlier process played it, to be played again in its place.
        budget: Steps after which the caller stops, where that decides how many episodes there are.

    Raises:
        WorkerError: The same episode lost its worker three times.
        UsageError: The backend asked for does not play this environment.
    """
    count = len(indices) if isinstance(indices, Sized) else None
    wanted: Iterator[int] = itertools.count() if indices is None else iter(indices)
    if backend_for(job.config, job.backend) == "native":
        limits = [n for n in (job.max_steps, registered_limit(job.config.reference())) if n]
        chunks = Chunks(
            wanted,
            rows=rows_for(job.schedule.spec),
            workers=workers,
            limit=min(limits, default=None),
            episodes=count,
            budget=budget,
        )
        return _natively(job, chunks, workers, differs, stored)
    return _through_gymnasium(job, wanted, workers, differs, stored)


def _natively(
    job: EpisodeJob,
    chunks: Chunks,
    workers: int,
    differs: Callable[[], None] | None,
    stored: Episode | None,
) -> Generator[Any, None, None]:
    from pbvf_offline.rollout.native.run import items, results

    spec = job.schedule.spec
    agreed = None if has_agreed(job.config, spec) else partial(agrees, job.config, spec)
    wanted_items = items(chunks, check=agreed is not None, stored=stored is not None)
    answers = _answers(job, wanted_items, workers)
    if (yield from results(answers, chunks, agreed=agreed, stored=stored, differs=differs)):
        return
    withdraw(job.config)
    wanted = itertools.chain(chunks.drawn, chunks.indices)
    yield from _through_gymnasium(job, wanted, workers, differs, stored)


def _through_gymnasium(
    job: EpisodeJob,
    wanted: Iterator[int],
    workers: int,
    differs: Callable[[], None] | None,
    stored: Episode | None,
) -> Iterator[Any]:
    if differs is None:
        return _answers(job, wanted, workers)
    items = with_repetition(wanted, stored=stored is not None)
    return without_repetition(_answers(job, items, workers), differs, stored)


def _answers(
    job: EpisodeJob, items: Iterator[Item | None], workers: int
) -> Generator[Any, None, None]:
    if is_done_here(workers):
        run = job.start()
        return (run(item) for item in items if item is not None)
    typed: Job[Any, Any] = job  # a union and None are too much for mypy to take apart
    return ordered_map(typed, items, workers)

"""Online actor-critic with parameter-based value functions: Algorithms 1 to 4, one loop.

At each episode the learned policy is perturbed, ``theta~ = theta + epsilon`` with
``epsilon ~ N(0, sigma^2 I)``, and acts to the episode's end. What it did goes into the
replay buffer with theta~. When it is time, the critic takes gradient steps on replayed
entries and the actor climbs the critic. Collecting, the critics' losses and their
gradient steps are those of the offline path.

The state at the start of an episode is all there is to know: an interrupted run goes on
from there with the result of an undisturbed one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.envs.make import Env
from pbvf_offline.errors import DivergedError, UsageError
from pbvf_offline.fit.steps import check_weights, gradient_step
from pbvf_offline.online.per_step import PerStepSchedule
from pbvf_offline.online.replay import Steps
from pbvf_offline.online.settings import OnlineSettings
from pbvf_offline.online.training import Training
from pbvf_offline.policies.batch import check_precision
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Episode
from pbvf_offline.rollout.loop import EpisodeRun
from pbvf_offline.rollout.schedules import PerturbationSchedule
from pbvf_offline.seeding import Stream, generator, reset_seed


@dataclass(frozen=True)
class EpisodeRecord:
    """What one training episode came to.

    Attributes:
        index: Its number, from 0.
        end: Environment steps of the run at its end.
        steps: Its length.
        total: Undiscounted raw return of the perturbed policy that acted.
        learned: The same in the critic's reward.
        loss: The critic's last recorded loss.
        objective: The actor's last objective, None before the first update.
        effective_samples: Mean effective sample size of importance weights since the
            episode before, as a fraction of the batch, where there are such weights.
    """

    index: int
    end: int
    steps: int
    total: float
    learned: float
    loss: float | None
    objective: float | None
    effective_samples: float | None


@dataclass(frozen=True)
class Hooks:
    """What a caller is told while training goes on.

    Attributes:
        watch: Called at each step of ``at``, after the updates that are due there.
        at: Environment steps to stop at for ``watch``.
        episode: Called after each finished episode, when everything is whole, with its
            record and, where ``keep``, the episode itself.
        keep: Whether whole episodes are wanted.
        tick: Called often, for progress and to notice an interrupt; what it raises stops
            the run at its last finished episode.
    """

    watch: Callable[[Training], None] | None = None
    at: tuple[int, ...] = ()
    episode: Callable[[Training, EpisodeRecord, Episode | None], None] | None = None
    keep: bool = False
    tick: Callable[[int], None] | None = None


def train(training: Training, env: Env, until: int, hooks: Hooks) -> Episode | None:
    """Train up to environment step ``until``; the last episode may stay unfinished.

    After that the training holds the result at ``until`` but is no place to go on from,
    unless an episode ended exactly there: go on from what the ``episode`` hook saw last.

    Args:
        training: The run, changed in place; it stands at the start of an episode.
        env: Its environment.
        until: Environment steps in all.
        hooks: What to tell whom.

    Raises:
        DivergedError: NaN or infinite numbers in the critic, the actor or the environment.
        UsageError: The survival bonus is to be left out and the environment reports none, or the
            device has not the precision.

    Returns:
        The steps of the last episode when it stayed unfinished and episodes are kept.
    """
    check_precision(training.settings.precision, training.theta.device)
    unfinished: Episode | None = None
    watched = sorted({step for step in hooks.at if training.steps < step <= until})
    while training.steps < until:
        unfinished = _run_one_episode(training, env, until, hooks, watched)
    return unfinished


def _run_one_episode(
    training: Training, env: Env, until: int, hooks: Hooks, watched: list[int]
) -> Episode | None:
    """Run one episode with what is due in it; return it where ``until`` cut it and it is kept."""
    settings, replay = training.settings, training.replay
    start, index = training.steps, training.episodes
    base = PerturbationSchedule(training.policy, settings.sigma, None, settings.seed)
    per_step: PerStepSchedule | None = None
    if settings.normalization == "per-step":
        per_step = PerStepSchedule(base, index, training.statistics)
    schedule = base if per_step is None else per_step
    run = EpisodeRun(env, schedule, index, None if per_step is None else per_step.observe)
    acting = _acting_policy(base, index)
    row = replay.begin(acting, run.observations[0])
    while True:
        stop = _next_stop(training.steps, until, settings.update_every, watched)
        before = run.steps
        ended = run.advance(stop - training.steps)
        training.steps = start + run.steps
        _take_in(training, run, before, row, per_step)
        if _is_due(settings, training.steps, ended=ended):
            _update(training)
        training.episodes += ended
        _watch(training, hooks, watched)
        if ended:
            _tell(training, run, hooks)
            return None
        if training.steps >= until:
            check_weights(training.fit)
            return run.episode() if hooks.keep else None


def _take_in(
    training: Training, run: EpisodeRun, before: int, row: int, per_step: PerStepSchedule | None
) -> None:
    """Take in the steps from ``before`` on, and the episode if it ended with them."""
    _require_bonus(training.settings, run)
    if not training.replay.monte_carlo:
        _store_steps(training, run, before, row, per_step)
    if per_step is not None:
        training.normaliser = per_step.seen[-1]
    if run.ended:
        _finish(training, run, row)


def _is_due(settings: OnlineSettings, step: int, *, ended: bool) -> bool:
    """Return whether a round of updates is due."""
    every = settings.update_every
    return ended if every is None else step % every == 0


def _watch(training: Training, hooks: Hooks, watched: list[int]) -> None:
    """Tell who watches that the training stands at this step."""
    if watched and training.steps == watched[0] and hooks.watch is not None:
        check_weights(training.fit)
        watched.pop(0)
        hooks.watch(training)
    if hooks.tick is not None:
        hooks.tick(training.steps)


def _tell(training: Training, run: EpisodeRun, hooks: Hooks) -> None:
    """Tell of a finished episode."""
    if hooks.episode is not None:
        check_weights(training.fit)
        episode = run.episode() if hooks.keep else None
        hooks.episode(training, _record(training, run), episode)
    training.effective.clear()


def _acting_policy(schedule: PerturbationSchedule, index: int) -> Policies:
    """Return the perturbed policy of an episode.

    Raises:
        DivergedError: The noise made a parameter infinite.
    """
    acting = schedule.segment(index, 0)
    if not np.isfinite(acting.theta).all():
        raise DivergedError(
            f"a perturbed parameter is not finite in episode {index}",
            remedy="lower --sigma; what was checkpointed is kept",
        )
    return Policies(
        schedule.spec, acting.theta[None], acting.obs_mean[None].copy(), acting.obs_std[None].copy()
    )


def _next_stop(step: int, until: int, every: int | None, watched: list[int]) -> int:
    """Return the next environment step at which something other than acting is due."""
    stops: Iterable[int] = [until, *watched[:1]]
    if every is not None:
        stops = [*stops, step - step % every + every]
    return min(stops)


def _require_bonus(settings: OnlineSettings, run: EpisodeRun) -> None:
    """Check, as soon as there are steps, that a bonus which is to be left out is reported."""
    if settings.reward != "raw" and not run.reports_survive:
        raise UsageError(
            "the environment reports no survival bonus (reward_survive)",
            where="--reward",
            remedy="use --reward raw",
        )


def learned_rewards(settings: OnlineSettings, run: EpisodeRun, start: int) -> NDArray[np.float64]:
    """Return the rewards (n,) of the steps from ``start`` on, as the critic counts them."""
    rewards: NDArray[np.float64] = run.rewards[start : run.steps]
    if settings.reward == "raw":
        return rewards
    without: NDArray[np.float64] = rewards - run.survive[start + 1 : run.steps + 1]
    return without


def _store_steps(
    training: Training, run: EpisodeRun, before: int, row: int, per_step: PerStepSchedule | None
) -> None:
    now = run.steps
    shown = None
    if per_step is not None:
        seen = per_step.shown(before, now + 1, run.observations)
        shown = (seen[:-1], seen[1:])
    keeps_pre = training.spec.stochastic and training.spec.is_continuous
    training.replay.add_steps(
        row,
        Steps(
            obs=run.observations[before:now],
            next_obs=run.observations[before + 1 : now + 1],
            action=run.actions[before:now],
            reward=learned_rewards(training.settings, run, before),
            terminated=run.terminated,
            pre_action=run.pre_actions[before:now] if keeps_pre else None,
            shown=shown,
        ),
    )


def _finish(training: Training, run: EpisodeRun, row: int) -> None:
    """Take in a finished episode: its return, and the statistics of its observations."""
    settings, replay = training.settings, training.replay
    rewards = learned_rewards(settings, run, 0)
    value = None
    if replay.monte_carlo:
        value = float(settings.gamma ** np.arange(len(rewards)) @ rewards)
        if not abs(value) <= float(np.finfo(np.float32).max):
            raise DivergedError(
                f"the return {value:.3g} of episode {training.episodes} is beyond single precision",
                remedy="scale the environment's rewards",
            )
        replay.see(run.observations[: run.steps])
    replay.finish(row, float(rewards.sum()), value)
    if settings.normalization == "episode":
        training.statistics.update(run.observations[: run.steps])
        training.normaliser = training.statistics.freeze()
        replay.renormalise(training.normaliser)
    training.fit.normaliser = training.normaliser


def _update(training: Training) -> None:
    """Take one round of critic and actor updates on replayed entries."""
    settings, replay, fit = training.settings, training.replay, training.fit
    size = len(replay)
    if size == 0:
        return
    critic, device = fit.online, training.theta.device
    batch = replay.training_set()
    rng = generator(settings.seed, Stream.ONLINE_BATCH, training.rounds)
    shape = critic.noise_shape(batch)
    drawn = rng.integers(size, size=(settings.critic_updates, settings.batch_size))
    for index in torch.from_numpy(drawn).to(device):
        noise = None
        if shape is not None:
            numbers = rng.standard_normal((settings.batch_size, *shape), dtype=np.float32)
            noise = torch.from_numpy(numbers).to(device)
        gradient_step(fit, batch, index, noise)
    for _ in range(settings.actor_updates):
        if critic.kind.depends_on_state:
            rows = rng.integers(size, size=settings.actor_states)
            index = torch.from_numpy(rows).to(device)
        else:
            index = torch.zeros(1, dtype=torch.int64, device=device)
        with critic.network.in_precision(settings.precision):
            step = critic.actor_step(training.theta, batch, index, biased=settings.biased)
        if not (math.isfinite(float(step.objective)) and bool(step.gradient.isfinite().all())):
            raise DivergedError(
                f"the actor's objective or its gradient is not finite at step {training.steps}",
                remedy="lower --lr-policy or --lr-critic; what was checkpointed is kept",
            )
        training.theta.grad = step.gradient
        training.actor.step()
        training.objective = float(step.objective)
        if step.effective_samples is not None:
            training.effective.append(step.effective_samples)
    if not bool(training.theta.isfinite().all()):
        raise DivergedError(
            f"the policy's parameters are not finite at step {training.steps}",
            remedy="lower --lr-policy; the last checkpoint was kept",
        )
    training.rounds += 1


def _record(training: Training, run: EpisodeRun) -> EpisodeRecord:
    effective = training.effective
    return EpisodeRecord(
        index=training.episodes - 1,
        end=training.steps,
        steps=run.steps,
        total=float(run.rewards[: run.steps].sum()),
        learned=float(learned_rewards(training.settings, run, 0).sum()),
        loss=training.fit.loss,
        objective=training.objective,
        effective_samples=float(np.mean(effective)) if effective else None,
    )


def evaluation_seed(seed: int, step: int) -> int:
    """Return the seed of the evaluation at an environment step; training never uses it."""
    return reset_seed(seed, Stream.ONLINE_EVALUATION, step)


def evaluation_steps(steps: int, count: int) -> tuple[int, ...]:
    """Return the environment steps of a run's evaluations: ``i N / count``, i = 1 … count.

    >>> evaluation_steps(1000, 4)
    (250, 500, 750, 1000)
    """
    return tuple(sorted({max(1, i * steps // count) for i in range(1, count + 1)}))

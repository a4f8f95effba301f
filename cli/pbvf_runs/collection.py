"""Collect: roll a schedule of policies out into a dataset, crash-safe and repeatable."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pbvf_datasets.format.environment import env_spec_text
from pbvf_datasets.format.schema import check_dataset_id
from pbvf_datasets.write.writer import DatasetWriter, peek
from pbvf_offline.envs.make import close_env, make_env, time_limit
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import UsageError
from pbvf_offline.policies.families import DEFAULT_FAMILY
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.policies.spaces import check_spaces_fit, spec_for_env
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.evaluation import require_end, warm_up
from pbvf_offline.rollout.loop import EpisodeJob, run_episodes
from pbvf_offline.rollout.schedule_kinds import INDEPENDENT, SCHEDULES
from pbvf_offline.rollout.schedules import GivenSchedule, PerturbationSchedule, Schedule
from pbvf_offline.seeding import Stream, check_seed, generator
from pbvf_offline.setting_types import Squash

Progress = Callable[[int, int | None, int], None]
_ENDLESS_WARMUP_STEPS = 1_000
_MOST = 10**12
_ROW_OVERHEAD = 64  # bytes a step beside its observation and action


@dataclass(frozen=True)
class CollectSettings:
    """What to collect; equal settings give equal bytes, whatever the number of workers.

    Attributes:
        env: The environment.
        dataset: The dataset's id, ``namespace/name-vN``.
        steps: Steps in all; the last episode is cut to fit. Or:
        episodes: Whole episodes.
        perturb_every: Steps between perturbations (counted from each reset); None: episode.
        sigma: Standard deviation of the parameter noise.
        schedule: How the noise is drawn, a name in
            :data:`pbvf_offline.rollout.schedule_kinds.SCHEDULES`.
        hidden: Hidden sizes of a fresh policy.
        family: Family of a fresh policy, a name in
            :data:`pbvf_offline.policies.families.FAMILIES`.
        stochastic: Whether a fresh policy is stochastic.
        squash: How a fresh policy's output becomes an action.
        base: Perturb this one policy, in its own normaliser, in place of a fresh one.
        policies: Roll these policies out unperturbed, one an episode, in turn.
        normalize: Whether a fresh policy sees normalised observations.
        warmup_episodes: Episodes run for the normaliser and not stored.
        seed: Seed of everything.
        license: SPDX identifier of the data's licence.
        authors: Names.
        command: A command that makes the same dataset, for its card.
    """

    env: EnvConfig
    dataset: str
    steps: int | None = None
    episodes: int | None = None
    perturb_every: int | None = None
    sigma: float = 0.5
    schedule: str = INDEPENDENT
    hidden: tuple[int, ...] = ()
    family: str = DEFAULT_FAMILY
    stochastic: bool = False
    squash: Squash = "tanh"
    base: PoliciesFile | None = None
    policies: PoliciesFile | None = None
    normalize: bool = True
    warmup_episodes: int = 10
    seed: int = 0
    license: str | None = None
    authors: tuple[str, ...] = ()
    command: str | None = None

    def __post_init__(self) -> None:
        check_dataset_id(self.dataset)
        check_seed(self.seed)
        if (self.steps is None) == (self.episodes is None):
            raise UsageError("give either --steps or --episodes")
        for name, value in (
            ("--steps", self.steps),
            ("--episodes", self.episodes),
            ("--perturb-every", self.perturb_every),
        ):
            if value is not None and not 1 <= value <= _MOST:
                raise UsageError(f"{value} is not in 1 … {_MOST:,}", where=name)
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise UsageError(f"{self.sigma} is not a finite number from 0", where="--sigma")
        if self.warmup_episodes < 0:
            raise UsageError(f"{self.warmup_episodes} is not 0 or more", where="--warmup-episodes")
        SCHEDULES.choose(self.schedule, where="--schedule")
        if self.base is not None and self.policies is not None:
            raise UsageError("give either --base or --policies")
        if self.base is not None and len(self.base.policies) != 1:
            raise UsageError(
                f"the file holds {len(self.base.policies)} policies; one is perturbed",
                where="--base",
                remedy="use --policies to roll all of them out unperturbed",
            )
        if self.policies is not None and self.perturb_every is not None:
            raise UsageError(
                "given policies are rolled out unperturbed, for whole episodes",
                where="--perturb-every",
                remedy="leave it out, or use --base",
            )

    def identity(self) -> dict[str, Any]:
        """Return all that must be equal for the same dataset, in JSON form."""
        given = self.base or self.policies
        fresh = given is None
        # Only where they are others: datasets made before there was a choice keep their bytes.
        chosen = {} if self.schedule == INDEPENDENT else {"schedule": self.schedule}
        if fresh and self.family != DEFAULT_FAMILY:
            chosen["family"] = self.family
        return {
            "env": self.env.reference().to_dict(),
            # Arguments that name paths stay out of the file; their digest tells them apart.
            "env_kwargs": _digest(repr(sorted(self.env.kwargs.items())).encode()),
            "steps": self.steps,
            "episodes": self.episodes,
            "perturb_every": None if self.policies else self.perturb_every or "episode",
            "sigma": None if self.policies else float(self.sigma),
            "policy": list(self.hidden) if fresh else None,
            "stochastic": self.stochastic if fresh else None,
            "squash": self.squash if fresh else None,
            "base": None if self.base is None else _digest(self.base.encode()),
            "policies": None if self.policies is None else _digest(self.policies.encode()),
            "normalize": self.normalize if fresh else None,
            "warmup_episodes": self.warmup_episodes if fresh and self.normalize else 0,
            **chosen,
        }


@dataclass(frozen=True)
class CollectResult:
    """What a collection came to.

    Attributes:
        dataset: The dataset's id.
        path: Its folder.
        episodes: Number of episodes.
        steps: Number of stored steps.
        policies: Number of distinct policies that acted.
        cut: Number of episodes that the step budget cut short (0 or 1).
        seed: Seed of everything.
        warmup_steps: Steps run for the normaliser and not stored.
        seconds: From the first reset of a stored episode to the final rename.
        steps_per_second: Steps stored now over these seconds.
        returns: Mean, min and max undiscounted return of whole episodes, or None.
        already_complete: Whether nothing had to be done.
    """

    dataset: str
    path: Path
    episodes: int
    steps: int
    policies: int
    cut: int
    seed: int
    warmup_steps: int
    seconds: float
    steps_per_second: float | None
    returns: dict[str, float] | None
    already_complete: bool


def stored_seed(dataset: str, root: Path | None = None) -> int | None:
    """Return the seed of a dataset that is complete or was begun, if there is one."""
    found = peek(dataset, root)
    seed = None if found is None else found["seed"]
    return seed if type(seed) is int else None


def collect(
    settings: CollectSettings,
    *,
    root: Path | None = None,
    overwrite: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> CollectResult:
    """Collect a dataset, or continue one, or find it complete.

    Args:
        settings: What to collect.
        root: Folder of datasets; Minari's when None.
        overwrite: Start anew whatever is there.
        workers: Number of processes; does not change the result.
        progress: Called with steps done, steps wanted (None: unknown) and episodes done.

    Raises:
        UsageError: Unknown environment, unsupported spaces, an environment without an end.
        ConflictError: The dataset exists with other settings, or another process writes it.
        DivergedError: NaN or infinite values from the environment.
        ResourceError: The disk or a permission refuses; finished episodes are safe.
        WorkerError: An episode lost its worker three times.
    """
    if workers < 1:
        raise UsageError(f"{workers} is not at least 1", where="--workers")
    env = make_env(settings.env)
    try:
        wanted = spec_for_env(
            env,
            settings.hidden,
            squash=settings.squash,
            stochastic=settings.stochastic,
            family=settings.family,
        )
        spec = _spec(settings, wanted)
        endless = time_limit(env) is None
        if settings.episodes is not None:
            require_end(settings.env, settings.env.max_episode_steps)
        obs_space, action_space = env.observation_space, env.action_space
        env_spec = env_spec_text(env)
    finally:
        close_env(env)
    row = spec.obs_dim * 8 + spec.actions.dim * 8 + _ROW_OVERHEAD
    with DatasetWriter(
        settings.dataset,
        spec,
        observation_space=obs_space,
        action_space=action_space,
        environment=settings.env.reference().to_dict(),
        env_spec_json=env_spec,
        settings=settings.identity(),
        seed=settings.seed,
        license=settings.license,
        authors=settings.authors,
        command=settings.command,
        root=root,
        overwrite=overwrite,
        expected_bytes=None if settings.steps is None else 2 * settings.steps * row,
    ) as writer:
        if writer.manifest is not None:
            return _result(settings, writer.manifest, writer.path, 0.0, None)
        schedule = _schedule(settings, spec, writer, workers, endless=endless)
        started, before = time.perf_counter(), writer.steps_done
        limit = settings.steps if endless else None
        _run(settings, EpisodeJob(settings.env, schedule, limit), writer, workers, progress)
        manifest = writer.finish()
        seconds = time.perf_counter() - started
        return _result(settings, manifest, writer.path, seconds, writer.steps_done - before)


def _run(
    settings: CollectSettings,
    job: EpisodeJob,
    writer: DatasetWriter,
    workers: int,
    progress: Progress | None,
) -> None:
    """Add episodes in order until there are enough; the last is cut to a step budget."""

    def finished() -> bool:
        if settings.steps is not None:
            return steps >= settings.steps
        return episodes >= (settings.episodes or 0)

    steps, episodes = writer.steps_done, writer.episodes_done
    if finished():
        return
    first = writer.episodes_done
    indices = (
        itertools.count(first) if settings.episodes is None else range(first, settings.episodes)
    )
    with closing(run_episodes(job, indices, workers=workers)) as results:  # type: ignore[type-var]
        for episode in results:
            if settings.steps is not None and len(episode) > settings.steps - steps:
                episode = episode.truncate(settings.steps - steps)  # noqa: PLW2901
            writer.add(episode)
            steps, episodes = steps + len(episode), episodes + 1
            if progress is not None:
                progress(steps, settings.steps, episodes)
            if finished():
                return


def _spec(settings: CollectSettings, wanted: PolicySpec) -> PolicySpec:
    """Return the spec of the policies that will act.

    Raises:
        IncompatibleError: Given policies do not fit the environment.
    """
    given = settings.base or settings.policies
    if given is None:
        return wanted
    spec = given.policies.spec
    check_spaces_fit(spec, wanted, settings.env.name)
    return spec


def _schedule(
    settings: CollectSettings,
    spec: PolicySpec,
    writer: DatasetWriter,
    workers: int,
    *,
    endless: bool,
) -> Schedule:
    """Return the schedule of the stored episodes; runs the warm-up unless an earlier run did."""
    if settings.policies is not None:
        return GivenSchedule(settings.policies.policies, settings.seed)

    def perturbed(base: Policies, *, warmup: bool = False) -> PerturbationSchedule:
        return SCHEDULES[settings.schedule](
            base, settings.sigma, settings.perturb_every, settings.seed, warmup
        )

    if settings.base is not None:
        return perturbed(settings.base.policies)
    theta = init_theta(spec, generator(settings.seed, Stream.BASE_POLICY))[None]
    state = writer.state
    if state is None:
        plain = Normaliser.identity(spec.obs_dim)
        normaliser, steps = plain, 0
        if settings.normalize and settings.warmup_episodes > 0:
            base = Policies(spec, theta, plain.mean[None], plain.std[None])
            normaliser, steps = warm_up(
                settings.env,
                perturbed(base, warmup=True),
                episodes=settings.warmup_episodes,
                max_steps=_ENDLESS_WARMUP_STEPS if endless else None,
                workers=workers,
            )
        writer.set_state(
            {
                "obs_mean": normaliser.mean.tolist(),
                "obs_std": normaliser.std.tolist(),
                "warmup_steps": steps,
            }
        )
        state = writer.state or {}
    mean, std = (np.array(state[name], np.float64)[None] for name in ("obs_mean", "obs_std"))
    return perturbed(Policies(spec, theta, mean, std))


def _result(
    settings: CollectSettings,
    manifest: dict[str, Any],
    path: Path,
    seconds: float,
    steps_now: int | None,
) -> CollectResult:
    provenance = manifest["provenance"]
    stats = provenance["stats"]
    return CollectResult(
        dataset=settings.dataset,
        path=path,
        episodes=stats["episodes"],
        steps=stats["steps"],
        policies=stats["policies"],
        cut=stats["cut"],
        seed=settings.seed,
        warmup_steps=provenance["warmup_steps"],
        seconds=seconds,
        steps_per_second=None if steps_now is None else steps_now / max(seconds, 1e-9),
        returns=stats["return"],
        already_complete=steps_now is None,
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

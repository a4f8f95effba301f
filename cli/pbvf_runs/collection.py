"""Collect: roll a schedule of policies out into a dataset, crash-safe and repeatable."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pbvf_datasets.format.environment import env_spec_text
from pbvf_datasets.format.identity import stored_settings
from pbvf_datasets.format.statistics import Ends
from pbvf_datasets.write.writer import DatasetWriter
from pbvf_offline.envs.make import Env, close_env, make_env, time_limit
from pbvf_offline.errors import UsageError
from pbvf_offline.policies.families import DEFAULT_FAMILY
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.policies.spaces import check_spaces_fit, spec_for_env
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.evaluation import require_end, warm_up
from pbvf_offline.rollout.loop import EpisodeJob, run_episodes
from pbvf_offline.rollout.native.offer import Backend, Playing, backend_for
from pbvf_offline.rollout.repetition import warn_not_repeatable
from pbvf_offline.rollout.schedule_kinds import INDEPENDENT, SCHEDULES
from pbvf_offline.rollout.schedules import GivenSchedule, PerturbationSchedule, Schedule
from pbvf_offline.seeding import Stream, generator
from pbvf_runs.settings import CollectSettings

Progress = Callable[[int, int | None, int], None]
_ENDLESS_WARMUP_STEPS = 1_000
_ROW_OVERHEAD = 64  # bytes a step beside its observation and action


@dataclass(frozen=True)
class _Given:
    """Policies that are given: one to perturb, or some to roll out unperturbed."""

    base: PoliciesFile | None
    policies: PoliciesFile | None

    @property
    def file(self) -> PoliciesFile | None:
        """The file that holds them; None where a fresh policy is perturbed."""
        return self.base or self.policies

    def check(self, settings: CollectSettings) -> None:
        """Refuse what does not go together.

        Raises:
            UsageError: Something does not.
        """
        if self.base is not None and self.policies is not None:
            raise UsageError(
                "give either --base (perturbed) or --policies (as they are)", where="--policies"
            )
        if self.base is not None and len(self.base.policies) != 1:
            raise UsageError(
                f"the file holds {len(self.base.policies)} policies; one is perturbed",
                where="--base",
                remedy="use --policies to roll all of them out unperturbed",
            )
        if self.policies is not None and settings.perturb_every is not None:
            raise UsageError(
                "given policies are rolled out unperturbed, for whole episodes",
                where="--perturb-every",
                remedy="leave it out, or use --base",
            )


@dataclass(frozen=True)
class _How:
    """How a warm-up is run, which does not change it."""

    workers: int
    backend: Backend
    warming: Callable[[int, int], None] | None


def _identity(settings: CollectSettings, given: _Given) -> dict[str, Any]:
    """Return all that must be equal for the same dataset, in JSON form."""
    fresh, perturbed = given.file is None, given.policies is None
    policy = settings.policy
    # Only where they are others: datasets made before there was a choice keep their bytes.
    chosen = {} if settings.schedule == INDEPENDENT else {"schedule": settings.schedule}
    if fresh and policy.family != DEFAULT_FAMILY:
        chosen["family"] = policy.family
    return {
        "env": settings.env.reference().to_dict(),
        # Arguments that name paths stay out of the file; their digest distinguishes them.
        "env_kwargs": _digest(repr(sorted(settings.env.kwargs.items())).encode()),
        "steps": settings.steps,
        "episodes": settings.episodes,
        "perturb_every": settings.perturb_every or "episode" if perturbed else None,
        "sigma": float(settings.sigma) if perturbed else None,
        "policy": list(policy.hidden) if fresh else None,
        "stochastic": policy.stochastic if fresh else None,
        "squash": policy.squash if fresh else None,
        "base": None if given.base is None else _digest(given.base.encode()),
        "policies": None if given.policies is None else _digest(given.policies.encode()),
        "normalize": settings.normalize if fresh else None,
        "warmup_episodes": settings.warmup_episodes if fresh and settings.normalize else 0,
        **chosen,
    }


@dataclass(frozen=True)
class CollectResult:
    """Result of a collection.

    Attributes:
        dataset: The dataset's id.
        path: Its folder.
        episodes: Number of episodes.
        steps: Number of stored steps.
        policies: Number of distinct policies that acted.
        cut: Number of episodes that the step budget cut short (0 or 1).
        ends: How the episodes ended.
        seed: Seed of everything.
        warmup_steps: Steps run for the normaliser and not stored.
        seconds: From the first reset of a stored episode to the final rename.
        steps_per_second: Steps stored now over these seconds.
        returns: Mean, min and max undiscounted return of whole episodes, or None.
        repeatable: False where an episode that was played again came out otherwise, else None.
        already_complete: Whether nothing had to be done.
        backend: What played the episodes, or would have.
    """

    dataset: str
    path: Path
    episodes: int
    steps: int
    policies: int
    cut: int
    ends: Ends
    seed: int
    warmup_steps: int
    seconds: float
    steps_per_second: float | None
    returns: dict[str, float] | None
    repeatable: bool | None
    already_complete: bool
    backend: Playing


def stored_seed(dataset: str, root: Path | None = None) -> int | None:
    """Return the seed of a dataset that is complete or was begun, if there is one."""
    found = stored_settings(dataset, root)
    seed = None if found is None else found["seed"]
    return seed if type(seed) is int else None


def collect(
    settings: CollectSettings,
    *,
    base: PoliciesFile | None = None,
    policies: PoliciesFile | None = None,
    root: Path | None = None,
    overwrite: bool = False,
    workers: int = 1,
    backend: Backend = "auto",
    progress: Progress | None = None,
    warming: Callable[[int, int], None] | None = None,
) -> CollectResult:
    """Collect a dataset, or continue one, or find it complete.

    Args:
        settings: What to collect.
        base: Perturb this one policy, in its own normaliser, in place of a fresh one.
        policies: Roll these policies out unperturbed, one an episode, in turn.
        root: Folder of datasets; Minari's when None.
        overwrite: Start over whatever is there.
        workers: Number of processes; does not change the result.
        backend: What plays the episodes; does not change the result either.
        progress: Called with steps done, steps wanted (None: unknown) and episodes done.
        warming: Called with warm-up episodes done and wanted.

    Raises:
        UsageError: Unknown environment, unsupported spaces, an environment without an end, or
            policies that do not go with the settings, or a backend that does not play it.
        ConflictError: The dataset exists with other settings, or another process writes it.
        DivergedError: NaN or infinite values from the environment.
        ResourceError: The disk or a permission refuses; finished episodes are safe.
        WorkerError: An episode lost its worker three times.
    """
    if workers < 1:
        raise UsageError(f"{workers} is not at least 1", where="--workers")
    given = _Given(base, policies)
    given.check(settings)
    backend_for(settings.env, backend)  # refused before anything is made
    env = make_env(settings.env)
    try:
        spec = _spec(env, settings, given)
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
        settings=_identity(settings, given),
        seed=settings.seed,
        license=settings.license,
        authors=settings.authors,
        command=settings.command,
        root=root,
        overwrite=overwrite,
        expected_bytes=None if settings.steps is None else 2 * settings.steps * row,
    ) as writer:
        if writer.manifest is not None:
            return _result(settings, writer.manifest, writer.path, 0.0, None, backend)
        how = _How(workers, backend, warming)
        schedule = _schedule(settings, given, spec, writer, how, endless=endless)
        started, before = time.perf_counter(), writer.steps_done
        limit = settings.steps if endless else None
        job = EpisodeJob(settings.env, schedule, limit, backend=backend)
        _run(settings, job, writer, workers, progress)
        manifest = writer.finish()
        seconds = time.perf_counter() - started
        now = writer.steps_done - before
        return _result(settings, manifest, writer.path, seconds, now, backend)


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
    stored = writer.first_stored()

    def differs() -> None:
        writer.mark_not_repeatable()
        warn_not_repeatable(settings.env.name, continued=stored is not None, recorded=True)

    budget = None if settings.steps is None else settings.steps - steps
    played = run_episodes(
        job, indices, workers=workers, differs=differs, stored=stored, budget=budget
    )
    with closing(played) as results:  # type: ignore[type-var]
        for episode in results:
            if settings.steps is not None and len(episode) > settings.steps - steps:
                episode = episode.truncate(settings.steps - steps)  # noqa: PLW2901
            writer.add(episode)
            steps, episodes = steps + len(episode), episodes + 1
            if progress is not None:
                progress(steps, settings.steps, episodes)
            if finished():
                return


def _spec(env: Env, settings: CollectSettings, given: _Given) -> PolicySpec:
    """Return the spec of the policies that will act.

    Raises:
        IncompatibleError: Given policies do not fit the environment.
    """
    policy = settings.policy
    fresh = spec_for_env(env, **policy.architecture)
    if given.file is None:
        return fresh
    spec = given.file.policies.spec
    check_spaces_fit(spec, fresh, settings.env.name)
    return spec


def _schedule(
    settings: CollectSettings,
    given: _Given,
    spec: PolicySpec,
    writer: DatasetWriter,
    how: _How,
    *,
    endless: bool,
) -> Schedule:
    """Return the schedule of the stored episodes; runs the warm-up unless an earlier run did."""
    if given.policies is not None:
        return GivenSchedule(given.policies.policies, settings.seed)

    def perturbed(base: Policies, *, warmup: bool = False) -> PerturbationSchedule:
        return SCHEDULES[settings.schedule](
            base, settings.sigma, settings.perturb_every, settings.seed, warmup
        )

    if given.base is not None:
        return perturbed(given.base.policies)
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
                workers=how.workers,
                progress=how.warming,
                backend=how.backend,
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
    backend: Backend,
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
        ends=Ends.of(stats),
        seed=settings.seed,
        warmup_steps=provenance["warmup_steps"],
        seconds=seconds,
        steps_per_second=None if steps_now is None else steps_now / max(seconds, 1e-9),
        returns=stats["return"],
        repeatable=provenance.get("repeatable"),
        already_complete=steps_now is None,
        backend=backend_for(settings.env, backend),
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

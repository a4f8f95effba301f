"""What decides a collection or a run, and the defaults. Imports no array library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import UsageError
from pbvf_offline.policies.settings import NewPolicy
from pbvf_offline.records import Defaults, Record, setting
from pbvf_offline.rollout.schedule_kinds import INDEPENDENT, SCHEDULES
from pbvf_offline.setting_types import MOST, PARAMETER_NOISE, RARE, Seed

PERTURBING: Final = ("perturb_every", "sigma", "schedule")
"""Settings that decide nothing where policies are rolled out as they are."""
FRESH: Final = ("normalize", "warmup_episodes")
"""Settings that decide nothing where a file holds the policies."""


@dataclass(frozen=True)
class CollectSettings(Record):
    """What to collect; equal settings give equal bytes, whatever the number of workers.

    Raises:
        UsageError: A value is out of range, or not exactly one of steps and episodes is given.
    """

    env: EnvConfig
    dataset: str
    steps: (
        Annotated[
            int,
            setting(
                "Steps in all; the last episode is cut to fit.",
                ge=1,
                le=MOST,
                default="100000; LQR 5000",
            ),
        ]
        | None
    ) = None
    episodes: (
        Annotated[int, setting("Whole episodes, in place of --steps.", ge=1, le=MOST)] | None
    ) = None
    perturb_every: (
        Annotated[
            int,
            setting(
                "Steps between perturbations, counted from each reset.",
                paper="section 4.4, 200 steps; elsewhere each episode",
                ge=1,
                le=MOST,
                metavar="K|episode",
                blank="episode",
                default="episode",
            ),
        ]
        | None
    ) = None
    sigma: Annotated[
        float,
        setting(
            "Standard deviation of the parameter noise.",
            ge=0,
            symbol="σ",
            paper=PARAMETER_NOISE,
            metavar="S",
            default="0.5",
        ),
    ] = 0.5
    schedule: Annotated[
        str,
        setting(
            "How the parameter noise is drawn.",
            choices=SCHEDULES,
            default=INDEPENDENT,
            since=2,
        ),
    ] = INDEPENDENT
    policy: NewPolicy = NewPolicy()  # noqa: RUF009  # frozen
    normalize: Annotated[
        bool,
        setting(
            "A fresh policy sees normalised observations.",
            option="--normalize/--no-normalize",
            default="normalize; not for the LQR",
        ),
    ] = True
    warmup_episodes: Annotated[
        int,
        setting(
            "Episodes that the normaliser is taken from; not stored.",
            ge=0,
            le=MOST,
            default="10",
        ),
    ] = 10
    seed: Seed = 0
    license: str | None = None
    authors: tuple[str, ...] = ()
    command: str | None = None

    def __post_init__(self) -> None:
        from pbvf_datasets.format.names import check_dataset_id

        super().__post_init__()
        check_dataset_id(self.dataset)
        if (self.steps is None) == (self.episodes is None):
            raise UsageError("give either --steps or --episodes, not both")


def collect_defaults(
    env: EnvConfig, dataset: str, *, episodes: int | None = None
) -> Defaults[CollectSettings]:
    """Return what to collect where nothing was chosen, and where each value comes from."""
    from pbvf_offline.presets.offline import env_preset, env_source

    preset = env_preset(env.name)
    settings = CollectSettings(
        env,
        dataset,
        steps=preset.steps if episodes is None else None,
        episodes=episodes,
        sigma=preset.sigma,
        normalize=preset.normalize,
    )
    names = ("steps", "sigma", "normalize")
    return Defaults(settings, {name: env_source(name, env.name) for name in names})


@dataclass(frozen=True)
class RunEvaluation(Record):
    """How the policy that a run learns is measured, without noise on its parameters.

    Raises:
        UsageError: A value is out of range.
    """

    evaluations: Annotated[
        int,
        setting(
            "Evaluations of the unperturbed policy, evenly over the run.",
            ge=0,
            le=1_000_000,
            default="100",
            panel=RARE,
        ),
    ] = 100
    evaluation_episodes: Annotated[
        int,
        setting("Episodes of each evaluation.", ge=1, le=MOST, default="10", panel=RARE),
    ] = 10

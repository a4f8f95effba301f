"""``pbvf evaluate``: run policies for whole episodes and compare with a critic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import Given, command
from pbvf_cli.shared.inputs.critics import named, open_critic, refuse_unread
from pbvf_cli.shared.inputs.policies import (
    Index,
    Source,
    Top,
    choose_policies,
    note_fewer,
    open_policies,
    refuse_unexpressed,
)
from pbvf_cli.shared.options import DeviceName, option
from pbvf_cli.shared.registered import Wrappers
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_cli.shared.terminal.policy_text import ROWS_SHOWN
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_cli.shared.values import EnvOptions
from pbvf_offline.errors import counted
from pbvf_offline.records import Defaults, Record, setting
from pbvf_offline.setting_types import MOST, Seed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pbvf_offline.fit.critic_file import CriticFile
    from pbvf_offline.policies.policy import Policies


_LUCK = 0.05  # chance of equal policies below which returns count as different


@dataclass(frozen=True)
class Measurement(Record):
    """How policies are measured."""

    episodes: Annotated[int, setting("Whole episodes of each policy.", ge=1, le=MOST, default="10")]
    gamma: Annotated[
        float,
        setting(
            "Discount factor of the discounted returns.",
            ge=0,
            le=1,
            symbol="γ",
            paper="section 2, return R_t",
            metavar="G",
            default="the critic's; else 0.99, Swimmer 0.999",
        ),
    ]
    seed: Seed


@command(
    "pbvf evaluate policies.safetensors",
    "pbvf evaluate policies.safetensors --episodes 20 --critic critic.safetensors --json",
    "pbvf evaluate policies.safetensors --env Swimmer-v5 --video swimmer.mp4",
    "pbvf evaluate lab/swimmer-v0 --episodes 1 --workers 2",
    "pbvf evaluate lab/swimmer-v0 --top 10 --critic critic.safetensors",
)
def evaluate(
    policies: Source,
    *,
    index: Index = None,
    top: Top = None,
    env: Annotated[
        str | None, option("--env", "Where to run; the policies' own by default.", "ENV")
    ] = None,
    given: Given[Measurement],
    critic: Annotated[
        Path | None, option("--critic", "Compare with this critic's predictions.", "CRITIC")
    ] = None,
    video: Annotated[
        Path | None,
        option("--video", "Film the first policy's first episode: .mp4 or .gif.", "FILE"),
    ] = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    wrapper: Wrappers = None,
    require_manifest: options.RequireManifest = False,
    workers: options.Workers = None,
    backend: options.Backend = None,
    overwrite: Annotated[bool, option("--overwrite", "Replace the video.")] = False,
    device: options.Device = DeviceName.AUTO,
    sink: Sink,
) -> None:
    """Run each policy for exactly so many whole episodes, from the same starts.

    Of a dataset or run that is each distinct policy that acted in it, however short it did.
    With --critic the rank correlation is between its predictions and the mean discounted returns.
    """
    from pbvf_cli.shared.inputs import environments
    from pbvf_offline.rollout.evaluation import evaluate_policies

    environments.silence_gymnasium()
    values.replaces(overwrite, video, "a video")
    if video is not None:
        from pbvf_cli.shared.outputs.video import check_video

        values.output_file(video)
        check_video(video, overwrite=overwrite)
    given_policies = open_policies(policies, require_manifest=require_manifest)
    judge, references = None, [(given_policies.environment, Path(policies))]
    if critic is None:
        devices.runs_on_cpu(device, sink)
    else:
        torch_device = devices.torch_device(device)
        judge = open_critic(critic, torch_device)
        refuse_unread(judge, given_policies.policies.spec, policies)
        references.append((judge.context.environment, critic))
    choice = choose_policies(given_policies, policies, index=index, top=top, judge=judge)
    played = given_policies.policies.select(choice.rows)
    place = EnvOptions(env, env_kwargs, max_episode_steps, wrapper)
    config = environments.choose_environment(place, references, played.spec)
    table = SettingsTable()
    table.show("policies", policies)
    for name, value in (("index", index), ("top", top)):
        if value is not None:
            table.show(name, value)
    if critic is not None and judge is not None:
        table.show("critic", named(critic, judge))
    table.environment(config, place, "env")
    chosen = table.fill(given, _defaults(config.name, judge))
    steps = devices.steps_of(config, len(choice.rows) * chosen.episodes)
    workers = devices.choose_workers(workers, steps, table)
    asked = environments.choose_backend(config, backend, table)
    sink.settings("pbvf evaluate", table.settings)
    note_fewer(sink, top, len(choice.rows))
    # Before anything is played: a critic may refuse them.
    predicted = _predicted(judge, played, policies, choice.rows)

    frames = None
    if video is not None:
        from pbvf_cli.shared.outputs.video import record_video

        with Bar("filming", "frames", sink=sink) as bar:
            frames, _ = record_video(
                config,
                played,
                video,
                seed=chosen.seed,
                episodes=chosen.episodes,
                progress=bar.update,
            )
    with Bar("evaluating", "episodes", sink=sink) as bar:
        returns, discounted = evaluate_policies(
            config,
            played,
            episodes=chosen.episodes,
            seed=chosen.seed,
            gamma=chosen.gamma,
            without_survival=judge is not None and judge.critic.config.reward == "without-survival",
            workers=workers,
            progress=bar.update,
            backend=asked.value,
        )
    payload: dict[str, Any] = {
        "policies": policies,
        "index": choice.rows,
        "ranked_by": choice.by,
        **environments.environment_payload(config),
        "returns": returns,
        "discounted_returns": discounted,
        "backend": environments.backend_used(config, asked),
        "mean": returns.mean(),
        "means": returns.mean(axis=1),
        **chosen.to_dict(),
    }
    if video is not None:
        payload |= {"video": video, "frames": frames}
    payload |= _compare(judge, predicted, discounted)
    arguments = config.reference().arguments
    place_text = f"{config.name} with {arguments}" if arguments else config.name
    _print(sink, payload, place_text, returns, discounted)


def _defaults(env_id: str, judge: CriticFile | None) -> Defaults[Measurement]:
    """Return how policies are measured where nothing was chosen."""
    from pbvf_offline.presets.offline import env_preset, env_source

    gamma, source = env_preset(env_id).gamma, env_source("gamma", env_id)
    # The paper's PSSVF does not discount.
    source = source.replace("paper default", "paper default of psvf and pavf")
    if judge is not None:
        gamma, source = judge.critic.config.gamma, "stored in the critic"
    return Defaults(Measurement(10, gamma, seed=0), {"gamma": source})


def _predicted(
    judge: CriticFile | None, policies: Policies, name: str, rows: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    """Return what a critic predicts of the policies ``rows`` of a file; None without a critic.

    Raises:
        IncompatibleError: They have no parameters in its normaliser.
        DivergedError: What it predicts is not finite.
    """
    if judge is None:
        return None
    from pbvf_offline.synthesis.prediction import predict

    refuse_unexpressed(policies, judge.normaliser, name, rows)
    return predict(judge, policies).predicted


def _compare(
    judge: CriticFile | None, predicted: NDArray[np.float64] | None, discounted: NDArray[np.float64]
) -> dict[str, Any]:
    """Return what a critic predicts, if there is one, and how well it ranks.

    The ranks of policies whose mean returns differ by luck alone say nothing, which ``equal`` says.
    """
    if judge is None or predicted is None:
        return {}
    from pbvf_offline.fit.validation import rank_correlation

    ranks = rank_correlation(predicted, discounted.mean(axis=1))
    equal = _are_equal(discounted)
    units = {"predicted": judge.unit}
    return {"predicted": predicted, "units": units, "rank_correlation": ranks, "equal": equal}


def _are_equal(returns: NDArray[np.float64]) -> bool:
    """Return whether the mean returns of policies (K, episodes) differ by no more than luck.

    That is where the F test of a one-way analysis of variance does not tell them apart at 5 %.
    """
    import numpy as np
    from scipy.stats import f as f_distribution

    policies, episodes = returns.shape
    if policies < 2 or episodes < 2:
        return False
    between = episodes * returns.mean(axis=1).var(ddof=1)
    within = returns.var(axis=1, ddof=1).mean()
    if within == 0:
        return bool(np.ptp(returns) == 0)
    chance = f_distribution.sf(between / within, policies - 1, policies * (episodes - 1))
    return bool(chance > _LUCK)


def _print(
    sink: Sink,
    payload: dict[str, Any],
    place: str,
    returns: NDArray[np.float64],
    discounted: NDArray[np.float64],
) -> None:
    count, means = len(returns), returns.mean(axis=1)
    rows = [
        ("environment", place),
        ("mean return", number(float(returns.mean()))),
        ("episodes", f"{returns.shape[1]} of {'each of ' * (count > 1)}{counted(count, 'policy')}"),
        ("gamma", number(payload["gamma"])),
        ("seed", str(payload["seed"])),
    ]
    if "video" in payload:
        rows.append(("video", f"{payload['video']} ({payload['frames']} frames)"))
    shown = range(count)
    if count > ROWS_SHOWN:
        rows.append(("mean returns of policies", _spread(means)))
        shown = (-means).argsort(kind="stable")[:ROWS_SHOWN].tolist()
        sink.note(f"the best {ROWS_SHOWN} of {count:,} policies; --json lists all")
    header = ["policy", "mean return", "std", "min", "max", "discounted"]
    columns = [
        [str(k) for k in payload["index"]],
        [number(v) for v in means],
        [number(_deviation(row), 4) for row in returns],
        [number(v) for v in returns.min(axis=1)],
        [number(v) for v in returns.max(axis=1)],
        [number(v) for v in discounted.mean(axis=1)],
    ]
    if "predicted" in payload:
        header.append("predicted")
        columns.append([number(v) for v in payload["predicted"]])
        ranks = number(payload["rank_correlation"], 3)
        if payload["equal"]:
            rank = "none:" if payload["rank_correlation"] is None else f"{ranks}, but"
            ranks = f"{rank} the mean returns differ by no more than luck would give"
        rows += [("predicted is the", payload["units"]["predicted"]), ("rank correlation", ranks)]
    lines = list(zip(*columns, strict=True))
    sink.result(payload, rows, table=(header, [lines[k] for k in shown]))


def _deviation(returns: NDArray[np.float64]) -> float | None:
    """Return the sample deviation (n - 1) of one policy's returns; None of a single one."""
    return float(returns.std(ddof=1)) if len(returns) > 1 else None


def _spread(means: NDArray[np.float64]) -> str:
    """Return smallest, quartiles and largest of the policies' mean returns (K,) for people."""
    import numpy as np

    low, *quartiles, high = (number(v, 4) for v in np.quantile(means, [0, 0.25, 0.5, 0.75, 1]))
    return f"{low} to {high}; quartiles {', '.join(quartiles)}"

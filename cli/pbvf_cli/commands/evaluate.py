"""``pbvf evaluate``: run policies for whole episodes and compare with a critic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbvf_cli.shared import devices, options
from pbvf_cli.shared.form import Form, paper_source
from pbvf_cli.shared.options import DeviceName
from pbvf_cli.shared.output import Sink, number
from pbvf_cli.shared.progress import Bar
from pbvf_offline.errors import IncompatibleError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pbvf_offline.fit.critic_file import CriticFile
    from pbvf_offline.policies.policy import Policies

EXAMPLES = """Examples:

pbvf evaluate policies.safetensors

pbvf evaluate policies.safetensors --episodes 20 --critic critic.safetensors --workers 2 --json

pbvf evaluate policies.safetensors --env Swimmer-v5 --video swimmer.mp4"""

_EPISODES = 10


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("evaluate", epilog=EXAMPLES)(evaluate)


def evaluate(
    policies: Annotated[Path, typer.Argument(metavar="POLICIES", help="A policies file.")],
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="ENV", help="Where to run; the policies' own by default."),
    ] = None,
    episodes: Annotated[
        int, options.counting("--episodes", "Whole episodes of each policy.")
    ] = _EPISODES,
    critic: Annotated[
        Path | None,
        typer.Option("--critic", metavar="CRITIC", help="Compare with this critic's predictions."),
    ] = None,
    video: Annotated[
        Path | None,
        typer.Option(
            "--video",
            metavar="FILE",
            help="Film the first policy's first episode: .mp4 or .gif.",
        ),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(
            "--gamma",
            callback=options.fraction,
            metavar="G",
            help="Discount factor of the discounted returns.",
            show_default="the critic's, else the paper's for the environment",
        ),
    ] = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    workers: options.Workers = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the video.")] = False,
    seed: options.Seed = None,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Run each policy for exactly so many whole episodes, from the same starts.

    With --critic the rank correlation is between its predictions and the mean discounted returns.
    """
    del debug  # the error boundary looks for it
    sink = Sink(json_only=json_only, quiet=quiet)

    from pbvf_cli.shared import environments
    from pbvf_offline.policies.files import load_policies
    from pbvf_offline.presets.offline import env_preset
    from pbvf_offline.rollout.evaluation import evaluate_policies, require_end

    environments.silence_gymnasium()
    if video is not None:
        from pbvf_cli.shared.video import check_video

        check_video(video, overwrite=overwrite)
    loaded = load_policies(policies)
    judge, references = None, [(loaded.environment, policies)]
    if critic is None:
        devices.runs_on_cpu(device, sink)
    else:
        from pbvf_offline.fit.critic_file import load_critic

        judge = load_critic(critic, devices.torch_device(device))
        _check_spec(loaded.policies, judge, critic)
        references.append((judge.context.environment, critic))
    config = environments.choose_environment(env, env_kwargs, max_episode_steps, references)
    environments.check_fit(config, loaded.policies.spec)
    require_end(config, None)
    environments.warn_if_other(config, references)

    form = Form()
    form.show("policies", policies)
    form.show("env", config.name, "given" if env else "stored in the file")
    form.option("episodes", episodes, _EPISODES)
    if judge is None:
        gamma = form.choose(
            "gamma", gamma, env_preset(config.name).gamma, paper_source(config.name)
        )
    else:
        gamma = form.choose("gamma", gamma, judge.critic.config.gamma, "stored in the critic")
    seed = form.seed(seed)
    form.option("workers", workers, 1)
    sink.settings("pbvf evaluate", form.settings)

    frames = None
    if video is not None:
        from pbvf_cli.shared.video import film

        frames = film(config, loaded.policies, video, seed=seed, episodes=episodes)
    with Bar("evaluating", "episodes", sink=sink) as bar:
        returns, discounted = evaluate_policies(
            config,
            loaded.policies,
            episodes=episodes,
            seed=seed,
            gamma=gamma,
            without_survival=judge is not None and judge.critic.config.reward == "without-survival",
            workers=workers,
            progress=bar.update,
        )
    payload: dict[str, Any] = {
        "policies": policies,
        "env": config.name,
        "returns": returns,
        "discounted_returns": discounted,
        "mean": returns.mean(),
        "means": returns.mean(axis=1),
        "gamma": gamma,
        "episodes": episodes,
        "seed": seed,
    }
    if video is not None:
        payload |= {"video": video, "frames": frames}
    predicted = None
    if judge is not None:
        from pbvf_offline.fit.validation import rank_correlation

        normaliser = judge.normaliser
        predicted = judge.predict(loaded.policies.in_normaliser(normaliser.mean, normaliser.std))
        payload |= {
            "predicted": predicted,
            "rank_correlation": rank_correlation(predicted, discounted.mean(axis=1)),
        }
    _print(sink, payload, returns, discounted, predicted)


def _check_spec(policies: Policies, judge: CriticFile, path: Path) -> None:
    if policies.spec != judge.spec:
        raise IncompatibleError(
            f"it evaluates {_describe(judge.spec)}, these are {_describe(policies.spec)}",
            where=path,
            remedy="give a critic that was fitted to such policies",
        )


def _describe(spec: Any) -> str:
    kind = "stochastic" if spec.stochastic else "deterministic"
    return f"{kind} {spec.arch} policies from {spec.obs_dim} observations to {spec.actions}"


def _print(
    sink: Sink,
    payload: dict[str, Any],
    returns: NDArray[np.float64],
    discounted: NDArray[np.float64],
    predicted: NDArray[np.float64] | None,
) -> None:
    rows = [
        ("environment", payload["env"]),
        ("mean return", number(float(returns.mean()))),
        ("episodes", f"{returns.shape[1]} of each of {returns.shape[0]} policies"),
        ("gamma", number(payload["gamma"])),
        ("seed", str(payload["seed"])),
    ]
    if "video" in payload:
        rows.append(("video", f"{payload['video']} ({payload['frames']} frames)"))
    header = ["policy", "mean return", "std", "min", "max", "discounted"]
    columns = [
        [str(k) for k in range(len(returns))],
        [number(v) for v in returns.mean(axis=1)],
        [number(v, 4) for v in returns.std(axis=1)],
        [number(v) for v in returns.min(axis=1)],
        [number(v) for v in returns.max(axis=1)],
        [number(v) for v in discounted.mean(axis=1)],
    ]
    if predicted is not None:
        header.append("predicted")
        columns.append([number(v) for v in predicted])
        rows.append(("rank correlation", number(payload["rank_correlation"], 3)))
    sink.result(payload, rows, table=(header, list(zip(*columns, strict=True))))

"""``pbvf synthesize``: grow policies from random weights by climbing a frozen critic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.form import Form, paper_source
from pbvf_cli.shared.options import DeviceName
from pbvf_cli.shared.output import Sink, number
from pbvf_cli.shared.progress import Bar
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_offline.synthesis.to_file import SynthesisResult

EXAMPLES = """Examples:

pbvf synthesize critic.safetensors --out policies.safetensors

pbvf synthesize critic.safetensors --from-scratch 10 --evaluate --out policies.safetensors

pbvf synthesize critic.safetensors --no-trust-region --evaluate --out policies.safetensors"""

_COUNT, _EPISODES = 5, 5
_EVERY = 5  # the paper's protocol: 5 test episodes every 5 gradient steps


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("synthesize", epilog=EXAMPLES)(synthesize)


def synthesize(
    critic: Annotated[Path, typer.Argument(metavar="CRITIC", help="A critic file.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where the policies are written.")
    ],
    from_scratch: Annotated[
        int, options.counting("--from-scratch", "Number of policies.", metavar="K")
    ] = _COUNT,
    steps: Annotated[
        int | None, options.counting("--steps", "Gradient steps.", least=0, show_default="200")
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            "--lr",
            callback=options.positive,
            metavar="LR",
            help="Learning rate of the policies' parameters.",
            show_default="0.05; Swimmer 0.02",
        ),
    ] = None,
    trust_region: Annotated[
        bool,
        typer.Option(
            "--trust-region/--no-trust-region",
            help="Stay near the dataset's policies, where the critic can be trusted.",
        ),
    ] = True,
    radius: Annotated[
        float | None,
        typer.Option(
            "--radius",
            callback=options.positive,
            metavar="R",
            help="Size of the trust region: 1 holds 95 % of the dataset's policies.",
            show_default="1",
        ),
    ] = None,
    states: Annotated[
        int | None,
        options.counting(
            "--states", "Stored states the objective averages over.", show_default="1000"
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        options.counting(
            "--restarts",
            "Random starts for each policy; the critic keeps one of them halfway.",
            metavar="R",
            show_default="32; plain ascent 1",
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="ID",
            help="Take the states from this dataset, not from the critic's file.",
        ),
    ] = None,
    require_manifest: options.RequireManifest = False,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate/--no-evaluate",
            help="Run the policies in the environment, to measure them; the choice is the same.",
        ),
    ] = False,
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="ENV", help="Where to measure; the critic's own by default."),
    ] = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    evaluate_every: Annotated[
        int | None,
        options.counting(
            "--evaluate-every", "Gradient steps between measurements.", show_default=str(_EVERY)
        ),
    ] = None,
    episodes: Annotated[
        int | None,
        options.counting(
            "--episodes", "Test episodes of each policy.", show_default=str(_EPISODES)
        ),
    ] = None,
    workers: options.Workers = 1,
    overwrite: options.Overwrite = False,
    seed: options.Seed = None,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Grow policies from random weights, by gradient ascent on a critic that stays as it is.

    No environment step is taken, except to measure the result with --evaluate.
    """
    del debug  # the error boundary looks for it
    sink = Sink(json_only=json_only, quiet=quiet)
    values.output_file(out)
    if radius is not None and not trust_region:
        raise UsageError("does not go with --no-trust-region", where="--radius")
    if not evaluate:
        _refuse_measuring(
            {
                "--env": env,
                "--env-kwargs": env_kwargs,
                "--max-episode-steps": max_episode_steps,
                "--evaluate-every": evaluate_every,
                "--episodes": episodes,
            }
        )

    from pbvf_cli.shared import environments
    from pbvf_offline.fit.critic_file import load_critic
    from pbvf_offline.rollout.evaluation import require_end
    from pbvf_offline.synthesis.settings import (
        EvaluationSettings,
        SynthesisSettings,
        default_synthesis_settings,
    )
    from pbvf_offline.synthesis.to_file import stored_seed, synthesize_to_file

    environments.silence_gymnasium()
    file = load_critic(critic, devices.torch_device(device))
    reference = file.context.environment
    env_id = None if reference is None else reference.id

    form = Form()
    form.show("critic", critic)
    form.show("out", out)
    form.option("from-scratch", from_scratch, _COUNT)
    usual = default_synthesis_settings(
        env_id, count=from_scratch, seed=0, trust_region=trust_region
    )
    steps = form.choose("steps", steps, usual.steps)
    lr = form.choose("lr", lr, usual.lr, paper_source(env_id))
    form.option("trust-region", trust_region, True)
    if trust_region:
        radius = form.choose("radius", radius, usual.radius)
    states = form.choose("states", states, usual.states)
    restarts = form.choose("restarts", restarts, usual.restarts)
    if dataset is not None:
        form.show("dataset", dataset)
    seed = form.seed(seed, None if overwrite else lambda: stored_seed(out))
    evaluation = None
    if evaluate:
        config = environments.choose_environment(
            env, env_kwargs, max_episode_steps, [(reference, critic)]
        )
        environments.check_fit(config, file.spec)
        require_end(config, None)
        environments.warn_if_other(config, [(reference, critic)])
        form.show("env", config.name, "given" if env else "stored in the critic")
        evaluation = EvaluationSettings(
            env=config,
            every=form.choose("evaluate-every", evaluate_every, _EVERY, "the paper's protocol"),
            episodes=form.choose("episodes", episodes, _EPISODES, "the paper's protocol"),
            seed=seed,
            workers=workers,
        )
    settings = SynthesisSettings(
        count=from_scratch,
        steps=steps,
        lr=lr,
        seed=seed,
        trust_region=trust_region,
        radius=radius or 1.0,
        states=states,
        restarts=restarts,
    )
    observations, digest = None, None
    if dataset is not None:
        from pbvf_datasets import load_dataset

        data = load_dataset(dataset, require_manifest=require_manifest)
        named = None if data.environment is None else data.environment["id"]
        environments.refuse_other_family(named, env_id, dataset)
        observations, digest = data.transitions.obs.astype(float), data.digest
    sink.settings("pbvf synthesize", form.settings)
    with (
        Bar("climbing", "steps", sink=sink) as climb,
        Bar("measuring", "episodes", sink=sink) as measure,
    ):
        bars = {"synthesize": climb, "evaluate": measure}
        result = synthesize_to_file(
            critic,
            file,
            settings,
            out,
            observations=observations,
            states_digest=digest,
            evaluation=evaluation,
            overwrite=overwrite,
            progress=lambda stage, done, total: bars[stage].update(done, total),
        )
    if result.already_complete:
        sink.note(f"already complete: {out}")
    _print(sink, out, seed, result)


def _refuse_measuring(given: dict[str, object]) -> None:
    """Refuse options that say how to measure when nothing is measured."""
    for option, value in given.items():
        if value is not None:
            raise UsageError(
                "says how to measure, but nothing is measured",
                where=option,
                remedy="add --evaluate",
            )


def _print(sink: Sink, out: Path, seed: int, result: SynthesisResult) -> None:
    payload: dict[str, Any] = {
        "policies": out,
        "predicted": result.predicted,
        "chosen_step": result.chosen_step,
        "objective": result.objective,
        "distance": result.distance,
        "returns": result.returns,
        "closest": result.closest,
        "curve": result.curve,
        "seed": seed,
        "already_complete": result.already_complete,
    }
    header = ["policy", "chosen step", "predicted", "objective", "distance"]
    columns: list[list[str]] = [
        [str(k) for k in range(len(result.predicted))],
        [str(step) for step in result.chosen_step],
        [number(v) for v in result.predicted],
        [number(v) for v in result.objective],
        [number(v, 3) for v in result.distance],
    ]
    if result.returns is not None and result.closest is not None:
        header += ["return", "nearest dataset policy"]
        columns += [[number(v) for v in result.returns], [number(v) for v in result.closest]]
    sink.result(
        payload,
        [("policies", str(out)), ("seed", str(seed))],
        table=(header, list(zip(*columns, strict=True))),
    )

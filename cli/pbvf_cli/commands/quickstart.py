"""``pbvf quickstart``: the main job in one go, with a table and a figure at the end."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import DeviceName, option
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_cli.shared.terminal.progress import COMPARING, Stages

_UNITS = {
    "collect": ("collecting", "steps"),
    "fit": ("fitting", "updates"),
    "trials": ("trying noise, features and objectives", "updates"),
    "learn": ("learning the environment", "updates"),
    "imagine": ("imagining", "rounds"),
    **{f"compare-{stage}": words for stage, words in COMPARING.items()},
    "synthesize": ("climbing", "steps"),
    "evaluate": ("measuring", "episodes"),
}


class Recipe(StrEnum):
    """How the critic comes to know policies."""

    MODEL = "model"
    DEFAULT = "default"


@command(
    "pbvf quickstart",
    "pbvf quickstart --recipe default --out swimmer --seed 3 --workers 4",
    continues=True,
)
def quickstart(
    *,
    out: Annotated[
        Path | None,
        option("--out", "Folder of everything that is made.", "DIR", default="quickstart-out"),
    ] = None,
    recipe: Annotated[
        Recipe | None,
        option(
            "--recipe",
            "model: learn the environment and fit a PSSVF to imagined episodes; default: what "
            "fit-critic does by default, a PSVF fitted to the data alone, in a sixth of the time.",
            default="model",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        options.counting("--steps", "Transitions to collect.", least=1_000, show_default="100000"),
    ] = None,
    updates: Annotated[
        int | None,
        options.counting(
            "--updates",
            "Gradient steps of the learned environment, after short trials of 3000 each, or of "
            "the PSVF.",
            show_default="8000, or 3000 of the PSVF",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        options.counting(
            "--workers",
            "Processes at once; results do not change.",
            most=options.MOST_WORKERS,
            show_default="2",
        ),
    ] = None,
    threads: options.Threads = None,
    seed: Annotated[
        int | None,
        option(
            "--seed",
            "Seed of every stage, 0 to 4294967295; the evaluation takes the next one.",
            default="0",
        ),
    ] = None,
    device: options.Device = DeviceName.AUTO,
    sink: Sink,
) -> None:
    """Collect, learn, fit a critic, synthesize and evaluate on Swimmer-v5, each resumable.

    Prints the command of each stage, then a table, and draws a figure.
    """
    devices.runs_on_cpu(device, sink)

    from pbvf_experiments.quickstart import EPISODES, NEAREST_EPISODES, run_quickstart
    from pbvf_offline.critics import CRITICS
    from pbvf_offline.models.settings import MODEL_UPDATES
    from pbvf_offline.seeding import check_seed

    table = SettingsTable()
    out = values.output_folder(table.choose("out", out, Path("quickstart-out")))
    steps = table.choose("steps", steps, 100_000)
    recipe = table.choose("recipe", recipe, Recipe.MODEL)
    own = MODEL_UPDATES if recipe is Recipe.MODEL else CRITICS["psvf"].offline.updates
    updates = table.choose("updates", updates, own)
    workers = table.choose("workers", workers, 2)
    devices.use_threads(threads, table)
    chosen = check_seed(table.choose("seed", seed, 0))
    sink.settings("pbvf quickstart", table.settings)
    with Stages(_UNITS, sink) as stages:
        result = run_quickstart(
            out,
            recipe=recipe.value,
            steps=steps,
            updates=updates,
            seed=chosen,
            workers=workers,
            note=sink.note,
            progress=stages.update,
        )
    mean = sum(result.returns) / len(result.returns)
    sink.result(
        {
            "best_episode": result.best_episode,
            "mean_episode": result.mean_episode,
            "closest": result.closest,
            "returns": result.returns,
            "mean": mean,
            "predicted": result.predicted,
            "chosen_step": result.chosen_step,
            "recipe": result.recipe,
            "grown_through": result.grown_through,
            "episodes": EPISODES,
            "figure": result.figure,
            "seed": chosen,
        },
        [
            ("figure", str(result.figure)),
            ("seed", str(chosen)),
            ("grown through a", result.grown_through),
            (
                "episodes",
                f"{EPISODES} of each grown policy, {NEAREST_EPISODES} of each nearest one",
            ),
        ],
        table=(
            ("whole episodes of Swimmer-v5", "return"),
            [
                ("mean episode in the dataset", number(result.mean_episode, 4)),
                (
                    "best episode in the dataset (5 policies in each)",
                    number(result.best_episode, 4),
                ),
                ("dataset policy nearest to each grown one, mean", number(result.closest, 4)),
                *(
                    (f"grown from random weights, policy {k}", number(value, 4))
                    for k, value in enumerate(result.returns)
                ),
                ("grown from random weights, mean", number(mean, 4)),
            ],
        ),
    )

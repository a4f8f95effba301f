"""How fast a device is at what commands do on it, in absolute figures; at most four minutes.

On 100,000 random steps in the shape of Swimmer's, in fragments of 200, with a linear policy each.
Every figure is of calls that begin and end on the CPU, after one that is not counted.

Run: python benchmarks/gpu.py           (writes benchmarks/results/gpu.json)
     python benchmarks/gpu.py --device cpu --json cpu.json
     python benchmarks/gpu.py --device cpu --small        (whether it runs, in seconds)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fit import data_for
from online import our_seconds
from pbvf_cli.shared.devices import torch_device
from pbvf_cli.shared.options import DeviceName
from pbvf_offline.fit.critic_context import make_context
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.fit.loop import advance, advance_several, start_fit, training_set
from pbvf_offline.fit.rounds import RoundSettings
from pbvf_offline.fit.settings import default_fit_settings
from pbvf_offline.fit.steps import Fit
from pbvf_offline.models.ensemble import Ensemble, Steps
from pbvf_offline.models.imagine import imagine
from pbvf_offline.models.scales import Scales
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.models.training import advance as advance_model
from pbvf_offline.models.training import start_training
from pbvf_offline.policies.batch import has_bfloat16
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.synthesis.ascent import synthesize
from pbvf_offline.synthesis.rounds import imagined_rounds
from pbvf_offline.synthesis.settings import SynthesisSettings

RESULTS = Path(__file__).parent / "results" / "gpu.json"


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    steps: int = 100_000
    batches: tuple[int, ...] = (128, 8_192, 65_536)
    updates: int = 50
    policies: int = 10_000
    climb: int = 50
    states: int = 10_000
    imagined: int = 1_024
    horizon: int = 1_000
    online: int = 4_000
    rounds: RoundSettings = RoundSettings(seed=0, rounds=2)  # noqa: RUF009
    seconds: float = 6.0


SMALL = Sizes(
    steps=2_000,
    batches=(16,),
    updates=2,
    policies=20,
    climb=2,
    states=50,
    imagined=4,
    horizon=5,
    online=60,
    rounds=RoundSettings(seed=0, rounds=1, known=4, fresh=4, steps=2, updates=2, hidden=(8,)),
    seconds=0.0,
)


@dataclass
class Figures:
    """What was measured.

    Attributes:
        seconds: How long each measurement goes on at least.
        results: The figures.
    """

    seconds: float
    results: list[dict[str, Any]] = field(default_factory=list)

    def measure(
        self, name: str, unit: str, work: Callable[[], float], *, once: bool = False
    ) -> None:
        """Call what does some work and returns how much, and print the rate.

        Args:
            name: What is measured.
            unit: Unit of the work done in a second.
            work: Does some.
            once: One call is all there is, and the first is counted.
        """
        if not once:
            work()
        done, started = 0.0, time.perf_counter()
        while True:
            done += work()
            seconds = time.perf_counter() - started
            if once or seconds >= self.seconds:
                break
        print(f"{name}: {done / seconds:,.1f} {unit} ({seconds:.1f} s)", flush=True)
        self.results.append(
            {"name": name, "unit": unit, "rate": done / seconds, "seconds": seconds}
        )


def critics(figures: Figures, data: Trajectories, sizes: Sizes, device: torch.device) -> CriticFile:
    """Measure fit-critic's loop with the default recipe, and return the smallest batch's critic."""
    spec = data.policies.spec
    usual = default_fit_settings("psvf", None, spec, seed=0)
    made: list[Fit] = []
    for batch in sizes.batches:
        fit = start_fit(data, dataclasses.replace(usual, batch_size=batch), device)
        prepared = training_set(fit, data, device)

        def update(fit: Fit = fit, prepared: Any = prepared) -> float:
            advance(fit, prepared, fit.updates + sizes.updates)
            return sizes.updates

        figures.measure(f"fit-critic psvf, batch {batch:,}", "updates/s", update)
        made.append(fit)
    fits = [start_fit(data, dataclasses.replace(usual, seed=seed), device) for seed in range(5)]
    first = training_set(fits[0], data, device)
    sets = [first, *(training_set(fit, data, device, first) for fit in fits[1:])]

    def several() -> float:
        advance_several(fits, sets, fits[0].updates + sizes.updates, after_update=lambda _: None)
        return sizes.updates

    figures.measure("fit-critic psvf --seeds 0-4, batch 128", "updates/s of all five", several)
    return CriticFile(made[0], make_context(data, made[0], environment=None, dataset=""))


def models(figures: Figures, data: Trajectories, sizes: Sizes, device: torch.device) -> Ensemble:
    """Measure fit-model's loop, and return the networks."""
    every = np.arange(len(data))
    scales = Scales.of(data, every)
    for bfloat16 in (True, False):
        settings = ModelSettings(seed=0, noise=0.03, angles=True, bfloat16=bfloat16)
        fit = start_training(Ensemble(data.policies.spec, scales, settings).to(device), 10**6)
        steps = Steps.of(data, scales, every, device)

        def update(fit: Any = fit, steps: Steps = steps) -> float:
            advance_model(fit, steps, fit.updates + sizes.updates)
            return sizes.updates

        name = "bfloat16" if bfloat16 else "float32"
        figures.measure(f"fit-model, 4 networks, {name}", "updates/s", update)
    return fit.ensemble


def uses(
    figures: Figures,
    data: Trajectories,
    critic: CriticFile,
    ensemble: Ensemble,
    sizes: Sizes,
) -> None:
    """Measure what climbs a critic and what plays in a learned environment."""
    climb = SynthesisSettings(count=sizes.policies, steps=sizes.climb, lr=0.05, seed=0, restarts=1)

    def climbed() -> float:
        synthesize(critic, climb)
        return sizes.policies * sizes.climb

    name = f"synthesize, {sizes.policies:,} policies at once, {climb.states} states"
    figures.measure(name, "steps of a policy/s", climbed, once=True)
    rows = np.resize(critic.context.observations, (sizes.states, data.policies.spec.obs_dim))
    states = critic.normalised(rows)
    theta = torch.from_numpy(data.policies.theta[:1]).to(states.device)

    def actor() -> float:
        critic.critic.objective_and_gradient(theta, states)
        return 1

    figures.measure(f"gradient of a policy over {sizes.states:,} states", "gradients/s", actor)
    starts = data.initial_observations[:16].astype(np.float64)
    thetas = np.resize(data.policies.theta, (sizes.imagined, data.policies.spec.size))

    def played() -> float:
        told = imagine(ensemble, data.policies.spec, thetas, starts, sizes.horizon)
        return float(told.lengths.sum())

    name = f"imagined steps of all networks, {sizes.imagined:,} policies from {len(starts)} starts"
    figures.measure(name, "steps/s", played, once=True)

    def rounds() -> float:
        imagined_rounds(
            data,
            ensemble,
            sizes.rounds,
            model="",
            horizon=sizes.horizon,
            environment=None,
            dataset="",
        )
        return sizes.rounds.rounds

    name = "rounds of fit-critic --model, pssvf, the dataset's policies included"
    figures.measure(name, "rounds/s", rounds, once=True)


def online(figures: Figures, sizes: Sizes, device: torch.device) -> None:
    """Measure train-online of a PSVF on Swimmer-v5, evaluations and files left out."""
    many = [(10_000, "bfloat16")] if has_bfloat16(device) else []
    for states, precision in ((128, "float32"), (10_000, "float32"), *many):
        changes = {"actor_states": min(states, sizes.states), "precision": precision}

        def trained(changes: dict[str, Any] = changes) -> float:
            our_seconds("psvf", sizes.online, device=device, **changes)
            return sizes.online

        name = f"train-online psvf, {states:,} states an update, {precision}"
        figures.measure(name, "environment steps/s", trained)


def main() -> None:
    """Measure everything and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", type=DeviceName, default=DeviceName("cuda"))
    parser.add_argument("--small", action="store_true", help="of tiny sizes: no figures")
    parser.add_argument("--json", metavar="FILE", help="where the figures go")
    given = parser.parse_args()
    device, sizes = torch_device(given.device), SMALL if given.small else Sizes()
    card = device.type == "cuda" and torch.cuda.is_available()
    name = torch.cuda.get_device_name(device) if card else platform.processor() or "CPU"
    print(f"{device}: {name}, torch {torch.__version__}", flush=True)
    started = time.perf_counter()
    data, figures = data_for((), sizes.steps), Figures(sizes.seconds)
    critic = critics(figures, data, sizes, device)
    uses(figures, data, critic, models(figures, data, sizes, device), sizes)
    online(figures, sizes, device)
    print(f"{time.perf_counter() - started:.0f} s in all")
    place = given.json or (RESULTS if card and not given.small else None)
    if place is not None:
        told = {
            "command": "python benchmarks/gpu.py",
            "device": name,
            "torch": torch.__version__,
            "results": figures.results,
        }
        Path(place).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()

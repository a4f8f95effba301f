"""The commands that made the golden files; the tests give them again.

Paths are relative to the folder of a version, such as ``v0.1``, and datasets are under its
``datasets``.
"""

from __future__ import annotations

_SHORT = "--warmup-episodes 2 --seed 0 --license CC-BY-4.0 --author Nobody"

COLLECT = {
    "fragments": f"InvertedPendulum-v5 --episodes 5 --perturb-every 2 --sigma 0.5 {_SHORT}",
    "other": "InvertedPendulum-v5 --episodes 3 --warmup-episodes 3 --seed 1 --license CC-BY-4.0",
    "discrete": f"CartPole-v1 --episodes 5 {_SHORT}",
    "discrete-stochastic": f"CartPole-v1 --stochastic --episodes 3 {_SHORT}",
    "stochastic": "MountainCarContinuous-v0 --stochastic --episodes 3 --perturb-every 9 "
    f"--max-episode-steps 25 {_SHORT}",
    "deep": f"InvertedPendulum-v5 --policy 8,8 --episodes 5 {_SHORT}",
    "cut": f"Pendulum-v1 --steps 70 --max-episode-steps 30 {_SHORT}",
    "lqr": "LQR-v0 --episodes 5 --max-episode-steps 15 --sigma 0.3 --seed 0",
}
"""Datasets, by what follows ``lab/``; without --dataset."""

MERGE = "lab/fragments-v0 lab/other-v0"

_SMALL = "--hidden 8,8 --batch-size 16 --seed 0 --updates 60"

FIT = {
    "pssvf": f"lab/lqr-v0 --critic pssvf --validation-policies 0.4 {_SMALL}",
    "psvf": f"lab/merged-v0 --critic psvf --snapshots 20,40 {_SMALL}",
    "psvf-paper": "lab/cut-v0 --critic psvf --n-step 1 --relabel 0 --no-bound-values "
    f"--no-standardise --average 0 {_SMALL}",
    "psvf-without-survival": f"lab/fragments-v0 --critic psvf --reward without-survival {_SMALL}",
    "pavf": f"lab/deep-v0 --critic pavf {_SMALL}",
    "psvf-run": f"lab/run-v0 --critic psvf {_SMALL}",
    "pavf-stochastic": f"lab/stochastic-v0 --critic pavf {_SMALL}",
    "psvf-discrete": f"lab/discrete-v0 --critic psvf {_SMALL}",
    "pavf-discrete-stochastic": f"lab/discrete-stochastic-v0 --critic pavf {_SMALL}",
}
"""Critics, by name of the file in ``critics``; without --out."""

MORE_UPDATES = 90

PARTIAL = f"lab/fragments-v0 --critic psvf --snapshots 20 {_SMALL}"
"""A fit that got a SIGTERM: ``critics/.partial.safetensors.partial``; without --out."""

SYNTHESIZE = (
    "critics/psvf.safetensors --from-scratch 3 --steps 12 --restarts 2 --evaluate "
    "--evaluate-every 6 --episodes 2 --seed 0"
)
"""Made ``policies/grown.safetensors``; without --out."""

EXPORT = "policies/grown.safetensors --index 0"
"""Made ``policies/weights.safetensors``, a torch state dict; without --out."""

IMPORT = "policies/weights.safetensors --env InvertedPendulum-v5"
"""Made ``policies/imported.safetensors``; without --out."""

EVALUATE = "policies/grown.safetensors --critic critics/psvf.safetensors --episodes 2 --seed 0"

_TRAIN = "--hidden 8,8 --batch-size 16 --evaluations 4 --evaluation-episodes 2 --seed 0"

TRAIN = {
    "finished": "Pendulum-v1 --max-episode-steps 35 --critic psvf --actor-states 16 "
    f"--snapshots 60 {_TRAIN}",
    "pssvf": f"LQR-v0 --critic pssvf {_TRAIN}",
    "stochastic": "CartPole-v1 --critic pavf --stochastic --actor-states 16 "
    f"--update-every 20 {_TRAIN}",
}
"""Finished runs in ``runs``; without --run and --steps."""

STEPS, MORE_STEPS = 120, 240

EXPORTED = "lab/run-v0"
"""What --export-dataset of the run ``finished`` made."""

KILLED_RUN = (
    "MountainCarContinuous-v0 --critic pavf --stochastic --max-episode-steps 30 --steps 240 "
    f"--snapshots 60 --actor-states 16 --update-every 10 {_TRAIN}"
)
"""A run that got a SIGINT, went on, and got a SIGKILL: ``runs/killed``; without --run."""

KILLED_COLLECT = (
    "Pendulum-v1 --dataset lab/killed-v0 --episodes 6 --max-episode-steps 30 --perturb-every 7 "
    "--warmup-episodes 2 --seed 0"
)
"""A collection stopped in the same way: ``datasets/lab/.killed-v0.collecting``."""

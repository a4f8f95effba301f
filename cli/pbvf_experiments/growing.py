"""Policies grown through a frozen critic and measured, as cells keep them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator
from pbvf_offline.synthesis.settings import EvaluationSettings, SynthesisSettings
from pbvf_offline.synthesis.to_file import synthesize_to_file


def grown_policies(critic: Path, synthesis: SynthesisSettings) -> Path:
    """Return where :func:`grow` keeps the policies grown through a critic."""
    name = "region" if synthesis.trust_region else "plain"
    return critic.with_name(f"{critic.stem}-{name}-policies.safetensors")


def grow(
    critic: Path,
    synthesis: SynthesisSettings,
    env: str,
    *,
    episodes: int,
    every: int,
    workers: int = 1,
    evaluator: ModelEvaluator | None = None,
    model_digest: str | None = None,
) -> dict[str, Any]:
    """Return what a cell keeps of policies grown through a critic; their file is beside it.

    Args:
        critic: The critic file.
        synthesis: The ascent, inside the trust region or plain.
        env: Where the policies are measured.
        episodes: Test episodes of each measurement.
        every: Gradient steps between measurements of plain ascent; the other is measured at
            its ends.
        workers: Number of processes; does not change the result.
        evaluator: A learned environment that says whether the policies are above the data's.
        model_digest: Digest of the model's file.
    """
    steps = synthesis.steps if synthesis.trust_region else every
    grown = synthesize_to_file(
        critic,
        load_critic(critic),
        synthesis,
        grown_policies(critic, synthesis),
        evaluation=EvaluationSettings(EnvConfig(env), episodes, steps, synthesis.seed),
        workers=workers,
        evaluator=evaluator,
        model_digest=model_digest,
    )
    result: dict[str, Any] = {
        "returns": grown.returns,
        "predicted": grown.predicted,
        "chosen_step": grown.chosen_step,
        "closest": grown.closest,
        "curve": grown.curve,
    }
    if evaluator is not None:
        result |= {
            "cautious": grown.cautious,
            "low": grown.low,
            "high": grown.high,
            "above_data": grown.above_data,
            "data_cautious": grown.data_cautious,
        }
    return result

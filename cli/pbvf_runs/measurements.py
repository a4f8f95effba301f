"""What is measured of a training run: returns of its episodes, evaluations, and the log of both."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_runs.loggers import ANEW, SETTINGS, RunLog
from pbvf_runs.records import Evaluation, KeptRun, RunConfig

if TYPE_CHECKING:
    from pbvf_offline.online.loop import EpisodeRecord
    from pbvf_offline.policies.policy import Policies


class Measurements:
    """Returns and evaluations of a run, and the log that takes them in.

    Attributes:
        evaluations: By their steps.
        returns: Step and undiscounted return at the end of each training episode, in order.
        last_return: Mean return of the last evaluation made now; None before it.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._log = RunLog(folder, ANEW, ())  # until there is something to log
        self.last_return: float | None = None
        self.clear()

    def clear(self) -> None:
        """Forget what was measured: the run starts over."""
        self.evaluations: dict[int, Evaluation] = {}
        self.returns: list[tuple[int, float]] = []

    def resume(self, kept: KeptRun) -> None:
        """Take up what a checkpoint holds."""
        self.evaluations = {evaluation.step: evaluation for evaluation in kept.evaluations}
        self.returns = list(kept.training_returns)

    def stored(self, steps: Iterable[int]) -> dict[str, Any]:
        """Return what a file holds of it, with the evaluations at some steps."""
        return {
            "evaluations": [self.evaluations[step].to_dict() for step in steps],
            "training_returns": [[step, total] for step, total in self.returns],
        }

    def open_log(self, steps: int, loggers: Iterable[str]) -> None:
        """Hand what comes to loggers; a run that begins has its settings logged first.

        Raises:
            UsageError: There is no such logger.
            ResourceError: The folder cannot be written.
        """
        self._log = RunLog(self._folder, steps or ANEW, loggers)
        if steps == 0:
            settings = self._config.settings.to_dict()
            named = {
                "environment": self._config.env.name,
                "critic": settings.pop("kind"),  # an event has a kind of its own
                "policy": self._config.spec.arch,
            }
            self._log.add(SETTINGS, 0, named | settings)

    def episode(self, record: EpisodeRecord) -> None:
        """Take in a training episode."""
        self.returns.append((record.end, record.total))
        self._log.add(
            "episode",
            record.end,
            {
                "episode": record.index,
                "length": record.steps,
                "return": record.total,
                "return_learned_from": record.learned,
                "critic_loss": record.loss,
                "actor_objective": record.objective,
                "effective_sample_fraction": record.effective_samples,
            },
        )

    def evaluate(self, policy: Policies, step: int) -> None:
        """Play the policy that is learned without perturbing it."""
        from pbvf_offline.online.loop import evaluation_seed

        returns, without = evaluate_policies(
            self._config.env,
            policy,
            episodes=self._config.evaluation_episodes,
            seed=evaluation_seed(self._config.settings.seed, step),
            without_survival=True,
            check=self.last_return is None,  # once in a process
        )
        # The two are added up in different ways: only more than rounding is a bonus.
        bonus = not np.allclose(returns, without, rtol=1e-9, atol=1e-9)
        result = Evaluation(
            step,
            tuple(returns[0].tolist()),
            tuple(without[0].tolist()) if bonus else None,
        )
        self.evaluations[step] = result
        self.last_return = float(returns.mean())
        values: dict[str, Any] = {"mean_return": self.last_return, **result.to_dict()}
        if bonus:
            values["mean_return_without_survival"] = float(without.mean())
        del values["step"]
        self._log.add("evaluation", step, values)
        self._log.flush()

    def flush(self) -> None:
        """Hand what was logged to the operating system."""
        self._log.flush()

    def close(self) -> None:
        """Close the log; nothing is measured afterwards."""
        self._log.close()

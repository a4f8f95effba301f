"""What a critic says of policies: value, interval, and whether it knows such policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pbvf_offline.fit.critic_file import CriticFile, finite_predictions
from pbvf_offline.policies.policy import Policies
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator

_BLOCK = 256
_TAIL = 0.05  # on each side of a 90 % interval
_BORDER = 1e-4  # relative tolerance of the trust region's radius


@dataclass(frozen=True)
class Predictions:
    """What is said of K policies, in their own order.

    Attributes:
        predicted: (K,) float64, see :meth:`CriticFile.predict`.
        inside: (K,) bool, whether they are in the critic's trust region.
        low: (K,) float64, lower end of a 90 % interval; NaN where nothing supports one.
        high: (K,) float64, upper end.
        interval_of: What the interval is of: ``imagined``, of the undiscounted return by the
            disagreement of the model's members, widened by its check; ``predicted``, by the
            errors on policies that were held out of the fit; None where there is none.
        imagined: (K,) float64, mean imagined return; None without a model.
    """

    predicted: NDArray[np.float64]
    inside: NDArray[np.bool_]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    interval_of: Literal["imagined", "predicted"] | None
    imagined: NDArray[np.float64] | None

    @property
    def order(self) -> NDArray[np.int64]:
        """(K,) the policies by ``predicted``, highest first."""
        return np.argsort(-self.predicted, kind="stable")


def predict(
    critic: CriticFile,
    policies: Policies | ArrayLike,
    evaluator: ModelEvaluator | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Predictions:
    """Say what a critic makes of policies. No environment is built.

    Args:
        critic: The critic.
        policies: K policies, of any normaliser; or thetas (K, D) of the critic's own architecture
            and normaliser.
        evaluator: A learned environment, to imagine their returns in too.
        progress: Called with policies imagined and the total.

    Raises:
        IncompatibleError: The critic does not read such policies, or they act in another
            environment than the model's.
        DivergedError: What the critic predicts, or their imagined returns, are not finite.
        UsageError: They are no finite numbers.
    """
    if not isinstance(policies, Policies):
        policies = critic.policies(policies)
    spec, normaliser = policies.spec, critic.normaliser
    critic.critic_of(spec)  # its refusal says more than that of a normaliser
    theta = policies.in_normaliser(normaliser.mean, normaliser.std)
    blocks = [theta[at : at + _BLOCK] for at in range(0, max(len(theta), 1), _BLOCK)]
    predicted = np.concatenate([critic.predict(block, spec) for block in blocks])
    predicted = finite_predictions(critic, predicted)
    with torch.no_grad():
        rows = (torch.from_numpy(block).to(critic.critic.device) for block in blocks)
        distances = [critic.distance(part, spec) for part in rows]
    # Synthesis ends on the border of the region, where rounding decides.
    inside = torch.cat(distances).cpu().numpy() <= 1.0 + _BORDER
    low = high = np.full(len(theta), np.nan)
    if evaluator is not None:
        imagined = evaluator.evaluate(policies, progress=progress)
        if (interval := imagined.interval) is None:
            return Predictions(predicted, inside, low, high, None, imagined.mean)
        return Predictions(predicted, inside, *interval, "imagined", imagined.mean)
    errors = held_out_errors(critic.validation) if critic.critic.kind.monte_carlo else None
    if errors is not None:
        least, most = errors
        # Policies that are unlike the data's are unlike those whose errors are known.
        low = np.where(inside, predicted + least, np.nan)
        high = np.where(inside, predicted + most, np.nan)
    return Predictions(predicted, inside, low, high, None if errors is None else "predicted", None)


def held_out_errors(validation: Mapping[str, Any] | None) -> tuple[float, float] | None:
    """Return the ends of a 90 % interval of ``observed - predicted`` of held-out policies.

    Split conformal prediction: of n policies like those held out, a further one's error is
    between the k-th smallest and the k-th largest with a probability of at least 0.9, for
    ``k = floor(0.05 (n + 1))``. None below 19 policies, for which there is no such k.
    """
    if validation is None:
        return None
    sides = [validation.get(name) for name in ("observed", "predicted")]
    if not all(isinstance(side, list) and all(map(_is_number, side)) for side in sides):
        return None
    observed, predicted = (np.asarray(side, np.float64) for side in sides)
    if observed.shape != predicted.shape:
        return None
    errors = np.sort(observed - predicted)
    rank = math.floor(_TAIL * (len(errors) + 1) + 1e-9)
    return None if rank < 1 else (float(errors[rank - 1]), float(errors[-rank]))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and abs(value) < 1e300

"""What critics predict, against what was observed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pbvf_offline.errors import DivergedError
from pbvf_report.content import Chart, Guide, Section, Series, spread
from pbvf_report.sources import Source, in_data, measured, numbers

_MOST = 500  # of a critic's stored policies, since each is looked at in many states
_TEXT = (
    "Each critic against its own data, against policies that were held out of its fit, and "
    "against policies that were grown through it. Where there is a dashed line, both axes have the "
    "same unit, and points on it are right. Otherwise only the order can be compared: discounted "
    "values and returns of whole episodes differ from the returns of pieces of episodes."
)
_EQUAL = (Guide("both", "where both are equal"),)


def section(sources: Sequence[Source]) -> Section:
    """Return the charts of each critic, and which of them predicts no numbers."""
    charts, notes = [], []
    for at, source in enumerate(sources):
        if source.critic is not None:
            try:
                charts += _of_the_data(at, sources)
            except DivergedError as error:
                notes.append(f"{source.title}: {error.what}, so no chart shows them.")
            charts += [*_held_out(at, source), *_grown(sources, source)]
    return Section("Predictions", _TEXT, charts, notes=notes)


def _of_the_data(at: int, sources: Sequence[Source]) -> list[Chart]:
    """Return the chart of the critic's own data.

    Raises:
        DivergedError: Predictions are NaN or infinite.
    """
    from pbvf_offline.fit.critic_file import finite_predictions

    source, quantity = sources[at], in_data(sources[at], sources)
    critic = source.critic
    assert critic is not None
    returns = critic.context.returns
    rows = spread(returns, _MOST)
    if not rows.size:
        return []
    values = finite_predictions(critic, critic.predict(critic.context.theta[rows]))
    return [
        Chart(
            f"{source.title}: policies of its data",
            f"predicted ({critic.unit})",
            quantity,
            [Series("policies of its data", at, values, returns[rows], value=returns[rows],
                    quantity=quantity, index=rows)],
            unit="policy",
        )
    ]  # fmt: skip


def _held_out(at: int, source: Source) -> list[Chart]:
    critic = source.critic
    assert critic is not None
    result = critic.validation or {}
    predicted, observed = numbers(result.get("predicted")), numbers(result.get("observed"))
    policies = numbers(result.get("policies"))
    if predicted is None or observed is None or len(predicted) != len(observed):
        return []
    index = (
        None if policies is None or len(policies) != len(observed) else policies.astype(np.int64)
    )
    rank = numbers([result.get("rank_correlation")])
    said = "" if rank is None else f"; rank correlation {rank[0]:.2f}"
    gamma = critic.fit.settings.gamma
    unit = f"return over the same steps, discounted by {gamma:g}{critic.less_bonus}"
    return [
        Chart(
            f"{source.title}: policies held out of the fit{said}",
            f"predicted ({unit})",
            f"observed ({unit})",
            [Series("held-out policies", at, predicted, observed, value=observed,
                    quantity=f"observed {unit} of policies held out", index=index)],
            unit="policy",
            guides=_EQUAL,
        )
    ]  # fmt: skip


def _grown(sources: Sequence[Source], of: Source) -> list[Chart]:
    critic = of.critic
    assert critic is not None
    series = []
    for at, source in enumerate(sources):
        grown_here = source.policies is not None and (
            source.policies.origin.get("critic") == of.digests[0]
        )
        predicted, returns = source.of_each_policy("predicted"), source.of_each_policy("returns")
        if grown_here and predicted is not None and returns is not None:
            index = np.arange(len(returns))
            series.append(Series("policies", at, predicted, returns, value=returns,
                                 quantity=measured(source, sources), index=index))  # fmt: skip
    if not series:
        return []
    undiscounted = critic.fit.settings.gamma == 1.0 and not critic.less_bonus
    return [
        Chart(
            f"{of.title}: policies grown through it",
            f"predicted ({critic.unit})",
            measured(of, sources),
            series,
            unit="policy",
            guides=_EQUAL if undiscounted else (),
        )
    ]

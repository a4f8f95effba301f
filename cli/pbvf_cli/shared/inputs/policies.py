"""Policies that a command takes: of a file, a dataset or a run, all of them or some."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pbvf_cli.shared.inputs.data import open_data, refuse_bundle, refuse_folder
from pbvf_cli.shared.options import argument, counting, option
from pbvf_cli.shared.settings import SettingsTable
from pbvf_offline.errors import IncompatibleError, UsageError, counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pbvf_cli.shared.terminal.output import Sink
    from pbvf_offline.envs.reference import EnvReference
    from pbvf_offline.fit.critic_file import CriticFile
    from pbvf_offline.policies.files import PoliciesFile
    from pbvf_offline.policies.normaliser import Normaliser
    from pbvf_offline.policies.policy import Policies
    from pbvf_offline.rollout.episodes import Trajectories

Source = Annotated[
    str, argument("POLICIES|DATASET", "A policies file, or a dataset or run for its policies.")
]
Index = Annotated[int | None, option("--index", "One policy, counted from 0.", "K", default="all")]
Top = Annotated[
    int | None,
    counting(
        "--top",
        "Only the best K: by --critic, else by the returns of their episodes in the dataset.",
        metavar="K",
        show_default="all",
    ),
]
_FEW: Final = 10
_GIVE_CRITIC: Final = "give --critic FILE, which ranks them"


@dataclass(frozen=True)
class GivenPolicies:
    """What a user named for its policies.

    Attributes:
        policies: The P policies; of a dataset or run the distinct ones, by first appearance.
        environment: Their environment, when known.
        digest: Of the policies file, or of the data.
        episodes: The episodes in which they acted; None where a policies file was named.
    """

    policies: Policies
    environment: EnvReference | None
    digest: str
    episodes: Trajectories | None


@dataclass(frozen=True)
class Choice:
    """Some of the policies, or all.

    Attributes:
        rows: (K,) int64 rows of them; best first where they were ranked.
        by: ``predicted`` or ``observed``, by which they were ranked, else None.
        values: (K,) float64 what they were ranked by, else None.
        episodes: (K,) int64 of how many episodes each of the observed is the mean, else None.
    """

    rows: NDArray[np.int64]
    by: Literal["predicted", "observed"] | None = None
    values: NDArray[np.float64] | None = None
    episodes: NDArray[np.int64] | None = None

    @property
    def said(self) -> dict[str, Any]:
        """What a file says of the choice: row numbers, and what they were ranked by."""
        said: dict[str, Any] = {"index": self.rows.tolist()}
        if self.by is not None and self.values is not None:
            said[self.by] = self.values.tolist()
        return said


def open_policies_file(path: Path, *, single: bool = False) -> PoliciesFile:
    """Return what a policies file holds; of a folder, name the policies files that are in it.

    Raises:
        UsageError: It is a bundle, a run or a dataset, or of several policies where a ``single``
            one is wanted.
        PbvfError: As ``load_policies`` does.
    """
    from pbvf_offline.policies.files import load_policies, single_policy
    from pbvf_runs.records import POLICY_FILE

    refuse_folder(path, "policies", POLICY_FILE)
    return single_policy(path) if single else load_policies(path)


def open_policies(name: str, *, require_manifest: bool) -> GivenPolicies:
    """Open the policies of a file, a dataset or a run.

    Raises:
        PbvfError: As ``load_policies``, ``load_dataset`` and ``load_run`` do.
    """
    from pbvf_datasets.format.names import resolve_dataset

    path = Path(name)
    if path.is_file() or path.suffix == ".safetensors":  # a file that is missing is called one
        from pbvf_offline.io.reading import file_digest
        from pbvf_offline.policies.files import load_policies

        loaded = load_policies(path)
        return GivenPolicies(loaded.policies, loaded.environment, file_digest(path), None)
    refuse_bundle(resolve_dataset(name), {"policies": "policies", "run": "a run"})
    data = open_data(name, SettingsTable(), require_manifest=require_manifest)
    of = data.trajectories
    return GivenPolicies(of.policies, data.environment, data.digest, of)


def refuse_unexpressed(
    policies: Policies,
    normaliser: Normaliser,
    where: Path | str,
    numbers: NDArray[np.int64] | None = None,
) -> None:
    """Refuse policies of a file ``where`` that have no parameters in another normaliser.

    Args:
        policies: K policies of it.
        normaliser: That of a critic or a model.
        where: What they are of, for messages.
        numbers: (K,) which of its policies they are; None: all, in their order.

    Raises:
        IncompatibleError: In that normaliser parameters are beyond single precision.
    """
    try:
        policies.in_normaliser(normaliser.mean, normaliser.std, numbers)
    except IncompatibleError as error:
        raise IncompatibleError(error.what, where=where, remedy=error.remedy) from error


def choose_policies(
    given: GivenPolicies, name: str, *, index: int | None, top: int | None, judge: CriticFile | None
) -> Choice:
    """Return which policies of what a user named are wanted: all, one, or the best.

    Args:
        given: What ``name`` holds.
        name: How the user called it, for messages.
        index: The row of one policy.
        top: How many of the best.
        judge: The critic that ranks them; None: the returns of their own whole episodes.

    Raises:
        UsageError: There is no such row, both are given, or nothing ranks policies of a file.
        IncompatibleError: No return is of one policy alone, or the critic does not read them.
        DivergedError: What the critic predicts is not finite.
    """
    import numpy as np

    count = len(given.policies)
    if index is not None and top is not None:
        raise UsageError("give either --index or --top, not both", where="--top")
    if index is not None:
        if not 0 <= index < count:
            raise UsageError(
                f"{index} is not in 0 … {count - 1}",
                where="--index",
                remedy=f"{name} holds {counted(count, 'policy')}",
            )
        return Choice(np.array([index]))
    if top is None:
        return Choice(np.arange(count))
    if judge is not None:
        from pbvf_offline.synthesis.prediction import predict

        refuse_unexpressed(given.policies, judge.normaliser, name)
        said = predict(judge, given.policies)
        rows = said.order[:top]
        return Choice(rows, "predicted", said.predicted[rows])
    returns, episodes = _observed(given, name)
    rows = np.argsort(-returns, kind="stable")[: min(top, np.isfinite(returns).sum())]
    return Choice(rows, "observed", returns[rows], episodes[rows])


def note_fewer(sink: Sink, top: int | None, found: int) -> None:
    """Say that there are fewer than ``--top`` asks for, where there are."""
    if top is not None and found < top:
        sink.note(f"note: --top {top:,} asks for more than the {found:,} that can be ranked")


def note_luck(sink: Sink, choice: Choice) -> None:
    """Say that the highest of a few episodes each were chosen, where they were."""
    if choice.episodes is not None and choice.episodes.min() < _FEW:
        least, most = int(choice.episodes.min()), int(choice.episodes.max())
        count = counted(most, "episode") if least == most else f"{least:,} to {most:,} episodes"
        sink.note(
            f"note: chosen for the highest return of {count} each, so luck is in it; --critic "
            "FILE ranks them otherwise, and 'pbvf evaluate' of the result says more"
        )


def _observed(given: GivenPolicies, name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the mean returns (P,) of the policies in their own episodes, and how many these are.

    NaN where a policy has none.
    """
    from pbvf_offline.rollout.targets import counted_returns

    if given.episodes is None:
        raise UsageError(
            f"{name} is a policies file, which holds no returns", where="--top", remedy=_GIVE_CRITIC
        )
    try:
        return counted_returns(given.episodes)
    except IncompatibleError as error:
        raise IncompatibleError(error.what, where=name, remedy=_GIVE_CRITIC) from error

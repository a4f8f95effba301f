"""What commands that ask a critic share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pbvf_cli.shared.inputs.data import refuse_folder
from pbvf_offline.errors import IncompatibleError

if TYPE_CHECKING:
    import torch

    from pbvf_cli.shared.inputs.policies import GivenPolicies
    from pbvf_cli.shared.settings import SettingsTable
    from pbvf_cli.shared.terminal.output import Sink
    from pbvf_offline.envs.reference import EnvReference
    from pbvf_offline.fit.critic_file import CriticFile
    from pbvf_offline.models.model_file import ModelFile
    from pbvf_offline.policies.spec import PolicySpec
    from pbvf_offline.synthesis.model_evaluation import ModelEvaluator


def open_critic(path: Path, device: torch.device) -> CriticFile:
    """Return the critic of a file, on a device; of a folder, name the critics that are in it.

    Raises:
        UsageError: It is a bundle, a run or a dataset.
        PbvfError: As ``load_critic`` does.
    """
    from pbvf_offline.fit.critic_file import load_critic
    from pbvf_runs.records import CRITIC_FILE

    refuse_folder(path, "critic", CRITIC_FILE)
    return load_critic(path, device)


def open_model(path: Path, device: torch.device, *, force: bool | None = None) -> ModelFile:
    """Return a learned environment in which whole episodes can be imagined.

    ``force`` is that of :func:`pbvf_offline.synthesis.model_evaluation.refuse_unfit`.

    Raises:
        UsageError: It is a bundle, a run or a dataset.
        IncompatibleError: The model cannot be relied on for whole episodes.
        PbvfError: As ``load_model`` does.
    """
    from pbvf_offline.models.model_file import load_model
    from pbvf_offline.synthesis.model_evaluation import refuse_unfit

    refuse_folder(path, "model")
    model = load_model(path, device)
    try:
        refuse_unfit(model, force=force)
    except IncompatibleError as error:
        raise IncompatibleError(error.what, where=path, remedy=error.remedy) from error
    return model


def note_unseen(path: Path, model: ModelFile, sink: Sink) -> None:
    """Say which policies the check of a model knows nothing of, if it is so."""
    if model.check is not None and model.check.unseen is not None:
        sink.note(f"note: {path}: its check says nothing of {model.check.unseen}")


def named(path: Path, critic: CriticFile) -> str:
    """Return how a table names a critic: with its kind, which a file's name need not tell."""
    return f"{path} ({critic.critic.kind.name})"


def refuse_unread(critic: CriticFile, spec: PolicySpec, where: Path | str) -> None:
    """Refuse policies of a file ``where`` that a critic does not read.

    Raises:
        IncompatibleError: Their architecture, observations or actions are others.
    """
    try:
        critic.critic_of(spec)
    except IncompatibleError as error:
        raise IncompatibleError(error.what, where=where, remedy=error.remedy) from error


def load_judge(
    path: Path, given: GivenPolicies, name: Path | str, device: torch.device
) -> CriticFile:
    """Return the critic that says which of the policies called ``name`` are good.

    Warns where they come from another environment, or from the same with other arguments.

    Raises:
        PbvfError: It cannot be read, or does not read such policies.
    """
    judge = open_critic(path, device)
    refuse_unread(judge, given.policies.spec, name)
    warn_if_other_than(judge, given.environment, name)
    return judge


def warn_if_other_than(
    critic: CriticFile, environment: EnvReference | None, where: Path | str
) -> None:
    """Warn where what is in a file ``where`` is of another environment than a critic."""
    from pbvf_cli.shared.inputs.environments import warn_if_other

    if critic.context.environment is not None:
        warn_if_other(critic.context.environment, [(environment, Path(where))])


def load_evaluator(
    path: Path, critic: CriticFile, horizon: int | None, table: SettingsTable, sink: Sink
) -> ModelEvaluator:
    """Return a learned environment in which whole episodes can be imagined; add it to the table.

    It is on the critic's device, or on the CPU where that has no double precision. ``horizon`` is
    in steps; None: what the files tell. A note says where the model and the critic
    are of different data, and what the model's check could not look at.

    Raises:
        IncompatibleError: The model cannot be relied on for whole episodes, or is of another
            environment or of other policies than the critic.
    """
    from pbvf_cli.shared.inputs.environments import refuse_other_model
    from pbvf_offline.io.reading import file_digest
    from pbvf_offline.models.imagine import refuse_other_policies
    from pbvf_offline.policies.batch import double_device
    from pbvf_offline.synthesis.model_evaluation import ModelEvaluator, known_horizon

    model = open_model(path, double_device(critic.critic.device))
    # One that the critic was fitted with, by --force, was chosen then.
    own = critic.imagined is not None and critic.imagined.model == file_digest(path)
    wanted = critic.context.environment
    refuse_other_model(wanted, "the critic is", model.environment, path, force=own or None)
    refuse_other_policies(model.ensemble, critic.spec, path)
    if model.dataset != critic.context.dataset:
        sink.note("note: the model was learned from other data than the critic's")
    note_unseen(path, model, sink)
    steps, source = known_horizon(critic, model) if horizon is None else (horizon, "given")
    table.show("model", path)
    table.show("horizon", steps, source)
    return ModelEvaluator.of(model, steps, critic.caution)

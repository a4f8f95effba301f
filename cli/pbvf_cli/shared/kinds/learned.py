"""Critics and learned environments: what a file holds, and what it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pbvf_cli.shared.terminal.output import Shown, number, pairs
from pbvf_cli.shared.terminal.policy_text import actions_text, environment_rows, kind_text

if TYPE_CHECKING:
    from pbvf_offline.envs.reference import EnvReference
    from pbvf_offline.fit.critic_file import CriticFile
    from pbvf_offline.models.model_file import ModelFile
    from pbvf_offline.policies.spec import PolicySpec


def show_critic(path: Path) -> Shown:
    """Return what a critic file holds.

    Raises:
        PbvfError: As :func:`pbvf_offline.fit.critic_file.load_critic` does.
    """
    from pbvf_offline.fit.critic_file import load_critic
    from pbvf_offline.io.reading import file_digest

    file = load_critic(path)
    fit, context, imagined = file.fit, file.context, file.imagined
    config = file.critic.config
    payload = {
        "path": path,
        "critic": file.critic.kind.name,
        "updates": file.updates,
        "loss": fit.record[-1][1] if fit.record else None,
        "predicts": file.unit,
        **_of_environment(context.environment, file.spec),
        "hidden": config.hidden,
        "fingerprint": config.fingerprint,
        "policies": len(context.theta),
        "initial_observations": len(context.initial_observations),
        "dataset": context.dataset,
        "model": None if imagined is None else imagined.model,
        "model_unfit": None if imagined is None else imagined.unfit,
        "settings": fit.settings.to_dict(),
        "rounds": None if imagined is None else imagined.settings.to_dict(),
        "imagined_stands": None if imagined is None else imagined.stands,
        "validation": file.validation,
        "sha256": file_digest(path),
    }
    return Shown(payload, _critic_rows(file, payload))


def _critic_rows(file: CriticFile, payload: dict[str, Any]) -> list[tuple[str, str]]:
    imagined, validation = file.imagined, file.validation
    reads = "parameters of policies"
    if payload["fingerprint"]:
        reads = f"what policies do in {payload['fingerprint']} states"
    rows = [
        ("path", str(payload["path"])),
        ("critic", f"{payload['critic']}, hidden layers {_sizes(payload['hidden'])}"),
        ("updates", f"{payload['updates']:,}"),
        ("predicts", payload["predicts"]),
        ("reads", reads),
        *_played_rows(file.context.environment, file.spec),
        ("policies kept", f"{payload['policies']:,} of the data's"),
    ]
    if imagined is not None:
        rows += [
            ("rounds", pairs(payload["rounds"])),
            ("holds", "the imagined critic" if imagined.stands else "the default recipe's critic"),
        ]
        if imagined.unfit:
            rows.append(("model", "unfit for whole episodes by its own check, and used by --force"))
    rows.append(("settings", pairs(payload["settings"])))
    if validation is not None:
        numbers = {k: v for k, v in validation.items() if isinstance(v, int | float)}
        rows.append(("validation", pairs({k: number(v, 4) for k, v in numbers.items()})))
    return [*rows, ("sha256", payload["sha256"])]


def show_model(path: Path) -> Shown:
    """Return what the file of a learned environment holds.

    Raises:
        PbvfError: As :func:`pbvf_offline.models.model_file.load_model` does.
    """
    from pbvf_offline.io.reading import file_digest
    from pbvf_offline.models.model_file import load_model

    file = load_model(path)
    fit, settings, check = file.fit, file.ensemble.settings, file.check
    payload = {
        "path": path,
        "updates": fit.updates,
        "updates_wanted": fit.total,
        "finished": check is not None,
        "fit_for": () if check is None else check.fit_for,
        "members": settings.members,
        **_of_environment(file.environment, file.ensemble.spec),
        "initial_observations": len(file.initial_observations),
        "dataset": file.dataset,
        "settings": settings.to_dict(),
        "asked": file.asked,
        "trials": [trial.to_dict() for trial in file.trials],
        "check": None if check is None else check.to_dict(),
        "sha256": file_digest(path),
    }
    return Shown(payload, _model_rows(file, payload))


def _model_rows(file: ModelFile, payload: dict[str, Any]) -> list[tuple[str, str]]:
    uses = "not finished, so not checked" if file.check is None else file.check.fit_for_words
    about = dict(_played_rows(file.environment, file.ensemble.spec))
    if file.check is not None and file.check.replayed:
        uses += "; checked by replaying stored actions"
        about["policies"] = "not known: the data name none"
    held = None if file.check is None else file.check.held_words
    unseen = None if file.check is None else file.check.unseen
    return [
        ("path", str(payload["path"])),
        ("updates", f"{payload['updates']:,} of {payload['updates_wanted']:,}"),
        ("fit for", uses),
        *([] if unseen is None else [("not checked", unseen)]),
        *([] if held is None else [("intervals hold", held)]),
        (
            "networks",
            f"{payload['members']}, hidden layers {_sizes(payload['settings']['hidden'])}",
        ),
        *about.items(),
        ("settings", pairs(payload["settings"])),
        ("trials", f"{len(file.trials):,} short trainings"),
        ("sha256", payload["sha256"]),
    ]


def _of_environment(environment: EnvReference | None, spec: PolicySpec) -> dict[str, Any]:
    return {
        "env": None if environment is None else environment.name,
        "env_kwargs": {} if environment is None else environment.kwargs,
        "environment": None if environment is None else environment.to_dict(),
        "policy": {**spec.to_dict(), "arch": spec.arch, "parameters": spec.size},
    }


def _played_rows(environment: EnvReference | None, spec: PolicySpec) -> list[tuple[str, str]]:
    return [
        *environment_rows(environment),
        ("policies", f"{kind_text(spec)}, {spec.size:,} parameters"),
        ("actions", actions_text(spec)),
    ]


def _sizes(hidden: tuple[int, ...]) -> str:
    return ",".join(map(str, hidden)) or "none"


def refuse(path: Path) -> NoReturn:
    """Raise what is wrong with a file whose kind cannot be told.

    Raises:
        PbvfError: Always.
    """
    from pbvf_datasets.inspect.verify_file import verify_file

    error = verify_file(path).error
    assert error is not None  # else its kind were known
    raise error

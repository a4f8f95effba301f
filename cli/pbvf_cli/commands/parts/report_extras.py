"""What ``pbvf report`` has made anew where it is asked to: ascents and films."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbvf_cli.shared.terminal.output import Sink
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline.errors import IncompatibleError, PbvfError
from pbvf_offline.io.lock import temporary_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pbvf_offline.fit.critic_file import CriticFile
    from pbvf_offline.models.model_file import ModelFile
    from pbvf_offline.policies.files import PoliciesFile
    from pbvf_offline.policies.policy import Policies
    from pbvf_report.sources import Source

_POINTS = 20  # of the way of a policy
_MOST_STEPS = 50_000_000  # of all starts: hours
_MOST_FILMS = 12  # on a page
_MOST_FRAMES = 300  # of a film


def climbed_again(source: Source, sources: Sequence[Source], sink: Sink) -> Source:
    """Return policies with the way that they climbed, or with why it is not known.

    It is known where climbing again ends at the same policies. Where a learned environment chose
    among candidates, that has to be one of the sources too.
    """
    if source.policies is None:
        return source
    critics = {s.digests[0]: s.critic for s in sources if s.critic is not None}
    models = {s.digests[0]: s.model for s in sources if s.model is not None}
    try:
        critic = critics.get(str(source.policies.origin.get("critic")))
        return dataclasses.replace(source, ascent=_ascent(source.policies, critic, models, sink))
    except PbvfError as error:
        return dataclasses.replace(source, no_ascent=f"no ascent is shown: {error.what}")


def _ascent(
    file: PoliciesFile,
    critic: CriticFile | None,
    models: Mapping[str, ModelFile],
    sink: Sink,
) -> dict[int, Policies]:
    """Return gradient steps and the policies after them.

    Raises:
        PbvfError: They cannot be found again.
    """
    import numpy as np

    from pbvf_offline.synthesis.ascent import synthesize
    from pbvf_offline.synthesis.settings import SynthesisSettings

    origin, spec = file.origin, file.policies.spec
    if critic is None or origin.get("made_by") != "synthesize":
        raise IncompatibleError("the critic that it climbed is not on this page")
    if origin.get("states_from") is not None or origin.get("started_from") is not None:
        raise IncompatibleError("it began with other files")
    settings = SynthesisSettings.from_dict(origin.get("settings"), "its settings")
    if settings.spec_like(critic.spec) != spec:
        raise IncompatibleError("its settings are of other policies")
    if settings.count * settings.restarts * settings.steps > _MOST_STEPS:
        raise IncompatibleError(f"its ascent takes more than {_MOST_STEPS:,} steps of a policy")
    judge = None
    if settings.candidates > 1:
        judge = _judge(origin, models, critic.caution, settings.candidates)
    with Bar("climbing again", "steps", sink=sink) as bar:
        grown = synthesize(
            critic,
            settings,
            judge=judge,
            waypoint_every=max(1, settings.steps // _POINTS),
            progress=bar.update,
        )
    ended, stored = grown.policies.theta, file.policies.theta
    if ended.shape != stored.shape or not np.allclose(ended, stored, rtol=1e-2, atol=1e-2):
        raise IncompatibleError("climbing again ended elsewhere")
    return {point.step: critic.policies(point.theta, spec) for point in grown.path}


def _judge(
    origin: Mapping[str, Any], models: Mapping[str, ModelFile], caution: float, candidates: int
) -> Callable[[Policies], NDArray[np.float64]]:
    """Return what chose among the candidates of a policies file.

    Raises:
        IncompatibleError: The file does not say which model and horizon (steps) that was, or the
            model is not among those given, by their digests.
        UsageError: No episode of such a horizon can be imagined.
    """
    from pbvf_offline.synthesis.model_evaluation import ModelEvaluator

    match origin.get("chosen_in"):
        case [str(digest), int(horizon)] if digest in models:
            evaluator = ModelEvaluator.of(models[digest], horizon, caution)
            return partial(evaluator.judge, candidates=candidates)
    raise IncompatibleError("the model that chose among its candidates is not on this page")


def all_filmed(sources: Sequence[Source], env: str | None, sink: Sink) -> list[Source]:
    """Return sources, each with the film of one of its policies or with why there is none.

    Raises:
        PbvfError: As :func:`_filmed` does.
    """
    left, result = _MOST_FILMS, []
    for source in sources:
        if source.policies is None and source.kind != "run":
            result.append(source)
        elif source.policies is None and source.learned is None:
            why = "no film is shown: the run is not finished, so it has no learned policy"
            result.append(dataclasses.replace(source, no_film=why))
        elif not left:
            why = f"no film is shown: a page has {_MOST_FILMS} at most"
            result.append(dataclasses.replace(source, no_film=why))
        else:
            result.append(_filmed(source, env, sink))
            left -= 1
    return result


def _filmed(source: Source, env: str | None, sink: Sink) -> Source:
    """Return policies with a film of the best, by what was measured or else predicted.

    Of a run it is the learned policy.

    Raises:
        UsageError: The environment is not known, offers no images, or what films is missing.
        UnsafeError: The environment that the file names is not registered here.
        ResourceError: The machine cannot render.
    """
    from pbvf_cli.shared.inputs import environments
    from pbvf_cli.shared.outputs.video import record_video
    from pbvf_cli.shared.values import EnvOptions

    file = source.policies or source.learned
    assert file is not None
    environments.silence_gymnasium()
    values = source.of_each_policy("returns")
    if values is None:
        values = source.of_each_policy("predicted")
    best = 0 if values is None else int(values.argmax())
    place = EnvOptions(env, None, None)
    config = environments.choose_environment(
        place, [(file.environment, Path(source.name))], file.policies.spec
    )
    with temporary_folder() as folder, Bar("filming", "frames", sink=sink) as bar:
        film = folder / "film.mp4"
        policies = file.policies.select([best])
        _, every = record_video(
            config, policies, film, seed=0, episodes=1, progress=bar.update, most=_MOST_FRAMES
        )
        content = film.read_bytes()
    which = f"policy {best}" if source.learned is None else "the learned policy"
    if every > 1:
        which += f", one step in {every}"
    return dataclasses.replace(source, film=(which, content))

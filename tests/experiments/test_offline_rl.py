"""TD3+BC, IQL and FQE of d3rlpy; what trains is skipped where the library is missing."""

from __future__ import annotations

import dataclasses
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, discrete_spec, make_policies
from model_tools import played
from pbvf_cli.__main__ import main
from pbvf_experiments.offline import baselines as offline_rl
from pbvf_experiments.offline.baselines import offline_rl_settings, require_d3rlpy, train_offline_rl
from pbvf_experiments.offline.fqe import FqeSettings, fitted_q_values, fqe_settings
from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Trajectories

needs_d3rlpy = pytest.mark.skipif(
    importlib.util.find_spec("d3rlpy") is None, reason="d3rlpy is not installed"
)


@cache
def data(discrete: bool = False) -> Trajectories:
    rng = np.random.default_rng(0)
    spec = discrete_spec(3) if discrete else box_spec(3)
    return played(
        make_policies(spec, 6),
        lambda obs, action, _: (0.9 * obs + 0.1 * np.resize(action, 3) + 1.0, float(obs[0]), False),
        rng.normal(5.0, 2.0, (6, 3)),
        20,
    )


def hide(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )


def test_settings() -> None:
    td3, iql = (offline_rl_settings(n, "Swimmer-v5", seed=3, updates=7) for n in ("td3bc", "iql"))
    assert (td3.gamma, td3.standardise, iql.standardise) == (0.999, True, False)
    assert offline_rl_settings("iql", "Hopper-v5", seed=3, updates=7).gamma == 0.99
    assert fqe_settings("Swimmer-v5", seed=3, updates=7) == FqeSettings(3, 7, 0.999)


@pytest.mark.parametrize("name", ["td3bc", "iql", "fqe"])
def test_a_missing_library_is_named_before_anything_is_run(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hide(monkeypatch, "d3rlpy")
    command = ["reproduce", "fig-offline", "--seeds", "0", "--cells", f"default,{name}"]
    assert main([*command, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "d3rlpy is not installed" in said
    assert "pip install 'pbvf-offline[d3rlpy]'" in said
    assert not any(tmp_path.iterdir())


def test_what_the_library_imports_is_needed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = {"d3rlpy": "d3rlpy", "gym": "gym", "sklearn": "scikit-learn"}
    packages |= {name: name for name in ("structlog", "dataclasses_json", "colorama")}
    for module, package in packages.items():
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
        hide(monkeypatch, module)
        with pytest.raises(UsageError, match=f"^{package} is not installed"):
            require_d3rlpy()


def test_discrete_actions() -> None:
    settings = offline_rl_settings("td3bc", "CartPole-v1", seed=0, updates=1)
    with pytest.raises(IncompatibleError, match="continuous actions"):
        train_offline_rl(data(discrete=True), settings)
    trajectories = data(discrete=True)
    with pytest.raises(IncompatibleError, match="deterministic policies with continuous actions"):
        fitted_q_values(trajectories, trajectories.policies, FqeSettings(0, 1, 0.9))
    stochastic = make_policies(box_spec(3, stochastic=True), 1)
    with pytest.raises(IncompatibleError, match="deterministic policies with continuous actions"):
        fitted_q_values(data(), stochastic, FqeSettings(0, 1, 0.9))


@needs_d3rlpy
@pytest.mark.parametrize("name", ["td3bc", "iql"])
def test_what_is_returned_acts_as_the_library_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from d3rlpy.algos.qlearning.base import QLearningAlgoBase

    learners: list[Any] = []
    fit = QLearningAlgoBase.fit

    def kept(self: Any, *args: Any, **kwargs: Any) -> Any:
        learners.append(self)
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(QLearningAlgoBase, "fit", kept)
    settings = offline_rl_settings(name, "Hopper-v5", seed=0, updates=5)
    settings = dataclasses.replace(settings, standardise=name == "td3bc")
    before = torch.get_rng_state()
    policies, libraries = train_offline_rl(data(), settings)
    assert libraries["d3rlpy"]
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr().out == ""  # standard output is the command's own
    obs = np.random.default_rng(1).normal(5, 3, (50, 3)).astype(np.float32)
    actor = policies.actor(0)
    ours = np.array([actor.act(row.astype(float), np.random.default_rng(0))[0] for row in obs])
    np.testing.assert_allclose(ours, learners[0].predict(obs), atol=1e-5)
    again, _ = train_offline_rl(data(), settings)
    np.testing.assert_array_equal(policies.theta, again.theta)
    other, _ = train_offline_rl(data(), dataclasses.replace(settings, seed=1))
    assert (policies.theta != other.theta).any()


@needs_d3rlpy
def test_the_buffer_holds_the_episodes() -> None:
    trajectories = data()
    buffer = offline_rl.d3rlpy_dataset(trajectories)
    assert len(buffer.episodes) == trajectories.episodes
    assert buffer.transition_count == len(trajectories) - trajectories.episodes
    second = buffer.episodes[1]
    first, last = trajectories.start[1:3]
    np.testing.assert_array_equal(
        second.rewards[:, 0], trajectories.rewards[first:last].astype("f")
    )
    np.testing.assert_array_equal(
        second.observations[0], trajectories.observations[first + 1].astype("f")
    )


@needs_d3rlpy
@pytest.mark.parametrize("squash", ["tanh", "none"])
def test_fitted_q_values(squash: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Observations stay and the reward is the action, so a policy's value is known."""
    rng = np.random.default_rng(0)
    spec = box_spec(1, low=-2.0, high=2.0, squash=squash)
    acting = make_policies(spec, 150, mean=[3.0], std=[1.0])
    trajectories = played(
        acting, lambda obs, action, _: (obs, float(action[0]), False), rng.normal(5, 2, (150, 1)), 8
    )
    policies = Policies(
        spec,
        np.array([[0.0, -0.5], [0.35, -0.3]], np.float32),
        acting.obs_mean[:2],
        acting.obs_std[:2],
    )
    settings = FqeSettings(0, 600, 0.5, lr=3e-3)
    before = torch.get_rng_state()
    values, libraries = fitted_q_values(trajectories, policies, settings)
    expected = [
        2 * np.mean([policies.actor(k).act(obs)[0] for obs in trajectories.initial_observations])
        for k in range(2)
    ]
    np.testing.assert_allclose(values, expected, atol=0.1)
    assert libraries["d3rlpy"]
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr().out == ""

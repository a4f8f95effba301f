from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import toyenv  # noqa: F401
from pbvf_experiments.online import baselines
from pbvf_experiments.online.baselines import (
    WithoutSurvival,
    ars_policy,
    ddpg_policy,
    make_ars,
    make_ddpg,
    run_baseline,
)
from pbvf_experiments.online.cells import OnlineCell, training_of
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import DivergedError, UsageError
from pbvf_offline.online.loop import evaluation_seed
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.presets.paper import ArsChoice, DdpgChoice, ars_choice
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_runs.records import Evaluation

ARS = ArsChoice(0.1, directions=2, elite=1, noise=0.3)
DDPG = DdpgChoice(lr_policy=1e-2, lr_critic=1e-3, noise=0.1)
both = pytest.mark.parametrize("choice", [ARS, DDPG], ids=["ars", "ddpg"])
ASYMMETRIC = "ToyAsym-v0"


@pytest.fixture(autouse=True)
def _keep_generators() -> Iterator[None]:
    """Models seed the global generators; leave them to other tests as they were.

    Private: the context in which the baselines themselves use the libraries.
    """
    with baselines.private_randomness():
        yield


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Policies]:
    """The policies that a run measures, in order."""
    seen: list[Policies] = []
    evaluate = baselines.evaluate_policies

    def record(config: Any, policies: Policies, **kwargs: Any) -> Any:
        seen.append(policies)
        return evaluate(config, policies, **kwargs)

    monkeypatch.setattr(baselines, "evaluate_policies", record)
    return seen


def run(
    choice: Any, env: str = "Toy-v0", hidden: tuple[int, ...] = (), **kwargs: Any
) -> tuple[list[Evaluation], dict[str, Any]]:
    usual = {"steps": 60, "seed": 0, "evaluations": 4, "evaluation_episodes": 2}
    return run_baseline(choice, env, hidden, **{**usual, **kwargs})


def thetas(policies: list[Policies]) -> list[bytes]:
    return [p.theta.tobytes() for p in policies]


@both
def test_result(choice: Any) -> None:
    points, settings = run(choice, hidden=(4, 3), steps=203)
    assert json.loads(json.dumps(settings, allow_nan=False)) == settings
    assert [point.step for point in points] == [50, 101, 152, 203]
    assert all(len(point.returns) == 2 for point in points)
    assert all(point.returns_without_survival is None for point in points)
    assert settings["noise"] == choice.noise


def test_the_papers_choice_and_gamma() -> None:
    def chosen(algorithm: str, metric: str) -> dict[str, Any]:
        cell = OnlineCell(algorithm, "MountainCarContinuous-v0", "32", metric)
        choice: dict[str, Any] = training_of(cell, 0)["choice"]
        return choice

    ars, ddpg = ([chosen(name, metric) for metric in ("avg", "last")] for name in ("ars", "ddpg"))
    assert [(s["directions"], s["elite"]) for s in ars] == [(1, 1), (16, 4)]
    assert [s["lr_policy"] for s in ddpg] == [1e-2, 1e-4]
    for env, gamma, wanted in (
        ("Toy-v0", None, 0.99),
        ("Toy-v0", 0.5, 0.5),
        ("Swimmer-v5", None, 0.999),
    ):
        _, settings = run(DDPG, env, gamma=gamma, evaluations=1, evaluation_episodes=1)
        assert settings["gamma"] == wanted


@both
def test_same_seed_same_result(choice: Any) -> None:
    kwargs = {"env": "InvertedPendulum-v5", "steps": 150, "evaluation_episodes": 1}
    first, again = run(choice, **kwargs), run(choice, **kwargs)
    other = run(choice, seed=1, **kwargs)
    assert first == again
    assert first[0] != other[0]


@both
def test_measuring_does_not_disturb_training(choice: Any, measured: list[Policies]) -> None:
    run(choice, steps=120, evaluations=1)
    (once,) = measured
    run(choice, steps=120, evaluations=7)
    assert len(measured) == 8
    for name in ("theta", "obs_mean", "obs_std"):
        np.testing.assert_array_equal(getattr(measured[-1], name), getattr(once, name))


@both
@pytest.mark.parametrize("steps", [100, 113])
def test_training_takes_exactly_the_steps(
    choice: Any, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    class Count(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            taken.append(1)
            return self.env.step(action)

    monkeypatch.setattr(baselines, "make_env", lambda config: Count(make_env(config)))
    run(choice, steps=steps)
    assert len(taken) == steps


@both
def test_global_generators_are_left_as_they_were(choice: Any) -> None:
    def seed() -> None:
        torch.manual_seed(7)
        np.random.seed(7)  # noqa: NPY002
        random.seed(7)

    def draw() -> tuple[float, ...]:
        return torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002

    seed()
    expected = draw()
    seed()
    run(choice)
    assert draw() == expected


def test_an_evaluation_can_be_made_again(measured: list[Policies]) -> None:
    points, _ = run(ARS, "CartPole-v1", evaluation_episodes=3)
    for policies, point in zip(measured, points, strict=True):
        seed = evaluation_seed(0, point.step)
        returns, _ = evaluate_policies(EnvConfig("CartPole-v1"), policies, episodes=3, seed=seed)
        assert tuple(returns[0].tolist()) == point.returns


def test_ars_measures_the_policy_before_the_update_under_way(measured: list[Policies]) -> None:
    # One direction is a batch of two episodes of 5 steps.
    choice = ArsChoice(0.1, directions=1, elite=1, noise=0.3)
    run(choice, steps=40, evaluations=8, evaluation_episodes=1)
    at = thetas(measured)
    assert at[0::2] == at[1::2]  # 5 and 10 steps, 15 and 20, …
    assert len(set(at)) == 4
    assert not measured[0].theta.any()
    assert (measured[0].obs_mean == 0).all()
    np.testing.assert_allclose(measured[0].obs_std, 1.0, atol=1e-6)
    # The toy's last observation is always 2.
    assert measured[2].obs_mean[0, -1] == pytest.approx(2.0, abs=1e-3)
    assert measured[2].obs_std[0, 0] != 1.0


def test_ddpg_measures_after_the_updates_of_a_step(measured: list[Policies]) -> None:
    run(DDPG, steps=200, evaluations=20, evaluation_episodes=1)
    at = thetas(measured)
    assert len(set(at[:4])) == 1  # 10 to 40 steps
    assert len(set(at[4:9])) == 1  # 50 to 90 steps
    assert len(set(at)) == 5  # updates at 50, 100, 150 and 200


@pytest.mark.parametrize("hidden", [(), (32,), (64, 64)])
def test_a_converted_ddpg_acts_alike(hidden: tuple[int, ...], rng: np.random.Generator) -> None:
    env = make_env(EnvConfig(ASYMMETRIC))
    model = make_ddpg(env, hidden, DDPG, gamma=0.9, steps=150, seed=0)
    model.learn(150)
    policies = ddpg_policy(model, spec_for_env(env, hidden))
    assert policies.theta.shape == (1, policies.spec.size)
    for obs in rng.normal(0, 1, (50, 3)):
        theirs, _ = model.predict(obs, deterministic=True)
        np.testing.assert_allclose(policies.actor(0).act(obs)[0], theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("hidden", [(), (32,), (64, 64)])
@pytest.mark.parametrize("env_id", [ASYMMETRIC, "CartPole-v1"])
def test_a_converted_ars_acts_alike(
    env_id: str, hidden: tuple[int, ...], rng: np.random.Generator
) -> None:
    env = make_env(EnvConfig(env_id))
    model = make_ars(env, hidden, ARS, seed=0)
    model.learn(150)
    normalize: Any = model.get_vec_normalize_env()
    policies = ars_policy(model, spec_for_env(env, hidden))
    assert policies.theta.any()
    actions = set()
    observations = rng.normal(0, 1, (50, policies.spec.obs_dim))
    if env_id == ASYMMETRIC:
        observations[:, -1] = 2.0  # as the toy always says
    for obs in observations:
        theirs, _ = model.predict(normalize.normalize_obs(obs))
        ours, _ = policies.actor(0).act(obs)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        actions.add(float(ours.item()))
    assert len(actions) >= 2


def test_ddpg_has_the_papers_networks_and_keeps_two_learning_rates() -> None:
    env = make_env(EnvConfig("Toy-v0"))
    model = make_ddpg(env, (64, 64), DDPG, gamma=0.9, steps=100, seed=0)
    model.learn(100)

    def layers(network: torch.nn.Sequential) -> list[str]:
        return [
            str(m.out_features) if isinstance(m, torch.nn.Linear) else type(m).__name__
            for m in network
        ]

    policy = ["64", "Tanh", "64", "Tanh", "1", "Tanh"]
    critic = ["256", "ReLU", "256", "ReLU", "1"]
    for actor in (model.actor, model.actor_target):
        assert layers(actor.mu) == policy
    for q in (model.critic, model.critic_target):
        assert [layers(network) for network in q.q_networks] == [critic]
    assert [g["lr"] for g in model.actor.optimizer.param_groups] == [1e-2]
    assert [g["lr"] for g in model.critic.optimizer.param_groups] == [1e-3]
    assert model._n_updates == 100  # private: the library counts its updates nowhere else
    assert (model.batch_size, model.buffer_size, model.learning_starts) == (128, 100_000, 1)
    assert (model.tau, model.gamma) == (pytest.approx(0.005), 0.9)


def test_adams_first_steps_have_their_learning_rates() -> None:
    env = make_env(EnvConfig("Toy-v0"))
    choice = DdpgChoice(lr_policy=1e-2, lr_critic=1e-4, noise=0.1)
    model = make_ddpg(env, (), choice, gamma=0.9, steps=100, seed=0)
    model.learn(50)
    for module, lr in ((model.actor, 1e-2), (model.critic, 1e-4)):
        module.optimizer.state.clear()
        before = torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()
        model.train(gradient_steps=1, batch_size=128)
        after = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
        # Adam's first step is its learning rate times the gradient's sign.
        assert (after - before).abs().max().item() == pytest.approx(lr, rel=1e-2)


def test_ddpg_acts_at_random_first_and_then_with_noise_in_the_actions_unit() -> None:
    env = make_env(EnvConfig("InvertedPendulum-v5"))  # actions in [-3, 3]
    model = make_ddpg(env, (), DdpgChoice(1e-3, 1e-3, 3e6), gamma=0.9, steps=2_000, seed=0)
    model.learn(50)
    assert model.learning_starts == 20
    actions = np.abs(model.replay_buffer.actions[:50, 0, 0])
    assert (actions[:20] < 1).all()  # uniform, without noise
    assert (actions[20:] == 1).all()  # noise so large that it is clipped
    np.testing.assert_allclose(model.action_noise._sigma, [1e6])
    assert model._n_updates == 50


def test_ars_takes_the_authors_step(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = ArsChoice(0.05, directions=4, elite=2, noise=0.2)
    model = make_ars(make_env(EnvConfig("Toy-v0")), (), choice, seed=0)
    collect, seen = model.evaluate_candidates, {}

    def record(candidates: torch.Tensor, *args: Any) -> torch.Tensor:
        seen["candidates"] = candidates.numpy().astype(np.float64)
        seen["returns"] = collect(candidates, *args)
        return seen["returns"]

    monkeypatch.setattr(model, "evaluate_candidates", record)
    model.learn(1)
    plus, minus = seen["returns"].numpy().astype(np.float64).reshape(2, 4)
    delta = seen["candidates"][:4] / choice.noise  # the policy starts at zero
    np.testing.assert_allclose(seen["candidates"][4:], -seen["candidates"][:4])
    best = np.argsort(-np.maximum(plus, minus))[:2]
    spread = np.std([plus[best], minus[best]])
    step = choice.lr / (2 * spread) * ((plus - minus)[best] @ delta[best])
    np.testing.assert_allclose(model.weights.numpy(), step, rtol=1e-3)


def test_ars_stands_still_where_all_returns_are_equal() -> None:
    class Flat(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            obs, _, *rest = self.env.step(action)
            return obs, 1.0, *rest

    model = make_ars(Flat(make_env(EnvConfig("Toy-v0"))), (), ARS, seed=0)
    model.learn(100)
    assert not model.weights.any()


def test_ars_freezes_its_statistics_within_a_batch() -> None:
    model = make_ars(make_env(EnvConfig("Toy-v0")), (), ARS, seed=0)
    normalize: Any = model.get_vec_normalize_env()
    obs, seen = np.array([5.0, -40.0, 2.0]), []

    def look(*_: Any) -> bool:
        seen.append(normalize.normalize_obs(obs))
        return True

    model.learn(40, callback=look)  # two batches of four episodes of 5 steps
    for step in range(20):
        np.testing.assert_allclose(seen[step], obs, rtol=1e-6)  # not clipped either
    for step in range(20, 40):
        np.testing.assert_array_equal(seen[step], seen[20])
    assert not np.allclose(seen[20], obs)
    assert not np.array_equal(normalize.normalize_obs(obs), seen[20])


def test_survival_bonus(monkeypatch: pytest.MonkeyPatch) -> None:
    env = WithoutSurvival(make_env(EnvConfig("ToySurvive-v0")))
    env.reset(seed=0)
    obs, reward, *_ = env.step(np.zeros(1, np.float32))
    assert reward == pytest.approx(-(obs[0] ** 2))  # the toy pays 1 - x²
    trained = {}
    for algorithm, choice in (("ars", ARS), ("ddpg", DDPG)):
        make = getattr(baselines, f"make_{algorithm}")

        def record(env: Any, *args: Any, make: Any = make, **kwargs: Any) -> Any:
            trained[make.__name__] = type(env)
            return make(env, *args, **kwargs)

        monkeypatch.setattr(baselines, f"make_{algorithm}", record)
        points, settings = run(choice, "Hopper-v5", evaluations=2, evaluation_episodes=1)
        for point in points:
            assert point.returns_without_survival is not None
            bonus = np.subtract(point.returns, point.returns_without_survival)
            # Hopper pays 1 a step while it stands.
            assert (bonus > 1).all()
            np.testing.assert_allclose(bonus, np.round(bonus), atol=1e-6)
        rewards = {"ars": "without-survival", "ddpg": "raw"}
        assert settings["reward"] == rewards[algorithm]
    assert trained["make_ars"] is WithoutSurvival
    assert trained["make_ddpg"] is not WithoutSurvival


def test_ars_learns_to_balance() -> None:
    choice = ars_choice("InvertedPendulum-v5", (), "avg")
    points, _ = run(choice, "InvertedPendulum-v5", steps=10_000, evaluations=2)
    assert np.mean(points[-1].returns) > 300


def test_parameters_that_are_not_finite() -> None:
    env = make_env(EnvConfig("Toy-v0"))
    model = make_ddpg(env, (), DDPG, gamma=0.9, steps=100, seed=0)
    torch.nn.init.constant_(model.actor.mu[0].bias, float("nan"))
    with pytest.raises(DivergedError, match="NaN"):
        ddpg_policy(model, spec_for_env(env, ()))


@pytest.mark.parametrize(("choice", "missing"), [(ARS, "sb3_contrib"), (DDPG, "stable_")])
def test_missing_libraries(choice: Any, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def hide(name: str) -> Any:
        return None if name.startswith(missing) else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", hide)
    with pytest.raises(UsageError, match="not installed") as caught:
        run(choice)
    assert str(caught.value).endswith("pip install 'pbvf-offline[baselines]'")


@pytest.mark.parametrize(
    ("choice", "env", "seed", "message"),
    [
        (DDPG, "CartPole-v1", 0, "continuous"),
        (ARS, "ToyDiscrete-v0", 0, "start at 0"),
        (ARS, "Endless-v0", 0, "no time limit"),
        (ARS, "Toy-v0", -1, "seed"),
    ],
)
def test_wrong_usage(choice: Any, env: str, seed: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(choice, env, seed=seed)

"""The actors of live Stable-Baselines3 models, and their weights in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import toyenv  # noqa: F401
from exchange_tools import ASYMMETRIC, acts, env, network, observations, save
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import DivergedError, IncompatibleError, UsageError
from pbvf_offline.exchange.importer import from_state_dict, import_weights
from pbvf_offline.exchange.interpret import ImportSettings
from pbvf_offline.exchange.stable_baselines import ClippedObservationsWarning, from_sb3

TANH = {"activation_fn": nn.Tanh}
CONTINUOUS = ["PPO", "A2C", "DDPG", "TD3", "SAC", "ARS"]


def sb3(algorithm: str, env: Any, policy: str = "MlpPolicy", **kwargs: Any) -> Any:
    import sb3_contrib
    import stable_baselines3

    kwargs.setdefault("policy_kwargs", {**TANH, "net_arch": [8, 8]})
    if algorithm == "PPO":
        kwargs |= {"n_steps": 16, "batch_size": 16}
    if algorithm in ("DDPG", "TD3", "SAC", "DQN"):
        kwargs |= {"buffer_size": 100}
    if algorithm == "ARS" and policy == "MlpPolicy":
        kwargs |= {"zero_policy": False}
    library = sb3_contrib if algorithm == "ARS" else stable_baselines3
    state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    try:
        model = getattr(library, algorithm)(policy, env, seed=0, device="cpu", **kwargs)
        with torch.no_grad():  # far from the initial values, so that bounds and biases matter
            for parameter in model.policy.parameters():
                parameter.mul_(1.5).add_(0.1 * torch.randn_like(parameter))
        return model
    finally:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])  # noqa: NPY002


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("arch", [[], [8, 8]])
@pytest.mark.parametrize("algorithm", CONTINUOUS)
def test_a_continuous_sb3_actor(algorithm: str, arch: list[int], activation: Any) -> None:
    toy = env(act_dim=2)
    nets = {"pi": arch, "vf" if algorithm in ("PPO", "A2C") else "qf": [4]}
    shape = {"activation_fn": activation, "net_arch": arch if algorithm == "ARS" else nets}
    model = sb3(algorithm, toy, policy_kwargs=shape)
    policies = from_sb3(model, toy)
    assert policies.spec.hidden == tuple(arch)
    relu = arch and activation is nn.ReLU
    assert policies.spec.family == ("relu-mlp" if relu else "tanh-mlp")
    assert policies.spec.squash == ("none" if algorithm in ("PPO", "A2C") else "tanh")
    assert not policies.spec.stochastic
    obs = observations()
    theirs, _ = model.predict(obs, deterministic=True)
    np.testing.assert_allclose(acts(policies, obs), theirs, rtol=0, atol=1e-6)
    assert len(np.unique(theirs)) > 50
    np.testing.assert_array_equal(from_sb3(model.policy, toy).theta, policies.theta)


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "DQN", "ARS"])
def test_a_discrete_sb3_actor(algorithm: str) -> None:
    cart = gym.make("CartPole-v1")
    model = sb3(algorithm, cart)
    policies = from_sb3(model, cart)
    obs = observations(4)
    theirs, _ = model.predict(obs, deterministic=True)
    np.testing.assert_array_equal(acts(policies, obs), theirs)
    assert len(np.unique(theirs)) == 2


@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
def test_noise_of_an_sb3_actor(algorithm: str) -> None:
    toy = env(act_dim=2)
    model = sb3(algorithm, toy)
    policies = from_sb3(model, toy, stochastic=True)
    log_std = model.policy.log_std.detach().numpy()
    np.testing.assert_array_equal(policies.theta[0, :2], log_std)
    np.testing.assert_array_equal(policies.theta[0, 2:], from_sb3(model, toy).theta[0])
    cart = gym.make("CartPole-v1")
    assert from_sb3(sb3(algorithm, cart), cart, stochastic=True).spec.stochastic


@pytest.mark.parametrize("algorithm", ["DDPG", "SAC", "ARS"])
def test_noise_that_a_policy_cannot_have(algorithm: str) -> None:
    with pytest.raises(UsageError, match="neither a Gaussian"):
        from_sb3(sb3(algorithm, env()), env(), stochastic=True)


@pytest.mark.parametrize("algorithm", ["PPO", "TD3", "SAC", "DQN"])
def test_other_activations_of_an_sb3_actor(algorithm: str) -> None:
    world = gym.make("CartPole-v1") if algorithm == "DQN" else env()
    model = sb3(algorithm, world, policy_kwargs={"activation_fn": nn.ELU})
    with pytest.raises(IncompatibleError, match=r"ELU.*tanh or relu between them"):
        from_sb3(model, world)
    # Without hidden layers there is no activation.
    linear = sb3(algorithm, world, policy_kwargs={"activation_fn": nn.ELU, "net_arch": []})
    assert from_sb3(linear, world).spec.arch == "linear"


def test_sb3_actors_with_other_parts() -> None:
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Extractor(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, features_dim=3)
            self.layer = nn.Linear(3, 3)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return self.layer(obs)

    class Doubling(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, features_dim=3)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return 2 * obs

    toy = env()
    extra = {**TANH, "features_extractor_class": Extractor}
    with pytest.raises(IncompatibleError, match="features extractor of its own"):
        from_sb3(sb3("PPO", toy, policy_kwargs=extra), toy)
    with pytest.raises(IncompatibleError, match="features extractor of its own"):
        from_sb3(sb3("TD3", toy, policy_kwargs=extra), toy)
    # What its layers do not show, its actions do.
    hidden = {**TANH, "features_extractor_class": Doubling}
    with pytest.raises(IncompatibleError, match="acts otherwise than its layers say"):
        from_sb3(sb3("PPO", toy, policy_kwargs=hidden), toy)
    # State-dependent exploration: SAC clips the mean, PPO does not.
    with pytest.raises(IncompatibleError, match="clips its mean"):
        from_sb3(sb3("SAC", toy, use_sde=True), toy)
    sde = sb3("PPO", toy, use_sde=True)
    obs = observations()
    theirs, _ = sde.predict(obs, deterministic=True)
    np.testing.assert_allclose(acts(from_sb3(sde, toy), obs), theirs, atol=1e-6)
    with pytest.raises(UsageError, match="noise"):
        from_sb3(sde, toy, stochastic=True)


@pytest.mark.parametrize(
    ("algorithm", "policy", "kwargs"),
    [
        ("SAC", "MlpPolicy", {"use_sde": True, "policy_kwargs": {**TANH, "clip_mean": 0.0}}),
        ("ARS", "LinearPolicy", {"policy_kwargs": {}}),
        ("ARS", "LinearPolicy", {"policy_kwargs": {"with_bias": True, "squash_output": True}}),
    ],
)
def test_rarer_sb3_actors(algorithm: str, policy: str, kwargs: dict[str, Any]) -> None:
    toy = env()
    model = sb3(algorithm, toy, policy, **kwargs)
    policies = from_sb3(model, toy)
    obs = observations()
    theirs, _ = model.predict(obs, deterministic=True)
    np.testing.assert_allclose(acts(policies, obs), theirs, rtol=0, atol=1e-6)
    settings = ImportSettings(layout="sb3", activation="tanh", squash=policies.spec.squash)
    file = from_state_dict(model.policy.state_dict(), toy, settings)
    np.testing.assert_array_equal(file.theta, policies.theta)


def test_what_is_no_sb3_actor() -> None:
    for thing in (network(3, 1), object(), nn.ModuleDict({"mu": nn.Linear(3, 1)})):
        with pytest.raises(UsageError, match="no Stable-Baselines3 policy"):
            from_sb3(thing, env())


def test_an_sb3_actor_in_another_environment() -> None:
    model = sb3("PPO", env())
    for other in (env("Toy-v0"), env(act_dim=2), env(obs_dim=4), env("ToyDiscrete-v0")):
        with pytest.raises(IncompatibleError, match="the environment offers"):
            from_sb3(model, other)


def test_actions_that_sb3_counts_from_zero() -> None:
    shifted = env("ToyDiscrete-v0")  # its choices start at 2; sb3 answers 0 to 3
    model = sb3("PPO", shifted)
    with pytest.raises(IncompatibleError, match="acts otherwise"):
        from_sb3(model, shifted)


def test_parameters_that_are_not_finite() -> None:
    model = sb3("PPO", env())
    nn.init.constant_(model.policy.action_net.bias, float("nan"))
    with pytest.raises(DivergedError, match="NaN"):
        from_sb3(model, env())


def test_the_normaliser_of_an_sb3_model() -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    vec = VecNormalize(DummyVecEnv([env]), clip_obs=5.0)
    model = sb3("PPO", vec)
    rows = np.random.default_rng(0).normal([1, -3, 0.1], [2, 0.5, 0.01], (1000, 3))
    vec.obs_rms.update(rows)
    with pytest.warns(ClippedObservationsWarning, match="at 5"):
        policies = from_sb3(model, env())
    assert policies.obs_std[0, 2] < 0.02
    theirs, _ = model.predict(vec.normalize_obs(rows[:200]), deterministic=True)
    np.testing.assert_allclose(acts(policies, rows[:200]), theirs, rtol=0, atol=1e-6)
    # The policy alone knows of no normaliser; it can be given.
    assert (from_sb3(model.policy, env()).obs_std == 1).all()
    vec.clip_obs = np.inf
    given = from_sb3(model.policy, env(), normalizer=vec)
    np.testing.assert_array_equal(given.obs_mean, policies.obs_mean)
    vec.norm_obs = False
    assert (from_sb3(model, env()).obs_mean == 0).all()


def test_looking_at_an_sb3_model_changes_nothing() -> None:
    model = sb3("TD3", env())
    model.policy.train(True)
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    from_sb3(model, env())
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002
    assert model.policy.training
    for name, value in model.policy.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("algorithm", [*CONTINUOUS, "DQN", "PPO-discrete"])
def test_sb3_names_in_a_file(tmp_path: Path, algorithm: str, activation: str) -> None:
    discrete = algorithm in ("DQN", "PPO-discrete")
    name = "CartPole-v1" if discrete else ASYMMETRIC
    world = env(name)
    between = {"tanh": nn.Tanh, "relu": nn.ReLU}[activation]
    shape = {"activation_fn": between, "net_arch": [8, 8]}
    model = sb3(algorithm.removesuffix("-discrete"), world, policy_kwargs=shape)
    source = save(tmp_path / "w", model.policy.state_dict())
    kwargs: dict[str, Any] = {"layout": "sb3", "activation": activation}
    if algorithm == "ARS":
        kwargs["squash"] = "tanh"  # MlpPolicy squashes, LinearPolicy does not
    made = import_weights([source], EnvConfig(name), ImportSettings(**kwargs), tmp_path / "p")
    live = from_sb3(model, world)
    assert made.file.policies.spec == live.spec
    np.testing.assert_array_equal(made.file.policies.theta, live.theta)
    if algorithm in ("PPO", "A2C"):
        kwargs["stochastic"] = True
        noisy = from_state_dict(model.policy.state_dict(), world, ImportSettings(**kwargs))
        np.testing.assert_array_equal(noisy.theta, from_sb3(model, world, stochastic=True).theta)
    if algorithm in ("DDPG", "TD3", "SAC"):
        actor = from_state_dict(model.actor.state_dict(), world, ImportSettings(**kwargs))
        np.testing.assert_array_equal(actor.theta, live.theta)


def test_sb3_files_do_not_tell_everything() -> None:
    toy = env()
    relu = sb3("TD3", toy, policy_kwargs={"net_arch": [4]}).policy.state_dict()
    with pytest.raises(UsageError, match=r"ReLU.*--activation relu"):
        from_state_dict(relu, toy, ImportSettings(layout="sb3"))
    with pytest.raises(IncompatibleError, match="sigmoid cannot be expressed"):
        from_state_dict(relu, toy, ImportSettings(layout="sb3", activation="sigmoid"))
    # Tanh is what PPO has unless told otherwise.
    ppo = sb3("PPO", toy).policy.state_dict()
    assert from_state_dict(ppo, toy, ImportSettings(layout="sb3")).spec.squash == "none"
    ars = sb3("ARS", toy, "LinearPolicy", policy_kwargs={}).policy.state_dict()
    with pytest.raises(UsageError, match="--squash"):
        from_state_dict(ars, toy, ImportSettings(layout="sb3"))
    linear = from_state_dict(ars, toy, ImportSettings(layout="sb3", squash="none"))
    assert linear.theta[0, -1] == 0  # its layer has no bias
    sde = sb3("SAC", toy, use_sde=True).policy.state_dict()
    with pytest.raises(IncompatibleError, match="clips its mean"):
        from_state_dict(sde, toy, ImportSettings(layout="sb3", activation="tanh"))
    with pytest.raises(IncompatibleError, match="no Stable-Baselines3 actor"):
        from_state_dict(network(3, 8, 1).state_dict(), toy, ImportSettings(layout="sb3"))
    extractor = {**ppo, "features_extractor.layer.weight": torch.zeros(3, 3)}
    with pytest.raises(IncompatibleError, match="features extractor"):
        from_state_dict(extractor, toy, ImportSettings(layout="sb3"))
    with pytest.raises(IncompatibleError, match="do not lead"):
        from_state_dict(ppo, env(act_dim=2), ImportSettings(layout="sb3"))

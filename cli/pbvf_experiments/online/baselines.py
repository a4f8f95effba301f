"""The paper's baselines, DDPG and ARS, under the protocol of the project's own runs.

The algorithms are those of Stable-Baselines3 and sb3-contrib; this module gives them the
paper's settings ("Implementation details" and the tables of best hyperparameters), stops
them where the paper's learning curves have their points, and measures the policy learned so
far with the project's own evaluation.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from pbvf_experiments.private_randomness import private_randomness
from pbvf_offline.envs.make import Env, close_env, make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import UsageError
from pbvf_offline.exchange.stable_baselines import sb3_policies
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.presets.offline import default_gamma, default_reward
from pbvf_offline.presets.paper import (
    BUFFER_SIZE,
    DDPG_POLYAK,
    DDPG_STARTING_FRACTION,
    ArsChoice,
    DdpgChoice,
)
from pbvf_offline.presets.paper import DDPG as PRESET
from pbvf_offline.rollout.evaluation import evaluate_policies, require_end
from pbvf_offline.seeding import check_seed
from pbvf_runs.records import Evaluation

if TYPE_CHECKING:
    from sb3_contrib import ARS
    from stable_baselines3 import DDPG

_UPDATE_EVERY = PRESET.update_every or 1  # steps between DDPG's blocks of updates
_LIBRARIES: dict[str, dict[str, str]] = {  # modules and the packages that bring them
    "ddpg": {"stable_baselines3": "stable-baselines3"},
    "ars": {"stable_baselines3": "stable-baselines3", "sb3_contrib": "sb3-contrib"},
}


class _FinishedError(Exception):
    """Leaves ARS's loop in the middle of a batch: its callbacks cannot stop it."""


def run_baseline(
    choice: ArsChoice | DdpgChoice,
    env_id: str,
    hidden: tuple[int, ...],
    *,
    steps: int,
    seed: int,
    evaluations: int = 100,
    evaluation_episodes: int = 10,
    gamma: float | None = None,
) -> tuple[list[Evaluation], dict[str, Any]]:
    """Train one baseline; return its learning curve, and its settings in JSON form.

    Args:
        choice: The hyperparameters, which also say which baseline it is.
        env_id: The environment.
        hidden: Sizes of the policy's tanh hidden layers; empty for a linear policy.
        steps: Environment steps N of training; evaluation comes on top.
        seed: Every random number comes from it.
        evaluations: Number of evaluations, at ``i * N / evaluations`` steps, i = 1 ….
        evaluation_episodes: Episodes of each.
        gamma: DDPG's discount factor; None: the paper's. ARS has none.

    Raises:
        UsageError: A library is missing, or the algorithm does not suit the environment.
        DivergedError: Parameters or observations became NaN or infinite.
    """
    check_seed(seed)
    algorithm = "ars" if isinstance(choice, ArsChoice) else "ddpg"
    libraries = _LIBRARIES[algorithm]
    for module, package in libraries.items():
        if importlib.util.find_spec(module) is None:
            raise UsageError(
                f"{package} is not installed, which the baseline {algorithm} runs on",
                remedy="pip install 'pbvf-offline[baselines]'",
            )
    config = EnvConfig(env_id)
    require_end(config, None)
    env = make_env(config)
    try:
        spec = spec_for_env(env, hidden)
        protocol = _Protocol(config, steps, seed, evaluations, evaluation_episodes)
        with private_randomness():
            if isinstance(choice, DdpgChoice):
                discount = default_gamma("psvf", env_id) if gamma is None else gamma
                settings = _train_ddpg(env, spec, choice, discount, protocol)
            else:
                reward = default_reward("pssvf", env_id)
                settings = {"reward": reward, **_train_ars(env, spec, choice, reward, protocol)}
    finally:
        close_env(env)
    return protocol.points, {
        **settings,
        "evaluation_episodes": evaluation_episodes,
        "libraries": {name: importlib.metadata.version(name) for name in libraries.values()},
    }


class _Protocol:
    """When the policy learned so far is measured, and what was measured."""

    def __init__(self, config: EnvConfig, steps: int, seed: int, count: int, episodes: int) -> None:
        self.steps, self.seed = steps, seed
        self.points: list[Evaluation] = []
        self._config, self._count, self._episodes = config, count, episodes
        self._without_survival = default_reward("pssvf", config.name) == "without-survival"

    def visit(self, step: int, policy: Callable[[], Policies]) -> None:
        """Measure ``policy()`` if an evaluation is due at this step and was not yet made."""
        index = len(self.points) + 1
        if index > self._count or step != index * self.steps // self._count:
            return
        from pbvf_offline.online.loop import evaluation_seed

        returns, without = evaluate_policies(
            self._config,
            policy(),
            episodes=self._episodes,
            seed=evaluation_seed(self.seed, step),
            without_survival=self._without_survival,
            check=False,  # DDPG and ARS are compared on the paper's environments
        )
        bonus_out = tuple(without[0].tolist()) if self._without_survival else None
        self.points.append(Evaluation(step, tuple(returns[0].tolist()), bonus_out))


def make_ddpg(
    env: Env, hidden: tuple[int, ...], choice: DdpgChoice, *, gamma: float, steps: int, seed: int
) -> DDPG:
    """Return Stable-Baselines3's DDPG, untrained, with the paper's settings.

    What the library lacks is added: two learning rates, a tanh policy beside a ReLU critic,
    and first actions that are random only, without the Gaussian noise.

    Raises:
        UsageError: The actions are not a box.
    """
    import torch
    from stable_baselines3 import DDPG
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.noise import ActionNoise, NormalActionNoise
    from stable_baselines3.common.utils import update_learning_rate
    from stable_baselines3.common.vec_env import DummyVecEnv
    from stable_baselines3.td3.policies import Actor, TD3Policy

    class TanhActor(TD3Policy):
        def make_actor(self, features_extractor: Any = None) -> Actor:
            self.actor_kwargs["activation_fn"] = torch.nn.Tanh
            return super().make_actor(features_extractor)

    class TwoRates(DDPG):
        def _update_learning_rate(self, optimizers: Any) -> None:  # noqa: ARG002
            # Called before every block of updates, to set both optimisers to one schedule.
            update_learning_rate(self.actor.optimizer, choice.lr_policy)
            update_learning_rate(self.critic.optimizer, choice.lr_critic)

        def _sample_action(
            self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
        ) -> tuple[NDArray[Any], NDArray[Any]]:
            random_phase = self.num_timesteps < learning_starts
            return super()._sample_action(
                learning_starts, None if random_phase else action_noise, n_envs
            )

    space = env.action_space
    if not isinstance(space, gym.spaces.Box):
        raise UsageError(f"DDPG needs continuous actions, not {space}")
    # The library adds its noise to actions scaled to [-1, 1].
    sigma = choice.noise * 2.0 / (space.high.astype(np.float64) - space.low)
    model = TwoRates(
        TanhActor,
        DummyVecEnv([lambda: env]),
        learning_rate=choice.lr_critic,
        buffer_size=BUFFER_SIZE,
        learning_starts=round(steps * DDPG_STARTING_FRACTION),
        batch_size=PRESET.batch_size,
        tau=1.0 - DDPG_POLYAK,
        gamma=gamma,
        train_freq=(_UPDATE_EVERY, "step"),
        gradient_steps=_UPDATE_EVERY,  # each of the critic, then of the policy
        action_noise=NormalActionNoise(np.zeros_like(sigma), sigma),
        policy_kwargs={
            "net_arch": {"pi": list(hidden), "qf": list(PRESET.hidden)},
            "optimizer_kwargs": {"fused": True},  # Adam all the same, a quarter more steps/s
        },
        seed=seed,
        device="cpu",
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def ddpg_policy(model: DDPG, spec: PolicySpec) -> Policies:
    """Return DDPG's actor as one policy; its observations are not normalised.

    Raises:
        DivergedError: Its parameters are not finite.
    """
    return sb3_policies(model.policy, spec, np.zeros(spec.obs_dim), np.ones(spec.obs_dim))


def _train_ddpg(
    env: Env, spec: PolicySpec, choice: DdpgChoice, gamma: float, protocol: _Protocol
) -> dict[str, Any]:
    from stable_baselines3.common.callbacks import BaseCallback

    steps = protocol.steps

    class Evaluate(BaseCallback):
        """Measures after the updates that belong to a step, if there are any."""

        def _measure(self) -> None:
            protocol.visit(self.model.num_timesteps, lambda: ddpg_policy(model, spec))

        def _on_step(self) -> bool:
            step = self.num_timesteps
            updates_follow = step % _UPDATE_EVERY == 0
            if not updates_follow:
                self._measure()
            return updates_follow or step < steps

        def _on_rollout_start(self) -> None:
            self._measure()

        def _on_training_end(self) -> None:
            self._measure()

    model = make_ddpg(env, spec.hidden, choice, gamma=gamma, steps=steps, seed=protocol.seed)
    model.learn(steps, callback=Evaluate())
    return {
        "lr_policy": choice.lr_policy,
        "lr_critic": choice.lr_critic,
        "noise": choice.noise,
        "gamma": gamma,
        "reward": "raw",
        "normalization": "none",
        "critic_hidden": list(PRESET.hidden),
        "batch_size": model.batch_size,
        "buffer_size": model.buffer_size,
        "update_every": _UPDATE_EVERY,
        "updates": model.gradient_steps,
        "polyak": DDPG_POLYAK,
        "random_steps": model.learning_starts,
    }


class WithoutSurvival(gym.Wrapper[Any, Any, Any, Any]):
    """Takes the survival bonus that an environment reports out of its reward."""

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step and subtract ``info["reward_survive"]``."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) - info.get("reward_survive", 0.0), terminated, truncated, info


def make_ars(env: Env, hidden: tuple[int, ...], choice: ArsChoice, *, seed: int) -> ARS:
    """Return sb3-contrib's ARS, untrained, as ARSv2-t with the paper's settings.

    What the library lacks is added: observation statistics that are frozen within a batch of
    episodes, so that the two episodes of a direction are compared fairly, and the authors' step,
    which divides by the population standard deviation of the elite returns.

    Raises:
        UsageError: Discrete actions that do not start at 0.
    """
    import torch
    from sb3_contrib import ARS
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.running_mean_std import RunningMeanStd
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    class FrozenInBatch(VecNormalize):
        frozen: RunningMeanStd

        def __init__(self, inner: DummyVecEnv) -> None:
            super().__init__(inner, norm_reward=False, clip_obs=math.inf)
            self.freeze()

        def freeze(self) -> None:
            assert isinstance(self.obs_rms, RunningMeanStd)
            self.frozen = self.obs_rms.copy()

        def _normalize_obs(self, obs: NDArray[Any], obs_rms: RunningMeanStd) -> NDArray[Any]:  # noqa: ARG002
            return super()._normalize_obs(obs, self.frozen)

    class ArsV2(ARS):
        def evaluate_candidates(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            returns = super().evaluate_candidates(*args, **kwargs)
            normalize.freeze()
            return returns

    space = env.action_space
    if isinstance(space, gym.spaces.Discrete) and space.start != 0:
        raise UsageError(f"sb3-contrib's ARS needs actions that start at 0, not at {space.start}")
    # The library's standard deviation is that of a sample: 2 * elite returns, one degree less.
    elite = 2 * choice.elite
    normalize = FrozenInBatch(DummyVecEnv([lambda: env]))
    model = ArsV2(
        "MlpPolicy",
        normalize,
        n_delta=choice.directions,
        n_top=choice.elite,
        learning_rate=choice.lr * math.sqrt(elite / (elite - 1)),
        delta_std=choice.noise,
        zero_policy=True,
        policy_kwargs={"net_arch": list(hidden), "activation_fn": torch.nn.Tanh},
        seed=seed,
        device="cpu",
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def ars_policy(model: ARS, spec: PolicySpec) -> Policies:
    """Return the policy that ARS perturbs now, with the statistics in force.

    Raises:
        DivergedError: Its parameters are not finite.
    """
    normalize: Any = model.get_vec_normalize_env()
    std = np.sqrt(normalize.frozen.var + normalize.epsilon)
    # The library keeps its policy's parameters equal to the weights that it perturbs.
    return sb3_policies(model.policy, spec, normalize.frozen.mean, std)


def _train_ars(
    env: Env, spec: PolicySpec, choice: ArsChoice, reward: str, protocol: _Protocol
) -> dict[str, Any]:
    from stable_baselines3.common.callbacks import BaseCallback

    class Evaluate(BaseCallback):
        """Measures the policy in force, which is the one before the update under way."""

        def _on_step(self) -> bool:
            step = self.num_timesteps
            protocol.visit(step, lambda: ars_policy(model, spec))
            if step == protocol.steps:
                raise _FinishedError
            return True

    trained = WithoutSurvival(env) if reward == "without-survival" else env
    model = make_ars(trained, spec.hidden, choice, seed=protocol.seed)
    with contextlib.suppress(_FinishedError):
        model.learn(protocol.steps, callback=Evaluate())
    return {
        "lr": choice.lr,
        "directions": choice.directions,
        "elite": choice.elite,
        "noise": choice.noise,
        "normalization": "batch",
    }

"""What Gymnasium's MuJoCo environments compute from the simulator, for many simulations at once.

A task repeats the arithmetic of one environment's ``step``, in its order and precision, with a
first axis over B simulations. Resets are left to Gymnasium. A new environment is a subclass of
:class:`Task`, its line in :data:`TASKS`, and its line in ``tests/rollout/test_native.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]


class State(Protocol):
    """Fields of ``mujoco.MjData``, each with a first axis B.

    There are those that a task names in :attr:`Task.fields`, and always the first two.
    """

    qpos: F64
    qvel: F64
    xpos: F64
    site_xpos: F64
    qfrc_constraint: F64
    cfrc_ext: F64


@dataclass(frozen=True)
class Outcome:
    """What a step came to: rewards (B,); bonuses (B,) and ends (B,) where the task has them."""

    rewards: NDArray[Any]
    survive: NDArray[Any] | None = None
    terminated: Bools | None = None


class Task:
    """The arithmetic of one environment.

    Args:
        env: The environment as Gymnasium built it, without wrappers.
        values: Its arguments, with the defaults of those not given.

    Attributes:
        parameters: Names of the arguments that the arithmetic reads.
        fields: Fields of ``mujoco.MjData`` that it reads beside ``qpos`` and ``qvel``.
        contact_forces: Whether it reads ``cfrc_ext``, which takes a call for each simulation.
    """

    parameters: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[tuple[str, ...]] = ()
    contact_forces: ClassVar[bool] = False

    def __init__(self, env: Any, values: Mapping[str, Any]) -> None:
        self._given = SimpleNamespace(**{name: values[name] for name in self.parameters})
        self._dt = env.dt

    def position(self, state: State) -> F64:
        """Return the positions (B,) of which rewards take differences."""
        return np.zeros(len(state.qpos))

    def observe(self, state: State, out: F64) -> None:
        """Write observations to ``out`` (B, obs_dim)."""
        raise NotImplementedError

    def judge(self, state: State, moved: F64, actions: NDArray[Any]) -> Outcome:
        """Return what a step came to.

        Args:
            state: After the step.
            moved: (B,) by how much its position changed.
            actions: (B, act_dim), as the environment received them.
        """
        raise NotImplementedError


class _Runner(Task):
    """Reward for moving along x, less the cost of actions; some end by falling."""

    parameters: ClassVar[tuple[str, ...]] = (
        "forward_reward_weight",
        "ctrl_cost_weight",
        "exclude_current_positions_from_observation",
    )
    skipped: ClassVar[int] = 1
    clipped: ClassVar[bool] = False

    def position(self, state: State) -> F64:
        """Return the x positions of the root."""
        return state.qpos[:, 0].copy()

    def observe(self, state: State, out: F64) -> None:
        """Write positions, those along the plane hidden, and velocities."""
        hidden = self._given.exclude_current_positions_from_observation
        positions = state.qpos[:, self.skipped :] if hidden else state.qpos
        middle, velocities = positions.shape[1], state.qvel
        end = middle + velocities.shape[1]
        out[:, :middle] = positions
        if self.clipped:
            np.clip(velocities, -10, 10, out=out[:, middle:end])
        else:
            out[:, middle:end] = velocities

    def judge(self, state: State, moved: F64, actions: NDArray[Any]) -> Outcome:  # noqa: ARG002
        """Return the reward for the speed along x, less the cost of the actions."""
        return Outcome(self._forward(moved) - self._cost(actions))

    def _forward(self, moved: F64) -> F64:
        forward: F64 = self._given.forward_reward_weight * (moved / self._dt)
        return forward

    def _cost(self, actions: NDArray[Any]) -> NDArray[Any]:
        cost: NDArray[Any] = self._given.ctrl_cost_weight * np.square(actions).sum(axis=1)
        return cost


class Swimmer(_Runner):
    """Swimmer-v5."""

    skipped = 2


class HalfCheetah(_Runner):
    """HalfCheetah-v5."""


class _Faller(_Runner):
    """A runner with a bonus for every step after which it is healthy."""

    parameters: ClassVar[tuple[str, ...]] = (
        *_Runner.parameters,
        "healthy_reward",
        "terminate_when_unhealthy",
        "healthy_z_range",
    )

    def judge(self, state: State, moved: F64, actions: NDArray[Any]) -> Outcome:
        """Return that reward with the bonus of the healthy, and who fell."""
        healthy = self._healthy(state)
        survive = healthy * self._given.healthy_reward
        rewards = self._forward(moved) + survive - self._costs(state, actions)
        ends = ~healthy if self._given.terminate_when_unhealthy else None
        return Outcome(rewards, survive, ends)

    def _healthy(self, state: State) -> Bools:
        raise NotImplementedError

    def _costs(self, state: State, actions: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG002
        return self._cost(actions)


class Walker2d(_Faller):
    """Walker2d-v5."""

    parameters: ClassVar[tuple[str, ...]] = (*_Faller.parameters, "healthy_angle_range")
    clipped = True

    def _healthy(self, state: State) -> Bools:
        given = self._given
        return _between(state.qpos[:, 1], *given.healthy_z_range) & _between(
            state.qpos[:, 2], *given.healthy_angle_range
        )


class Hopper(Walker2d):
    """Hopper-v5."""

    parameters: ClassVar[tuple[str, ...]] = (*Walker2d.parameters, "healthy_state_range")

    def _healthy(self, state: State) -> Bools:
        bounds = self._given.healthy_state_range
        inside = super()._healthy(state)
        inside &= _between(state.qpos[:, 2:], *bounds).all(axis=1)
        inside &= _between(state.qvel, *bounds).all(axis=1)
        return inside


class Ant(_Faller):
    """Ant-v5."""

    parameters: ClassVar[tuple[str, ...]] = (
        *_Faller.parameters,
        "contact_cost_weight",
        "main_body",
        "contact_force_range",
        "include_cfrc_ext_in_observation",
    )
    fields = ("xpos",)
    contact_forces = True
    skipped = 2

    def __init__(self, env: Any, values: Mapping[str, Any]) -> None:
        super().__init__(env, values)
        self._body = env.model.body(values["main_body"]).id

    def position(self, state: State) -> F64:
        """Return the x positions of the main body."""
        return state.xpos[:, self._body, 0].copy()

    def observe(self, state: State, out: F64) -> None:
        """Write positions, velocities and the contact forces on the bodies."""
        super().observe(state, out)
        if self._given.include_cfrc_ext_in_observation:
            forces = self._forces(state)[:, 1:].reshape(len(out), -1)
            out[:, out.shape[1] - forces.shape[1] :] = forces

    def _forces(self, state: State) -> F64:
        least, most = self._given.contact_force_range
        forces: F64 = np.clip(state.cfrc_ext, least, most)
        return forces

    def _healthy(self, state: State) -> Bools:
        least, most = self._given.healthy_z_range
        finite = np.isfinite(state.qpos).all(axis=1) & np.isfinite(state.qvel).all(axis=1)
        healthy: Bools = finite & (least <= state.qpos[:, 2]) & (state.qpos[:, 2] <= most)
        return healthy

    def _costs(self, state: State, actions: NDArray[Any]) -> NDArray[Any]:
        squares = np.square(self._forces(state)).reshape(len(actions), -1)
        contact = self._given.contact_cost_weight * squares.sum(axis=1)
        costs: NDArray[Any] = self._cost(actions) + contact
        return costs


class InvertedPendulum(Task):
    """InvertedPendulum-v5."""

    def observe(self, state: State, out: F64) -> None:
        """Write positions and velocities."""
        out[:, :2] = state.qpos
        out[:, 2:] = state.qvel

    def judge(self, state: State, moved: F64, actions: NDArray[Any]) -> Outcome:  # noqa: ARG002
        """Return 1 for every pole that is nearly upright; the others end."""
        finite = np.isfinite(state.qpos).all(axis=1) & np.isfinite(state.qvel).all(axis=1)
        ends = ~finite | (np.abs(state.qpos[:, 1]) > 0.2)
        rewards = (~ends).astype(np.float64)
        return Outcome(rewards, rewards, ends)


class InvertedDoublePendulum(Task):
    """InvertedDoublePendulum-v5."""

    parameters: ClassVar[tuple[str, ...]] = ("healthy_reward",)
    fields = ("site_xpos", "qfrc_constraint")

    def observe(self, state: State, out: F64) -> None:
        """Write the cart, the angles as sine and cosine, velocities and its constraint force."""
        out[:, 0] = state.qpos[:, 0]
        np.sin(state.qpos[:, 1:], out=out[:, 1:3])
        np.cos(state.qpos[:, 1:], out=out[:, 3:5])
        np.clip(state.qvel, -10, 10, out=out[:, 5:8])
        np.clip(state.qfrc_constraint[:, 0], -10, 10, out=out[:, 8])

    def judge(self, state: State, moved: F64, actions: NDArray[Any]) -> Outcome:  # noqa: ARG002
        """Return the bonus, less the tip's distance from its place and the poles' speed."""
        x, y = state.site_xpos[:, 0, 0], state.site_xpos[:, 0, 2]
        ends = y <= 1
        distance = 0.01 * _squares(x) + _squares(y - 2)
        speed = 1e-3 * _squares(state.qvel[:, 1]) + 5e-3 * _squares(state.qvel[:, 2])
        survive = self._given.healthy_reward * (~ends).astype(np.int64)
        return Outcome(survive - distance - speed, survive, ends)


class Reacher(Task):
    """Reacher-v5."""

    parameters: ClassVar[tuple[str, ...]] = ("reward_dist_weight", "reward_control_weight")
    fields = ("xpos",)

    def __init__(self, env: Any, values: Mapping[str, Any]) -> None:
        super().__init__(env, values)
        self._tip, self._target = (env.model.body(name).id for name in ("fingertip", "target"))

    def _to_target(self, state: State) -> F64:
        return state.xpos[:, self._tip] - state.xpos[:, self._target]

    def observe(self, state: State, out: F64) -> None:
        """Write the angles as cosine and sine, the target, velocities, and the way there."""
        np.cos(state.qpos[:, :2], out=out[:, :2])
        np.sin(state.qpos[:, :2], out=out[:, 2:4])
        out[:, 4:6] = state.qpos[:, 2:]
        out[:, 6:8] = state.qvel[:, :2]
        out[:, 8:] = self._to_target(state)[:, :2]

    def judge(self, state: State, moved: F64, actions: NDArray[Any]) -> Outcome:  # noqa: ARG002
        """Return the negative distance to the target, less the cost of the actions."""
        given, away = self._given, self._to_target(state)
        # A dot product a row, as in the norm of one vector.
        distance = -np.sqrt(np.vecdot(away, away)) * given.reward_dist_weight
        return Outcome(distance - np.square(actions).sum(axis=1) * given.reward_control_weight)


def _between(values: F64, low: float, high: float) -> Bools:
    inside: Bools = (low < values) & (values < high)
    return inside


def _squares(values: F64) -> F64:
    """Return squares as numpy computes those of single numbers, by its power function."""
    return np.array([value**2 for value in values])


_FOLDER: Final = "gymnasium.envs.mujoco"
TASKS: Final[Mapping[str, type[Task]]] = {
    f"{_FOLDER}.ant_v5:AntEnv": Ant,
    f"{_FOLDER}.half_cheetah_v5:HalfCheetahEnv": HalfCheetah,
    f"{_FOLDER}.hopper_v5:HopperEnv": Hopper,
    f"{_FOLDER}.inverted_double_pendulum_v5:InvertedDoublePendulumEnv": InvertedDoublePendulum,
    f"{_FOLDER}.inverted_pendulum_v5:InvertedPendulumEnv": InvertedPendulum,
    f"{_FOLDER}.reacher_v5:ReacherEnv": Reacher,
    f"{_FOLDER}.swimmer_v5:SwimmerEnv": Swimmer,
    f"{_FOLDER}.walker2d_v5:Walker2dEnv": Walker2d,
}
"""The task of each environment, by the entry point that Gymnasium registers."""

"""The replay buffer against a plain list of everything that was ever added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, discrete_spec
from pbvf_offline.errors import DamagedError
from pbvf_offline.online.replay import INITIAL, RECENT, Replay, Steps
from pbvf_offline.policies.batch import to_unit
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec

CPU = torch.device("cpu")
GAMMA = 0.9
BOX = box_spec(2, (3,), 2, -1.0, 4.0)
SPECS = {
    "box": BOX,
    "linear": box_spec(3, (), 1, squash="none", low=-50.0, high=50.0),
    "stochastic box": box_spec(2, (3,), 2, -1.0, 4.0, stochastic=True),
    "discrete": discrete_spec(2, n=3, start=5),
    "stochastic discrete": discrete_spec(2, (3,), n=3, start=5, stochastic=True),
}
specs = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())


def buffer(spec: PolicySpec = BOX, capacity: int = 10, **kwargs: Any) -> Replay:
    values: dict[str, Any] = {"gamma": GAMMA, "monte_carlo": False, "obs_dtype": "float64"}
    return Replay(spec, capacity=capacity, device=CPU, **{**values, **kwargs})


def policy(spec: PolicySpec, rng: np.random.Generator) -> Policies:
    """A policy with a normaliser of its own."""
    theta = rng.normal(0, 0.5, (1, spec.size)).astype(np.float32)
    mean, std = rng.normal(0, 1, (1, spec.obs_dim)), rng.uniform(0.5, 2, (1, spec.obs_dim))
    return Policies(spec, theta, mean, std)


def random_normaliser(spec: PolicySpec, rng: np.random.Generator) -> Normaliser:
    return Normaliser(rng.normal(0, 1, spec.obs_dim), rng.uniform(0.5, 2, spec.obs_dim))


def random_steps(
    spec: PolicySpec, n: int, rng: np.random.Generator, *, terminated: bool = False, **kwargs: Any
) -> Steps:
    if spec.is_continuous:
        action: Any = rng.uniform(-1, 4, (n, spec.actions.dim)).astype(np.float32)
    else:
        action = rng.integers(5, 8, n)
    pre = rng.normal(0, 1, (n, spec.actions.dim))
    return Steps(
        obs=rng.normal(0, 1, (n, spec.obs_dim)),
        next_obs=rng.normal(0, 1, (n, spec.obs_dim)),
        action=action,
        reward=rng.normal(0, 1, n),
        terminated=terminated,
        pre_action=pre if spec.stochastic and spec.is_continuous else None,
        **kwargs,
    )


@dataclass
class Model:
    """What a replay of steps must hold: everything, of which the last ``capacity`` count."""

    spec: PolicySpec
    capacity: int
    entries: list[dict[str, Any]] = field(default_factory=list)

    def add(self, acting: Policies, steps: Steps) -> None:
        n = len(steps.reward)
        for k in range(n):
            entry: dict[str, Any] = {
                "acting": acting,
                "obs": steps.obs[k],
                "next_obs": steps.next_obs[k],
                "action": steps.action[k],
                "reward": steps.reward[k],
                "discount": 0.0 if steps.terminated and k == n - 1 else GAMMA,
                "pre": None if steps.pre_action is None else steps.pre_action[k],
            }
            if steps.shown is not None:
                entry["shown"] = (steps.shown[0][k], steps.shown[1][k])
            self.entries.append(entry)

    def slots(self) -> dict[int, dict[str, Any]]:
        """Entries by their place in the ring."""
        kept = {}
        for k, entry in enumerate(self.entries):
            kept[k % self.capacity] = entry  # later ones overwrite
        return kept

    def check(self, replay: Replay, normaliser: Normaliser) -> None:
        """Compare every entry as the critics see it."""
        slots, batch, spec = self.slots(), replay.training_set(), self.spec
        assert len(replay) == len(batch) == len(slots)
        assert batch.entry.tolist() == list(range(len(slots)))
        assert batch.obs is not None
        assert batch.obs_row is not None
        assert batch.boot_row is not None
        for at, entry in slots.items():
            theta = batch.theta[batch.policy[at]]
            want = entry["acting"].in_normaliser(normaliser.mean, normaliser.std)[0]
            assert np.array_equal(theta.numpy(), want), at
            for rows, name in ((batch.obs_row, "obs"), (batch.boot_row, "next_obs")):
                seen = normaliser.apply(entry[name]).astype(np.float32)
                assert np.array_equal(batch.obs[rows[at]].numpy(), seen), (at, name)
            assert batch.value[at].item() == np.float32(entry["reward"])
            assert batch.discount[at].item() == np.float32(entry["discount"])
            if spec.is_continuous:
                unit = to_unit(spec, torch.from_numpy(entry["action"].astype(float))).float()
                assert torch.equal(batch.action[at], unit)
            else:
                assert batch.action[at].tolist() == [float(a == entry["action"]) for a in (5, 6, 7)]
            if not spec.stochastic:
                assert batch.sample is None
            elif spec.is_continuous:
                assert np.array_equal(batch.sample[at].numpy(), entry["pre"].astype(np.float32))
            else:
                assert batch.sample[at].item() == entry["action"] - 5
        assert np.array_equal(replay.observations, [slots[k]["obs"] for k in range(len(slots))])


# --- a ring of steps ------------------------------------------------------------------------


@specs
@pytest.mark.parametrize("capacity", [1, 7, 40])
def test_like_a_list_of_everything(spec: PolicySpec, capacity: int) -> None:
    rng = np.random.default_rng(0)
    replay, model = buffer(spec, capacity), Model(spec, capacity)
    normaliser = Normaliser.identity(spec.obs_dim)
    returns: list[float] = []
    for _ in range(60):
        acting = policy(spec, rng)
        row = replay.begin(acting, rng.normal(0, 1, spec.obs_dim))
        pieces = int(rng.integers(1, 4))
        for piece in range(pieces):
            ends = bool(rng.integers(2)) and piece == pieces - 1
            steps = random_steps(spec, int(rng.integers(1, 3 * capacity)), rng, terminated=ends)
            replay.add_steps(row, steps)
            model.add(acting, steps)
        if rng.integers(4) == 0:
            model.check(replay, normaliser)
        returns.append(float(rng.normal()))
        replay.finish(row, returns[-1])
        if rng.integers(3) == 0:
            normaliser = random_normaliser(spec, rng)
            replay.renormalise(normaliser)
    model.check(replay, normaliser)
    assert len(model.entries) > 2 * capacity
    assert {entry["discount"] for entry in model.entries} == {0.0, GAMMA}


def test_by_hand() -> None:
    # Four places; five steps, then two: the oldest three are gone.
    spec = box_spec(1, squash="none", low=-50.0, high=50.0)
    rng = np.random.default_rng(0)
    replay = buffer(spec, 4)

    def steps(*numbers: float, terminated: bool = False) -> Steps:
        column = np.array(numbers)[:, None]
        return Steps(column, column + 0.5, column * 10, np.array(numbers) * 100, terminated)

    first, second = policy(spec, rng), policy(spec, rng)
    replay.add_steps(replay.begin(first, np.zeros(1)), steps(1, 2, 3))
    assert len(replay) == 3
    row = replay.begin(second, np.zeros(1))
    replay.add_steps(row, steps(4, 5))
    replay.add_steps(row, steps(6, 7, terminated=True))
    batch = replay.training_set()
    assert batch.value.tolist() == [500, 600, 700, 400]
    assert batch.discount.tolist() == pytest.approx([0.9, 0.9, 0.0, 0.9])
    assert batch.action[:, 0].tolist() == [50, 60, 70, 40]
    assert batch.obs[batch.obs_row, 0].tolist() == [5, 6, 7, 4]
    assert batch.obs[batch.boot_row, 0].tolist() == [5.5, 6.5, 7.5, 4.5]
    assert batch.policy.tolist() == [row] * 4


# --- policies -------------------------------------------------------------------------------


def test_policies_survive_growth_and_dropping() -> None:
    rng = np.random.default_rng(4)
    spec = box_spec(2)
    replay, model = buffer(spec, 20), Model(spec, 20)
    returns: dict[bytes, float] = {}
    most = 0
    for episode in range(1100):
        # For a while many short episodes, then fewer long ones, so that rows come and go.
        acting = policy(spec, rng)
        row = replay.begin(acting, np.zeros(2))
        steps = random_steps(spec, 1 if episode < 700 else 3, rng)
        replay.add_steps(row, steps)
        model.add(acting, steps)
        total = float(rng.normal())
        if episode % 3:
            replay.finish(row, total)
            returns[acting.theta.tobytes()] = total
        most = max(most, len(replay.policies()[0]))
        if episode % 15 == 0:
            normaliser = random_normaliser(spec, rng)
            replay.renormalise(normaliser)
            model.check(replay, normaliser)
    policies, totals = replay.policies()
    assert len(policies) <= 7  # 20 entries of 3 steps each: those that left are forgotten …
    assert 10 < most <= 21
    for k in range(len(policies)):
        assert totals[k] == returns[policies.theta[k].tobytes()]
    there = {theta.tobytes() for theta in policies.theta}
    for entry in model.slots().values():  # … and those of entries are not
        key = entry["acting"].theta.tobytes()
        assert (key in there) == (key in returns)


def test_a_buffer_of_many_policies_grows() -> None:
    rng = np.random.default_rng(5)
    spec = box_spec(1)
    replay, model = buffer(spec, 700), Model(spec, 700)
    for _ in range(650):
        acting = policy(spec, rng)
        steps = random_steps(spec, 1, rng)
        replay.add_steps(replay.begin(acting, np.zeros(1)), steps)
        model.add(acting, steps)
    model.check(replay, Normaliser.identity(1))
    normaliser = random_normaliser(spec, rng)
    replay.renormalise(normaliser)
    model.check(replay, normaliser)


def test_policies_before_and_after_the_first_episode_ended() -> None:
    rng = np.random.default_rng(6)
    replay = buffer(BOX)
    one, two = policy(BOX, rng), policy(BOX, rng)
    first = replay.begin(one, np.zeros(2))
    policies, returns = replay.policies()
    assert np.array_equal(policies.theta, one.theta)
    assert returns.tolist() == [0.0]
    replay.finish(first, -3.5)
    replay.begin(two, np.zeros(2))
    policies, returns = replay.policies()  # the second is still under way
    assert np.array_equal(policies.theta, one.theta)
    assert np.array_equal(policies.obs_mean, one.obs_mean)
    assert np.array_equal(policies.obs_std, one.obs_std)
    assert returns.tolist() == [-3.5]
    # An episode that fills the buffer alone: only its policy is there.
    replay.add_steps(1, random_steps(BOX, 12, rng))
    policies, returns = replay.policies()
    assert np.array_equal(policies.theta, two.theta)
    assert returns.tolist() == [0.0]


def test_first_observations_are_kept_in_a_ring() -> None:
    replay = buffer(box_spec(1), 5)
    acting = policy(box_spec(1), np.random.default_rng(0))
    assert replay.initial_observations.shape == (0, 1)
    for k in range(INITIAL + 30):
        replay.begin(acting, np.array([float(k)]))
        if k == 2:
            assert replay.initial_observations[:, 0].tolist() == [0, 1, 2]
    kept = replay.initial_observations[:, 0]
    assert sorted(kept.tolist()) == list(range(30, INITIAL + 30))


# --- as stored ------------------------------------------------------------------------------


def test_as_stored_shows_what_was_seen_then() -> None:
    rng = np.random.default_rng(7)
    replay = buffer(BOX, 6, as_stored=True)
    seen: list[tuple[Any, Any, Any]] = []
    for _ in range(5):
        acting = policy(BOX, rng)
        row = replay.begin(acting, np.zeros(2))
        shown = (rng.normal(0, 1, (4, 2)), rng.normal(0, 1, (4, 2)))
        replay.add_steps(row, random_steps(BOX, 4, rng, shown=shown))
        seen += [(acting.theta[0], a, b) for a, b in zip(*shown, strict=True)]
        replay.renormalise(random_normaliser(BOX, rng))
    batch = replay.training_set()
    slots = {k % 6: entry for k, entry in enumerate(seen)}
    for at, (theta, obs, next_obs) in slots.items():
        assert np.array_equal(batch.theta[batch.policy[at]].numpy(), theta)
        got = batch.obs[torch.stack([batch.obs_row[at], batch.boot_row[at]])]
        assert np.array_equal(got.numpy(), np.stack([obs, next_obs]).astype(np.float32))


# --- whole episodes -------------------------------------------------------------------------


def test_entries_of_whole_episodes() -> None:
    rng = np.random.default_rng(8)
    spec = box_spec(2)
    replay = buffer(spec, 5, monte_carlo=True)
    model: list[tuple[Policies, float]] = []
    for k in range(400):
        acting = policy(spec, rng)
        row = replay.begin(acting, np.zeros(2))
        if k % 7 == 3:
            continue  # an episode that never ended
        value, total = rng.normal(0, 1, 2)
        replay.finish(row, float(total), float(value))
        model.append((acting, value))
        assert len(replay) == min(len(model), 5)
    normaliser = random_normaliser(spec, rng)
    replay.renormalise(normaliser)
    batch = replay.training_set()
    assert batch.obs is batch.discount is batch.action is None
    slots = {k % 5: entry for k, entry in enumerate(model)}
    for at, (acting, value) in slots.items():
        assert batch.value[at].item() == np.float32(value)
        want = acting.in_normaliser(normaliser.mean, normaliser.std)[0]
        assert np.array_equal(batch.theta[batch.policy[at]].numpy(), want)


def test_recent_observations_are_remembered() -> None:
    replay = buffer(box_spec(1), 3, monte_carlo=True)
    assert replay.observations.shape == (0, 1)
    total = 0
    for n in (1, 4000, 5998, 1, 3, RECENT + 5, 2, RECENT):
        replay.see(np.arange(total, total + n, dtype=float)[:, None])
        total += n
        kept = replay.observations[:, 0]
        first = max(0, total - RECENT)
        assert sorted(kept.tolist()) == list(range(first, total))


# --- state and restore ----------------------------------------------------------------------


def state_of(replay: Replay) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state, with copies in the place of views."""
    numbers, arrays = replay.state()
    return numbers, {name: array.copy() for name, array in arrays.items()}


def assert_equal_states(one: Replay, other: Replay) -> None:
    numbers, arrays = one.state()
    others, other_arrays = other.state()
    assert numbers == others
    assert set(arrays) == set(other_arrays)
    for name, array in arrays.items():
        assert array.dtype == other_arrays[name].dtype, name
        assert array.tobytes() == other_arrays[name].tobytes(), name
    a, b = one.training_set(), other.training_set()
    rows, size = int(numbers["rows"]), len(one)
    assert torch.equal(a.theta[:rows], b.theta[:rows])
    if a.obs is not None:
        shown = torch.cat([a.obs_row[:size], a.boot_row[:size]])
        assert torch.equal(a.obs[shown], b.obs[shown])


def go_on(replay: Replay, seed: int, episodes: int, longest: int) -> None:
    """Add episodes that depend on the seed alone."""
    rng = np.random.default_rng(seed)
    spec = replay.spec
    for _ in range(episodes):
        row = replay.begin(policy(spec, rng), rng.normal(0, 1, spec.obs_dim))
        n = int(rng.integers(1, longest + 1))
        if replay.monte_carlo:
            replay.see(rng.normal(0, 1, (n, spec.obs_dim)))
            replay.finish(row, float(rng.normal()), float(rng.normal()))
        else:
            shown = None
            if replay.as_stored:
                shown = (rng.normal(0, 1, (n, spec.obs_dim)), rng.normal(0, 1, (n, spec.obs_dim)))
            ends = bool(rng.integers(2))
            replay.add_steps(row, random_steps(spec, n, rng, terminated=ends, shown=shown))
            replay.finish(row, float(rng.normal()))
        if rng.integers(3) == 0:
            replay.renormalise(random_normaliser(spec, rng))


@specs
@pytest.mark.parametrize("how", ["steps", "as stored", "episodes"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_restored_buffer_goes_on_like_the_original(
    spec: PolicySpec, how: str, dtype: str
) -> None:
    kwargs = {"as_stored": how == "as stored", "monte_carlo": how == "episodes"}
    for episodes in (0, 6, 40):
        replay = buffer(spec, 25, obs_dtype=dtype, **kwargs)
        go_on(replay, episodes, episodes, 4)
        normaliser = random_normaliser(spec, np.random.default_rng(episodes))
        replay.renormalise(normaliser)
        restored = buffer(spec, 25, obs_dtype=dtype, **kwargs)
        restored.restore(*state_of(replay), normaliser)
        assert_equal_states(replay, restored)
        for other in (replay, restored):
            go_on(other, 100 + episodes, 12, 4)
        assert_equal_states(replay, restored)


def test_which_policies_are_forgotten_does_not_depend_on_an_interruption() -> None:
    # Many short episodes first: room for many policies. Then long ones: few are needed.
    spec = box_spec(1)
    replay = buffer(spec, 400)
    go_on(replay, 1, 520, 1)
    go_on(replay, 2, 40, 20)
    for more in (0, 150, 300):
        go_on(replay, more, more, 20)
        normaliser = random_normaliser(spec, np.random.default_rng(3))
        replay.renormalise(normaliser)
        restored = buffer(spec, 400)
        restored.restore(*state_of(replay), normaliser)
        for other in (replay, restored):
            go_on(other, 5, 500, 20)
        assert_equal_states(replay, restored)


@pytest.mark.parametrize("name", ["policy_theta", "obs", "next_obs", "policy", "discount"])
def test_a_malformed_state_is_damage(name: str) -> None:
    replay = buffer(BOX, 10)
    go_on(replay, 0, 5, 3)
    numbers, arrays = state_of(replay)
    normaliser = Normaliser.identity(2)
    with pytest.raises(DamagedError, match="replay"):
        buffer(BOX, 10).restore(numbers, {k: v for k, v in arrays.items() if k != name}, normaliser)
    short = {**arrays, name: arrays[name][: len(arrays[name]) // 2]}
    with pytest.raises(DamagedError, match="replay"):
        buffer(BOX, 10).restore(numbers, short, normaliser)

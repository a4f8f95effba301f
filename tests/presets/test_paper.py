from __future__ import annotations

import subprocess
import sys
from itertools import product
from typing import Any

import pytest

from pbvf_offline.critics import CRITICS, OnlinePreset
from pbvf_offline.errors import UsageError
from pbvf_offline.presets.paper import (
    BUFFER_SIZE,
    DDPG,
    DDPG_POLYAK,
    DDPG_STARTING_FRACTION,
    GRIDS,
    PBVFS,
    TODAY,
    ArsChoice,
    DdpgChoice,
    PaperChoice,
    ars_choice,
    ddpg_choice,
    env_family,
    paper_choice,
    paper_steps,
)

LINEAR, SHALLOW, DEEP = (), (32,), (64, 64)
ARCHITECTURES = (LINEAR, SHALLOW, DEEP)
METRICS = ("avg", "last")
CONTINUOUS = ("MountainCarContinuous", "Swimmer", "InvertedPendulum", "Reacher", "Hopper")


def has_paper_choice(*asked: Any, **how: Any) -> bool:
    try:
        paper_choice(*asked, **how)
    except UsageError:
        return False
    return True


# Read off the paper cell by cell: learning rate of the policy, of the critic, sigma.
DETERMINISTIC = [
    ("pssvf", "Acrobot", LINEAR, "avg", 1e-2, 1e-2, 1.0),
    ("pssvf", "Acrobot", LINEAR, "last", 1e-3, 1e-3, 1.0),
    ("pssvf", "Acrobot", DEEP, "last", 1e-4, 1e-2, 0.1),
    ("pssvf", "MountainCarContinuous", LINEAR, "last", 1e-3, 1e-2, 1.0),
    ("pssvf", "CartPole", SHALLOW, "avg", 1e-3, 1e-3, 1.0),
    ("pssvf", "Swimmer", LINEAR, "avg", 1e-3, 1e-3, 1.0),
    ("pssvf", "Swimmer", DEEP, "avg", 1e-2, 1e-3, 1.0),
    ("pssvf", "Swimmer", DEEP, "last", 1e-4, 1e-2, 0.1),
    ("pssvf", "InvertedPendulum", SHALLOW, "last", 1e-3, 1e-2, 1.0),
    ("pssvf", "Reacher", SHALLOW, "avg", 1e-4, 1e-3, 0.1),
    ("pssvf", "Hopper", LINEAR, "avg", 1e-4, 1e-3, 1.0),
    ("pssvf", "Hopper", SHALLOW, "last", 1e-3, 1e-2, 1.0),
    ("pssvf", "Hopper", DEEP, "last", 1e-4, 1e-2, 0.1),
    ("psvf", "Acrobot", LINEAR, "avg", 1e-2, 1e-3, 1.0),
    ("psvf", "Acrobot", DEEP, "last", 1e-2, 1e-2, 0.1),
    ("psvf", "MountainCarContinuous", SHALLOW, "last", 1e-4, 1e-4, 1.0),
    ("psvf", "CartPole", SHALLOW, "last", 1e-4, 1e-3, 0.1),
    ("psvf", "CartPole", DEEP, "avg", 1e-3, 1e-2, 0.1),
    ("psvf", "Swimmer", DEEP, "avg", 1e-3, 1e-4, 1.0),
    ("psvf", "InvertedPendulum", LINEAR, "last", 1e-3, 1e-2, 1.0),
    ("psvf", "Reacher", LINEAR, "last", 1e-2, 1e-2, 1.0),
    ("psvf", "Hopper", LINEAR, "avg", 1e-3, 1e-2, 1.0),
    ("psvf", "Hopper", DEEP, "last", 1e-3, 1e-4, 1.0),
    ("pavf", "MountainCarContinuous", LINEAR, "avg", 1e-2, 1e-4, 1.0),
    ("pavf", "MountainCarContinuous", LINEAR, "last", 1e-3, 1e-4, 0.1),
    ("pavf", "MountainCarContinuous", DEEP, "last", 1e-4, 1e-3, 0.1),
    ("pavf", "Swimmer", SHALLOW, "avg", 1e-3, 1e-4, 1.0),
    ("pavf", "InvertedPendulum", SHALLOW, "avg", 1e-3, 1e-2, 0.1),
    ("pavf", "Reacher", SHALLOW, "last", 1e-4, 1e-2, 1.0),
    ("pavf", "Hopper", LINEAR, "last", 1e-4, 1e-3, 1.0),
    ("pavf", "Hopper", DEEP, "last", 1e-3, 1e-3, 1.0),
]
STOCHASTIC = [
    ("pssvf", "Acrobot", LINEAR, 1e-2, 1e-2, 1.0),
    ("pssvf", "Acrobot", DEEP, 1e-2, 1e-4, 1.0),
    ("pssvf", "Reacher", DEEP, 1e-3, 1e-3, 0.0),
    ("pssvf", "Hopper", DEEP, 1e-4, 1e-2, 0.1),
    ("psvf", "Acrobot", LINEAR, 1e-2, 1e-4, 1.0),
    ("psvf", "Swimmer", DEEP, 1e-4, 1e-4, 0.1),
    ("psvf", "Reacher", LINEAR, 1e-2, 1e-3, 1.0),
    ("psvf", "Reacher", DEEP, 1e-2, 1e-3, 0.0),
    ("psvf", "Hopper", DEEP, 1e-4, 1e-4, 0.1),
]
BIASED = [
    ("Swimmer", LINEAR, 1e-3, 1e-4, 1.0),
    ("Swimmer", DEEP, 1e-4, 1e-4, 1.0),
    ("Hopper", LINEAR, 1e-4, 1e-3, 0.1),
    ("Hopper", DEEP, 1e-4, 1e-3, 0.1),
]
ARS = [
    ("Acrobot", LINEAR, "avg", 1e-2, 4, 4, 1e-2),
    ("Acrobot", LINEAR, "last", 1e-3, 4, 4, 1e-3),
    ("Acrobot", DEEP, "last", 1e-2, 1, 1, 1e-1),
    ("MountainCarContinuous", SHALLOW, "last", 1e-2, 16, 4, 1e-1),
    ("CartPole", DEEP, "avg", 1e-2, 4, 1, 1e-2),
    ("Swimmer", SHALLOW, "avg", 1e-2, 1, 1, 1e-2),
    ("InvertedPendulum", DEEP, "last", 1e-2, 16, 1, 1e-2),
    ("Reacher", LINEAR, "avg", 1e-2, 16, 16, 1e-2),
    ("Reacher", SHALLOW, "avg", 1e-3, 1, 1, 1e-2),
    ("Hopper", LINEAR, "avg", 1e-2, 4, 1, 1e-1),
    ("Hopper", DEEP, "last", 1e-2, 1, 1, 1e-1),
]
DDPG_CELLS = [
    ("MountainCarContinuous", LINEAR, "avg", 1e-2, 1e-4, 1e-2),
    ("MountainCarContinuous", SHALLOW, "last", 1e-4, 1e-3, 1e-1),
    ("Swimmer", DEEP, "avg", 1e-2, 1e-2, 1e-2),
    ("InvertedPendulum", DEEP, "last", 1e-4, 1e-3, 1e-2),
    ("Reacher", LINEAR, "last", 1e-3, 1e-3, 1e-2),
    ("Hopper", LINEAR, "avg", 1e-2, 1e-3, 1e-1),
    ("Hopper", SHALLOW, "last", 1e-4, 1e-4, 1e-2),
    ("Hopper", DEEP, "last", 1e-2, 1e-4, 1e-2),
]


def test_deterministic_cells() -> None:
    for kind, env, hidden, metric, *values in DETERMINISTIC:
        assert paper_choice(kind, TODAY[env], hidden, metric=metric) == PaperChoice(*values), (
            kind,
            env,
            hidden,
            metric,
        )


def test_stochastic_cells() -> None:
    for kind, env, hidden, *values in STOCHASTIC:
        choice = paper_choice(kind, TODAY[env], hidden, stochastic=True)
        assert choice == PaperChoice(*values), (kind, env, hidden)


def test_biased_cells() -> None:
    for env, hidden, *values in BIASED:
        choice = paper_choice("pavf", TODAY[env], hidden, biased=True)
        assert choice == PaperChoice(*values), (env, hidden)


def test_cells_of_the_baselines() -> None:
    for env, hidden, metric, lr, directions, elite, noise in ARS:
        expected = ArsChoice(lr=lr, directions=directions, elite=elite, noise=noise)
        assert ars_choice(TODAY[env], hidden, metric) == expected, (env, hidden, metric)
    for env, hidden, metric, *values in DDPG_CELLS:
        assert ddpg_choice(TODAY[env], hidden, metric) == DdpgChoice(*values), (env, hidden, metric)


def test_the_paper_has_this_much_and_all_of_it_from_its_grids() -> None:
    found = {"deterministic": 0, "stochastic": 0, "biased": 0}
    for kind, env, hidden, metric in product(PBVFS, TODAY, ARCHITECTURES, METRICS):
        for variant in found:
            asked = {"stochastic": variant == "stochastic", "biased": variant == "biased"}
            if not has_paper_choice(kind, env, hidden, metric=metric, **asked):
                continue
            found[variant] += 1
            choice, grid = paper_choice(kind, env, hidden, metric=metric, **asked), GRIDS[kind]
            assert choice.lr_policy in grid.lr_policy
            assert choice.lr_critic in grid.lr_critic
            sigmas = grid.stochastic_sigma if variant == "stochastic" else grid.sigma
            assert choice.sigma in sigmas
    # PSSVF and PSVF in seven environments, PAVF in five; two critics, two policies; two by two.
    assert found == {"deterministic": 2 * 7 * 6 + 5 * 6, "stochastic": 7 * 2 * 2, "biased": 4}
    for env, hidden, metric in product(TODAY, ARCHITECTURES, METRICS):
        ars, grid = ars_choice(env, hidden, metric), GRIDS["ars"]
        assert ars.lr in grid.lr_policy
        assert ars.noise in grid.sigma
        assert (ars.directions, ars.elite) in grid.directions
    for env, hidden, metric in product(CONTINUOUS, ARCHITECTURES, METRICS):
        ddpg, grid = ddpg_choice(env, hidden, metric), GRIDS["ddpg"]
        assert ddpg.lr_policy in grid.lr_policy
        assert ddpg.lr_critic in grid.lr_critic
        assert ddpg.noise in grid.sigma


def test_grids() -> None:
    for kind in ("pssvf", "psvf", "pavf", "ddpg"):
        assert GRIDS[kind].lr_policy == GRIDS[kind].lr_critic == (0.01, 0.001, 0.0001)
        assert GRIDS[kind].directions == ()
    for kind in ("pssvf", "psvf"):
        assert GRIDS[kind].stochastic_sigma == (1, 0.1, 0)
    assert GRIDS["pavf"].stochastic_sigma == ()
    assert GRIDS["pavf"].sigma == GRIDS["pssvf"].sigma == GRIDS["psvf"].sigma == (1, 0.1)
    assert GRIDS["ddpg"].sigma == (0.1, 0.01)
    assert GRIDS["ars"].sigma == (1, 0.1, 0.01, 0.001)
    assert GRIDS["ars"].lr_policy == (0.01, 0.001, 0.0001)
    assert GRIDS["ars"].lr_critic == ()
    assert GRIDS["ars"].directions == ((1, 1), (4, 1), (4, 4), (16, 1), (16, 4), (16, 16))


def test_what_each_algorithm_uses_everywhere() -> None:
    td = OnlinePreset((512, 512), 128, update_every=50, critic_updates=5, actor_updates=1)
    assert {kind: CRITICS[kind].online for kind in PBVFS} == {
        "pssvf": OnlinePreset((64, 64), 16, None, critic_updates=10, actor_updates=10),
        "psvf": td,
        "pavf": td,
    }
    assert BUFFER_SIZE == 100_000
    assert (DDPG.hidden, DDPG.batch_size, DDPG.update_every) == ((256, 256), 128, 50)
    assert (DDPG.critic_updates, DDPG.actor_updates) == (50, 50)
    assert (DDPG_POLYAK, DDPG_STARTING_FRACTION) == (0.995, 0.01)


def test_steps() -> None:
    steps = {family: paper_steps(env_id) for family, env_id in TODAY.items()}
    assert steps.pop("Swimmer") == steps.pop("Hopper") == 1_000_000
    assert set(steps.values()) == {100_000}
    assert len(steps) == 5
    assert paper_steps("Other-v0") == 100_000


def test_ids_of_any_version_and_module_are_one_family() -> None:
    assert TODAY["Acrobot"] == "Acrobot-v1"
    assert TODAY["MountainCarContinuous"] == "MountainCarContinuous-v0"
    assert TODAY["CartPole"] == "CartPole-v1"
    for family in ("Swimmer", "InvertedPendulum", "Reacher", "Hopper"):
        assert TODAY[family] == f"{family}-v5"
    for family, env_id in TODAY.items():
        assert env_family(env_id) == family
    swimmer = paper_choice("pssvf", "Swimmer-v5", DEEP)
    for name in ("Swimmer", "Swimmer-v3", "my.envs:Swimmer-v10"):
        assert paper_choice("pssvf", name, [64, 64]) == swimmer
        assert paper_steps(name) == 1_000_000
    for name in ("MySwimmer-v5", "lab/Swimmer-v5", "Swimmer-v5:Other-v0", "swimmer-v5", ""):
        assert not has_paper_choice("pssvf", name, DEEP)


PAVF = (
    "it has pavf with deterministic policies on MountainCarContinuous, Swimmer, "
    "InvertedPendulum, Reacher or Hopper, architecture linear, 32 or 64,64, metric avg or last; "
    "biased pavf with deterministic policies on Swimmer or Hopper, "
    "architecture linear or 64,64, metric avg"
)
EVERYWHERE = (
    "on Acrobot, MountainCarContinuous, CartPole, Swimmer, InvertedPendulum, Reacher or Hopper"
)
PSVF = (
    f"it has psvf with deterministic policies {EVERYWHERE}, "
    "architecture linear, 32 or 64,64, metric avg or last; "
    f"psvf with stochastic policies {EVERYWHERE}, architecture linear or 64,64, metric avg"
)


@pytest.mark.parametrize(
    ("asked", "what", "remedy"),
    [
        (
            {"env_id": "CartPole-v1"},
            "pavf with deterministic policies on CartPole-v1, architecture linear, metric avg",
            PAVF,
        ),
        (
            {"biased": True, "env_id": "Reacher-v5", "hidden": DEEP},
            "biased pavf with deterministic policies on Reacher-v5, architecture 64,64, metric avg",
            PAVF,
        ),
        (
            {"biased": True, "stochastic": True},
            "biased pavf with stochastic policies on Swimmer-v5, architecture linear, metric avg",
            PAVF,
        ),
        (
            {"kind": "psvf", "stochastic": True, "metric": "last"},
            "psvf with stochastic policies on Swimmer-v5, architecture linear, metric last",
            PSVF,
        ),
        (
            {"kind": "psvf", "hidden": (16,), "metric": "best"},
            "psvf with deterministic policies on Swimmer-v5, architecture 16, metric best",
            PSVF,
        ),
    ],
)
def test_missing_combinations(asked: dict[str, Any], what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        paper_choice(**{"kind": "pavf", "env_id": "Swimmer-v5", "hidden": LINEAR, **asked})
    assert caught.value.exit_code == 2
    assert str(caught.value) == f"the paper has no hyperparameters for {what}; {remedy}"


@pytest.mark.parametrize("kind", ["ddpg", "ars", "other"])
def test_an_unknown_critic(kind: str) -> None:
    # The baselines have tables of their own and are no critics of policies.
    message = f"critic '{kind}' is not in the paper; choose pssvf, psvf or pavf"
    with pytest.raises(UsageError, match=f"^{message}$"):
        paper_choice(kind, "Swimmer-v5", LINEAR)


def test_missing_combinations_of_the_baselines() -> None:
    with pytest.raises(UsageError, match=r"for ddpg .* on CartPole-v1.*it has ddpg .* on Mount"):
        ddpg_choice("CartPole-v1", LINEAR, "avg")
    with pytest.raises(UsageError, match=r"architecture 16, metric last; it has ars .* 32 or"):
        ars_choice("Hopper-v5", (16,), "last")


def test_importing_costs_nothing() -> None:
    code = (
        "import sys, pbvf_offline.presets.paper; "
        "print({'torch', 'numpy', 'gymnasium'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

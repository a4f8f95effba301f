"""Policies from the weights of other programs' modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import toyenv  # noqa: F401
from exchange_tools import ASYMMETRIC, acts, env, executed, flat, network, observations, save
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    IncompatibleError,
    UsageError,
)
from pbvf_offline.exchange.importer import from_state_dict, import_weights
from pbvf_offline.exchange.interpret import ImportSettings
from pbvf_offline.exchange.layer_names import find_layers, natural
from pbvf_offline.policies.files import load_policies


@pytest.mark.parametrize("squash", ["tanh", "none"])
@pytest.mark.parametrize("activation", ["tanh", "relu", "ReLU"])
@pytest.mark.parametrize("hidden", [(), (8,), (16, 16)])
def test_an_imported_module_acts_as_its_source(
    hidden: tuple[int, ...], activation: str, squash: Any
) -> None:
    toy = env(act_dim=2)
    between = nn.Tanh if activation == "tanh" else nn.ReLU
    module = network(3, *hidden, 2, between=between)
    settings = ImportSettings(squash=squash, activation=activation)
    policies = from_state_dict(module.state_dict(), toy, settings)
    assert (policies.spec.hidden, policies.spec.squash) == (hidden, squash)
    # Without hidden layers there is nothing between.
    relu = hidden and between is nn.ReLU
    assert policies.spec.family == ("relu-mlp" if relu else "tanh-mlp")
    obs = observations()
    space = toy.action_space
    theirs = executed(module(torch.from_numpy(obs)), space.low, space.high, squash)
    np.testing.assert_allclose(acts(policies, obs), theirs, rtol=0, atol=1e-6)
    assert len(np.unique(theirs)) > 50
    np.testing.assert_array_equal(policies.theta, flat(module)[None])


def test_an_imported_discrete_module_chooses_as_its_source() -> None:
    module = network(3, 8, 4)
    policies = from_state_dict(module.state_dict(), env("ToyDiscrete-v0"))  # 4 choices from 2
    obs = observations()
    theirs = 2 + module(torch.from_numpy(obs)).argmax(-1).numpy()
    np.testing.assert_array_equal(acts(policies, obs), theirs)
    assert len(np.unique(theirs)) > 2


def of(**shapes: tuple[int, int]) -> dict[str, torch.Tensor]:
    """A state dict with layers of these (in, out)."""
    torch.manual_seed(3)
    return dict(nn.ModuleDict({k: nn.Linear(*shape) for k, shape in shapes.items()}).state_dict())


@pytest.mark.parametrize(
    ("shapes", "order"),
    [
        ({"fc1": (3, 8), "fc2": (8, 8), "mu": (8, 1)}, ["fc1", "fc2", "mu"]),
        # By shapes alone, against the alphabet.
        ({"wide": (3, 9), "narrow": (9, 5), "a": (5, 1)}, ["wide", "narrow", "a"]),
        ({"input": (3, 8), "hidden": (8, 8), "a": (8, 1)}, ["input", "hidden", "a"]),
    ],
)
def test_the_order_of_layers_comes_from_shapes_and_numbers(
    shapes: dict[str, tuple[int, int]], order: list[str]
) -> None:
    state = of(**shapes)
    policies = from_state_dict(state, env())
    expected = [state[f"{name}.{kind}"].numpy() for name in order for kind in ("weight", "bias")]
    np.testing.assert_array_equal(policies.theta[0], np.concatenate([e.ravel() for e in expected]))


def test_numbers_in_names_count_as_numbers() -> None:
    module = network(3, *[4] * 6, 1)  # layers 0, 2, …, 12; as text 10 comes before 2
    policies = from_state_dict(module.state_dict(), env())
    np.testing.assert_array_equal(policies.theta[0], flat(module))
    assert sorted(["l10", "l9", "l1.2", "l1.10"], key=natural) == ["l1.2", "l1.10", "l9", "l10"]


def test_an_order_that_is_not_clear_is_asked_for() -> None:
    shapes = {"first": (3, 8), "left": (8, 8), "right": (8, 8), "out": (8, 1)}
    state = of(**shapes)
    with pytest.raises(UsageError, match="several orders") as caught:
        from_state_dict(state, env())
    assert "first,left,right,out or first,right,left,out" in str(caught.value)
    given = {}
    for order in (("first", "left", "right", "out"), ("first", "right", "left", "out")):
        given[order] = from_state_dict(state, env(), ImportSettings(layers=order)).theta
    a, b = given.values()
    assert not np.array_equal(a, b)


def test_a_single_layer_without_a_name() -> None:
    layer = nn.Linear(3, 1)
    policies = from_state_dict(layer.state_dict(), env())
    assert policies.spec.arch == "linear"
    np.testing.assert_array_equal(policies.theta[0, :3], layer.weight.detach().numpy()[0])


def test_layers_without_bias_have_zeros() -> None:
    module = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 1))
    policies = from_state_dict(module.state_dict(), env())
    assert not policies.theta[0, 12:16].any()
    obs = observations()
    theirs = executed(module(torch.from_numpy(obs)), -0.3, 0.7, "tanh")
    np.testing.assert_allclose(acts(policies, obs), theirs, atol=1e-6)


def test_more_than_one_network_is_not_guessed_from() -> None:
    state = {f"actor.{k}": v for k, v in network(3, 8, 1).state_dict().items()}
    state |= {f"critic.{k}": v for k, v in network(4, 8, 1).state_dict().items()}
    with pytest.raises(UsageError, match=r"--layers actor\.0,actor\.2") as caught:
        from_state_dict(state, env())
    assert "critic.0" in str(caught.value)
    policies = from_state_dict(state, env(), ImportSettings(layers=("actor.0", "actor.2")))
    np.testing.assert_array_equal(policies.theta[0], flat(network(3, 8, 1)))


@pytest.mark.parametrize("between", [nn.LayerNorm(8), nn.BatchNorm1d(8), nn.PReLU()])
def test_layers_that_a_policy_cannot_have_are_not_dropped(between: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(3, 8), between, nn.Tanh(), nn.Linear(8, 1))
    with pytest.raises(UsageError, match=r"more than the layers of one policy: 1\.") as caught:
        from_state_dict(module.state_dict(), env())
    assert "no part in acting" in str(caught.value)


def test_networks_that_lead_elsewhere() -> None:
    for sizes in ((4, 8, 1), (3, 8, 2), (3, 1, 1, 2)):
        with pytest.raises(IncompatibleError, match="do not lead from 3 observations to 1"):
            from_state_dict(network(*sizes).state_dict(), env())
    with pytest.raises(IncompatibleError, match="no linear layers"):
        from_state_dict(nn.Conv1d(3, 1, 2).state_dict(), env())
    state = network(3, 8, 1).state_dict()
    for layers, error in (
        (("2", "0"), IncompatibleError),
        (("0",), IncompatibleError),
        (("0", "1"), UsageError),
        (("0", "0"), IncompatibleError),
    ):
        with pytest.raises(error):
            from_state_dict(state, env(), ImportSettings(layers=layers))


def test_a_search_among_many_layers_ends() -> None:
    shapes = {f"{chr(97 + k) * 3}.weight": (8, 8) for k in range(16)}
    with pytest.raises((IncompatibleError, UsageError)):
        find_layers(shapes, (), 8, 3, "w")
    crowd = {f"{name}{k}.weight": (8, 8) for k in range(50) for name in map(chr, range(97, 120))}
    with pytest.raises((IncompatibleError, UsageError)):
        find_layers(crowd, (), 8, 3, "w")


@pytest.mark.parametrize("activation", ["sigmoid", "identity"])
def test_other_activations_cannot_be_expressed(activation: str) -> None:
    state = network(3, 8, 1).state_dict()
    with pytest.raises(IncompatibleError, match=f"{activation} cannot be expressed.*tanh"):
        from_state_dict(state, env(), ImportSettings(activation=activation))


def test_a_normaliser_beside_the_weights() -> None:
    module = network(3, 8, 1)
    mean, std = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.5, 3.0, 1.0])
    state = {**module.state_dict(), "obs_mean": mean, "rms.std": std[None]}
    settings = ImportSettings(obs_std="rms.std")  # obs_mean is found by its name
    policies = from_state_dict(state, env(), settings)
    obs = observations()
    theirs = executed(module((torch.from_numpy(obs) - mean) / std), -0.3, 0.7, "tanh")
    np.testing.assert_allclose(acts(policies, obs), theirs, atol=1e-6)
    given = ImportSettings(obs_mean=mean.double().numpy(), obs_std=std.double().numpy())
    again = from_state_dict(module.state_dict(), env(), given)
    np.testing.assert_array_equal(again.obs_std, policies.obs_std)
    np.testing.assert_array_equal(acts(again, obs), acts(policies, obs))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (ImportSettings(obs_mean="m"), UsageError, "both --obs-mean and --obs-std"),
        (ImportSettings(obs_mean="m", obs_std="nope"), UsageError, "no tensor 'nope'"),
        (ImportSettings(obs_mean="m", obs_std="0.weight"), IncompatibleError, r"shape \(8, 3\)"),
        (ImportSettings(obs_mean="m", obs_std="zero"), UsageError, "not positive.*epsilon"),
        (ImportSettings(obs_mean="m", obs_std="nan"), DamagedError, "NaN"),
        (ImportSettings(stochastic=True), UsageError, "no tensor 'log_std'"),
        (ImportSettings(stochastic=True, log_std="m"), IncompatibleError, r"\(1,\) is needed"),
    ],
)
def test_numbers_that_do_not_fit(settings: ImportSettings, error: Any, words: str) -> None:
    state = {
        **network(3, 8, 1).state_dict(),
        "m": torch.zeros(3),
        "zero": torch.tensor([1.0, 0.0, 1.0]),
        "nan": torch.tensor([1.0, float("nan"), 1.0]),
    }
    settings = ImportSettings(**{**vars(settings), "layers": ("0", "2")})
    with pytest.raises(error, match=words):
        from_state_dict(state, env(), settings)


def test_a_stochastic_policy_keeps_its_noise(rng: np.random.Generator) -> None:
    toy = env(act_dim=2)
    module = network(3, 8, 2)
    state = {**module.state_dict(), "log_std": torch.tensor([[-1.0, 0.5]])}
    settings = ImportSettings(stochastic=True, squash="none")
    policies = from_state_dict(state, toy, settings)
    assert policies.spec.stochastic
    np.testing.assert_array_equal(policies.theta[0, :2], np.float32([-1.0, 0.5]))
    actor = policies.actor(0)
    drawn = np.array([actor.act(np.zeros(3), rng)[1] for _ in range(4000)])
    np.testing.assert_allclose(drawn.std(0), np.exp([-1.0, 0.5]), rtol=0.05)
    # The same without the tensor, and without the noise.
    given = ImportSettings(stochastic=True, squash="none", log_std=np.array([-1.0, 0.5]))
    again = from_state_dict(module.state_dict(), toy, given)
    np.testing.assert_array_equal(again.theta, policies.theta)
    mean = from_state_dict(state, toy, ImportSettings(squash="none"))
    np.testing.assert_array_equal(mean.theta[0], policies.theta[0, 2:])


def load(tmp_path: Path, state: Any, settings: ImportSettings | None = None, **kwargs: Any) -> Any:
    source = save(tmp_path / "weights.safetensors", state)
    config = EnvConfig(ASYMMETRIC)
    out = tmp_path / "policies.safetensors"
    return import_weights([source], config, settings or ImportSettings(), out, **kwargs)


def test_a_file_becomes_a_policies_file(tmp_path: Path) -> None:
    module = network(3, 8, 1)
    made = load(tmp_path, module.state_dict())
    assert made.first.layers == ("0", "2")
    assert made.first.left_out == ()
    assert made.first.normaliser is None
    assert not made.rounded
    file = load_policies(tmp_path / "policies.safetensors")
    assert file.environment is not None
    assert file.environment.id == ASYMMETRIC
    assert file.origin["made_by"] == "import"
    obs = observations()
    theirs = executed(module(torch.from_numpy(obs)), -0.3, 0.7, "tanh")
    np.testing.assert_allclose(acts(file.policies, obs), theirs, atol=1e-6)
    text = (tmp_path / "policies.safetensors").read_bytes()
    assert str(tmp_path).encode() not in text


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_precisions(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {
        name: value.to(dtype) for name, value in network(3, 8, 1).double().state_dict().items()
    }
    if dtype is torch.float64:
        state["0.weight"] += 1e-12  # more digits than float32 has
    made = load(tmp_path, state)
    expected = np.concatenate([value.float().numpy().ravel() for value in state.values()])
    np.testing.assert_array_equal(made.file.policies.theta[0], expected)
    assert made.rounded is (dtype is torch.float64)


def test_integers_are_no_layers(tmp_path: Path) -> None:
    state = {"weight": torch.ones(1, 3, dtype=torch.int64)}
    with pytest.raises(IncompatibleError, match="int64"):
        load(tmp_path, state)


def test_several_files_are_one_policy_each(tmp_path: Path) -> None:
    sources = [
        save(tmp_path / f"{k}.safetensors", network(3, 8, 1, seed=k).state_dict()) for k in range(3)
    ]
    out = tmp_path / "p"
    made = import_weights(sources, EnvConfig(ASYMMETRIC), ImportSettings(), out)
    assert len(made.file.policies) == len(np.unique(made.file.policies.theta, axis=0)) == 3
    sources.append(save(tmp_path / "3.safetensors", network(3, 9, 1).state_dict()))
    with pytest.raises(IncompatibleError, match=r"3\.safetensors: is a deterministic 9"):
        import_weights(sources, EnvConfig(ASYMMETRIC), ImportSettings(), tmp_path / "q")
    assert not (tmp_path / "q").exists()


def test_numbers_that_float32_cannot_hold(tmp_path: Path) -> None:
    for value in (float("nan"), float("inf"), 1e300):
        state = network(3, 1).double().state_dict()
        state["0.bias"][0] = value
        with pytest.raises(DamagedError, match="NaN, infinite or too large"):
            load(tmp_path, state)


def test_checking_against_actions_of_the_source(tmp_path: Path) -> None:
    module = network(3, 8, 1)
    obs = torch.from_numpy(observations())
    action = torch.from_numpy(executed(module(obs), -0.3, 0.7, "tanh"))
    right = save(tmp_path / "right.safetensors", {"obs": obs, "action": action})
    made = load(tmp_path, module.state_dict(), check=right)
    assert made.checked is not None
    assert made.checked[0] == 200
    assert 0 < made.checked[1] < 1e-6
    relu = nn.Sequential(module[0], nn.ReLU(), module[2])
    other = torch.from_numpy(executed(relu(obs), -0.3, 0.7, "tanh"))
    wrong = save(tmp_path / "wrong.safetensors", {"obs": obs, "action": other})
    with pytest.raises(IncompatibleError, match="acts otherwise: actions differ by up to"):
        load(tmp_path, module.state_dict(), check=wrong, overwrite=True)
    assert load(tmp_path, module.state_dict(), check=right).already_complete
    for tensors, error in (
        ({"obs": obs}, UsageError),
        ({"obs": obs, "action": action[:5]}, IncompatibleError),
        ({"obs": obs[:, :2].contiguous(), "action": action}, IncompatibleError),
        ({"obs": obs[:0], "action": action[:0]}, IncompatibleError),
        ({"obs": obs, "action": action * float("nan")}, IncompatibleError),
    ):
        with pytest.raises(error):
            load(tmp_path, module.state_dict(), check=save(tmp_path / "c", tensors))


def test_checking_choices(tmp_path: Path) -> None:
    module = network(3, 8, 4)
    source = save(tmp_path / "w", module.state_dict())
    obs = torch.from_numpy(observations())
    choice = 2 + module(obs).argmax(-1)
    config = EnvConfig("ToyDiscrete-v0")

    def attempt(action: torch.Tensor) -> Any:
        check = save(tmp_path / "c", {"obs": obs, "action": action})
        out = tmp_path / "p"
        return import_weights([source], config, ImportSettings(), out, check=check).checked

    assert attempt(choice) == (200, 0.0)
    for wrong in (choice - 2, 7 - choice, choice.double() + 0.5):
        with pytest.raises(IncompatibleError, match=r"% of 200 choices differ"):
            attempt(wrong)


def test_an_output_is_replaced_on_request_only(tmp_path: Path) -> None:
    assert not load(tmp_path, network(3, 8, 1).state_dict()).already_complete
    out = tmp_path / "policies.safetensors"
    before = out.read_bytes()
    stamp = out.stat().st_mtime_ns
    assert load(tmp_path, network(3, 8, 1).state_dict()).already_complete
    assert out.stat().st_mtime_ns == stamp
    with pytest.raises(ConflictError, match='squash is "tanh" there and "none" here'):
        load(tmp_path, network(3, 8, 1).state_dict(), ImportSettings(squash="none"))
    with pytest.raises(ConflictError, match="sources"):
        load(tmp_path, network(3, 8, 1, seed=5).state_dict())
    given = ImportSettings(obs_mean=np.ones(3), obs_std=np.ones(3))
    with pytest.raises(ConflictError, match="other content"):
        load(tmp_path, network(3, 8, 1).state_dict(), given)
    assert out.read_bytes() == before
    load(tmp_path, network(3, 8, 1, seed=5).state_dict(), overwrite=True)
    assert out.read_bytes() != before
    out.write_bytes(b"notes")
    for overwrite in (False, True):
        with pytest.raises(ConflictError, match="is no policies file, so it is not replaced"):
            load(tmp_path, network(3, 8, 1).state_dict(), overwrite=overwrite)

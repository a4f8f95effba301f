from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

from libtools import box_spec, discrete_spec, make_policies
from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.actor import Actor
from pbvf_offline.policies.families.mlp import TANH_MLP
from pbvf_offline.policies.policy import Policies, init_theta, perturb, renormalise
from pbvf_offline.policies.spec import PolicySpec, parse_arch


def torch_net(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[k], sizes[k + 1]), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("hidden", [(), (4,), (5, 3)])
def test_theta_is_parameters_to_vector(hidden: tuple[int, ...], rng: np.random.Generator) -> None:
    torch.manual_seed(1)
    net = torch_net([3, *hidden, 2])
    theta = nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
    spec = box_spec(3, hidden, 2)
    assert spec.size == theta.size
    layers = TANH_MLP.layers(spec, theta)
    linears = [m for m in net if isinstance(m, nn.Linear)]
    for (weight, bias), linear in zip(layers, linears, strict=True):
        assert np.array_equal(weight, linear.weight.detach().numpy())
        assert np.array_equal(bias, linear.bias.detach().numpy())
    # The actor computes in float64, so it must agree with the float64 network to rounding.
    mean, std = rng.normal(size=3), rng.uniform(0.5, 2, 3)
    actor = Actor(spec, theta, mean, std)
    net = net.double()
    for obs in rng.normal(0, 2, (20, 3)):
        want = net(torch.from_numpy((obs - mean) / std)).detach().numpy()
        assert np.allclose(actor.logits(obs), want, rtol=0, atol=1e-13)


def test_sizes_counted_by_hand() -> None:
    # 3 -> 4 -> 2: 3*4 + 4 + 4*2 + 2 = 26; with log_std of two actions 28.
    assert box_spec(3, (4,), 2).size == 26
    assert box_spec(3, (4,), 2, stochastic=True).size == 28
    # 3 -> 5 logits: 15 + 5; a categorical policy has no log_std.
    assert discrete_spec(3, n=5, stochastic=True).size == 20
    assert discrete_spec(3, n=5, stochastic=True).log_std_size == 0
    assert box_spec(3, (64, 64)).arch == "64,64"
    assert box_spec(3).arch == "linear"


def test_log_std_comes_first() -> None:
    spec = box_spec(1, (), 2, stochastic=True)
    theta = np.arange(6, dtype=np.float32)  # log_std 0 1, W 2 3, b 4 5
    policies = Policies(spec, theta[None], np.zeros((1, 1)), np.ones((1, 1)))
    [(weight, bias)] = TANH_MLP.layers(spec, policies.params[0])
    assert weight.tolist() == [[2], [3]]
    assert bias.tolist() == [4, 5]


def test_layers_of_many_rows_and_theta_of_another_size() -> None:
    spec = box_spec(2, (3,))
    theta = np.random.default_rng(0).normal(size=(4, 5, spec.size))
    layers = TANH_MLP.layers(spec, theta)
    one = TANH_MLP.layers(spec, theta[2, 3])
    assert layers[0][0].shape == (4, 5, 3, 2)
    assert np.array_equal(layers[1][0][2, 3], one[1][0])
    assert np.array_equal(TANH_MLP.join(one), theta[2, 3])
    with pytest.raises(UsageError, match=r"needs \(13,\)"):
        Actor(spec, theta[0, 0, :-1], np.zeros(2), np.ones(2))


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("theta", [0.0, np.nan], "theta holds NaN"),
        ("theta", [0j, 1j], "theta is complex128"),
        ("theta", ["0", "1"], "theta is <U1"),
        ("obs_mean", [np.inf], "obs_mean holds NaN or infinite"),
        ("obs_mean", [0.0, 0.0], r"obs_mean has shape \(2,\)"),
        ("obs_std", [0.0], "obs_std holds values that are not positive"),
        ("obs_std", [-1.0], "obs_std holds values that are not positive"),
        ("obs_std", [np.nan], "obs_std holds NaN"),
    ],
)
def test_an_actor_refuses_what_policies_refuse(name: str, value: list[Any], what: str) -> None:
    good = {"theta": np.zeros(2), "obs_mean": np.zeros(1), "obs_std": np.ones(1)}
    Actor(box_spec(1), **good)
    with pytest.raises(UsageError, match=what):
        Actor(box_spec(1), **{**good, name: np.array(value)})


def test_action_mapping_by_hand() -> None:
    # low + (u + 1) / 2 * (high - low) with u = tanh(bias): [1, 5] gives 3 at u = 0,
    # 4 at u = 0.5 and nearly 5 at u = tanh(20).
    spec = box_spec(1, (), 1, 1.0, 5.0, "float64")
    for bias, want in ((0.0, 3.0), (math.atanh(0.5), 4.0), (20.0, 5.0), (-20.0, 1.0)):
        action, pre = Actor(spec, np.array([0.0, bias]), np.zeros(1), np.ones(1)).act(np.zeros(1))
        assert action == pytest.approx([want], abs=1e-12)
        assert pre is None


def test_actions_without_squashing_are_only_clipped() -> None:
    spec = box_spec(1, (), 1, -2.0, 3.0, squash="none")
    for out in (-5.0, -2.0, 0.25, 3.0, 7.0):
        action, _ = Actor(spec, np.array([0.0, out]), np.zeros(1), np.ones(1)).act(np.ones(1))
        assert action.tolist() == [min(max(out, -2.0), 3.0)]
        assert action.dtype == np.float32


def boxes_that_round_past(dtype: Any, count: int) -> list[tuple[float, float]]:
    """Bounds for which low + (1 + 1) / 2 * (high - low) is above high in that type."""
    rng = np.random.default_rng(0)
    found = []
    for pair in np.sort(rng.normal(0, 1, (10_000, 2))):
        low, high = dtype(pair[0]), dtype(pair[1])
        if low + dtype(2) * ((high - low) / dtype(2)) > high:
            found.append((float(low), float(high)))
    assert len(found) >= count
    return found[:count]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_upper_end_that_rounds_past_high_is_clipped(dtype: str) -> None:
    kind = np.dtype(dtype).type
    for low, high in boxes_that_round_past(kind, 20):
        space = Box(kind(low), kind(high), (1,), kind)
        spec = box_spec(1, (), 1, low, high, dtype)
        for bias, end in ((60.0, space.high), (-60.0, space.low)):
            action, _ = Actor(spec, np.array([0, bias]), np.zeros(1), np.ones(1)).act(np.zeros(1))
            assert action.dtype == space.dtype
            assert action in space
            assert np.array_equal(action, end)


def test_bounds_that_the_dtype_cannot_hold_are_clipped_in_that_dtype() -> None:
    # 0.1 is not a float32; the space's own bounds are the rounded ones.
    spec = box_spec(1, (), 1, -0.1, 0.7, "float32")
    space = Box(np.float32(-0.1), np.float32(0.7), (1,), np.float32)
    for bias in (60.0, -60.0, 0.3):
        action, _ = Actor(spec, np.array([0, bias]), np.zeros(1), np.ones(1)).act(np.zeros(1))
        assert action in space


def test_discrete_is_start_plus_argmax() -> None:
    spec = discrete_spec(1, n=4, start=2)
    theta = np.concatenate([np.zeros(4), [0.1, 0.4, 0.3, -1.0]])
    action, pre = Actor(spec, theta, np.zeros(1), np.ones(1)).act(np.ones(1))
    assert action == 3
    assert type(action) is np.int64
    assert pre is None


def test_stochastic_box_is_tanh_of_a_gaussian() -> None:
    # One action in [-1, 1]: pre = 0.3 + exp(-0.5) * noise, action = tanh(pre).
    spec = box_spec(1, (), 1, -1.0, 1.0, "float64", stochastic=True)
    actor = Actor(spec, np.array([-0.5, 0.0, 0.3]), np.zeros(1), np.ones(1))
    rng = np.random.default_rng(5)
    actions, pres = [], []
    for _ in range(4000):
        action, pre = actor.act(np.zeros(1), rng)
        assert pre is not None
        actions.append(action[0])
        pres.append(pre[0])
    sigma = math.exp(-0.5)
    assert np.allclose(actions, np.tanh(pres), rtol=0, atol=1e-15)
    # Four standard errors: of the mean sigma / sqrt(n), of the deviation sigma / sqrt(2 n).
    assert abs(np.mean(pres) - 0.3) < 4 * sigma / math.sqrt(4000)
    assert abs(np.std(pres) - sigma) < 4 * sigma / math.sqrt(8000)
    again, _ = actor.act(np.zeros(1), np.random.default_rng(5))
    assert again[0] == actions[0]


def test_stochastic_discrete_follows_softmax() -> None:
    logits = np.array([0.0, 1.0, -1.0, 2.0])
    spec = discrete_spec(1, n=4, start=3, stochastic=True)
    actor = Actor(spec, np.concatenate([np.zeros(4), logits]), np.zeros(1), np.ones(1))
    rng = np.random.default_rng(0)
    drawn = np.array([actor.act(np.zeros(1), rng)[0] for _ in range(4000)])
    counts = np.bincount(drawn - 3, minlength=4)
    expected = 4000 * np.exp(logits) / np.exp(logits).sum()
    chi2 = np.square(counts - expected).__truediv__(expected).sum()
    assert chi2 < 16.27  # the 99.9 % point of chi2 with 3 degrees of freedom


def test_deterministic_policy_ignores_the_generator() -> None:
    spec = box_spec(2)
    actor = make_policies(spec, 1).actor(0)
    with_rng, _ = actor.act(np.ones(2), np.random.default_rng(0))
    without, _ = actor.act(np.ones(2))
    assert np.array_equal(with_rng, without)


def test_stochastic_policy_needs_a_generator() -> None:
    with pytest.raises(UsageError, match="random generator"):
        make_policies(box_spec(2, stochastic=True), 1).actor(0).act(np.ones(2))


def test_init_is_pytorch_default() -> None:
    # nn.Linear draws weight and bias uniformly on +-1/sqrt(in).
    spec = box_spec(9, (100,), 2, stochastic=True)
    theta = np.stack([init_theta(spec, np.random.default_rng(k)) for k in range(40)])
    assert theta.dtype == np.float32
    assert np.all(theta[:, :2] == np.float32(-0.5))
    layers = TANH_MLP.layers(spec, theta[:, 2:])
    for (weight, bias), inp in zip(layers, (9, 100), strict=True):
        bound = 1 / math.sqrt(inp)
        for part in (weight, bias):
            assert np.max(np.abs(part)) <= bound * (1 + 1e-6)
            assert np.max(np.abs(part)) > 0.9 * bound
            # A uniform on +-b has standard deviation b / sqrt(3).
            assert np.std(part) == pytest.approx(bound / math.sqrt(3), rel=0.15)


def test_perturbation_has_the_given_spread_everywhere(rng: np.random.Generator) -> None:
    theta = np.full(20_000, 3.0, np.float32)
    moved = perturb(theta, 0.5, rng)
    assert moved.dtype == np.float32
    assert np.all(theta == 3.0)
    away = moved - theta
    assert abs(away.mean()) < 4 * 0.5 / math.sqrt(20_000)
    assert np.std(away) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(40_000))
    assert np.array_equal(perturb(theta, 0.0, rng), theta)


def test_renormalise_by_hand() -> None:
    # out = 2 (obs - 1) / 4 + 3 = 0.5 obs + 2.5; in mean 5, std 2: W' = 2 * 2/4 = 1 and
    # b' = 3 + 2 (5 - 1) / 4 = 5; check: (obs - 5) / 2 + 5 = 0.5 obs + 2.5.
    spec = box_spec(1)
    new = renormalise(
        spec,
        np.array([[2, 3]], np.float32),
        np.array([[1.0]]),
        np.array([[4.0]]),
        np.array([5.0]),
        np.array([2.0]),
    )
    assert new.tolist() == [[1.0, 5.0]]


def test_parameters_that_overflow_in_another_normaliser_blame_the_normaliser() -> None:
    one = make_policies(box_spec(1), 1)
    tiny = dataclasses.replace(one, obs_std=np.array([[1e-300]]))
    with pytest.raises(IncompatibleError, match=r"down to 1e-300, the other.s up to 2"):
        tiny.in_normaliser(np.zeros(1), np.array([2.0]))


def test_which_policies_overflow_in_another_normaliser_is_said() -> None:
    four = make_policies(box_spec(1), 4)
    std = np.array([[1.0], [1e-300], [0.5], [1e-299]])
    wanted = np.zeros(1), np.array([2.0])
    with pytest.raises(IncompatibleError, match=r"^policy 1 \(and 1 more\) cannot .* to 1e-300,"):
        dataclasses.replace(four, obs_std=std).in_normaliser(*wanted)
    some = dataclasses.replace(four, obs_std=std).select([2, 3])
    with pytest.raises(IncompatibleError, match=r"^policy 1 cannot .* to 1e-299,"):
        some.in_normaliser(*wanted)
    with pytest.raises(IncompatibleError, match=r"^policy 3 cannot"):
        some.in_normaliser(*wanted, numbers=[2, 3])


def test_renormalise_returns_rows_already_there_bit_for_bit(rng: np.random.Generator) -> None:
    spec = box_spec(2, (3,))
    theta = rng.normal(0, 1, (3, spec.size)).astype(np.float32)
    mean = np.array([[0.1, 0.2], [0.3, 0.4], [0.1, 0.2]])
    std = np.array([[1.1, 1.2], [1.1, 1.2], [1.1, 1.2]])
    moved = renormalise(spec, theta, mean, std, mean[0], std[0])
    assert moved[[0, 2]].tobytes() == theta[[0, 2]].tobytes()
    assert not np.array_equal(moved[1], theta[1])
    same = renormalise(spec, theta, mean[[0] * 3], std[[0] * 3], mean[0], std[0])
    assert same.tobytes() == theta.tobytes()
    same[:] = 0
    assert np.any(theta != 0)  # a copy, not the array itself


def test_refused_specs() -> None:
    for make, words in (
        (lambda: box_spec(0), "observation dimension 0"),
        (lambda: box_spec(1_000_001), "observation dimension"),
        (lambda: box_spec(2, (0,)), "hidden sizes"),
        (lambda: box_spec(2, (65_537,)), "hidden sizes"),
        (lambda: box_spec(2, (4,) * 17), "hidden sizes"),
        (lambda: box_spec(2, squash="relu"), "squash"),
        (lambda: box_spec(2, (65_536, 65_536)), "over the limit"),
        (lambda: BoxActions((), ()), "lengths 0"),
        (lambda: BoxActions((0.0,), (1.0, 2.0)), "lengths 1 and 2"),
        (lambda: BoxActions((0.0,), (1.0,), "int32"), "int32"),
        (lambda: BoxActions((1.0,), (1.0,)), "not finite and increasing"),
        (lambda: BoxActions((0.0,), (math.inf,)), "not finite and increasing"),
        (lambda: BoxActions((math.nan,), (1.0,)), "not finite and increasing"),
        (lambda: DiscreteActions(0), "at least 1 action"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            make()
        assert caught.value.exit_code == 2


def test_discrete_actions_cannot_go_unsquashed() -> None:
    with pytest.raises(UsageError, match="squash"):
        discrete_spec(2, squash="none")


BAD_DICTS: list[tuple[Any, Any]] = [
    (("obs_dim",), "3"),
    (("obs_dim",), True),
    (("obs_dim",), 0),
    (("hidden",), None),
    (("hidden",), [4.0]),
    (("squash",), 3),
    (("squash",), "relu"),
    (("stochastic",), 0),
    (("actions",), None),
    (("actions", "kind"), "multi"),
    (("actions", "low"), 3),
    (("actions", "low"), ["x"]),
    (("actions", "low"), [True]),
    (("actions", "low"), []),
    (("actions", "low"), [2.0]),
    (("actions", "high"), [math.inf]),
    (("actions", "low"), [-(10**400)]),
    (("actions", "dtype"), None),
    (("actions", "dtype"), "object"),
]


@pytest.mark.parametrize(("path", "value"), BAD_DICTS)
def test_bad_spec_in_a_file_is_damage(path: tuple[str, ...], value: Any) -> None:
    data = box_spec(3).to_dict()
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(DamagedError) as caught:
        PolicySpec.from_dict(data, "file")
    assert caught.value.exit_code == 3


def test_missing_and_unknown_keys_are_damage() -> None:
    for change in ("extra", "missing"):
        for inner in (False, True):
            data = box_spec(3).to_dict()
            target = data["actions"] if inner else data
            if change == "extra":
                target["more"] = 1
            else:
                del target["low" if inner else "hidden"]
            with pytest.raises(DamagedError, match="expected the keys"):
                PolicySpec.from_dict(data, "file")
    for other in (None, [], "x"):
        with pytest.raises(DamagedError):
            PolicySpec.from_dict(other, "file")
    bad = discrete_spec(3).to_dict()
    bad["actions"]["n"] = 0
    with pytest.raises(DamagedError, match="at least 1 action"):
        PolicySpec.from_dict(bad, "file")


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("linear", ()),
        (" Linear ", ()),
        ("[]", ()),
        ("32", (32,)),
        ("64,64", (64, 64)),
        ("[64, 64]", (64, 64)),
    ],
)
def test_architectures(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_arch(text) == sizes


@pytest.mark.parametrize("text", ["", "mlp", "64,", "0", "-3", "64;64", "1e3", "65537", "64,,64"])
def test_architectures_not_understood(text: str) -> None:
    with pytest.raises(UsageError, match="not understood") as caught:
        parse_arch(text)
    assert "64,64" in str(caught.value)


def test_policies_check_their_arrays() -> None:
    good = make_policies(box_spec(2), 3)
    theta, mean, std = good.theta, good.obs_mean, good.obs_std
    bad = std.copy()
    bad[0, 0] = 0
    nan = theta.copy()
    nan[0, 0] = np.nan
    for arrays, words in (
        ((theta.astype(float), mean, std), "theta is float64"),
        ((theta[:, :-1], mean, std), "theta"),
        ((theta[0], mean, std), "theta"),
        ((theta, mean[:2], std), "obs_mean"),
        ((theta, mean, std.astype(np.float32)), "obs_std"),
        ((theta, mean, bad), "not positive"),
        ((theta, mean, np.where(bad == 0, 5e-324, bad)), "obs_std .* below 2.2e-308"),
        ((nan, mean, std), "NaN"),
        ((theta, mean + np.inf, std), "NaN or infinite"),
    ):
        with pytest.raises(UsageError, match=words):
            Policies(good.spec, *arrays)


def test_policies_select(rng: np.random.Generator) -> None:
    spec = box_spec(2, (3,))
    policies = make_policies(spec, 4)
    policies = dataclasses.replace(policies, obs_mean=rng.normal(size=(4, 2)))
    some = policies.select([3, 1])
    assert len(some) == 2
    assert np.array_equal(some.theta, policies.theta[[3, 1]])
    assert np.array_equal(some.obs_mean, policies.obs_mean[[3, 1]])

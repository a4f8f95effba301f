from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from libtools import box_spec, discrete_spec, make_policies
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.actor import Actor
from pbvf_offline.policies.batch import network_output, to_unit, unit_action
from pbvf_offline.policies.spec import PolicySpec


@pytest.mark.parametrize("hidden", [(), (4,), (5, 3)])
def test_network_output_is_the_sequential_network(hidden: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    sizes = [3, *hidden, 2]
    layers: list[nn.Module] = []
    for k in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[k], sizes[k + 1]), nn.Tanh()]
    net = nn.Sequential(*layers[:-1])
    theta = nn.utils.parameters_to_vector(net.parameters()).detach()
    obs = torch.randn(7, 3)
    out = network_output(box_spec(3, hidden, 2), theta, obs)
    assert torch.allclose(out, net(obs), atol=1e-6)


@pytest.mark.parametrize("squash", ["tanh", "none"])
def test_unit_action_is_the_actors_action_in_unit(squash: str, rng: np.random.Generator) -> None:
    actions = BoxActions((-0.3, 1.0), (0.7, 5.0), "float64")
    spec = PolicySpec(3, (4,), actions, squash)  # type: ignore[arg-type]
    theta = make_policies(spec, 1).theta[0]
    if squash == "none":
        theta[-2:] = (0.2, 3.0)  # the middle of the bounds, so that some outputs are clipped
    actor = Actor(spec, theta, np.zeros(3), np.ones(3))
    obs = rng.normal(size=(8, 3))
    executed = np.stack([actor.act(o)[0] for o in obs])
    clipped = (executed == actions.low) | (executed == actions.high)
    assert clipped.any() == (squash == "none")
    assert not clipped.all()
    unit = unit_action(spec, torch.from_numpy(theta).double(), torch.from_numpy(obs))
    assert torch.allclose(to_unit(spec, torch.from_numpy(executed)), unit, atol=1e-12)


def test_log_std_is_skipped() -> None:
    plain, noisy = box_spec(2), box_spec(2, stochastic=True)
    theta = torch.randn(1, plain.size)
    with_std = torch.cat([torch.full((1, 1), 9.0), theta], dim=1)
    obs = torch.randn(4, 2)
    assert torch.equal(network_output(noisy, with_std, obs), network_output(plain, theta, obs))


def test_to_unit_by_hand_and_refusal() -> None:
    # [1, 5]: 1 is -1, 3 is 0, 4 is 0.5.
    spec = box_spec(1, low=1.0, high=5.0)
    actions = torch.tensor([[1.0], [3.0], [4.0], [5.0]])
    assert to_unit(spec, actions).flatten().tolist() == [-1.0, 0.0, 0.5, 1.0]
    with pytest.raises(TypeError, match="discrete"):
        to_unit(discrete_spec(), torch.zeros(3))

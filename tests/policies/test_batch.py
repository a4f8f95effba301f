from __future__ import annotations

import numpy as np
import pytest
import torch

from libtools import box_spec, discrete_spec, make_policies
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.actor import Actor
from pbvf_offline.policies.batch import network_output, squashed, to_unit
from pbvf_offline.policies.spec import PolicySpec


@pytest.mark.parametrize("squash", ["tanh", "none"])
def test_squashed_outputs_are_the_actors_actions(squash: str, rng: np.random.Generator) -> None:
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
    out = network_output(spec, torch.from_numpy(theta).double(), torch.from_numpy(obs))
    assert torch.allclose(
        to_unit(spec, torch.from_numpy(executed)), squashed(spec, out), atol=1e-12
    )


def test_to_unit_by_hand_and_refusal() -> None:
    # [1, 5]: 1 is -1, 3 is 0, 4 is 0.5.
    spec = box_spec(1, low=1.0, high=5.0)
    actions = torch.tensor([[1.0], [3.0], [4.0], [5.0]])
    assert to_unit(spec, actions).flatten().tolist() == [-1.0, 0.0, 0.5, 1.0]
    with pytest.raises(TypeError, match="discrete"):
        to_unit(discrete_spec(), torch.zeros(3))

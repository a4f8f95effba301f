"""Policies near others, inside the trust region."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.critics.trust_region import shrink
from pbvf_offline.critics.views import ThetaView
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.policies.policy import Policies

_NEAR, _FAR = 0.04, 0.5  # how far: of the spread of the data's policies, or of the region
_TINY = 1e-3  # a step, relative to theta, over which a network counts as linear
_HALVINGS = 10


def neighbours(
    file: CriticFile, policies: Policies, radius: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return a neighbour (K, D) of each policy, at a distance that is drawn.

    Where the trust region is a ball in theta, a neighbour lies in a random direction of the
    data's own spread and is drawn back to the ball. Else theta moves in a random direction, as
    far as changes what the policy does by the distance wanted; what leaves the region goes half
    as far, again and again, and in the end stays.

    Args:
        file: The critic.
        policies: K policies in its normaliser. One outside the trust region has its neighbour
            inside, where that is a ball in theta; else it is its own neighbour.
        radius: Radius of the trust region, in units of the 95 % quantile.
        rng: Source of directions and distances.
    """
    region, spec = file.context.region, policies.spec
    theta = torch.from_numpy(policies.theta)
    far = np.exp(rng.uniform(math.log(_NEAR), math.log(_FAR), (len(theta), 1)))
    if isinstance(file.critic.view, ThetaView):
        white = region.whiten(theta)
        white += torch.from_numpy(far * rng.standard_normal(white.shape))
        near: NDArray[np.float32] = region.colour(shrink(white, radius * region.quantile)).numpy()
        return near
    critic = file.critic_of(spec)
    theta = theta.to(critic.device)
    drawn = rng.standard_normal(theta.shape).astype(np.float32)
    direction = torch.from_numpy(drawn).to(theta.device)
    length = torch.linalg.vector_norm(theta, dim=1, keepdim=True)
    direction *= _TINY * length / torch.linalg.vector_norm(direction, dim=1, keepdim=True)
    with torch.no_grad():
        places = [critic.view.place(spec, theta + by * direction) for by in (0, 1)]
        away = region.whiten(places[1]) - region.whiten(places[0])
        moved = torch.linalg.vector_norm(away, dim=1, keepdim=True).clamp_min(1e-12)
        length = torch.from_numpy(far).to(moved.device) * region.quantile / moved
        step = direction * length.float().to(theta.device)
        for _ in range(_HALVINGS):
            outside = file.distance(theta + step, spec) > radius
            step[outside.to(step.device)] *= 0.5
        step[(file.distance(theta + step, spec) > radius).to(step.device)] = 0.0
    moved_there: NDArray[np.float32] = (theta + step).cpu().numpy()
    return moved_there

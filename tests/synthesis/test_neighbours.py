"""Neighbours of policies: how far they are, and that they stay in the trust region."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from libtools import box_spec, make_data, make_file
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.synthesis.neighbours import neighbours


def center(file: CriticFile, hidden: tuple[int, ...], count: int) -> Policies:
    """Policies whose outputs are small, as fresh ones' are."""
    spec = dataclasses.replace(file.spec, hidden=hidden)
    fresh = np.stack([init_theta(spec, np.random.default_rng(k)) for k in range(count)])
    return file.policies((0.3 * fresh).astype(np.float32), spec)


@pytest.mark.parametrize(("fingerprint", "hidden"), [(0, ()), (6, ()), (6, (5,))])
def test_they_are_near_and_inside(fingerprint: int, hidden: tuple[int, ...]) -> None:
    data = make_data(box_spec(2), policies=30)
    file = make_file("pssvf", 1, data, gamma=1.0, fingerprint=fingerprint)
    policies = center(file, hidden, 40)
    before = policies.theta.copy()
    near = neighbours(file, policies, 1.2, np.random.default_rng(0))
    np.testing.assert_array_equal(policies.theta, before)
    assert near.dtype == np.float32
    distance = file.distance(torch.from_numpy(near), policies.spec).detach().numpy()
    assert distance.max() <= 1.2 + 1e-6
    place = file.critic_of(policies.spec).view.place
    away = [
        file.context.region.whiten(place(policies.spec, torch.from_numpy(theta)).detach())
        for theta in (near, policies.theta)
    ]
    moved = torch.linalg.vector_norm(away[0] - away[1], dim=1) / file.context.region.quantile
    assert moved.min() > 0.005
    assert moved.quantile(0.9) < 0.75
    assert moved.max() > 3 * moved.min()  # distances are drawn
    again = neighbours(file, policies, 1.2, np.random.default_rng(0))
    np.testing.assert_array_equal(again, near)


def test_what_cannot_move_inside_the_region_stays() -> None:
    file = make_file("pssvf", 1, make_data(box_spec(2), policies=30), gamma=1.0, fingerprint=6)
    policies = center(file, (5,), 8)
    stuck = neighbours(file, policies, 1e-9, np.random.default_rng(0))
    np.testing.assert_array_equal(stuck, policies.theta)

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis

from pbvf_offline.critics.trust_region import TrustRegion, shrink


def correlated(rows: int, size: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(size, size))
    return (rng.normal(size=(rows, size)) @ mixing + rng.normal(size=size)).astype(np.float32)


def test_full_distance_is_scipys_mahalanobis() -> None:
    theta = correlated(200, 4)
    region = TrustRegion.of(theta)
    assert region.factor.shape == (4, 4)
    wide = theta.astype(float)
    inverse = np.linalg.inv(np.cov(wide.T, bias=True))
    points = wide[:20] * 1.5 + 0.3
    want = [mahalanobis(p, wide.mean(axis=0), inverse) for p in points]
    got = region.distance(torch.from_numpy(points))
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(want, rel=1e-3)


def test_few_policies_use_the_diagonal() -> None:
    theta = correlated(12, 6)
    region = TrustRegion.of(theta)
    assert region.factor.shape == (6,)
    wide = theta.astype(float)
    want = np.sqrt((((wide - wide.mean(axis=0)) / wide.std(axis=0)) ** 2).sum(axis=1))
    assert region.distance(torch.from_numpy(theta)).tolist() == pytest.approx(want, rel=1e-6)


def test_distances_by_hand() -> None:
    # Four policies (+-1, +-2): center 0, deviations 1 and 2; (1, 2) is at sqrt(1 + 1).
    theta = np.array([[1, 2], [1, -2], [-1, 2], [-1, -2]], np.float32)
    for rows in (theta, np.tile(theta, (10, 1))):  # diagonal, then a full covariance
        region = TrustRegion.of(rows)
        points = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
        assert region.distance(points).tolist() == pytest.approx(
            [np.sqrt(2), 3.0, 2.0, 0.0], rel=1e-5
        )
        assert region.quantile == pytest.approx(np.sqrt(2), rel=1e-5)


@pytest.mark.parametrize("rows", [20, 300])
def test_quantile_is_of_the_datasets_own_distances(rows: int) -> None:
    theta = correlated(rows, 5)
    region = TrustRegion.of(theta)
    distances = region.distance(torch.from_numpy(theta)).numpy()
    assert region.quantile == pytest.approx(np.quantile(distances, 0.95), rel=1e-9)
    assert np.mean(distances <= region.quantile * (1 + 1e-9)) == pytest.approx(0.95, abs=0.051)


@pytest.mark.parametrize("rows", [20, 300])
def test_whitened_coordinates(rows: int) -> None:
    theta = correlated(rows, 5)
    region = TrustRegion.of(theta)
    white = region.whiten(torch.from_numpy(theta))
    assert torch.allclose(white.norm(dim=1), region.distance(torch.from_numpy(theta)))
    assert torch.allclose(region.colour(white), torch.from_numpy(theta), atol=1e-4)
    # The chain rule: d f / d white = factor^T d f / d theta, for f(theta) = sum of sines.
    point = white[:3].clone().requires_grad_()
    factor = torch.from_numpy(region.factor)
    away = point * factor if factor.dim() == 1 else point @ factor.T
    reached = away + torch.from_numpy(region.center)
    torch.sin(reached).sum().backward()
    pulled = region.pull_back(torch.cos(reached).detach())
    assert torch.allclose(pulled, point.grad)


@pytest.mark.parametrize("rows", [20, 300])
def test_shrinking_ends_on_the_edge_along_the_ray(rows: int) -> None:
    region = TrustRegion.of(correlated(rows, 5))
    center = torch.from_numpy(region.center)
    outside = (center + 30 * torch.randn(8, 5, dtype=torch.float64)).float()
    assert torch.all(region.distance(outside) > 0.7)
    moved = region.colour(shrink(region.whiten(outside), 0.7))
    assert moved.dtype == torch.float32
    assert torch.allclose(region.distance(moved), torch.tensor(0.7).double(), rtol=1e-4)
    # Along the ray: moved - center is a positive multiple of outside - center.
    a, b = outside.double() - center, moved.double() - center
    cosine = (a * b).sum(1) / a.norm(dim=1) / b.norm(dim=1)
    assert torch.all(cosine > 1 - 1e-6)


def test_shrinking_leaves_the_inside_untouched() -> None:
    white = torch.randn(20, 4, dtype=torch.float64)
    radius = float(white.norm(dim=1).max()) * 1.001
    assert torch.equal(shrink(white, radius), white)
    assert torch.equal(shrink(torch.zeros(1, 4), 0.5), torch.zeros(1, 4))


def singular(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(100, 4)).astype(np.float32)
    if kind == "constant":
        theta[:, 2] = 7.0
    elif kind == "copied":
        theta[:, 3] = theta[:, 0]
    elif kind == "scales":
        theta[:, 1] *= 1e5
        theta[:, 3] = theta[:, 1]
    elif kind == "few":
        theta = np.tile(theta[:2], (50, 1))
    elif kind == "equal":
        theta[:] = theta[0]
    elif kind == "one":
        theta = theta[:1]
    return theta


@pytest.mark.parametrize("kind", ["constant", "copied", "scales", "few", "equal", "one"])
def test_data_without_spread_somewhere(kind: str) -> None:
    theta = singular(kind)
    region = TrustRegion.of(theta)
    distances = region.distance(torch.from_numpy(theta))
    assert torch.all(torch.isfinite(distances))
    assert region.quantile > 0
    assert np.all(np.isfinite(region.factor))
    away = torch.from_numpy(theta[:1]) + 10.0
    moved = region.colour(shrink(region.whiten(away), region.quantile))
    assert torch.all(torch.isfinite(moved))
    if kind == "constant":
        # A direction in which no policy differs is a thin one: going there counts as far.
        step = torch.from_numpy(region.center.copy())[None]
        step[0, 2] += 1.0
        assert region.distance(step).item() > 100 * region.quantile

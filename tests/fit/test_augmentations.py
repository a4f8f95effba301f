"""What every augmentation holds, those of installed packages included; blurring by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from libtools import box_spec, discrete_spec, fit_settings, make_data, make_file
from pbvf_offline.critics.base import ThetaDraw
from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_offline.fit.augment import AUGMENTATIONS, RELABEL
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.fit.loop import advance, start_fit, training_set
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.policies.normaliser import Normaliser

CPU = torch.device("cpu")
DATA = make_data(box_spec(2, (3,), 2), policies=12)
THETA = DATA.policies.theta
every_augmentation = pytest.mark.parametrize("name", AUGMENTATIONS)


def made(name: str, strength: float = 0.1) -> ThetaDraw:
    return AUGMENTATIONS[name](DATA, THETA, Normaliser.identity(2), strength, CPU)


def drawn(name: str, strength: float, rows: torch.Tensor, seed: int = 0) -> torch.Tensor:
    draw = made(name, strength)
    noise = torch.randn(len(rows), *draw.noise_shape, generator=torch.Generator().manual_seed(seed))
    return draw.draw(torch.from_numpy(THETA), rows, noise)


@every_augmentation
def test_draws_are_policies_decided_by_rows_and_noise(name: str) -> None:
    rows = torch.tensor([3, 0, 3, 11, 5])
    kept = THETA.copy()
    first = drawn(name, 0.1, rows)
    assert first.shape == (5, THETA.shape[1])
    assert first.dtype == torch.float32
    assert torch.isfinite(first).all()
    assert np.array_equal(THETA, kept)
    assert torch.equal(first, drawn(name, 0.1, rows))
    assert not torch.equal(first, drawn(name, 0.1, rows, seed=1))
    assert not torch.equal(first[0], first[2])  # one policy, other noise
    assert not torch.equal(first, drawn(name, 0.2, rows))


@every_augmentation
def test_a_smaller_strength_stays_nearer_to_the_policies_that_acted(name: str) -> None:
    rows = torch.arange(len(THETA))
    away = [(drawn(name, s, rows) - torch.from_numpy(THETA)).norm() for s in (1e-3, 0.1, 1.0)]
    assert away[0] < away[1] < away[2]


@every_augmentation
def test_a_critic_learns_from_draws_and_its_file_says_so(name: str, tmp_path: Path) -> None:
    settings = fit_settings("psvf", relabel=0.2, augment=name)
    file = make_file("psvf", 5, DATA, relabel=0.2, augment=name)
    plain = make_file("psvf", 5, DATA)
    fit = start_fit(DATA, settings, CPU)
    advance(fit, training_set(fit, DATA, CPU), 5)
    assert fit.loss != plain.fit.loss
    path = tmp_path / "c.safetensors"
    file.save(path)
    assert load_critic(path).fit.settings.augment == name
    assert settings.format_version == (1 if name == RELABEL else 2)


def test_a_critic_of_an_augmentation_that_is_not_installed(tmp_path: Path) -> None:
    content, tensors = decode("critic", make_file("psvf", 1, DATA).encode(), "x")
    content["settings"]["augment"] = "their-own"
    path = tmp_path / "c.safetensors"
    path.write_bytes(encode("critic", content, tensors))
    with pytest.raises(IncompatibleError, match="no augmentation 'their-own' is installed here"):
        load_critic(path)


def test_blurring_by_hand() -> None:
    rows = torch.zeros(20_000, dtype=torch.int64)
    spread = (drawn("blur", 0.5, rows) - torch.from_numpy(THETA[0])).std(dim=0)
    assert spread.numpy() == pytest.approx(0.5 * THETA.std(axis=0), rel=0.05)


def test_refusals() -> None:
    with pytest.raises(
        UsageError, match=r"--augment: there is no augmentation .x.; choose one of .*relabel"
    ):
        fit_settings("psvf", augment="x")
    with pytest.raises(UsageError, match=r"--augment: blur of strength 0 .*--relabel"):
        fit_settings("psvf", augment="blur", relabel=0.0)
    for spec in (discrete_spec(2), box_spec(2, stochastic=True)):
        data = make_data(spec, policies=4)
        fit = start_fit(data, fit_settings("psvf", relabel=0.2), CPU)
        with pytest.raises(IncompatibleError, match="--relabel 0"):
            training_set(fit, data, CPU)
    # The PAVF of stochastic policies has draws of its own.
    data = make_data(box_spec(2, stochastic=True), policies=4)
    fit = start_fit(data, fit_settings("pavf", relabel=0.2, augment="blur"), CPU)
    with pytest.raises(IncompatibleError, match="draws actions"):
        training_set(fit, data, CPU)

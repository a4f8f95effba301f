from __future__ import annotations

import pytest

from pbvf_offline.presets.offline import (
    ENVIRONMENTS,
    EnvPreset,
    default_gamma,
    default_reward,
    env_preset,
)


def test_families_match_any_version_and_module() -> None:
    for name in ("Swimmer-v5", "Swimmer-v4", "module:Swimmer-v0"):
        assert env_preset(name) == ENVIRONMENTS["Swimmer"]
    for name in (None, "Other-v0", "MySwimmer-v5", "lab/Swimmer-v5"):
        assert env_preset(name) == EnvPreset()


def test_the_papers_discounts() -> None:
    for kind in ("psvf", "pavf"):
        assert default_gamma(kind, "Swimmer-v5") == 0.999
        assert default_gamma(kind, "Hopper-v5") == 0.99
        assert default_gamma(kind, None) == 0.99
    # The PSSVF's objective is the undiscounted return of an episode.
    assert default_gamma("pssvf", "Swimmer-v5") == 1.0


def test_the_papers_rewards() -> None:
    # Only the PSSVF does without Hopper's survival bonus.
    assert default_reward("pssvf", "Hopper-v5") == "without-survival"
    assert default_reward("psvf", "Hopper-v5") == "raw"
    assert default_reward("pavf", "Hopper-v5") == "raw"
    assert default_reward("pssvf", "Swimmer-v5") == "raw"


def test_the_lqr_neither_squashes_nor_normalises() -> None:
    lqr = env_preset("LQR-v0")
    assert (lqr.squash, lqr.normalize) == ("none", False)
    assert (EnvPreset().squash, EnvPreset().normalize) == ("tanh", True)


def test_unknown_critic() -> None:
    with pytest.raises(KeyError):
        default_gamma("ddpg", None)

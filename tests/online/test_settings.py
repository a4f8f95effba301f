"""Settings of a training run and where each is from."""

from __future__ import annotations

import pytest

from libtools import box_spec
from pbvf_offline.online.settings import online_defaults


@pytest.mark.parametrize("kind", ["pssvf", "psvf"])
def test_what_the_paper_states_of_critics_over_states_is_not_said_of_the_pssvf(kind: str) -> None:
    usual = online_defaults(kind, "Swimmer-v5", box_spec(8), seed=0)
    states = "paper default for psvf" if kind == "psvf" else "default"
    assert usual.source_of("activation") == states
    assert usual.source_of("actor_states") == states
    assert usual.source_of("batch_size") == f"paper default for {kind}"
    assert usual.source_of("hidden") == (states if kind == "psvf" else "the authors' code")

"""Curves become groups, and groups the lines of a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_runs.compare.figures import draw_learning_curves, figure_image, thousands
from pbvf_runs.compare.learning_curves import Curve
from pbvf_runs.compare.panels import Panel, panels
from pbvf_runs.compare.statistics import estimate, interquartile_mean


def curve(seed: int = 0, *, place: str = "A-v0", steps=(10, 20, 30), **settings: Any) -> Curve:
    values = np.arange(len(steps)) + 100.0 * seed
    name = f"{place}-{settings}-{seed}"
    return Curve(Path(name), place, settings, seed, np.array(steps), values, steps[-1])


def grouped(*curves: Curve, metric: str = "return") -> list[Panel]:
    return panels(curves, metric, "iqm")


def test_curves_that_differ_in_their_seed_are_one_group_sorted_by_it() -> None:
    (panel,) = grouped(*(curve(seed, sigma=1) for seed in (3, 0, 4, 1, 2)))
    (group,) = panel.groups
    assert [c.seed for c in group.curves] == [0, 1, 2, 3, 4]
    assert (group.label, group.differs, group.settings) == ("", {}, {"sigma": 1})
    assert group.values.tolist() == [[s * 100.0 + k for k in range(3)] for s in range(5)]
    wanted = estimate(interquartile_mean, group.values)
    assert group.estimate.value.tolist() == [200.0, 201.0, 202.0]
    assert group.estimate.to_dict() == wanted.to_dict()
    assert wanted.low is not None


def test_environments_have_panels_of_their_own() -> None:
    found = grouped(curve(place="A-v0"), curve(place="B-v0"), curve(1, place="A-v0"))
    assert [(panel.title, len(panel.groups)) for panel in found] == [("A-v0", 1), ("B-v0", 1)]
    assert len(found[0].groups[0].curves) == 2


def test_labels_are_the_first_settings_that_tell_groups_apart() -> None:
    def labels(*settings: dict[str, Any]) -> list[str]:
        (panel,) = grouped(*(curve(**each) for each in settings))
        return [group.label for group in panel.groups]

    # What comes with another critic does not make the label longer.
    one, other = {"critic": "psvf", "lr": 0.1}, {"critic": "pssvf", "lr": 0.2}
    assert labels(one, other) == ["psvf", "pssvf"]
    assert labels(one, other, {"critic": "psvf", "lr": 0.2}) == [
        "psvf, lr 0.1", "pssvf, lr 0.2", "psvf, lr 0.2",
    ]  # fmt: skip
    assert labels({"biased": False, "hidden": [64, 64]}, {"biased": True, "hidden": [8]}) == [
        "not biased", "biased",
    ]  # fmt: skip
    assert labels({"hidden": [64, 64]}, {}) == ["hidden 64,64", "no hidden"]
    assert labels({"base": None}, {"base": "ab12"}) == ["fresh policies", "base ab12"]
    (panel,) = grouped(curve(**one), curve(**other))
    assert panel.groups[0].differs == one


def test_a_group_is_drawn_where_all_of_it_was_measured() -> None:
    (panel,) = grouped(curve(0, steps=(10, 20, 30, 40)), curve(1, steps=(20, 40, 60)))
    (group,) = panel.groups
    assert group.steps.tolist() == [20, 40]
    assert group.values.tolist() == [[1, 3], [100, 101]]
    with pytest.raises(IncompatibleError, match="no step in common"):
        grouped(curve(0, steps=(10, 30)), curve(1, steps=(20, 40)))


def test_perturbed_returns_of_episodes_that_end_at_other_steps() -> None:
    (panel,) = grouped(
        curve(0, steps=(30, 70, 200)), curve(1, steps=(50, 180)), metric="perturbed-return"
    )
    (group,) = panel.groups
    # From where both have an episode to where the shorter one is, each as its last one left it.
    assert (group.steps[0], group.steps[-1]) == (50, 180)
    at = group.steps.tolist().index(70)
    assert group.values[:, at - 1].tolist() == [0, 100]
    assert group.values[:, at].tolist() == [1, 100]
    assert group.values[:, -1].tolist() == [1, 101]


def test_the_same_run_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="settings and seed 1 are the same; leave one"):
        grouped(curve(0), curve(1), curve(1))


def test_a_figure_says_what_lines_and_bands_are_and_these_stay_inside() -> None:
    many = [curve(seed, sigma=1) for seed in range(5)]
    few = [curve(seed, sigma=2) for seed in range(2)]
    found = grouped(*many, *few, curve(place="B-v0"))
    figure = draw_learning_curves(found, "return", "iqm")
    axes = figure.axes[0]
    assert axes.get_title() == "A-v0"
    assert [line.get_label() for line in axes.lines if not line.get_label().startswith("_")] == [
        "sigma 1, 5 seeds", "sigma 2, 2 seeds",
    ]  # fmt: skip
    assert len(axes.lines) == 4  # of the few the single ones too
    (band,) = axes.collections
    edges = band.get_paths()[0].vertices[:, 1]
    assert edges.min() >= 0
    assert edges.max() <= 402
    assert figure.axes[1].get_title() == "B-v0 (1 seed)"
    title = figure.get_suptitle()
    assert "interquartile mean" in title
    assert "thin: each seed" in title
    figure = draw_learning_curves(grouped(*many), "return", "median")
    assert figure.get_suptitle() == "line: median over the seeds; band: 95 % bootstrap interval"
    assert figure.axes[0].get_legend() is None


def test_marks_of_an_axis_are_at_whole_steps() -> None:
    axes = Figure().subplots()
    axes.plot([1, 2, 3, 4], [0.0, 1.0, 0.5, 1.5])
    thousands(axes)
    marks = axes.get_xticks()
    assert len(marks) >= 3
    assert np.array_equal(marks, np.round(marks))


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_figure_has_the_same_bytes_again(suffix: str) -> None:
    found = grouped(curve(0, sigma=1), curve(1, sigma=1), curve(0, sigma=2))
    one, two = (
        figure_image(draw_learning_curves(found, "return", "iqm"), suffix) for _ in range(2)
    )
    assert one == two
    other = draw_learning_curves(grouped(curve(0), curve(1)), "return", "iqm")
    assert figure_image(other, suffix) != one

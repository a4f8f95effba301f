import copy
import json

import pytest

from make_episodes import BOX_SPEC, DISCRETE_SPEC
from pbvf_datasets.card import card_text
from test_manifest import PROVENANCE

RETURNS = [float(n) for n in range(101)]


def text(returns=RETURNS, spec=BOX_SPEC, command=None, **changes):
    provenance = {**copy.deepcopy(PROVENANCE), **changes}
    return card_text("lab/x-v0", provenance, spec=spec, returns=returns, command=command)


def test_header_for_the_hub():
    _, header, _ = text(license="CC-BY-4.0").split("---\n", 2)
    assert 'license: "cc-by-4.0"' in header
    assert "task_categories:\n- reinforcement-learning\n" in header
    assert "- offline-rl\n" in header


def test_a_missing_licence_is_said():
    card = text(license=None)
    assert "license:" not in card
    assert "| licence | none given |" in card


def test_an_odd_licence_stays_one_quoted_line():
    _, header, _ = text(license="mine: [see\nthe file]").split("---\n", 2)
    assert "license: other\nlicense_name: " in header
    line = next(row for row in header.splitlines() if row.startswith("license_name: "))
    assert json.loads(line.removeprefix("license_name: ")) == "mine: [see the file]"


def test_what_the_card_tells():
    card = text(
        command="pbvf collect Toy-v0 --dataset lab/x-v0 --steps 2", warmup_steps=1234, seed=7
    )
    for part in (
        "`Toy-v0`",
        "| sigma | 0.5 |",
        "seed 7",
        "1,234 warm-up",
        "pbvf collect Toy-v0 --dataset lab/x-v0 --steps 2",
        'load_dataset("lab/x-v0")',
        'minari.load_dataset("lab/x-v0")',
        "| authors | A |",
        "deterministic, linear, 4 parameters, 3 observations, 1 continuous actions",
        "| python | 3.11 |",
    ):
        assert part in card, part
    assert "2 discrete actions" in text(spec=DISCRETE_SPEC)


def test_histogram_by_hand():
    lines = text(returns=[0.0, 0.0, 5.0, 10.0]).split("```text\n")[1].split("\n```")[0].split("\n")
    assert len(lines) == 10
    assert lines[0] == " 0 to  1 | 2 " + "#" * 40
    assert lines[5] == " 5 to  6 | 1 " + "#" * 20
    assert lines[9] == " 9 to 10 | 1 " + "#" * 20
    assert lines[1] == " 1 to  2 | 0"


@pytest.mark.parametrize("returns", [[3.0], [3.0, 3.0], [-1e308, 1e308], [0.0, 5e-324]])
def test_extreme_returns_have_a_histogram(returns):
    block = text(returns=returns).split("```text\n")[1].split("\n```")[0]
    counts = [int(line.split("|")[1].split()[0]) for line in block.split("\n")]
    assert sum(counts) == len(returns)


def test_no_whole_episode():
    card = text(returns=[], stats={**PROVENANCE["stats"], "return": None, "cut": 1})
    assert "no whole episode" in card
    assert "```text" not in card


def test_no_environment_and_no_command():
    card = text(environment=None)
    assert "an unnamed environment" in card
    assert "```bash" not in card


def test_strangers_text_cannot_break_the_layout():
    card = text(authors=["a | b\n```\nrm"], command="pbvf collect 'x```y'\n# heading")
    assert "a / b ''' rm" in card
    assert "\n# heading" not in card
    assert card.count("```") % 2 == 0


def test_withheld_arguments_are_named_without_their_values():
    environment = {"id": "S-v5", "module": "toy", "kwargs": {"n": 1}, "withheld": ["xml_file"]}
    card = text(environment=environment)
    assert "| arguments not stored | xml_file |" in card
    assert '| arguments | {"n": 1} |' in card
    assert "| registered by | toy |" in card


def test_equal_input_equal_text():
    assert text() == text()
    assert text().endswith("\n")

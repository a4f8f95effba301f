import copy
import re

import pytest

from make_episodes import BOX_SPEC, DISCRETE_SPEC
from pbvf_datasets.format.card import card_text, citation
from writer_tools import PROVENANCE

RETURNS = [float(n) for n in range(101)]


def text(returns=RETURNS, spec=BOX_SPEC, command=None, sha=None, **changes):
    provenance = {**copy.deepcopy(PROVENANCE), **changes}
    return card_text(
        "lab/x-v0", provenance, spec=spec, returns=returns, command=command, data_sha256=sha
    )


def header(card):
    """The header as the Hub reads it."""
    yaml = pytest.importorskip("yaml")
    assert card.startswith("---\n")
    return yaml.safe_load(card.split("---\n", 2)[1])


def stats(**changes):
    return {"stats": {**PROVENANCE["stats"], **changes}}


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


# ------------------------------------------------------------------------- the Hub's header


@pytest.mark.parametrize(
    ("license", "expected"),
    [
        ("CC-BY-4.0", {"license": "cc-by-4.0"}),
        ("MIT", {"license": "mit"}),
        ("GPL-3.0-or-later", {"license": "gpl-3.0"}),
        ("ODbL-1.0", {"license": "odbl"}),
        ("MIT-0", {"license": "other", "license_name": "MIT-0"}),
        ("ours 😀 é: #1", {"license": "other", "license_name": "ours 😀 é: #1"}),
        ("a\x07b\u2028c\udcff", {"license": "other", "license_name": "a?b c?"}),
        (None, {}),
    ],
)
def test_the_header_names_licences_as_the_hub_does(license, expected):
    found = header(text(license=license))
    assert {k: v for k, v in found.items() if k.startswith("license")} == expected
    text(license=license).encode("utf-8")


def test_the_whole_header():
    assert header(text(license="MIT")) == {
        "pretty_name": "lab/x-v0",
        "license": "mit",
        "task_categories": ["reinforcement-learning"],
        "tags": [
            "reinforcement-learning",
            "offline-rl",
            "parameter-based-value-functions",
            "minari",
        ],
        "size_categories": ["n<1K"],
    }


@pytest.mark.parametrize(
    ("steps", "size"),
    [
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (99_999, "10K<n<100K"),
        (100_000, "100K<n<1M"),
        (10**9, "1B<n<10B"),
        (10**12, "n>1T"),
    ],
)
def test_sizes_are_steps_in_the_hubs_words(steps, size):
    assert header(text(**stats(steps=steps)))["size_categories"] == [size]


def test_a_name_in_another_script_stays_one():
    card = card_text("labö/日本-v0", PROVENANCE, spec=BOX_SPEC, returns=[])
    assert header(card)["pretty_name"] == "labö/日本-v0"


# -------------------------------------------------------------------- statistics, citation


def test_lengths_and_ends_of_episodes():
    more = {"terminated": 7, "length": {"mean": 12.5, "min": 3, "max": 1000}}
    card = text(**stats(episodes=20, cut=1, **more))
    assert "| steps an episode | mean 12.5, 3 to 1,000 |" in card
    ends = "20: 19 whole (7 terminated, 12 truncated), 1 cut by the step budget"
    assert f"| episodes | {ends} |" in card
    assert "steps an episode" not in text()


def test_the_citation_is_bibtex_without_a_date():
    sha = "ab" * 32
    card = text(authors=["Ada {Lovelace}", "B_o & C\\o"], sha=sha)
    entry = card.split("```bibtex\n")[1].split("\n```")[0]
    first, second = re.findall(r"^@(\w+)\{([\w-]+),$", entry, re.MULTILINE)
    assert first == ("misc", "lab-x-v0")
    assert second[0] == "inproceedings"
    assert "author = {Ada Lovelace and B\\_o \\& Co}" in entry
    assert f"SHA-256 of data/main\\_data.hdf5: {sha}" in entry
    assert entry.count("{") == entry.count("}")
    assert not re.search(r"20\d\d", entry.split("@inproceedings")[0])
    assert "author" not in citation("x-v0", {**PROVENANCE, "authors": []}, None)
    assert "SHA-256" not in citation("x-v0", PROVENANCE, None)


def test_the_licence_section_says_what_none_means():
    assert "\n## Licence\n\nMIT.\n" in text(license="MIT")
    assert "may not use the data without asking" in text(license=None)


# ----------------------------------------------------------------------- made from others


def source(k=0, *, made_of=(), **changes):
    origin = {key: value for key, value in PROVENANCE.items() if key != "spec"}
    return {
        "id": f"lab/s{k}-v0",
        "digest": f"{k:064x}",
        "verified": True,
        "episodes": 3,
        "steps": 4000,
        "from": list(made_of),
        "provenance": {**origin, "command": f"pbvf collect {k}", **changes},
    }


def test_what_a_merge_goes_back_to():
    merged = source(2, made_of=["0" * 64], settings={"operation": "merge"}, seed=None)
    unknown = {**source(3), "provenance": None, "verified": False}
    card = text(
        sources=[source(0, license="MIT"), merged, unknown],
        settings={"operation": "merge", "sources": ["0" * 64], "top": None, "keep": False},
        command="pbvf dataset merge …",
        warmup_steps=50,
        seed=None,
    )
    rows = [line for line in card.splitlines() if line.startswith("| lab/s")]
    assert rows == [
        "| lab/s0-v0 | 0000000000000000 | 3 | 4,000 | 0 | MIT | collected |",
        "| lab/s2-v0 | 0000000000000000 | 3 | 4,000 | none | none given | merge |",
        "| lab/s3-v0 | 0000000000000000 | 3 | 4,000 | not known | not known | unverified |",
    ]
    assert "From other datasets, with pbvf-offline 0.1.0.\n" in card
    assert "pbvf collect 0\npbvf collect 2\n```" in card
    assert "50 warm-up steps were run for observation normalisers" in card
    assert "| keep | false |" in card
    assert "| top |" not in card
    assert "0" * 64 not in card
    assert "seed 5." in text(sources=[source()], seed=5)


def test_very_many_sources_are_cut_short():
    card = text(sources=[source(k) for k in range(120)])
    assert len([line for line in card.splitlines() if line.startswith("| lab/s")]) == 50
    assert "and 70 more." in card
    assert "and 100 more, in `manifest.json`." in card


def test_sources_cannot_break_the_layout():
    card = text(sources=[source(0, command="x\n```\n# heading\x1b[31m", settings={"operation": 3})])
    assert "\n# heading" not in card
    assert "\x1b" not in card
    assert card.count("```") % 2 == 0
    assert "| collected |" in card
    assert "| made of others |" in text(sources=[source(1, made_of=["0" * 64], settings={})])

"""What the documentation site makes from the source is complete, and its comments are checked."""

from __future__ import annotations

import re

import pytest
import yaml

import pbvf_offline
from cli_tools import pbvf
from pbvf_cli.app import COMMANDS
from pbvf_offline.records import Record, fields
from scripts.site_content import ROOT, expand, public_names


def test_every_option_of_every_command_is_in_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    page = expand("<!-- site: commands -->")
    parts = dict(re.findall(r"^## `pbvf ([^`]+)`\n(.*?)(?=^## |\Z)", page, flags=re.M | re.S))
    assert list(parts) == list(COMMANDS)
    for name, part in parts.items():
        terms = "\n".join(re.findall(r"^`(.+)`$", part, flags=re.M))
        shown = set(re.findall(r"--[a-z0-9-]+", terms))
        # At the start of a line of the help stand the options that it explains.
        told = set(re.findall(r"^  (--[a-z0-9-]+)", pbvf(*name.split(), "--help").out, flags=re.M))
        assert told - {"--help"} <= shown, name
        assert {"--json", "--debug"} <= shown


def _records(of: type[Record] = Record) -> set[type[Record]]:
    return {of}.union(*map(_records, of.__subclasses__()))


def test_every_setting_that_the_paper_has_is_in_the_table_of_symbols() -> None:
    page = expand("<!-- site: symbols -->\n<!-- site: critics -->")
    known = [f for record in _records() - {Record} for f in fields(record) if f.about is not None]
    named = [f for f in known if f.about and (f.about.symbol or f.about.paper)]
    assert {"gamma", "sigma", "batch_size", "actor_states"} <= {field.name for field in named}
    for field in named:
        assert f"| `{field.option}` |" in page, field.name
    assert "| γ | section 2, discount factor; Algorithm 1 has none | `--gamma` |" in page
    for critic in ("pssvf", "psvf", "pavf"):
        assert f"`--critic {critic}`" in page


def test_files_sections_and_references() -> None:
    assert expand("<!-- site: section README.md Licence -->").strip().startswith("MIT.")
    assert "](results/README.md)" in expand("<!-- site: introduction README.md -->")
    assert public_names()["predict"] == "pbvf_offline"
    text = expand("see :meth:`CriticFile.predict` and :mod:`pbvf_offline.envs`")
    assert text == (
        "see [`CriticFile.predict`][pbvf_offline.CriticFile.predict] and `pbvf_offline.envs`"
    )


@pytest.mark.parametrize("comment", ["nothing", "section README.md Nothing"])
def test_a_comment_that_asks_for_nothing_known_is_refused(comment: str) -> None:
    with pytest.raises(ValueError, match=r"no nothing|no section 'Nothing'"):
        expand(f"<!-- site: {comment} -->")


def test_notebook_is_shown_with_its_output_and_figure() -> None:
    page = expand("<!-- site: notebook tutorials/look.ipynb -->")
    assert page.startswith("# Look at a critic")
    assert "```text\npolicies, parameters: (300, 2)" in page
    assert 'src="data:image/png;base64,' in page


def test_citation_names_this_version_and_the_paper() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    # What the schema of the Citation File Format 1.2.0 requires, and its types that are used.
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert (cited["version"], cited["license"]) == (pbvf_offline.__version__, "MIT")
    assert cited["authors"] == [{"name": "pbvf-offline contributors"}]
    paper = cited["preferred-citation"]
    assert {"type", "title", "authors"} <= set(paper)
    assert paper["type"] == "conference-paper"
    assert [author["family-names"] for author in paper["authors"]] == [
        "Faccio",
        "Kirsch",
        "Schmidhuber",
    ]
    assert "2006.09226" in paper["doi"]
    assert set(paper["conference"]) == {"name"}

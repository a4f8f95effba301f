"""Pages of ``pbvf report``: what is in one, and files to make one of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec

SPEC = PolicySpec(obs_dim=2, hidden=(), actions=BoxActions((-1.0,), (1.0,), "float32"))


def write_policies(path: Path, count: int, origin: Mapping[str, Any]) -> Path:
    """Write random linear policies with an origin of one's own."""
    theta = np.random.default_rng(0).standard_normal((count, SPEC.size)).astype(np.float32)
    held = Policies(SPEC, theta, np.zeros((count, 2)), np.ones((count, 2)))
    PoliciesFile(held, None, origin).save(path)
    return path


class Page(HTMLParser):
    """The elements of a page, and the text inside its scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def chart(path: Path, words: str) -> dict[str, Any]:
    """The one chart of a page with these words in its title."""
    (found,) = (c for c in Page(path).data["charts"] if words in c["title"])
    return found


def series(path: Path, words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chart(path, words)["series"]
    return found

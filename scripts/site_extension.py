"""The documentation site's extension of Python-Markdown: pages made from the source."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from markdown.treeprocessors import Treeprocessor

from scripts.site_content import expand


class _Expand(Preprocessor):
    """Replace the comments that ask for content, before anything else reads the page."""

    def run(self, lines: list[str]) -> list[str]:
        return expand("\n".join(lines)).split("\n")


class _FoldersAreNoPages(Treeprocessor):
    """Show a link to a folder of the repository as text: the site has no page for it."""

    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            target = link.get("href", "")
            path = target.partition("#")[0]
            if path and ":" not in path and not PurePosixPath(path).suffix:
                link.tag = "span"
                del link.attrib["href"]


class _Pages(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  # Python-Markdown's name
        md.preprocessors.register(_Expand(md), "site-content", 100)
        # After links are made (20), before MkDocs follows them (0).
        md.treeprocessors.register(_FoldersAreNoPages(md), "folders-are-no-pages", 1)


def makeExtension(**settings: Any) -> Extension:  # noqa: N802  # Python-Markdown's name
    """Return the extension; Python-Markdown calls this."""
    return _Pages(**settings)

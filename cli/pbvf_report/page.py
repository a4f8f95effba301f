"""The page: a template, one script, one style sheet and the data, in one file.

Texts of files are escaped by Jinja2, or stand in JSON that a script reads; nothing of them is
markup or script. The page's own policy (Content-Security-Policy) runs only the scripts that it
was made with, by their digests, and lets nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from pbvf_offline import __version__
from pbvf_offline.errors import ConflictError, UsageError
from pbvf_offline.io.durable import write_file
from pbvf_offline.io.lock import locked
from pbvf_offline.io.reading import read_file
from pbvf_report.content import Film, Section
from pbvf_report.sources import Source

_START = b'<!doctype html>\n<html lang="en" data-made-by="pbvf report">'


def plotly_script() -> str:
    """Return the source of plotly.js.

    Raises:
        UsageError: It is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UsageError(
            "plotly is not installed, which draws the charts of a report",
            remedy="pip install 'pbvf-offline[report]'",
        ) from error
    script: str = get_plotlyjs()
    return script


def render(sources: Sequence[Source], sections: Sequence[Section], plotly: str) -> bytes:
    """Return the page of sources; equal arguments give equal bytes.

    Args:
        sources: What it is about.
        sections: What it shows of them.
        plotly: The source of plotly.js.
    """
    static = files(__package__) / "static"
    style, own = ((static / name).read_text("utf-8") for name in ("page.css", "page.js"))
    environment = Environment(
        loader=PackageLoader(__package__, "static"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    charts = [chart.to_dict() for section in sections for chart in section.charts]
    quantities = (s["quantity"] for chart in charts for s in chart["series"])
    text = environment.get_template("page.html").render(
        sources=sources,
        sections=sections,
        data={"sources": [source.name for source in sources], "charts": charts},
        quantities=list(dict.fromkeys(filter(None, quantities))),
        style=style,
        scripts=(plotly, own),
        digests=[_digest(script) for script in (plotly, own)],
        film_address=_film_address,
        version=__version__,
    )
    return text.encode("utf-8", "replace")


def check_page(out: Path) -> None:
    """Check that what is in the place of a page, if anything, may be replaced by one.

    Raises:
        ConflictError: It is no page.
        ResourceError: It cannot be read.
    """
    if out.exists() and not read_file(out).startswith(_START):
        raise ConflictError(
            "is no page of pbvf report, so it is not replaced",
            where=out,
            remedy="choose another --out",
        )


def write_page(out: Path, page: bytes, *, overwrite: bool) -> bool:
    """Write a page whole or not at all; return whether it was there already.

    Raises:
        ConflictError: Another page is there, unless ``overwrite``; or something that is no page;
            or another process writes it.
        ResourceError: The disk or a permission refuses.
    """
    with locked(out, look=True) as refusal:
        there = read_file(out) if out.exists() else None
        if there == page:
            return True
        if refusal is not None:
            raise refusal
        check_page(out)
        if there is not None and not overwrite:
            raise ConflictError(
                "exists with other content",
                where=out,
                remedy="choose another name, or replace it with --overwrite",
            )
        write_file(out, page)
    return False


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _film_address(film: Film) -> str:
    return "data:video/mp4;base64," + base64.b64encode(film.data).decode()

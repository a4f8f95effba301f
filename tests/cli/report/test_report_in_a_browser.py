"""Pages of ``pbvf report`` in a headless Chromium, without a network."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import hostile
from cli_tools import make, pbvf
from report_tools import write_policies

pytest.importorskip("plotly", reason="plotly is not installed, which draws the charts")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium is installed: apt-get install chromium", allow_module_level=True)

HOSTILE = (
    "<img src=x onerror=hacked=1>",
    "</script><script>hacked=1</script>",
    '"><svg onload=hacked=1>',
    "<a href='javascript:hacked=1'>x</a>",
    "<!--<script>",
    "{{ 7*7 }} %{x} \u2028 $x$",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:  # root needs --no-sandbox
        yield driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


class Opened:
    """A page, and what it did: requests, dialogs and messages."""

    def __init__(self, context: Any, path: Path) -> None:
        self.page = context.new_page()
        self.did: list[str] = []
        for event in ("request", "dialog", "pageerror", "console"):
            self.page.on(event, lambda what, event=event: self._note(event, what))
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_selector(".plot .main-svg", state="attached")

    def _note(self, event: str, what: Any) -> None:
        text = what if event == "pageerror" else getattr(what, "url", None) or what.text
        self.did.append(f"{event} {text}")

    def drawn(self, chart: int = 0) -> int:
        """Number of points of a chart."""
        script = (
            "n => document.querySelectorAll('.plot')[n].data"
            ".filter(t => t.told || t.type === 'histogram').reduce((a, t) => a + t.x.length, 0)"
        )
        return int(self.page.evaluate(script, chart))

    def is_inert(self) -> bool:
        """Return whether the page did nothing but open, and holds no markup beside its own."""
        found = self.page.evaluate(
            "[typeof hacked, document.scripts.length, document.querySelectorAll("
            "'img,main a,svg a,[onload],[onerror],iframe').length]"
        )
        return len(self.did) == 1 and found == ["undefined", 3, 0]

    def fill(self, quantity: str, **bounds: float) -> None:
        self.page.evaluate("document.getElementById('ranges').open = true")
        range_of_it = self.page.locator(f".range[data-quantity='{quantity}']")
        for name, value in bounds.items():
            range_of_it.locator(f".{name}").fill(str(value))
            range_of_it.locator(f".{name}").press("Enter")

    def colours(self) -> int:
        """Number of colours in the first chart, which a blank one has hardly any of."""
        image = Image.open(io.BytesIO(self.page.locator(".plot").first.screenshot()))
        return len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0))


@contextmanager
def opened(browser: Any, path: Path, **options: Any) -> Iterator[Opened]:
    options = {"viewport": {"width": 1200, "height": 900}} | options
    context = browser.new_context(offline=True, **options)
    context.set_default_timeout(180_000)  # of busy machines
    try:
        yield Opened(context, path)
    finally:
        context.close()


@pytest.fixture(scope="module")
def page(drift: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "page.html"
    make(drift, f"report lab/drift-v0 theta actions good grown deep --out {out}")
    return out


def test_a_page_opens_without_a_network_and_shows_something(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        assert shown.did == [f"request {page.as_uri()}"]
        assert shown.colours() > 20
        buttons = shown.page.locator(".modebar-btn").evaluate_all(
            "all => all.map(b => b.dataset.title)"
        )
        assert set(buttons) == {"Zoom", "Pan", "Reset axes", "Download plot as a PNG"}
        shown.page.evaluate("fetch('https://example.org').catch(() => 0)")
        assert "Content Security Policy" in shown.did[1]


def test_a_point_tells_its_numbers_to_mouse_and_keyboard(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        where = shown.page.evaluate(
            "() => { const p = document.querySelector('.plot'), l = p._fullLayout,"
            " b = p.getBoundingClientRect(), t = p.data[0];"
            " return [b.x + l.xaxis._offset + l.xaxis.l2p(t.x[3]),"
            " b.y + l.yaxis._offset + l.yaxis.l2p(t.y[3]), t.told[3]] }"
        )
        shown.page.mouse.move(where[0] - 3, where[1])
        shown.page.mouse.move(where[0], where[1])
        shown.page.wait_for_selector(".hoverlayer .hovertext")
        assert shown.page.locator(".hoverlayer text").first.text_content() == "".join(where[2])
        shown.page.locator(".plot").first.focus()
        for _ in range(4):
            shown.page.keyboard.press("ArrowRight")
        assert shown.page.text_content("#said") == ", ".join(where[2])
        assert any("return" in line for line in where[2])


def test_filters_change_what_is_shown_of_their_quantity(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        charts = range(shown.page.locator(".plot").count())
        before = [shown.drawn(chart) for chart in charts]
        low = shown.page.evaluate("document.querySelector('.plot').data[0].y[0]")
        shown.fill("return of an episode (sum of rewards)", low=low, high=low)
        assert 1 <= shown.drawn() < before[0]
        count = shown.page.locator(".range output").first
        assert count.text_content() == f"{shown.drawn()} of {before[0]}"
        ours = shown.page.evaluate(
            "[...document.querySelectorAll('.plot')].map(p => p.data.every(t => t.series.quantity"
            " === 'return of an episode (sum of rewards)'))"
        )
        assert {k for k in charts if shown.drawn(k) != before[k]} == {k for k in charts if ours[k]}
        assert "return of an episode (sum of rewards) from" in shown.page.text_content("#filtered")
        shown.page.click("[type=reset]")
        playwright.expect(shown.page.locator("#filtered")).to_have_text("")
        assert shown.drawn() == before[0]
        shown.page.locator("[name=source]").first.uncheck()
        assert shown.drawn() == 0


def test_axes_of_whole_numbers_have_no_other_marks(browser: Any, here: Path) -> None:
    write_policies(here / "two", 2, {"result": {"returns": [1.5, 2.5]}})
    pbvf("report", "two", "--out", "page.html", "-q").ok()
    with opened(browser, here / "page.html") as shown:
        playwright.expect(shown.page.locator(".xtick text")).to_have_text(["0", "1"])
        fractions = shown.page.locator(".ytick text").all_text_contents()
        assert any("." in text for text in fractions)


def test_nothing_lies_over_the_points_of_a_chart(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        places = shown.page.evaluate(
            "[...document.querySelectorAll('.chart')].map(c => ['.plot', '.modebar', '.legend']"
            ".map(s => c.querySelector(s).getBoundingClientRect()).map(b => [b.top, b.bottom]))"
        )
        for plot, buttons, legend in places:
            assert buttons[1] <= plot[0] + 1
            assert plot[1] <= legend[0] + 1


def test_a_narrow_chart_has_its_scale_above_and_its_titles_beside_the_points(
    browser: Any, page: Path
) -> None:
    with opened(browser, page, viewport={"width": 500, "height": 900}) as shown:
        charts = shown.page.evaluate(
            "[...document.querySelectorAll('.plot:has(.colorbar)')].map(p => ["
            "p, ...['.gtitle', '.colorbar', '.nsewdrag', '.g-xtitle'].map(s => p.querySelector(s))]"
            ".map(e => e.getBoundingClientRect()).map(b => [b.top, b.bottom]))"
        )
        assert charts
        for plot, title, scale, points, x_title in charts:
            assert plot[0] <= title[0]
            assert title[1] <= scale[0]
            assert scale[1] <= points[0]
            assert points[1] <= x_title[0]
            assert points[1] - points[0] > (plot[1] - plot[0]) / 2


def test_the_highest_returns_are_drawn_over_the_others(browser: Any, here: Path) -> None:
    write_policies(here / "p", 4, {"result": {"returns": [3.0, 1.0, 4.0, 2.0]}})
    pbvf("report", "p", "--out", "page.html", "-q").ok()
    with opened(browser, here / "page.html") as shown:
        colours = shown.page.evaluate(
            "[...document.querySelectorAll('.plot')].flatMap(p => p.data.map(t => t.marker?.color))"
            ".filter(Array.isArray)"
        )
        assert colours == [[1.0, 2.0, 3.0, 4.0]]


def test_the_legend_is_a_switch_that_the_keyboard_reaches(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        entries = shown.page.locator(".legend button")
        entry = entries.first
        number = entry.evaluate(
            "e => [...document.querySelectorAll('.legend')].indexOf(e.parentNode)"
        )
        before = shown.drawn(number)
        entry.focus()
        shown.page.keyboard.press("Enter")
        assert entries.first.get_attribute("aria-pressed") == "false"
        assert shown.drawn(number) < before
        shown.page.keyboard.press("Enter")  # the focus stays
        assert shown.drawn(number) == before


def test_light_and_dark(browser: Any, page: Path) -> None:
    def look(shown: Opened) -> tuple[str, str]:
        script = "[getComputedStyle(document.body).backgroundColor, document.querySelector('.plot')"
        background, text = shown.page.evaluate(f"{script}._fullLayout.font.color]")
        return background, text

    with opened(browser, page, color_scheme="light") as shown:
        light = look(shown)
        shown.page.select_option("#theme", "dark")
        dark = look(shown)
    with opened(browser, page, color_scheme="dark") as shown:
        assert look(shown) == dark
        shown.page.select_option("#theme", "light")
        assert look(shown) == light
    assert dark[0] != light[0]
    assert dark[1] != light[1]


def test_texts_of_files_are_texts(browser: Any, here: Path) -> None:
    for number, text in enumerate(HOSTILE):
        origin = {"made_by": text, "critic": text, "settings": {text: text}, "run": text}
        result = {"returns": [1.0, 2.0, 3.0], text: text, "curve": [text]}
        name = text.replace("/", "\N{DIVISION SLASH}")
        write_policies(here / name, 3, origin | {"result": result, "number": number})
    names = sorted(path.name for path in here.iterdir())
    pbvf("report", *names, "--out", "page.html", "-q").ok()
    with opened(browser, here / "page.html") as shown:
        shown.page.locator(".plot").first.focus()
        shown.page.keyboard.press("ArrowRight")
        shown.page.locator(".numbers summary").first.click()
        assert shown.is_inert()
        assert names[0] in shown.page.text_content("#said")
        shown_text = shown.page.text_content("main")
        for text in HOSTILE[:-1]:
            assert text in shown_text
        legend = shown.page.locator(".legend button").all_text_contents()
        assert any("<img src=x onerror=hacked=1>" in text for text in legend)


def test_texts_of_a_dataset_are_texts(browser: Any, here: Path) -> None:
    folder = hostile.make(here, authors=list(HOSTILE), license=HOSTILE[2])
    metadata = folder / "data" / "metadata.json"
    stored = json.loads(metadata.read_text())
    stored["env_spec"] = json.dumps({"id": HOSTILE[1], "entry_point": HOSTILE[0]})
    metadata.write_text(json.dumps(stored | {"description": HOSTILE[3]}))
    (folder / "README.md").write_text("\n".join(HOSTILE))

    def change(manifest: dict[str, Any]) -> None:
        manifest["provenance"] |= {"command": HOSTILE[4], "tool": HOSTILE[5]}
        manifest["provenance"]["settings"] = {text: text for text in HOSTILE}

    hostile.reseal(folder)
    hostile.rewrite_manifest(folder, change)
    pbvf("report", folder, "--out", "page.html", "-q").ok()
    with opened(browser, here / "page.html") as shown:
        shown.page.locator(".plot").first.focus()
        shown.page.keyboard.press("ArrowRight")
        assert shown.is_inert()
        shown_text = shown.page.text_content("main")
        for text in HOSTILE[:-1]:
            assert text in shown_text


def test_ten_thousand_policies_can_be_worked_with(browser: Any, here: Path) -> None:
    count = 10_000
    write_policies(here / "many", count, {"result": {"returns": list(map(float, range(count)))}})
    pbvf("report", "many", "--out", "page.html", "-q").ok()
    with opened(browser, here / "page.html") as shown:
        assert shown.drawn() == count
        painted = """() => [...document.querySelectorAll('.plot canvas')].map(canvas => {
            const copy = Object.assign(document.createElement('canvas'),
                                       { width: canvas.width, height: canvas.height });
            const pen = copy.getContext('2d', { willReadFrequently: true });
            pen.drawImage(canvas, 0, 0);
            const { data } = pen.getImageData(0, 0, copy.width, copy.height);
            return data.filter((value, k) => k % 4 === 3 && value).length; })"""
        many = shown.page.evaluate(painted)
        shown.fill("measured mean return (sum of rewards)", low=9_000)
        assert shown.drawn() == 1_000
        fewer = shown.page.evaluate(painted)
        assert fewer[0] > 0
        assert 0 < fewer[1] < many[1] / 2  # those of the chart of parameters are scattered
        shown.page.locator(".plot").first.focus()
        shown.page.keyboard.press("ArrowLeft")
        assert "policy 9999" in shown.page.text_content("#said")
        shown.page.locator(".numbers summary").first.click()
        shown.page.wait_for_selector("li:nth-child(200)")
        assert shown.page.locator("li").count() == 200
        assert shown.colours() > 5
        assert len(shown.did) == 1


@pytest.mark.parametrize(("files", "entries", "rest"), [(13, 13, ""), (14, 12, "and 2 more")])
def test_a_legend_leaves_out_no_single_entry(
    browser: Any, here: Path, files: int, entries: int, rest: str
) -> None:
    for number in range(files):
        write_policies(
            here / f"p{number}", 3, {"result": {"returns": [1.0, 2.0, 3.0]}, "n": number}
        )
    pbvf("report", *(f"p{number}" for number in range(files)), "--out", "page.html", "-q").ok()
    with opened(browser, here / "page.html") as shown:
        legend = shown.page.locator(".legend").first
        assert legend.locator("button").count() == entries
        assert (
            legend.evaluate("e => e.lastChild.nodeName == '#text' ? e.lastChild.data : ''") == rest
        )

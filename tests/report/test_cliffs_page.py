"""The kernel map: bars at their places, every name escaped, and the page in a real Chromium."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_browser import CHROMIUM, browser  # noqa: F401 - a fixture

from qualify.errors import InfrastructureError
from qualify.facts.cliffs import Map, Segment
from qualify.report.cliffs import WIDTH, letter_of, page_of, write_cliffs

HOSTILE = 'void flash::kernel<128, "x">(Params&)</title></svg><script>alert(1)</script>'


def segment(first: int, last: int, launched: str, *, exact: bool = True) -> Segment:
    """Values of an axis over which that is launched."""
    return Segment(first=first, last=last, launched=launched, exact=exact)


MAPS = (
    Map(
        axis="seqlen",
        traced=31,
        segments=(
            segment(1, 64, "one<bf16>"),
            segment(65, 65, HOSTILE),
            segment(66, 1023, "one<bf16>", exact=False),
            segment(1024, 16384, "refused: seqlen=1024 > 1023"),
        ),
    ),
    Map(axis="batch", traced=2, segments=(segment(1, 256, "one<bf16>"),)),
)


def made(folder: Path) -> Path:
    """The page of these maps."""
    return write_cliffs(folder, "under-test", "prefill, bf16, 512 keys", "cpu (a & b)", MAPS)


def test_bars_stand_at_their_values() -> None:
    """Side by side on a logarithmic axis, none too narrow to see, and equal launches alike."""
    axis, whole = page_of("under-test", "", "", MAPS).maps
    bars = axis.bars
    assert [0.0, 412.96, 414.47, 685.71] == [bar.x for bar in bars]
    assert abs(bars[0].x + bars[0].width - bars[1].x) < 0.02
    assert abs(bars[-1].x + bars[-1].width - WIDTH) < 0.02
    assert 3 == bars[1].width
    assert ["A", "", "A", "C"] == [bar.letter for bar in bars]
    assert bars[0].tone == bars[2].tone != bars[1].tone
    assert [False, False, True, False] == [bar.about for bar in bars]
    assert [("1", "start"), ("65", "start"), ("1024", "start"), ("16384", "end")] == [
        (tick.text, tick.anchor) for tick in axis.ticks
    ]
    assert [(0.0, WIDTH)] == [(bar.x, bar.width) for bar in whole.bars]
    assert ("3 cliffs, 31 values traced", "0 cliffs, 2 values traced") == (axis.summary, whole.summary)


def test_letters_go_on_after_z() -> None:
    """No two are equal."""
    assert ["A", "Z", "A2", "Z2", "A3"] == [letter_of(number) for number in (0, 25, 26, 51, 52)]


def test_names_are_escaped_and_the_twin_holds_them(tmp_path: Path) -> None:
    """A demangled name is text wherever it stands; the JSON has it as it is."""
    page = made(tmp_path)
    html = page.read_text()
    assert "<script" not in html
    assert "cpu (a &amp; b)" in html
    assert 3 == html.count("kernel&lt;128, &#34;x&#34;&gt;(Params&amp;)&lt;/title&gt;")
    assert not re.search(r"https?://|style=", html)
    data = json.loads(page.with_suffix(".json").read_text())
    assert "qualify.cliffs/1" == data["schema"]
    assert HOSTILE == data["maps"][0]["segments"][1]["launched"]


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    """What to do stands in the message."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="another folder with --out DIR"):
        made(tmp_path / "file")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
@pytest.mark.parametrize("width", [1280, 420])
def test_chromium_draws_it(browser: Any, tmp_path: Path, width: int) -> None:  # noqa: F811
    """Bars have their colours under the page's own policy, nothing complains, and nothing hangs over the edge."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(made(tmp_path).as_uri())
    assert 5 == page.locator(".kernel-map rect").count()
    fills = page.locator(".kernel-map rect").evaluate_all("all => all.map(one => getComputedStyle(one).fill)")
    assert fills[0] == fills[2] != fills[1]
    assert "rgb(0, 0, 0)" not in fills
    assert "3px, 3px" == page.locator(".kernel-map .about").evaluate("one => getComputedStyle(one).strokeDasharray")
    assert page.locator("svg title").nth(1).text_content() == f"65 to 65: B, {HOSTILE}"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [] == trouble
    page.screenshot(path=str(tmp_path / f"cliffs-{width}.png"), full_page=True)
    page.close()

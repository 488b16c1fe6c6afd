"""The kernel map: bars at their places, every name escaped, and the page in a real Chromium."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM
from cli_process import call
from stored_runs import MATRIX, store_run

from qualify.errors import InfrastructureError, UsageError
from qualify.facts.cliffs import KernelMaps, Map, Segment
from qualify.report.beside import Beside
from qualify.report.cliffs import letter_of, maps_view, read_maps
from qualify.report.cliffs_page import write_cliffs
from qualify.report.context import report_context
from qualify.report.document import to_json
from qualify.report.drawings.kernel_map import WIDTH, bars_of, ticks_of
from qualify.report.page import render_html
from qualify.store.store import Store

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


ZERO = [{"first": 0, "last": 9, "launched": "a", "exact": True}]
FOUND = KernelMaps(
    kernel="flash-attn-3",
    call="prefill, bf16, 512 keys",
    device="cpu (a & b)",
    library="torch 2.11.0",
    qualify_version="0.1.0",
    maps=MAPS,
)


def made(folder: Path) -> Path:
    """The page of these maps."""
    return write_cliffs(folder, FOUND)


def test_bars_stand_at_their_values() -> None:
    """Side by side on a logarithmic axis, none too narrow to see, and equal launches alike."""
    letters = {"one<bf16>": "A", HOSTILE: "B", "refused: seqlen=1024 > 1023": "C"}
    bars, (whole,) = (bars_of(found.segments, letters) for found in MAPS)
    assert [0.0, 412.96, 414.47, 685.71] == [bar.x for bar in bars]
    assert abs(bars[0].x + bars[0].width - bars[1].x) < 0.02
    assert abs(bars[-1].x + bars[-1].width - WIDTH) < 0.02
    assert 3 == bars[1].width
    assert ["A", "", "A", "C"] == [bar.letter for bar in bars]
    assert bars[0].tone == bars[2].tone != bars[1].tone
    assert [False, False, True, False] == [bar.about for bar in bars]
    assert [("1", "start"), ("65", "start"), ("1,024", "start"), ("16,384", "end")] == [
        (tick.text, tick.anchor) for tick in ticks_of(MAPS[0].segments, bars)
    ]
    assert (0.0, WIDTH) == (whole.x, whole.width)
    assert ["3 cliffs, 31 values traced", "0 cliffs, 2 values traced"] == [it.summary for it in maps_view(FOUND).axes]


def test_every_axis_has_its_unit(tmp_path: Path) -> None:
    """On the page, in the drawing and in the JSON."""
    page = made(tmp_path)
    assert ["seqlen (tokens of the prompt)", "batch (sequences)"] == [it.title for it in maps_view(FOUND).axes]
    assert 2 <= page.read_text().count("seqlen (tokens of the prompt)</text>") + page.read_text().count("batch (seq")
    data = json.loads(page.with_suffix(".json").read_text())
    assert ["tokens of the prompt", "sequences"] == [it["unit"] for it in data["maps"]]
    assert ("torch 2.11.0", "prefill, bf16, 512 keys") == (data["library"], data["call"])


def test_a_report_shows_the_maps_beside_its_run(tmp_path: Path, facts: Any) -> None:
    """Drawn, with a table that counts the cases of the run in each part, and what limits the comparison."""
    file = read_maps(made(tmp_path).with_suffix(".json"))
    context = report_context(facts.run, facts.records, facts.conclusion, Beside(maps=(file,)))
    (view,) = context.cliffs
    counts = [row["cases"] for row in view.axes[0].table.data()]
    mine = [
        max(it.case.workload.seqlens_q)
        for it in facts.records
        if it.case.kernel == "flash-attn-3"
        and it.case.phase in ("prefill", "varlen")
        and it.outcome.outcome not in ("refused", "not_run")
    ]
    assert [0, 0, 0, len(mine)] == counts
    assert (
        "The maps are of cpu (a & b), and the run is of NVIDIA H100 80GB HBM3.",
        "The maps are of torch 2.11.0, and the run is of torch 2.11.0+cu130: make them again.",
    ) == view.notes
    html = render_html(context)
    assert "<script>alert" not in html
    assert "Where kernels change" in html
    assert 4 == html[html.index('id="cliffs"') : html.index('id="evidence"')].count("<rect")
    assert file.sha256[:16] in html
    (told,) = json.loads(to_json(context))["cliffs"]
    assert (file.sha256, "flash-attn-3", HOSTILE) == (
        told["sha256"],
        told["kernel"],
        told["maps"][0]["segments"][1]["launched"],
    )


def test_maps_of_a_kernel_that_did_not_run_say_so(tmp_path: Path, facts: Any) -> None:
    """They stand there, and say nothing about the run."""
    page = write_cliffs(tmp_path, replace(FOUND, kernel="other", device="NVIDIA H100 80GB HBM3 (9.0)", library=""))
    maps = Beside(maps=(read_maps(page.with_suffix(".json")),))
    (view,) = report_context(facts.run, facts.records, facts.conclusion, maps).cliffs
    assert ("No prefill case of other ran: these maps say nothing about this run.",) == view.notes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "dictionary or an instance"),
        ('{"kernel": "k", "device": "d", "maps": []}', "an axis has no values"),
        ('{"kernel": "k", "device": "d", "maps": [{"axis": "seqlen", "traced": 1, "segments": []}]}', "no values"),
        ('{"kernel": "k", "device": "d", "maps": [{"axis": "x", "traced": 1, "segments": []}]}', "maps.0.axis"),
        (
            json.dumps({"kernel": "k", "device": "d", "maps": [{"axis": "seqlen", "traced": 1, "segments": ZERO}]}),
            "order",
        ),
        ("[" * 100_000, "recursion"),
    ],
)
def test_what_is_no_file_of_maps_is_refused(tmp_path: Path, text: str, why: str) -> None:
    """One message with the reason and the command that writes such a file."""
    path = tmp_path / "maps.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=why) as caught:
        read_maps(path)
    assert "`qualify cliffs KERNEL` writes one" in str(caught.value)


def test_report_takes_the_file(tmp_path: Path) -> None:
    """Qualify report --cliffs FILE: the section is on the page; a wrong file is exit 2 before anything is written."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    with Store.open(str(tmp_path / "evidence.db"), create=True) as store:
        run = store_run(store, tmp_path / "serving.yaml")
    file = made(tmp_path).with_suffix(".json")
    ended = call("report", run.id, "--db", "evidence.db", "--cliffs", file.name, cwd=tmp_path)
    assert 0 == ended.code, ended.err
    assert 'id="cliffs"' in (tmp_path / "out" / run.id / "report.html").read_text()
    ended = call("report", run.id, "--db", "evidence.db", "--cliffs", "serving.yaml", cwd=tmp_path)
    assert 2 == ended.code
    assert "--cliffs serving.yaml: this is no file of kernel maps" in ended.err
    (tmp_path / "null.json").write_text("null")
    ended = call("report", run.id, "--db", "evidence.db", "--cliffs", "null.json", cwd=tmp_path)
    assert "no file of kernel maps: the file: Input should be a dictionary" in ended.err


def test_a_folder_or_nothing_is_refused(tmp_path: Path) -> None:
    """Neither is opened."""
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(UsageError, match="no file of kernel maps"):
            read_maps(path)


def test_letters_go_on_after_z() -> None:
    """No two are equal."""
    assert ["A", "Z", "A2", "Z2", "A3"] == [letter_of(number) for number in (0, 25, 26, 51, 52)]


def test_names_are_escaped_and_the_twin_holds_them(tmp_path: Path) -> None:
    """A demangled name is text wherever it stands; the JSON has it as it is."""
    page = made(tmp_path)
    html = page.read_text()
    assert "<script" not in html
    assert "cpu (a &amp; b)" in html
    assert 3 == html.replace("<wbr>", "").count("kernel&lt;128, &#34;x&#34;&gt;(Params&amp;)&lt;/title&gt;")
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
def test_chromium_draws_it(tab: Any, tmp_path: Path) -> None:
    """Bars have their colours under the page's own policy, nothing complains, and nothing hangs over the edge."""
    trouble: list[str] = []
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.goto(made(tmp_path).as_uri())
    assert 5 == tab.locator(".kernel-map rect").count()
    fills = tab.locator(".kernel-map rect").evaluate_all("all => all.map(one => getComputedStyle(one).fill)")
    assert fills[0] == fills[2] != fills[1]
    assert "rgb(0, 0, 0)" not in fills
    assert "3px, 3px" == tab.locator(".kernel-map .about").evaluate("one => getComputedStyle(one).strokeDasharray")
    assert tab.locator("svg title").nth(1).text_content() == f"65 to 65: B, {HOSTILE}"
    for width in (1280, 420):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [] == trouble

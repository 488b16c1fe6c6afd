"""Tables of a page: what stands in columns, what below a row, where a long name may be broken; ticks of a timeline."""

from __future__ import annotations

import html
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from qualify.facts.overview import RunHead
from qualify.report.columns import LONG, Column, Table
from qualify.report.names import parted, without_common
from qualify.report.sitepages.canaries import MOST_TICKS, ticks
from qualify.report.sitepages.parts import PagePart, PartsPage, render_parts
from qualify.report.sitepages.run_cases import CaseLine, CaseQuery, run_cases_page

BEGIN = datetime(2026, 11, 17, 2, 59, tzinfo=UTC)
CASE = "toy.tp1/prefill/b1.q8.k8/fp32/causal/tiled-torch"


def table(*sentences: str, others: int) -> Table[str]:
    """A table whose rows are sentences, beside other columns and one of sentences that no row has."""
    beside: tuple[Column[str], ...] = tuple(
        Column(key=f"c{number}", title="C", cell=len, number=True) for number in range(others)
    )
    why: Column[str] = Column(key="why", title="Why", cell=str, sentence=True)
    nothing: Column[str] = Column(key="no", title="No", cell=lambda _: "", sentence=True)
    return Table(caption="", columns=(*beside, why, nothing), rows=sentences)


@pytest.mark.parametrize(
    ("others", "longest", "below"),
    [(6, LONG + 1, ["why"]), (6, LONG, []), (5, LONG + 1, []), (6, 0, []), (9, 1, []), (10, 1, ["why"])],
)
def test_long_sentences_stand_below_their_row(others: int, longest: int, below: list[str]) -> None:
    """Only where a table has many columns. A column of sentences that no row has is left out, in the page alone."""
    made = table("x" * longest, "", others=others)
    shown, under = made.laid_out
    assert below == [it.key for it in under.columns]
    expected = [f"c{number}" for number in range(others)] + (["why"] if longest and not below else [])
    assert expected == [it.key for it in shown.columns]
    assert {"why", "no"} <= set(made.data()[0])


def test_the_id_of_a_case_may_be_broken_after_its_slashes() -> None:
    """Nothing is put into the text that a reader copies, and what is hostile stays text; a date keeps its slashes."""
    assert CASE == parted(CASE).replace("<wbr>", "")
    assert 5 == parted(CASE).count("/<wbr>")
    assert "&lt;b&gt;/<wbr>b/<wbr>c/<wbr>d" == parted("<b>/b/c/d")
    assert "1/2/3" == parted("1/2/3")
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert "aten::_<wbr>scaled_<wbr>dot_<wbr>" == parted(name)[:33]
    assert "&lt;b&gt;" in parted(f"<b> {name}")
    assert "b.q_k" == parted("b.q_k")


def test_what_all_ids_of_a_drawing_share_stands_once() -> None:
    """A narrow screen has no room for it in each row; one row, or ids of another form, stay as they are."""
    one, two = "m.tp1/decode/b1/bf16/causal", "m.tp1/verify/b8/bf16/causal"
    assert (["decode/b1", "verify/b8"], "m.tp1, bf16, causal") == without_common([one, two])
    for ids in ([one], [], [one, "x"]):
        assert (ids, "") == without_common(ids)


def test_the_name_of_a_kernel_is_broken_between_its_parts() -> None:
    """After ``::``, ``<``, a comma and an underscore, never in a word; where a blank follows, the blank is enough."""
    assert "cudnn sdpa_<wbr>sm90_<wbr>flash_<wbr>fprop_<wbr>wgmma_<wbr>f16" == parted(
        "cudnn sdpa_sm90_flash_fprop_wgmma_f16"
    )
    name = "void cutlass::device_kernel<flash::enable_sm90_or_later<cute::tuple<cute::C<1>,cute::C<1>, false> > >(int)"
    shown = parted(name)
    assert name == html.unescape(shown.replace("<wbr>", ""))
    start = "void cutlass::<wbr>device_<wbr>kernel&lt;<wbr>flash::<wbr>enable_<wbr>sm90_<wbr>or_<wbr>later&lt;<wbr>"
    assert start == shown[: len(start)]
    assert shown.endswith("cute::<wbr>C&lt;<wbr>1&gt;,<wbr>cute::<wbr>C&lt;<wbr>1&gt;, false&gt; &gt; &gt;(int)")


@pytest.mark.parametrize("hours", [1, 5, 30, 24 * 6, 24 * 90, 24 * 3000])
def test_a_time_axis_has_round_moments(hours: int) -> None:
    """As many as can be read, evenly apart, within the time that is shown; days where it is long."""
    span = timedelta(hours=hours)
    found = ticks(BEGIN, span)
    moments = [moment for moment, _ in found]
    assert 2 <= len(found) <= MOST_TICKS + 1
    assert 1 == len({after - before for before, after in pairwise(moments)})
    assert BEGIN <= moments[0]
    assert moments[-1] <= BEGIN + span
    assert all(moment.strftime("%H:%M") == "00:00" for moment, words in found if len(words) == len("2026-11-17"))


@pytest.mark.parametrize(
    ("said", "explained"),
    [
        ("budget: error 1.3 > 1 (worst element)", True),
        ("budget: E 1.3 > 1", True),
        ("|β| 0.2 > 0.1", True),
        ("census: row 3 sees key 9", False),
    ],
)
def test_a_page_explains_the_symbols_that_it_has(said: str, explained: bool) -> None:
    """Where a reason speaks of E, R, G or β, the page says what these are."""
    column: Column[str] = Column(key="why", title="Why", cell=str, sentence=True)
    part = PagePart(key="x", heading="X", table=Table(caption="X", columns=(column,), rows=(said,)))
    assert explained == ("E is that of the worst element" in render_parts(PartsPage(title="X", parts=(part,))))


def test_a_page_of_the_cases_of_a_run_is_a_list_on_a_phone() -> None:
    """As a table it would hide behind its edge why a case failed."""
    query = CaseQuery()
    line = CaseLine(
        case=CASE,
        model="toy.tp1",
        kernel="tiled-torch",
        verdict="FAIL",
        outcome="measured",
        latency_us=1.0,
        why="census: row 3 sees key 9",
        launched="tiled",
    )
    head = RunHead(
        id="a",
        matrix="serving",
        level="smoke",
        state="completed",
        started_at=BEGIN,
        finished_at=None,
        variant="",
        stack="",
        narrowed=False,
        cases=1,
    )
    text = render_parts(run_cases_page(head, [line] * query.limit, query))

    assert query.limit == text.count('data-label="Why"')

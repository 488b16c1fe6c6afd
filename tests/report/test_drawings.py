"""The drawings: every number stands where its axis says, every mark says it on hover, and no name becomes markup."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest
from builders import CAUSAL, make_mask, make_workload
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.facts.outcome import Finding
from qualify.report.drawings.curves import Point, Series, curves
from qualify.report.drawings.heat import Field, RowName, heat, room_of, step_of
from qualify.report.drawings.history import Moment, history
from qualify.report.drawings.intervals import Interval, intervals
from qualify.report.drawings.masks import masks
from qualify.report.drawings.roofline import Dot, roofline
from qualify.report.drawings.strips import SampleRow, strips
from qualify.report.drawings.svg import LETTER, Drawing, scale, shown

HOSTILE = '<script>alert(1)</script>"&'
POSITIVE = st.floats(1e-9, 1e15)


def tree(drawing: Drawing | None) -> ET.Element:
    """The drawing, which must be well-formed."""
    assert drawing
    return ET.fromstring(str(drawing.svg))


def titles(drawing: Drawing | None) -> list[str]:
    """What its marks say on hover."""
    return [element.text or "" for element in tree(drawing).iter("title")]


def point(x: float, y: float, title: str = "a point") -> Point:
    """A point of one case."""
    return Point(x=x, y=y, low=y, high=y, title=title)


@given(st.lists(POSITIVE, min_size=1, max_size=20), st.sampled_from(["log", "linear"]))
@settings(max_examples=100, deadline=None)
def test_a_scale_keeps_order_and_bounds(values: list[float], kind: str) -> None:
    """A larger value lies further along the axis, none lies beyond its ends, and ticks lie on it."""
    axis = scale(kind, values, 10, 110)  # type: ignore[arg-type]
    places = [axis.at(value) for value in sorted(values)]

    assert places == sorted(places)
    assert all(10 <= place <= 110 for place in places)
    assert 1 <= len(axis.ticks()) <= 12
    assert all(axis.low * 0.999 <= tick <= axis.high * 1.001 for tick in axis.ticks())


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([25, 470], [50, 100, 200, 500]),
        ([0.5, 101], [1, 10, 100]),
        ([3, 2e5], [10, 1e2, 1e3, 1e4, 1e5]),
    ],
)
def test_a_logarithmic_axis_has_ticks_over_all_of_it(values: list[float], ticks: list[float]) -> None:
    """Where there are few powers of ten, values between them have ticks too."""
    assert ticks == scale("log", values, 10, 110).ticks()


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "s", "0s"),
        (3e-4, "s", "300 µs"),
        (2.5, "", "2.5"),
        (8000, "", "8k"),
        (50, "\xa0%", "50\xa0%"),
        (1.5, "s", "1.5 s"),
    ],
)
def test_ticks_have_their_unit(value: float, unit: str, text: str) -> None:
    """A prefix where it helps, none for plain small numbers."""
    assert text == shown(value, unit)


def test_curves_place_points_on_their_axes() -> None:
    """Twice as long is as far to the right again, a smaller value lies lower, and the limit stands where it is."""
    line = Series(
        name=HOSTILE, number=0, points=tuple(point(x, x / 2000, f"{HOSTILE} at {x}") for x in (1024, 2048, 4096))
    )
    drawing = curves("Error", [line], x_label="keys", y_label="E", y_kind="linear", limit=1.0, limit_text="limit 1")
    marks = [(float(use.get("x")), float(use.get("y"))) for use in tree(drawing).iter("use")]
    limit = next(path.get("d") for path in tree(drawing).iter("path") if path.get("class") == "limit")

    assert marks[1][0] - marks[0][0] == pytest.approx(marks[2][0] - marks[1][0], abs=0.2)
    assert marks[0][1] > marks[1][1] > marks[2][1]
    assert marks[0][1] > float(re.search(r"M\S+ ([\d.]+)H", limit)[1]) > marks[1][1]
    assert f"{HOSTILE} at 4096" in titles(drawing)
    assert [HOSTILE, "limit 1"] == [key.name for key in drawing.keys]
    assert "<script" not in drawing.svg


def test_kernels_stand_side_by_side_where_all_calls_have_one_length() -> None:
    """Marks of several kernels at one length do not hide one another."""
    lines = [Series(name=str(number), number=number, points=(point(8192, 1.0),)) for number in range(3)]
    drawn = tree(curves("Time", lines, x_label="keys", y_label="time"))

    assert 3 == len({use.get("x") for use in drawn.iter("use")})
    said = [text for text in drawn.itertext() if text.startswith("keys")]
    assert ["keys (8Ki); kernels side by side"] == said


def test_nothing_to_draw_is_no_drawing() -> None:
    """Without a point there is no empty frame."""
    assert curves("Time", [], x_label="keys", y_label="time") is None
    assert roofline("Roofline", [], {"bf16": 1e15}, 3e12) is None
    assert strips("Samples", [SampleRow(name="a", number=0, samples_us=(math.nan,), median_us=1.0)]) is None
    assert heat("Map", [], [], []) is None
    assert history("Case", []) is None


def test_the_map_has_room_for_the_names_of_kernels() -> None:
    """The last one rose beyond the right edge, where it was cut off."""
    short = ["tiled-torch"] * 4
    long = room_of([*short, "torch-sdpa-is-causal"])
    assert long.width >= long.left(4) + long.cell / 2 + 20 * 6.9 * math.cos(math.radians(80))
    assert long.head >= 20 * 6.9 * math.sin(math.radians(80)) > room_of(short).head
    assert room_of(short).width < long.width
    assert (18, 112) == (room_of([]).width, room_of([]).head)
    name = "a-model-with-a-very-long-name-that-is-wider-than-its-columns"
    assert room_of(short, [RowName(group=name, name="prefill")]).width >= 60 * 6.9


def test_a_field_of_the_map_is_as_wide_as_its_text() -> None:
    """Six kernels with usual numbers fit on a phone; a large number is not cut off."""
    rows = [RowName(group="llama-3.1-8b.tp1", name=name) for name in ("prefill", "chunked")]
    assert room_of([*["tiled-torch"] * 5, "flashinfer-fa3-fp8"], rows, ["✗ 123", "1.05×"]).width <= 331
    assert room_of(["tiled-torch"], rows, ["✗ 1,234"]).cell >= 7 * 6.9
    field = Field(row=1, column=0, verdict="PASS", text="✓ 2", ratio=None, title="", cases="")
    drawn = tree(heat("Map", rows, ["tiled-torch"], [field]))
    ends = [float(it.get("x", 0)) for it in drawn.iter() if it.get("text-anchor") == "end" and it.text == "chunked"]
    assert min(ends) >= 55.2, "its width in DejaVu Sans"


def test_roofline_bends_where_memory_and_arithmetic_meet() -> None:
    """The slope ends at the flat roof, and a call at the limit of memory lies on it."""
    dots = [Dot(kernel="k", number=0, intensity=10.0, flops_per_s=3e13, title="on the slope")]
    drawing = roofline("Roofline", dots, {"bf16": 9e14}, 3e12)
    slope, roof = (path.get("d") for path in tree(drawing).iter("path") if path.get("class") == "limit")
    end = re.search(r"L(\S+) (\S+)", slope)
    start = re.match(r"M(\S+) (\S+)H", roof)
    (use,) = tree(drawing).iter("use")
    first = re.match(r"M(\S+) (\S+)L", slope)
    share = (float(use.get("x")) - float(first[1])) / (float(end[1]) - float(first[1]))

    assert end.groups() == start.groups()
    assert "bf16: 900 TFLOP/s" in drawing.svg
    assert float(use.get("y")) == pytest.approx(float(first[2]) + share * (float(end[2]) - float(first[2])), abs=0.5)


def test_roofs_of_nearly_one_height_say_what_each_reaches() -> None:
    """They have one line and one label, which names the lowest and the highest rate."""
    dots = [Dot(kernel="k", number=0, intensity=10.0, flops_per_s=1e9, title="far below")]
    drawing = roofline("Roofline", dots, {"fp32": 1e11, "bf16": 1.1e11, "fp16": 1.1e11}, 1e10)
    (label,) = (text.text for text in tree(drawing).iter("text") if text.get("class") == "roof")
    assert "fp32, bf16, fp16: 100 GFLOP/s to 110 GFLOP/s" == label


def test_strips_share_one_axis_and_begin_with_the_fastest() -> None:
    """All samples are ticks; the table beneath holds median and range."""
    rows = [
        SampleRow(name="slow", number=0, samples_us=(200.0, 210.0, 205.0), median_us=205.0),
        SampleRow(name=HOSTILE, number=1, samples_us=(100.0, 110.0), median_us=105.0),
    ]
    drawing = strips("Decode", rows)

    assert [HOSTILE, "slow"] == [row["kernel"] for row in drawing.table.data()]
    assert [2, 3] == [path.get("d").count("v10") for path in tree(drawing).iter("path") if "ticks" in path.get("class")]
    assert any("median 105 µs, 100 µs to 110 µs, 2 samples" in title for title in titles(drawing))


def test_intervals_stand_beside_nothing_and_the_budget() -> None:
    """A bar reaches from end to end of its interval; one line is no change, a dashed one each budget."""
    cells = [
        Interval(name="slow", verdict="WAIVED", change=0.08, low=0.06, high=0.1, title="slow: +8 %"),
        Interval(name="x" * 80, verdict="PASS", change=-0.1, low=-0.12, high=-0.08, title="fast"),
        Interval(name="no number", verdict="PASS", change=math.nan, low=0.0, high=0.0, title=""),
    ]
    drawn = intervals("Change of each cell", cells, [0.05, 0.05])
    assert drawn
    reaches = [
        tuple(map(float, ends)) for ends in re.findall(r'class="reach" d="M([\d.]+) [\d.]+H([\d.]+)"', drawn.svg)
    ]
    (budget,) = (float(x) for x in re.findall(r'class="limit" d="M([\d.]+)', drawn.svg))
    (zero,) = (float(x) for x in re.findall(r'class="axis" d="M([\d.]+) 8V', drawn.svg))
    assert reaches[1][0] < reaches[1][1] < zero < budget < reaches[0][0] < reaches[0][1]
    assert f">…{'x' * 65}</text>" in drawn.svg
    assert "no number" not in drawn.svg
    assert "Drawn are the 2 cells" in drawn.note
    assert intervals("nothing", cells[2:], [0.05]) is None


def test_one_noisy_interval_does_not_hide_the_others() -> None:
    """Its bar is cut, the drawing says so, and its numbers stand on hover."""
    cells = [
        Interval(name=HOSTILE, verdict="INCONCLUSIVE", change=0.4, low=-3.0, high=6.0, title=HOSTILE),
        Interval(name="calm", verdict="PASS", change=0.02, low=0.01, high=0.03, title="calm: +2 %"),
    ]
    drawn = intervals("Changes", cells, [])
    assert drawn
    assert "cut at ±50%" in drawn.note
    wide, calm = (
        [float(end) for end in ends] for ends in re.findall(r'class="reach" d="M([\d.]+) [\d.]+H([\d.]+)"', drawn.svg)
    )
    assert wide[0] < calm[0] - 100
    assert calm[0] + 4 < calm[1] < wide[1] - 100


@pytest.mark.parametrize(("limits", "farthest"), [([], 0.5), ([0.02], 0.5), ([0.6], 0.9)])
def test_a_change_beyond_the_axis_is_no_dot(limits: list[float], farthest: float) -> None:
    """It is a triangle at the stated end, with its number; a dot there would say that it changed by so much."""
    cells = [
        Interval(name="far slower", verdict="FAIL", change=3.5, low=3.0, high=4.0, title=""),
        Interval(name="faster", verdict="PASS", change=-0.4, low=-farthest, high=-0.3, title=""),
        Interval(name="far faster", verdict="PASS", change=-0.908, low=-0.91, high=-0.3, title=""),
    ]
    drawn = intervals("Changes", cells, limits)
    assert drawn
    (dot,) = (float(circle.get("cx")) for circle in tree(drawn).iter("circle"))
    right, left = (float(x) for x in re.findall(r'class="beyond" d="M([\d.]+) ', drawn.svg))
    bars = [tuple(map(float, ends)) for ends in re.findall(r'class="reach" d="M([\d.]+) [\d.]+H([\d.]+)"', drawn.svg)]
    assert (right, right) == bars[0]
    assert left == bars[1][0] == bars[2][0] < dot < right
    assert ["+350\xa0%", "-90.8\xa0%"] == re.findall(r'class="label"[^>]*>([-+][^<]*)<', drawn.svg)
    assert f"A triangle is a change of more than ±{farthest:.0%}" in drawn.note
    assert f"Bars are cut at ±{farthest:.0%}: what lies beyond is not drawn." in drawn.note


def test_what_lies_on_the_axis_needs_no_triangle() -> None:
    """The words tell of cuts only where something is cut."""
    drawn = intervals("Changes", [Interval(name="a", verdict="PASS", change=0.5, low=0.4, high=0.5, title="")], [])
    assert drawn
    assert ("beyond" in drawn.svg, "cut" in drawn.note, "triangle" in drawn.note) == (False, False, False)


def test_map_has_glyph_and_factor_beside_colour() -> None:
    """A field says its verdict and its time in text, and leads to its cases."""
    one = Field(
        row=0, column=0, verdict="FAIL", text="✗ 2", ratio=1.4, title=f"2 fail on {HOSTILE}", cases="kernel=a&b"
    )
    drawing = heat("Map", [RowName(group=HOSTILE, name="decode")], [HOSTILE], [one])
    (link,) = tree(drawing).iter("a")

    assert ("FAIL t2", "kernel=a&b", None) == (link.get("class"), link.get("data-cases"), link.get("href"))
    assert ["✗ 2", "1.40×"] == [text.text for text in link.iter("text")]
    assert [0, 1, 2, 3, 4, None] == [step_of(ratio) for ratio in (1.0, 1.2, 1.5, 2.0, 9.0, None)]


def test_history_shows_every_run_with_its_verdict() -> None:
    """The oldest run is left; one without a time stands on the axis; the table begins with the newest."""
    start = datetime(2026, 11, 1, tzinfo=UTC)
    series = [
        Moment(run=HOSTILE, at=start + timedelta(days=2), verdict="FAIL", latency_us=None, href="/runs/c"),
        Moment(run="a", at=start, verdict="PASS", latency_us=100.0),
        Moment(run="b", at=start + timedelta(days=1), verdict="PASS", latency_us=200.0),
    ]
    drawing = history("a case", series)
    circles = [(float(it.get("cx")), float(it.get("cy"))) for it in tree(drawing).iter("circle")]

    assert circles == sorted(circles)
    assert circles[1][1] < circles[0][1] < circles[2][1]
    assert ["✓", "✓", "✗"] == [g.find("text").text for g in tree(drawing).iter("g")]
    assert [HOSTILE, "b", "a"] == [row["run"] for row in drawing.table.data()]
    assert "2026-11-03 00:00 UTC, run " + HOSTILE + ": fail, not timed" in titles(drawing)


@pytest.mark.parametrize("runs", [1, 2, 3, 50])
def test_the_oldest_run_of_a_history_stands_where_a_phone_shows_it(runs: int) -> None:
    """A phone of 360 px shows the left half of the picture; a case of one run has its mark there."""
    start = datetime(2026, 11, 1, tzinfo=UTC)
    moments = [
        Moment(run=f"r{day}", at=start + timedelta(days=day), verdict="PASS", latency_us=5.0) for day in range(runs)
    ]
    places = [float(it.get("cx")) for it in tree(history("a case", moments)).iter("circle")]
    assert places == sorted(places)
    assert 64 <= places[0] <= 240
    assert places[-1] <= 640 - 16


def census(**values: object) -> Finding:
    """A census that found a wrong row."""
    usual = {
        "sequence": 0,
        "query": 20,
        "head": 0,
        "visible_first": 0,
        "visible_last": 20,
        "expected": 1,
        "actual": 0.0,
    }
    return Finding(check="census", verdict="fail", detail="wrong", values=usual | values)  # type: ignore[arg-type]


def squares(drawing: Drawing | None) -> dict[str, list[int]]:
    """Squares of each kind, of the expected mask and of the seen one."""
    kinds: dict[str, list[int]] = {"on": [], "off": [], "maybe": []}
    for path in tree(drawing).iter("path"):
        if path.get("class") in kinds:
            kinds[path.get("class")].append(path.get("d").count("h8"))
    return kinds


SUSPECTS = [
    ("a mask aligned to the top left corner", make_workload(seqlens_q=(24,), seqlens_k=(70,)), {"top_left": True}),
    ("no mask at all", make_workload(), {"mask": make_mask(causal=False)}),
    ("a mask shifted by one key to the right", make_workload(), {"shift": 1}),
    ("a mask shifted by one key to the left", make_workload(), {"shift": -1}),
    ("the window being ignored", make_workload(window=(4, 0)), {"mask": CAUSAL}),
    ("a window of one key more on the left", make_workload(window=(4, 0)), {"mask": make_mask(window=(5, 0))}),
    ("a window of one key less on the left", make_workload(window=(4, 0)), {"mask": make_mask(window=(3, 0))}),
    ("the chunks being ignored", make_workload(chunk=8), {"mask": CAUSAL}),
    ("the image spans being ignored", make_workload(spans=((0, 20, 28),)), {"spans": False}),
]


@pytest.mark.parametrize(("name", "workload", "change"), SUSPECTS, ids=[name for name, _, _ in SUSPECTS])
def test_the_seen_mask_is_the_one_that_the_census_named(name: str, workload: object, change: dict[str, object]) -> None:
    """What is drawn are the keys that the check itself counts under the wrong mask of that name."""
    from qualify.run.checks.rows import rows_of

    drawing = masks(workload, census(looks_like=name, label="key 20"))  # type: ignore[arg-type]
    first, last = map(int, re.search(r"queries (\d+) to (\d+)", str(drawing.svg)).groups())
    left, right = (int(text) for text in re.findall(r">key (\d+)</text>", str(drawing.svg))[:2])
    for shown_on, sees in zip(squares(drawing)["on"], ({}, change), strict=True):
        visible = rows_of(workload, "cpu").visible(**sees)
        keys = [range(int(low), int(high), visible.step) for low, high in zip(visible.low, visible.high, strict=True)]
        wanted = sum(key in keys[row] for row in range(first, last + 1) for key in range(left, right + 1))
        assert wanted == shown_on
    assert squares(drawing)["on"][0] != squares(drawing)["on"][1] or any(squares(drawing)["maybe"])


@pytest.mark.parametrize("label", ["keys ≡ 0 (mod 128)", "keys 0 and 128", "keys 0, 128, 256 and so on"])
def test_the_first_wrong_query_shows_what_it_sees_wrongly(label: str) -> None:
    """Where the miscounted group reaches far beyond, the keys that are drawn are those that the query lacks."""
    workload = make_workload(seqlens_q=(33,), seqlens_k=(133,))
    found = census(looks_like="a mask aligned to the top left corner", label=label, query=0)
    left, right = map(int, re.findall(r">key (\d+)</text>", str(masks(workload, found).svg))[:2])
    assert left < 100 < right


@pytest.mark.parametrize(("queries", "keys"), [(131_072, 131_072), (1, 2), (33, 133)])
def test_both_masks_and_their_labels_fit_on_a_phone(queries: int, keys: int) -> None:
    """One above the other, so that a key stands below itself; no label is cut, of long and of very short calls."""
    workload = make_workload(seqlens_q=(queries,), seqlens_k=(keys,))
    drawing = masks(workload, census(looks_like="no mask at all", label="keys 0", query=queries - 1))
    assert drawing is not None
    root = tree(drawing)
    width, height = map(int, root.get("viewBox").split()[2:])
    assert width <= 360
    for text in root.iter("text"):
        size = LETTER * len(text.text)
        start = float(text.get("x")) - (size if text.get("text-anchor") == "end" else 0)
        assert 0 <= start <= start + size <= width
        assert 0 < float(text.get("y")) < height
    starts = [text.get("x") for text in root.iter("text") if text.text in ("expected", "seen")]
    assert 2 == len(starts)
    assert 1 == len(set(starts))


def test_a_mask_that_nothing_explains_shows_what_is_known() -> None:
    """Of the miscounted group only the number seen is known: it is outlined in the one row, and nothing is filled."""
    drawing = masks(make_workload(), census(looks_like="", label="keys 16 to 19"))

    assert [0, 4] == squares(drawing)["maybe"]
    assert 0 == squares(drawing)["on"][1]
    assert "keys 16 to 19" in drawing.note
    assert masks(make_workload(), Finding(check="census", verdict="fail", detail="lse", values={"lse": 1.0})) is None


@pytest.mark.parametrize("label", ["keys 1, 5, 9 and so on", "keys ≡ 1 (mod 4)"])
def test_the_keys_of_a_group_are_outlined(label: str) -> None:
    """Those that are drawn, in the one row, however their group is told."""
    drawing = masks(make_workload(), census(looks_like="", label=label))

    left, right = map(int, re.findall(r">key (\d+)</text>", str(drawing and drawing.svg))[:2])
    assert [0, len([key for key in range(left, right + 1) if key % 4 == 1])] == squares(drawing)["maybe"]


@pytest.mark.parametrize(
    "values",
    [
        {"query": 10**9},
        {"query": -1},
        {"sequence": 7},
        {"sequence": "0"},
        {"label": "keys ≡ 0 (mod 0)"},
        {"label": "keys 5, 5, 5 and so on"},
        {"label": "keys 5 and so on"},
        {"label": HOSTILE, "looks_like": HOSTILE},
        {"label": None, "expected": math.nan},
    ],
)
def test_a_census_from_elsewhere_never_ends_the_report(values: dict[str, object]) -> None:
    """Evidence that was imported may say anything: then nothing is drawn, or nothing of it is markup."""
    drawing = masks(make_workload(), census(**values))

    assert drawing is None or "<script" not in drawing.svg

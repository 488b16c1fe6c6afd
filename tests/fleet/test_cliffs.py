"""Cliffs are found where they are: by bisection, and in real worker processes."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from cli_process import call, environment
from hypothesis import given
from hypothesis import strategies as st

from qualify.cli.cliffs import lines_of
from qualify.facts.cliffs import Map, Segment
from qualify.fleet.cliffs import AxisProgress, segments, trace_cliffs
from qualify.report.cliffs import read_maps

DISPATCHER = '''
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.attention import SDPBackend, sdpa_kernel


def attend(call):
    """Two operators: the fast one above 300 keys, and for 96 to 120 elements; the math path where both cost little."""
    backend = SDPBackend.FLASH_ATTENTION if call.max_seqlen_k > 300 or 88 < call.q.shape[-1] < 128 else SDPBackend.MATH
    q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (call.q, call.k, call.v))
    with sdpa_kernel(backend):
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=call.scale, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1).contiguous()
'''
CARD = """\
kernel: dispatcher
generation: cpu
shipped_by: torch
adapter: call
entry: dispatcher:attend
requires: {device: cpu}
claims:
  dtypes: [fp32]
  head_dim: {min: 32, max: 128, multiple_of: 8}
  head_dim_v: same
  layouts: [packed]
  masks: [causal]
  features: [gqa]
  deterministic: true
  empty_row: {out: any, lse: any}
accuracy: {fp32: fp32}
witness: {must_match: ["aten::_scaled_dot_product"], may_match: ["^aten::"]}
"""


@given(
    values=st.lists(st.integers(1, 5000), min_size=2, max_size=400, unique=True).map(sorted),
    cliff=st.integers(0, 5001),
)
def test_one_cliff_is_found_exactly(values: list[int], cliff: int) -> None:
    """With one change on the axis, its two sides stand next to each other, after few traces."""
    asked: list[int] = []

    def launched(value: int) -> str:
        asked.append(value)
        return "one" if value < cliff else "two"

    found = list(segments(values, trace_cliffs(values, launched, 1000)))
    below, above = [value for value in values if value < cliff], [value for value in values if value >= cliff]
    sides = [("one", below), ("two", above)]
    assert [Segment(first=side[0], last=side[-1], launched=name, exact=True) for name, side in sides if side] == found
    assert len(asked) == len(set(asked)) <= 2 * 13 + 9


def test_a_slow_axis_says_how_far_it_is() -> None:
    """Every ten seconds, and never where all values take less."""
    told, at_s = list[str](), [0.0]

    def launched(value: int) -> str:
        at_s[0] += value
        return "kernel"

    for values in ([1, 2, 3], [1, 6, 8, 2, 12]):
        trace_cliffs(values, AxisProgress("batch", 5, told.append, lambda: at_s[0]).after(launched), 5, every=True)
    assert ["3 of at most 5 values traced, the last one 8", "5 of at most 5 values traced, the last one 12"] == [
        line.removeprefix("batch: ") for line in told
    ]


def test_what_the_limit_leaves_open_is_said() -> None:
    """A kernel that changes at every value: no segment claims to be exact where it was not traced."""
    values = list(range(1, 1001))
    found = list(segments(values, trace_cliffs(values, str, 20)))
    assert 20 == len(found)
    assert not found[-2].exact
    assert found[0].exact


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("torch-cpu-math", "--axis", "head_dim", "--axis", "page_size"),
            "--axis page_size: torch-cpu-math has nothing",
        ),
        (("torch-cpu-math", "--page-size", "16"), "torch-cpu-math has nothing to vary: layout=paged (torch-cpu-math"),
    ],
)
def test_a_call_without_cliffs_replaces_no_report(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    """A kernel that claims a single value, or none, has nothing to map: exit 3 with the reason."""
    page = tmp_path / "out" / "cliffs-torch-cpu-math.html"
    page.parent.mkdir()
    page.write_text("of yesterday")
    ended = call("cliffs", *words, "--device", "cpu", cwd=tmp_path)
    assert (3, "", "of yesterday") == (ended.code, ended.out, page.read_text())
    assert ended.err.splitlines()[-1].startswith(f"qualify: {told}")
    assert "layout=paged (torch-cpu-math claims packed)" in ended.err


def test_the_cliffs_of_a_dispatching_kernel(tmp_path: Path) -> None:
    """A kernel with two operators on the CPU: the keys and the head dimension at which it changes, and no other.

    The limit is less than the sizes of a group: they are looked at up to the last one all the same.
    """
    cards = tmp_path / "cards"
    cards.mkdir()
    (cards / "dispatcher.py").write_text(DISPATCHER)
    (cards / "dispatcher.yaml").write_text(CARD)
    axes = ("--axis", "seqlen", "--axis", "head_dim", "--axis", "group", "--axis", "seqlen", "--limit", "20")
    line = ("cliffs", "dispatcher", "--cards", "cards", "--device", "cpu", "--seqlen", "8", "--dtype", "fp32")
    ended = call(*line, *axes, "--json", cwd=tmp_path, env=environment())
    assert 0 == ended.code, ended.err
    assert ended.err.startswith("dispatcher on cpu (")
    assert "): tracing 3 axes; each is shown once it is found" in ended.err
    maps = {item["axis"]: item["segments"] for item in ended.data["maps"]}
    keys = [(part["first"], part["last"], part["exact"]) for part in maps["seqlen"]]
    assert [(1, 300, True), (301, 1024, True)] == keys
    assert {"seqlen": "tokens of the prompt", "head_dim": "elements of a head"}.items() <= {
        item["axis"]: item["unit"] for item in ended.data["maps"]
    }.items()
    file = read_maps(tmp_path / "out" / "cliffs-dispatcher.json")
    assert ("dispatcher", f"torch {metadata.version('torch')}") == (file.maps.kernel, file.maps.library)
    assert "flash" not in maps["seqlen"][0]["launched"]
    assert "flash" in maps["seqlen"][1]["launched"]
    dims = [(part["first"], part["last"], "flash" in part["launched"]) for part in maps["head_dim"]]
    assert [(32, 88, False), (96, 120, True), (128, 128, False)] == dims
    assert [(1, 64)] == [(part["first"], part["last"]) for part in maps["group"]]


def test_a_call_that_crashes_says_why(tmp_path: Path) -> None:
    """The first crash comes with its reason. Where every call crashes, there is no map, and no report is replaced."""
    cards = tmp_path / "cards"
    cards.mkdir()
    broken = DISPATCHER.replace(
        "    backend = ", '    assert call.max_seqlen_k < LIMIT, "no room\\nfor keys"\n    backend = '
    )
    (cards / "dispatcher.yaml").write_text(CARD)
    line = ("cliffs", "dispatcher", "--cards", "cards", "--device", "cpu", "--seqlen", "8", "--dtype", "fp32")
    ended = {}
    for limit in (100, 1):
        (cards / "dispatcher.py").write_text(broken.replace("LIMIT", str(limit)))
        ended[limit] = call(*line, "--axis", "seqlen", cwd=tmp_path, env=environment())
    page = tmp_path / "out" / "cliffs-dispatcher.html"
    some, none = ended[100], ended[1]
    assert 0 == some.code
    assert "        1 to 99      A: aten::_scaled_dot_product" in some.out
    assert "      100 to 1024    B: crashed:AssertionError\n" in some.out
    assert "seqlen 128 crashed: AssertionError: no room for keys" in some.err.splitlines()[1]
    assert [(1, 99), (100, 1024)] == [
        (part.first, part.last) for part in read_maps(page.with_suffix(".json")).maps.maps[0].segments
    ]
    assert 5 == none.code
    assert none.err.splitlines()[-1].startswith("qualify: no call of dispatcher launched anything")
    assert "crashed: AssertionError: no room for keys" in none.err.splitlines()[-1]
    assert "AssertionError" in page.read_text(), "of the call before"


def test_a_refused_call_is_called_that(tmp_path: Path) -> None:
    """The library's own words stand in the map; it did not pass, whatever a check of another call would say."""
    cards = tmp_path / "cards"
    cards.mkdir()
    refusing = "    if call.max_seqlen_k > 99:\n        raise LibraryRefusal('no key <above> 99')\n    backend = "
    module = "from qualify.api import LibraryRefusal\n" + DISPATCHER.replace("    backend = ", refusing)
    (cards / "dispatcher.py").write_text(module)
    (cards / "dispatcher.yaml").write_text(CARD)
    line = ("cliffs", "dispatcher", "--cards", "cards", "--device", "cpu", "--seqlen", "8", "--dtype", "fp32")
    ended = call(*line, "--axis", "seqlen", cwd=tmp_path, env=environment())
    assert 0 == ended.code, ended.err
    assert "seqlen 128 refused: no key <above> 99" in ended.err
    assert "      100 to 1024    B: refused: no key <above> 99\n" in ended.out


def test_the_terminal_names_kernels_as_people_do() -> None:
    """Two that differ in their template arguments alone have two letters, as in the report; a grid stays."""
    name = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<{}> > >(flash::Params)"
    launches = [name.format("false") + " ×64 ×1", name.format("true"), "refused: not<today> (says it)"]
    parts = [Segment(first=each, last=each, launched=text, exact=True) for each, text in enumerate(launches)]
    letters = {launches[1]: "A"}
    lines = lines_of(Map(axis="context", traced=3, segments=tuple(parts)), letters)
    assert [
        "context (keys in the cache): 2 cliffs, 3 values traced",
        "        0 to 0       B: flash::FlashAttnFwdSm90 ×64 ×1",
        "        1 to 1       A: flash::FlashAttnFwdSm90",
        "        2 to 2       C: refused: not<today> (says it)",
    ] == lines
    assert [*letters] == [launches[1], launches[0], launches[2]]

"""size limits: kernels that count in 16 or 32 bits, and kernels that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Edited
from subjects import make_subject
from torch import Tensor

from qualify.facts.devices import Scale
from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.counts import numbers
from qualify.run.checks.size_limits import SIZES, SizeLimits, far_pages, far_rows, few_kv_heads, parts
from qualify.run.host.interface import KernelRaised

PAGED: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (40, 33), "page_size": 16}
LAYOUTS = pytest.mark.parametrize("layout", [{}, PAGED], ids=["packed", "paged"])


class Wrapped(TiledTorch):
    """Rows or pages at offsets that its integers do not reach, or rows of tiles that begin there, are read as zeros."""

    def __init__(self, name: str, reach: int, tile: int = 1) -> None:
        super().__init__()
        self.name, self.reach, self.tile = name, reach, tile

    def prepare(self, call: AttentionCall) -> Prepared:
        tensor: Tensor = getattr(call, self.name)
        step = tensor.stride(0)
        if len(tensor) * step <= self.reach:
            return super().prepare(call)
        if call.block_table is None:
            near = tensor.clone()
            near[torch.arange(len(tensor)) // self.tile * self.tile * step >= self.reach] = 0
            return super().prepare(replace(call, **{self.name: near}))
        pages = call.block_table.flatten().long().unique()
        table = torch.searchsorted(pages, call.block_table.long())
        small: dict[str, Any] = {name: getattr(call, name)[pages].clone() for name in ("k", "v")}
        small[self.name][pages * step >= self.reach] = 0
        return super().prepare(replace(call, **small, block_table=table.int()))


class Limited(TiledTorch):
    """Does not compute sequences from a number on."""

    def __init__(self, *, sequences: int) -> None:
        super().__init__()
        self.sequences = sequences

    def prepare(self, call: AttentionCall) -> Prepared:
        native = super().prepare(call)

        def launch() -> Any:
            out, lse = native.launch()
            if len(call.cu_seqlens_q) - 1 > self.sequences:
                out[int(call.cu_seqlens_q[self.sequences]) :] = 0
            return out, lse

        return Prepared(launch=launch, result=native.result)


def size_limits(adapter: Any = None, **subject: Any) -> list[Finding]:
    """What the check finds, with narrow heads."""
    made = make_subject(adapter, level="full", **{"head_dim": 16} | subject)
    assert "" == SizeLimits().skips(made)
    return SizeLimits().run(made)


@LAYOUTS
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp8_e4m3"])
def test_a_kernel_with_wide_numbers_passes(layout: dict[str, Any], dtype: str) -> None:
    """Every question is asked."""
    finding, *notes = size_limits(dtype=dtype, **layout)
    assert "pass" == finding.verdict
    what = ["a cache"] if layout else ["keys", "values", "queries"]
    no_room = [note.detail.removeprefix("not run: no room for ").partition(" (")[0] for note in notes]
    far = [f"{name} beyond 2^{power} elements" for power in (31, 32) for name in what]
    assert set(no_room) <= {name for name in far if dtype == "fp32" or "2^32" in name}
    late = "" if layout else ", 2113 queries, 545 queries on 1669 keys"
    asked = ", ".join(name for name in far if name not in no_room)
    assert f"right with {asked}{late}, {', '.join(MANY)}" == finding.detail


@pytest.mark.parametrize(
    ("layout", "name", "what"),
    [
        ({}, "k", "keys"),
        ({}, "v", "values"),
        ({}, "q", "queries"),
        (PAGED, "k", "a cache"),
        (PAGED, "v", "a cache"),
    ],
)
@pytest.mark.parametrize("power", [31, 32])
def test_offsets_of_32_bits_are_caught(layout: dict[str, Any], name: str, what: str, power: int) -> None:
    """In keys, in values and in queries alone, with a sign and without one."""
    finding, *_ = size_limits(Wrapped(name, 1 << power), **layout)
    assert ("fail", f"{what} beyond 2^{power} elements") == (finding.verdict, finding.values["what"])


@pytest.mark.parametrize(
    ("tile", "scale"), [(32, "small"), (64, "small"), (128, "small"), (176, "large"), (192, "large")]
)
@pytest.mark.parametrize("name", ["k", "q"])
def test_offsets_of_tiles_are_caught(name: str, tile: int, scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's memory-efficient kernel is right within a tile, wherever that ends; on a GPU they may have any size."""
    monkeypatch.setitem(SIZES, "small", SIZES[scale])
    finding, *_ = size_limits(Wrapped(name, 1 << 31, tile))
    assert ("fail", "2^31") == (finding.verdict, str(finding.values["what"]).split()[2])


@LAYOUTS
def test_a_card_may_claim_fewer_elements(layout: dict[str, Any]) -> None:
    """Then nothing beyond them is asked."""
    finding, *_ = size_limits(Wrapped("k", 1 << 32), card=make_card(elements={"max": 1 << 32}), **layout)
    assert ("pass", False) == (finding.verdict, "2^32" in finding.detail)


@LAYOUTS
def test_indices_of_16_bits_are_caught(layout: dict[str, Any]) -> None:
    """Of sequences; of keys ``long_context`` asks."""
    many, *_ = size_limits(Limited(sequences=(1 << 16) - 1), **layout)
    assert ("fail", "65537 sequences") == (many.verdict, many.values["what"])


@pytest.mark.parametrize(
    ("adapter", "call"),
    [
        (Wrapped("k", 1 << 31), "64 queries on 289 keys, heads 2 on 1"),
        (Limited(sequences=12), "16 sequences of 3 queries on 40 keys, heads 1 on 1"),
        (Limited(sequences=(1 << 16) - 1), "65537 sequences of 0 to 3 queries on 0 to 7 keys, heads 8 on 2"),
    ],
)
def test_a_finding_says_which_call_was_wrong(adapter: TiledTorch, call: str) -> None:
    """Its lengths and heads are not those of the case."""
    finding, *_ = size_limits(adapter)
    assert call == finding.values["call"]
    assert finding.detail.startswith(f"{finding.values['what']} ({call}): ")


class Broken(TiledTorch):
    """Its output is edited by the call."""

    def __init__(self, edit: Callable[[AttentionCall, Tensor], None]) -> None:
        super().__init__()
        self.edit = edit

    def prepare(self, call: AttentionCall) -> Prepared:
        native = super().prepare(call)

        def launch() -> Any:
            out, lse = native.launch()
            self.edit(call, out)
            return out, lse

        return Prepared(launch=launch, result=native.result)


def without_sequence(number: int) -> Callable[[AttentionCall, Tensor], None]:
    """A sequence in the middle of a large batch gives nothing."""

    def edit(call: AttentionCall, out: Tensor) -> None:
        if len(call.cu_seqlens_q) > number + 2:
            out[int(call.cu_seqlens_q[number]) : int(call.cu_seqlens_q[number + 1])] = 0

    return edit


def doubled(out: Tensor) -> None:
    """What an edit does to its part of the output."""
    out.mul_(2)


EDITS: dict[str, tuple[Callable[[AttentionCall, Tensor], None], str]] = {
    "sequence 31": (without_sequence(31), "65537 sequences"),
    "sequence 64": (without_sequence(64), "65537 sequences"),
    "sequence 32766": (without_sequence(32766), "65537 sequences"),
    "heads from 128 on": (lambda call, out: doubled(out[:, 128:]), "160 heads"),
    "queries from 2048 on": (lambda call, out: doubled(out[2048:]), "2113 queries"),
    "a live sequence": (
        lambda call, out: doubled(out[70:71] if len(call.cu_seqlens_q) == 71 else out[:0]),
        "70 live sequences",
    ),
    "long in both": (
        lambda call, out: doubled(out[: len(out) * (1024 < call.max_seqlen_k < 4096 and call.max_seqlen_q > 64)]),
        "545 queries on 1669 keys",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_ends_before_16_bits_is_caught(name: str) -> None:
    """At the edges of warps, blocks and tiles, and where another schedule is chosen."""
    edit, what = EDITS[name]
    finding, *_ = size_limits(Broken(edit))
    assert ("fail", what) == (finding.verdict, finding.values["what"])


def test_what_is_not_claimed_is_not_asked() -> None:
    """More queries than keys, and other heads where each would be compiled."""
    (finding,) = size_limits(card=make_card(longer_queries=["full"], jit="kernels"))
    assert ("pass", False, False) == (finding.verdict, "2113" in finding.detail, "heads" in finding.detail)


def test_a_mask_aligned_to_the_top_left_has_as_many_keys_as_queries() -> None:
    """At other lengths a correct kernel of such a card has another mask than the golden result."""
    asked: set[tuple[int, ...]] = set()

    class Recorded(TiledTorch):
        def prepare(self, call: AttentionCall) -> Prepared:
            asked.update(zip(call.cu_seqlens_q.diff().tolist(), call.cu_seqlens_k.diff().tolist(), strict=True))
            return super().prepare(call)

    card = make_card(alignment="top_left", elements={"max": 1 << 31}, batch={"max": 100})
    (finding,) = size_limits(Recorded(), card=card)
    assert (
        "right with up to 16 sequences, 160 heads, up to 104 heads, 100 sequences, 70 live sequences" == finding.detail
    )
    assert set() == {lengths for lengths in asked if lengths[0] != lengths[1]}


def test_the_batch_is_the_largest_that_the_card_claims() -> None:
    """A limit that the card states is no fault, and one below it is."""
    card = make_card(batch={"max": 1000})
    (finding,) = size_limits(Limited(sequences=1000), card=card)
    assert ("pass", True) == (finding.verdict, "1000 sequences" in finding.detail)
    assert "fail" == size_limits(Limited(sequences=999), card=card)[0].verdict


def test_a_kernel_is_asked_once_for_each_dtype_and_layout() -> None:
    """The next case of the same kernel says what was answered; another dtype is asked."""
    first = make_subject(level="full", head_dim=16)
    (answer,) = SizeLimits().run(first)
    (again,) = SizeLimits().run(replace(first, seed=5))
    assert ("note", answer.detail.removeprefix("right with ")) == (again.verdict, again.detail.rpartition(": ")[2])
    (other,) = SizeLimits().run(replace(first, workload=replace(first.workload, dtype="fp16")))
    assert "pass" == other.verdict
    one, far = SizeLimits().run(replace(first, workload=first.workload.with_lengths((1,), (70,))))
    assert (f"right with {', '.join(MANY)}", "pass") == (one.detail, one.verdict)
    assert ("note", "keys beyond") == (far.verdict, far.detail.rpartition(": ")[2][:11])


def test_a_failure_is_told_by_every_case() -> None:
    """What was wrong stays wrong."""
    subject = make_subject(Limited(sequences=1 << 10), level="full", head_dim=16)
    assert ["fail", "fail"] == [SizeLimits().run(subject)[0].verdict for _ in range(2)]


class LiveLimited(TiledTorch):
    """A list of the sequences that have queries has 1,023 places."""

    def prepare(self, call: AttentionCall) -> Prepared:
        native, live = super().prepare(call), call.cu_seqlens_q.diff().nonzero()

        def launch() -> Any:
            out, lse = native.launch()
            if len(live) > 1023:
                out[int(call.cu_seqlens_q[int(live[1023])]) :] = 0
            return out, lse

        return Prepared(launch=launch, result=native.result)


class QueriesLimited(TiledTorch):
    """Queries from number 65,536 of a call on are not computed."""

    def prepare(self, call: AttentionCall) -> Prepared:
        native = super().prepare(call)

        def launch() -> Any:
            out, lse = native.launch()
            out[1 << 16 :] = 0
            return out, lse

        return Prepared(launch=launch, result=native.result)


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        (TiledTorch(), None),
        (QueriesLimited(), "65601 queries"),
        (LiveLimited(), "1170 live sequences"),
    ],
    ids=["correct", "queries", "live"],
)
def test_a_gpu_is_asked_larger_calls(kernel: TiledTorch, what: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what costs it nothing; here on a CPU."""
    monkeypatch.setitem(SIZES, "small", replace(SIZES["large"], batches=2))  # three hundred take a CPU seconds
    finding, *_ = size_limits(kernel, card=make_card(elements={"max": 1 << 31}), heads_q=2, heads_kv=1)
    assert ("fail" if what else "pass", what) == (finding.verdict, finding.values.get("what"))


def test_what_a_library_refuses_is_noted() -> None:
    """A refusal is an answer, and the rest is asked."""

    class Short(TiledTorch):
        def prepare(self, call: AttentionCall) -> Prepared:
            if call.max_seqlen_q > 2048:
                raise LibraryRefusal("at most 2048 queries")
            return super().prepare(call)

    passed, noted = size_limits(Short())
    assert ("pass", "note") == (passed.verdict, noted.verdict)
    assert "not run: the library refuses 2113 queries (at most 2048 queries)" == noted.detail


@pytest.mark.parametrize("field", ["q", "k", "v"])
def test_far_rows_hold_the_same_numbers(field: str) -> None:
    """The last of them lie beyond as many elements as are asked."""
    packed = make_subject(level="full").inputs().call
    far = far_rows(packed, field=field, offsets=1 << 32)
    tensor = getattr(far, field)
    reach = tensor.stride(0) * (len(tensor) - 1)
    assert 0 <= reach - (9 << 32) / 8 < 64 * len(tensor)
    assert (0, 1 << 31) == (tensor.stride(0) % 64, tensor.storage_offset())
    for name in ("q", "k", "v"):
        assert torch.equal(getattr(packed, name), getattr(far, name))


def test_far_pages_hold_the_same_numbers() -> None:
    """All of them lie beyond as many elements as are asked."""
    paged = make_subject(level="full", **PAGED).inputs().call
    far = far_pages(paged, offsets=1 << 32)
    assert paged.block_table is not None
    assert far.block_table is not None
    assert int(far.block_table.min()) * far.k.stride(0) >= 1 << 32
    for name in ("k", "v"):
        assert torch.equal(getattr(paged, name)[paged.block_table.long()], getattr(far, name)[far.block_table.long()])


FAR = [f"{name} beyond 2^{power} elements" for power in (31, 32) for name in ("keys", "values", "queries")]
MANY = ["up to 16 sequences", "160 heads", "up to 104 heads", "65537 sequences", "70 live sequences"]
PREFILL = ["2113 queries", "545 queries on 1669 keys"]
NO_HEADS = [name for name in MANY if "heads" not in name]
DECODE: dict[str, Any] = {"seqlens_q": (1,), "seqlens_k": (70,)}
LATENT: dict[str, Any] = {"heads_kv": 1, "head_dim": 96, "head_dim_v": 64, "latent": True}


@pytest.mark.parametrize(
    ("claims", "workload", "expected"),
    [
        ({}, {}, FAR + PREFILL + MANY),
        ({}, DECODE, [name for name in FAR if "queries" not in name] + MANY),
        ({}, PAGED, [f"a cache beyond 2^{power} elements" for power in (31, 32)] + MANY),
        ({}, LATENT, [name for name in FAR if "values" not in name] + PREFILL + NO_HEADS),
        ({"jit": "kernels"}, {}, FAR + PREFILL + NO_HEADS),
        ({"jit": "shapes"}, {}, FAR + PREFILL + MANY[3:]),
        ({"elements": {"max": 1 << 31}}, {}, PREFILL + MANY),
        ({"elements": {"max": (1 << 31) + 1}}, {}, FAR[:3] + PREFILL + MANY),
        ({"features": ["ragged"]}, {}, FAR + PREFILL + MANY[:3] + MANY[4:]),
        ({"features": ["empty"]}, {}, FAR + PREFILL + MANY[:3]),
        ({"batch": {"max": 69}}, {}, [*FAR, *PREFILL, *MANY[:3], "69 sequences"]),
        ({"batch": {"max": 9}}, {}, [*FAR, *PREFILL, "up to 9 sequences", *MANY[1:3], "9 sequences"]),
        ({"batch": {"max": 1}}, {}, [*FAR, *PREFILL, *MANY[1:3], "1 sequences"]),
        ({"batch": {"max": 70}}, {}, [*FAR, *PREFILL, *MANY[:3], "70 sequences", "70 live sequences"]),
        ({"alignment": "top_left"}, {}, FAR + MANY),
        ({"longer_queries": ["full"]}, {}, FAR + PREFILL[1:] + MANY),
        ({}, {"heads_q": 12, "heads_kv": 4}, [*FAR, *PREFILL, MANY[0], "144 heads", *MANY[2:]]),
        ({}, {"heads_q": 71, "heads_kv": 1}, [*FAR, *PREFILL, MANY[0], "568 heads", *MANY[2:]]),
        ({}, {"heads_q": 17, "heads_kv": 17}, [*FAR, *PREFILL, MANY[0], "136 heads", *MANY[2:]]),
    ],
    ids=str,
)
def test_calls_keep_to_the_claims(claims: dict[str, Any], workload: dict[str, Any], expected: list[str]) -> None:
    """Far tensors, late queries, long prompts, heads and sequences, each as far as the card has room for it.

    Heads are a multiple of the workload's, with eights of KV heads.
    """
    assert expected == list(parts(make_subject(card=make_card(**claims), **workload)))


@pytest.mark.parametrize(
    ("workload", "most", "group", "expected"),
    [
        ({}, 1, 2, (2, 1)),
        ({}, 3, 2, (4, 2)),
        ({}, 1, 3, (3, 1)),
        ({"heads_q": 12, "heads_kv": 4}, 3, 2, (6, 3)),
        ({"heads_kv": 8}, 1, 2, (1, 1)),
        (LATENT, 1, 2, (8, 1)),
    ],
    ids=str,
)
def test_long_calls_have_few_heads(workload: dict[str, Any], most: int, group: int, expected: tuple[int, int]) -> None:
    """Each KV head keeps as many query heads as a group needs; kernels for latents, and compiled ones, keep theirs."""
    few = few_kv_heads(make_subject(**workload), most, group)
    assert expected == (few.heads_q, few.heads_kv)
    compiled = make_subject(card=make_card(jit="kernels"), **workload)
    assert compiled.workload == few_kv_heads(compiled, most, group)


class ByBatch(TiledTorch):
    """Splits its tiles by the number of sequences: another order of the sum."""

    def prepare(self, call: AttentionCall) -> Prepared:
        return TiledTorch(tile_k=16 if len(call.cu_seqlens_q) > 2 else 64).prepare(call)


class Refusing(TiledTorch):
    """Another kernel, in front of which calls are looked at."""

    def __init__(self, look: Callable[[AttentionCall], AttentionCall], kernel: TiledTorch) -> None:
        super().__init__()
        self.look, self.kernel = look, kernel

    def prepare(self, call: AttentionCall) -> Prepared:
        return self.kernel.prepare(self.look(call))


def last_unit(call: AttentionCall, out: Tensor, number: int) -> None:
    """What a scheduler leaves out at one number of units, which are heads of sequences: the last of them."""
    lengths = call.cu_seqlens_q.diff()
    if out.shape[1] * len(lengths) == number:
        doubled(out[len(out) - int(lengths[-1]) :, -1:])


@LAYOUTS
@pytest.mark.parametrize(
    ("number", "what"), [(11, "up to 16 sequences"), (37, "up to 104 heads"), (99, "up to 104 heads")]
)
def test_a_unit_that_is_lost_at_one_number_of_units_is_caught(layout: dict[str, Any], number: int, what: str) -> None:
    """A batch may have any size, and each size has another last wave of blocks."""
    finding, *_ = size_limits(Broken(lambda call, out: last_unit(call, out, number)), **layout)
    assert ("fail", what) == (finding.verdict, finding.values["what"])


@LAYOUTS
def test_a_batch_of_another_size_may_round_otherwise(layout: dict[str, Any]) -> None:
    """Unless the card claims batch invariance."""
    for claimed, verdict in ((True, "fail"), (False, "pass")):
        subject = make_subject(ByBatch(), card=make_card(batch_invariant=claimed), level="full", head_dim=16, **layout)
        wrong = parts(subject)["up to 16 sequences"](subject)
        assert verdict == ("pass" if wrong is None else wrong.verdict)
        assert wrong is None or "differs from itself" in wrong.detail


def test_a_gpu_is_asked_the_numbers_at_which_schedulers_change() -> None:
    """Every one of the first, then those beside whole waves of blocks and beside powers of two; never the largest."""
    asked = numbers(300, 40, 132)
    assert [*range(1, 41), 63, 64, 65, 127, 128, 129, 131, 132, 133, 255, 256, 257, 263, 264, 265] == asked
    assert list(range(1, 16)) == numbers(16, 104, 2)
    assert [1] == numbers(2, 40, 132)


@pytest.mark.parametrize("refusal", [LibraryRefusal("not of four"), KernelRaised("ValueError", "not of four", "")])
def test_numbers_of_heads_that_are_refused_are_left_out(refusal: Exception) -> None:
    """The kernel takes only multiples of four heads. No claim can say so, so it may also raise what it likes."""

    def fours(call: AttentionCall) -> AttentionCall:
        if call.q.shape[1] % 4:
            raise refusal
        return call

    for number, verdict in ((0, "pass"), (36, "fail"), (37, "pass")):
        wrong = Broken(lambda call, out, number=number: last_unit(call, out, number))
        subject = make_subject(Refusing(fours, wrong), level="full", head_dim=16)
        found = parts(subject)["up to 104 heads"](subject)
        assert verdict == ("pass" if found is None else found.verdict), number


def test_a_number_of_sequences_at_which_the_kernel_raises_is_a_failure() -> None:
    """Its card could claim fewer."""

    def raises(call: AttentionCall) -> AttentionCall:
        if len(call.cu_seqlens_q) == 8:
            raise KernelRaised("ValueError", "not seven", "")
        return call

    subject = make_subject(Refusing(raises, TiledTorch()), level="full", head_dim=16)
    with pytest.raises(KernelRaised, match="not seven"):
        parts(subject)["up to 16 sequences"](subject)


@LAYOUTS
@pytest.mark.parametrize("tiles", [12, 19, 24])
def test_keys_are_lost_at_one_number_of_tiles(layout: dict[str, Any], tiles: int) -> None:
    """Tiles that are loaded two or three ahead end otherwise at each number of tiles."""

    def edit(call: AttentionCall, out: Tensor) -> None:
        keys = call.seqused_k if call.cu_seqlens_k is None else call.cu_seqlens_k.diff()
        for index in (-(-keys // 32) == tiles).nonzero().flatten().tolist():
            doubled(out[int(call.cu_seqlens_q[index]) : int(call.cu_seqlens_q[index + 1])])

    finding, *_ = size_limits(Broken(edit), **layout)
    assert ("fail", "70 live sequences") == (finding.verdict, finding.values["what"])


def test_decode_is_asked_after_a_prefill_passed() -> None:
    """Kernels for one query are others, so what the kernel for several did says nothing of them; far rows do."""

    def edit(call: AttentionCall, out: Tensor) -> None:
        if call.max_seqlen_q == 1:
            doubled(out[:, 128:])

    subject = make_subject(Broken(edit), level="full", head_dim=16)
    assert "pass" == SizeLimits().run(subject)[0].verdict
    one = replace(subject, workload=subject.workload.with_lengths((1,), (70,)))
    finding = SizeLimits().run(one)[0]
    assert ("fail", "160 heads") == (finding.verdict, finding.values["what"])


@LAYOUTS
def test_live_sequences_run_alone_where_the_batch_must_not_matter(layout: dict[str, Any]) -> None:
    """Only where the card claims it."""
    for claimed, adapter, verdict in ((True, ByBatch(), "fail"), (True, None, "pass"), (False, ByBatch(), "pass")):
        card = make_card(batch_invariant=claimed)
        subject = make_subject(adapter, card=card, level="full", head_dim=16, **layout)
        wrong = parts(subject)["70 live sequences"](subject)
        assert verdict == ("pass" if wrong is None else wrong.verdict)
        assert wrong is None or "alone differs from itself in the batch" in wrong.detail


@pytest.mark.parametrize(
    ("claims", "workload", "expected"),
    [
        ({}, {}, ("window", (20, 0), True)),
        ({}, {"causal": False}, ("window", (20, 0), True)),
        ({}, {"window": (5, 0)}, ("window", (5, 0), True)),
        ({}, {"chunk": 16}, ("chunked", (-1, -1), True)),
        ({"masks": ["full", "causal"]}, {}, ("causal", (-1, -1), True)),
        ({"features": ["lse", "gqa", "ragged"]}, {}, ("window", (20, 0), False)),
        ({"features": ["lse", "gqa", "ragged"]}, {"sinks": True}, ("window", (20, 0), True)),
        ({"jit": "shapes"}, {}, ("causal", (-1, -1), False)),
        ({"alignment": "top_left"}, {}, ("causal", (-1, -1), False)),
    ],
    ids=str,
)
def test_live_sequences_meet_a_window_and_sinks(
    claims: dict[str, Any], workload: dict[str, Any], expected: tuple[str, tuple[int, int], bool]
) -> None:
    """In the second call, as far as the card claims them; a mask of another kind stays."""
    masks: list[tuple[str, tuple[int, int], bool]] = []

    def note(call: AttentionCall) -> AttentionCall:
        masks.append((call.mask.kind, call.mask.window, call.sinks is not None))
        return call

    subject = make_subject(Edited(call=note), card=make_card(**claims), level="full", head_dim=16, **workload)
    assert parts(subject)["70 live sequences"](subject) is None
    own = subject.workload
    assert [(own.mask.kind, own.mask.window, own.sinks), expected] == masks


@pytest.mark.parametrize(("by", "verdict"), [(1, "pass"), (64, "fail")])
def test_other_roundings_of_far_rows_are_granted(by: int, verdict: str) -> None:
    """Strides may choose another kernel, even where it claims determinism."""

    def edit(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        if not call.k.is_contiguous():
            out.view(torch.int16)[2, 1, 5] += by
        return out, lse

    subject = make_subject(Edited(result=edit), level="full")
    assert (verdict == "fail") == (parts(subject)["keys beyond 2^31 elements"](subject) is not None)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_what_the_machine_has_no_room_for_is_noted(error: type[Exception]) -> None:
    """The rest is asked, and the next case asks for it again."""

    def large(call: AttentionCall) -> AttentionCall:
        if len(call.cu_seqlens_q) > 1000:
            raise error("no 9 GB")
        return call

    card = make_card(elements={"max": 1 << 31})
    subject = make_subject(Edited(call=large), level="full", card=card, head_dim=16, **PAGED)
    asked_for = f"{', '.join(MANY[:3])}, 70 live sequences"
    for asked in (f"right with {asked_for}", f"passed before, on another shape: {asked_for}"):
        told, note = SizeLimits().run(subject)
        assert told.detail.startswith(asked)
        assert ("note", "not run: no room for 65537 sequences (no 9 GB)") == (note.verdict, note.detail)

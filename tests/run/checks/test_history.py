"""history: kernels that remember too much of an earlier call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import alter, make_card
from faults import Edited
from subjects import make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.history import History, replacements
from qualify.run.checks.other_workloads import shortened


class Sticky(TiledTorch):
    """Keeps one parameter of the first call under a key that lacks it."""

    def __init__(self, name: str, *key: str) -> None:
        super().__init__()
        self.name, self.key = name, key
        self.plans: dict[Any, Any] = {}

    def prepare(self, call: AttentionCall) -> Prepared:
        key = tuple(str(getattr(call, name)) for name in self.key)
        value = self.plans.setdefault(key, getattr(call, self.name))
        return super().prepare(alter(call, **{self.name: value}))


class SharedWorkspace(TiledTorch):
    """The plan of the last prepared call serves every launch."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None

    def prepare(self, call: AttentionCall) -> Prepared:
        own = super().prepare(call)
        self.last = call

        def launch() -> Any:
            if self.last.q.shape != call.q.shape:
                return own.launch()
            return TiledTorch.prepare(self, replace(call, scale=self.last.scale, k=self.last.k[: len(call.k)])).launch()

        return Prepared(launch=launch, result=own.result)


SMALL: dict[str, Any] = {"heads_q": 4, "heads_kv": 2, "head_dim": 32}


def history(adapter: Any = None, **workload: Any) -> list[Finding]:
    """What the check finds."""
    subject = make_subject(adapter, level="full", **SMALL | workload)
    assert "" == History().skips(subject)
    return History().run(subject)


@pytest.mark.parametrize(
    ("name", "adapter", "workload"),
    [
        ("scale", Sticky("scale"), {}),
        ("window", Sticky("window", "scale", "max_seqlen_k", "causal"), {}),
        ("window", Sticky("window", "scale", "max_seqlen_k"), {"window": (40, 0)}),
        ("mask", Sticky("causal", "window", "scale"), {}),
        ("softcap", Sticky("softcap", "window", "scale"), {"softcap": 30.0}),
    ],
    ids=["scale", "window", "window of a window", "mask", "softcap"],
)
def test_a_parameter_of_an_earlier_call_is_caught(name: str, adapter: Any, workload: dict[str, Any]) -> None:
    """By the first difference that shows it."""
    (finding,) = history(adapter, **workload)
    assert ("fail", name) == (finding.verdict, finding.values["differs_in"])


class Workspace(TiledTorch):
    """Keys are copied into a workspace that grows and is never cleared; all of it is attended to."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0

    def prepare(self, call: AttentionCall) -> Prepared:
        self.longest = max(self.longest, call.max_seqlen_k)
        return super().prepare(replace(call, scale=call.scale * (1 + self.longest - call.max_seqlen_k)))


def test_a_workspace_of_a_longer_call_is_caught() -> None:
    """The first call after it is the same length again."""
    (finding,) = history(Workspace())
    assert ("fail", "length (longer)") == (finding.verdict, finding.values["differs_in"])


def test_a_workspace_of_another_dtype_is_caught() -> None:
    """Values pass through a buffer in the dtype of the first call."""

    class Buffered(TiledTorch):
        dtype: Any = None

        def prepare(self, call: AttentionCall) -> Prepared:
            self.dtype = self.dtype or call.v.dtype
            return super().prepare(replace(call, v=call.v.to(self.dtype).to(call.v.dtype)))

    (finding,) = history(Buffered())
    assert ("fail", "dtype (fp16)") == (finding.verdict, finding.values["differs_in"])


def test_pages_of_another_size_are_caught() -> None:
    """A plan that was made for the first page size."""

    class Paged(TiledTorch):
        size = 0

        def prepare(self, call: AttentionCall) -> Prepared:
            self.size = self.size or call.k.shape[1]
            scale = call.scale * self.size / call.k.shape[1]
            return super().prepare(replace(call, scale=scale))

    (finding,) = history(Paged(), seqlens_q=(1, 1), seqlens_k=(40, 33), page_size=16)
    assert ("fail", "page size") == (finding.verdict, finding.values["differs_in"])


def test_a_plan_that_another_one_overwrites_is_caught() -> None:
    """A decode call launched again after a longer one was prepared."""
    (finding,) = history(SharedWorkspace(), seqlens_q=(1, 1), seqlens_k=(40, 33))
    assert ("fail", "plan") == (finding.verdict, finding.values["differs_in"])


class Addressed(TiledTorch):
    """What a tensor held when its address was first seen serves every call with that address."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.kept: dict[Any, Any] = {}

    def prepare(self, call: AttentionCall) -> Prepared:
        tensor = getattr(call, self.name)
        if tensor is None:
            return super().prepare(call)
        _, copy = self.kept.setdefault((tensor.data_ptr(), tensor.shape, tensor.dtype), (tensor, tensor.clone()))
        return super().prepare(alter(call, **{self.name: copy}))


@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("k", "contents"),
        ("v", "contents"),
        ("sinks", "contents"),
        ("v_descale", "contents"),
        ("block_table", "contents"),
        ("seqused_k", "lengths of keys"),
        ("cu_seqlens_k", "lengths of keys"),
        ("cu_seqlens_q", "lengths of queries"),
        ("bidirectional_spans", "images"),
    ],
)
def test_what_is_kept_under_an_address_is_caught(name: str, differs: str) -> None:
    """Contents, pages, lengths, images and factors that were replaced where they stand."""
    workload: dict[str, Any] = {"seqlens_q": (5, 3), "seqlens_k": (40, 33), "sinks": True}
    workload |= {"page_size": 16} if name in {"block_table", "seqused_k", "cu_seqlens_q"} else {}
    workload |= {"dtype": "fp8_e4m3"} if name == "v_descale" else {}
    (finding,) = history(Addressed(name), **workload)
    assert ("fail", differs) == (finding.verdict, finding.values["differs_in"])


class Recorded(TiledTorch):
    """Warms up in its first calls of the same tensors, and replays what the last of them found in one from then on."""

    def __init__(self, name: str, calls: int) -> None:
        super().__init__()
        self.name, self.calls = name, calls
        self.found: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def prepare(self, call: AttentionCall) -> Prepared:
        tensor = getattr(call, self.name)
        if tensor is None:
            return super().prepare(call)
        _, found = self.found.setdefault(id(tensor), (tensor, []))
        found += [tensor.clone()] if len(found) < self.calls else []
        return super().prepare(alter(call, **{self.name: found[-1]}) if len(found) == self.calls else call)


@pytest.mark.parametrize(
    ("name", "differs", "calls"),
    [
        *(("k", "contents", calls) for calls in (2, 3, 12)),
        *(("block_table", "contents", calls) for calls in (3, 12)),
        *(("seqused_k", "lengths of keys", calls) for calls in (2, 3, 4)),
    ],
)
def test_what_a_later_call_records_is_caught(name: str, differs: str, calls: int) -> None:
    """As in a graph that a library captures once it is warm: PyTorch warms up three times, in some cases eleven."""
    (finding,) = history(Recorded(name, calls), seqlens_q=(5, 3), seqlens_k=(40, 33), page_size=16)
    assert ("fail", differs) == (finding.verdict, finding.values["differs_in"])


class Layer(TiledTorch):
    """What the first layer asks is asked of every layer with the same metadata."""

    def __init__(self, *fields: str) -> None:
        super().__init__()
        self.fields = fields
        self.kept: dict[int, tuple[Tensor, dict[str, Any]]] = {}

    def prepare(self, call: AttentionCall) -> Prepared:
        asked = {name: getattr(call, name) for name in self.fields}
        _, first = self.kept.setdefault(id(call.cu_seqlens_q), (call.cu_seqlens_q, asked))
        return super().prepare(alter(call, **first))


@pytest.mark.parametrize("field", ["window", "softcap", "scale"])
def test_parameters_that_are_kept_for_their_metadata_are_caught(field: str) -> None:
    """Layers with other ones hand over the very same tensors."""
    (finding,) = history(Layer(field))
    assert ("fail", "parameters") == (finding.verdict, finding.values["differs_in"])


def test_the_extent_of_a_buffer_is_that_of_each_call() -> None:
    """As many rows as the first call at an address had are written."""

    class Extent(TiledTorch):
        def __init__(self) -> None:
            super().__init__()
            self.kept: dict[Any, Any] = {}

        def prepare(self, call: AttentionCall) -> Prepared:
            place = (call.q.data_ptr(), call.q.shape[1:], call.q.dtype)
            _, rows = self.kept.setdefault(place, (call.q, len(call.q)))
            native = super().prepare(call)

            def launch() -> Any:
                out, lse = native.launch()
                out[rows:] = 0
                return out, lse

            return Prepared(launch=launch, result=native.result)

    (finding,) = history(Extent(), seqlens_q=(9, 30), seqlens_k=(40, 33))
    assert ("fail", "extent") == (finding.verdict, finding.values["differs_in"])


class AddressedBeside(Addressed):
    """What is kept is found by the address together with what a key may hold beside it."""

    def __init__(self, name: str, key: Callable[[AttentionCall], Any]) -> None:
        super().__init__(name)
        self.key = key

    def prepare(self, call: AttentionCall) -> Prepared:
        tensor = getattr(call, self.name)
        if tensor is None:
            return TiledTorch.prepare(self, call)
        key = (tensor.data_ptr(), tensor.shape, str(self.key(call)))
        _, copy = self.kept.setdefault(key, (tensor, tensor.clone()))
        return TiledTorch.prepare(self, alter(call, **{self.name: copy}))


DECODE: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (40, 33), "page_size": 16}


@pytest.mark.parametrize(
    ("adapter", "workload", "differs"),
    [
        (AddressedBeside("seqused_k", lambda call: call.max_seqlen_k), DECODE, "lengths of keys"),
        (AddressedBeside("block_table", lambda call: call.block_table[:, 0].tolist()), DECODE, "pages"),
        (
            AddressedBeside("cu_seqlens_q", lambda call: call.cu_seqlens_k),
            {"seqlens_q": (9, 9), "seqlens_k": (40, 33)},
            "lengths of queries",
        ),
        (
            AddressedBeside("cu_seqlens_k", lambda call: call.cu_seqlens_q.tolist()),
            {"seqlens_q": (9, 9), "seqlens_k": (40, 40)},
            "lengths of keys",
        ),
        (
            AddressedBeside("bidirectional_spans", lambda call: call.cu_seqlens_q.tolist()),
            {"seqlens_q": (30,), "window": (7, 0), "spans": ((0, 3, 20),)},
            "images",
        ),
    ],
    ids=["the longest", "the first page", "keys' lengths", "queries' lengths", "an image under a window"],
)
def test_what_is_kept_under_an_address_and_more_is_caught(adapter: Any, workload: dict[str, Any], differs: str) -> None:
    """Whatever else stays the same."""
    (finding,) = history(adapter, **workload)
    assert ("fail", differs) == (finding.verdict, finding.values["differs_in"])


@pytest.mark.parametrize(
    "workload",
    [
        {},
        {"seqlens_q": (40, 0, 9), "seqlens_k": (60, 7, 9), "spans": ((0, 3, 30),)},
        {"seqlens_q": (1,) * 3, "seqlens_k": (90, 41, 64), "page_size": 16, "dtype": "bf16_kv_fp8_e4m3"},
        {"seqlens_q": (3000,), "heads_q": 2, "heads_kv": 1},
        {"window": (7, 0), "softcap": 30.0, "sinks": True},
        {"seqlens_q": (1,) * 6, "seqlens_k": (500, 3, 0, 77, 9, 12), "page_size": 16},
    ],
    ids=str,
)
def test_a_correct_kernel_passes(workload: dict[str, Any]) -> None:
    """Whatever it was asked before."""
    (finding,) = history(**workload)
    assert "pass" == finding.verdict


def test_a_refusal_is_told() -> None:
    """A library without windows."""

    class Choosy(TiledTorch):
        def prepare(self, call: AttentionCall) -> Any:
            if call.window != (-1, -1):
                raise LibraryRefusal("no window")
            return super().prepare(call)

    assert ["pass", *["note"] * 7] == [finding.verdict for finding in history(Choosy())]


def test_each_shape_of_a_compiler_is_too_much() -> None:
    """The check is not asked."""
    assert "each shape would be compiled" == History().skips(make_subject(card=make_card(jit="shapes")))


def test_calls_become_short() -> None:
    """Queries and keys shrink alike, decode stays decode, and at most four sequences remain."""
    found = shortened(make_subject(seqlens_q=(1,) * 6, seqlens_k=(500, 3, 0, 77, 9, 12)).workload)
    assert ((1,) * 4, (96, 1, 0, 15)) == (found.seqlens_q, found.seqlens_k)


class Planned(TiledTorch):
    """Keeps some parameters of the first call whose key is the same."""

    def __init__(self, kept: tuple[str, ...], key: Callable[[AttentionCall], Any]) -> None:
        super().__init__()
        self.kept, self.key = kept, key
        self.plans: dict[str, dict[str, Any]] = {}

    def prepare(self, call: AttentionCall) -> Prepared:
        of_call = {name: getattr(call, name) for name in self.kept}
        tensors = {name: each.clone() if isinstance(each, Tensor) else each for name, each in of_call.items()}
        key = f"{self.key(call)} {call.q.dtype} {call.q.shape} {call.cu_seqlens_q.tolist()}"
        return super().prepare(alter(call, **self.plans.setdefault(key, tensors)))


def image_count(call: AttentionCall) -> int:
    """Spans of a call."""
    return 0 if call.bidirectional_spans is None else len(call.bidirectional_spans)


@pytest.mark.parametrize(
    ("name", "adapter", "workload"),
    [
        (
            "order of sequences",
            Planned(("seqused_k",), lambda call: (int(call.seqused_k.sum()), int(call.seqused_k.max()))),
            {"seqlens_q": (1, 1), "seqlens_k": (40, 33), "page_size": 16},
        ),
        (
            "window (left side)",
            Planned(("mask",), lambda call: (call.causal, call.window[1])),
            {"causal": False, "window": (9, 5)},
        ),
        (
            "window (right side)",
            Planned(("mask",), lambda call: (call.causal, call.window[0])),
            {"causal": False, "window": (9, 5)},
        ),
        ("chunked mask", Planned(("mask",), lambda call: (call.causal, call.window, call.chunk > 0)), {"chunk": 20}),
        ("image", Planned(("bidirectional_spans",), lambda call: (call.causal, call.window, call.chunk)), {}),
        (
            "image (its place)",
            Planned(("bidirectional_spans",), lambda call: (call.causal, call.window, call.chunk, image_count(call))),
            {},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_key_that_holds_too_little_is_caught(name: str, adapter: Any, workload: dict[str, Any]) -> None:
    """By the difference in what it leaves out."""
    (finding,) = history(adapter, **workload)
    assert ("fail", name) == (finding.verdict, finding.values["differs_in"])


@pytest.mark.parametrize(
    ("name", "fields"),
    [("sinks", {"sinks": None}), ("softcap", {"softcap": 0.0}), ("image", {"bidirectional_spans": None})],
)
def test_what_is_lost_under_a_window_only_is_caught(name: str, fields: dict[str, Any]) -> None:
    """Each alone is right."""

    def edit(call: AttentionCall) -> AttentionCall:
        return call if call.window == (-1, -1) else alter(call, **fields)

    (finding,) = history(Edited(call=edit))
    assert ("fail", f"window and {name}") == (finding.verdict, finding.values["differs_in"])


def test_sinks_that_are_lost_under_a_pattern_only_are_caught() -> None:
    """Chunks alone are right, and so are sinks."""

    def edit(call: AttentionCall) -> AttentionCall:
        return replace(call, sinks=None) if call.chunk else call

    (finding,) = history(Edited(call=edit))
    assert ("fail", "chunked mask and sinks") == (finding.verdict, finding.values["differs_in"])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("workload", [{}, {"causal": False}, {"seqlens_q": (1,), "seqlens_k": (70,)}], ids=str)
def test_a_side_of_0_that_is_taken_for_an_open_one_is_caught(side: str, workload: dict[str, Any]) -> None:
    """Without a causal mask: where 0 means that there is no such side."""

    def opened(call: AttentionCall) -> AttentionCall:
        left, right = call.window
        window = (left or -1, right) if side == "left" else (left, right or -1)
        return call if call.causal else alter(call, window=window)

    made = make_subject(Edited(call=opened), level="full", **workload)
    if max(made.workload.seqlens_q) == 1 and side == "right":
        return  # one query sees nothing ahead
    (finding,) = History().run(made)
    assert ("fail", f"window ({side} side of 0)") == (finding.verdict, finding.values["differs_in"])


Lengths = tuple[tuple[int, ...], tuple[int, ...]]
PAGES = {"page_size": 16}


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (
            {"seqlens_q": (9, 30), "seqlens_k": (40, 33)},
            {"queries": ((30, 9), (40, 33)), "keys": ((9, 30), (33, 40)), "both": ((30, 9), (33, 40))},
        ),
        (
            {"seqlens_q": (9, 5, 9), "seqlens_k": (40,) * 3},
            {"queries": ((8, 5, 10), (40,) * 3), "keys": ((9, 5, 9), (39, 40, 41))},
        ),
        (
            {"seqlens_q": (5, 1, 5), "seqlens_k": (8, 9, 7)},
            {"queries": ((4, 1, 6), (8, 9, 7)), "keys": ((5, 1, 5), (7, 9, 8)), "both": ((5, 1, 5), (7, 9, 8))},
        ),
        ({"seqlens_q": (2, 2)}, {"queries": ((1, 3), (2, 2)), "keys": ((2, 2), (1, 3))}),
        ({"seqlens_q": (1, 1)}, {}),
        ({"seqlens_q": (9,)}, {}),
        ({"seqlens_q": (9, 30), "spans": ((1, 3, 20),)}, {}),
        (
            {"seqlens_q": (1, 1), "seqlens_k": (40, 33)} | PAGES,
            {"keys": ((1, 1), (40, 17)), "both": ((1, 1), (20, 17))},
        ),
        (
            {"seqlens_q": (3, 30, 50), "seqlens_k": (33, 50, 40)} | PAGES,
            {
                "queries": ((50, 30, 3), (33, 50, 40)),
                "keys": ((3, 30, 50), (17, 50, 40)),
                "both": ((3, 30, 50), (17, 30, 40)),
            },
        ),
    ],
    ids=str,
)
def test_lengths_turn_within_the_same_tensors(workload: dict[str, Any], expected: dict[str, Lengths]) -> None:
    """Of queries or keys alone, and of both: two change places, or one row moves; on pages sequences become shorter."""
    assert expected == turned(**workload)


@pytest.mark.parametrize(
    ("claims", "workload", "expected"),
    [
        ({"features": ["lse"]}, {"seqlens_q": (9, 9), "seqlens_k": (40, 40)}, {}),
        ({"features": ["lse"]}, {"seqlens_q": (1, 1), "seqlens_k": (40, 40)} | PAGES, {"both": ((1, 1), (20, 20))}),
        ({"alignment": "top_left"}, {"seqlens_q": (9, 30)}, {"both": ((30, 9), (30, 9))}),
    ],
    ids=str,
)
def test_lengths_turn_as_far_as_the_card_claims(
    claims: dict[str, Any], workload: dict[str, Any], expected: dict[str, Lengths]
) -> None:
    """Unequal ones are a claim, and so are more queries than keys."""
    assert expected == turned(claims, **workload)


def turned(claims: dict[str, Any] | None = None, **workload: Any) -> dict[str, Lengths]:
    """The other lengths of the same tensors, by what differs."""
    subject = make_subject(card=make_card(**claims or {}), **workload)
    words = {"lengths of queries": "queries", "lengths of keys": "keys", "lengths": "both"}
    found = {}
    for name, (own, inputs), (other, altered) in replacements(subject):
        if name in words:
            assert own == subject.workload
            assert inputs.call.q.shape == altered.call.q.shape
            found[words[name]] = (other.seqlens_q, other.seqlens_k)
            assert max(other.seqlens_k) == altered.call.max_seqlen_k
            assert list(other.seqlens_q) == altered.call.cu_seqlens_q.diff().tolist()
    return found


def test_a_cache_grows_by_a_page_that_its_table_did_not_name() -> None:
    """The null page stood there before."""
    subject = make_subject(seqlens_q=(1, 1), seqlens_k=(40, 32), page_size=16)
    ((own, before), (longer, after)) = next(rest for name, *rest in replacements(subject) if name == "pages")
    assert ((40, 32), (56, 48)) == (own.seqlens_k, longer.seqlens_k)
    was, now = before.call.block_table, after.call.block_table
    assert was is not None
    assert now is not None
    assert [[1, 1, 1, 1], [1, 1, 1, 0]] == (now > 0).int().tolist()
    assert (now * torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])).tolist() == was.tolist()
    assert before.call.seqused_k is not None
    assert [40, 32] == before.call.seqused_k.tolist()


@pytest.mark.parametrize(
    ("spans", "expected"), [(((0, 3, 20), (0, 25, 26)), ((0, 3, 19), (0, 25, 26))), (((0, 0, 2),), ((0, 0, 1),))]
)
def test_an_image_shrinks_where_no_other_can_be_asked(spans: Any, expected: Any) -> None:
    """Under a window; it never becomes empty."""
    subject = make_subject(seqlens_q=(30,), window=(7, 0), spans=spans)
    (found,) = (pair for name, *pair in replacements(subject) if name == "images")
    assert (spans, expected) == (found[0][0].spans, found[1][0].spans)


def test_an_image_is_asked_at_two_places() -> None:
    """Half of the queries, and a key later: only the place differs."""
    (found,) = (pair for name, *pair in replacements(make_subject(seqlens_q=(30,))) if name == "images")
    assert (((0, 0, 15),), ((0, 1, 16),)) == (found[0][0].spans, found[1][0].spans)
    assert [[[0, 0, 15]], [[0, 1, 16]]] == [inputs.call.bidirectional_spans.tolist() for _, inputs in found]


def test_another_call_that_is_wrong_by_itself_is_not_blamed_on_state_alone() -> None:
    """A kernel that ignores the softcap keeps nothing between calls, and the case has no softcap."""
    subject = make_subject(Edited(call=lambda call: replace(call, softcap=0.0)), level="full", **SMALL)
    finding = next(found for found in History().run(subject) if found.verdict == "fail")
    told = "right after the case's call, one that differs from it only in its softcap is wrong, perhaps by itself: "
    assert finding.detail.startswith(told)
    assert "does not have by itself" in str(finding.values["likely"])

"""The plan: ids, hashes, selections and limits."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from builders import geometry, make_kernel, make_matrix
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.cards.load import load_kernels, load_matrix, load_models
from qualify.cards.named import matrix_names
from qualify.errors import NothingSelected, UsageError
from qualify.plan.host import Host
from qualify.plan.plan import Plan, Selection, make_plan

KERNELS = {name: make_kernel(name) for name in ("alpha", "beta", "gamma-2")}
AXES: dict[str, Any] = {
    "models": [
        geometry({}, {"mask": "window", "window": 128}) | {"tensor_parallel": [1, 2]},
        geometry({"head_dim": 128}, model="other"),
    ],
    "phases": {
        "prefill": {"batch": [1, 2], "seqlen": [128, 256]},
        "varlen": {"lengths": [[1, 2, 3], [7]]},
        "decode": {"context": [64], "page_size": ["contiguous", 16]},
    },
    "dtypes": ["bf16", "fp16"],
    "masks": ["model", "full"],
    "kernels": ["*"],
}


def plan(select: str = "", kernel: str = "", host: Host | None = None, **matrix: Any) -> Plan:
    """A plan over three kernels that claim everything."""
    made = make_matrix(**AXES | matrix)
    return make_plan(made, KERNELS, host=host, selection=Selection(select=select, kernel=kernel))


def ids(found: Plan) -> list[str]:
    """All ids, those of the cases first."""
    return [case.id for case in found.cases] + [case.id for case, _ in found.refused]


def test_the_id_of_the_documentation() -> None:
    """model/phase/shape/dtype/mask/kernel of a shipped model on a shipped kernel."""
    matrix = make_matrix(phases={"prefill": {"seqlen": 8192}}, kernels=["flash-attn-3"])
    (case,) = make_plan(matrix, load_kernels()).cases
    assert "llama-3.1-8b.tp1/prefill/b1.q8192.k8192/bf16/causal/flash-attn-3" == case.id
    assert "llama-3.1-8b.tp1/prefill/b1.q8192.k8192/bf16/causal" == case.cell
    assert ("llama-3.1-8b.tp1", "prefill", "b1.q8192.k8192", "bf16", "causal", "flash-attn-3") == (
        case.model,
        case.phase,
        case.shape,
        case.dtype,
        case.mask,
        case.kernel,
    )
    assert (32, 7) == (case.layers, case.line)
    work = case.workload
    assert (32, 8, 128, 128, (8192,), (8192,), 0) == (
        work.heads_q,
        work.heads_kv,
        work.head_dim,
        work.head_dim_v,
        work.seqlens_q,
        work.seqlens_k,
        work.page_size,
    )


def test_a_sliding_window_model() -> None:
    """mistral-7b-v0.1 has a window of 4096 keys, itself included."""
    matrix = make_matrix(models=["mistral-7b-v0.1"], kernels=["flash-attn-3"])
    (case,) = make_plan(matrix, load_kernels()).cases
    assert ("window4096", True, (4095, 0), "window") == (
        case.mask,
        case.workload.mask.causal,
        case.workload.mask.window,
        case.workload.mask.kind,
    )


@pytest.mark.parametrize("name", matrix_names())
def test_ids_of_shipped_matrices_are_unique_and_well_formed(name: str) -> None:
    """Six parts, and nothing that a shell or a glob would misread."""
    found = ids(make_plan(load_matrix(name), load_kernels()))
    assert len(found) == len(set(found))
    assert all(6 == len(each.split("/")) for each in found)
    assert set("".join(found)) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-/_")


def test_every_shipped_model_expands() -> None:
    """Under every mask, on 1 to 64 GPUs: unique ids, and refusals that name the division."""
    models = [{"model": name, "tensor_parallel": [1, 2, 4, 8, 16, 64]} for name in load_models()]
    masks = ["model", "causal", "full", "window128"]
    found = make_plan(make_matrix(models=models, masks=masks, kernels=["tiled-torch"]), load_kernels())
    assert len(ids(found)) == len(set(ids(found)))
    for case, reasons in found.refused:
        assert all("tensor_parallel=" in reason or "head_dim" in reason for reason in reasons), (case.id, reasons)


def test_every_axis_is_expanded() -> None:
    """(2 GPU counts × 2 groups + 1 group) × masks, 8 shapes, 2 dtypes, 3 kernels; equal calls of a mask are one."""
    found = plan()
    # small: window128, causal, full on 1 and 2 GPUs; other: causal, full.
    assert (2 * 3 + 2) * 8 * 2 * 3 == len(found.cases)
    assert () == found.refused
    assert len(ids(found)) == len(set(ids(found)))


def shuffled(value: Any, seed: int) -> Any:
    """The same matrix with every list in another order."""
    generator = random.Random(seed)

    def visit(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: value if key == "groups" else visit(value) for key, value in item.items()}
        if isinstance(item, list) and not all(isinstance(each, int) for each in item):
            return generator.sample([visit(each) for each in item], len(item))
        return item

    return visit(value)


@pytest.mark.parametrize("seed", range(4))
def test_ids_and_hashes_do_not_depend_on_the_order_of_axes(seed: int) -> None:
    """Reordered, every case has the same id, hash and workload."""
    first = {case.id: (case.content_hash, case.workload) for case in plan().cases}
    second = make_plan(make_matrix(**shuffled(AXES, seed)), dict(reversed(KERNELS.items())))
    assert first == {case.id: (case.content_hash, case.workload) for case in second.cases}


def hash_of(kernel: Any = None, group: dict[str, Any] | None = None, **matrix: Any) -> str:
    """Content hash of the one case of a matrix."""
    made = make_matrix(models=[geometry(group or {}, model=matrix.pop("model", "small"))], **matrix)
    (case,) = make_plan(made, {"under-test": kernel or make_kernel()}).cases
    return case.content_hash


def test_equal_calls_have_equal_hashes() -> None:
    """Another model, phase or name of the mask is the same call."""
    expected = hash_of(phases={"prefill": {"batch": 2, "seqlen": 64}})
    assert expected == hash_of(phases={"varlen": {"lengths": [[64, 64]]}})
    assert expected == hash_of(phases={"chunked": {"chunk": 64, "context": 0, "batch": 2}})
    assert expected == hash_of(phases={"prefill": {"batch": 2, "seqlen": 64}}, model="other")
    assert expected == hash_of(phases={"prefill": {"batch": 2, "seqlen": 64}}, masks="causal")


@pytest.mark.parametrize(
    "change",
    [
        {"group": {"heads_q": 4}},
        {"group": {"heads_kv": 1}},
        {"group": {"head_dim": 128, "scale": 0.125}},
        {"group": {"head_dim_v": 32}},
        {"group": {"softcap": 1.0}},
        {"group": {"sinks": True}},
        {"group": {"scale": 0.1250001}},
        {"group": {"mask": "full"}},
        {"group": {"mask": "window", "window": 9}},
        {"dtypes": "fp16"},
        {"phases": {"prefill": {"seqlen": 129}}},
        {"phases": {"prefill": {"batch": 2, "seqlen": 128}}},
        {"phases": {"varlen": {"lengths": [[64, 64]]}}},
        {"phases": {"varlen": {"lengths": [[1, 2]]}}},
        {"phases": {"varlen": {"lengths": [[2, 1]]}}},
        {"phases": {"varlen": {"lengths": [[1, 1, 2]]}}},
        {"phases": {"decode": {"context": 128}}},
        {"phases": {"decode": {"context": 128, "page_size": 16}}},
        {"phases": {"decode": {"context": 128, "page_size": 32}}},
        {"kernel": make_kernel(deterministic=False)},
        {"kernel": make_kernel(options={"tile_q": 64})},
    ],
    ids=str,
)
def test_other_calls_have_other_hashes(change: dict[str, Any]) -> None:
    """Whatever a kernel could notice, and the card, is in the hash."""
    assert hash_of() != hash_of(**change)


def test_other_calls_have_pairwise_other_hashes() -> None:
    """Lengths are counted in runs, and no two batches run together."""
    batches = [
        [1],
        [1, 1],
        [1, 1, 1],
        [1, 1, 1, 1],
        [1, 2],
        [2, 1],
        [1, 1, 2],
        [1, 2, 2],
        [11, 2],
        [1, 12],
        [2, 2, 1],
        [12],
    ]
    hashes = {hash_of(phases={"varlen": {"lengths": [batch]}}) for batch in batches}
    assert len(batches) == len(hashes)
    assert 3 == len({hash_of(phases={"decode": {"context": context}}) for context in (64, 65, 128)})


def test_a_glob_selects_whole_ids() -> None:
    """What it matches and nothing else; it must match to the end."""
    everything = ids(plan())
    found = ids(plan(select="small.tp2/*/bf16/causal/alpha"))
    assert [
        each for each in everything if each.startswith("small.tp2/") and each.endswith("/bf16/causal/alpha")
    ] == found
    assert 8 == len(found)
    with pytest.raises(NothingSelected, match="A word matches a part of the id"):
        plan(select="small.tp3")
    assert ids(plan(select="small.tp2")) == [each for each in everything if each.startswith("small.tp2/")]


def test_a_kernel_selects_its_cases() -> None:
    """--kernel names one kernel of the matrix, or several by a glob; it may be combined with --select."""
    assert {"gamma-2"} == {case.kernel for case in plan(kernel="gamma-2").cases}
    assert {"alpha", "beta"} == {case.kernel for case in plan(kernel="*a").cases}
    with pytest.raises(UsageError, match=r"--kernel delta: not a kernel of matrix example.* alpha, beta, gamma-2"):
        plan(kernel="delta")
    with pytest.raises(NothingSelected):
        plan(select="*/alpha", kernel="beta")


def test_excluded_cases_are_left_out() -> None:
    """They are neither cases nor refusals."""
    found = ids(plan(exclude=["*/decode/*", "*/beta"]))
    assert not [each for each in found if "/decode/" in each or each.endswith("/beta")]
    assert len(ids(plan())) * 6 // 8 * 2 // 3 == len(found)


def test_what_exclude_leaves_out_is_told() -> None:
    """A glob that matches more than its author meant shows: b1* is b16, too."""
    batches = {"phases": {"decode": {"batch": [1, 2, 16], "context": 64}}, "dtypes": ["bf16"], "masks": ["model"]}
    assert "" == plan(**batches).excluded
    assert "exclude leaves out 5 of 45 cases" == plan(**batches, exclude=["*/b1.*/beta"]).excluded
    assert (
        "exclude leaves out 30 of 45 cases; 10 calls have no kernel left, for example "
        "small.tp1/decode/b1.q1.k64/bf16/causal"
    ) == plan(**batches, exclude=["*/decode/b1*"], select="*/b2.*").excluded
    assert "" == plan(**batches, exclude=["*/beta"], kernel="alpha").excluded


def test_kernels_of_a_matrix_keep_its_order_and_count_once() -> None:
    """Globs in the order of the file; a kernel that two globs match runs once."""
    found = plan(kernels=["gamma*", "*"], select="other.tp1/prefill/b1.q128.k128/bf16/full/*")
    assert ["gamma-2", "alpha", "beta"] == [case.kernel for case in found.cases]


def test_ten_million_cells_are_refused_by_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is named, and no case is ever made."""
    monkeypatch.setattr("qualify.plan.plan.expand_cases", None)
    axis = list(range(1, 1001))
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=r"expands to 30,000,000 cases, more than policy.limit_cases = 200,000"):
            plan(
                models=[geometry()],
                masks="model",
                dtypes="bf16",
                phases={"chunked": {"chunk": axis, "context": axis, "batch": list(range(1, 11))}},
            )
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


HUGE = 2**31 - 1


@pytest.mark.parametrize(
    "phases",
    [
        {"prefill": {"batch": HUGE, "seqlen": 1}},
        {"chunked": {"batch": HUGE, "chunk": 1, "context": 1}},
        {"decode": {"batch": HUGE, "context": 1}},
        {"verify": {"batch": HUGE, "draft": 1, "context": 1}},
        {"decode": {"batch": 65535, "context": list(range(1, 101))}},
    ],
    ids=["prefill", "chunked", "decode", "verify", "many"],
)
def test_a_batch_is_counted_before_it_is_made(phases: dict[str, Any]) -> None:
    """A shape holds the lengths of all its sequences: two thousand million would fill the memory."""
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=r"its shapes hold [0-9,]+ sequences, more than 4,000,000 together"):
            plan(models=[geometry()], masks="model", phases=phases)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_the_batch_of_an_incident_is_counted_too() -> None:
    """Its list of lengths is repeated as often."""
    call = {"heads_q": 1, "heads_kv": 1, "head_dim": 8, "seqlens_q": [1, 2], "batch": HUGE}
    incident = {"incident": "a-1", "issue": "a/b#1", "title": "x", "trigger": "x", "shown_by": "census"}
    with pytest.raises(UsageError, match=r"its shapes hold 4,294,967,29[0-9] sequences"):
        make_plan(make_matrix(incidents=[incident | {"calls": [call]}], kernels=["*"]), KERNELS)


def test_the_limit_may_be_raised_or_lowered() -> None:
    """limit_cases is a policy of the matrix; the limit itself is allowed."""
    count = 2 * 3 * 1 * 2
    axes: dict[str, Any] = {"models": [geometry()], "masks": "model", "phases": {"prefill": {"seqlen": [1, 2]}}}
    assert count == len(plan(**axes, policy={"limit_cases": count}).cases)
    with pytest.raises(UsageError, match=f"expands to {count} cases"):
        plan(**axes, policy={"limit_cases": count - 1})


def test_the_limit_counts_what_is_selected_by_kernel() -> None:
    """One kernel of three is a third of the cases."""
    axes: dict[str, Any] = {"models": [geometry()], "masks": "model", "phases": {"prefill": {"seqlen": 1}}}
    assert 2 == len(plan(kernel="alpha", **axes, policy={"limit_cases": 2}).cases)


def test_claims_may_be_ignored() -> None:
    """What a card does not claim runs and says why it is not claimed; what cannot run is still refused."""
    narrow = {"under-test": make_kernel(head_dim={"max": 32})}
    enforced = make_plan(make_matrix(models=[geometry()]), narrow)
    assert (0, 1) == (len(enforced.cases), len(enforced.refused))
    ignored = make_plan(make_matrix(models=[geometry()], policy={"claims": "ignore"}), narrow)
    assert [("head_dim=64 > 32 (under-test claims ≤ 32)",)] == [case.unclaimed for case in ignored.cases]
    assert enforced.refused[0][0].content_hash == ignored.cases[0].content_hash
    entry = geometry({"heads_q": 6, "heads_kv": 3}) | {"tensor_parallel": 4}
    impossible = make_plan(make_matrix(models=[entry], policy={"claims": "ignore"}), narrow)
    assert (0, 1) == (len(impossible.cases), len(impossible.refused))
    assert () == impossible.refused[0][0].unclaimed
    elsewhere = make_plan(
        make_matrix(models=[geometry()], policy={"claims": "ignore"}),
        {"under-test": make_kernel(requires={"device": "cuda"})},
        host=Host(kind="cpu", name="a CPU", compute_capability=""),
    )
    assert [("device=cpu (under-test requires cuda)",)] == [reasons for _, reasons in elsewhere.refused]


@settings(deadline=None, max_examples=40)
@given(
    groups=st.lists(
        st.fixed_dictionaries(
            {"heads_kv": st.sampled_from([1, 2, 3]), "head_dim": st.sampled_from([32, 64, 320])},
            optional={"sinks": st.booleans(), "scale": st.floats(1e-3, 10)},
        ).map(lambda group: group | {"heads_q": group["heads_kv"] * 4}),
        min_size=1,
        max_size=4,
    ),
    parallel=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    seqlens=st.lists(st.integers(1, 300), min_size=1, max_size=3, unique=True),
    contexts=st.lists(st.integers(1, 300), min_size=1, max_size=2, unique=True),
    lengths=st.lists(
        st.lists(st.integers(0, 40), min_size=1).filter(any).map(tuple), min_size=1, max_size=3, unique=True
    ),
    masks=st.lists(st.sampled_from(["model", "causal", "full", "window64"]), min_size=1, unique=True),
)
def test_any_matrix_gives_unique_ids_and_valid_workloads(
    groups: list[dict[str, Any]],
    parallel: list[int],
    seqlens: list[int],
    contexts: list[int],
    lengths: list[tuple[int, ...]],
    masks: list[str],
) -> None:
    """Ids are unique; equal hashes mean equal calls; every case that is not refused can be carried out."""
    found = plan(
        models=[geometry(*groups) | {"tensor_parallel": parallel}],
        phases={
            "prefill": {"seqlen": seqlens},
            "varlen": {"lengths": [list(batch) for batch in lengths]},
            "decode": {"context": contexts, "page_size": [16, "contiguous"]},
        },
        masks=masks,
    )
    assert len(ids(found)) == len(set(ids(found)))
    calls: dict[str, Any] = {}
    for case in found.cases:
        assert calls.setdefault(case.content_hash, (case.workload, case.kernel)) == (case.workload, case.kernel)
        assert 0 == case.workload.heads_q % case.workload.heads_kv
        assert case.workload.head_dim <= 256
    assert len(calls) == len(set(calls.values()))
    assert all(reasons for _, reasons in found.refused)

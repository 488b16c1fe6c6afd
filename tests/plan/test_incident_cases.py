"""Incidents in a plan: their cases beside production shapes, and what becomes of their refusals."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_card, make_kernel, make_matrix, make_workload

from qualify.cards.incident import IncidentCall
from qualify.errors import UsageError
from qualify.facts.case import INCIDENTS, Case
from qualify.plan.host import Host
from qualify.plan.plan import Plan, Selection, make_plan
from qualify.plan.workloads import geometry_of, shape_of, workload_refusals

CALL: dict[str, Any] = {"heads_q": 4, "head_dim": 64, "seqlens_q": 64}
INCIDENT: dict[str, Any] = {
    "incident": "pytorch-195910",
    "issue": "pytorch/pytorch#195910",
    "title": "Rows saw the future.",
    "trigger": "causal",
    "shown_by": ["suffix"],
    "calls": [CALL],
}
KERNELS = {name: make_kernel(name) for name in ("alpha", "beta", "gamma-2")}


def plan(*incidents: dict[str, Any], kernels: Any = KERNELS, **selection: str) -> Plan:
    """The plan of a matrix that has only incidents."""
    made = make_matrix(models=..., phases=..., dtypes=..., kernels=["*"], incidents=list(incidents))
    return make_plan(made, kernels, selection=Selection(**selection))


def case_of(**call: Any) -> Case:
    """The one case of an incident with a changed call."""
    (case,) = plan(INCIDENT | {"calls": [CALL | call]}, kernel="alpha").cases
    return case


def test_the_id_of_a_case() -> None:
    """incidents/name/shape/dtype/mask/kernel; everything but the name is what the call is."""
    case = case_of()
    assert "incidents/pytorch-195910/b1.q64.k64/bf16/causal.h4x4.d64/alpha" == case.id
    assert ("pytorch-195910", INCIDENTS, "prefill", 1) == (case.incident, case.model, case.phase, case.layers)
    assert make_workload(heads_q=4, heads_kv=4, seqlens_q=(64,)) == case.workload


@pytest.mark.parametrize(
    ("call", "label"),
    [
        ({"causal": False}, "b1.q64.k64/bf16/full.h4x4.d64"),
        ({"window": [63, 0]}, "b1.q64.k64/bf16/window64.h4x4.d64"),
        ({"window": [0, 0]}, "b1.q64.k64/bf16/window1.h4x4.d64"),
        ({"causal": False, "window": [16, 16]}, "b1.q64.k64/bf16/full.window16.16.h4x4.d64"),
        ({"causal": False, "window": [16, -1]}, "b1.q64.k64/bf16/full.window16.all.h4x4.d64"),
        ({"heads_kv": 2, "head_dim_v": 32}, "b1.q64.k64/bf16/causal.h4x2.d64x32"),
        ({"softcap": 2.5, "sinks": True, "scale": 0.3}, "b1.q64.k64/bf16/causal.h4x4.d64.c2.5.sinks.s0.3"),
        ({"seqlens_q": 1, "seqlens_k": 90, "batch": 3, "page_size": 16}, "b3.q1.k90.p16/bf16/causal.h4x4.d64"),
        ({"seqlens_q": [3, 5]}, "l3-5/bf16/causal.h4x4.d64"),
        ({"seqlens_q": [3, 5], "seqlens_k": [7, 9]}, "l3-5.on.l7-9/bf16/causal.h4x4.d64"),
    ],
)
def test_labels_tell_calls_apart(call, label) -> None:
    """Masks, heads, dimensions, features and lengths are in the id."""
    assert f"incidents/pytorch-195910/{label}/alpha" == case_of(**call).id


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"window": [3, 0]}, {"window": [3, -1]}),
        ({"scale": 0.12345671}, {"scale": 0.12345672}),
        ({"softcap": 30.000001}, {"softcap": 30.000002}),
    ],
)
def test_calls_that_one_label_would_name_are_told_apart(first, second) -> None:
    """Their ids differ, do not depend on the order, and calls with a label of their own keep it."""
    calls = [CALL | first, CALL | second, CALL | first | {"seqlens_q": 9}]
    found = plan(INCIDENT | {"calls": calls}, kernel="alpha").cases
    again = plan(INCIDENT | {"calls": calls[::-1]}, kernel="alpha").cases
    assert 3 == len({case.id for case in found}) == len({case.content_hash for case in found})
    assert {case.id: case.content_hash for case in found} == {case.id: case.content_hash for case in again}
    assert ".x" not in found[2].id


@pytest.mark.parametrize(
    ("lengths", "phase"),
    [
        (((8,), (8,)), "prefill"),
        (((8, 3), (8, 3)), "varlen"),
        (((8,), (20,)), "chunked"),
        (((20,), (8,)), "chunked"),
        (((1, 1), (20, 3)), "decode"),
        (((1,), (2,)), "decode"),
        (((1, 0), (20, 3)), "chunked"),
        (((1,), (1,)), "prefill"),
    ],
)
def test_the_phase_follows_from_the_lengths(lengths, phase) -> None:
    """What a production shape of such lengths would be called."""
    assert phase == shape_of(*lengths, 0, where=()).phase


def test_an_incident_hashes_like_the_same_production_call() -> None:
    """So its inputs are the same, and equal evidence is recognised."""
    matrix = make_matrix(
        models=[
            {
                "model": "small",
                "geometry": {
                    "groups": [{"layers": [0], "heads_q": 4, "heads_kv": 4, "head_dim": 64, "mask": "causal"}]
                },
            }
        ],
        phases={"prefill": {"seqlen": 64}},
        kernels=["*"],
        incidents=[INCIDENT],
    )
    first, second = make_plan(matrix, {"alpha": KERNELS["alpha"]}).cases
    assert first.content_hash == second.content_hash
    assert ("", "pytorch-195910") == (first.incident, second.incident)


def test_an_incident_names_its_kernels_and_dtypes() -> None:
    """Only these, and --select and --kernel narrow them as usual."""
    entry = INCIDENT | {"kernels": ["al*", "beta"], "dtypes": ["bf16", "fp16"]}
    assert 4 == len(plan(entry).cases)
    assert {"alpha"} == {case.kernel for case in plan(entry, kernel="alpha").cases}
    assert {"fp16"} == {case.dtype for case in plan(entry, select="incidents/pytorch-*/fp16/*").cases}


def test_the_limit_counts_incidents() -> None:
    """Two calls in two dtypes for three kernels; a matrix may have no other cases."""
    entry = INCIDENT | {"calls": [CALL, CALL | {"head_dim": 32}], "dtypes": ["bf16", "fp16"]}
    made = {"models": ..., "phases": ..., "dtypes": ..., "kernels": ["*"], "incidents": [entry]}
    assert 12 == len(make_plan(make_matrix(**made, policy={"limit_cases": 12}), KERNELS).cases)
    with pytest.raises(UsageError, match="expands to 12 cases"):
        make_plan(make_matrix(**made, policy={"limit_cases": 11}), KERNELS)


def test_what_a_card_does_not_claim_is_refused_with_reasons() -> None:
    """As for a production shape."""
    kernels = {"small": make_kernel("small", head_dim={"max": 32}, features=[])}
    found = plan(INCIDENT | {"calls": [CALL | {"heads_kv": 2}]}, kernels=kernels)
    ((case, reasons),) = found.refused
    assert "incidents/pytorch-195910/b1.q64.k64/bf16/causal.h4x2.d64/small" == case.id
    assert ["head_dim=64 > 32", "heads_q=4, heads_kv=2"] == [reason.partition(" (")[0] for reason in reasons]


def test_the_claims_of_a_workload() -> None:
    """A workload that no matrix made is judged by its card as a case would be."""
    card = make_card(layouts=["packed"], dtypes=["bf16"], accuracy={"bf16": "bf16"}, alignment="top_left")
    assert [] == workload_refusals(card, make_workload())
    refused = workload_refusals(card, make_workload(dtype="fp16", page_size=16, seqlens_q=(3,), seqlens_k=(9,)))
    assert ["dtype=fp16", "layout=paged", "seqlen_q=3 ≠ seqlen_k=9"] == [text.partition(" (")[0] for text in refused]
    assert geometry_of(IncidentCall(**CALL)).canonical


@pytest.mark.parametrize(
    ("claims", "workload", "reason"),
    [
        ({"masks": ["causal"]}, {"window": (20, 0)}, "mask=window"),
        ({"masks": ["causal"]}, {"chunk": 16}, "mask=chunked"),
        ({"masks": ["causal"]}, {"causal": False}, "mask=full"),
        ({"masks": ["causal"]}, {"spans": ((0, 3, 9),)}, "1 image spans"),
        ({"features": ["gqa"]}, {"sinks": True}, "sinks=true"),
        ({"features": ["gqa"]}, {"softcap": 5.0}, "softcap=5"),
        ({"head_dim_v": "same"}, {"head_dim_v": 32}, "head_dim_v=32 ≠ head_dim=64"),
        ({"head_dim_v": "latent"}, {}, "values of their own"),
        ({"head_dim_v": "latent"}, {"latent": True, "heads_kv": 1, "head_dim_v": 32}, ""),
    ],
)
def test_every_property_of_a_workload_needs_a_claim(
    claims: dict[str, Any], workload: dict[str, Any], reason: str
) -> None:
    """A call that no matrix made is refused for the same reasons as a case."""
    found = [text.partition(" (")[0] for text in workload_refusals(make_card(**claims), make_workload(**workload))]
    assert ([reason] if reason else []) == found


@pytest.mark.parametrize(("claims", "refused"), [(None, 0), (["full"], 1), (["causal"], 0)])
def test_more_queries_than_keys_are_refused_where_the_card_claims_none(claims: Any, refused: int) -> None:
    """Rows that see no key: a card says under which masks it takes them."""
    kernels = {"alpha": make_kernel("alpha", **({"longer_queries": claims} if claims else {}))}
    found = plan(INCIDENT | {"calls": [CALL | {"seqlens_k": 9}]}, kernels=kernels)
    assert (1 - refused, refused) == (len(found.cases), len(found.refused))


def test_a_case_beyond_the_claims_runs_only_where_they_are_ignored() -> None:
    """Then it says what is not claimed. What the machine refuses stays refused, and is told alone."""
    small = {"head_dim": {"max": 32}}
    kernels = {
        "alpha": make_kernel("alpha", **small),
        "beta": make_kernel("beta", **small, requires={"device": "cuda"}),
        "gamma": make_kernel("gamma"),
    }
    host = Host(kind="cpu", name="Test CPU", compute_capability="")
    told = {}
    for policy in ("enforce", "ignore"):
        made = make_matrix(
            models=..., phases=..., dtypes=..., kernels=["*"], incidents=[INCIDENT], policy={"claims": policy}
        )
        found = make_plan(made, kernels, host=host)
        reasons = {case.kernel: (case.unclaimed, why) for case, why in found.refused}
        told[policy] = reasons | {case.kernel: (case.unclaimed, ()) for case in found.cases}
    beyond = ("head_dim=64 > 32 (alpha claims ≤ 32)",)
    machine = ("device=cpu (beta requires cuda)",)
    assert {"alpha": (beyond, ()), "beta": ((), machine), "gamma": ((), ())} == told["ignore"]
    assert {"alpha": ((), 1), "beta": ((), 2), "gamma": ((), 0)} == {
        name: (unclaimed, len(why)) for name, (unclaimed, why) in told["enforce"].items()
    }

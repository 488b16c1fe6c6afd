"""The page docs/coverage.md: claims of the cards compared with measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from generating.places import FIGURES, read
from generating.tables import table
from qualify.cards.kernel import KernelCard
from qualify.cards.load import load_kernels, load_matrix
from qualify.cards.named import matrix_names
from qualify.facts.case import Case, Workload
from qualify.plan.plan import make_plan

UNSEEN = ("lse", "graph")
"""features that a workload does not show"""


def coverage() -> str:
    """One row for each CUDA kernel with its claims and evidence, then every difference."""
    cards = {name: kernel.card for name, kernel in load_kernels().items() if kernel.card.requires.device != "cpu"}
    figures, planned = read(FIGURES), _planned()
    passed = [f"{cell}/{kernel}" for cell, kernels in figures["passed"].items() for kernel in kernels]
    rows: list[list[str]] = []
    untried: list[str] = []
    for name, card in cards.items():
        own = [planned[case] for case in passed if case in planned and case.rpartition("/")[2] == name]
        counts = Counter(word for case in own for word in _words_of(case.workload))
        claims = _claims(card)
        cells = [", ".join(f"{word} {counts[word] or '**0**'}" for word in words) or "–" for words in claims]
        dims = ", ".join(map(str, sorted({case.workload.head_dim for case in own}))) or "**none**"
        rows.append([f"`{name}`", *cells, f"{dims} of {_range(card)}"])
        missing = [word for words in claims for word in words if not counts[word]]
        untried += [f"* `{name}`: {', '.join(missing)}\n"] if missing else []
    kept = {
        title: {
            case: why for case, why in figures[kind].items() if case in planned and case.rpartition("/")[2] in cards
        }
        for title, kind in (("Claimed, and failed", "failed"), ("Not claimed, and passed every check", "beyond"))
    }
    heads = ["kernel", "dtypes", "masks", "layouts", "features", "head_dim"]
    return "".join([table(heads, rows), *_differences(kept), "\n## Claimed, and not measured here\n\n", *untried])


def _planned() -> dict[str, Case]:
    """Every case of a shipped matrix by its id, including cases that a card refuses."""
    kernels = load_kernels()
    plans = [make_plan(load_matrix(name), kernels) for name in matrix_names()]
    return {case.id: case for plan in plans for case in (*plan.cases, *(case for case, _ in plan.refused))}


def _claims(card: KernelCard) -> tuple[Iterable[str], ...]:
    """The card's claims in words: dtypes, masks, layouts and features."""
    features = tuple(word for word in card.claims.features if word not in UNSEEN)
    return card.claims.dtypes, card.claims.masks, card.claims.layouts, features


def _range(card: KernelCard) -> str:
    dims = card.claims.head_dim
    step = f", multiples of {dims.multiple_of}" if dims.multiple_of > 1 else ""
    gaps = f", not {', '.join(map(str, dims.excluded))}" if dims.excluded else ""
    return f"{dims.min} to {dims.max or 'any'}{step}{gaps}"


def _words_of(workload: Workload) -> set[str]:
    """The claims that a workload needs, in the words of a card."""
    ragged = len(set(workload.seqlens_q)) > 1 or len(set(workload.seqlens_k)) > 1
    needed = {
        "gqa": workload.heads_q != workload.heads_kv,
        "softcap": workload.softcap > 0,
        "sinks": workload.sinks,
        "spans": bool(workload.spans),
        "ragged": ragged,
        "empty": 0 in workload.seqlens_q or 0 in workload.seqlens_k,
    }
    words = {workload.dtype, workload.mask.kind, workload.layout}
    return words | {word for word, needs in needed.items() if needs}


def _differences(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """A section for each title: its cases with their reasons."""
    for title, reasons in found.items():
        yield f"\n## {title}\n\n"
        yield from (f"* `{case}`: {why.replace('<', '&lt;')}\n" for case, why in sorted(reasons.items()))
        if not reasons:
            yield "None.\n"

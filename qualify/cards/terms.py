"""What a kernel card promises, how each promise is checked, and which of two values requires less of the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qualify.cards.kernel import KernelCard
from qualify.cards.load import LoadedKernel
from qualify.facts.accuracy import ORDER
from qualify.facts.terms import Terms

ORDERS: Mapping[str, tuple[str, ...]] = {
    "claims.deterministic": ("true", "false"),
    "claims.batch_invariant": ("true", "false"),
    "claims.nan": ("propagates", "any"),
    "claims.memory": ("linear", "mask", "quadratic"),
    "claims.fp8.value_factor": ("inside", "after_rounding"),
    "claims.fp8.cache": ("exact", "rounded"),
    "claims.split_outputs": ("exact", "rounded"),
}
"""words by key, the strictest first"""
LARGER = ("claims.lse.rel",)
"""numbers that require less where they are larger"""
ADDED = ("witness.must_match", "witness.may_match")
"""lists that require less where they have more"""
REMOVED = ("claims.features",)
"""lists that require less where they have less"""
ANY = "any"
ACCURACY = "accuracy."


def terms_of(card: KernelCard) -> Terms:
    """The terms of a card, by its keys."""
    claims, witness = card.claims, card.witness
    return {
        **{f"{ACCURACY}{dtype}": name for dtype, name in sorted(card.accuracy.items())},
        "claims.batch_invariant": _word(claims.batch_invariant),
        "claims.deterministic": _word(claims.deterministic),
        "claims.empty_row.lse": claims.empty_row.lse,
        "claims.empty_row.out": claims.empty_row.out,
        "claims.features": "\n".join(sorted(claims.features)),
        "claims.fp8.cache": claims.fp8.cache,
        "claims.fp8.value_factor": claims.fp8.value_factor,
        "claims.lse.rel": repr(claims.lse.rel),
        "claims.memory": claims.memory,
        "claims.nan": claims.nan,
        "claims.split_outputs": claims.split_outputs,
        "witness.may_match": "\n".join(sorted(witness.may_match)),
        "witness.must_match": "\n".join(sorted(witness.must_match)),
    }


def terms_by_kernel(kernels: Mapping[str, LoadedKernel], names: Iterable[str]) -> dict[str, Terms]:
    """The terms of the named kernels, by name; cards that are not here are left out."""
    return {name: terms_of(kernels[name].card) for name in names if name in kernels}


def looser(key: str, then: str, now: str) -> bool:
    """Whether the value of today requires less of the kernel than the earlier one."""
    if key in ADDED:
        return bool(values(now) - values(then))
    if key in REMOVED:
        return bool(values(then) - values(now))
    if key in LARGER:
        return float(now) > float(then)
    if key.startswith("claims.empty_row."):
        return now == ANY != then
    order = ORDER if key.startswith(ACCURACY) else ORDERS.get(key, ())
    return then in order and now in order and order.index(now) > order.index(then)


def values(text: str) -> set[str]:
    """The values of a list of terms."""
    return set(filter(None, text.split("\n")))


def _word(value: bool) -> str:
    return "true" if value else "false"

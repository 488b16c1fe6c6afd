"""What a kernel card promises, how each promise is checked, and which of two values requires less of the kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from qualify.cards.kernel import KernelCard, PageSizeClaim
from qualify.cards.load import LoadedKernel
from qualify.facts.accuracy import ORDER
from qualify.facts.terms import Terms

ORDERS: Mapping[str, tuple[str, ...]] = {
    "jit": ("never", "kernels", "shapes"),
    "claims.alignment": ("bottom_right", "top_left"),
    "claims.queries": ("any", "equal"),
    "claims.deterministic": ("true", "false"),
    "claims.batch_invariant": ("true", "false"),
    "claims.nan": ("propagates", "any"),
    "claims.memory": ("linear", "mask", "quadratic"),
    "claims.fp8.descale": ("sequence", "head", "tensor"),
    "claims.fp8.value_factor": ("inside", "after_rounding"),
    "claims.fp8.cache": ("exact", "rounded"),
    "claims.split_outputs": ("exact", "rounded"),
}
"""words by key, the strictest first"""
LARGER = ("claims.lse.rel", "claims.hidden_score", "claims.page_size.min", "claims.page_size.multiple_of")
"""numbers that require less where they are larger"""
SMALLER = ("claims.batch.max", "claims.elements.max", "claims.fp8.weight_scale", "claims.page_size.max")
"""numbers that require less where they are smaller"""
ADDED = ("witness.must_match", "witness.may_match")
"""lists that require less where they have more"""
REMOVED = ("claims.dtypes", "claims.features", "claims.layouts", "claims.longer_queries", "claims.masks")
"""lists that require less where they have less"""
NEEDS: Mapping[str, tuple[str, str]] = {
    "claims.empty_row.lse": ("claims.features", "lse"),
    "claims.fp8.": ("claims.dtypes", "fp8"),
    "claims.lse.": ("claims.features", "lse"),
    "claims.page_size.": ("claims.layouts", "paged"),
}
"""by how a key begins, the list and the part of a word in it without which the key requires nothing"""
ANY = "any"
ACCURACY = "accuracy."


def terms_of(card: KernelCard) -> Terms:
    """The terms of a card, by its keys. Where it sets no limit, the limit is infinite."""
    claims, witness = card.claims, card.witness
    page = claims.page_size or PageSizeClaim()
    return {
        "jit": card.jit,
        **{f"{ACCURACY}{dtype}": name for dtype, name in sorted(card.accuracy.items())},
        "claims.alignment": claims.alignment,
        "claims.batch.max": _limit(claims.batch.max if claims.batch else None),
        "claims.batch_invariant": _word(claims.batch_invariant),
        "claims.deterministic": _word(claims.deterministic),
        "claims.dtypes": _lines(claims.dtypes),
        "claims.elements.max": _limit(claims.elements.max if claims.elements else None),
        "claims.empty_row.lse": claims.empty_row.lse,
        "claims.empty_row.out": claims.empty_row.out,
        "claims.features": _lines(claims.features),
        "claims.fp8.cache": claims.fp8.cache,
        "claims.fp8.descale": claims.fp8.descale,
        "claims.fp8.value_factor": claims.fp8.value_factor,
        "claims.fp8.weight_scale": repr(claims.fp8.weight_scale),
        "claims.hidden_score": repr(-math.inf if claims.hidden_score is None else claims.hidden_score),
        "claims.layouts": _lines(claims.layouts),
        "claims.longer_queries": _lines(claims.masks if claims.longer_queries is None else claims.longer_queries),
        "claims.lse.rel": repr(claims.lse.rel),
        "claims.masks": _lines(claims.masks),
        "claims.memory": claims.memory,
        "claims.nan": claims.nan,
        "claims.page_size.max": _limit(page.max),
        "claims.page_size.min": repr(page.min),
        "claims.page_size.multiple_of": repr(page.multiple_of),
        "claims.queries": claims.queries,
        "claims.split_outputs": claims.split_outputs,
        "witness.may_match": _lines(witness.may_match),
        "witness.must_match": _lines(witness.must_match),
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
    if key in SMALLER:
        return float(now) < float(then)
    if key.startswith("claims.empty_row."):
        return now == ANY != then
    order = ORDER if key.startswith(ACCURACY) else ORDERS.get(key, ())
    return then in order and now in order and order.index(now) > order.index(then)


def requires(terms: Terms, key: str) -> bool:
    """Whether a term is about something that its card claims; true where an older qualify did not note that."""
    claimed, word = next((need for begins, need in NEEDS.items() if key.startswith(begins)), ("", ""))
    return claimed not in terms or any(word in value for value in values(terms[claimed]))


def unnoted(then: Mapping[str, Terms], now: Mapping[str, Terms]) -> list[str]:
    """The keys of today's terms that an older qualify did not note of the same kernels."""
    new = {key for kernel in then.keys() & now.keys() for key in now[kernel].keys() - then[kernel].keys()}
    return sorted(key for key in new if not key.startswith(ACCURACY))  # those follow the dtypes of a card


def values(text: str) -> set[str]:
    """The values of a list of terms."""
    return set(filter(None, text.split("\n")))


def _lines(words: Iterable[str]) -> str:
    return "\n".join(sorted(words))


def _limit(value: int | None) -> str:
    return repr(math.inf if value is None else value)


def _word(value: bool) -> str:
    return "true" if value else "false"

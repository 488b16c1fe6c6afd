"""Why a kernel card does not claim a case: reasons with values, found before any device time."""

from __future__ import annotations

from qualify.cards.kernel import KernelCard
from qualify.facts.dtypes import DTYPES, Dtype
from qualify.plan.geometry import Geometry
from qualify.plan.shapes import Shape


def geometry_refusals(card: KernelCard, geometry: Geometry) -> list[str]:
    """Heads, dimensions, mask and features that the card does not claim."""
    claims, name = card.claims, card.kernel
    reasons = []
    dim = geometry.head_dim
    if dim > claims.head_dim.max:
        reasons.append(f"head_dim={dim} > {claims.head_dim.max} ({name} claims ≤ {claims.head_dim.max})")
    if dim < claims.head_dim.min:
        reasons.append(f"head_dim={dim} < {claims.head_dim.min} ({name} claims ≥ {claims.head_dim.min})")
    if dim % claims.head_dim.multiple_of:
        reasons.append(f"head_dim={dim} ({name} claims multiples of {claims.head_dim.multiple_of})")
    if dim in claims.head_dim.excluded:
        reasons.append(f"head_dim={dim} ({name} excludes it)")
    if geometry.head_dim_v != dim and claims.head_dim_v == "same":
        reasons.append(f"head_dim_v={geometry.head_dim_v} ≠ head_dim={dim} ({name} claims equal ones)")
    if claims.head_dim_v == "latent":
        reasons += _latent_refusals(name, geometry)
    kind = geometry.mask.kind
    if kind not in claims.masks:
        reasons.append(f"mask={kind} ({name} claims {', '.join(claims.masks)})")
    for feature, wanted, value in (
        ("gqa", geometry.heads_q != geometry.heads_kv, f"heads_q={geometry.heads_q}, heads_kv={geometry.heads_kv}"),
        ("softcap", geometry.softcap != 0, f"softcap={geometry.softcap:g}"),
        ("sinks", geometry.sinks, "sinks=true"),
    ):
        if wanted and feature not in claims.features:
            reasons.append(f"{value} ({name} does not claim {feature})")
    return reasons


def _latent_refusals(name: str, geometry: Geometry) -> list[str]:
    """Why the call is no latent attention, where the kernel has one cache for keys and values."""
    if not geometry.latent:
        return [f"values of their own ({name} takes the first elements of the keys for them: latent attention)"]
    if geometry.heads_kv != 1:
        return [f"heads_kv={geometry.heads_kv} ({name} claims one latent KV head)"]
    return []


def dtype_refusals(card: KernelCard, dtype: Dtype) -> list[str]:
    """A dtype that the card does not claim."""
    if dtype in card.claims.dtypes:
        return []
    queries, cache = DTYPES[dtype].q, DTYPES[dtype].kv
    mixed = f": {queries} queries beside an {cache} cache" if queries != cache else ""
    return [f"dtype={dtype}{mixed} ({card.kernel} claims {', '.join(card.claims.dtypes)})"]


def shape_refusals(card: KernelCard, shape: Shape) -> list[str]:
    """Layout, page size, batch and lengths that the card does not claim."""
    return [*_layout_refusals(card, shape), *_batch_refusals(card, shape), *_empty_refusals(card, shape)]


def _layout_refusals(card: KernelCard, shape: Shape) -> list[str]:
    claims, name = card.claims, card.kernel
    reasons = []
    layout = "paged" if shape.page_size else "packed"
    if layout not in claims.layouts:
        reasons.append(f"layout={layout} ({name} claims {', '.join(claims.layouts)})")
    elif shape.page_size and claims.page_size:
        page = claims.page_size
        if shape.page_size % page.multiple_of:
            reasons.append(f"page_size={shape.page_size} ({name} claims multiples of {page.multiple_of})")
        if page.max is not None and shape.page_size > page.max:
            reasons.append(f"page_size={shape.page_size} > {page.max} ({name} claims ≤ {page.max})")
        if shape.page_size < page.min:
            reasons.append(f"page_size={shape.page_size} < {page.min} ({name} claims ≥ {page.min})")
    return reasons


def _batch_refusals(card: KernelCard, shape: Shape) -> list[str]:
    claims, name = card.claims, card.kernel
    reasons = []
    batch = len(shape.seqlens_q)
    if claims.batch and batch > claims.batch.max:
        reasons.append(f"batch={batch} > {claims.batch.max} ({name} claims ≤ {claims.batch.max})")
    lengths = set(zip(shape.seqlens_q, shape.seqlens_k, strict=True))
    if not shape.page_size and "ragged" not in claims.features and len(lengths) > 1:
        reasons.append(f"{len(lengths)} different lengths in one batch ({name} does not claim ragged)")
    counts = sorted(set(shape.seqlens_q))
    if claims.queries == "equal" and len(counts) > 1:
        reasons.append(f"{counts[0]} to {counts[-1]} queries in one batch ({name} claims as many in every sequence)")
    if shape.spans and "spans" not in claims.masks:
        reasons.append(f"{len(shape.spans)} image spans ({name} does not claim spans)")
    return reasons


def _empty_refusals(card: KernelCard, shape: Shape) -> list[str]:
    features, name = card.claims.features, card.kernel
    if "empty" not in features and (0 in shape.seqlens_q or 0 in shape.seqlens_k):
        return [f"an empty sequence ({name} does not claim empty)"]
    if "empty_batch" not in features and not (any(shape.seqlens_q) and any(shape.seqlens_k)):
        return [f"no query or no key in the whole batch ({name} does not claim empty_batch)"]
    return []


def length_refusals(card: KernelCard, geometry: Geometry, shape: Shape) -> list[str]:
    """A mask aligned to the wrong corner where that matters, more queries than keys, or more elements than claimed."""
    claims, kind = card.claims, geometry.mask.kind
    step = shape.page_size or 1
    keys = sum(-(-seqlen_k // step) * step for seqlen_k in shape.seqlens_k)
    queries = sum(shape.seqlens_q)
    spanned = (
        (f"{keys} keys", keys * geometry.heads_kv * max(geometry.head_dim, geometry.head_dim_v)),
        (f"{queries} queries", queries * geometry.heads_q * geometry.head_dim),
    )
    for what, elements in spanned:
        if claims.elements and elements > claims.elements.max:
            return [f"{what}, {elements} elements ({card.kernel} claims ≤ {claims.elements.max})"]
    for seqlen_q, seqlen_k in zip(shape.seqlens_q, shape.seqlens_k, strict=True):
        if claims.alignment == "top_left" and kind != "full" and seqlen_q != seqlen_k:
            return [f"seqlen_q={seqlen_q} ≠ seqlen_k={seqlen_k} ({card.kernel} aligns its mask to the top left)"]
        if seqlen_q > seqlen_k and claims.longer_queries is not None and kind not in claims.longer_queries:
            where = f"mask={kind}, seqlen_q={seqlen_q} > seqlen_k={seqlen_k}"
            return [f"{where} ({card.kernel} claims more queries than keys under {', '.join(claims.longer_queries)})"]
    return []

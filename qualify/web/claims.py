"""A kernel card in words, for its page."""

from __future__ import annotations

from qualify.cards.load import LoadedKernel

CLAIMS = {"dtypes": "Data types", "head_dim": "Head dimension", "head_dim_v": "Head dimension of values", "lse": "LSE"}
"""how a page names a claim whose name on the card says less"""


def about(kernel: LoadedKernel) -> str:
    """What it is, and who ships it."""
    card = kernel.card
    return f"{card.generation}; shipped by {', '.join(card.shipped_by) or card.entry}"


def claims_of(kernel: LoadedKernel) -> list[tuple[str, str]]:
    """What a card claims, as terms."""
    card = kernel.card
    claims = card.claims.model_dump(mode="json", exclude_defaults=True)
    return [
        ("Generation", about(kernel)),
        ("Needs", _words(card.requires.model_dump(mode="json", exclude_defaults=True))),
        *((CLAIMS.get(name, name.replace("_", " ").capitalize()), _words(value)) for name, value in claims.items()),
        ("Proven by", ", ".join(card.witness.must_match)),
    ]


def _words(value: object) -> str:
    """A claim in words."""
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_words(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)

"""The table of accuracy classes in docs/numerics.md."""

from __future__ import annotations

from generating.tables import table
from qualify.facts.accuracy import CLASSES


def accuracy_table() -> str:
    """The accuracy classes and their constants."""
    return table(
        ["class", "u_P", "β₀", "a_P"],
        [
            [
                f"`{kind.name}`",
                _power(kind.roundoff),
                f"{kind.gain:g}",
                _power(kind.underflow) if kind.underflow else "0",
            ]
            for kind in CLASSES
        ],
    )


def _power(value: float) -> str:
    """A power of two, written as ``2^n``."""
    exponent = round(value).bit_length() if value >= 1 else -round(1 / value).bit_length() + 1
    assert value == 2.0**exponent, f"{value} is no power of two"
    return f"2^{exponent}"

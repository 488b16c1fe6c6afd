"""What a kernel card promises and how each promise is checked, as text that a later card can be compared with."""

from __future__ import annotations

from collections.abc import Mapping

Terms = Mapping[str, str]
"""text by the key of the card, for example ``accuracy.bf16``; a list has each value on a line of its own"""

"""Draws the pictures of the documents: one module for each, and ``svg``, which writes shapes.

::

    a real call on the CPU ─ census, verdicts ─┐
    words ─────────────────── flows ───────────┴ svg ─ docs/pictures/*.svg
"""

"""Shapes of SVG as text: boxes, words and arrows on a white sheet, so that they are read on dark pages too."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

INK, GREY, BLUE, GREEN, RED = "#1f2937", "#9ca3af", "#dbeafe", "#bbf7d0", "#fecaca"
FONT = "font-family='system-ui, sans-serif'"


def sheet(width: int, height: int, title: str, shapes: Iterable[str]) -> str:
    """A picture of a size in px; readers of screens hear the title."""
    body = "\n".join(shapes)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
        f"role='img' {FONT}>\n<title>{escape(title)}</title>\n"
        f"<rect width='{width}' height='{height}' fill='white'/>\n{body}\n</svg>\n"
    )


def box(x: float, y: float, width: float, height: float, fill: str = "white", stroke: str = GREY) -> str:
    """A rectangle from its upper left corner."""
    return f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='3' fill='{fill}' stroke='{stroke}'/>"


def words(x: float, y: float, text: str, *, size: int = 13, anchor: str = "middle", weight: str = "normal") -> str:
    """A line of text; y is the line that it stands on."""
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='{size}' text-anchor='{anchor}' font-weight='{weight}' "
        f"fill='{INK}'>{escape(text)}</text>"
    )


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A line with a head at its end, level or upright."""
    level = y == to_y
    back = 6 if (to_x > x or to_y > y) else -6
    head = (
        f"{to_x - back:g},{to_y - 4:g} {to_x - back:g},{to_y + 4:g}"
        if level
        else f"{to_x - 4:g},{to_y - back:g} {to_x + 4:g},{to_y - back:g}"
    )
    return (
        f"<line x1='{x:g}' y1='{y:g}' x2='{to_x:g}' y2='{to_y:g}' stroke='{INK}'/>"
        f"<polygon points='{to_x:g},{to_y:g} {head}' fill='{INK}'/>"
    )


def card(x: float, y: float, width: float, lines: Iterable[str], fill: str = BLUE) -> str:
    """A box with a title and lines below it."""
    texts = list(lines)
    height = 16 + 18 * len(texts)
    shapes = [box(x, y, width, height, fill)]
    shapes += [
        words(x + width / 2, y + 22 + 18 * number, text, weight="bold" if number == 0 else "normal")
        for number, text in enumerate(texts)
    ]
    return "\n".join(shapes)

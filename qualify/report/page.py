"""The page as one HTML file: inline style, inline pictures, a few lines of script, and no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from qualify.assets import shipped
from qualify.report import figures
from qualify.report.context import ReportContext
from qualify.report.heatmap import WORDS
from qualify.report.names import clipped, short_name
from qualify.report.questions import QUESTIONS
from qualify.report.sections import LAUNCHES, STATISTICS, kernel_label, values_text
from qualify.text import visible

STATES = {
    "good": ("✓", "proven"),
    "bad": ("✗", "evidence against"),
    "open": ("?", "open"),
    "untested": ("–", "not tested"),
}
"""glyph and word for the state of an answer"""


def render_html(context: ReportContext) -> str:
    """The whole page. It loads nothing, and its policy forbids every script and style but its own two."""
    environment = _environment()
    style, script = (_asset(name) for name in ("report.css", "report.js"))
    return environment.get_template("report.html").render(
        page=context,
        questions=QUESTIONS,
        words=WORDS,
        states=STATES,
        style=style,
        script=script,
        launch_columns=LAUNCHES,
        statistics_columns=STATISTICS,
        policy=_policy(style, script),
        each=_each(),
    )


def _each() -> Callable[[Callable[[object], str], Iterable[object]], Markup]:
    """What renders every item with a macro, and an item that it saw before with what it said then.

    Equal findings of a run are one object, and most are equal to another one: a tenth of the time of the page. The
    context of the page holds every item, so no id is used twice.
    """
    made: dict[int, str] = {}

    def each(macro: Callable[[object], str], items: Iterable[object]) -> Markup:
        texts = []
        for item in items:
            text = made.get(id(item))
            if text is None:
                text = made[id(item)] = macro(item)
            texts.append(text)
        return Markup("".join(texts))  # noqa: S704 (each text is what a macro escaped)

    return each


def render_page(template: str, page: object) -> str:
    """A page without script that stands beside the report and looks like it; the template sees ``page``."""
    style = _asset("report.css")
    return (
        _environment()
        .get_template(template)
        .render(
            page=page,
            style=style,
            words=WORDS,
            policy=_policy(style),
        )
    )


def header_policy() -> str:
    """The policy of every page over HTTP: what each one's own policy allows, and no frame around it."""
    return f"{_policy(_asset('report.css'), _asset('report.js'))}; frame-ancestors 'none'"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(shipped("reports")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        duration=figures.duration,
        counted=figures.counted,
        strip_width=figures.STRIP_WIDTH,
        short_name=short_name,
        clipped=clipped,
        kernel_label=kernel_label,
        values_text=values_text,
    )
    return environment


def _shown(value: object) -> object:
    """A value as a page shows it: of a file's text nothing is hidden. Markup is our own."""
    return visible(value) if type(value) is str else value


def _asset(name: str) -> str:
    """The text of a static file, with the line ends that a browser hashes."""
    return (shipped("reports") / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _policy(style: str, script: str = "") -> str:
    """What the page may load: its own style, and its own script where it has one."""
    scripts = f"script-src '{_digest(script)}'; " if script else ""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; {scripts}img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

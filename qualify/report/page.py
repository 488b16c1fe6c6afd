"""The page as one HTML file: inline style, inline pictures, a few lines of script, and no network."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from qualify.assets import shipped
from qualify.report import figures
from qualify.report.causes import cause_of, finding_text
from qualify.report.compact import case_line, evidence_text
from qualify.report.context import ReportContext
from qualify.report.drawings.heat import STEP_WORDS
from qualify.report.drawings.svg import markers
from qualify.report.explorer import explorer_data, to_script
from qualify.report.late import LateParts
from qualify.report.names import parted, short_name
from qualify.report.performance import headline as time_headline
from qualify.report.questions import QUESTIONS
from qualify.report.quoted import with_code
from qualify.report.room import START, PartSizes, Room
from qualify.report.sections import ERROR_WORDS, SYMBOLS, kernel_label, values_text
from qualify.report.site import NAVIGATION, SiteFrame, case_href
from qualify.report.slower import SHOWN as SLOWER_SHOWN
from qualify.report.slower import comparison_words
from qualify.report.slower import headline as slower_headline
from qualify.report.views import WORDS
from qualify.report.weaker import headline as weaker_headline
from qualify.report.whynot import SHAPES
from qualify.text import clipped, visible

STYLE = "report.css"
SITE_STYLES = (STYLE, "site.css")
"""static files that make the style of the site's pages, which have forms"""
STATES = {
    "good": ("✓", "proven"),
    "bad": ("✗", "evidence against"),
    "open": ("?", "open"),
    "untested": ("–", "not tested"),
}
"""glyph and word for the state of an answer"""
FEW_MODELS = 2
"""most models for which the first table holds whole answers; with more models it holds headlines only"""
MODELS_SHOWN = 100
"""most models that get sections of their own under evidence and drawings; the others share one"""
ROWS_SHOWN = 50
"""most rows of a table of evidence; the JSON twin has all"""
STACKED_ROWS = 200
"""most rows of a table that a narrow screen shows as a list with a label at each cell; the site lists so many cases"""


def render_html(context: ReportContext, frame: SiteFrame | None = None) -> str:
    """The whole page. It loads nothing, and its policy forbids all scripts and styles except its own.

    Args:
        frame: what the site puts around the page; None = the page is a file.
    """
    style, script = (_asset(name) for name in ("report.css", "report.js"))
    room = Room(START)
    late = LateParts(room)
    return with_code(
        _environment()
        .get_template("report.html")
        .render(
            page=context,
            frame=frame,
            questions=QUESTIONS,
            words=WORDS,
            states=STATES,
            step_words=STEP_WORDS,
            shapes_shown=SHAPES,
            few_models=FEW_MODELS,
            models_shown=MODELS_SHOWN,
            rows_shown=ROWS_SHOWN,
            slower_shown=SLOWER_SHOWN,
            style=style,
            script=script,
            policy=_policy(style, script),
            late=late,
            room=room,
            parts=PartSizes,
            data=lambda: to_script(
                explorer_data(context.shapes) | {"late": [*map(with_code, late.kept)], "at": context.cases_at}
            ),
        )
    )


def render_page(template: str, page: object, styles: tuple[str, ...] = (STYLE,), frame: SiteFrame | None = None) -> str:
    """A page without script that looks like the report.

    Args:
        template: file name of the template.
        page: what the template sees as ``page``.
        styles: static files that make its style; SITE_STYLES for a page of the site, which may have forms.
        frame: what the site puts around the page; None = the page is a file.
    """
    style = _style(styles)
    return with_code(
        _environment()
        .get_template(template)
        .render(
            page=page,
            frame=frame,
            style=style,
            words=WORDS,
            policy=_policy(style, forms=styles == SITE_STYLES),
        )
    )


def header_policy() -> str:
    """The Content-Security-Policy header of every page of the site.

    It allows what the pages' own policies allow, and forbids other sites to show a page in a frame.
    """
    policy = _policy(_asset(STYLE), _asset("report.js"), _style(SITE_STYLES), forms=True)
    return f"{policy}; frame-ancestors 'none'"


@cache
def _environment() -> Environment:
    """The environment of the templates.

    It is made once, because compiling a template takes longer than rendering a small page.
    """
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
        parted=parted,
        kernel_label=kernel_label,
        cause_of=cause_of,
        finding_text=finding_text,
        case_href=case_href,
        case_line=case_line,
        evidence_text=evidence_text,
        time_headline=time_headline,
        slower_headline=slower_headline,
        comparison_words=comparison_words,
        weaker_headline=weaker_headline,
        error_words=ERROR_WORDS,
        symbols=SYMBOLS,
        markers=markers,
        values_text=values_text,
        navigation=NAVIGATION,
        stacked_rows=STACKED_ROWS,
    )
    return environment


def _shown(value: object) -> object:
    """A value as a page shows it. Invisible characters of a text become visible; markup comes from qualify alone."""
    return visible(value) if type(value) is str else value


@cache
def _asset(name: str) -> str:
    """The text of a static file, with the line ends over which a browser computes its hash."""
    return (shipped("reports") / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _style(names: tuple[str, ...]) -> str:
    return "".join(map(_asset, names))


def _policy(style: str, script: str = "", other: str = "", *, forms: bool = False) -> str:
    """The Content-Security-Policy of a page: what it may load, and where its forms may lead.

    Args:
        style: text of the page's style.
        script: text of the page's script; empty = none is allowed.
        other: text of another style that is allowed; empty = none.
        forms: whether forms may lead to the site itself.
    """
    scripts = f"script-src '{_digest(script)}'; " if script else ""
    styles = " ".join(f"'{_digest(it)}'" for it in (style, other) if it)
    target = "'self'" if forms else "'none'"
    return f"default-src 'none'; style-src {styles}; {scripts}img-src data:; base-uri 'none'; form-action {target}"


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

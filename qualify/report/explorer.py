"""All cases as data within the page. The page's script filters and sorts them, and builds a case when it is opened.

Values that many cases share (texts, findings, launches) stand once in a pool, and each case refers to them by number.
Every text is plain text: the script never reads it as markup.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qualify.facts.outcome import OUTCOMES, Launch
from qualify.facts.run import VERDICTS
from qualify.report import figures
from qualify.report.causes import cause_of, finding_text
from qualify.report.columns import Cell, Column, Limited, Value
from qualify.report.sections import LAUNCHES, STATISTICS, SYMBOLS, kernel_label, section, values_text
from qualify.report.views import SEVERITY, WORDS, CaseView, ModelView, ShapeView
from qualify.text import visible

Packed = list[Any]
"""one case, or a part of it, as the script reads it"""


@dataclass(kw_only=True, slots=True)
class Shared:
    """A pool of values, each of which stands once in the page; cases refer to them by number."""

    items: list[Any] = field(default_factory=list)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def of(self, key: Hashable, value: Any = None) -> int:
        """The number of a value; a new value is added to the pool.

        Args:
            key: what identifies the value.
            value: what the page holds; None = the key itself, as visible text.
        """
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.items)
            self.items.append(visible(str(key)) if value is None else value)
        return number


@dataclass(kw_only=True, slots=True)
class SharedParts:
    """All pools of a page."""

    texts: Shared = field(default_factory=Shared)
    findings: Shared = field(default_factory=Shared)
    launches: Shared = field(default_factory=Shared)
    kernels: Shared = field(default_factory=Shared)
    causes: Shared = field(default_factory=Shared)
    phases: Shared = field(default_factory=Shared)


def explorer_data(models: Sequence[ModelView]) -> dict[str, Any]:
    """The cases of all models, for :func:`to_script`."""
    pools = SharedParts()
    shapes: list[Packed] = []
    cases: list[tuple[int, Packed]] = []
    for number, model in enumerate(models):
        for shape in model.shapes:
            place = len(shapes)
            shapes.append(_shape(shape, number, pools))
            fastest = shape.fastest
            best_us = fastest.timing.latency_us if fastest and fastest.timing else 0.0
            cases += [(SEVERITY.index(view.verdict), _case(view, place, best_us, pools)) for view in shape.cases]
    cases.sort(key=lambda entry: entry[0])
    return {
        "verdicts": [[name, *WORDS[name]] for name in VERDICTS],
        "outcomes": [name.replace("_", " ") for name in OUTCOMES],
        "phases": pools.phases.items,
        "models": [visible(model.model) for model in models],
        "kernels": pools.kernels.items,
        "causes": pools.causes.items,
        "columns": {"launches": _heads(LAUNCHES), "statistics": _heads(STATISTICS)},
        "symbols": SYMBOLS,
        "texts": pools.texts.items,
        "findings": pools.findings.items,
        "launches": pools.launches.items,
        "shapes": shapes,
        "cases": [packed for _, packed in cases],
    }


def _cell(cell: Cell) -> Any:
    """A text, or [text, link]."""
    text = visible(cell.text)
    return [text, cell.href] if cell.href else text


def to_script(data: dict[str, Any]) -> str:
    """The data for a script element: JSON, compressed with zlib and in base64, so that no text can end the element.

    Cases repeat words and numbers, so compression leaves a fifth. The script unpacks it in milliseconds.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "backslashreplace"))).decode()


def _heads(columns: Sequence[Column[Any]]) -> Packed:
    return [[column.heading, column.classes, column.meaning, column.unit, column.show_limit] for column in columns]


def _shape(shape: ShapeView, model: int, pools: SharedParts) -> Packed:
    judgement = shape.judgement
    why = next(iter(judgement.reasons), "") or ", ".join(judgement.proven_by)
    verdict = VERDICTS.index(judgement.verdict)
    return [visible(judgement.cell), model, pools.phases.of(shape.phase), verdict, pools.texts.of(why), shape.anchor]


def _case(view: CaseView, shape: int, best_us: float, pools: SharedParts) -> Packed:
    """The fields of a case for the list, its details, and its id where it differs from ``SHAPE/KERNEL``."""
    failed = view.verdict in {"FAIL", "INCONCLUSIVE", "WAIVED"}
    latency_us = view.timing.latency_us if view.timing else 0.0
    case = view.case
    return [
        shape,
        pools.kernels.of(case.kernel),
        VERDICTS.index(view.verdict),
        OUTCOMES.index(view.outcome.outcome),
        view.anchor.removeprefix("case-"),
        pools.causes.of(cause_of(view)) if failed else -1,
        _number(latency_us),
        _number(latency_us / best_us if best_us else 0.0),
        _number(view.timing.ceiling_share if view.timing else 0.0),
        pools.texts.of(kernel_label(view)),
        [pools.texts.of(reason) for reason in view.reasons or view.why],
        _details(view, pools) if view.ran else 0,
        *([] if case.id == f"{case.cell}/{case.kernel}" else [visible(case.id)]),
    ]


def _number(value: float) -> float:
    """The value with six digits; NaN and infinity become 0, which the script shows as no value."""
    return float(f"{value:.6g}") if math.isfinite(value) else 0


def _details(view: CaseView, pools: SharedParts) -> Packed:
    shown = section(view)
    launches = shown.launches.rows if shown.launches else ()
    statistics = shown.statistics.rows if shown.statistics else ()
    strip, cause = shown.strip, cause_of(view)
    return [
        [_finding(finding, cause, pools) for finding in shown.findings],
        [_launch(launch, pools) for launch in launches],
        [[_value(column.cell(sample), pools) for column in STATISTICS] for sample in statistics],
        [strip.median_px, list(strip.places), strip.label] if strip else 0,
        [[pools.texts.of(term), pools.texts.of(value)] for term, value in shown.facts],
        pools.texts.of(shown.log) if shown.log else -1,
    ]


def _finding(finding: Any, cause: str, pools: SharedParts) -> int:
    """The number of a finding. Equal findings of a run are one object, so most are found by identity alone.

    Args:
        cause: what its case is counted under.
    """
    known = (id(finding), finding.check == cause)
    number = pools.findings.numbers.get(known)
    if number is not None:
        return number
    values = values_text(finding.values) if finding.verdict != "pass" else ""
    told = finding_text(finding, cause) if finding.verdict in {"fail", "inconclusive"} else ""
    packed = [finding.verdict, finding.check, visible(told), visible(finding.detail), visible(values)]
    number = pools.findings.numbers[known] = pools.findings.of(tuple(packed), packed)
    return number


def _launch(launch: Launch, pools: SharedParts) -> int:
    """The number of a launch in the pool, where each of its cells is a text or [text, link]."""
    number = pools.launches.numbers.get(launch)
    if number is not None:
        return number
    return pools.launches.of(launch, [_cell(column.shown(launch)) for column in LAUNCHES])


def _value(value: Value | Limited, pools: SharedParts) -> Any:
    """A cell as the script reads it by its column.

    It is a number, [number, limit], a word for NaN or infinity, or a text's number in the pool.
    """
    if isinstance(value, Limited):
        return [_value(value.value, pools), _number(value.limit) if math.isfinite(value.limit) else None]
    if isinstance(value, float):
        return _number(value) if math.isfinite(value) else figures.text(value)
    return pools.texts.of(value) if isinstance(value, str) else value

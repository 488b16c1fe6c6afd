"""The verdict as JUnit XML, which every CI server reads.

FAIL becomes a failure. INCONCLUSIVE becomes an error, so that nobody takes it for a success. WAIVED and NOT_REQUIRED
become skipped tests. The first suite holds the verdict itself, because a run may have no verdict although each of its
cases passed. The document is ASCII with character references, so that no encoding on the way can damage it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, tostring
from xml.sax.saxutils import escape

from qualify.facts.outcome import evidence_of, findings_of
from qualify.facts.run import Verdict
from qualify.judge.judged import Judged
from qualify.report.differences import change_text
from qualify.report.figures import limit_percent
from qualify.report.formats.interface import OutputOptions
from qualify.report.performance import asked, budget_sentence, cell_sentence
from qualify.report.performance import headline as time_headline
from qualify.report.slower import headline
from qualify.report.verdict_text import WORDS, slower_lines, verdict_line
from qualify.report.waived import waived_words
from qualify.report.weaker import headline as weaker_headline
from qualify.report.weaker import sentence

LIMIT_BYTES = 20_000_000
"""most bytes of all messages and details together; CI servers refuse files of 30 MB"""
LONGEST_BYTES = 8000
"""most bytes of one case's message and details"""
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""characters that XML 1.0 cannot hold, not even as references"""


def render(judged: Judged, _options: OutputOptions) -> str:
    """One document; the names of its test cases are unique."""
    conclusion = judged.conclusion
    verdicts = [item.verdict for item in conclusion.judgements] + [cell.verdict for cell in conclusion.cells]
    room = min(LONGEST_BYTES, LIMIT_BYTES // (1 + sum(verdict != "PASS" for verdict in verdicts)))
    suites = [
        _gate(judged),
        _shapes(judged, room),
        *_models(judged, room),
        *_baseline(judged, room),
        *_performance(judged, room),
    ]
    root = Element("testsuites", {"name": f"qualify {judged.run.matrix}", **_counts(suites)})
    root.extend(suites)
    document: bytes = tostring(root, encoding="us-ascii", xml_declaration=True)
    return document.decode("ascii")


def xml_text(text: str) -> str:
    """The text with escapes in place of the characters that XML cannot hold."""
    return FORBIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def clipped(text: str, limit: int) -> str:
    """The text, cut so that it makes at most ``limit`` bytes of XML."""
    text = text[:limit]
    while (size := len(escape(text).encode("ascii", "xmlcharrefreplace"))) > limit:
        text = text[: len(text) * limit // size]
    return text


def _suite(name: str, cases: Iterable[Element], judged: Judged) -> Element:
    run = judged.run
    suite = Element("testsuite", {"name": xml_text(name), "timestamp": run.started_at.strftime("%Y-%m-%dT%H:%M:%S")})
    suite.extend(cases)
    suite.attrib.update(_counts([suite]))
    return suite


def _counts(suites: list[Element]) -> dict[str, str]:
    cases = [case for suite in suites for case in suite.iter("testcase")]
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counted = {name: sum(case.find(tag) is not None for case in cases) for name, tag in kinds.items()}
    seconds = sum(float(case.attrib["time"]) for case in cases)
    return {"tests": str(len(cases)), **{name: str(count) for name, count in counted.items()}, "time": f"{seconds:.3f}"}


def _case(
    name: str,
    group: str,
    verdict: Verdict,
    reasons: Iterable[str],
    *,
    room: int = LONGEST_BYTES,
    seconds: float = 0.0,
    more: str = "",
) -> Element:
    case = Element("testcase", {"name": xml_text(name), "classname": xml_text(group), "time": f"{seconds:.3f}"})
    told = [xml_text(reason[:room]) for reason in reasons]
    tag = {"FAIL": "failure", "INCONCLUSIVE": "error", "WAIVED": "skipped", "NOT_REQUIRED": "skipped"}.get(verdict)
    if tag:
        message = f"{verdict}: {told[0] if told else WORDS.get(verdict, verdict)}"
        found = SubElement(case, tag, {"message": clipped(message, room // 4)})
        if tag != "skipped":
            found.set("type", verdict)
        found.text = clipped("\n".join(filter(None, [*told, xml_text(more)])), room * 3 // 4)
    return case


def _gate(judged: Judged) -> Element:
    """The verdict itself."""
    conclusion, run = judged.conclusion, judged.run
    case = _case(f"{run.matrix} is qualified", "gate", conclusion.shown, _told(judged))
    told = [headline(judged.slower), *slower_lines(judged.slower)] if judged.slower else []
    told = [waived_words(conclusion), *told] if conclusion.verdict == "PASS" else told
    if any(told):
        SubElement(case, "system-out").text = clipped(xml_text("\n".join(filter(None, told))), LONGEST_BYTES)
    suite = _suite("gate", [case], judged)
    properties = Element("properties")
    stack = run.stack
    for name, value in (
        ("run", run.id),
        ("matrix", run.matrix),
        ("stack", stack.fingerprint if stack else ""),
        ("device", stack.device.name if stack else ""),
        ("exit_code", str(conclusion.exit_code)),
        ("headline", verdict_line(judged)),
    ):
        SubElement(properties, "property", {"name": name, "value": xml_text(value)})
    suite.insert(0, properties)
    return suite


def _told(judged: Judged) -> list[str]:
    """The verdict in words, failures beside those of cases and shapes, and notes for the reader."""
    expired = [f"{use.waiver.place}: waiver {use.waiver.id} has expired" for use in judged.conclusion.expired]
    weaker = [weaker_headline(judged.weaker), *map(sentence, judged.weaker.changes)] if judged.weaker else []
    return [verdict_line(judged), *expired, *weaker, *judged.notes]


def _shapes(judged: Judged, room: int) -> Element:
    """One test for each production shape: does it have its proven path?"""
    return _suite(
        "production shapes",
        [
            _case(f"{cell.cell} has its proven path", "shapes", cell.verdict, cell.reasons, room=room)
            for cell in judged.conclusion.cells
        ],
        judged,
    )


def _models(judged: Judged, room: int) -> list[Element]:
    """One suite for each model, one test for each case."""
    verdicts = {item.case_id: item for item in judged.conclusion.judgements}
    suites: dict[str, list[Element]] = {}
    for record in judged.records:
        case, judgement = record.case, verdicts[record.case.id]
        evidence = evidence_of(record.outcome)
        told = "\n".join(
            f"{finding.verdict} {finding.check}: {finding.detail}"
            for finding in findings_of(record.outcome)
            if finding.verdict in {"fail", "inconclusive"}
        )
        suites.setdefault(case.model, []).append(
            _case(
                case.id,
                case.model,
                judgement.verdict,
                judgement.reasons,
                room=room,
                seconds=evidence.wall_s if evidence else 0.0,
                more=told[:room],
            )
        )
    return [_suite(model, cases, judged) for model, cases in suites.items()]


def _performance(judged: Judged, room: int) -> list[Element]:
    """One test for each budget of time, with the cells that break it."""
    found = judged.performance
    if found is None:
        return []
    cases = [
        _case(
            f"budget of {use.name} ({limit_percent(use.allowed)}%)",
            "performance",
            use.verdict,
            [budget_sentence(use), *map(cell_sentence, use.cells)],
            room=room,
        )
        for use in found.budgets
    ]
    if found.required:
        told = [time_headline(found)]
        cases.append(_case(asked(found), "performance", "INCONCLUSIVE" if found.why_not else "PASS", told, room=room))
    return [_suite("performance", cases, judged)]


def _baseline(judged: Judged, room: int) -> list[Element]:
    """Changes against the baseline that the matrix forbids, and requirements that became weaker."""
    cases = [
        _case(
            f"{change.id} has the {topic} of the baseline", "baseline", "FAIL", [change_text(topic, change)], room=room
        )
        for topic, change in (judged.against.forbidden if judged.against else ())
    ]
    if judged.weaker and judged.weaker.forbidden:
        verdict: Verdict = "FAIL" if judged.conclusion.verdict == "FAIL" else "INCONCLUSIVE"
        cases += [
            _case(f"{less.what} as in the baseline", "baseline", verdict, [sentence(less)], room=room)
            for less in judged.weaker.changes
        ]
    return [_suite("baseline", cases, judged)] if cases else []

"""The formats of the gate: accepted by real readers, bounded, and deaf to what hostile names try to say."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from builders import answered, make_evidence, make_finding, make_witness
from cli_process import refuse_constant
from google.protobuf import json_format
from in_toto_attestation.predicates.test_result.v0.test_result_pb2 import TestResult as ResultMessage
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage
from jsonschema import Draft7Validator
from junitparser import Error, Failure, JUnitXml, Skipped
from report_examples import cell_change, performance_of, signed
from stored_runs import IDS, MATRIX, NOW, OPEN, PASSED, WRONG, make_stack, shipped_kernels, store_run, write_waivers

from qualify.errors import NoVerdict, UsageError
from qualify.facts import codec
from qualify.facts.artifact import Artifact, parse_artifact
from qualify.facts.environment import Environment
from qualify.facts.identity import UNMATCHED
from qualify.facts.outcome import Crashed, Measured, evidence_of
from qualify.facts.run import CellJudgement
from qualify.facts.stack import Component
from qualify.judge.against import compare_with
from qualify.judge.judged import Judged, judge
from qualify.report.contract import gate_schema
from qualify.report.differences import to_text as diff_text
from qualify.report.files import write_diff, write_report
from qualify.report.formats import github, junit, markdown
from qualify.report.formats.github import MOST, worst_annotations
from qualify.report.formats.in_toto import to_statement
from qualify.report.formats.interface import OutputOptions
from qualify.report.formats.markdown import LIMIT_BYTES, escaped
from qualify.report.performance import budget_sentence, cell_sentence, headline
from qualify.report.signoffs import signoff_lines
from qualify.report.verdict_json import to_data
from qualify.report.verdict_text import environment_lines, to_text
from qualify.store.store import Store

OPTIONS = OutputOptions(now=NOW)
HOSTILE = (
    "void a<b, c>::k(int)",
    "x\n::error file=a::owned",
    "::set-output name=x::owned",
    "##[error]owned",
    "x]]></failure><testcase name='owned'/>",
    "50%0A::error::owned",
    "`<script>alert(1)</script>` | [x](http://evil) @team ![i](http://e/i.png) www.evil.example *b* _i_ $x$",
    "nul\x00esc\x1b[31m del\x7f surrogate\udcff nel\x85 ls\u2028 bom\ufffe",
    "void k<\ud800>(half\udfff)",
    "&amp;&lt;",
    "\r\nserving: qualified (",
)
"""kernel names and messages that try to be markup or commands"""


def written(folder: Path, *waivers: dict[str, Any]) -> Path:
    """The matrix, which names its waivers."""
    (folder / "serving.yaml").write_text(MATRIX + "waivers: waivers.yaml\n")
    write_waivers(folder / "waivers.yaml", *waivers)
    return folder / "serving.yaml"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A matrix of the test's own."""
    return written(tmp_path)


@pytest.fixture(scope="module")
def shared(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Path]]:
    """A store and a folder for what all tests look at and none changes."""
    folder = tmp_path_factory.mktemp("formats")
    with Store.open(str(shutil.copy(migrated_sqlite, folder / "evidence.db"))) as opened:
        yield opened, folder


def judged_run(store: Store, path: Path, outcome: Any = PASSED, **changes: Any) -> Judged:
    """A stored run, judged at NOW."""
    return judge(store, store_run(store, path, outcome, **changes).id, shipped_kernels(), now=NOW)


def every(case: Any) -> Any:
    """One case of each kind: failed, inconclusive, waived crash, passed."""
    crashed = Crashed(stage="call", error="SIGSEGV", log="", attempt=1)
    return dict(zip(IDS, (WRONG, OPEN, crashed, PASSED), strict=True))[case.id]


@pytest.fixture(scope="module")
def mixed(shared: tuple[Store, Path]) -> Judged:
    """A run with one case of each kind."""
    store, folder = shared
    return judged_run(store, written(folder, {"select": IDS[2], "checks": ["crash"]}), every)


def named(text: str) -> Measured:
    """A failed case whose kernel and finding bear that name."""
    evidence = make_evidence(make_finding("fail", text))
    return Measured(evidence=replace(evidence, witness=make_witness("proven", text)))


@pytest.fixture(scope="module", params=HOSTILE)
def evil(request: pytest.FixtureRequest, shared: tuple[Store, Path]) -> Judged:
    """A run whose kernels, findings, crashes and device bear a hostile name, compared with a harmless one."""
    name = request.param
    store, folder = shared
    (folder / "evil").mkdir(exist_ok=True)
    path = written(folder / "evil")
    before = store_run(store, path, age=timedelta(hours=2))
    stack = make_stack(vllm=name)
    stack = replace(stack, device=replace(stack.device, name=name))

    def outcome(case: Any) -> Any:
        return Crashed(stage="call", error=name, log=name, attempt=1) if case.id == IDS[0] else named(name)

    judged = judged_run(store, path, outcome, stack=stack)
    return compare_with(store, judged, before.id, shipped_kernels(), now=NOW)


class Tags(HTMLParser):
    """Counts the elements that a reader of HTML sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Counter[str]()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen[tag] += 1


def suites(text: str) -> JUnitXml:
    """What a real parser makes of the document."""
    return JUnitXml.fromstring(text.encode())


def test_junit_counts_and_kinds(mixed: Judged) -> None:
    """Failures, errors and skips are where they belong, and each suite counts its own."""
    found = suites(junit.render(mixed, OPTIONS))
    cases = {case.name: case for suite in found for case in suite}
    kinds = {name: [type(item) for item in cases[name].result] for name in IDS}
    assert {IDS[0]: [Failure], IDS[1]: [Error], IDS[2]: [Skipped], IDS[3]: []} == kinds
    assert [Failure] == [type(item) for item in cases["serving is qualified"].result]
    assert ["gate", "production shapes", "toy.tp1"] == [suite.name for suite in found]
    for suite in found:
        states = Counter(type(item).__name__ for case in suite for item in case.result)
        assert (states["Failure"], states["Error"], states["Skipped"], len(list(suite))) == (
            suite.failures,
            suite.errors,
            suite.skipped,
            suite.tests,
        )
    assert (found.tests, found.failures, found.errors) == tuple(
        sum(getattr(suite, name) for suite in found) for name in ("tests", "failures", "errors")
    )
    assert "census: row 3 sees key 9" in cases[IDS[0]].result[0].message


def test_junit_is_red_where_only_the_verdict_is(store: Store, path: Path) -> None:
    """All cases passed, and the run was interrupted: that is an error, and no green tree."""
    found = suites(junit.render(judged_run(store, path, state="interrupted"), OPTIONS))
    assert (0, 1) == (found.failures, found.errors)


def test_junit_names_are_unique_and_hostile_ones_are_text(evil: Judged) -> None:
    """The parser finds as many cases as there are, each name once, and nothing that a name brought along."""
    text = junit.render(evil, OPTIONS)
    found = [case for suite in suites(text) for case in suite]
    names = [(case.classname, case.name) for case in found]
    assert len(names) == len(set(names)) == 1 + len(evil.conclusion.cells) + len(evil.records)
    assert text.isascii()
    assert "owned" not in {case.name for case in found}


def test_junit_of_thousands_of_failures(store: Store, path: Path) -> None:
    """5,000 failures with long reasons: below the 30 MB that CI servers take, read by a real parser, names unique."""
    long = make_finding("fail", "β < 1 " * 500)
    judged = judged_run(store, path, Measured(evidence=make_evidence(*[long] * 5)))
    record, item = judged.records[0], judged.conclusion.judgements[0]
    cases = [replace(record.case, id=f"toy/prefill/{number}/fp32/causal/k") for number in range(5000)]
    many = replace(
        judged,
        records=[replace(record, case=case) for case in cases],
        conclusion=replace(
            judged.conclusion, judgements=tuple(replace(item, case_id=case.id, verdict="FAIL") for case in cases)
        ),
    )
    text = junit.render(many, OPTIONS)
    assert len(text) < 30_000_000
    found = suites(text)
    names = [(case.classname, case.name) for suite in found for case in suite]
    assert 5001 <= found.failures <= len(names) == len(set(names)) == found.tests


def test_markdown_holds_no_markup_of_others(evil: Judged) -> None:
    """No tag, link, mention, image or line break but ours."""
    text = markdown.render(evil, OPTIONS)
    tags = Tags()
    tags.feed(text)
    assert {"code"} >= set(tags.seen)
    outside = re.sub(r"&#\d+;", "", text)
    assert [] == [mark for mark in ("`", "](", "@", "://", "www.", "![", "$", "\x1b", "\x00") if mark in outside]
    assert [] == [line for line in text.splitlines() if line.startswith(("::", "serving: qualified"))]
    columns = {"FAIL": 4, "verdict": 4, "what changed": 1}
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| (?!---)", line)]
    assert [] == [row for row in rows if len(row) != columns.get(row[0], 1)]


def test_markdown_names_what_broke_beside_the_cases(mixed: Judged) -> None:
    """The summary of a job has each broken budget with its cells, each environment and each sign-off, as the text."""
    performance = performance_of("FAIL", cell_change("SLOWER", 0.08))
    run = replace(mixed.run, environments={"next": Environment(python="/opt/next/bin/python")})
    judged = replace(mixed, run=run, performance=performance, signoffs=(signed("revoked"),))
    text = html.unescape(markdown.render(judged, OPTIONS))
    (use,) = performance.budgets
    assert f"**Time:** {headline(performance)}" in text
    assert f"| {use.verdict} | {budget_sentence(use)} | {cell_sentence(use.cells[0])} |" in text
    for line in (*environment_lines(judged), *signoff_lines(judged.signoffs)):
        assert f"\n{line}\n" in text
        assert f"\n{line}\n" in to_text(judged, NOW)


def test_escaping_is_reversible() -> None:
    """A reader sees every character that is one."""
    assert "void a<b, c>::k(int) | x_y `z` ]]>%0A" == html.unescape(escaped("void a<b, c>::k(int) | x_y `z` ]]>%0A"))


def test_markdown_stays_below_a_mebibyte(store: Store, path: Path) -> None:
    """Thousands of different failures: cut between rows, and it says so."""
    judged = judged_run(store, path, WRONG)
    cells = tuple(
        CellJudgement(cell=f"{number}/{'x' * 200}", verdict="FAIL", proven_by=(), reasons=(f"{number} {'y' * 500}: z",))
        for number in range(5000)
    )
    records = [replace(judged.records[0], case=replace(judged.records[0].case, id=f"{cell.cell}/k")) for cell in cells]
    item = judged.conclusion.judgements[0]
    judgements = (*judged.conclusion.judgements, *(replace(item, case_id=record.case.id) for record in records))
    conclusion = replace(judged.conclusion, cells=cells, judgements=judgements)
    large = replace(judged, conclusion=conclusion, records=[*judged.records, *records])
    text = markdown.render(large, OPTIONS)
    assert 0.9 * LIMIT_BYTES < len(text.encode()) < 1 << 20
    last = html.unescape(text.splitlines()[-1])
    assert last.endswith(f"more lines do not fit here. Everything: <code>qualify report {judged.run.id}</code>")


def commands(text: str) -> list[str]:
    """The lines that GitHub's runner obeys: ``::`` first after spaces, or ``##[`` anywhere."""
    return [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]


def test_annotations_are_ours_alone(evil: Judged) -> None:
    """What is obeyed is what was meant: at most ten, and no hostile text becomes a command, a property or a line."""
    text = github.render(evil, OPTIONS)
    meant = [item.command() for item in worst_annotations(evil, OPTIONS)]
    assert meant == commands(text)
    assert len(meant) <= MOST
    for command in meant:
        properties, _, data = command.partition(" ")[2].partition("::")
        assert {"file", "line", "title"} >= {part.partition("=")[0] for part in properties.split(",")}
        assert [] == re.findall(r"%(?!25|0D|0A)", data)
    for other in (to_text(evil, NOW), diff_text(evil.against.comparison)):
        assert [] == commands(other)


def test_annotations_lead_to_the_line(mixed: Judged) -> None:
    """The matrix's line that asked for the case, from the checkout; the worst first."""
    path = Path(mixed.run.matrix_path)
    found = worst_annotations(mixed, OutputOptions(now=NOW, workspace=path.parent))
    assert ["error", "error", "warning", "warning"] == [item.level for item in found]
    lines = MATRIX.splitlines()
    assert ["", "      - 8", "      - 8", "      - 8"] == [lines[item.line - 1] if item.line else "" for item in found]
    assert {"serving.yaml"} == {item.path for item in found}
    assert found[1].command().startswith("::error file=serving.yaml,line=8,title=FAIL toy.tp1/prefill/b1.q8.k8/fp32/")
    assert [str(path)] * 4 == [
        item.path for item in worst_annotations(mixed, OutputOptions(now=NOW, workspace=Path("/nowhere")))
    ]


def test_an_expired_waiver_is_annotated_where_it_stands(store: Store, path: Path) -> None:
    """Its owner sees the line in the file of waivers."""
    write_waivers(path.parent / "waivers.yaml", {"created": "2026-09-01", "expires": "2026-10-01"})
    found = worst_annotations(judged_run(store, path, WRONG), OutputOptions(now=NOW, workspace=path.parent))
    assert [("waivers.yaml", 2, "error")] == [
        (item.path, item.line, item.level) for item in found if "waiver" in item.title
    ]


def test_no_more_than_ten_annotations(store: Store, path: Path) -> None:
    """GitHub shows no more, so the worst are chosen here."""
    judged = judged_run(store, path, WRONG)
    cells = tuple(
        replace(judged.conclusion.cells[0], verdict="FAIL", reasons=(f"reason {number}",)) for number in range(40)
    )
    many = replace(judged, conclusion=replace(judged.conclusion, cells=cells))
    assert MOST == len(worst_annotations(many, OPTIONS))


def test_a_qualified_run_is_a_notice(store: Store, path: Path) -> None:
    """Green, with one line."""
    assert ["notice"] == [item.level for item in worst_annotations(judged_run(store, path), OPTIONS)]


DIGEST = "0123456789abcdef" * 4
SUBJECT = Artifact(name="registry.example/image", sha256=DIGEST)


@pytest.mark.parametrize(("outcome", "result"), [(PASSED, "PASSED"), (WRONG, "FAILED"), (OPEN, "FAILED")])
def test_the_statement_says_what_was_tested(store: Store, path: Path, outcome: Any, result: str) -> None:
    """The artifact that is promoted, its digest, the tests by name; no verdict is FAILED."""
    judged = judged_run(store, path, outcome)
    found = to_statement(judged, [SUBJECT])
    assert ("https://in-toto.io/Statement/v1", "https://in-toto.io/attestation/test-result/v0.1") == (
        found["_type"],
        found["predicateType"],
    )
    assert [{"name": "registry.example/image", "digest": {"sha256": DIGEST}}] == found["subject"]
    predicate = found["predicate"]
    assert result == predicate["result"]
    assert (set(IDS) <= set(predicate["passedTests"])) == (outcome is PASSED)
    assert judged.run.matrix_hash == predicate["configuration"][0]["digest"]["sha256"]
    assert all({"name", "digest"} <= set(item) for item in predicate["configuration"])


def test_a_waived_failure_is_a_warning(store: Store, path: Path) -> None:
    """The consumer may ask for PASSED."""
    write_waivers(path.parent / "waivers.yaml", {"select": IDS[0]})
    judged = judged_run(store, path, lambda case: WRONG if case.id == IDS[0] else PASSED)
    predicate = to_statement(judged, [SUBJECT])["predicate"]
    assert ("WARNED", [IDS[0]]) == (predicate["result"], predicate["warnedTests"])


def test_subjects_of_the_stack(store: Store, path: Path) -> None:
    """Without --subject the mapped files are meant; without any, nothing can be stated."""
    with pytest.raises(NoVerdict, match="Name what you promote, with --subject"):
        to_statement(judged_run(store, path))
    stack = make_stack()
    files = [Component(kind="binary", name=name, version="", digest=DIGEST) for name in ("a.so", "a.so", "b.so")]
    judged = judged_run(store, path, stack=replace(stack, components=(*stack.components, *files)))
    assert ["a.so", "b.so"] == [item["name"] for item in to_statement(judged)["subject"]]


def test_an_artifact_of_another_digest_is_refused(store: Store, path: Path) -> None:
    """The image that the run was in, or a file that was mapped, in an environment too: what was tested is stated."""
    stack = make_stack()
    file = Component(kind="binary", name="a.so", version="", digest=DIGEST)
    there = Environment(python="/opt/next/bin/python", stack=replace(stack, components=(*stack.components, file)))
    judged = judged_run(store, path)
    image = Component(kind="system", name="image", version=f"registry.example/image@sha256:{DIGEST}", digest="")
    here = replace(stack, components=(*stack.components, image))
    judged = replace(judged, run=replace(judged.run, environments={"next": there}, stack=here))
    assert ["registry.example/image"] == [item["name"] for item in to_statement(judged)["subject"]]
    names = [item["name"] for item in to_statement(judged)["predicate"]["configuration"]]
    assert "stack of environment next on Test CPU" in names
    for name in ("registry.example/image", "a.so"):
        assert to_statement(judged, [Artifact(name=name, sha256=DIGEST)])
        with pytest.raises(NoVerdict, match=f"tested {name} with the sha256 {DIGEST}"):
            to_statement(judged, [Artifact(name=name, sha256="0" * 64)])


def test_the_statement_has_the_published_shape(evil: Judged, mixed: Judged) -> None:
    """in-toto's own messages take every field, know every name, and their own validation has nothing to say."""
    for judged in (evil, mixed):
        text = codec.to_json(to_statement(judged, [SUBJECT]))
        message = json_format.Parse(text, StatementMessage())
        Statement.copy_from_pb(message).validate()
        predicate = json_format.Parse(json.dumps(json.loads(text)["predicate"]), ResultMessage())
        assert predicate.result in {"PASSED", "WARNED", "FAILED"}
        assert len(predicate.configuration) == 2 + sum(map(bool, (judged.run.code or {}).values()))
        for part in predicate.configuration:
            ResourceDescriptor.copy_from_pb(part).validate()
        assert [judged.run.matrix_hash, DIGEST] == [
            item.digest["sha256"] for item in (predicate.configuration[0], message.subject[0])
        ]
        told = [*predicate.passed_tests, *predicate.warned_tests, *predicate.failed_tests]
        required = [item for item in judged.conclusion.judgements if item.verdict != "NOT_REQUIRED"]
        assert len(told) == len(set(told)) == len(required) + len(judged.conclusion.cells)


@pytest.mark.parametrize("text", ["image", "image@sha256:abc", f"@sha256:{DIGEST}", f"a b@sha256:{DIGEST}", "x@md5:1"])
def test_a_wrong_subject_is_refused(text: str) -> None:
    """A digest is never guessed."""
    with pytest.raises(UsageError, match="give NAME@sha256:HEX"):
        parse_artifact("--subject", text)


def test_pages_and_their_twins_take_every_name(evil: Judged, tmp_path: Path) -> None:
    """Both files are whole UTF-8; the page has no element that a name brought along, the twin every character."""
    assert evil.against is not None
    report = write_report(tmp_path, evil.run, evil.records, evil.conclusion)
    diff = write_diff(tmp_path, evil.against.comparison)
    for page, scripts in ((report, 2), (diff, 0)):  # the script and the data
        tags = Tags()
        tags.feed(page.read_text(encoding="utf-8"))
        assert (scripts, 0, 0) == tuple(tags.seen[name] for name in ("script", "img", "testcase"))
        twin = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"), parse_constant=refuse_constant)
        assert codec.whole(launched(evil)) in [*texts(twin)]


def launched(judged: Judged) -> str:
    """The name of the kernel that the last case launched."""
    evidence = evidence_of(judged.records[-1].outcome)
    assert evidence is not None
    return evidence.witness.attention_names[0]


def texts(data: Any) -> Iterator[str]:
    """Every text in JSON."""
    if isinstance(data, dict | list):
        for item in data.values() if isinstance(data, dict) else data:
            yield from texts(item)
    elif isinstance(data, str):
        yield data


def test_json_for_machines_is_whole_utf8(evil: Judged) -> None:
    """Readers that refuse half a character, as PostgreSQL and Rust's do, read the gate's JSON and the statement."""
    subject = SUBJECT
    for data in (to_data(evil), to_statement(evil, [subject])):
        text = codec.to_json(data)
        back = json.loads(text, parse_constant=refuse_constant)
        assert text.encode()
        for each in texts(back):
            each.encode()


def test_a_report_with_half_a_character_is_like_any_other(store: Store, path: Path, tmp_path: Path) -> None:
    """The twin that had to be written in another way differs in that text alone."""
    judged = judged_run(store, path, named("flash_x"))
    odd = [replace(record, outcome=answered(named("flash_\udcff"), judged.run.level)) for record in judged.records]
    twins = []
    for name, records in (("plain", judged.records), ("odd", odd)):
        page = write_report(tmp_path / name, judged.run, records, judged.conclusion)
        text = (page.parent / "report.json").read_text(encoding="utf-8")
        twins.append(json.loads(text.replace("\\\\udcff", "x")))
    assert twins[0] == twins[1]


def test_the_json_keeps_its_contract(mixed: Judged, evil: Judged) -> None:
    """What is printed fits the published schema, and the schema knows every field."""
    generated = gate_schema()
    Draft7Validator.check_schema(generated)
    for judged in (mixed, evil):
        data = json.loads(codec.to_json({"schema": "qualify.run/1", **to_data(judged)}))
        assert [] == [error.message for error in Draft7Validator(generated).iter_errors(data)]
        assert set(data) <= set(generated["properties"])
        assert set(data["cases"][0]) == set(generated["definitions"]["CaseJson"]["properties"])
    assert set(to_data(evil)["against"]) == set(generated["definitions"]["AgainstJson"]["properties"])
    broken = {"schema": "qualify.run/2", **to_data(mixed)}
    assert [] != list(Draft7Validator(generated).iter_errors(broken))


def test_the_schema_allows_no_null_that_is_never_printed() -> None:
    """Whoever generates code from it need not ask: the impact is 0 where it is unknown, and no page is no field."""
    generated = gate_schema()
    report = generated["properties"]["report"]
    assert ["number", "string"] == [
        generated["definitions"]["ChangeJson"]["properties"]["impact_us"]["type"],
        report["type"],
    ]
    assert "report" not in generated["required"]


@pytest.mark.parametrize(
    ("reason", "next_step"),
    [
        (
            f"{UNMATCHED} (my_kernel) and none is known as attention; launched: your_kernel",
            "compare the launched names",
        ),
        ("the trace is incomplete", "see what disturbs the machine: qualify doctor"),
    ],
)
def test_an_open_identity_leads_to_the_card_and_not_to_the_machine(
    store: Store, tmp_path: Path, reason: str, next_step: str
) -> None:
    """Where nothing but a name differs, no doctor helps."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    unproven = Measured(evidence=make_evidence(witness=make_witness("unproven", reason=reason)))
    told = to_text(
        judge(store, store_run(store, tmp_path / "serving.yaml", unproven).id, shipped_kernels(), now=NOW), NOW
    )
    assert next_step in [line for line in told.splitlines() if line.startswith("do: ")][-1]

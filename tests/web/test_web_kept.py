"""What the site keeps: verdicts until something changes, pages until others need the room; and what it does later."""

from __future__ import annotations

import gzip
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest
from builders import make_xid
from jinja2 import Environment
from stored_runs import IDS, MATRIX, PASSED, WRONG, real_days, shipped_kernels, store_run, write_waivers

from qualify.errors import StoreError
from qualify.facts.outcome import noted
from qualify.facts.overview import RunQuery
from qualify.facts.people import AuditEntry, SignOff
from qualify.report.page import _environment
from qualify.report.sitepages.parts import csv_pieces, parts_json, render_parts
from qualify.store import Store
from qualify.web import site as web_site
from qualify.web import verdicts
from qualify.web.elsewhere import Elsewhere
from qualify.web.judging import Judging
from qualify.web.rendered import Packed, Rendered, pack
from qualify.web.site import Site
from qualify.web.verdicts import Verdicts


def heads(store):
    """The runs of the store."""
    return store.overview.runs(RunQuery()).heads


@pytest.mark.usefixtures("forked_helpers")
def test_a_large_run_is_left_to_the_thread(store, tmp_path, monkeypatch):
    """A list waits for no large run: it is judged by the thread, and known then."""
    (tmp_path / "m.yaml").write_text(MATRIX)
    store_run(store, tmp_path / "m.yaml", PASSED)
    monkeypatch.setattr(verdicts, "SMALL", 1)
    found = Verdicts(store, shipped_kernels())
    assert {} == found.summaries(heads(store))
    assert [heads(store)[0].id] == list(found._queue)
    found.start()
    assert ["PASS"] == _known(found, store)


def _known(found, store):
    """The verdicts that the list knows, as soon as there is one."""
    until = time.monotonic() + 60
    while not (summaries := found.summaries(heads(store))) and time.monotonic() < until:
        time.sleep(0.05)
    return [it.verdict for it in summaries.values()]


@pytest.mark.usefixtures("forked_helpers")
def test_what_the_other_process_tells_is_what_is_judged_here(store, tmp_path):
    """Verdict, details with a waiver, and what both were made from: nothing changes on its way as JSON."""
    path = tmp_path / "m.yaml"
    path.write_text(MATRIX + "\nwaivers: waivers.yaml\n")
    write_waivers(tmp_path / "waivers.yaml", {"checks": ["census"], **real_days()})
    store_run(store, path, lambda case: WRONG if case.kernel == "tiled-torch" else PASSED)
    there, [head] = Elsewhere(store, shipped_kernels()), heads(store)
    try:
        told = there.ask(head)
    finally:
        there.end()
    assert Judging(store, shipped_kernels()).look(head) == told
    assert told
    assert told[1].waivers


@pytest.mark.usefixtures("forked_helpers")
def test_nothing_is_judged_behind_the_pages(store, tmp_path, monkeypatch):
    """Another process does it: here, each query of a page would wait for Python's lock. It may die of a run."""
    (tmp_path / "m.yaml").write_text(MATRIX)
    store_run(store, tmp_path / "m.yaml", PASSED)
    monkeypatch.setattr(verdicts, "SMALL", 1)
    monkeypatch.setattr(Judging, "judge", lambda *_: pytest.fail("it was judged in the process of the pages"))
    found = Verdicts(store, shipped_kernels())
    found.start()
    assert ["PASS"] == _known(found, store)
    process, _ = found._elsewhere._running
    process.kill()
    process.join()
    store_run(store, tmp_path / "m.yaml", lambda _: WRONG)
    assert None is found._elsewhere.ask(heads(store)[0])
    assert "FAIL" == found._elsewhere.ask(heads(store)[0])[0].summary.verdict
    found._elsewhere.end()


def test_the_page_of_a_case_has_no_long_history_judged(store, tmp_path, monkeypatch):
    """Large runs of the past are not judged for it: fifty of 5,000 cases kept a site busy for half a minute."""
    (tmp_path / "m.yaml").write_text(MATRIX)
    for age in range(6):
        run = store_run(store, tmp_path / "m.yaml", PASSED, age=timedelta(hours=age))
    monkeypatch.setattr(verdicts, "SMALL", 1)
    site = Site(store, shipped_kernels())
    site.cases.history(store.records(run.id)[0].case.id, may_write=False)
    assert 3 == len(site.verdicts._queue)


def test_errors_of_the_driver_are_looked_up_once_for_a_run_that_ended(store, tmp_path, monkeypatch):
    """A query over all findings of fifty runs took a second; what is asked of a run that goes on is asked each time."""
    (tmp_path / "m.yaml").write_text(MATRIX)
    first, last = (store_run(store, tmp_path / "m.yaml", PASSED, age=timedelta(hours=hours)) for hours in (3, 2))
    asked, overview = [], type(store.overview)
    with_finding = overview.with_finding
    monkeypatch.setattr(
        overview, "with_finding", lambda self, ids, check: asked.append(ids) or with_finding(self, ids, check)
    )
    site = Site(store, shipped_kernels())

    def verdicts_of_first() -> list[str]:
        page = json.loads(parts_json("case", site.cases.history(IDS[0], may_write=False)))
        return [it["verdict"] for it in page["history"] if it["run"] == first.id]

    passes = verdicts_of_first()
    assert passes == verdicts_of_first()
    assert [[last.id, first.id], []] == asked
    store.resume(first.id)
    other = next(it for it in store.records(first.id) if it.case.id == IDS[1])
    store.add(first.id, [replace(other, outcome=noted(PASSED, make_xid(79)))])
    failed = verdicts_of_first()
    store.finish(first.id, "completed", datetime.now(UTC))
    assert passes != failed == verdicts_of_first() == verdicts_of_first()
    assert [[first.id], [first.id], []] == asked[2:]


def test_a_verdict_is_worked_out_again_when_its_waivers_change(store, tmp_path):
    """The file of waivers is part of what a verdict was made from; the day is, where there are any."""
    (tmp_path / "m.yaml").write_text(MATRIX + "waivers: waivers.yaml\n")
    write_waivers(tmp_path / "waivers.yaml")
    store_run(
        store, tmp_path / "m.yaml", lambda case: WRONG if case.id.endswith("q8.k8/fp32/causal/tiled-torch") else PASSED
    )
    (head,), found = heads(store), Verdicts(store, shipped_kernels())
    assert None is found.known(head)
    assert "FAIL" == found.summary(head).verdict
    assert found.key(head).day is not None
    assert found.key(head) == found.key(head)
    write_waivers(tmp_path / "waivers.yaml", {"checks": ["mask"], **real_days()})
    assert None is found.known(head)


def test_a_report_is_rendered_once_for_each_state(store, tmp_path, monkeypatch):
    """It is kept, and made again after a sign-off; another run's is not touched."""
    (tmp_path / "m.yaml").write_text(MATRIX)
    run, other = (store_run(store, tmp_path / "m.yaml", PASSED, age=timedelta(hours=hours)) for hours in (2, 3))
    site, made = Site(store, shipped_kernels()), []
    judged = site.verdicts.judged
    monkeypatch.setattr(site.verdicts, "judged", lambda head: made.append(head.id) or judged(head))
    first = site.report(run.id, twin=False)
    assert (first, first) == (site.report(run.id, twin=False), site.report(run.id[:-1] + run.id[-1], twin=False))
    site.report(other.id, twin=False)
    assert [run.id, other.id] == made
    signoff = SignOff(
        id=0,
        run_id=run.id,
        sha256="0" * 64,
        sealed=False,
        verdict="PASS",
        by="j",
        role="r",
        reason="x",
        at=run.started_at,
    )
    entry = AuditEntry(who="j", how="command", address="", action="sign", subject="run", allowed=True)
    store.people.sign(signoff, entry)
    assert first.tag != site.report(run.id, twin=False).tag
    assert b"evidence changed since" in gzip.decompress(site.report(run.id, twin=False).content)
    site.report(other.id, twin=False)
    assert [run.id, other.id, run.id] == made


@pytest.mark.parametrize("most", [1, 100_000])
def test_kept_pages_are_bounded(most):
    """The page that was asked for least lately makes room; the newest one is kept in any case."""
    kept, made = Rendered(most_bytes=most, at_once=2), []
    for name in ("a", "b", "b", "a"):
        kept.get(name, lambda: "state", lambda name=name: made.append(name) or pack(name * 1000))
    assert (["a", "b", "a"] if most == 1 else ["a", "b"]) == made


def test_one_state_of_a_page_is_kept():
    """The next state takes its place, and the tag says whether the page is another one."""
    kept, made = Rendered(most_bytes=100_000, at_once=2), []

    def page(state: str, text: str = "same") -> Packed:
        return kept.get("page", lambda: state, lambda: made.append(state) or pack(text))

    tags = [page("1").tag, page("1").tag, page("2").tag, page("1", "other").tag]
    assert ["1", "2", "1"] == made
    assert 1 == len({*tags[:3]}) < len({*tags})
    assert 1 == len(kept._pages)


def test_what_nobody_can_name_is_not_kept():
    """A page whose state is unknown, or changed while it was rendered, is rendered again."""
    kept, made = Rendered(most_bytes=100_000, at_once=2), []
    kept.get("page", lambda: None, lambda: made.append(0) or pack("x"))
    kept.get("page", lambda: None, lambda: made.append(1) or pack("x"))
    changing = iter(["1", "1", "1", "2"])
    kept.get("page", lambda: next(changing), lambda: made.append(2) or pack("x"))
    kept.get("page", lambda: "1", lambda: made.append(3) or pack("x"))
    assert [0, 1, 2, 3] == made
    assert {} == kept._making


def test_many_who_ask_at_once_wait_for_one():
    """A page is rendered once for all who ask for it meanwhile; other pages do not wait for it."""
    kept, made, go = Rendered(most_bytes=100_000, at_once=2), [], Event()

    def slow() -> Packed:
        made.append("slow")
        assert go.wait(10)
        return pack("x")

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(kept.get, "slow", lambda: "1", slow) for _ in range(3)]
        kept.get("quick", lambda: "1", lambda: made.append("quick") or pack("y"))
        go.set()
        assert 1 == len({it.result().tag for it in waiting})
    assert ["quick", "slow"] == sorted(made)


def test_a_kept_page_ages(monkeypatch):
    """What changes without a write, as a day or a file of waivers, is seen after a second at the latest."""
    kept, made, now = Rendered(most_bytes=100_000, at_once=2, fresh_s=1.0), [], [50.0]
    monkeypatch.setattr("qualify.web.rendered.time.monotonic", lambda: now[0])
    for moment in (50.0, 50.9, 51.1, 52.0, 52.2):
        now[0] = moment
        kept.get("page", lambda: "1", lambda: made.append(now[0]) or pack("x"))
    assert [50.0, 51.1, 52.2] == made


def test_lists_are_made_once_for_each_state_of_the_store(store, tmp_path, monkeypatch):
    """What anybody stores is on the next page; nothing else makes it anew within its second."""
    (tmp_path / "m.yaml").write_text(MATRIX)
    store_run(store, tmp_path / "m.yaml", PASSED, age=timedelta(hours=2))
    site, made = Site(store, shipped_kernels()), []
    monkeypatch.setattr("qualify.web.rendered.time.monotonic", lambda: 50.0)

    def page() -> dict[str, Any]:
        made_by = site.kept("/", lambda: made.append(1) or parts_json("home", site.home()))
        return json.loads(gzip.decompress(made_by.content))

    page()  # the run is judged for it
    assert "✓ pass" == page()["states"][0]["verdict"]
    assert page() == page()
    before = len(made)
    with Store.open(store.where) as other:
        worse = store_run(other, tmp_path / "m.yaml", lambda _: WRONG, age=timedelta(hours=1))
    assert worse.id == page()["states"][0]["run"]
    assert before + 1 == len(made)


def test_a_verdict_makes_no_page_anew_within_its_second(store, tmp_path, monkeypatch):
    """While thousands of runs are judged after a start, each answer made its page: answers took three seconds."""
    (tmp_path / "m.yaml").write_text(MATRIX)
    store_run(store, tmp_path / "m.yaml", PASSED)
    monkeypatch.setattr(verdicts, "SMALL", 1)
    site, now, shown = Site(store, shipped_kernels()), [50.0], []
    monkeypatch.setattr("qualify.web.rendered.time.monotonic", lambda: now[0])

    def page() -> None:
        site.kept("/runs", lambda: shown.append(parts_json("runs", site.runs(RunQuery()))) or shown[-1])

    for moment in (50.0, 50.5, 51.1):
        now[0] = moment
        page()
        site.verdicts.summary(heads(store)[0])
    assert [None, "PASS"] == [json.loads(text)["runs"][0]["verdict"] for text in shown]


def test_the_first_answer_compiles_no_template(store, monkeypatch):
    """The server does that before it answers: it takes longer than a list of runs."""
    _environment.cache_clear()
    site = Site(store, {})
    site.prepare()
    monkeypatch.setattr(Environment, "compile", lambda *_, **__: pytest.fail("a template was compiled"))
    assert "Stored runs" in render_parts(site.runs(RunQuery()))


def test_the_first_list_waits_for_no_verdict_of_the_newest_runs(store, tmp_path, monkeypatch):
    """The server judges them before it answers; a store that fails then is left to the first request."""
    (tmp_path / "m.yaml").write_text(MATRIX)
    for age in range(3):
        store_run(store, tmp_path / "m.yaml", PASSED, age=timedelta(hours=age))
    monkeypatch.setattr(web_site, "PREPARED_S", 60.0)
    site = Site(store, shipped_kernels())
    site.prepare()
    assert all(site.verdicts.known(head) for head in heads(store))
    monkeypatch.setattr(Verdicts, "summaries", lambda *_, **__: _fail())
    Site(store, shipped_kernels()).prepare()


def _fail():
    raise StoreError("the store does not answer")


def test_a_long_list_is_sent_in_pieces(store, tmp_path, monkeypatch):
    """Each run of the filter once, whatever is stored meanwhile; each line of the audit log; no list gives a header."""
    monkeypatch.setattr(web_site, "PIECE", 2)
    (tmp_path / "m.yaml").write_text(MATRIX)
    stored = [store_run(store, tmp_path / "m.yaml", age=timedelta(hours=hours)).id for hours in range(1, 6)]
    site, query = Site(store, shipped_kernels()), RunQuery(matrix="serving", limit=10**9)
    pieces = csv_pieces(site.run_tables(query))
    text = next(pieces)
    store_run(store, tmp_path / "m.yaml", age=timedelta(minutes=1))
    header, *lines = (text + "".join(pieces)).splitlines()
    assert ("matrix,run,level,device,verdict", stored) == (header[:31], [line.split(",")[1] for line in lines])
    assert [3, 2, 2] == [len(piece.splitlines()) for piece in csv_pieces(site.run_tables(query))]
    assert [header] == "".join(csv_pieces(site.run_tables(RunQuery(matrix="none")))).splitlines()
    said = [f"run {number}" for number in range(4)]
    for subject in said:
        store.people.log(AuditEntry(who="j", how="command", address="", action="sign", subject=subject, allowed=True))
    _, *lines = "".join(csv_pieces(site.audit_tables(None))).splitlines()
    assert said[::-1] == [line.split(",")[7] for line in lines]

"""A real server of a real store: what it shows, what it refuses, and what it never does."""

from __future__ import annotations

import re
import socket
import sqlite3
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest
from stored_runs import make_run
from web_examples import DUEL, HOSTILE, Served, fill_large_fleet, serving

from qualify.facts.canary import own_lease
from qualify.report.sitepages.canaries import FIRES
from qualify.report.sitepages.models import SHARES
from qualify.store import Store
from qualify.web.metrics import exposition
from qualify.web.site import SHOWN, Site

PAGES = (
    "/",
    "/runs",
    "/runs/latest",
    "/runs/latest/decision",
    "/runs/latest/cases",
    "/runs/latest/cases/toy.tp1/prefill/b1.q8.k8/fp32/causal/tiled-torch",
    "/compare",
    "/models",
    "/models/toy.tp1",
    "/kernels",
    "/kernels/tiled-torch",
    "/cases/toy.tp1/prefill/b1.q8.k8/fp32/causal/tiled-torch",
    "/findings",
    "/waivers",
    "/stacks",
    "/duels",
    f"/duels/{DUEL}",
    "/canaries",
    "/canaries/nightly",
    "/holds",
    "/holds/1",
    "/fleets",
    "/fleets/f-1",
    "/selftest",
    "/login",
)


def judged(served):
    """The list of runs, once every verdict is at hand."""
    for _ in range(100):
        data = served.get("/runs.json").data
        if all(run["verdict"] for run in data["runs"]):
            return data
        time.sleep(0.1)
    raise AssertionError("the runs were never judged")


def test_list_of_runs(served):
    """Every run with its verdict, newest first, with links to its report and to what changed since the one before."""
    data = judged(served)
    page = served.get("/runs")
    assert "qualify.runs/1" == data["schema"]
    assert set(served.runs) == {run["run"] for run in data["runs"]}
    assert {"PASS", "FAIL", "INCONCLUSIVE"} == {run["verdict"] for run in data["runs"]}
    for run in served.runs:
        assert f'href="/runs/{run}"' in page.text
    assert "/against/" in page.text
    assert 1 == len(served.get("/runs.json?limit=1").data["runs"])
    assert 'href="/runs?offset=1&amp;limit=1"' in served.get("/runs?limit=1").text
    assert data["runs"][1:2] == served.get("/runs.json?limit=1&offset=1").data["runs"]


def test_report_is_that_of_the_command(served, tmp_path):
    """The same JSON as `qualify report` writes, and the same page within the navigation and the footer of the site."""
    from cli_process import call

    run = served.runs[1]
    call("report", run, "--db", served.address, "--out", tmp_path, cwd=tmp_path)
    page = served.get(f"/runs/{run}").text
    twin = r'<a href="/runs/[^"]*\.json">the JSON of this page</a>|report\.json beside this file'
    twin += r'| ?<a href="/runs/[^"]*/cases[^"]*">pages?</a>| <a href="/runs/[^"]*/cases">every case has [^<]*</a>;'
    twin += r'|(?<=") href="/runs/[^"]*/cases\?verdict=[A-Z_]+"'
    twin += r'|<p class="links"><a href="/runs/[^"]*/cases/[^"]*">Page of this case</a></p>\n|id="data">[^<]*<'
    beside = rf'<nav class="site".*?</nav>\n|<section id="signoffs".*?</section>\n|<footer>.*?</footer>|{twin}'
    alone = (tmp_path / run / "report.html").read_text()
    assert f'href="/runs/{run}/decision"' in page
    assert re.sub(beside, "", alone, flags=re.DOTALL) == re.sub(beside, "", page, flags=re.DOTALL)
    assert (tmp_path / run / "report.json").read_text() == served.get(f"/runs/{run}.json").text


def test_prefix_and_latest(served):
    """A run may be named as on the command line."""
    newest = served.get("/runs/latest.json").data["run"]
    assert newest in served.runs
    assert newest == served.get(f"/runs/{newest[:-3]}.json").data["run"]


def test_diff(served):
    """Two runs compared, as page and JSON."""
    passed, worse, _ = served.runs
    page = served.get(f"/runs/{worse}/against/{passed}")
    data = served.get(f"/runs/{worse}/against/{passed}.json").data
    assert "Regression" in page.text
    assert "qualify.diff/1" == data["schema"]
    assert "torch" in {change["component"] for change in data["stack"]}


def test_canaries(served):
    """History, holds, alerts that were given up, and what the leader complains about."""
    page, data = served.get("/canaries"), served.get("/canaries.json").data
    (fire,) = data["fires"]
    assert ("nightly", "roll back", "stack") == (fire["canary"], fire["advice"], fire["trigger"])
    assert 1 == len(data["holds"]) == len(data["given_up"])
    assert {"pending": 0, "sent": 0, "dead": 1} == data["alerts"]
    assert "bad.yaml:1:1" in page.text
    assert served.get("/canaries/nightly.json").data["fires"] == data["fires"]
    header = ",".join(column.key for column in FIRES)
    assert [header] * 2 == [
        served.get(f"/{path}.csv").text.splitlines()[0] for path in ("canaries", "canaries/nightly")
    ]


def test_a_hold_leads_to_its_run(served):
    """Whoever is called about a hold reads first what the run of its fire found."""
    (hold,) = served.get("/holds.json").data["holds"]
    assert served.runs[1] == hold["run"]
    for path in ("/holds", "/holds/1", "/canaries"):
        assert f'href="/runs/{served.runs[1]}">{served.runs[1]}</a>' in served.get(path).unbroken, path


def test_fleets(served):
    """Cards with their state, nodes by stack, and a metric for each card."""
    page, data = served.get("/fleets"), served.get("/fleets.json").data
    (fleet,) = data["fleets"]
    assert ("qualify.fleets/1", 0.5, False) == (data["schema"], fleet["coverage"], fleet["enough"])
    assert {"COVERED": 1, "LOST": 1} == {state: count for state, count in fleet["counts"].items() if count}
    assert [["n1"]] == [stack["nodes"] for stack in fleet["stacks"]]
    assert "1 of 2 cards covered (50.0 %, at least 90 % needed)" in page.text
    assert f'href="/runs/{served.runs[0]}"' in page.text
    metrics = served.get("/metrics").text
    assert 'qualify_fleet_coverage_ratio{matrix="serving"} 0.5' in metrics
    assert 'qualify_fleet_card_covered{device="GPU-1",matrix="serving",node="n1"} 1.0' in metrics
    assert 'qualify_fleet_cards{matrix="serving",state="LOST"} 1.0' in metrics
    assert 'qualify_fleet_card_qualified{device="GPU-2"' in metrics
    assert 'qualify_fleet_card_slow_ratio{device="GPU-1",matrix="serving",node="n1"} 1.31' in metrics
    assert 'qualify_fleet_card_slow_ratio{device="GPU-2"' not in metrics


def test_a_fleet_of_many_cards(tmp_path):
    """Counts by state and by node, the bad ones first, a filter, and pages; CSV has all cards, and all runs."""
    address = str(tmp_path / "e.db")
    with Store.open(address) as store:
        fill_large_fleet(store, nodes=30, cards=8)
        for number in range(SHOWN + 10):
            store.begin(make_run(id=f"20260101T000000Z-{number:06x}"))
    with serving(address, tmp_path) as url:
        served = Served(url, address, ())
        data = served.get("/fleets/large.json").data
        assert ("qualify.fleet/1", 240, 200) == (data["schema"], data["total"], len(data["cards"]))
        assert [("✗ run failed", "node-007"), ("! not covered", "node-003")] == [
            (it["state"], it["node"]) for it in data["nodes"][:2]
        ]
        assert (30, "node-003") == (len(data["nodes"]), data["cards"][1]["node"])
        assert "On 28 of 30 nodes every card is covered" in (listed := served.get("/fleets").text)
        assert "1 card failed the run; 238 of 240 cards covered (99.2 %, at least 90 % needed)" in listed
        assert {"COVERED": 238, "LOST": 2} == {name: count for name, count in data["counts"].items() if count}
        page = served.get("/fleets/large").text
        assert "✗ 1 failed the run, ✗ 2 lost, ✓ 238 covered" in page
        assert "✗ 1 card failed the run; enough cards are covered" in page
        assert 'href="/fleets/large?offset=200"' in page
        assert 40 == len(served.get("/fleets/large.json?offset=200").data["cards"])
        assert 241 == len(served.get("/fleets/large.csv").text.splitlines())
        assert SHOWN + 11 == len(served.get("/runs.csv").text.splitlines())
        assert (200, "") == ((head := served.get("/runs.csv", "HEAD")).status, head.text)
        assert 6 == len(served.get("/runs.csv?offset=55&limit=90").text.splitlines())
        assert 'href="/runs.csv?matrix=serving"' in served.get("/runs?matrix=serving&offset=5&limit=9").text
        assert 'href="/fleets/large.csv?state=covered"' in served.get("/fleets/large?state=covered&offset=200").text
        lines = served.get("/fleets/large.csv?state=lost&node=node-003").text.splitlines()
        assert ("state,node,uuid", 3) == (",".join(lines[0].split(",")[:3]), len(lines))
        assert 8 == served.get("/fleets/large.json?q=node-007").data["total"]
        assert 200 == served.get("/fleets/large.json?offset=900").data["offset"]
        assert "No card matches" in served.get("/fleets/large?q=zebra").text
        assert ('href="/fleets/large"' in listed, listed.count("GPU-")) == (True, 3)
        assert 404 == served.get("/fleets/gone").status


@pytest.mark.parametrize("path", PAGES)
def test_hostile_names_are_text(served, path):
    """A name with markup is shown, never obeyed."""
    text = served.get(path).text
    assert "<script>alert" not in text
    assert "<img" not in text
    if path.startswith("/canaries"):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.parametrize("path", [*PAGES, "/runs.json", "/metrics", "/healthz", "/readyz", "/nope"])
def test_headers(served, path):
    """Every answer forbids everything that it does not need, and HEAD tells the same."""
    reply, head = served.get(path), served.get(path, "HEAD")
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert ("nosniff", "no-store") == (reply.headers["x-content-type-options"], reply.headers["cache-control"])
    assert (reply.status, "") == (head.status, head.text)
    assert "server" not in {name.lower() for name in reply.headers}


def test_a_case_is_drawn_over_its_runs(served):
    """A mark with its verdict for each run, which leads to the run; the table beneath has as many rows."""
    page = served.get("/cases/toy.tp1/prefill/b1.q8.k8/fp32/causal/tiled-torch").text
    runs = {
        run["run"] for run in served.get("/cases/toy.tp1/prefill/b1.q8.k8/fp32/causal/tiled-torch.json").data["history"]
    }
    figure = page.partition("<figure")[2].partition("</figure>")[0]
    assert runs == {run for run in runs if f'href="/runs/{run}"' in figure}
    assert len(runs) == figure.count('class="moment ')


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/nope", 404, "There is no such page."),
        ("/runs/nope", 404, "no run"),
        ("/runs/2026", 404, "may be any of 3"),
        ("/runs/latest/against/baseline", 404, "no baseline of serving"),
        ("/canaries/nope", 404, "has not fired here"),
        ("/runs?limit=many", 400, "limit is &#39;many&#39;: Input should be a valid integer"),
        ("/runs?offset=-1", 400, "offset is &#39;-1&#39;: Input should be greater than or equal to 0"),
        (f"/runs?q={'long' * 100}", 400, "long…&#39;: String should have at most 200 characters"),
        ("/holds/x", 400, "number is &#39;x&#39;"),
        ("/docs", 404, "There is no such page."),
        ("/models/nope", 404, "no newest run has the model"),
        ("/kernels/nope", 404, "no newest run has the kernel"),
        ("/cases/nope", 404, "no run has a case"),
        ("/stacks/nope", 404, "no run is of the stack"),
        ("/holds/99", 404, 'there is no hold 99. All holds: <a href="/holds">/holds</a></p>'),
        ("/canaries/:%20/evil", 404, "There is no such page."),
        ("/kernels/:%20nope", 404, 'All: <a href="/kernels">/kernels</a></p>'),
        ("/runs/..%2f..%2fetc%2fpasswd", 404, ""),
        ("/runs/%00", 404, "no run"),
        ("/runs/%3Cscript%3Ealert(1)%3C%2Fscript%3E", 404, ""),
    ],
)
def test_what_is_not_here(served, path, status, words):
    """Words and the right status, no traceback, no markup of the asker's."""
    reply = served.get(path)
    assert status == reply.status
    assert words in reply.text
    assert "<script>" not in reply.text
    assert "Traceback" not in reply.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_read_only(served, method):
    """No method that changes anything."""
    for path in ("/", "/home.json", "/openapi.json"):
        reply = served.get(path, method)
        assert (405, "GET, HEAD") == (reply.status, reply.headers["allow"])


def test_a_form_takes_what_its_address_says(served):
    """Also where several routes have one address."""
    assert ("POST", "GET, HEAD, POST") == tuple(
        served.get(path, "PUT").headers["allow"] for path in ("/comments", "/login")
    )
    assert (200, "") == (served.get("/openapi.json", "HEAD").status, served.get("/openapi.json", "HEAD").text)


@pytest.mark.parametrize("path", ["/", "/openapi.json"])
@pytest.mark.parametrize(
    ("accepted", "sent"),
    [
        ("gzip;q=0", None),
        ("br, GZIP ; q=0.0", None),
        ("identity", None),
        ("", None),
        ("gzip", "gzip"),
        ("x, gzip;q=0.1", "gzip"),
    ],
)
def test_compression_is_as_asked(served, path, accepted, sent):
    """A client that refuses gzip gets none, and no encoding is named where there is none."""
    request = urllib.request.Request(f"{served.url.rstrip('/')}{path}", headers={"Accept-Encoding": accepted})
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert sent == answer.headers["content-encoding"]
        assert (sent is None) == answer.read().startswith((b"<!doctype", b"<!DOCTYPE", b"{"))


def test_foreign_host_name(served):
    """A page whose name was pointed at this machine's loopback address reads nothing."""
    assert 400 == served.get("/", Host="evil.example.com").status
    assert 200 == served.get("/", Host="localhost:9").status


def test_metrics(served):
    """A few numbers for each matrix and canary; no case is named."""
    text = served.get("/metrics").text
    at = '{device="Test CPU",matrix="serving"'
    assert "qualify_store_up 1.0" in text
    assert f"qualify_qualified{at}}} " in text
    assert f'qualify_cases{at},verdict="FAIL"}} ' in text
    assert f"qualify_coverage_ratio{at}}} " in text
    assert f"qualify_last_success_timestamp_seconds{at}}} " in text
    assert 'qualify_canary_advice{advice="roll back",canary="nightly"} 1.0' in text
    assert 'qualify_canary_holds{canary="nightly"} 1.0' in text
    assert 'qualify_alerts{state="dead"} 1.0' in text
    assert 'qualify_canary_trouble{lease="canary"} 1.0' in text
    assert 'qualify_canary_leader{lease="canary"} 1.0' in text
    (overdue,) = re.findall(
        r'^qualify_canary_overdue_seconds{canary="nightly",lease="canary"} (.*)$', text, re.MULTILINE
    )
    assert -3600 <= float(overdue) < 0
    (looked,) = re.findall(r'^qualify_canary_look_age_seconds{lease="canary",node=".*"} (.*)$', text, re.MULTILINE)
    assert 90 <= float(looked) < 3600
    assert "tiled-torch" not in text
    assert len(text.splitlines()) < 200


def test_a_machine_that_fires_by_hand_misses_no_service(tmp_path):
    """Cron's `qualify canary fire` leads for a moment: neither a leader nor a moment is missed afterwards."""
    with Store.open(str(tmp_path / "evidence.db")) as store:
        lease = store.canaries.acquire("canary", "by hand", 60)
        store.canaries.know_schedules(lease, {"nightly": "0 3 * * *"})
        store.canaries.plan(lease, {"nightly": store.canaries.now() - timedelta(days=2)})
        store.canaries.release(lease)
        by_hand = exposition(Site(store, {})).decode()
        store.canaries.release(store.canaries.acquire(own_lease("canary", "n"), "service", 60, node="n"))
        stopped = exposition(Site(store, {})).decode()
    assert not re.search(r"^qualify_canary_(leader|overdue_seconds|look_age_seconds){", by_hand, re.MULTILINE)
    assert 'qualify_canary_leader{lease="canary"} 0.0' in stopped
    assert re.search(r'^qualify_canary_overdue_seconds{canary="nightly",lease="canary"} 17280', stopped, re.MULTILINE)
    assert "qualify_canary_look_age_seconds{" not in stopped, "it was stopped properly"


def test_metrics_are_what_prometheus_reads(served):
    """The client library's own parser takes every line, and each name once."""
    from prometheus_client.parser import text_string_to_metric_families

    families = list(text_string_to_metric_families(served.get("/metrics").text))
    assert all(family.name.startswith("qualify") and family.documentation for family in families)
    assert len(families) == len({family.name for family in families})


def test_nothing_is_written(served):
    """Reading every page leaves the database as it was."""

    def content() -> list[str]:
        with closing(sqlite3.connect(served.address)) as connection, connection:
            lines = list(connection.iterdump())
        connection.close()
        return lines

    before = content()
    for path in (*PAGES, "/metrics", "/readyz"):
        served.get(path)
    assert before == content()


def test_many_at_once(served):
    """Thirty readers at the same time get whole pages."""
    with ThreadPoolExecutor(30) as pool:
        replies = list(pool.map(served.get, ["/runs/latest", "/", "/metrics"] * 10))
    assert {200} == {reply.status for reply in replies}
    assert all(reply.text.rstrip().endswith(("</html>", "0")) or "qualify_" in reply.text for reply in replies)


def test_garbage_on_the_wire(served):
    """What is no HTTP is refused, and the server goes on."""
    host, port = re.match(r"http://([\d.]+):(\d+)/", served.url).groups()
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n", b"A" * 100_000):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(garbage)
    assert 200 == served.get("/healthz").status


def test_new_run_is_seen(served, tmp_path):
    """The list is not remembered: what is stored a moment later is there."""
    from stored_runs import MATRIX, store_run

    (tmp_path / "other.yaml").write_text(MATRIX.replace("matrix: serving", "matrix: other"))
    with Store.open(served.address) as store:
        run = store_run(store, tmp_path / "other.yaml")
    assert run.id in served.get("/runs").text
    with Store.open(served.address) as store:
        store.retention.remove_run(run.id, by="jane", how="prune", reason="old")
    assert run.id not in served.get("/runs").text


@pytest.mark.parametrize("path", ["/runs.json", "/stacks", "/stacks.csv", "/runs/latest", "/fleets"])
def test_who_has_a_page_gets_nothing_again(served, path):
    """A program that asks with the tag of a page that did not change gets 304 and no body."""
    first = served.get(path)
    assert 304 == served.get(path, **{"If-None-Match": f'"other", {first.headers["etag"]}'}).status
    assert first.text == served.get(path, **{"If-None-Match": '"other"'}).text


def test_hostile_name_in_the_stack(served):
    """The report of a run whose library has a hostile name shows it as text."""
    page = served.get(f"/runs/{served.runs[1]}")
    assert "&lt;script&gt;alert(1)" in page.unbroken
    assert HOSTILE not in page.text


def test_cases_of_a_run(served):
    """The list is filtered and paged, in JSON and CSV as on the page; a case has its evidence; what lacks is 404."""
    run = served.runs[1]
    every = served.get(f"/runs/{run}/cases.json").data
    assert "qualify.run-cases/1" == every["schema"]
    assert len(served.get(f"/runs/{run}.json").data["cases"]) == every["total"] == len(every["cases"])
    failed = served.get(f"/runs/{run}/cases.json?verdict=FAIL&q=q8.k8+tiled").data
    assert ["✗ fail"] == [case["verdict"] for case in failed["cases"]]
    assert every["cases"][1:2] == served.get(f"/runs/{run}/cases.json?offset=1&limit=1").data["cases"]
    assert 'offset=2&amp;limit=1"' in served.get(f"/runs/{run}/cases?offset=1&limit=1").text
    assert f'href="/runs/{run}/cases.csv"' in served.get(f"/runs/{run}/cases?offset=1&limit=1").text
    assert 3 == len(served.get(f"/runs/{run}/cases.csv?limit=2").text.splitlines())
    assert 0 == served.get(f"/runs/{run}/cases.json?verdict=NOPE").data["total"]
    behind = served.get(f"/runs/{run}/cases.json?offset=900&limit=2").data
    assert (every["total"] - 2, every["cases"][-2:]) == (behind["offset"], behind["cases"])

    name = failed["cases"][0]["case"]
    report = next(case for case in served.get(f"/runs/{run}.json").data["cases"] if case["id"] == name)
    assert report == served.get(f"/runs/{run}/cases/{name}.json").data["case"]
    command = f"qualify repro {name} --run {run}"
    assert command == served.get(f"/runs/{run}/cases/{name}.json").data["repro"]
    assert f">{command}</pre>" in served.get(f"/runs/{run}/cases/{name}").unbroken
    passed = served.get(f"/runs/{run}/cases.json?verdict=PASS&limit=1").data["cases"][0]["case"]
    assert served.get(f"/runs/{run}/cases/{passed}.json").data["repro"] is None
    assert "qualify repro" not in served.get(f"/runs/{run}/cases/{passed}").unbroken
    for path in (f"/runs/nope/cases/{name}", "/runs/nope/cases", f"/runs/{run}/cases/nope", f"/runs/{run}/cases.txt"):
        assert 404 == served.get(path).status, path
    assert 400 == served.get(f"/runs/{run}/cases?offset=x").status
    data = served.get("/runs.json?offset=900&limit=2").data
    assert (2, [served.runs[0]]) == (data["offset"], [it["run"] for it in data["runs"]])


def test_the_csv_of_a_kernel_is_what_was_measured(served):
    """Not its findings, of which a good kernel has none; those of all kernels are a page with CSV of its own."""
    header = served.get("/kernels/tiled-torch.csv").text.splitlines()[0]
    assert ",".join(column.key for column in SHARES) == header

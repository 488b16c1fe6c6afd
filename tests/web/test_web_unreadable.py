"""A stored matrix that this qualify cannot read any more: the site says what is wrong with it, and goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from stored_runs import IDS, MATRIX, store_run
from web_examples import Served, serving

from qualify.store import Store


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A site with two runs, of which the newer one has a matrix with two keys that nobody knows."""
    folder: Path = tmp_path_factory.mktemp("torn")
    (folder / "serving.yaml").write_text(MATRIX)
    with Store.open(str(folder / "e.db")) as store:
        runs = [store_run(store, folder / "serving.yaml", age=timedelta(hours=age)).id for age in (2, 1)]
    with closing(sqlite3.connect(folder / "e.db")) as connection, connection:
        wrong = (MATRIX + "colours: [red]\nsizes: [8]\n", runs[1])
        connection.execute("UPDATE runs SET matrix_source = ? WHERE id = ?", wrong)
    with serving(str(folder / "e.db"), folder) as url:
        yield Served(url, str(folder / "e.db"), tuple(runs))


@pytest.mark.parametrize("path", ["", "/cases", f"/cases/{IDS[0]}", "/decision", "/against/{other}"])
def test_what_needs_the_verdict_says_what_is_wrong(torn, path):
    """One point for each problem, what there is all the same, and what to do; a program gets it in one line."""
    at = f"/runs/{torn.runs[1]}{path.format(other=torn.runs[0])}"
    reply = torn.get(at, Accept="text/html")
    assert 409 == reply.status
    assert f"<h1>409: run {torn.runs[1]} cannot be judged</h1>" in reply.unbroken
    problems = reply.unbroken.partition('<ul class="problems">')[2].partition("</ul>")[0].split("</li>")[:-1]
    assert ["colours", "sizes"] == [it.partition(": ")[2].partition(":")[0] for it in problems]
    for words in ("All evidence is still stored", "qualify run MATRIX", "with the one that made it"):
        assert words in reply.text
    if not path:
        told = torn.get(f"{at}.json")
        assert (409, True) == (told.status, told.data["error"].startswith(f"run {torn.runs[1]} cannot be judged: "))


def test_the_site_shows_what_it_says(torn):
    """The list has the run, the history of a case its outcome; the metrics count the run as not qualified."""
    assert [*torn.runs[::-1]] == [row["run"] for row in torn.get("/runs.json").data["runs"]]
    history = torn.get(f"/cases/{IDS[0]}.json").data["history"]
    assert [(torn.runs[1], "– not judged", "measured"), (torn.runs[0], "✓ pass", "measured")] == [
        (row["run"], row["verdict"], row["outcome"]) for row in history
    ]
    assert 200 == torn.get("/").status
    metrics = torn.get("/metrics")
    assert (200, True) == (metrics.status, 'qualify_qualified{device="Test CPU",matrix="serving"} 0.0' in metrics.text)
    assert 'qualify_last_success_timestamp_seconds{device="Test CPU",matrix="serving"}' in metrics.text

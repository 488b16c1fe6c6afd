"""A store without a run: no page takes that for good news, and each says what to type."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from stored_runs import MATRIX, real_age, shipped_kernels, store_run

from qualify.facts.overview import RunQuery
from qualify.facts.run import Conclusion
from qualify.report.sitepages.parts import PartsPage, render_parts, run_words
from qualify.web import verdicts
from qualify.web.site import Site

PAGES: dict[str, Callable[[Site], PartsPage]] = {
    "home": lambda site: site.home(),
    "runs": lambda site: site.runs(RunQuery()),
    "models": lambda site: site.models(),
    "findings": lambda site: site.findings(),
    "waivers": lambda site: site.waivers(),
    "stacks": lambda site: site.stacks(),
    "compare": lambda site: site.compare("", ""),
}


def good_news(text: str) -> list[str]:
    """What a page says that a reader takes for good news."""
    words = ("Nothing needs attention", "Nothing is wrong", "Nothing went wrong", "use no waiver", "No run matches")
    return [news for news in words if news in text]


@pytest.mark.parametrize("name", ["home", "findings", "waivers"])
def test_a_page_while_runs_are_being_judged(store, tmp_path, monkeypatch, name):
    """What nobody has judged yet is no good news, also beside a run that is judged and passed."""
    monkeypatch.setattr(verdicts, "SMALL", 0)  # no page waits until a run is judged
    (tmp_path / "serving.yaml").write_text(MATRIX)
    (tmp_path / "other.yaml").write_text(MATRIX.replace("matrix: serving", "matrix: other"))
    runs = [store_run(store, tmp_path / f"{matrix}.yaml", age=real_age(hours=1)) for matrix in ("serving", "other")]
    site = Site(store, shipped_kernels())
    site.verdicts.details(site.head(runs[1].id))
    text = render_parts(PAGES[name](site))
    assert [] == good_news(text)
    assert "Not known yet" in text
    for run in runs:
        site.verdicts.details(site.head(run.id))
        site.verdicts.summary(site.head(run.id))
    assert 1 == len(good_news(render_parts(PAGES[name](site))))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_without_a_run(store, tmp_path, name):
    """It says that none is stored, and the command that makes one; with a run it says that no longer."""
    site = Site(store, shipped_kernels())
    text = render_parts(PAGES[name](site))
    assert "No completed run is stored here. Make one: qualify run MATRIX" in text
    assert [] == good_news(text)
    (tmp_path / "serving.yaml").write_text(MATRIX)
    run = store_run(store, tmp_path / "serving.yaml", age=timedelta(hours=1))
    site.verdicts.details(site.head(run.id))
    site.verdicts.summary(site.head(run.id))
    assert "No completed run" not in render_parts(PAGES[name](site))


@pytest.mark.parametrize(
    ("verdict", "limits", "words"),
    [
        ("PASS", (), "– demonstration on a CPU"),
        ("PASS", ("killed",), "– demonstration on a CPU (killed)"),
        ("FAIL", (), "✗ fail (demonstration on a CPU)"),
        ("FAIL", ("a part of the matrix",), "✗ fail (demonstration on a CPU, a part of the matrix)"),
    ],
)
def test_a_verdict_on_a_demonstration_has_its_limits_on_every_page(verdict, limits, words):
    """The first page called a demonstration that failed a fail, as if it were one of the device that serves."""
    code = {"PASS": 0, "FAIL": 1}[verdict]
    conclusion = Conclusion(verdict=verdict, exit_code=code, judgements=(), cells=(), counts={}, demonstration=True)
    assert words == run_words(conclusion, *limits)
    assert "· being judged" == run_words(None)


def test_every_mark_of_a_trend_is_explained(store):
    """A demonstration that passed has a mark of its own."""
    (part,) = (it for it in Site(store, shipped_kernels()).home().parts if it.key == "states")
    marks = ("✓ pass", "✗ fail", "? inconclusive", "– demonstration on a CPU", "· being judged")
    assert [] == [mark for mark in marks if mark not in part.table.caption]

"""Backticks in texts: code in a page, as they are elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from markupsafe import escape
from stored_runs import MATRIX, shipped_kernels, store_run

from qualify.judge.signing import Person, comment
from qualify.report.names import parted
from qualify.report.quoted import with_code
from qualify.report.sitepages.parts import render_parts
from qualify.store import Store
from qualify.web.site import Site


@pytest.mark.parametrize(
    ("markup", "shown"),
    [
        ("<p>run `qualify run`.</p>", "<p>run <code>qualify run</code>.</p>"),
        ("`a` and `b`", "<code>a</code> and <code>b</code>"),
        (f"<td>`{escape('k<int>&')}`</td>", "<td><code>k&lt;int&gt;&amp;</code></td>"),
        (f"<td>{parted('`qualify coverage_of_a_long_name`')}</td>", "<code>qualify coverage_<wbr>of_<wbr>"),
        ('<p title="`a`">one ` alone</p>', '<p title="`a`">one ` alone</p>'),
        ("<pre>`a`</pre><svg><text>`b`</text></svg>", "<pre>`a`</pre><svg><text>`b`</text></svg>"),
        ("<code>`a`</code> ``b`` x`y`z ` c `", "<code>`a`</code> ``b`` x`y`z ` c `"),
        ("<p>`a<b>b</b>`</p>", "<p>`a<b>b</b>`</p>"),
        ("<script>if (a < b) `c`</script>`d`", "<script>if (a < b) `c`</script><code>d</code>"),
    ],
)
def test_what_stands_between_backticks_is_code_in_a_page(markup: str, shown: str) -> None:
    """In texts alone: attributes, pictures, scripts and what is code already stay as they are."""
    assert shown in with_code(markup)


def test_a_text_of_a_person_stays_a_text(store: Store, tmp_path: Path) -> None:
    """Between backticks, too, nothing becomes markup but the code around it."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    run = store_run(store, tmp_path / "serving.yaml")
    said = "try `<img src=x onerror=alert(1)>` and `qualify run`"
    comment(store, Person(name="jane", how="token 1"), run_id=run.id, case_id="", text=said, now=datetime.now(UTC))
    page = render_parts(Site(store, shipped_kernels()).decision(run.id, roles=(), may_write=False, proven=True))
    assert "try <code>&lt;img src=x onerror=alert(1)&gt;</code> and <code>qualify run</code>" in page.replace(
        "<wbr>", ""
    )

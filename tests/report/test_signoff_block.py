"""The sign-off block of the report: who signed what, what was revoked, and the command where nobody has."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

from cli_process import call
from report_examples import HOSTILE, Facts, everything, facts_of, grid, signed
from stored_runs import MATRIX, store_run

from qualify.cards.tokens import make_token
from qualify.facts.people import SignedOff
from qualify.facts.typed import Typed
from qualify.report.beside import Beside
from qualify.report.context import report_context
from qualify.report.page import render_html
from qualify.store.store import Store

SIGN = """qualify signoff 20261120T234500Z-1f3a9c --cards 'my cards' --role ROLE --reason REASON --access FILE"""
BUDGETS = "policy: {performance: {budgets: [{of: cell, percent: 5}]}}\n"


def good() -> Facts:
    """A run in which every case passed."""
    facts = facts_of(grid(("llama-3.1-8b.tp1",), (1024,), ("prefill",)))
    return replace(facts, run=replace(facts.run, select=""))


def text_of(facts: Facts, *signoffs: SignedOff, typed: Typed = Typed()) -> str:  # noqa: B008 (frozen)
    """What a reader sees of the block."""
    beside = Beside(signed=signoffs, typed=typed)
    html = render_html(report_context(facts.run, facts.records, facts.conclusion, beside)).replace("<wbr>", "")
    assert "<script>alert" not in html
    section = html[html.index('<section id="signoffs"') :]
    told = re.sub(r"<[^>]+>", " ", section[: section.index("</section>")])
    return re.sub(r"\s+", " ", unescape(told))


def test_nobody_has_signed_and_the_command_stands_there() -> None:
    """It finds the cards of this run, and not the store: pages travel."""
    text = text_of(good(), typed=Typed(cards=("my cards",), db="secret.db"))
    assert "Nobody has signed this evidence." in text
    assert SIGN in text
    assert "secret.db" not in text


def test_a_sign_off_of_a_demonstration_stands_for_no_gpu() -> None:
    """It may be signed, and the reader who would sign it is told what that is worth."""
    told = "This is a demonstration on a CPU: a sign-off of it answers for nothing on a GPU."
    shown = replace(good(), conclusion=replace(good().conclusion, demonstration=True))
    assert [False, True] == [told in text_of(facts) for facts in (good(), shown)]


def test_what_cannot_be_signed_says_why() -> None:
    """A run that failed, or a part of a matrix, has no command that would be refused."""
    failed = everything()
    text = text_of(replace(failed, run=replace(failed.run, select="")))
    assert "Nobody has signed this evidence, and nobody can: it is not qualified" in text
    assert "qualify signoff" not in text
    assert "the run was narrowed by --select or --kernel" in text_of(replace(good(), run=failed.run))


def test_a_signature_names_person_role_and_digest() -> None:
    """In force: no command is needed."""
    text = text_of(good(), signed("valid", HOSTILE))
    for part in ("✓ in force", HOSTILE, "release", "read the report", "ab12ab12ab12ab12", "sealed"):
        assert part in text
    assert "qualify signoff" not in text


def test_what_is_no_longer_in_force_says_so() -> None:
    """Revoked, or the evidence changed since: both stay, and somebody must sign again."""
    text = text_of(good(), signed("revoked"), signed("changed", number=8))
    assert "✗ revoked" in text
    assert "joe, 2026-11-21 04:00: wrong artifact" in text
    assert "! evidence changed since" in text
    assert "No sign-off is in force." in text
    assert "qualify signoff 20261120T234500Z-1f3a9c" in text


def test_the_report_of_a_stored_run_says_who_signed(tmp_path: Path) -> None:
    """First the command, then the person; and neither the block nor the command lets an exceeded budget be signed."""
    token, number, hashed = make_token()
    (tmp_path / "token").write_text(token)
    entry = {"id": number, "name": "jane", "hash": hashed, "rights": ["sign"], "expires": "2099-01-01"}
    access = {"access": "site", "tokens": [entry], "signers": [{"name": "jane", "roles": ["release"]}]}
    (tmp_path / "access.yaml").write_text(json.dumps(access))
    (tmp_path / "serving.yaml").write_text(MATRIX)
    (tmp_path / "timed.yaml").write_text(MATRIX.replace("serving", "timed") + BUDGETS)
    with Store.open(str(tmp_path / "evidence.db"), create=True) as store:
        run = store_run(store, tmp_path / "serving.yaml")
        late = store_run(store, tmp_path / "timed.yaml")
    options = ("--db", "evidence.db")

    def page() -> str:
        ended = call("report", run.id, *options, cwd=tmp_path)
        assert 0 == ended.code, ended.err
        return (tmp_path / "out" / run.id / "report.html").read_text()

    assert "Nobody has signed this evidence." in page()
    person = ("--token-file", "token", "--role", "release", "--reason", "read it", "--access", "access.yaml")
    assert 0 == call("signoff", run.id, *person, *options, cwd=tmp_path).code
    assert "✓ in force" in page()
    refused = call("signoff", late.id, *person, *options, cwd=tmp_path)
    assert (5, True) == (refused.code, "cannot be signed: there is no verdict on it" in refused.err)

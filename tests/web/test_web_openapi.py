"""The OpenAPI description and the real server: whatever schemathesis makes up, no answer is undescribed or a 500."""

from __future__ import annotations

import json
from collections.abc import Iterator

import hypothesis
import pytest
from web_examples import Served, fill, serving

from qualify.store import Store


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Iterator[Served]:
    """A site whose person on loopback may do everything."""
    folder = tmp_path_factory.mktemp("openapi")
    address = str(folder / "e.db")
    with Store.open(address) as store:
        runs = fill(store, folder)
    card = {"access": "site", "local": {"name": "jane"}, "signers": [{"name": "jane", "roles": ["release"]}]}
    (folder / "access.yaml").write_text(json.dumps(card))
    with serving(address, folder, "--access", folder / "access.yaml") as url:
        yield Served(url, address, runs)


def test_every_twin_is_described(local):
    """What a program can read and do stands in the description; pages for people do not."""
    paths = local.get("/openapi.json").data["paths"]
    assert {"/runs.json", "/runs/{run}.json", "/holds.json", "/cases/{case}.json", "/findings.json"} <= set(paths)
    writing = {path for path, methods in paths.items() if "post" in methods}
    assert {"/runs/{run}/signoffs", "/signoffs/{number}/revoke", "/comments", "/holds/{number}/{kind}"} == writing
    assert all(path.endswith(".json") for path in set(paths) - writing)


def test_no_answer_is_undescribed(local):
    """A few made-up requests of every operation: no 500, no status and no type that the description does not know."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    schema = schemathesis.openapi.from_url(f"{local.url}openapi.json")
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.specs.openapi.checks.status_code_conformance,
        schemathesis.specs.openapi.checks.content_type_conformance,
        schemathesis.specs.openapi.checks.response_schema_conformance,
    ]
    for found in schema.get_all_operations():
        operation = found.ok()

        @hypothesis.settings(
            max_examples=5,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def one(case):
            case.headers = {"Sec-Fetch-Site": "same-origin", "Accept": "application/json"}
            case.validate_response(case.call(), checks=checks)

        one()

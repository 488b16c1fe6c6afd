"""Prometheus' rules and Grafana's dashboard ask only for metrics that `qualify web` has; promtool runs their tests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from qualify.store import Store
from qualify.web.metrics import exposition
from qualify.web.site import Site

ROOT = Path(__file__).resolve().parents[2]
RULES = YAML(typ="safe").load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"][0]["rules"]
RULE_TESTS = ("rules_test.yml", "rules_days_test.yml")
TESTS = [
    test
    for name in RULE_TESTS
    for test in YAML(typ="safe").load((ROOT / "deploy/prometheus" / name).read_text())["tests"]
]
DASHBOARD = json.loads((ROOT / "deploy/grafana/qualify.json").read_text())
NAME = re.compile(r"\bqualify_[a-z_]+")


@pytest.fixture(scope="module")
def metrics(tmp_path_factory) -> set[str]:
    """Names of all metrics, which are there without evidence, too."""
    with Store.open(str(tmp_path_factory.mktemp("metrics") / "evidence.db")) as store:
        text = exposition(Site(store, {})).decode()
    return set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_rules_ask_for_what_there_is(rule, metrics):
    """Names, a severity, words for a person, and a test of its own."""
    assert set(NAME.findall(rule["expr"])) <= metrics
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert {"summary", "description"} == set(rule["annotations"])
    firing = str([test for test in TESTS if not test["name"].startswith("a healthy")])
    assert rule["alert"] in firing or any(
        re.search(glob, rule["alert"]) for glob in re.findall(r"Qualify\w+\.\*", firing)
    )


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_dashboard_asks_for_what_there_is(panel, metrics):
    """Every panel has a query on existing metrics, and its place."""
    (target,) = panel["targets"]
    names = set(NAME.findall(target["expr"]))
    assert names
    assert names <= metrics
    assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_dashboard_panels_are_apart():
    """Unique ids, and no two in one place."""
    panels = DASHBOARD["panels"]
    assert len(panels) == len({panel["id"] for panel in panels})
    places = [
        (column, row)
        for panel in panels
        for column in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for row in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))


@pytest.mark.slow
def test_promtool():
    """The rules fire when they should, and not before; the configuration is valid."""
    promtool = shutil.which("promtool") or pytest.skip("no promtool on the PATH: apt-get install prometheus")
    folder = ROOT / "deploy" / "prometheus"
    for command in (["check", "config", "--syntax-only", "prometheus.yml"], ["test", "rules", *RULE_TESTS]):
        done = subprocess.run([promtool, *command], cwd=folder, capture_output=True, text=True, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr

"""Every page of the site in a real Chromium: axe finds nothing in either theme, nothing overflows a phone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from chromium import IN_CHROMIUM, VIOLATIONS, launched
from stored_runs import NOW
from web_examples import DUEL, HOSTILE, Served, fill, serving

from qualify.facts.case import Level
from qualify.facts.checks import CHECK_VERSION, CHECKS
from qualify.facts.selftest import CorrectKernel, Detection, PlantedFault, SelfTest
from qualify.store import Store

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

pytestmark = list(IN_CHROMIUM)
CASE = "toy.tp1/prefill/b1.q8.k8/fp32/causal/tiled-torch"
CUT = "[...document.querySelectorAll('.wide:has(> .stacked)')].some((it) => it.scrollWidth > it.clientWidth)"
"""whether a table whose rows are lists is wider than its place"""
LOW = """[...document.querySelectorAll(':is(nav, .counts, footer, .links, td) a, summary')]
    .map((it) => [it.textContent, it.getBoundingClientRect()])
    .filter(([, box]) => box.width && box.height < 24).map(([text]) => text)"""
"""links outside of sentences, and what opens a part, that are less than 24 pixels high"""
PHONE = 360
LOOKS = (
    ("light", 1280, {}),
    ("dark", 1280, {"runOnly": {"type": "rule", "values": ["color-contrast"]}}),
    ("dark", PHONE, {}),
)
"""theme, pixels of width, and axe's options"""
PATHS = (
    "",
    "runs",
    "runs/{run}/decision",
    "runs/{worse}/cases",
    f"runs/{{worse}}/cases/{CASE}",
    "compare",
    "models",
    "models/toy.tp1",
    "kernels",
    "kernels/tiled-torch",
    f"cases/{CASE}",
    "findings",
    "waivers",
    "stacks",
    "stacks/{stack}",
    "duels",
    f"duels/{DUEL}",
    "runs/{run}",
    "runs/{worse}/against/{run}",
    "fleets",
    "fleets/f-1",
    "canaries",
    "canaries/nightly",
    "holds",
    "holds/1",
    "selftest",
    "audit",
    "login",
    "nope",
)


def make_selftest() -> SelfTest:
    """A result with as many checks as the kill table has columns."""
    names = tuple(it.name for it in CHECKS)
    levels: tuple[Level, ...] = ("smoke", "full")
    caught = tuple(Detection(level=level, cases=2, caught_by=names, example=HOSTILE) for level in levels)
    missed = tuple(replace(it, caught_by=(), example="") for it in caught)
    faults = [
        PlantedFault(name=name, kind="A", mirrors="x#1", does=HOSTILE, equivalent="", detections=detections)
        for name, detections in (("causal-plus-1", caught), ("never-seen", missed))
    ]
    return SelfTest(
        check_version=CHECK_VERSION,
        qualify_version="0.1.0",
        levels=levels,
        select="",
        started_at=NOW,
        wall_s=200.0,
        faults=tuple(faults),
        correct=(CorrectKernel(name="plain", does="as it is", runs=1200, alarms=()),),
    )


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Iterator[Served]:
    """A site whose person on loopback may do everything, and did some of it."""
    folder = tmp_path_factory.mktemp("local")
    address = str(folder / "e.db")
    with Store.open(address) as store:
        runs = fill(store, folder)
        store.add_selftest(make_selftest())
    card = {"access": "site", "local": {"name": "jane"}, "signers": [{"name": "jane", "roles": ["release"]}]}
    (folder / "access.yaml").write_text(json.dumps(card))
    with serving(address, folder, "--access", folder / "access.yaml") as url:
        served, same = Served(url, address, runs), {"Sec-Fetch-Site": "same-origin"}
        assert 201 == served.post("/comments", {"case": CASE, "text": HOSTILE}, **same).status
        assert 201 == served.post("/holds/1/acknowledge", {"reason": HOSTILE}, **same).status
        yield served


@pytest.fixture(scope="module")
def page(local) -> Iterator:
    """A page of the browser, and whatever it complained about."""
    with launched() as browser:
        opened, trouble = browser.new_page(), []
        opened.add_init_script(axe.Axe().axe_script)  # sent once, not to each page
        opened.on("console", lambda message: trouble.append(message.text))
        opened.on("pageerror", lambda error: trouble.append(str(error)))
        opened.on("dialog", lambda dialog: trouble.append(f"dialog {dialog.message}"))
        yield opened, trouble
        browser.close()


def test_axe_finds_nothing(local, page):
    """No violation of WCAG, no page wider than its window, no script of a name: in either theme, and on a phone.

    Of the rules only contrast depends on the theme, so the second theme of a desk is asked for that alone.
    """
    opened, trouble = page
    stack = local.get("/runs.json").data["runs"][0]["stack"]
    assert 200 == local.get(f"/stacks/{stack}").status
    names = {"run": local.runs[0], "worse": local.runs[1], "stack": stack}
    found, wide, cut, low = {}, [], [], []
    _look(opened, *LOOKS[0][:2])
    # A page is opened in the look in which the one before it was left: every second one sees them backwards.
    for path, looks in zip(PATHS, itertools.cycle((LOOKS, LOOKS[::-1])), strict=False):
        opened.goto(local.url + path.format(**names))
        for theme, width, rules in looks:
            _look(opened, theme, width)
            wide += [(path, width)] if opened.evaluate("document.documentElement.scrollWidth") > width else []
            cut += [path] if width == PHONE and opened.evaluate(CUT) else []
            low += [(path, text) for text in opened.evaluate(LOW)] if width == PHONE else []
            violations = opened.evaluate(VIOLATIONS, rules)
            if violations:
                found[path, theme, width] = [
                    (it["id"], [node["html"][:200] for node in it["nodes"][:2]]) for it in violations
                ]
    assert {} == found
    assert [] == wide, "tables scroll within themselves"
    assert [] == cut, "rows that stand as lists on a phone fit it"
    assert [] == low, "a thumb hits each link"
    assert [] == [it for it in trouble if "404" not in it]


def _look(opened, theme, width):
    """A page in that theme and so many pixels wide."""
    opened.emulate_media(color_scheme=theme)
    opened.set_viewport_size({"width": width, "height": 800})


def test_parts_of_the_site_take_no_style_of_the_report(local, page):
    """They are printed, and look like parts, whatever the names of the report's own sections and buttons are."""
    opened, _ = page
    names = {"run": local.runs[0], "worse": local.runs[1]}
    looks = "getComputedStyle(it).display + ' ' + getComputedStyle(it).borderRadius"
    opened.emulate_media(media="print")
    found = {}
    for path in ("runs/{worse}/cases", f"runs/{{worse}}/cases/{CASE}", f"cases/{CASE}", "kernels/tiled-torch"):
        opened.goto(local.url + path.format(**names))
        found |= opened.evaluate(
            f"Object.fromEntries([...document.querySelectorAll('main > section')].map((it) => [it.id, {looks}]))"
        )
    opened.emulate_media(media="screen")
    assert {"cases", "more"} <= set(found)
    assert {"block 0px"} == set(found.values())


def test_a_person_signs_in_the_browser(local, page):
    """The forms work under the policy: a sign-off, its place in the report, a revocation, a release of a hold.

    On loopback no token proves the person, so the sign-off says that.
    """
    opened, trouble = page
    opened.goto(f"{local.url}runs/{local.runs[0]}")
    opened.get_by_role("link", name="Sign, revoke or comment").click()
    form = opened.get_by_role("form", name="Sign", exact=True)
    form.get_by_label("Reason").fill(HOSTILE)
    form.get_by_role("button").click()
    sync_api.expect(opened.get_by_role("cell", name="unproven")).to_be_visible()
    opened.goto(f"{local.url}runs/{local.runs[0]}")
    sync_api.expect(opened.locator("#signoffs").get_by_text("unproven")).to_be_visible()
    opened.get_by_role("link", name="Sign, revoke or comment").click()
    ended = opened.get_by_role("form", name="Revoke sign-off 1 of jane as release")
    ended.get_by_label("Reason").fill("the wrong run")
    ended.get_by_role("button").click()
    sync_api.expect(opened.get_by_role("cell", name="✗ revoked")).to_be_visible()
    opened.goto(f"{local.url}holds/1")
    release = opened.get_by_role("form", name="Release")
    release.get_by_label("Reason").fill("a false alarm")
    release.get_by_role("button").click()
    sync_api.expect(opened.get_by_role("cell", name="✓ released")).to_be_visible()
    opened.goto(f"{local.url}runs")
    opened.get_by_label("Id, matrix, device or stack").fill(local.runs[1])
    opened.get_by_role("button", name="Search").click()
    sync_api.expect(opened.get_by_role("heading", name="Stored runs")).to_contain_text("1 to 1 of 1")
    assert [] == [it for it in trouble if "404" not in it]

"""The log of the service: its two forms, and what a follower says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from service_process import Place, wait_for

from qualify.canary.log import plain_log, service_log

MOMENT = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_a_line_of_text_has_time_and_level() -> None:
    """In columns."""
    lines: list[str] = []
    log = service_log(lines.append, "text", node="n")
    log.info("leads with epoch %d", 1)
    log.warning("hold")
    assert re.fullmatch(rf"{MOMENT} info    leads with epoch 1", lines[0])
    assert re.fullmatch(rf"{MOMENT} warning hold", lines[1])


def test_a_line_of_json_is_one_object() -> None:
    """Whatever the words hold; with what the line is about."""
    lines: list[str] = []
    log = service_log(lines.append, "json", node="n", lease="gpu")
    log.error("two\nlines %s", "\ud800", extra={"canary": "nightly", "fire": 3})
    (line,) = lines
    assert "\n" not in line
    found = json.loads(line)
    assert re.fullmatch(MOMENT, found.pop("time"))
    assert {
        "level": "error", "node": "n", "lease": "gpu", "canary": "nightly", "fire": 3, "message": "two\nlines \ud800",
    } == found  # fmt: skip


def test_a_person_reads_words_alone() -> None:
    """As before."""
    lines: list[str] = []
    plain_log(lines.append).info("%s fires", "nightly")
    assert ["nightly fires"] == lines


def test_followers_say_that_they_follow(sqlite_place: Place) -> None:
    """Whom, since when; once; and all of a service's log is JSON where it is asked for, what libraries print too."""
    place = sqlite_place
    place.canary("good", "correct", select="no-such-case")
    first = place.start("n1", "--log", "json")
    first.said("leads with epoch 1")
    second = place.start("n2", "--log", "json")
    second.said("follows n1/")
    place.until(place.ask("good"), "failed")
    first.process.kill()
    second.said("leads with epoch 2")
    third = place.start("n3")
    third.said("follows n2/")
    for replica in (first, second):
        lines = [json.loads(line) for line in str(replica).splitlines()]
        assert {replica.name} == {line["node"] for line in lines}
    assert 1 == str(second).count("follows n1/")
    ended = [line for line in map(json.loads, str(first).splitlines()) if line.get("fire")]
    assert "warning" == ended[-1]["level"]
    assert re.match(rf"{MOMENT} info    follows n2/", str(third))
    wait_for(lambda: "takes over when the leader is silent" in str(third), "its words", 1, third)


def test_another_form_is_refused(tmp_path: Path) -> None:
    """Exit 2."""
    from cli_process import call

    ended = call("canary", "serve", "--log", "xml", cwd=tmp_path)
    assert 2 == ended.code
    assert "--log" in ended.err

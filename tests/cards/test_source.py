"""Reading a file: data, places, and every way in which a file can be wrong."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qualify.cards.places import dotted
from qualify.cards.plain_text import LIMIT_BYTES, LIMIT_LINE
from qualify.cards.plain_yaml import plain_scalar
from qualify.cards.source import read
from qualify.errors import CardError


def message(path: Path) -> str:
    """The only problem of a file that cannot be read, with its place relative to the folder."""
    with pytest.raises(CardError) as caught:
        read(path)
    assert 1 == len(caught.value.problems)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_places_of_keys_and_values(write: Any) -> None:
    """Every key and value has the line and column where it starts, from 1."""
    source = read(write("a:\n  b: [1, x]\n  c:\n    - {d: 2}\n"))
    assert {"a": {"b": [1, "x"], "c": [{"d": 2}]}} == source.data
    expected = {
        (): (1, 1),
        ("a",): (2, 3),
        ("a", "b"): (2, 6),
        ("a", "b", 0): (2, 7),
        ("a", "b", 1): (2, 10),
        ("a", "c"): (4, 5),
        ("a", "c", 0): (4, 7),
        ("a", "c", 0, "d"): (4, 11),
    }
    assert expected == source.values
    assert {("a",): (1, 1), ("a", "b"): (2, 3), ("a", "c"): (3, 3), ("a", "c", 0, "d"): (4, 8)} == source.keys


def test_a_key_without_a_value_has_the_place_of_the_key(write: Any) -> None:
    """The parser names the place of what comes next."""
    source = read(write("a:\nb: {c: , d: ~}\n"))
    assert [(1, 1), (2, 5), (2, 13)] == [source.values[where] for where in (("a",), ("b", "c"), ("b", "d"))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("off", "off"),
        ("12", 12),
        ("-3", -3),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("9.0", 9.0),
        ("1e-5", 1e-5),
        (".5", 0.5),
        ("-inf", "-inf"),
        ("-.inf", -math.inf),
        ("2026-01-01", "2026-01-01"),
        ("1:30", "1:30"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_follow_the_core_schema(text: str, expected: object) -> None:
    """Plain scalars are typed as YAML 1.2 says, not as YAML 1.1 or Python do."""
    assert (type(expected), expected) == (type(plain_scalar(text)), plain_scalar(text))


def test_quoted_scalars_are_text(write: Any) -> None:
    """A quoted number stays text."""
    assert {"a": "9.0", "b": "true"} == read(write("a: \"9.0\"\nb: 'true'\n")).data


def test_json_gives_data_and_places(write: Any) -> None:
    """A .json file is read as JSON and has places too, tabs or not."""
    source = read(write('{\n\t"a": [1,\n\t2]}', "m.json"))
    assert {"a": [1, 2]} == source.data
    assert (3, 2) == source.values["a", 1]


def test_byte_order_mark_is_skipped(write: Any) -> None:
    """A UTF-8 byte order mark does not become part of the first key."""
    assert {"a": 1} == read(write(b"\xef\xbb\xbfa: 1\n")).data


def test_windows_line_ends(write: Any) -> None:
    """CR LF ends a line like LF."""
    source = read(write(b"a: 1\r\nb: 2\r\n"))
    assert ({"a": 1, "b": 2}, (2, 4)) == (source.data, source.values["b",])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a:\n\tb: 1\n", "card.yaml:2:1: a tab; YAML indents with spaces, so replace it"),
        (b"a: \xff\n", "card.yaml:1:4: is not UTF-8: byte 0xff; save it as UTF-8"),
        ("é: 1\n".encode("utf-16"), "card.yaml: is UTF-16; save it as UTF-8"),
        (b"\x7fELF\0", "card.yaml: is a binary file (it holds a zero byte); give a YAML or JSON text file"),
        (b"a: 1\nb\x01", "card.yaml:2:2: a character that YAML forbids (0x1); remove it"),
        (
            "a: 1\n---\nb: 2\n",
            "card.yaml:2:1: starts a second document; one file holds one card, so split it at the ---",
        ),
        ("a: !!python/object:os.system x\n", "has the tag tag:yaml.org,2002:python/object:os.system; cards hold plain"),
        ("a: !t x\n", "card.yaml:1:4: has the tag !t; cards hold plain values"),
        ("a: *b\n", "card.yaml:1:4: refers to *b, but no &b ends before it; put text that begins with * in quotes"),
        ("a: * 2 * * *\n", "while scanning an alias that starts in line 1; put text that begins with * in quotes"),
        ("a: [*]\n", "while scanning an alias that starts in line 1; put text that begins with * in quotes"),
        ("z: 1\na:[b]\nc: d\n", "while scanning a simple key that starts in line 2; write a space after the colon of"),
        (
            "a: {b:[1]}\n",
            "but got '[' while parsing a flow mapping that starts in line 1; close each bracket, and writ",
        ),
        ("a: &b [*b]\n", "card.yaml:1:8: refers to *b, but no &b ends before it"),
        ("[a]: 1\n", "card.yaml:1:1: is a list, mapping or alias used as a key; a key must be text"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "card.yaml:3:3: is a merge key, which cards do not have: write the keys"),
        ("a: b: c\n", "card.yaml:1:5: is not valid YAML: mapping values are not allowed here; a value that holds"),
        ("  a: 1\nb: 2\n", "card.yaml:2:1: is not valid YAML: expected '<document start>'"),
        ("  a: 1\nb: 2\n", "; what stands before it ended there: check the indentation of both"),
        ("a: @x\n", "found character '@' that cannot start any token"),
        ("a: [1, 2\n", "card.yaml:2:1: is not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: 'x\n", "while scanning a quoted scalar that starts in line 1"),
        ("%YAML 3.0\n---\na: 1\n", "found incompatible YAML document"),
        ('a: "\\ud800"\n', "card.yaml:1:4: holds an escape that is half of a character"),
        ("a" * (LIMIT_BYTES + 1), f"card.yaml: is larger than {LIMIT_BYTES} bytes"),
        ("a: 1\n" + "b" * (LIMIT_LINE + 1), f"card.yaml:2:1: has a line of {LIMIT_LINE + 1} characters"),
    ],
)
def test_unreadable_content(write: Any, content: object, expected: str) -> None:
    """What is not a single plain YAML document gives one error that says where and what to do."""
    assert expected in message(write(content))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"a": 1,}', "m.json:1:8: is not valid JSON: JSON has no comma before"),
        ("a: 1", "m.json:1:1: is not valid JSON: Expecting value; this looks like YAML, and it must be JSON"),
        ("just text", "m.json:1:1: is not valid JSON: Expecting value; this looks like plain text, and it must be"),
        ('{"a": NaN}', "m.json:1:7: a: is NaN, and JSON has no such number; leave the key out"),
        ('{"NaN": "NaN",\n "b": [1, -Infinity]}', "m.json:2:11: b[1]: is -Infinity, and JSON has no such number"),
        ("", "m.json:1:1: is not valid JSON: Expecting value: the file is empty"),
        ("<!DOCTYPE html><html>", "m.json:1:1: is not valid JSON: Expecting value: this is a web page"),
        ("version https://git-lfs.github.com/spec/v1\n", "Expecting value: this is a pointer of Git LFS"),
        ("// a\n{}", "m.json:1:1: is not valid JSON: Expecting value; JSON has no comments"),
        ("{'a': 1}", "m.json:1:2: is not valid JSON: Expecting property name"),
        ("{'a': 1}", 'JSON quotes with " alone'),
        ('{"a": [1,]}', "JSON has no comma before the end of a mapping or list"),
        ('{"a": 1', "the file ends too early"),
        ('{"a": "b', "m.json:1:7: is not valid JSON: Unterminated string starting at; its closing quote is"),
        ("{} {}", "m.json:1:4: is not valid JSON: Extra data; the file holds more than one value, so keep one"),
        ("a: 1", "Expecting value; this looks like YAML, and it must be JSON"),
        ("\n---\na: 1", "m.json:2:1: is not valid JSON: "),
        ('{"' + "k" * 1025 + '": 1}', "m.json:1:1029: ends a key of more than 1024 characters; shorten it"),
        ('{"a": }', "m.json:1:7: is not valid JSON: Expecting value"),
        (
            '{\n "a": ' + "9" * 4301 + "}",
            "m.json:2:7: holds a number of 4301 digits; nothing that a model has is so large",
        ),
        ("[" * 50_000, "m.json: is nested deeper than 32 levels"),
        ("[" * 40 + "]" * 40, "is nested deeper than 32 levels"),
    ],
)
def test_json_must_be_json(write: Any, content: str, expected: str) -> None:
    """A .json file with YAML in it is refused."""
    assert expected in message(write(content, "m.json"))


@pytest.mark.parametrize("opening", ["[", "- ", "{a: "])
def test_depth_is_limited(write: Any, opening: str) -> None:
    """Endless nesting ends at the limit, not in the interpreter's recursion limit."""
    assert "is nested deeper than 32 levels" in message(write(opening * 5000))


def test_alias_bomb_is_counted(write: Any) -> None:
    """Ten aliases of ten aliases of ten … are refused by what they stand for."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "is past the limit of 50000 values in one file, aliases written out" in message(write("\n".join(lines)))


def test_long_lists_are_counted(write: Any) -> None:
    """More values than any card has are refused."""
    assert "is past the limit of 50000 values" in message(write("- 1\n" * 50_001))


def test_small_aliases_work(write: Any) -> None:
    """An alias stands for its anchor's value; its place is its own."""
    source = read(write("a: &x [1, 2]\nb: *x\n"))
    assert {"a": [1, 2], "b": [1, 2]} == source.data
    assert ("card.yaml:2:4") == str(source.place(("b", 1))).rpartition("/")[2]


def test_duplicate_keys_are_collected(write: Any) -> None:
    """Every duplicate key is a problem that names both places; the first value stays."""
    path = write("a: 1\nb: {c: 1, c: [2, {e: 1, e: 2}]}\na: 3\n")
    source = read(path)
    assert {"a": 1, "b": {"c": 1}} == source.data
    assert [
        f"{path}:2:11: b.c: is given twice, first at {path}:2:5; keep one of them",
        f"{path}:3:1: a: is given twice, first at {path}:1:1; keep one of them",
    ] == [f"{place}: {text}" for place, text in source.problems]


def test_files_that_are_none(tmp_path: Path) -> None:
    """A missing file, a folder, a device and an impossible name are told apart."""
    assert "no such file; check the path" in message(tmp_path / "missing.yaml")
    (tmp_path / "nightly.yaml").touch()
    assert "perhaps you meant nightly.yaml; check the path" in message(tmp_path / "nigthly.yaml")
    (tmp_path / "n.yaml").touch()
    (tmp_path / "m.yaml").touch()
    assert "perhaps you meant m.yaml; check the path" in message(tmp_path / "M.yaml")
    (tmp_path / "broken-link.yaml").symlink_to("gone")
    assert "is a link to a file that is not there: gone; check" in message(tmp_path / "broken-link.yaml")
    assert "is a folder; give a file" in message(tmp_path)
    assert "is not a regular file" in message(Path("/dev/null"))
    assert "File name too long" in message(tmp_path / ("x" * 300))


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    """A named pipe that nobody writes to is refused at once."""
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "pipe.yaml: is not a regular file (a pipe); give a file" == message(tmp_path / "pipe.yaml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(write: Any) -> None:
    """A file that may not be read says so."""
    path = write("a: 1")
    path.chmod(0)
    assert "no permission to read it" in message(path)


def test_dotted_quotes_strange_keys() -> None:
    """A way is written as people write it; keys with other characters are quoted and cut."""
    assert "phases.decode.page_size[1]" == dotted(("phases", "decode", "page_size", 1))
    assert 'a."b c"' == dotted(("a", "b c"))
    assert 70 > len(dotted(("x" * 1000,)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(st.text(alphabet=st.sampled_from("abk:-[]{}&*!#|>'\"%@`?,. \n\t0~<\\\u00e9\x85\u2028"), max_size=60))
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    """Whatever a file holds, the answer is data or a CardError."""
    path = tmp_path / "any.yaml"
    path.write_bytes(text.encode())
    try:
        source = read(path)
    except CardError as error:
        assert error.problems
    else:
        assert () in source.values or source.data is None

"""Logs of requests in the shapes in which they are published."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualify.cards.request_log import _steps, read_log, upper, write_traffic
from qualify.cards.traffic import load_traffic
from qualify.errors import CardError, UsageError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.03,17,1\n"
MOONCAKE = '{"timestamp": 2748, "input_length": 374, "output_length": 44}\n\n{"input_length": 17, "output_length": 1}\n'
USAGE = (
    '{"id": "a", "usage": {"prompt_tokens": 374, "completion_tokens": 44}}\n'
    '{"usage": {"prompt_tokens": 17, "completion_tokens": 1}}\n'
)


@pytest.mark.parametrize(
    ("name", "text"), [("azure.csv", AZURE), ("mooncake.jsonl", MOONCAKE), ("usage.jsonl", USAGE)], ids=lambda x: x[:9]
)
def test_published_shapes(tmp_path: Path, name: str, text: str) -> None:
    """Two requests: one of 374 tokens with 43 decode steps, one of 17 whose answer came with its prompt."""
    path = tmp_path / name
    path.write_text(text)
    found = read_log(path)
    assert (2, 0, {512: 1, 32: 1}, {512: 43}) == (found.requests, found.empty, found.prompts, found.steps)


@given(prompt=st.integers(1, 5000), output=st.integers(0, 5000))
def test_steps_are_those_of_one_context_after_the_other(prompt: int, output: int) -> None:
    """Counting by ranges is counting one by one."""
    expected: dict[int, int] = {}
    for context in range(prompt + 1, prompt + output):
        expected[upper(context)] = expected.get(upper(context), 0) + 1
    assert expected == _steps(prompt, output)


def test_buckets_end_at_powers_of_two() -> None:
    """The bucket of a length holds it, and is not twice as long but for the shortest."""
    assert [16, 16, 32, 64, 64, 128] == [upper(length) for length in (1, 16, 17, 33, 64, 65)]


def test_what_is_written_loads(tmp_path: Path) -> None:
    """The file is a traffic file; calls of a batch are fewer than its steps. Nothing is written over another file."""
    log, out = tmp_path / "log.csv", tmp_path / "chat.yaml"
    log.write_text(AZURE + "x,0,5\n")
    histogram = read_log(log)
    assert 1 == histogram.empty
    assert 3 == write_traffic(histogram, name="chat", log=log.name, batch=8, page_size=16, out=out)
    card, _ = load_traffic(out)
    assert [("prefill", 1, 1.0), ("prefill", 1, 1.0), ("decode", 8, 43 / 8)] == [
        (bucket.phase, bucket.batch, bucket.weight) for bucket in card.buckets
    ]
    assert "2 requests, 1 without a prompt left out" in card.source
    text = out.read_text()
    out.write_text(text[:90])  # of a command that was killed
    assert 3 == write_traffic(histogram, name="chat", log=log.name, batch=8, page_size=16, out=out)
    assert text == out.read_text()
    out.write_text(f"{text}# mine\n")
    with pytest.raises(UsageError, match="exists already, and is not what would be written"):
        write_traffic(histogram, name="chat", log=log.name, batch=8, page_size=16, out=out)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "when,prompt_tokens,completion_tokens\nx,12,-3\n", "a.csv:2:1: completion_tokens: must be a number"),
        ("a.csv", "prompt_tokens,completion_tokens\n1.5,3\n", "prompt_tokens: must be a number of tokens"),
        ("a.csv", "prompt_tokens,completion_tokens\n536870913,3\n", "0 to 536870912, but is"),
        ("a.csv", "prompt,answer\n1,3\n", "a.csv:1:1: has none of the columns prompt_tokens, ContextTokens"),
        ("a.csv", "prompt_tokens,answer\n1,3\n2,4\n", "a.csv:1:1: has none of the columns completion_tokens"),
        ("a.csv", "prompt_tokens,completion_tokens\n12\n", "a.csv:2:1: completion_tokens: has no value in this line"),
        ("a.csv", "prompt_tokens,completion_tokens\n", "holds no request"),
        ("a.csv", "", "holds no request"),
        ("a.jsonl", '{"input_length": 3, "output_length": 1}\nnonsense\n', "a.jsonl:2:1: is no JSON"),
        ("a.jsonl", "[1, 2]\n", "is no JSON object"),
        ("a.jsonl", '{"input_length": 99999999999, "output_length": 1}\n', "must be a number of tokens, 0 to"),
        ("a.jsonl", '{"input_length": true, "output_length": 1}\n', "but is true"),
        ("a.jsonl", '{"input_length": null, "output_length": 1}\n', "input_length: has no value in this line"),
        ("a.jsonl", '{"input_length": ' + "9" * 5000 + "}\n", "a.jsonl:1:1: is no JSON that can be read"),
        ("a.jsonl", '{"input_length": 3, broken\n', "a.jsonl:1:21: is no JSON: Expecting property name"),
        ("a.csv", "prompt_tokens,completion_tokens\n" + "9" * 5000 + ",1\n", "must be a number of tokens, 0 to"),
        (
            "a.csv",
            "prompt_tokens,completion_tokens\n-5,1\n",
            'must be a number of tokens, 0 to 536870912, but is "-5"',
        ),
        ("a.csv", "prompt_tokens,completion_tokens\n0,5\n", "holds no request with a prompt, and 1 without"),
        (
            "a.csv",
            "Prompt_Tokens,completion_tokens\n1,5\n",
            "it has Prompt_Tokens, completion_tokens; perhaps you meant",
        ),
        ("a.csv", "prompt_tokens;completion_tokens\n1;5\n", 'columns are separated by commas, not by ";"'),
        ("a.csv.gz", "1", "and unpack it first if it is compressed"),
        ("a.txt", "1 2\n", "must be a .csv or .jsonl file"),
        ("b.csv", None, "No such file"),
    ],
)
def test_logs_that_cannot_be_read(tmp_path: Path, name: str, text: str | None, expected: str) -> None:
    """A line, a column and a value, never a traceback."""
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_log(path)
    assert expected in str(caught.value)


def test_a_log_that_is_no_file(tmp_path: Path) -> None:
    """A pipe without a writer would wait for ever."""
    path = tmp_path / "log.csv"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="it is a pipe, and only a regular file is read"):
        read_log(path)


def test_a_line_without_end(tmp_path: Path) -> None:
    """A file without a line break is not read into memory to find one."""
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.truncate(8 << 30)  # takes no space on disk
    with pytest.raises(UsageError, match=r"log\.jsonl:1:1: is a line of more than 16777216 characters"):
        read_log(path)


def test_a_compressed_log_under_another_name(tmp_path: Path) -> None:
    """Its bytes are no text; the message says what to do."""
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(b"prompt_tokens,completion_tokens\n1,2\n"))
    with pytest.raises(UsageError, match=r"byte 0x8b is not UTF-8.*Unpack it"):
        read_log(path)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffprompt_tokens,completion_tokens\n10,3\n",
        "prompt_tokens,completion_tokens\r\n10,3\r\n",
        ",prompt_tokens,completion_tokens\n0,10,3\n",
        " prompt_tokens , completion_tokens\n 10, 3\n",
        '"prompt_tokens","completion_tokens","note"\n"10","3","a,\nb"\n',
        "prompt_tokens,completion_tokens\n10.0,3.0\n",
    ],
    ids=["mark", "crlf", "index", "spaces", "quotes", "floats"],
)
def test_tables_as_other_programs_write_them(tmp_path: Path, text: str) -> None:
    """A byte order mark, line ends, the index that pandas writes under no name, spaces, quotes, and floats."""
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    found = read_log(path)
    assert (1, {16: 1}, {16: 2}) == (found.requests, dict(found.prompts), dict(found.steps))


def test_a_bad_log_is_not_reported_line_by_line(tmp_path: Path) -> None:
    """Twenty wrong lines are enough to see what is wrong."""
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(json.dumps({"input_length": "x"}) for _ in range(1000)))
    with pytest.raises(CardError) as caught:
        read_log(path)
    assert 20 == len(caught.value.problems)

"""A log of requests to a histogram of calls: ``qualify traffic import``.

Each request is one prompt and its answer. The prompt is one call of the phase prefill; every further token of the
answer is one step of decode, over a context that grows by one. Lengths are rounded up to powers of two, because the
kernels choose their tiles and splits by such steps, and because a longer call is never faster.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import count
from pathlib import Path
from typing import Any

from qualify.cards.problems import meant, shown
from qualify.cards.source import check_new
from qualify.cards.words import NAME
from qualify.errors import CardError, InfrastructureError, Place, UsageError
from qualify.files import TAKEN, open_regular, write_new

PROMPT = ("prompt_tokens", "ContextTokens", "input_tokens", "input_length", "prompt_len", "input_len")
"""columns for the tokens of the prompt, as the usage of APIs, Azure's traces and Mooncake's traces name them; the first
that a row has counts"""
OUTPUT = ("completion_tokens", "GeneratedTokens", "output_tokens", "output_length", "output_len", "completion_len")
"""columns for the tokens of the answer, in the same order"""
SHORTEST = 16
"""upper end of the first bucket, tokens"""
MOST_TOKENS = 1 << 29
"""tokens of a prompt or of an answer: the bucket of both together is a length that a traffic file may have"""
_TOKENS = re.compile(r"([0-9]{1,10})(\.0*)?")
"""a whole number; a table that has gaps in the column writes it as 10.0"""
LONGEST_LINE = 1 << 24
"""characters; a request with all its prompt, as some logs have it, is shorter"""
PROBLEMS = 20
"""wrong lines that are reported before reading stops"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """What a log holds, in buckets."""

    requests: int
    prompts: Counter[int]
    """requests by the upper end of the prompt's bucket"""
    steps: Counter[int]
    """decode steps by the upper end of the context's bucket"""
    empty: int
    """requests without a prompt, which were left out"""


def read_log(path: Path) -> Histogram:
    """The histogram of a CSV or JSONL file.

    Raises:
        CardError: lines without usable lengths, each with its number.
        UsageError: the file cannot be read, or has no requests.
    """
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as stream:
            found = _count(path, stream)
    except UnicodeDecodeError as error:
        cause = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise UsageError(
            f"{path}: is not text ({cause}). Unpack it if it is compressed, or save it as UTF-8."
        ) from None
    except (OSError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path}: cannot be read as a log of requests: {reason}. Check the path.") from error
    if not found.requests:
        held = f"no request with a prompt, and {found.empty} without" if found.empty else "no request"
        raise UsageError(f"{path}: holds {held}. One line for each is expected, after a header where it is CSV.")
    return found


def _count(path: Path, stream: TextIOWrapper) -> Histogram:
    """The histogram of an open log. Raises CardError with the first lines that have no usable lengths."""
    prompts: Counter[int] = Counter()
    steps: Counter[int] = Counter()
    empty = 0
    problems: list[tuple[Place, str]] = []
    for line, given in _rows(path, _lines(path, stream)):
        try:
            row = _json_row(given) if isinstance(given, str) else given
            prompt, output = _length(row, PROMPT), _length(row, OUTPUT)
        except _WrongLineError as error:
            problems.append((Place(path=str(path), line=line, column=error.column), str(error)))
            if len(problems) >= PROBLEMS:
                break
            continue
        if not prompt:
            empty += 1
            continue
        prompts[upper(prompt)] += 1
        steps.update(_steps(prompt, output))
    if problems:
        raise CardError(problems)
    return Histogram(requests=prompts.total(), prompts=prompts, steps=steps, empty=empty)


def upper(length: int) -> int:
    """Upper end of the bucket of a length: the next power of two."""
    return max(SHORTEST, 1 << (length - 1).bit_length())


def _steps(prompt: int, output: int) -> Counter[int]:
    """Decode steps of one request by bucket: contexts from prompt + 1 to prompt + output - 1, ends included.

    The first token of an answer comes out of the prompt's own call.
    """
    steps: Counter[int] = Counter()
    first, last = prompt + 1, prompt + output - 1
    while first <= last:
        end = upper(first)
        steps[end] += min(end, last) - first + 1
        first = end + 1
    return steps


class _WrongLineError(ValueError):
    """A line that gives no lengths."""

    def __init__(self, message: str, column: int = 1) -> None:
        super().__init__(message)
        self.column = column


def _lines(path: Path, stream: TextIOWrapper) -> Iterator[str]:
    """The lines. Raises CardError for one so long that it would only fill the memory."""
    for number in count(1):
        text = stream.readline(LONGEST_LINE + 1)
        if not text:
            return
        if len(text) > LONGEST_LINE:
            message = f"is a line of more than {LONGEST_LINE} characters, which is no request; is it another file?"
            raise CardError([(Place(path=str(path), line=number, column=1), message)])
        yield text


def _rows(path: Path, stream: Iterator[str]) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
    """(line number, row) of each request; a row of JSONL is still text."""
    if path.suffix in {".jsonl", ".ndjson"}:
        for line, text in enumerate(stream, 1):
            if text.strip():
                yield line, text
    elif path.suffix == ".csv":
        reader = csv.DictReader(stream, skipinitialspace=True)
        header = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = header
        lacking = [names for names in (PROMPT, OUTPUT) if header and not set(names) & set(header)]
        if lacking:  # told once, for the header
            place = Place(path=str(path), line=1, column=1)
            raise CardError([(place, _without(names, header)) for names in lacking])
        for row in reader:
            yield reader.line_num, row
    else:
        packed = ", and unpack it first if it is compressed" if path.suffix in {".gz", ".zst", ".zip", ".xz"} else ""
        raise UsageError(f"{path}: must be a .csv or .jsonl file{packed}; its name says which it is")


def _json_row(text: str) -> Mapping[str, Any]:
    """The fields of a line; those of an API's ``usage`` stand beside the others. Raises _WrongLineError."""
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise _WrongLineError(f"is no JSON: {error.msg}", error.colno) from None
    except (ValueError, RecursionError):
        raise _WrongLineError("is no JSON that can be read: a number is too long, or it is nested too deep") from None
    if not isinstance(row, dict):
        raise _WrongLineError("is no JSON object, {…} with the lengths of one request")
    usage = row.get("usage")
    return {**row, **usage} if isinstance(usage, dict) else row


def _length(row: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The first of the columns that the row has, as a length. Raises _WrongLineError."""
    for name in names:
        if name in row:
            value = row[name]
            if value is None:
                raise _WrongLineError(f"{name}: has no value in this line, but must be a number of tokens")
            match = _TOKENS.fullmatch(str(value).strip())
            if match is None or int(match[1]) > MOST_TOKENS:
                raise _WrongLineError(f"{name}: must be a number of tokens, 0 to {MOST_TOKENS}, but is {shown(value)}")
            return int(match[1])
    raise _WrongLineError(_without(names, row))


def _without(names: Iterable[str], has: Iterable[Any]) -> str:
    """What a row or header lacks, what it has, and what may be the cause."""
    found = [str(name) for name in has][:8]
    near = next((hint for name in found for hint in [meant(name.lower(), names)] if hint), "")
    mark = next((mark for mark in (";", "\t", "|") if len(found) == 1 and mark in found[0]), "")
    hint = f"; columns are separated by commas, not by {shown(mark)}" if mark else near
    return f"has none of the columns {', '.join(names)}; it has {', '.join(found) or 'nothing'}{hint}"


def traffic_name(out: Path) -> str:
    """The name of the traffic, which is that of its file. Raises UsageError where it cannot be a name."""
    if not re.fullmatch(NAME, out.stem):
        raise UsageError(
            f"{out}: the file has the name of the traffic, so use lower-case letters, digits, . and - before .yaml"
        )
    return out.stem


def write_traffic(histogram: Histogram, *, name: str, log: str, batch: int, page_size: int, out: Path) -> int:
    """Write the histogram as a new traffic file; returns the number of buckets.

    Args:
        batch: sequences that are decoded together; a log of requests does not say it.
        page_size: keys per page of the cache; 0 = contiguous.
    """
    pages = f", page_size: {page_size}" if page_size else ""
    left_out = f", {histogram.empty} without a prompt left out" if histogram.empty else ""
    source = (
        f"{log}: {histogram.requests} requests{left_out}; lengths rounded up to powers of two; batch {batch} assumed"
    )
    lines = [
        f"traffic: {name}",
        f"source: {json.dumps(source)}",
        "buckets:",
        *(
            f"  - {{phase: prefill, seqlen: {end}, weight: {count}}}"
            for end, count in sorted(histogram.prompts.items())
        ),
        *(
            f"  - {{phase: decode, batch: {batch}, context: {end}{pages}, weight: {count / batch:.10g}}}"
            for end, count in sorted(histogram.steps.items())
        ),
    ]
    check_new(out)
    try:
        write_new(out, "\n".join(lines) + "\n")
    except FileExistsError:
        raise UsageError(f"{out}: {TAKEN}") from None
    except OSError as error:
        raise InfrastructureError(f"{out}: cannot be written: {error.strerror}. Choose another folder") from None
    return len(histogram.prompts) + len(histogram.steps)

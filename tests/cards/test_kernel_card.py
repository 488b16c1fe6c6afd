"""The kernel card: what it accepts, its defaults, and what it refuses with which words."""

from __future__ import annotations

from typing import Any

import pytest

from qualify.cards.kernel import EmptyRow, KernelCard
from qualify.cards.problems import validate
from qualify.cards.source import read
from qualify.cards.words import content_hash
from qualify.errors import CardError


def load(path: Any) -> KernelCard:
    """The card in a file."""
    return validate(read(path), KernelCard)


def messages(path: Any) -> list[str]:
    """The problems of a wrong card, without places."""
    with pytest.raises(CardError) as caught:
        load(path)
    assert all(place.line >= 1 for place, _ in caught.value.problems)
    return [text for _, text in caught.value.problems]


def test_defaults(write: Any, kernel: Any) -> None:
    """What a card leaves out has the documented value."""
    card = load(write(kernel({"options": ..., "claims.page_size": ..., "claims.batch": ...})))
    assert {} == card.options
    assert "same" == card.claims.head_dim_v
    assert (None, None) == (card.claims.page_size, card.claims.batch)
    assert 1e-5 == card.claims.lse.rel
    assert (False, "bottom_right") == (card.claims.batch_invariant, card.claims.alignment)
    assert () == card.witness.may_match
    assert (1, 1) == (load(write(kernel({"claims.head_dim": {"max": 64}}))).claims.head_dim.min, 1)


def test_one_value_may_stand_for_a_list(write: Any, kernel: Any) -> None:
    """A scalar is a list of one."""
    card = load(write(kernel({"shipped_by": "vllm>=0.24", "claims.masks": "full", "witness.must_match": ".+"})))
    assert (("vllm>=0.24",), ("full",), (".+",)) == (card.shipped_by, card.claims.masks, card.witness.must_match)


@pytest.mark.parametrize(
    ("out", "lse", "expected"),
    [
        ("0", "-inf", ("0", "-inf")),
        ("0.0", "-.inf", ("0", "-inf")),
        ("nan", "inf", ("nan", "inf")),
        (".nan", ".inf", ("nan", "inf")),
        ("any", "any", ("any", "any")),
    ],
)
def test_empty_row_is_words(write: Any, out: str, lse: str, expected: tuple[str, str]) -> None:
    """However YAML types 0, nan and -inf, the card has the words."""
    row = validate(read(write(f"{{out: {out}, lse: {lse}}}")), EmptyRow)
    assert expected == (row.out, row.lse)


def test_options_keep_their_types(write: Any, kernel: Any) -> None:
    """Options are numbers, booleans and text as written."""
    options = {"a": 3, "b": True, "c": 0.5, "d": "x"}
    card = load(write(kernel({"options": options})))
    assert [(3, int), (True, bool), (0.5, float), ("x", str)] == [(v, type(v)) for v in card.options.values()]


def test_call_needs_an_entry_and_no_distribution(write: Any, kernel: Any) -> None:
    """adapter: call takes its function from entry, and shipped_by may be left out."""
    card = load(write(kernel({"adapter": "call", "entry": "my_pkg.mod:attention", "shipped_by": ...})))
    assert ("my_pkg.mod:attention", ()) == (card.entry, card.shipped_by)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"adapter": "call"}, 'adapter: is call, so entry: "package.module:function" must say what to call'),
        ({"entry": "a.b:c"}, "entry: is used only with adapter: call, and the adapter is vllm_flash_attn"),
        ({"adapter": "call", "entry": "a.b"}, 'entry: must match ^[A-Za-z_][\\w.]*:[A-Za-z_][\\w.]*$, but is "a.b"'),
        (
            {"adapter": "call", "entry": "my_attn.py:attend"},
            "entry: names a file, and Python imports modules; write my_attn:attend",
        ),
        ({"shipped_by": ...}, "adapter: is vllm_flash_attn, so shipped_by must name the distribution"),
        ({"shipped_by": ["a>>1"]}, "shipped_by[0]: must be a PEP 508 requirement such as vllm>=0.24"),
        ({"kernel": "Flash"}, 'kernel: must match ^[a-z0-9][a-z0-9.-]*$, but is "Flash"'),
        ({"generation": "hoper"}, 'but is "hoper"; perhaps you meant hopper'),
        ({"requires.device": "cpu"}, "requires.compute_capability: belongs to CUDA devices, and device is cpu"),
        ({"requires.compute_capability": [9.0]}, "requires.compute_capability[0]: must be text, but is 9.0; put it in"),
        (
            {"claims.dtypes": ["bf16", "fp8"]},
            "claims.dtypes[1]: must be one of bf16, fp16, fp32, fp8_e4m3, bf16_kv_fp8_e4m3, fp16_kv_fp8_e4m3, but",
        ),
        ({"claims.dtypes": []}, "claims.dtypes: must hold at least 1 value, but is a list of 0"),
        ({"claims.masks": ["full", "full"]}, "claims.masks[1]: repeats entry 0 of the list; remove one of them"),
        ({"claims.head_dim": 256}, "claims.head_dim: must be a mapping of keys and values, but is 256"),
        ({"claims.head_dim": {}}, "claims.head_dim.max: is missing (largest head_dim); add it"),
        ({"claims.head_dim.max": 4}, "claims.head_dim.max: is 4, which is less than min = 8"),
        ({"claims.head_dim.multiple_of": 300}, "claims.head_dim.max: leaves no head_dim: none from 8 to 256 is a"),
        ({"claims.head_dim.excluded": [100]}, "claims.head_dim.excluded[0]: is 100, which is not claimed anyway"),
        ({"claims.head_dim.max": "256"}, 'must be a whole number, but is "256"; write it without quotes'),
        ({"claims.head_dim.max": True}, "claims.head_dim.max: must be a whole number, but is true"),
        ({"claims.page_size.max": 8}, "claims.page_size.max: leaves no page_size"),
        ({"claims.layouts": ["packed"]}, "claims.page_size: is claimed although layouts has no paged"),
        ({"claims.elements": {"max": 1000}}, "claims.elements.max: must be at least 2147483648, but is 1000"),
        ({"claims.features": ["gqa", "empty_batch"]}, "claims.features: has empty_batch, which needs empty"),
        ({"claims.lse": {"rel": 0}}, "claims.lse.rel: must be more than 0, but is 0"),
        ({"claims.deterministic": "yes"}, "YAML 1.2 reads yes, no, on and off as text"),
        ({"claims.deterministic": None}, "claims.deterministic: must be true or false, but is empty"),
        ({"claims.empty_row.out": 1}, "claims.empty_row.out: must be one of 0, nan, any"),
        ({"claims.fetures": []}, "claims.fetures: unknown key; perhaps you meant features. Allowed here: dtypes, "),
        (
            {"claims.features": ..., "claims.fetures": ["gqa"]},
            "claims.fetures: unknown key; perhaps you meant features.",
        ),
        ({"options": {"a": [1]}}, "options.a: must be one text, number, true or false, but is a list of 1"),
        ({"accuracy.fp16": ...}, "accuracy: lacks fp16, which claims.dtypes names; add fp16: fp16"),
        ({"accuracy.fp32": "fp32"}, "accuracy.fp32: has no counterpart in claims.dtypes"),
        (
            {"accuracy.bf17": "bf16"},
            'fp8_e4m3, bf16_kv_fp8_e4m3, fp16_kv_fp8_e4m3, but is "bf17"; perhaps you meant',
        ),
        ({"claims.features": ...}, "length 0), empty_batch (a call may have no query, or no key), graph); add it"),
        ({"witness": ...}, "witness: is missing (how to prove that it ran); add it"),
        ({"witness.must_match": []}, "witness.must_match: must hold at least 1 value"),
        ({"witness.must_match": ["a{99999999999}"]}, "the repetition number is too large"),
        ({"witness.must_match": ["a("]}, "witness.must_match[0]: must be a regular expression (missing )"),
    ],
)
def test_refusals(write: Any, kernel: Any, changes: dict[str, Any], expected: str) -> None:
    """Each wrong value gives exactly one problem, which names path, rule and value."""
    found = messages(write(kernel(changes)))
    assert 1 == len(found), found
    assert expected in found[0]
    assert "\n" not in found[0], "a problem is one line"


def test_all_problems_at_once_in_order(write: Any) -> None:
    """Problems of a whole file are reported together, sorted by place."""
    path = write("kernel: A\ngeneration: x\nclaims: {dtypes: [bf16, 3]}\nclaims: 1\n")
    with pytest.raises(CardError) as caught:
        load(path)
    places = [(place.line, place.column) for place, _ in caught.value.problems]
    assert sorted(places) == places
    assert {1, 2, 3, 4} == {line for line, _ in places}


def test_content_hash_follows_content(write: Any, kernel: Any) -> None:
    """Equal cards written differently have one hash; any change gives another."""
    same = load(write(kernel({"claims.batch_invariant": False})))
    assert content_hash(load(write(kernel()))) == content_hash(same)
    assert content_hash(same) != content_hash(load(write(kernel({"claims.deterministic": False}))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty; it must hold a mapping with the keys kernel, generation,"),
        ("# only a comment\n", "is empty; it must hold"),
        ("- a\n", "holds a list of 1; it must hold a mapping"),
        ("text\n", 'holds "text"; it must hold a mapping'),
    ],
)
def test_a_card_is_a_mapping(write: Any, text: str, expected: str) -> None:
    """An empty file, a list and a scalar are refused with what a card holds."""
    with pytest.raises(CardError) as caught:
        load(write(text))
    assert expected in str(caught.value)


def test_options_are_finite(write: Any, kernel: Any) -> None:
    """An option that JSON could not carry is refused."""
    text = write(kernel({"options": {"a": 1, "b": 2}})).read_text().replace('"a": 1', '"a": .nan')
    assert ["options.a: must be a finite number, but is NaN"] == messages(write(text))

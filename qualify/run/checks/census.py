"""census: which keys does each query see? The check reads the answer back from the output, without a tolerance.

With q = 0 every visible key has the same weight 1/(n + e^sink), so exp(lse) counts the visible keys. With one-hot
values the output tells how many visible keys carry each label. The keys are labelled twice, by residue and by block.
So every interval of keys has its own pattern of counts, and one key more or less, a shifted window, a dropped page or a
lost split shows. At most ``DENSITY`` keys share a label. Then one key changes a count by more than the rounding of the
weights, of the partial results of splits (FlashInfer keeps them in bf16) and of the output.

At level full, the first labelling runs again with all scores at one number below -1e4. Some kernels give hidden keys
the score -1e4 instead of -inf, or start the row maximum there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from qualify.facts.case import Level, Workload
from qualify.facts.dtypes import FORMATS
from qualify.facts.outcome import Finding, Value
from qualify.masks import EVERYWHERE, PATTERNS, UNBOUNDED
from qualify.run.checks.interface import LSE_ALONE, Result, Shipped, Subject, failing, paged_or_ragged, passed
from qualify.run.checks.rows import Rows, Visible, rows_of
from qualify.run.inputs.kept import lengths_on
from qualify.run.inputs.kinds import key_positions
from qualify.run.inputs.tensors import Inputs, make_inputs, replace_keys, with_tensors

DENSITY = 32
"""most keys that share a label"""
WINDOWS: dict[Level, int] = {"smoke": 2, "full": 8}
"""most windows of ``DENSITY * head_dim_v`` keys that are labelled in a very long sequence"""
LOW = -12000.0
"""upper bound of the low score: clearly below -1e4, but float32 still resolves it to a thousandth"""
ELEMENTS, LOUD_KEY = 8, 128.0
"""number of elements of queries and keys that make the low score, and their size in the keys, exact in every dtype"""
MOST = 14
"""largest exponent (to base 2) of the labelled values"""
BASE_2 = "an LSE in base 2, where the contract asks for the natural logarithm"
NO_COUNTS = "Rows hold numbers that count no keys"
"""what is wrong where a row holds NaN or no mean of values, instead of what the check says in general"""
LIKELY_NO_COUNTS = "a row that is never written, or NaN from the softmax"
"""what is then most often behind it"""
NO_KEYS = "Queries see none of their keys"
"""the same where a row holds only zeros"""
LIKELY_NO_KEYS = "a row that is never written, or a tile, split or mask without the row's keys"
OTHER_LSE = "The LSE does not match the keys that the query sees"
"""what is wrong where only the LSE of a call with sinks is: the counts do not show whether its results are right"""
OTHER_SINK = "A head's sink is not the one of the call"
"""what is wrong where ignored sinks explain every row"""
LIKELY_OTHER_SINK = "the sink of another head, or one that is shifted or counted more than once"
"""what is behind it where all counts of each wrong row are off by one factor"""
SAID_OF_ROWS = {
    NO_COUNTS: "are wrong",
    NO_KEYS: "are wrong",
    OTHER_SINK: "have another sink than the call's",
}
"""what the detail says of the wrong rows, where it is not about other keys"""
IGNORED_SINKS = "the sinks being ignored"
NO_SINK = "a sink that is left out of the sum"
FEW_ROWS = 1024
"""most rows that are looked at for that"""
BLOCK_ELEMENTS = 1 << 24
"""output elements that are compared at a time"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelling:
    """A label in [0, dim) for each key of a window of positions, the same in every sequence."""

    start: int
    """first labelled position"""
    size: int
    """number of labelled positions"""
    block: int
    """keys of a block that share a label; 0 = labels are residues modulo ``dim``"""
    dim: int

    def label(self, offset: Tensor) -> Tensor:
        """Labels of positions.

        Args:
            offset: positions, counted from ``start``.
        """
        return offset // self.block if self.block else offset % self.dim

    def values(self, position: Tensor, scale: float, dtype: torch.dtype, longest: int) -> Tensor:
        """(keys, 1, dim) one-hot values of labelled keys, ``scale`` times; zeros for others.

        Args:
            position: (keys,) of each key in its sequence.
            scale: exact in ``dtype``.
            longest: keys of the longest sequence.
        """
        values = torch.zeros(len(position), self.dim, dtype=dtype, device=position.device)
        if self.size == longest:  # every key has a label
            return values.scatter_(1, self.label(position)[:, None], scale).unsqueeze(1)
        offset = position - self.start
        inside = ((offset >= 0) & (offset < self.size)).to(dtype) * scale
        label = self.label(offset).clamp_(0, self.dim - 1)
        return values.scatter_(1, label[:, None], inside[:, None]).unsqueeze(1)

    def counts(self, visible: Visible) -> Tensor:
        """(rows, dim) number of visible keys with each label, in closed form."""
        label = torch.arange(self.dim, device=visible.low.device)
        if self.block:
            edges = (torch.arange(self.dim + 1, device=label.device) * self.block).clamp(max=self.size) + self.start
            return visible.before(edges).diff()
        passed_by, up_to = visible.before(lengths_on((0, self.size), label.device) + self.start).unbind(-1)
        first = visible.low + passed_by * visible.step - self.start  # the first visible key that is labelled
        # The n-th of them has a label if first + n * step = label modulo dim: no n, or every ``every``-th from one on.
        distance = (label - first.unsqueeze(-1)) % self.dim
        if visible.step == 1:  # the n-th visible key has the label that is n further
            return ((up_to - passed_by).unsqueeze(-1) - 1 - distance) // self.dim + 1
        divisor = math.gcd(visible.step, self.dim)
        every = self.dim // divisor
        steps = torch.arange(every, device=label.device) * visible.step
        nth = torch.zeros(self.dim, dtype=torch.int64, device=label.device)
        nth[steps % self.dim] = torch.arange(every, device=label.device)
        counted = ((up_to - passed_by).unsqueeze(-1) - 1 - nth[distance]) // every + 1
        return counted * (distance % divisor == 0)

    def keys(self, label: int) -> str:
        """The keys that have a label, in words."""
        if self.block:
            first = self.start + label * self.block
            return f"keys {first} to {first + self.block - 1}" if self.block > 1 else f"key {first}"
        return in_words(range(self.start + label, self.start + self.size, self.dim))


def in_words(keys: Sequence[int]) -> str:
    """Keys at equal distances."""
    if not keys:
        return "keys that the call does not have"
    if len(keys) == 1:
        return f"key {keys[0]}"
    first = ", ".join(map(str, keys[:3] if len(keys) > 3 else keys[:-1]))
    return f"keys {first} and so on" if len(keys) > 3 else f"keys {first} and {keys[-1]}"


class Census(Shipped):
    """Counts the keys that every query sees, and reads their positions back."""

    def skips(self, subject: Subject) -> str:
        """Applies to every kernel."""
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Make one call for each labelling; the finding describes the first wrong row."""
        workload = paged_or_ragged(subject)
        inputs = make_inputs(workload, kind="normal", seed=subject.seed, device=subject.device, shared=True)
        inputs = with_tensors(inputs, q=torch.zeros_like(inputs.q_whole))
        rows = rows_of(workload, subject.device)
        # Keep the output above the subnormal range of fp16, and the values within the range of their format.
        largest = math.floor(math.log2(FORMATS[workload.kv_format].largest))
        scale = 2.0 ** min(largest, MOST, math.floor(math.log2(max(workload.seqlens_k))))
        position = key_positions(workload, subject.device)
        asked = [(labelling, 0.0) for labelling in labellings(workload, subject.level)]
        deep = depth(subject) if subject.level == "full" else 0.0
        asked += [(asked[0][0], deep)] if deep else []
        readers = {score: Reader(workload, rows, first, inputs.call.sinks, scale, score) for first, score in asked}
        queries = {0.0: inputs} | ({deep: with_tensors(inputs, q=_sounding(inputs, workload))} if deep else {})
        for labelling, score in asked:
            values = labelling.values(position, scale, inputs.call.out_dtype, max(workload.seqlens_k))
            key = torch.zeros(1, 1, workload.head_dim, device=subject.device)
            if score:
                key[..., workload.rope.start : workload.rope.start + ELEMENTS] = LOUD_KEY
            result = subject.run(replace_keys(queries[score], None, key, values).call)
            readers[score].labelling = labelling
            wrong = readers[score].first_wrong(result, subject)
            if wrong:
                where = f"with every score at {score:.6g}: " if score else ""
                return [failing(self.name, where + wrong[0], {"score": score, **wrong[1]})]
        far = f", also with every score at {deep:.6g}" if deep else ""
        detail = (
            f"every query of every head sees exactly its keys ({len(asked)} labelling{'s' * (len(asked) != 1)}{far})"
        )
        return [passed(self.name, detail, labellings=len(asked))]


def depth(subject: Subject) -> float:
    """A score below LOW that is a product of powers of two, so exact.

    0 = the probe does not apply: with a softcap or sinks, with a card that claims a ``hidden_score``, or with too few
    elements.
    """
    workload, hidden = subject.workload, subject.card.claims.hidden_score
    if workload.softcap or workload.sinks or hidden is not None or workload.head_dim - workload.rope.start < ELEMENTS:
        return 0.0
    return -ELEMENTS * LOUD_KEY * _loud_query(workload.scale) * workload.scale


def _loud_query(scale: float) -> float:
    return float(2.0 ** math.ceil(math.log2(-LOW / scale / ELEMENTS / LOUD_KEY)))


def _sounding(inputs: Inputs, workload: Workload) -> Tensor:
    """(rows, heads_q, head_dim) queries that, with LOUD_KEY in the keys, give every key the score of :func:`depth`."""
    q = torch.zeros_like(inputs.q_whole)
    first = workload.rope.start
    q[..., first : first + ELEMENTS] = -_loud_query(workload.scale)
    return q


def labellings(workload: Workload, level: Level) -> Iterator[Labelling]:
    """Labellings by residues and by blocks, for windows in which at most DENSITY keys share a label."""
    dim, longest = workload.head_dim_v, max(workload.seqlens_k)
    size = min(longest, DENSITY * dim)
    windows = range(0, longest, size)
    chosen = min(len(windows), WINDOWS[level])
    picked = {round(index * (len(windows) - 1) / max(1, chosen - 1)) for index in range(chosen)}
    for start in (windows[index] for index in sorted(picked)):
        yield Labelling(start=start, size=size, block=0, dim=dim)
        block = -(-size // dim)
        if block > 1:
            yield Labelling(start=start, size=size, block=block, dim=dim)


class Reader:
    """Compares an output with the label counts that the mask implies."""

    def __init__(
        self,
        workload: Workload,
        rows: Rows,
        labelling: Labelling,
        sinks: Tensor | None,
        scale: float,
        score: float = 0.0,
    ) -> None:
        self.workload = workload
        self.rows = rows
        self.labelling = labelling
        """of the call whose result is read next"""
        self.sink = 0.0 if sinks is None else sinks.float().exp()
        self.scale = scale
        self.score = score

    def seen(self, out: Tensor, visible: Visible) -> Tensor:
        """(rows, heads_q, head_dim_v) label counts that an output means, if each row saw the right number of keys."""
        weight = visible.count.float()[:, None] + self.sink
        return out.float() * (weight / self.scale).unsqueeze(-1)

    def wrong_rows(self, out: Tensor, visible: Visible) -> Tensor:
        """(total_q, heads_q) whether a count of the row is wrong by half a key or more, or NaN."""
        step = max(1, BLOCK_ELEMENTS // (out.shape[1] * out.shape[2]))
        parts = []
        for first in range(0, len(out), step):
            rows = slice(first, first + step)
            some = visible.at(rows) if step < len(out) else visible
            off = (self.seen(out[rows], some) - self.labelling.counts(some).unsqueeze(1)).abs_()
            parts.append(~(off < 0.5).all(-1) & some.some.unsqueeze(-1))
        return torch.cat(parts) if parts[1:] else parts[0]

    @cached_property
    def expected_lse(self) -> tuple[Tensor, Tensor]:
        """(total_q, heads_q or 1) float64: the LSE, and its size, at least 1."""
        expected = torch.log(self.rows.visible().count.double()[:, None] + self.sink) + self.score
        return expected, expected.abs().clamp_(min=1)

    def wrong_lse(self, lse: Tensor, limit: float) -> Tensor:
        """(total_q, heads_q) whether an LSE (heads_q, total_q) is off by more than a relative limit, or NaN."""
        expected, size = self.expected_lse
        return ~((lse.T.double() - expected).abs_() / size <= limit) & self.rows.visible().some[:, None]

    def first_wrong(self, result: Result, subject: Subject) -> tuple[str, dict[str, Value]] | None:
        """A sentence about the first wrong row, and its values; None where no row is wrong."""
        visible, limit = self.rows.visible(), subject.card.claims.lse.rel
        wrong = self.wrong_rows(result.out, visible)
        wrong_lse = wrong.new_zeros(1) if result.lse is None else self.wrong_lse(result.lse, limit)
        some, some_lse = torch.stack([wrong.any(), wrong_lse.any()]).tolist()
        if not some:
            return (
                self._miscounted(result.lse, visible, wrong_lse, limit) if result.lse is not None and some_lse else None
            )
        row, head = (int(x) for x in wrong.nonzero()[0])
        own = visible.at([row])
        counts = self.labelling.counts(own)[0]
        read = self.seen(result.out[[row]], own)[0, head]
        seen = read.nan_to_num(nan=-1.0)
        label = int((seen - counts).abs().argmax())
        sequence, query = int(self.rows.sequence[row]), int(self.rows.query[row])
        values: dict[str, Value] = {
            "sequence": sequence,
            "query": query,
            "head": head,
            "visible_first": int(own.low),
            "visible_last": int(own.high) - 1,
            "label": self.labelling.keys(label),
            "expected": int(counts[label]),
            "actual": float(seen[label]),
            "rows": int(wrong.any(1).sum()),
            "share": float(wrong.float().mean()),
        }
        looks_like = self._looks_like(result.out)
        own_out = result.out[row, head]
        if bool((own_out == 0).all()):
            values |= {"wrong": NO_KEYS, "likely": LIKELY_NO_KEYS}
        elif looks_like == IGNORED_SINKS:
            values["wrong"] = OTHER_SINK
        elif not looks_like and isinstance(self.sink, Tensor) and self._only_scaled(result.out, visible, wrong):
            values |= {"wrong": OTHER_SINK, "likely": LIKELY_OTHER_SINK}
        elif not bool(((read > -0.5) & (own_out < 1.5 * self.scale)).all()):  # NaN too
            values |= {"wrong": NO_COUNTS, "likely": LIKELY_NO_COUNTS}
        said = SAID_OF_ROWS.get(str(values.get("wrong")), "see other keys than the mask says")
        detail = (
            f"{values['share']:.2%} of the rows {said}; first: sequence {sequence}, query {query}, head "
            f"{head} must see {own.words(0)}; it sees {float(read[label]):.3g} of "
            f"{values['label']}, expected {values['expected']}"
        )
        perhaps = f"; perhaps {values['likely']}" if "likely" in values else ""
        detail += f"; all rows look like {looks_like}" if looks_like else perhaps
        return detail, values | {"looks_like": looks_like}

    def _only_scaled(self, out: Tensor, visible: Visible, wrong: Tensor) -> bool:
        """Whether every wrong row sees its own keys, with one factor on all counts; a few rows stand for all."""
        rows = wrong.any(1).nonzero().flatten()[:FEW_ROWS].tolist()
        some = visible.at(rows)
        seen = self.seen(out[rows], some)
        counts = self.labelling.counts(some).unsqueeze(1).float()
        factor = (seen.sum(-1) / counts.sum(-1)).unsqueeze(-1)
        return bool(((seen - factor * counts).abs() < 0.5 * factor).all())

    def _miscounted(self, lse: Tensor, visible: Visible, wrong: Tensor, limit: float) -> tuple[str, dict[str, Value]]:
        """The same for the LSE, which must be ln(n + e^sink) plus the common score of the keys, where it is wrong."""
        actual, (expected, _) = lse.T.double(), self.expected_lse
        row, head = (int(x) for x in wrong.nonzero()[0])
        values: dict[str, Value] = {
            "sequence": int(self.rows.sequence[row]),
            "query": int(self.rows.query[row]),
            "head": head,
            "lse": float(actual[row, head]),
            "expected": float(expected.expand_as(actual)[row, head]),
            "limit": limit,
            "rows": int(wrong.any(1).sum()),
            **LSE_ALONE,
        }
        looks_like = self._lse_looks_like(actual, expected, wrong, limit)
        if looks_like:
            values["looks_like"] = looks_like
        sink = ""
        if isinstance(self.sink, Tensor):  # it may be missing from the output, too
            values["wrong"] = OTHER_LSE
            sink = " and the sink"
        detail = (
            f"the LSE is wrong in {values['rows']} rows; first: sequence {values['sequence']}, query "
            f"{values['query']}, head {head}: LSE {values['lse']:.7g}, expected {values['expected']:.7g} for "
            f"{int(visible.count[row])} keys{sink}"
        ) + (f"; all rows look like {looks_like}" if looks_like else "")
        return detail, values

    def _lse_looks_like(self, actual: Tensor, expected: Tensor, wrong: Tensor, limit: float) -> str:
        """The name of a mistake that explains every wrong LSE; empty where none does."""
        suspects = [(BASE_2, expected / math.log(2))]
        if isinstance(self.sink, Tensor):
            alone = torch.log(self.rows.visible().count.double()[:, None]) + self.score
            suspects.append((NO_SINK, alone))
        for name, lse in suspects:
            if not bool((~((actual - lse).abs() <= limit * actual.abs().clamp(min=1)) & wrong).any()):
                return name
        return ""

    def _looks_like(self, out: Tensor) -> str:
        """The name of a wrong mask, or of ignored sinks, that explains every row; empty where neither does."""
        mask = self.workload.mask
        left, right = mask.window
        suspects: list[tuple[str, dict[str, Any]]] = [
            ("a mask aligned to the top left corner", {"top_left": True}),
            ("no mask at all", {"mask": replace(mask, causal=False, window=EVERYWHERE)}),
            ("a mask shifted by one key to the right", {"shift": 1}),
            ("a mask shifted by one key to the left", {"shift": -1}),
        ]
        if not mask.causal:
            suspects.append(("a causal mask", {"mask": replace(mask, causal=True)}))
        if left >= 0:
            suspects += [
                ("the window being ignored", {"mask": replace(mask, window=(UNBOUNDED, right))}),
                ("a window of one key more on the left", {"mask": replace(mask, window=(left + 1, right))}),
                ("a window of one key less on the left", {"mask": replace(mask, window=(max(0, left - 1), right))}),
            ]
        if mask.pattern:
            suspects.append(
                (f"the {PATTERNS[mask.pattern].noun} being ignored", {"mask": replace(mask, pattern="", size=0)})
            )
        if self.workload.spans:
            suspects.append(("the image spans being ignored", {"spans": False}))
        for name, change in suspects:
            if not bool(self.wrong_rows(out, self.rows.visible(**change)).any()):
                return name
        if isinstance(self.sink, Tensor):
            without = Reader(self.workload, self.rows, self.labelling, None, self.scale, self.score)
            if not bool(without.wrong_rows(out, self.rows.visible()).any()):
                return IGNORED_SINKS
        return ""

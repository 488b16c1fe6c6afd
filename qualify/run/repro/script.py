"""A standalone script of a failure: the kernel's call, the recorded inputs, and one claim that must not hold.

Only torch and the kernel's library are imported. The script prints what the kernel gave beside what it should have
given and exits 1 while the two differ, 0 once they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEAD = '''\
"""{title}

{text}
"""

from __future__ import annotations

import base64
import math
import sys
import zlib
from types import SimpleNamespace

import torch
from torch import Tensor

aten = torch.ops.aten
device = torch.device({device})


def unpack(text, dtype, shape, device):
    """A tensor from compressed bytes."""
    flat = torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=torch.uint8)
    return flat.view(dtype).view(shape).to(device)


# The kernel, called as qualify calls it.

'''

RUN = '''

def run(call):
    """(out, lse) of the kernel. NaN in the allocator's cache shows rows that nobody writes."""
    shape = (*call.q.shape[:2], call.v.shape[-1])
    dirt = [torch.full(shape, math.nan, dtype=call.out_dtype, device=device) for _ in range(2)]
    del dirt
    out, lse = attend(call)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return out, lse

'''

EXACT = '''
def exact(call, sequence, query, head):
    """Exact attention of one query of one head, in float64: out, lse, the weights times |v|, and the largest |v|."""
    begin, end = call.cu_seqlens_q[sequence : sequence + 2].tolist()
    if call.block_table is None:
        first, last = call.cu_seqlens_k[sequence : sequence + 2].tolist()
        k, v = call.k[first:last], call.v[first:last]
    else:
        length, size = int(call.seqused_k[sequence]), call.k.shape[1]
        pages = call.block_table[sequence, : -(-length // size)].long()
        k, v = (tensor[pages].flatten(0, 1)[:length] for tensor in (call.k, call.v))
    kv_head = head // (call.q.shape[1] // k.shape[1])
    position = query + len(k) - (end - begin)
    key = torch.arange(len(k), device=device)
    seen = torch.ones_like(key, dtype=torch.bool)
    if call.causal:
        seen &= key <= position
    if call.window[0] >= 0:
        seen &= key >= position - call.window[0]
    if call.window[1] >= 0:
        seen &= key <= position + call.window[1]
    if call.chunk:
        seen &= key // call.chunk == position // call.chunk
    for owner, start, stop in [] if call.bidirectional_spans is None else call.bidirectional_spans.tolist():
        if owner == sequence and start <= position < stop:
            seen |= (key >= start) & (key < stop)
    factors = [1.0 if item is None else item[sequence, kv_head].double() for item in (
        call.q_descale, call.k_descale, call.v_descale)]
    q, k, v = call.q[begin + query, head].double(), k[seen, kv_head].double(), v[seen, kv_head].double()
    q, k, v = q * factors[0], k * factors[1], v * factors[2]
    scores = k @ q * call.scale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    lse = torch.logsumexp(scores, 0)
    if call.sinks is not None and len(k):
        lse = torch.logaddexp(lse, call.sinks[head].double())
    weights = torch.exp(scores - lse)
    return weights @ v, lse, weights @ v.abs(), v.abs().amax() if len(k) else lse


def finish(wrong, text):
    """Print, and exit 1 while it is wrong."""
    print(text)
    print("WRONG" if wrong else "right")
    sys.exit(1 if wrong else 0)

'''

ELEMENT = """\
SEQUENCE, QUERY, HEAD, ELEMENT = {sequence}, {query}, {head}, {element}
row = int(call{after}.cu_seqlens_q[SEQUENCE]) + QUERY
out, lse, weighted, largest = exact(call{after}, SEQUENCE, QUERY, HEAD)
actual, expected = float(out{after}[row, HEAD, ELEMENT]), float(out[ELEMENT])
allowed = {allowed}
where = f"sequence {{SEQUENCE}}, query {{QUERY}}, head {{HEAD}}, element {{ELEMENT}}"
finish(
    not abs(actual - expected) <= allowed,
    f"{{where}}: out is {{actual:.9g}}, exact {{expected:.9g}}, allowed difference {{allowed:.3g}}",
)
"""
LSE = """\
SEQUENCE, QUERY, HEAD = {sequence}, {query}, {head}
row = int(call{after}.cu_seqlens_q[SEQUENCE]) + QUERY
out, lse, weighted, largest = exact(call{after}, SEQUENCE, QUERY, HEAD)
if lse{after} is None:
    finish(True, "the kernel returned no lse, and its card claims one")
actual, expected = float(lse{after}[HEAD, row]), float(lse)
allowed = {allowed} * max(1.0, abs(expected))
finish(
    not abs(actual - expected) <= allowed,
    f"sequence {{SEQUENCE}}, query {{QUERY}}, head {{HEAD}}: lse is {{actual:.9g}}, exact {{expected:.9g}}, "
    f"allowed difference {{allowed:.3g}}",
)
"""
ROW = """\
SEQUENCE, QUERY, HEAD = {sequence}, {query}, {head}
row = int(call{after}.cu_seqlens_q[SEQUENCE]) + QUERY
out, lse, weighted, largest = exact(call{after}, SEQUENCE, QUERY, HEAD)
error = (out{after}[row, HEAD].double() - out).square().mean().sqrt()
worst = int((out{after}[row, HEAD].double() - out).abs().argmax())
finish(
    not float(error) <= {allowed},
    f"sequence {{SEQUENCE}}, query {{QUERY}}, head {{HEAD}}: rms error of the row {{float(error):.3g}}, "
    f"allowed {allowed}; element {{worst}} is {{float(out{after}[row, HEAD, worst]):.9g}}, "
    f"exact {{float(out[worst]):.9g}}",
)
"""
OVERALL = """\
bounds = call{after}.cu_seqlens_q.tolist()
rows = [
    (sequence, query, head)
    for sequence in range(len(bounds) - 1)
    for query in range(bounds[sequence + 1] - bounds[sequence])
    for head in range(call{after}.q.shape[1])
]
rows = rows[:: max(1, len(rows) // 4096)]
exacts = torch.stack([exact(call{after}, *row)[0] for row in rows])
actual = torch.stack([out{after}[bounds[sequence] + query, head].double() for sequence, query, head in rows])
seen = exacts.isfinite().all(1)
rows = [row for row, kept in zip(rows, seen.tolist()) if kept]
error, actual, exacts = (actual - exacts)[seen], actual[seen], exacts[seen]
statistic = {statistic}
at, element = divmod(int(error.abs().argmax()), error.shape[1])
finish(
    not statistic <= {allowed},
    f"{name} over {{len(rows)}} rows: {{statistic:.4g}}, allowed {allowed}; largest error: sequence {{rows[at][0]}}, "
    f"query {{rows[at][1]}}, head {{rows[at][2]}}, element {{element}}: {{float(actual[at, element]):.9g}}, exact "
    f"{{float(exacts[at, element]):.9g}}",
)
"""
SAME = """\
SEQUENCE, QUERY, HEAD, ELEMENT = {sequence}, {query}, {head}, {element}
row = int(call{after}.cu_seqlens_q[SEQUENCE]) + QUERY
place = {place}
before, after = {tensor}{before}[place], {tensor}{after}[place]
bits = [item.contiguous().view(-1).view(torch.uint8) for item in (before, after)]
out = exact(call{after}, SEQUENCE, QUERY, HEAD)
where = f"sequence {{SEQUENCE}}, query {{QUERY}}, head {{HEAD}}, element {{ELEMENT}}"
finish(
    {wrong},
    f"{{where}}: {tensor} is {{float(after):.9g}}, and was {{float(before):.9g}} before {change}; "
    f"exact {{float({exact}):.9g}}",
)
"""
EMPTY = """\
SEQUENCE, QUERY, HEAD = {sequence}, {query}, {head}
row = int(call{after}.cu_seqlens_q[SEQUENCE]) + QUERY
out, lse = out{after}[row, HEAD], lse{after}
wrong = {wrong}
finish(
    wrong,
    f"sequence {{SEQUENCE}}, query {{QUERY}}, head {{HEAD}} sees no key: out {{out.tolist()[:4]}} ..., "
    f"lse {{None if lse is None else float(lse[HEAD, row])}}; the card says out {policy}",
)
"""
CONTRACT = """\
shape, dtype = (*call{after}.q.shape[:2], call{after}.v.shape[-1]), call{after}.out_dtype
expected = f"a tensor {{tuple(shape)}} {{dtype}}"
actual = repr(out{after})
if isinstance(out{after}, Tensor):
    actual = f"a tensor {{tuple(out{after}.shape)}} {{out{after}.dtype}}"
if actual == expected and isinstance(lse{after}, Tensor):
    expected = f"lse {{(call{after}.q.shape[1], call{after}.q.shape[0])}} torch.float32"
    actual = f"lse {{tuple(lse{after}.shape)}} {{lse{after}.dtype}}"
finish(actual != expected, f"the kernel returned {{actual}}, the contract says {{expected}}")
"""
WRITTEN = """\
def whole(tensor):
    \"\"\"All bytes of the allocation that a tensor lies in, its surroundings included.\"\"\"
    return torch.empty(0, dtype=torch.uint8, device=device).set_(tensor.untyped_storage())


inputs = {{name: value for name, value in vars(call{after}).items() if isinstance(value, Tensor)}}
saved = {{name: whole(value).clone() for name, value in inputs.items()}}
run(call{after})
written = [name for name, value in inputs.items() if not torch.equal(whole(value), saved[name])]
finish(bool(written), f"inputs (or what lies around them) that the kernel wrote into: {{written or 'none'}}")
"""
RUNS = """\
for _ in range(3):
    out{after}, lse{after} = run(call{after})
finish(False, f"the kernel returned: {{type(out{after}).__name__}}; it {what} when this script was written")
"""
ENDINGS = {
    "element": ELEMENT,
    "lse": LSE,
    "row": ROW,
    "overall": OVERALL,
    "same": SAME,
    "empty": EMPTY,
    "contract": CONTRACT,
    "written": WRITTEN,
    "runs": RUNS,
}
"""what the last part of a script asserts"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What is wrong, and between which launches it shows."""

    kind: str
    """a key of ``ENDINGS``"""
    after: int
    """launch whose result is wrong"""
    launches: tuple[int, ...]
    """all launches that the script repeats, in order"""
    values: dict[str, object]
    """fills the ending's text"""


def render(*, title: str, text: str, device: str, attend: str, program: Sequence[str], claim: Claim) -> str:
    """The script.

    Args:
        title: one line: check and case.
        text: what the check found, and how to repeat the case under qualify.
        device: arguments of ``torch.device``.
        attend: the adapter's source.
        program: lines that make the inputs and launch.
        claim: what the end asserts.
    """
    lines = [line.split("\nout")[0] if claim.kind == "written" else line for line in program]
    ending = ENDINGS[claim.kind].format(after=claim.after, **claim.values)
    safe = [part.replace("\\", "\\\\").replace('"""', "'''") for part in (title, text)]
    head = HEAD.format(title=safe[0], text=safe[1], device=device)
    body = "# The inputs, as the check made them, and the launches.\n\n" + "\n".join(lines)
    attend = attend.replace("from __future__ import annotations\n", "")
    return f"{head}{attend}{RUN}{EXACT}\n{body}\n\n# What came back, beside what should have.\n\n{ending}"

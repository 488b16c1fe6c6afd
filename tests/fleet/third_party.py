"""Kernels that a third party might bring: one that is right, and one for every way to go wrong.

The tests copy this file into a ``--cards`` folder; the function's name is the kernel's, with underscores.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch

seen_dtypes = set()
seen_lengths = set()


def attend(call):
    """Packed attention, one sequence after another, in float32."""
    out = torch.zeros(*call.q.shape[:2], call.v.shape[-1])
    q_bounds, k_bounds = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
    for sequence in range(len(q_bounds) - 1):
        rows = slice(q_bounds[sequence], q_bounds[sequence + 1])
        keys = slice(k_bounds[sequence], k_bounds[sequence + 1])
        q, k, v = (tensor.float().transpose(0, 1) for tensor in (call.q[rows], call.k[keys], call.v[keys]))
        scores = q @ k.transpose(1, 2) * call.scale
        if call.causal:
            hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + scores.shape[2] - scores.shape[1])
            scores = scores.masked_fill(hidden, float("-inf"))
        out[rows] = (scores.softmax(-1) @ v).transpose(0, 1)
    return out.to(call.out_dtype)


correct = attend


def loops(call):
    """Launches without end, as a loop over tiles in Python does."""
    out, nothing = attend(call), torch.zeros(())
    for _ in range(1_000):
        nothing.add_(0)
    return out


def slow(call):
    """Some fifty calls make a case: half a second. It waits as long as a file called ``hold`` lies beside this one."""
    while Path(__file__).with_name("hold").exists():
        time.sleep(0.05)
    time.sleep(0.01)
    return attend(call)


def meets(call):
    """Its first call in a process waits for that of another process: two devices then have some of the cases each."""
    here = Path(__file__).parent
    (here / f"met-{os.getpid()}").touch()
    until = time.monotonic() + 50
    while len(list(here.glob("met-*"))) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    return attend(call)


def meets_wrongly(call):
    return meets(call) * 1.01


def takes_tensors(q, k, v):
    return attend(q)


def wrong_shape(call):
    return attend(call)[:-1]


def wrong_dtype(call):
    return attend(call).double()


def returns_none(call):
    attend(call)


def wrong_numbers(call):
    return attend(call) * 1.01


def raises(call):
    """A message as libraries write them: undecodable bytes, terminal escapes, more than one line."""
    raise RuntimeError("cannot read \udcff\x1b[31m or \x00\nand more")


def raises_exit(call):
    sys.exit("enough")


def leaves(call):
    os._exit(3)


def segfaults(call):
    ctypes.string_at(0)


def segfaults_at_47(call):
    """No check of another case makes a call of so many tokens."""
    return segfaults(call) if call.max_seqlen_q == 47 else attend(call)


def hangs(call):
    """In C, without the interpreter's help: no Python code runs, and no signal handler of Python's."""
    ctypes.CDLL(None).pause()


def killed(call):
    os.kill(os.getpid(), signal.SIGKILL)


def allocates_everything(call):
    return bytearray(1 << 46)


def fills_memory(call):
    """Page by page, so that no allocation is too large by itself."""
    pages = []
    while True:
        pages.append(b"x" * (16 << 20))


def writes_inputs(call):
    out = attend(call)
    call.k.add_(1)
    return out


def chatters(call):
    print("x" * 2_000_000)
    print("y" * 2_000_000, file=sys.stderr)
    os.write(1, b"\xff" * 1000)
    return attend(call)


def raises_in_a_thread(call):
    def work():
        raise RuntimeError("in a thread")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return attend(call)


def closes_descriptors(call):
    os.closerange(3, 256)
    return attend(call)


def writes_garbage(call):
    """Into whatever descriptor it can: also into the pipe of the process that watches it."""
    for number in range(3, 256):
        try:
            os.write(number, b"not a message\n")
        except OSError:
            continue
    time.sleep(60)


def leaves_a_child(call):
    """Dies, and a process that it started holds all that it had open."""
    if os.fork() == 0:
        time.sleep(600)
    os._exit(4)


def remembers(call):
    """Right as long as a process only sees one dtype; wrong after that, as a kernel with a stale cache is."""
    seen_dtypes.add(call.q.dtype)
    return attend(call) * (1.0 if len(seen_dtypes) == 1 else 1.5)


def remembers_lengths(call):
    """Wrong once its process has seen prompts of 41 and of 77 tokens: two cases make them, and no check of one does."""
    seen_lengths.update({call.max_seqlen_q} & {41, 77})
    return attend(call) * (1.0 if len(seen_lengths) < 2 else 1.5)


def spinning(call):
    """Right, and six times as slow, so that a busy machine does not hide it: it spins for five times what it took."""
    began = time.perf_counter()
    out = attend(call)
    until = time.perf_counter() + 5 * (time.perf_counter() - began)
    while time.perf_counter() < until:
        pass
    return out

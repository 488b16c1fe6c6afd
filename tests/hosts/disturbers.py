"""Kernels that change whatever they can of the process that they run in, and are right, wrong or dead by themselves.

The tests copy this file into a ``--cards`` folder; the function's name is the kernel's, with underscores.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import faulthandler
import gc
import locale
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress

import torch
from third_party import attend


def correct(call):
    return attend(call)


def wrong(call):
    return attend(call) * 1.2


correct_later, wrong_later = correct, wrong


def sets_default_dtype(call):
    torch.set_default_dtype(torch.float64)
    return attend(call)


def sets_default_device(call):
    torch.set_default_device("meta")
    raise RuntimeError("and that was it")


def seeds(call):
    torch.manual_seed(7)
    random.seed(7)
    torch.set_rng_state(torch.Generator().manual_seed(3).get_state())
    return attend(call)


def sets_flags(call):
    torch.use_deterministic_algorithms(mode=True)
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.enabled = False
    torch.set_flush_denormal(True)
    return attend(call)


def sets_threads(call):
    torch.set_num_threads(7)
    return attend(call)


def sets_modes(call):
    torch.set_grad_enabled(False)
    torch.inference_mode().__enter__()
    return attend(call)


def changes_folder(call):
    os.chdir("/")
    os.umask(0o777)
    return attend(call)


def changes_environment(call):
    os.environ.clear()
    os.environ.update(PATH="", HOME="/nowhere", TMPDIR="/nowhere", PYTHONPATH="/nowhere", OMP_NUM_THREADS="64")
    return attend(call)


def changes_locale(call):
    locale.setlocale(locale.LC_ALL, "C")
    ctypes.CDLL(None).setlocale(locale.LC_ALL, b"C")
    return attend(call)


def limits_recursion(call):
    sys.setrecursionlimit(200)
    return attend(call)


def limits_descriptors(call):
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    os.nice(5)
    return attend(call)


def handles_signals(call):
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.disable()
    return attend(call)


def disturbs_the_interpreter(call):
    gc.disable()
    warnings.simplefilter("error")
    sys.excepthook = threading.excepthook = None
    atexit.register(time.sleep, 600)
    return attend(call)


def patches_torch(call):
    out = attend(call)
    torch.allclose = torch.equal = lambda *_, **__: True
    torch.matmul = torch.mm = torch.Tensor.__matmul__ = None
    torch.Tensor.__eq__ = lambda *_: True
    torch.empty = torch.zeros = torch.full = None
    return out


def patches_qualify(call):
    from qualify.facts import outcome
    from qualify.run import execute
    from qualify.run.checks import difference, interface
    from qualify.run.checks.registry import CHECKS
    from qualify.run.golden import reference
    from qualify.run.measure import timing, tracing

    for check in CHECKS:
        type(check).run = lambda *_: []
        type(check).skips = lambda *_: "nobody need look"
    made = outcome.Finding.__init__
    outcome.Finding.__init__ = lambda self, **given: made(self, **{**given, "verdict": "pass"})
    interface.golden = reference.golden = execute.golden = None
    difference.difference = execute.difference = lambda *_, **__: None
    tracing.read_trace = execute.read_trace = None
    timing.timing_of = timing.findings = None
    return attend(call)


def patches_builtins(call):
    builtins.len = lambda _: 0
    return attend(call)


def replaces_stdout(call):
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None
    for number in (1, 2):
        with suppress(OSError):  # at a later call they are closed already
            os.close(number)
    return attend(call)


def closes_descriptors(call):
    os.closerange(3, 256)
    return attend(call)


def replaces_descriptors(call):
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (int(sys.argv[1]), int(sys.argv[2])):
        os.dup2(nowhere, number)
    return attend(call)


def hangs_at_once(call):
    ctypes.CDLL(None).pause()

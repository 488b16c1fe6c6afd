"""The cost of a seal: storing a run's outcomes with and without a signing key, sealing it, and checking it in a gate.

All figures are CPU time, because a seal waits for nothing.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from common import command_line, evidence, machine, show, small, timed
from securesystemslib.signer import CryptoSigner

from qualify.facts.run import Record, Run
from qualify.fleet.sealing import Ledger
from qualify.seal.form import line
from qualify.seal.keys import SigningKey, with_public
from qualify.store.store import Store

CASES = 1_000
GROUP = 50


def main() -> None:
    """Store the same measured records without a key and with one, and let the gate judge both."""
    asked = command_line(__doc__, evidence=True).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, records = evidence(100 if small() else CASES, folder, asked.evidence)
        machine()
        show("findings of an outcome", _mean(records), "")
        signing = with_public(CryptoSigner.generate_ed25519(), "a new key")
        (folder / "runner.pem").write_text(signing.public.text)
        for label, key in (("without a key", None), ("with a key", signing)):
            _store(folder / "bench.db", replace(run, id=label.replace(" ", "-")), records, key, label)
        _sizes(folder / "bench.db")
        for label, more in (("without-a-key", ()), ("with-a-key", ("--require-signed-by", "runner.pem"))):
            _, cpu = timed("gate", "--run", label, "--db", "bench.db", *more, folder=folder)
            show(f"gate {label.replace('-', ' ')}: CPU of the command", cpu, "s")


def _store(file: Path, run: Run, records: list[Record], key: SigningKey | None, label: str) -> None:
    """Store and end a run, as a runner does."""
    with Store.open(str(file)) as store:
        store.begin(run)
        ledger = Ledger(store, run.id, key)
        began = time.process_time()
        ledger.add_cases([record.case for record in records])
        for first in range(0, len(records), GROUP):
            ledger.add(records[first : first + GROUP])
        stored = time.process_time()
        show(f"{len(records):,} outcomes stored {label}: CPU", stored - began, "s")
        ledger.finish(run, "completed")
        if key:
            ledger.seal(store.run(run.id))
            show("sealing the run and comparing it with the store: CPU", time.process_time() - stored, "s")


def _sizes(file: Path) -> None:
    with Store.open(str(file), create=False) as store:
        found = store.evidence("with-a-key")
    assert found.seal
    show("the evidence, in lines", sum(len(line(data)) for data in found.lines) / 1e6, "MB")
    show("its seal", (len(json.dumps(dict(found.seal.envelope))) + len(found.seal.parts)) / 1e6, "MB")


def _mean(records: list[Record]) -> float:
    counts = [len(record.outcome.evidence.findings) for record in records if record.outcome.outcome == "measured"]
    return sum(counts) / len(counts)


if __name__ == "__main__":
    main()

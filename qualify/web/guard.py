"""Checks before every route: who asks, how often, from which page, and with which right."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from fastapi import Request

from qualify.cards.access import Right
from qualify.errors import StoreError
from qualify.facts.people import AuditEntry
from qualify.store.store import Store
from qualify.web.access import Access, AccessRefused, Caller, require
from qualify.web.limits import FAILURES, READS, WRITES, Limiter, foreign

READING = ("GET", "HEAD")


class TooMany(AccessRefused):
    """The client asked too often."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = max(1, math.ceil(wait_s))
        super().__init__(429, f"You asked too often. Ask again in {self.wait_s} s.")


class Guard:
    """Decides on requests; safe for several threads."""

    def __init__(self, store: Store, access: Access) -> None:
        self.access = access
        self._store = store
        self._reads, self._writes, self._failures = Limiter(READS), Limiter(WRITES), Limiter(FAILURES)

    def may(self, right: Right) -> Callable[[Request], Caller]:
        """A dependency for routes: gives the caller, and refuses who lacks the right."""

        def dependency(request: Request) -> Caller:
            return self.check(request, right)

        return dependency

    def check(self, request: Request, right: Right) -> Caller:
        """Who asks. Raises AccessRefused where the right is missing, another site's page asks, or it asks too often."""
        caller, writes = self._caller(request), request.method not in READING
        self.count(caller, writes=writes)
        try:
            if writes and (why := foreign(request.headers, ambient=caller.ambient)):
                raise AccessRefused(
                    403,
                    f"Another site's page sent this request ({why}). Nothing was done. Repeat it here, on this site.",
                )
            require(caller, right)
        except AccessRefused as error:
            if not writes:
                self.count(caller, writes=True)  # the log keeps a line of it
            self.note(caller.person.entry("request", subject_of(request), error.text, allowed=False))
            raise
        return caller

    def count(self, caller: Caller, *, writes: bool) -> None:
        """Counts one request. Raises TooMany where the person asks too often."""
        person = caller.person
        client = f"{person.how} {person.address if person.how == 'loopback' else person.name}"
        if wait := (self._writes if writes else self._reads).take(client):
            raise TooMany(wait)

    def known(self, request: Request) -> Caller | None:
        """Who asks; None where the request does not say so credibly."""
        try:
            return self._caller(request)
        except AccessRefused:
            return None

    def _caller(self, request: Request) -> Caller:
        address = address_of(request)
        if self.access.guesses(request.headers):
            self.too_many_failures(request)
        try:
            return self.access.caller(request.headers, request.cookies, address)
        except AccessRefused as error:
            if error.tried:
                self.too_many_failures(request)
                self.failed(request, error)
            raise

    def failed(self, request: Request, error: AccessRefused) -> None:
        """Counts a request whose proof is not accepted, and writes it into the audit log."""
        address = address_of(request)
        self._failures.take(address)
        action = "login" if request.url.path == "/login" else "request"
        self.note(
            AuditEntry(
                who=error.who,
                how="",
                address=address,
                action=action,  # type: ignore[arg-type]
                subject=subject_of(request),
                allowed=False,
                detail=error.text,
            )
        )

    def too_many_failures(self, request: Request) -> None:
        """Raises TooMany where too many proofs of this client were not accepted."""
        if self._failures.empty(address_of(request)):
            raise TooMany(1 / FAILURES.per_s)

    def note(self, entry: AuditEntry) -> None:
        """Writes a line into the audit log, or to stderr where the store cannot be written."""
        try:
            self._store.people.log(entry)
        except StoreError:
            print(
                f"qualify web: refused {entry.subject!r} to {entry.who!r}; the audit log takes no line", file=sys.stderr
            )


def address_of(request: Request) -> str:
    """The address of the client."""
    return request.client.host if request.client else "unknown"


def subject_of(request: Request) -> str:
    """What a request is about, for the log."""
    return f"{request.method} {request.url.path}"[:500]

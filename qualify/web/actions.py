"""The routes that write: sign-offs, comments, holds, and the login of a browser."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from qualify.cards.access import RIGHTS
from qualify.facts import codec
from qualify.facts.people import SignOffState
from qualify.judge.signing import act_on_hold, comment, revoke, sign, why_not_signed
from qualify.report.signoffs import plain_data
from qualify.report.sitepages.parts import case_address, render_parts, run_address
from qualify.report.sitepages.people import account_page, login_page
from qualify.web.access import COOKIE, SESSION_S, AccessRefused, Caller
from qualify.web.body import JSON, CommentAsk, LoginAsk, ReasonAsk, SignAsk, described, parsed, raw_body
from qualify.web.guard import Guard, address_of
from qualify.web.limits import foreign
from qualify.web.site import Site

Body = Annotated[tuple[str, bytes], Depends(raw_body)]
LONGEST_NUMBER = 2**63 - 1


def actions(site: Site, guard: Guard, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    """The routes.

    Args:
        errors: other answers that the OpenAPI description lists.
    """
    router = APIRouter(responses=errors)
    _add_signing(router, site, guard)
    _add_talking(router, site, guard)
    return router


def _add_signing(router: APIRouter, site: Site, guard: Guard) -> None:
    signer, card = Depends(guard.may("sign")), guard.access.card

    @router.post("/runs/{run}/signoffs", status_code=201, openapi_extra=described(SignAsk))
    def add_signoff(run: str, body: Body, caller: Caller = signer) -> Response:
        """Sign the evidence of a run that qualified."""
        asked, judged, now = parsed(SignAsk, body), site.judged(run), datetime.now(UTC)
        if why := why_not_signed(judged):
            raise HTTPException(409, f"Run {judged.run.id} cannot be signed: {why}.")
        said = {"role": asked.role, "reason": asked.reason, "sha256": asked.sha256}
        done = sign(site.store, judged, caller.person, card, now=now, **said)
        state: SignOffState = "valid" if done.proven else "unproven"
        return _done(body, {"state": state, **plain_data(done)}, f"{run_address(done.run_id)}/decision")

    @router.post("/signoffs/{number}/revoke", status_code=201, openapi_extra=described(ReasonAsk))
    def end_signoff(number: int, body: Body, caller: Caller = signer) -> Response:
        """Revoke a sign-off, with a reason."""
        asked = parsed(ReasonAsk, body)
        if not 0 < number <= LONGEST_NUMBER or site.store.people.signoff(number) is None:
            raise HTTPException(404, f"There is no sign-off {number}.")
        done = revoke(site.store, number, caller.person, card, reason=asked.reason, now=datetime.now(UTC))
        return _done(body, {"state": "revoked", **plain_data(done)}, f"{run_address(done.run_id)}/decision")


def _add_talking(router: APIRouter, site: Site, guard: Guard) -> None:
    writer = Depends(guard.may("comment"))

    @router.post("/comments", status_code=201, openapi_extra=described(CommentAsk))
    def add_comment(body: Body, caller: Caller = writer) -> Response:
        """Comment on a run, or on a case in all runs."""
        asked = parsed(CommentAsk, body)
        if bool(asked.run) == bool(asked.case):
            raise HTTPException(400, "A comment is about a run or about a case: give one of both.")
        run = site.head(asked.run).id if asked.run else None
        if asked.case and not site.store.overview.case_history(asked.case, 1):
            raise HTTPException(404, f"No run has a case {asked.case!r}.")
        now = datetime.now(UTC)
        done = comment(site.store, caller.person, run_id=run, case_id=asked.case, text=asked.text, now=now)
        back = f"{run_address(run)}/decision" if run else case_address(asked.case)
        return _done(body, codec.to_data(done), back)

    @router.post("/holds/{number}/{kind}", status_code=201, openapi_extra=described(ReasonAsk))
    def on_hold(number: int, kind: str, body: Body, caller: Caller = writer) -> Response:
        """Acknowledge or release a hold of a canary."""
        asked = parsed(ReasonAsk, body)
        if kind not in ("acknowledge", "release"):
            raise HTTPException(404, "A hold is acknowledged or released.")
        if not 0 < number <= LONGEST_NUMBER or not site.has_hold(number):
            raise HTTPException(404, f"There is no hold {number}.")
        done = act_on_hold(site.store, number, kind, caller.person, reason=asked.reason, now=datetime.now(UTC))
        return _done(body, codec.to_data(done), f"/holds/{number}")


def login(guard: Guard) -> APIRouter:
    """The login of a browser, which needs no login itself."""
    router = APIRouter(include_in_schema=False)

    @router.api_route("/login", methods=["GET", "HEAD"])
    def ask(request: Request) -> Response:
        caller, card = guard.known(request), guard.access.card
        if caller is None:
            return HTMLResponse(render_parts(login_page(with_token=guard.access.has_tokens)))
        rights = [it for it in RIGHTS if it in caller.rights]
        roles = card.roles_of(caller.person.name) if "sign" in caller.rights else ()
        return HTMLResponse(render_parts(account_page(caller.person.name, caller.person.how, rights, roles)))

    @router.post("/login")
    def log_in(request: Request, body: Body) -> Response:
        guard.too_many_failures(request)
        if why := foreign(request.headers, ambient=True):
            raise AccessRefused(403, f"Another site's page sent this request ({why}). Log in on a page of this site.")
        try:
            asked = parsed(LoginAsk, body)
            request.state.back = asked.back
            token = asked.token.strip()
            caller = guard.access.holder(token, address_of(request))
        except AccessRefused as error:
            guard.failed(request, error)
            raise
        guard.count(caller, writes=True)
        session = guard.access.log_in(token, caller)
        guard.note(caller.person.entry("login", "login"))
        answer = RedirectResponse(within(asked.back), 303)
        options: dict[str, Any] = {"httponly": True, "samesite": "strict", "max_age": SESSION_S, "path": "/"}
        answer.set_cookie(COOKIE, session, secure=request.headers.get("origin", "").startswith("https://"), **options)
        return answer

    @router.post("/logout")
    def log_out(request: Request) -> Response:
        if why := foreign(request.headers, ambient=True):
            raise AccessRefused(403, f"Another site's page sent this request ({why}). Log in on a page of this site.")
        if person := guard.access.log_out(request.cookies.get(COOKIE, ""), address_of(request)):
            guard.note(person.entry("logout", "logout"))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    return router


def within(back: str) -> str:
    """The address, where it surely is on this site; else that of the first page."""
    return back if re.fullmatch(r"/(?![/\\])[!-~]*", back) else "/"


def _done(body: tuple[str, bytes], data: dict[str, Any], back: str) -> Response:
    """What was done: as JSON for a program, and back to the page for a form."""
    return JSONResponse(data, 201) if body[0] == JSON else RedirectResponse(back, 303)

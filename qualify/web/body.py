"""Bodies of requests: bounded, and either a form or JSON."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qualify.facts.people import LONGEST_NAME, LONGEST_TEXT
from qualify.web.limits import LONGEST_BODY

LONGEST_ADDRESS = 4_000
"""characters of the address to which a login leads back"""
FORM, JSON = "application/x-www-form-urlencoded", "application/json"
Asked = TypeVar("Asked", bound="Ask")
TOO_LONG = "qualify.body_too_long"
"""what BodyLimit tells the routes of a request"""
UNKEPT = re.compile(r"[\x00\ud800-\udfff]")
"""what no database keeps as text: NUL, and half of a character that JSON wrote as two"""


def _lines(text: Any) -> Any:
    """The text with LF between its lines: a browser sends CRLF, although its form counts that as one character."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if isinstance(text, str) else text


Said = Annotated[str, BeforeValidator(_lines), Field(min_length=1, max_length=LONGEST_TEXT)]


class Ask(BaseModel):
    """What a request asks for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _kept(cls, value: Any) -> Any:
        if isinstance(value, str) and (found := UNKEPT.search(value)):
            raise ValueError(f"has a character that cannot be stored, U+{ord(found[0]):04X}")
        return value


class SignAsk(Ask):
    """A sign-off."""

    role: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    reason: Said
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""


class ReasonAsk(Ask):
    """A revocation, or what is done about a hold."""

    reason: Said


class CommentAsk(Ask):
    """A comment on a run, or on a case."""

    run: Annotated[str, Field(max_length=LONGEST_NAME)] = ""
    case: Annotated[str, Field(max_length=2000)] = ""
    text: Said


class LoginAsk(Ask):
    """A token."""

    token: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    back: Annotated[str, Field(max_length=LONGEST_ADDRESS)] = ""


class BodyLimit:
    """Takes bodies whole before anything else is done, up to the length of the longest form of the site.

    So a client that sends its body slowly holds nothing that answers others.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stated = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        too_long, content, given = not stated.isdigit() or int(stated) > LONGEST_BODY, b"", False
        more = not too_long
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":  # nobody waits for an answer
                return
            content += message.get("body", b"")
            too_long = len(content) > LONGEST_BODY
            more = message.get("more_body", False) and not too_long

        async def whole() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": content, "more_body": False}

        await self._app({**scope, TOO_LONG: too_long}, whole, send)


async def refuse_long(request: Request) -> None:
    """A dependency of all routes, so that the application explains it like any other error. Raises HTTPException."""
    if request.scope[TOO_LONG]:
        raise HTTPException(413, f"A request has at most {LONGEST_BODY:,} bytes. Shorten the text.")


async def raw_body(request: Request) -> tuple[str, bytes]:
    """The content type and the body of a request: a dependency of routes that write."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind, await request.body()


def parsed(kind: type[Asked], body: tuple[str, bytes]) -> Asked:
    """The body as that kind of request. Raises HTTPException (400, 415) where it is none."""
    content_type, content = body
    try:
        data: Any
        if content_type == JSON:
            data = json.loads(content)
        elif content_type == FORM:
            data = dict(
                parse_qsl(content.decode(), keep_blank_values=True, strict_parsing=bool(content), max_num_fields=20)
            )
        else:
            raise HTTPException(415, f"A body is {FORM} or {JSON}, not {content_type[:80] or 'of no kind'}.")
        return kind.model_validate(data)
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, it['loc'])) or 'body'}: {it['msg']}" for it in error.errors()[:5])
        raise HTTPException(400, f"The request is not understood: {found}.") from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"The body is no {content_type}.") from error


def described(kind: type[Ask]) -> dict[str, Any]:
    """The body in the OpenAPI description, as programs send it. Browsers send forms instead."""
    schema = kind.model_json_schema()
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}

"""One attempt to tell a target, within one deadline, however slowly it answers."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx2

from qualify import __version__
from qualify.canary.alerts.credentials import address_of, secret_of
from qualify.canary.alerts.formats import Message, message
from qualify.canary.alerts.guard import resolve
from qualify.canary.alerts.undelivered import Undelivered
from qualify.cards.canary import AlertTarget
from qualify.facts.canary import Alert

DEADLINE_S = 15.0
"""seconds for an attempt, from the resolver to the last byte of the answer"""
CONNECT_S = 5.0
READ_BYTES = 4096
"""bytes of an answer that are read; the rest is not"""
PORTS = {"http": 80, "https": 443}
SLACK_ERROR = re.compile(r"[a-z_]{1,60}")
"""an error as Slack names it, in one word"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetAnswer:
    """What a target said."""

    status: int
    headers: Mapping[str, str]
    text: str
    """beginning of the answer"""


async def tell(alert: Alert, target: AlertTarget, folder: Path, *, deadline_s: float = DEADLINE_S) -> None:
    """Deliver one alert. Returns where the target took it; else raises Undelivered."""
    try:
        async with asyncio.timeout(deadline_s):
            url, secret = _url(address_of(target, folder)), secret_of(target, folder)
            addresses = await resolve(url.host, _port(url), allow_private=target.allow_private)
            made = message(alert, target, str(url), secret, datetime.now(UTC))
            answer = await _post(made, addresses)
    except TimeoutError:
        raise Undelivered(f"no answer within {deadline_s:g} s") from None
    _judge(target, answer)


def _url(text: str) -> httpx2.URL:
    """The parsed address. An error does not repeat the address, which may hold a secret."""
    try:
        url = httpx2.URL(text)
    except (httpx2.InvalidURL, ValueError):
        raise Undelivered("the address is not a URL") from None
    if url.scheme not in PORTS or not url.host:
        raise Undelivered("the address must begin with https:// or http:// and a host")
    if url.userinfo:
        raise Undelivered("the address holds a user name or password; give a token with secret_file or secret_env")
    return url


def _port(url: httpx2.URL) -> int:
    return url.port or PORTS[url.scheme]


async def _post(made: Message, addresses: list[str]) -> TargetAnswer:
    """Post to the first judged address that takes a connection. No proxy, no redirect, no cookie, no decompression."""
    url = httpx2.URL(made.url)
    headers = {
        "host": url.netloc.decode("ascii"),
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": f"qualify/{__version__}",
        **made.headers,
    }
    timeout = httpx2.Timeout(DEADLINE_S, connect=CONNECT_S)
    # The certificate is checked for the name on the card; SSL_CERT_FILE names an authority of one's own.
    context = ssl.create_default_context()
    async with httpx2.AsyncClient(verify=context, trust_env=False, follow_redirects=False, timeout=timeout) as client:
        trouble: httpx2.RequestError | None = None
        for address in addresses:
            request = client.build_request(
                "POST",
                url.copy_with(host=address),
                headers=headers,
                content=made.content,
                extensions={"sni_hostname": url.host},
            )
            try:
                return await _answer(client, request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                trouble = error
            except httpx2.RequestError as error:
                trouble = error
                break
        raise Undelivered(_told(trouble, url.host)) from None


async def _answer(client: httpx2.AsyncClient, request: httpx2.Request) -> TargetAnswer:
    response = await client.send(request, stream=True)
    read = b""
    try:
        async for chunk in response.aiter_raw():
            read += chunk
            if len(read) >= READ_BYTES:
                break
    finally:
        await response.aclose()
    return TargetAnswer(
        status=response.status_code, headers=response.headers, text=read[:READ_BYTES].decode(errors="replace")
    )


def _told(error: Exception | None, host: str) -> str:
    """A failure of the connection in words that repeat nothing of the request."""
    match error:
        case httpx2.TimeoutException():
            return f"host {host} did not answer in time"
        case httpx2.ConnectError():
            cause = _cause(error)
            if isinstance(cause, ssl.SSLCertVerificationError):
                return f"host {host}: its certificate is not valid ({cause.verify_message})"
            if isinstance(cause, ssl.SSLError):
                return f"host {host} does not speak TLS ({cause.reason or 'no reason given'})"
            strerror = getattr(cause, "strerror", None)
            return f"host {host} cannot be connected to{f' ({strerror})' if strerror else ''}"
        case httpx2.ProtocolError():
            return f"host {host} did not answer in HTTP"
        case _:
            return f"host {host} broke the connection"


def _cause(error: BaseException) -> BaseException:
    """What the operating system or TLS said first."""
    seen = error
    while (inner := seen.__cause__ or seen.__context__) is not None:
        seen = inner
    return seen


def _judge(target: AlertTarget, answer: TargetAnswer) -> None:
    """Raises Undelivered where the answer does not say that the alert was taken."""
    status = answer.status
    if 300 <= status < 400:
        raise Undelivered(f"HTTP {status}: it redirects, which is not followed; put the right address on the card")
    if not 200 <= status < 300:
        word = answer.text.strip() if target.kind == "slack" else ""
        detail = f" ({word})" if SLACK_ERROR.fullmatch(word) else ""
        raise Undelivered(f"HTTP {status}{detail}", final=status == 410, after_s=_retry_after(answer.headers))
    if target.kind == "slack" and answer.text.strip() != "ok":
        raise Undelivered(f"HTTP {status}, but the answer is not Slack's: it is probably another site's page")


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the target asks to wait; 0.0 where it does not, or gives a date."""
    text = headers.get("retry-after", "").strip()
    return float(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0.0

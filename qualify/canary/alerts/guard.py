"""Which addresses an alert may be sent to: whoever edits a card must not reach what only this machine can reach.

A host is resolved once, every address of it is judged, and the connection goes to a judged address: a name that means
another address a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from qualify.canary.alerts.undelivered import Undelivered

Address = IPv4Address | IPv6Address

METADATA = tuple(
    ip_network(text)
    for text in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32")
)
"""addresses at which clouds hand out credentials to anybody: link-local ones, and those of AWS, Alibaba and Azure"""
SHARED = ip_network("100.64.0.0/10")
"""carrier-grade NAT: neither private nor global"""
TRANSLATED = ip_network("64:ff9b::/96")
"""NAT64: the last 32 bits are an IPv4 address"""


async def resolve(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The addresses of a host, in the resolver's order. Raises Undelivered where an alert may not go to one of them."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a host name"
        raise Undelivered(f"host {host}: {reason}") from None
    addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
    for text in addresses:
        check(host, text, allow_private=allow_private)
    return addresses


def check(host: str, text: str, *, allow_private: bool) -> None:
    """Raises Undelivered where an alert may not go to that address of the host."""
    address = ip_address(text.partition("%")[0])
    for meant in _meant(address):
        if why := _why_not(meant, allow_private=allow_private):
            shown = f"{host} is {text}, {why}" if host != text else f"{host} is {why}"
            raise Undelivered(f"refused: {shown}")


def _meant(address: Address) -> list[Address]:
    """The address, and the IPv4 addresses that it stands for."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped:
        return [address.ipv4_mapped]
    inner = [address.sixtofour, *(address.teredo or ())]
    if address in TRANSLATED:
        inner.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [address, *(item for item in inner if item is not None)]


def _why_not(address: Address, *, allow_private: bool) -> str:
    """Why an address is refused; empty where it is not."""
    if any(address in network for network in METADATA):
        return "a link-local or metadata address"
    if address.is_multicast or address.is_unspecified:
        return "no address of one host"
    if address.is_loopback or address.is_private or address in SHARED:
        # Documentation, benchmarking and "this network" count as private here, as they do for the standard library.
        return "" if allow_private else "a loopback or private address; the card allows it with allow_private: true"
    return "" if address.is_global else "a reserved address"

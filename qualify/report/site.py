"""What every page of ``qualify web`` has that is no report, and the navigation between them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from qualify import __version__

ACCOUNT = "/login"
"""where a person logs in, and sees afterwards who the site takes the person for"""
NAVIGATION: tuple[tuple[str, str], ...] = (
    ("/", "Now"),
    ("/runs", "Runs"),
    ("/models", "Models"),
    ("/kernels", "Kernels"),
    ("/findings", "Findings"),
    ("/waivers", "Waivers"),
    ("/canaries", "Canaries"),
    ("/holds", "Holds"),
    ("/duels", "Duels"),
    ("/fleets", "Fleets"),
    ("/stacks", "Stacks"),
    ("/selftest", "Selftest"),
    ("/compare", "Compare"),
    (ACCOUNT, "Account"),
)
"""address and words"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteFrame:
    """What the site puts around a page: the navigation, and where else the same facts are."""

    twin: str = ""
    """address of its JSON; empty = none"""
    csv: str = ""
    """address of its first table as CSV; empty = it has none"""
    here: str = ""
    """address of the entry of the navigation that it belongs to"""

    @property
    def permalink(self) -> str:
        """The address at which this page stays, which is that of its twin without the ending; empty = none."""
        path, mark, query = self.twin.partition("?")
        path = path.removesuffix(".json")
        return ("/" if path == "/home" else path) + mark + query


@dataclass(frozen=True, kw_only=True, slots=True)
class SitePage(SiteFrame):
    """What every page has that is no report."""

    title: str
    summary: str = ""
    version: str = __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class MessagePage(SitePage):
    """Something in words."""

    text: str
    leads_to: str = ""
    """address behind the text, which names it last"""
    items: tuple[str, ...] = ()
    """single points of it"""
    advice: tuple[str, ...] = ()
    """said below them, a paragraph each"""


def case_href(cases_at: str, case_id: str) -> str:
    """The page of a case under the address of a list of cases. Slashes stay: a case's id is a path."""
    return f"{cases_at}/{quote(case_id)}"

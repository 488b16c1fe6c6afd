"""Fields that every page of ``qualify web`` has, and the navigation between the pages."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from qualify import __version__

ACCOUNT = "/login"
"""address where a person logs in, and afterwards sees as whom the site knows them"""
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
"""address and words of each entry"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteFrame:
    """What the site puts around a page: the navigation, and addresses of the same facts as JSON and CSV."""

    twin: str = ""
    """address of its JSON; empty = none"""
    csv: str = ""
    """address of its main table as CSV; empty = it has none"""
    here: str = ""
    """address of the navigation entry that the page belongs to"""

    @property
    def permalink(self) -> str:
        """The lasting address of this page: that of its JSON without the ending; empty = it has none."""
        path, mark, query = self.twin.partition("?")
        path = path.removesuffix(".json")
        return ("/" if path == "/home" else path) + mark + query


@dataclass(frozen=True, kw_only=True, slots=True)
class SitePage(SiteFrame):
    """A page of the site that is no report."""

    title: str
    summary: str = ""
    version: str = __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class MessagePage(SitePage):
    """A page that only says something in words."""

    text: str
    leads_to: str = ""
    """address to which a link behind the text leads; empty = no link"""
    items: tuple[str, ...] = ()
    """list items below the text"""
    advice: tuple[str, ...] = ()
    """paragraphs below the items"""


def case_href(cases_at: str, case_id: str) -> str:
    """The address of a case's page, below that of the list of cases. Slashes of the id stay, because it is a path."""
    return f"{cases_at}/{quote(case_id)}"

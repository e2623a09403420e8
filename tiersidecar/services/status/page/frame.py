"""Common parts of all pages: style sheet and script, head, navigation, footer; tables that turn into cards on a phone; the page
for an unknown path.

The policy names style sheet and script by their hashes, and allows nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from urllib.parse import urlencode

from tiersidecar.domain.readable import cut_text, moment_text
from tiersidecar.services.status.cluster import Cluster
from tiersidecar.services.status.page.drawing import TIER_WORDS, TIERS, Html, join, swatch, tag

PER_PAGE = 50
_LINKS = (
    ("overview", "this sidecar as JSON"),
    ("status", "its partitions"),
    ("metrics", "metrics"),
    ("readyz", "readiness"),
)


def whole_page(*, title: str, where: str, crumbs: Sequence[tuple[str, str]], body: object, asked_ms: int) -> str:
    """Return a document; ``crumbs`` are (text, link) of the pages above, ``where`` names process and cluster."""
    trail = [tag("li", tag("a", text, href=href)) for text, href in crumbs] + (
        [tag("li", title, aria_current="page")] if crumbs else []
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · tiersidecar"),
        tag("style", Html(STYLE)),
    )
    header = tag(
        "header",
        tag("a", "Skip to content", href="#content", class_="skip"),
        tag("p", tag("a", "tiersidecar", href="."), class_="brand"),
        tag("nav", tag("ol", trail), aria_label="Breadcrumb") if crumbs else tag("p", where, class_="where"),
        tag("button", "Pause refresh", id="live", type="button", hidden=True, class_="push"),
    )
    footer = tag(
        "footer",
        tag(
            "p",
            [join(" · " if number else "", tag("a", text, href=href)) for number, (href, text) in enumerate(_LINKS)],
        ),
        tag("p", "Names, offsets and sizes alone: no record is ever on this page."),
    )
    main = tag("main", body, tag("p", f"As of {moment_text(asked_ms)}.", class_="soft"), id="content", tabindex="-1")
    document = tag("html", head, tag("body", header, main, footer, tag("script", Html(SCRIPT))), lang="en")
    return f"<!doctype html>{document}"


def table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]], *, caption: str) -> Html:
    """Return a table.  Columns are (heading, class); a row's first cell is its heading.  On a phone each row is a card."""
    head = tag("tr", [tag("th", text, scope="col", class_=kind or None) for text, kind in columns])
    lines = []
    for row in rows:
        cells = [tag("th", row[0], scope="row", class_=columns[0][1] or None)]
        for cell, (text, kind) in zip(row[1:], columns[1:], strict=True):
            shown = join(cell)
            cells.append(tag("td", shown, class_=kind or None, data_label=text if shown else None))
        lines.append(tag("tr", cells))
    return tag("table", tag("caption", caption), tag("thead", head), tag("tbody", lines), class_="cards")


def scrolled(content: Html, *, label: str) -> Html:
    """Return content that may be wider than the page; it can be scrolled by keyboard, too."""
    return tag("div", content, class_="scroll", role="region", aria_label=label, tabindex="0")


def legend() -> Html:
    """Return the colours of a log's line."""
    swatches = (tag("li", swatch(name), tag("b", TIER_WORDS[name][0]), f" {TIER_WORDS[name][1]}") for name in TIERS)
    return tag("ul", swatches, class_="legend")


def pages_of(count: int, page: int, link: dict[str, object], path: str) -> Html | None:
    """Return links to the pages of a long list; pages begin at 1."""
    last = max((count + PER_PAGE - 1) // PER_PAGE, 1)
    if last == 1:
        return None
    first, upto = (page - 1) * PER_PAGE + 1, min(page * PER_PAGE, count)
    return tag(
        "nav",
        tag("p", f"{first:,} to {upto:,} of {count:,}"),
        tag("a", "Previous", href=href(path, **link, page=page - 1), rel="prev") if page > 1 else None,
        tag("a", "Next", href=href(path, **link, page=page + 1), rel="next") if page < last else None,
        class_="pages",
        aria_label="Pages",
    )


def within(count: int, page: int) -> int:
    """Return ``page`` itself, or the nearest that exists."""
    return min(max(page, 1), max((count + PER_PAGE - 1) // PER_PAGE, 1))


def href(path: str, **query: object) -> str:
    """Return a link relative to the page, so that it works behind a proxy's prefix too."""
    return f"{path}?{urlencode(query)}"


def pill(text: str, kind: str) -> Html:
    return tag("span", text, class_=f"pill {kind}")


def section(title: str, *content: object) -> Html:
    return tag("section", tag("h2", title), *content)


def facts(rows: Iterable[tuple[str, object, str, bool]]) -> Html:
    """Return the figures at the top: (name, figure, detail, whether it is bad)."""
    return tag(
        "dl",
        [
            tag(
                "div",
                tag("dt", name),
                tag("dd", figure, tag("small", more) if more else None),
                class_="bad" if is_bad else None,
            )
            for name, figure, more, is_bad in rows
        ],
        class_="facts",
    )


_HERE = files("tiersidecar.services.status.page")
STYLE = _HERE.joinpath("page.css").read_text("utf-8")
SCRIPT = _HERE.joinpath("page.js").read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


POLICY = (
    f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of every page."""


_MOST = 200


def missing_page(cluster: Cluster, what: str) -> str:
    """Return the document."""
    silent = [f"broker {sidecar.node_id}" for sidecar in cluster.sidecars if sidecar.overview is None]
    unknown = f" {', '.join(silent)} did not answer, and may know it." if silent else ""
    body = join(
        tag("h1", f"No {cut_text(what, _MOST)} is known here"),
        tag(
            "p",
            f"No sidecar that answers has it: it is not tiered, is gone, or its leader's sidecar did not answer.{unknown}",
        ),
        tag("p", tag("a", "Back to the cluster", href=".")),
    )
    return whole_page(title="Not known", where="", crumbs=(("Cluster", "."),), body=body, asked_ms=cluster.asked_ms)

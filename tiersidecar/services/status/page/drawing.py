"""HTML that is always escaped, and drawings in it: a log as a line from its start to its end, and an hour as a small chart.

Children that are not :class:`Html` are text.  Inline SVG has no style of its own, since the page's policy allows only classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape

from tiersidecar.domain.readable import printable, size_text
from tiersidecar.services.status.history import INTERVAL_MS, POINTS, buckets
from tiersidecar.services.status.source import TierBytes

_VOID = frozenset({"br", "col", "link", "meta"})


class Html(str):
    """Markup made here, out of escaped text."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return one element.  Attributes: ``class_`` is class, ``data_label`` data-label; None leaves it out, True has no
    value."""
    shown = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{escape(printable(str(value)))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{shown}>" if name in _VOID else f"<{name}{shown}>{join(*children)}</{name}>")


def join(*children: object) -> Html:
    """Join children: markup as it is, text and numbers escaped, None left out, iterables flattened."""
    return Html("".join(map(_text, children)))


def _text(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        # Names come from clients: control characters and those that turn the direction of text are shown, not obeyed.
        return escape(printable(child))
    if isinstance(child, int):
        return f"{child:,}"
    if isinstance(child, Iterable):
        return "".join(map(_text, child))
    raise TypeError(f"{type(child).__name__} is no part of a page")


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


WIDTH = 1000
LEAST = 6
"""Least width of a part, of 1000: even a small one is seen."""
_CHART_HEIGHT = 100
_MOST_PIECES = 120

TIERS = tuple(field.name for field in fields(TierBytes))
"""Names in the order of offsets, in which they are drawn."""
TIER_WORDS = {
    "trash": ("trash", "given up; undelete brings it back until it is due"),
    "remote": ("remote", "in the store alone"),
    "both": ("both", "in the store and on the broker's disk"),
    "pinned": ("pinned", "deleted by the broker, kept by a hard link, not copied yet"),
    "local": ("local", "sealed, on the broker's disk alone"),
    "active": ("active", "the segment that the broker writes"),
}
STATE_TIERS = {
    "trash": "trash",
    "deleting": "trash",
    "outside-lineage": "trash",
    "given-up": "trash",
    "remote": "remote",
    "both": "both",
    "pinned": "pinned",
    "copying": "local",
    "local": "local",
    "active": "active",
}
"""Tier in which a segment of each state is drawn."""


def to_scale(amounts: Sequence[int], width: int = WIDTH, least: int = LEAST) -> list[int]:
    """Return a width for each amount, proportional, at least ``least`` where there is any, ``width`` in total.

    Where there are too many for that, all have less; only zeros have no width at all.
    """
    present = [amount for amount in amounts if amount > 0]
    if not present:
        return [0] * len(amounts)
    least = min(least, width // len(present))
    spare, total = width - least * len(present), sum(present)
    widths, seen, taken = list[int](), 0, 0
    for amount in amounts:
        seen += max(amount, 0)
        upto = spare * seen // total
        widths.append(least + upto - taken if amount > 0 else 0)
        taken = upto
    return widths


def tier_line(tiers: TierBytes, *, label: str) -> Html:
    """Draw the log as a line, from its start to its end, by bytes."""
    amounts = [getattr(tiers, name) for name in TIERS]
    shares = ", ".join(f"{name} {size_text(amount)}" for name, amount in zip(TIERS, amounts, strict=True) if amount)
    return _line(list(zip(TIERS, amounts, strict=True)), label=f"{label}: {shares or 'empty'}")


def segment_line(segments: Sequence[tuple[str, int]], *, label: str) -> Html:
    """Draw segments, (state, bytes) ascending by offset; neighbours of one state are merged where there are too many."""
    pieces = [(STATE_TIERS.get(state, "local"), size) for state, size in segments]
    if len(pieces) > _MOST_PIECES:
        pieces = _runs(pieces)
    return _line(pieces, label=label, class_="line tall")


def _runs(pieces: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    runs: list[tuple[str, int]] = []
    for name, size in pieces:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + size)
        else:
            runs.append((name, size))
    return runs


def _line(pieces: Sequence[tuple[str, int]], *, label: str, class_: str = "line") -> Html:
    widths = to_scale([size for _, size in pieces])
    start, drawn = 0, list[Html]()
    for (name, size), width in zip(pieces, widths, strict=True):
        if width:
            title = tag("title", f"{name} {size_text(size)}")
            drawn.append(tag("rect", title, class_=f"t-{name}", x=start, y=0, width=width, height=10))
            start += width
    return tag(
        "svg",
        drawn or tag("rect", class_="t-none", x=0, y=0, width=WIDTH, height=10),
        class_=class_,
        viewBox=f"0 0 {WIDTH} 10",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def hour_chart(points: Mapping[int, int], last: int, *, name: str, kind: str, is_rate: bool) -> Html:
    """Draw the hour that ends with the interval ``last`` as an area; intervals without a figure are left open.

    ``is_rate``: points are bytes in each interval, and shown as bytes per second; else they are bytes at its end.
    """
    values = [points.get(bucket) for bucket in buckets(last)]
    if is_rate:
        values = [None if value is None else value * 1000 // INTERVAL_MS for value in values]
    known = [value for value in values if value is not None]
    most, unit = max(known, default=0), "/s" if is_rate else ""
    now = known[-1] if known and values[-1] is not None else None
    scale = f"most {size_text(most)}{unit}" if known else "no figures yet"
    head = tag(
        "figcaption",
        tag("span", name, class_="name"),
        tag("strong", f"{size_text(now)}{unit}" if now is not None else "–"),
    )
    drawing = tag(
        "svg",
        [tag("path", class_="area", d=path) for path in _areas(values, most)],
        class_=f"chart c-{kind}",
        viewBox=f"0 0 {POINTS - 1} {_CHART_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{name} in the last hour: {scale}",
    )
    foot = tag("p", tag("span", "1 h ago"), tag("span", scale), tag("span", "now"), class_="axis")
    return tag("figure", head, drawing, foot)


def _areas(values: Sequence[int | None], most: int) -> list[str]:
    areas, begun = list[str](), None
    for x, value in enumerate([*values, None]):
        if value is not None and begun is None:
            begun = x
        if value is None and begun is not None:
            piece = [one or 0 for one in values[begun:x]]
            if len(piece) == 1:
                piece *= 2
            corners = " ".join(f"L{begun + step} {_height(one, most)}" for step, one in enumerate(piece))
            areas.append(f"M{begun} {_CHART_HEIGHT} {corners} L{begun + len(piece) - 1} {_CHART_HEIGHT} Z")
            begun = None
    return areas


def _height(value: int, most: int) -> int:
    # A flat zero is a line at the bottom, and still visible.
    return _CHART_HEIGHT - 2 - (_CHART_HEIGHT - 6) * value // most if most > 0 else _CHART_HEIGHT - 2


def swatch(tier: str) -> Html:
    """Return a small square of its colour."""
    return tag("svg", tag("rect", class_=f"t-{tier}", width=10, height=10), viewBox="0 0 10 10", aria_hidden="true")


def share_bar(part: int, whole: int, *, label: str, kind: str) -> Html:
    """Return the used part of a whole, as a bar."""
    widths = to_scale([part, max(whole - part, 0)], least=0)
    return tag(
        "svg",
        tag("rect", class_="track", x=0, y=0, width=WIDTH, height=10),
        tag("rect", class_=f"fill {kind}", x=0, y=0, width=widths[0], height=10),
        class_="line share",
        viewBox=f"0 0 {WIDTH} 10",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )

"""HTML that cannot be had without escaping: what is not :class:`Html` is text."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from tiersidecar.domain.readable import printable

_VOID = frozenset({"br", "col", "link", "meta"})


class Html(str):
    """Markup that was made here, out of text that was escaped."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """One element.  Attributes: ``class_`` is class, ``data_label`` data-label; None leaves one out, True has no value."""
    shown = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{escape(printable(str(value)))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{shown}>" if name in _VOID else f"<{name}{shown}>{join(*children)}</{name}>")


def join(*children: object) -> Html:
    """Children one after the other: markup as it is, text and numbers escaped, None left out, iterables flattened."""
    return Html("".join(map(_text, children)))


def _text(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        # Names are others': control characters and those that turn the direction of text are shown, not followed.
        return escape(printable(child))
    if isinstance(child, int):
        return f"{child:,}"
    if isinstance(child, Iterable):
        return "".join(map(_text, child))
    raise TypeError(f"{type(child).__name__} is no part of a page")


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")

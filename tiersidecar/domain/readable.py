"""Readable forms of sizes, times and durations."""

from __future__ import annotations

from datetime import UTC, datetime

_MOST_SHOWN = 512
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1000, 60_000, 3_600_000, 86_400_000


def printable(text: str) -> str:
    """Return ``text`` without what a terminal would act on: control characters as escapes (``\\x1b``), and no line breaks.

    Names given by clients (client ids, principals, group ids) reach logs and tables: they must not move the cursor.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def cut_text(text: str, most: int = _MOST_SHOWN) -> str:
    """Return ``text``, cut after ``most`` characters, with how many there were."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def size_text(size_bytes: int) -> str:
    """Return a size such as ``1.5 GiB``."""
    amount, unit = float(size_bytes), 0
    while abs(amount) >= 1023.95 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def duration_text(time_ms: float) -> str:
    """Return a duration such as ``3d 4h`` or ``5m 2s``: the two largest units."""
    if time_ms < _SECOND_MS:
        return f"{round(time_ms)}ms"
    left, parts = round(time_ms), list[str]()
    for unit_ms, name in ((_DAY_MS, "d"), (_HOUR_MS, "h"), (_MINUTE_MS, "m"), (_SECOND_MS, "s")):
        count, left = divmod(left, unit_ms)
        if count or parts:
            parts.append(f"{count}{name}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0"))


def moment_text(time_ms: int) -> str:
    """Return a time such as ``2026-01-31T08:15:00Z``; records may bear any number as their time."""
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"

"""Format plain tables, and sizes, times and counts in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiersidecar.domain.readable import duration_text, moment_text, printable, size_text


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return the rows as text: columns two spaces apart, numbers and sizes right-aligned, None as an empty cell."""
    lines = [tuple(columns), *(tuple(_text(cell) for cell in row) for row in rows)]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    rightward = [any(_is_amount(row[number]) for row in rows) for number in range(len(columns))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, rightward, strict=True)
        ).rstrip()
        for line in lines
    )


class Amount(str):
    """A text that is right-aligned like a number."""

    __slots__ = ()


def size(size_bytes: int | None) -> Amount:
    """Return ``1.5 GiB``; empty if it is not known."""
    return Amount("" if size_bytes is None else size_text(size_bytes))


def duration(time_ms: float | None) -> Amount:
    """Return ``3d 4h``; empty if it is not known."""
    return Amount("" if time_ms is None else duration_text(time_ms))


def moment(time_ms: int | None) -> str:
    """Return ``2026-01-31T08:15:00Z``; empty if it is not known, or negative."""
    return "" if time_ms is None or time_ms < 0 else moment_text(time_ms)


def _is_amount(cell: Any) -> bool:
    return isinstance(cell, (int, float, Amount)) and not isinstance(cell, bool)


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if isinstance(cell, int) else printable(str(cell))

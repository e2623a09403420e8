"""Sizes, times and tables as people read them."""

from __future__ import annotations

import pytest

from tiersidecar.app.commands.tables import duration, moment, size, table


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        pytest.param(0, "0 B", id="nothing"),
        pytest.param(1023, "1023 B", id="bytes are exact"),
        pytest.param(1536, "1.5 KiB", id="one digit behind the point"),
        pytest.param(1024**2 - 1, "1.0 MiB", id="no 1024.0 KiB"),
        pytest.param(3 * 1024**5, "3.0 PiB", id="the largest unit"),
        pytest.param(None, "", id="not known"),
    ],
)
def test_a_size(size_bytes: int | None, text: str) -> None:
    assert size(size_bytes) == text


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        pytest.param(7, "7ms", id="less than a second"),
        pytest.param(62_000, "1m 2s", id="two units"),
        pytest.param(3_600_000, "1h", id="no units of nothing"),
        pytest.param(90_061_000, "1d 1h", id="the two largest"),
        pytest.param(None, "", id="not known"),
    ],
)
def test_a_duration(time_ms: int | None, text: str) -> None:
    assert duration(time_ms) == text


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        pytest.param(0, "1970-01-01T00:00:00Z", id="the epoch"),
        pytest.param(-1, "", id="no time"),
        pytest.param(2**62, f"{2**62} ms", id="a record's time that no calendar has"),
    ],
)
def test_a_moment(time_ms: int, text: str) -> None:
    assert moment(time_ms) == text


def test_numbers_stand_to_the_right_and_texts_to_the_left() -> None:
    shown = table(("name", "count", "size"), [("a", 1234567, size(1)), ("longer", None, size(2048))])
    assert shown.splitlines() == [
        "name        count     size",
        "a       1,234,567      1 B",
        "longer             2.0 KiB",
    ]


def test_what_a_client_has_named_moves_no_cursor_and_makes_no_line() -> None:
    """A client id reaches `trash ls` by the one who asked for a delete."""
    shown = table(("by", "state"), [["User:mallory (\x1b[2K\r\nUser:alice)", "waiting"]])
    assert shown.splitlines() == [
        "by                                    state",
        r"User:mallory (\x1b[2K\r\nUser:alice)  waiting",
    ]

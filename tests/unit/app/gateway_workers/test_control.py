"""The channel: a report arrives as it was sent, and anything else is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiersidecar.app.gateway_workers.control import Channel, Report, pair
from tiersidecar.reading.reader_limits import ColdReading

READINGS = st.builds(
    ColdReading,
    principal=st.text(),
    client_id=st.text(),
    topic=st.text(),
    requests=st.integers(0, 2**60),
    size_bytes=st.integers(0, 2**60),
)


@given(
    reasons=st.lists(st.text()),
    cold=st.lists(READINGS),
    node=st.none() | st.tuples(st.text(), st.integers(0, 2**31 - 1)),
)
def test_a_report_is_one_line_and_comes_back(
    reasons: list[str], cold: list[ColdReading], node: tuple[str, int] | None
) -> None:
    """Whatever clients call themselves: names with line ends, too."""
    report = Report(reasons=reasons, warnings=reasons, cold=cold, node=node, metrics={"counts": []})
    line = report.to_line()
    assert line.count(b"\n") == 1
    assert Report.of_line(line) == report


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"\n", id="nothing"),
        pytest.param(b"\xff\n", id="no text"),
        pytest.param(b"[]\n", id="no object"),
        pytest.param(b"{}\n", id="without its parts"),
        pytest.param(b"[" * 100_000, id="deeper than any report"),
        pytest.param(
            b'{"reasons": [], "warnings": [], "cold": [[1]], "node": null, "metrics": {}}\n', id="a short row"
        ),
        pytest.param(b'{"reasons": [], "warnings": [], "cold": [], "node": [1], "metrics": {}}\n', id="half a node"),
        pytest.param(b'{"reasons": 7, "warnings": [], "cold": [], "node": null, "metrics": {}}\n', id="no list"),
        pytest.param(
            b'{"reasons": [], "warnings": [], "cold": [], "node": ["a", Infinity], "metrics": {}}\n', id="no number"
        ),
        pytest.param(
            b'{"reasons": [], "warnings": [], "cold": [["a", "b", "c", 1, 1e999]], "node": null, "metrics": {}}\n',
            id="a number of bytes without end",
        ),
    ],
)
def test_what_is_no_report_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Report.of_line(line)


def test_names_of_files_that_are_no_text_can_be_shown() -> None:
    """A worker says what it cannot read, by the name that the system gave it."""
    report = Report.of_line(Report(reasons=["a\udcff cannot be read"], warnings=["\udcff"]).to_line())
    assert (report.reasons, report.warnings) == (["a? cannot be read"], ["?"])


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_no_json_does_more_than_be_refused(document: Any) -> None:
    try:
        Report.of_line(json.dumps(document).encode())
    except ValueError:
        return


async def test_an_end_that_is_closed_ends_the_channel() -> None:
    ours, theirs = [await Channel.of(end) for end in pair()]
    theirs.say("reload")
    theirs.close()
    assert [word async for word in ours.words()] == ["reload"]
    ours.say("to nobody")
    ours.say("nor this")
    with pytest.raises(OSError, match=r".*"):
        await ours.send(b"x" * 10_000_000 + b"\n")
    ours.close()

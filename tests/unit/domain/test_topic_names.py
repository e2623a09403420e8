"""Which names a topic can have: a name is a path on a broker's disk (issue 21)."""

from __future__ import annotations

import pytest

from tiersidecar.domain.ids import topic_name_fault


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param("orders", "", id="a name"),
        pytest.param("a.B_9-", "", id="all characters that there may be"),
        pytest.param("...", "", id="three dots are a name"),
        pytest.param("t" * 249, "", id="the longest"),
        pytest.param("t" * 250, "250 characters", id="one that is too long"),
        pytest.param("", "is empty", id="none"),
        pytest.param(".", "can be named", id="this directory"),
        pytest.param("..", "can be named", id="the directory above"),
        pytest.param("../../etc", "is not a topic name", id="a path out of the log dir"),
        pytest.param("/etc/cron.d/x", "is not a topic name", id="a path from the root"),
        pytest.param("a\nb", "'a\\\\nb' is not a topic name", id="a line break, which is shown as an escape"),
        pytest.param("a\n", "is not a topic name", id="a line break at the end"),
        pytest.param("\u00e4", "is not a topic name", id="a letter beyond ASCII"),
        pytest.param("a\0", "is not a topic name", id="a zero byte"),
    ],
)
def test_what_a_topic_can_be_named(name: str, fault: str) -> None:
    found = topic_name_fault(name)
    assert bool(found) == bool(fault)
    assert fault.replace("\\\\", "\\") in found

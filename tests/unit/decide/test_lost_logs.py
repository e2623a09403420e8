"""Which loss one of the sidecars' own topics proves of the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiersidecar.decide.lost_logs import KnownOfPartition, reason_log_lost

TIERED = KnownOfPartition(
    has_record=True,
    was_claimed=True,
    has_segments=True,
    was_seen=True,
    remote_log_start_offset=0,
    held_offset=100,
    state_loss_accepted=False,
    metadata_loss_accepted=False,
)
FORGOTTEN = replace(TIERED, has_record=False, was_seen=False, held_offset=-1, remote_log_start_offset=-1)
WITHOUT_EVENTS = replace(TIERED, has_segments=False)


@pytest.mark.parametrize(
    ("known", "lost"),
    [
        pytest.param(TIERED, "", id="both topics know it"),
        pytest.param(FORGOTTEN, "no record of it", id="remote, and the state topic does not know it"),
        pytest.param(
            replace(FORGOTTEN, was_claimed=False), "", id="native tiering left it: no sidecar was here before"
        ),
        pytest.param(replace(FORGOTTEN, state_loss_accepted=True), "", id="that is accepted"),
        pytest.param(
            replace(FORGOTTEN, metadata_loss_accepted=True),
            "no record of it",
            id="only the other topic's loss is accepted",
        ),
        pytest.param(replace(FORGOTTEN, has_segments=False), "", id="nobody knows it: nothing was copied yet"),
        pytest.param(WITHOUT_EVENTS, "the topic lost its events", id="trimmed, and nothing is remote"),
        pytest.param(replace(WITHOUT_EVENTS, metadata_loss_accepted=True), "", id="that is accepted, too"),
        pytest.param(
            replace(WITHOUT_EVENTS, state_loss_accepted=True), "the topic lost its events", id="the state topic's is"
        ),
        pytest.param(replace(WITHOUT_EVENTS, remote_log_start_offset=100), "", id="all that was remote has expired"),
        pytest.param(
            replace(WITHOUT_EVENTS, remote_log_start_offset=99), "the topic lost its events", id="all but one"
        ),
        pytest.param(replace(WITHOUT_EVENTS, held_offset=-1), "", id="nothing was trimmed: all is still local"),
        pytest.param(
            replace(WITHOUT_EVENTS, held_offset=1), "the topic lost its events", id="one record was trimmed, the first"
        ),
        pytest.param(
            replace(WITHOUT_EVENTS, held_offset=1, remote_log_start_offset=-1),
            "the topic lost its events",
            id="one was trimmed, and no remote start is known",
        ),
        pytest.param(replace(WITHOUT_EVENTS, held_offset=0), "", id="nothing of what was trimmed was remote"),
        pytest.param(replace(WITHOUT_EVENTS, was_seen=False), "", id="disk pressure gave up what was never remote"),
    ],
)
def test_what_is_lost(known: KnownOfPartition, lost: str) -> None:
    reason = reason_log_lost(known)
    assert bool(reason) is bool(lost)
    assert lost in reason

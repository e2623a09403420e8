"""What neither tier holds is told once, in a metric that an alert can see rise (rule 1)."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.metrics.copying import GAP_OFFSETS
from tiersidecar.tasks.copy import GapReport

TOPIC_ID_PARTITION = TopicIdPartition(topic_id=Uuid(bytes(range(1, 17))), topic="orders", partition=3)


@pytest.mark.parametrize(
    ("found", "log_start_offset", "told", "offsets"),
    [
        pytest.param([None, None], -1, [], 0, id="no gap: the counter is there, at 0"),
        pytest.param([(100, 250)] * 3, -1, [(100, 250)], 150, id="found by every plan until what follows it is copied"),
        pytest.param([(100, 250), (100, 400)], -1, [(100, 250), (100, 400)], 300, id="retention takes more meanwhile"),
        pytest.param([(100, 250), None, (500, 510)], -1, [(100, 250), (500, 510)], 160, id="another one, later"),
        pytest.param([(100, 250)], 250, [], 0, id="expired before it was copied (U8), or deleted by a user"),
        pytest.param([(100, 250)], 240, [(240, 250)], 10, id="lost above the remote log start alone"),
    ],
)
def test_each_lost_offset_is_told_once(
    found: list[tuple[int, int] | None], log_start_offset: int, told: list[tuple[int, int]], offsets: int
) -> None:
    telemetry = RecordedTelemetry()
    report = GapReport(telemetry)
    with capture_logs() as events:
        for gap in found:
            report.report(TOPIC_ID_PARTITION, None if gap is None else ByteRange(*gap), log_start_offset)
    assert [(event["start_offset"], event["stop_offset"]) for event in events] == told
    assert telemetry.value(GAP_OFFSETS, topic="orders") == offsets

"""The audit topic while it is away (issue 17: the audit log is complete)."""

from __future__ import annotations

import json
from typing import Any

from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.adapters.audit_topic import KafkaAuditTopic, open_audit_topic
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.ports.metrics.gateway import GATEWAY_AUDIT_LOST, GATEWAY_AUDIT_WRITTEN

DELETE, REFUSED = "gateway.audit.delete", "gateway.audit.refused"
MANY = 10_000


class Topic:
    """``adapters.kafka_clients.SendRecord``, which takes nothing while ``is_away``."""

    def __init__(self) -> None:
        self.is_away, self.written = True, list[dict[str, Any]]()

    async def send(self, topic: str, *, value: bytes, **_: Any) -> Any:
        if self.is_away:
            raise BrokerUnreachableError(address="127.0.0.1:9092", reason="refused")
        self.written.append(json.loads(value))

    async def close(self) -> None: ...


def told(audit: KafkaAuditTopic, event: str, number: int) -> None:
    for one in range(number):
        audit.record(event, {"number": one})


async def test_no_delete_is_lost_by_refusals_however_many() -> None:
    topic, telemetry, clock = Topic(), RecordedTelemetry(), ManualClock()
    producer: Any = topic
    async with open_audit_topic("audit", producer=producer, clock=clock, telemetry=telemetry) as audit:
        told(audit, REFUSED, MANY + 7)
        told(audit, DELETE, 250)
        assert telemetry.value(GATEWAY_AUDIT_LOST) == 7
        await clock.advance(1)
        topic.is_away = False
        await clock.advance(20)
        await audit.drained(60)
    assert telemetry.value(GATEWAY_AUDIT_WRITTEN) == MANY + 250
    assert telemetry.value(GATEWAY_AUDIT_LOST) == 7
    deletes = [one["number"] for one in topic.written if one["event"] == DELETE]
    assert deletes == list(range(250)), "in their order, and no refusals first"
    assert [one["event"] for one in topic.written[:600]].count(DELETE) == 250


async def test_what_is_left_when_the_process_ends_is_counted() -> None:
    telemetry, topic = RecordedTelemetry(), Topic()
    producer: Any = topic
    audit = KafkaAuditTopic("audit", producer=producer, clock=ManualClock(), telemetry=telemetry)
    told(audit, REFUSED, 3)
    told(audit, DELETE, 2)
    await audit.drained(0)
    assert telemetry.value(GATEWAY_AUDIT_LOST) == 5


async def test_what_clients_have_named_waits_up_to_a_size() -> None:
    """130 names of control characters in a request of 15 KB are an event of 79 KB: 10,000 of these were 790 MB."""
    topic, telemetry, clock = Topic(), RecordedTelemetry(), ManualClock()
    producer: Any = topic
    large = {"deletes": {"\x01" * 98 + str(number): [0, 1] for number in range(130)}}
    async with open_audit_topic("audit", producer=producer, clock=clock, telemetry=telemetry) as audit:
        for _ in range(300):
            audit.record(DELETE, large)
        lost = int(telemetry.value(GATEWAY_AUDIT_LOST) or 0)
        assert 16 * 2**20 <= (300 - lost) * 79_000 < 17 * 2**20
        topic.is_away = False
        await clock.advance(20)
        await audit.drained(60)
        assert len(topic.written) == 300 - lost
        audit.record(DELETE, large)
        assert telemetry.value(GATEWAY_AUDIT_LOST) == lost, "there is room again"

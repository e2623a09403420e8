"""Who reads cold data is told by name, within bounds that no client can pass (issue 20)."""

from __future__ import annotations

from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.decide.reader_quotas import DEFAULT, ColdReader, ReaderQuotaRule
from tiersidecar.ports.metrics.reading import COLD_READ_BYTES, COLD_READ_REQUESTS
from tiersidecar.reading.reader_limits import OTHERS, ColdReads

ALICE = ColdReader(principal="User:alice", client_id="app")


def read(cold: ColdReads, reader: ColdReader, size_bytes: int = 10, topic: str = "orders") -> None:
    cold.begun(reader, topic)
    cold.took(reader, topic, size_bytes)


def test_requests_and_bytes_are_counted_by_principal_client_id_and_topic() -> None:
    telemetry = RecordedTelemetry()
    cold = ColdReads(clock=ManualClock(), telemetry=telemetry)
    read(cold, ALICE, 10)
    read(cold, ALICE, 30)
    read(cold, ALICE, 500, topic="audit")
    labels = {"principal": "User:alice", "client_id": "app", "topic": "orders"}
    assert telemetry.value(COLD_READ_BYTES, **labels) == 40
    assert telemetry.value(COLD_READ_REQUESTS, **labels) == 2
    assert [(one.topic, one.requests, one.size_bytes) for one in cold.readings] == [
        ("audit", 1, 500),
        ("orders", 2, 40),
    ]


def test_one_principal_of_many_client_ids_takes_no_names_from_others() -> None:
    cold = ColdReads(clock=ManualClock())
    for number in range(1000):
        read(cold, ColdReader(principal="User:mallory", client_id=f"random-{number}"))
    read(cold, ALICE)
    told = cold.readings
    assert len(told) == 22
    mallorys = {one.client_id: one.size_bytes for one in told if one.principal == "User:mallory"}
    assert (len(mallorys), mallorys[OTHERS]) == (21, 9800)
    assert any(one.principal == "User:alice" and one.client_id == "app" for one in told)


def test_series_are_bounded_whoever_reads_and_nothing_is_left_out_of_the_sum() -> None:
    telemetry = RecordedTelemetry()
    cold = ColdReads(clock=ManualClock(), telemetry=telemetry)
    for number in range(1000):
        read(cold, ColdReader(principal=f"User:{number}", client_id="x" * 5000))
    told = cold.readings
    assert len(told) == 101
    assert sum(one.size_bytes for one in told) == 10_000
    assert (told[0].principal, told[0].size_bytes) == (OTHERS, 9000)
    assert max(len(one.client_id) for one in told) == 100


async def test_who_is_silent_for_an_hour_gives_its_place_and_its_series_to_another() -> None:
    clock, telemetry = ManualClock(), RecordedTelemetry()
    cold = ColdReads(clock=clock, telemetry=telemetry)
    for number in range(100):
        read(cold, ColdReader(principal=f"User:{number}", client_id="app"))
    await clock.advance(3599)
    read(cold, ColdReader(principal="User:0", client_id="app"))
    await clock.advance(2)
    read(cold, ALICE)
    principals = {one.principal for one in cold.readings}
    assert ("User:alice" in principals, "User:0" in principals, "User:1" in principals) == (True, True, False)
    assert telemetry.value(COLD_READ_BYTES, principal="User:1", client_id="app", topic="orders") is None


async def test_a_budget_is_over_when_its_bytes_of_the_windows_are_too_many_and_comes_back() -> None:
    clock = ManualClock()
    cold = ColdReads(clock=clock, rules=[ReaderQuotaRule(user=DEFAULT, bytes_per_s=100)])
    bob = ColdReader(principal="User:bob", client_id="app")
    assert cold.throttle_s(ALICE) == 0
    read(cold, ALICE, 500)
    assert (cold.throttle_s(ALICE), cold.throttle_s(bob), cold.throttle_s(None)) == (5.0, 0, 0)
    await clock.advance(5)
    assert cold.throttle_s(ALICE) == 0


def test_without_a_rule_nothing_is_throttled() -> None:
    cold = ColdReads(clock=ManualClock())
    read(cold, ALICE, 10**12)
    assert cold.throttle_s(ALICE) == 0


def test_long_client_ids_take_no_memory_and_no_budget_of_their_own() -> None:
    rule = ReaderQuotaRule(client_id=DEFAULT, bytes_per_s=1.0)
    cold = ColdReads(clock=ManualClock(), rules=[rule])
    cold.took(ColdReader(principal="User:mallory", client_id="x" * 30_000 + "1"), "orders", 1000)
    assert cold.throttle_s(ColdReader(principal="User:mallory", client_id="x" * 30_000 + "2")) > 0
    assert cold.throttle_s(ALICE) == 0

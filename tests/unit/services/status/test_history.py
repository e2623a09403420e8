"""The last hour, as a process remembers it."""

from __future__ import annotations

from tiersidecar.adapters.telemetry_prometheus import PrometheusTelemetry
from tiersidecar.ports.metrics.copying import COPY_BYTES, COPY_LAG_BYTES
from tiersidecar.ports.metrics.reading import FETCH_BYTES
from tiersidecar.services.status.history import INTERVAL_MS, POINTS, History


def history() -> tuple[History, PrometheusTelemetry]:
    telemetry = PrometheusTelemetry(version="1")
    return History(telemetry), telemetry


def test_points_are_what_was_added_in_each_interval_over_all_topics() -> None:
    taken, telemetry = history()
    for bucket, (orders, audit) in enumerate([(5, 0), (10, 1), (0, 0)], start=100):
        telemetry.count(COPY_BYTES, orders, topic="orders")
        telemetry.count(COPY_BYTES, audit, topic="audit")
        telemetry.gauge(COPY_LAG_BYTES, bucket, topic="orders", partition="0")
        taken.take(bucket * INTERVAL_MS + 7)
    series = taken.document()["series"]
    assert series["copied"] == [[101, 11], [102, 0]]
    assert series["lag"] == [[100, 100], [101, 101], [102, 102]]


def test_an_interval_without_a_sample_has_no_point() -> None:
    taken, _ = history()
    for bucket in (1, 2, 5, 6):
        taken.take(bucket * INTERVAL_MS)
    assert [bucket for bucket, _ in taken.document()["series"]["copied"]] == [2, 6]


def test_of_two_samples_in_an_interval_the_later_counts() -> None:
    taken, telemetry = history()
    for now_ms in (INTERVAL_MS, 2 * INTERVAL_MS, 2 * INTERVAL_MS + 9):
        telemetry.count(COPY_BYTES, 3, topic="orders")
        taken.take(now_ms)
    assert taken.document()["series"]["copied"] == [[2, 6]]


def test_a_clock_that_went_back_begins_anew() -> None:
    taken, _ = history()
    for bucket in (9, 10, 3, 4):
        taken.take(bucket * INTERVAL_MS)
    assert [bucket for bucket, _ in taken.document()["series"]["lag"]] == [3, 4]


def test_an_hour_is_kept_and_no_more() -> None:
    taken, _ = history()
    for bucket in range(3 * POINTS):
        taken.take(bucket * INTERVAL_MS)
    assert len(taken.document()["series"]["copied"]) == POINTS


def test_cold_reads_are_told_by_topic() -> None:
    taken, telemetry = history()
    telemetry.count(FETCH_BYTES, 7, topic="before")
    taken.take(0)
    telemetry.count(FETCH_BYTES, 9, topic="orders")
    taken.take(INTERVAL_MS)
    assert taken.document()["read_by_topic"] == {"orders": 9}

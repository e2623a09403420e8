"""What worker processes count is shown as one process's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.adapters.test_telemetry_prometheus import scrape, series
from tiersidecar.adapters.telemetry_relayed import RelayedTelemetry, SummedTelemetry
from tiersidecar.ports.metrics.gateway import GATEWAY_CONNECTIONS, GATEWAY_REQUESTS, GATEWAY_UNMAPPED_BROKERS
from tiersidecar.ports.metrics.process import HALTED_PARTITIONS, METADATA_READY
from tiersidecar.ports.metrics.reading import COLD_READ_BYTES, READER_FETCH_SECONDS, READER_IDLE_RATIO

LABELS = {"listener": "GATEWAY"}


def send(worker: int, source: RelayedTelemetry, sums: SummedTelemetry) -> None:
    sums.add(worker, json.loads(json.dumps(source.take())))


@pytest.fixture
def sums() -> SummedTelemetry:
    return SummedTelemetry(version="1")


def test_counters_and_histograms_keep_what_a_dead_worker_had_counted(sums: SummedTelemetry) -> None:
    first, second = RelayedTelemetry(), RelayedTelemetry()
    for source, amount in ((first, 3), (second, 4)):
        source.count(GATEWAY_REQUESTS, amount, **LABELS)
        source.observe(READER_FETCH_SECONDS, 0.1)
    for _ in range(2):  # nothing is counted twice
        send(1, first, sums)
        send(2, second, sums)
    sums.drop(1)
    sums.count(GATEWAY_REQUESTS, 10, **LABELS)
    found = scrape(sums)
    assert found[series("tiersidecar_gateway_requests_total", **LABELS)] == 17
    assert found[series("kafka_remote_log_reader_fetch_seconds_count")] == 2
    assert found[series("kafka_remote_log_reader_fetch_seconds_sum")] == pytest.approx(0.2)


def test_gauges_are_those_of_the_living(sums: SummedTelemetry) -> None:
    """Connections are added up; brokers without an address, which each worker sees, are not."""
    for worker in (1, 2):
        source = RelayedTelemetry()
        source.gauge(GATEWAY_CONNECTIONS, 5 * worker, **LABELS)
        source.gauge(GATEWAY_UNMAPPED_BROKERS, 2, **LABELS)
        source.gauge(METADATA_READY, worker - 1)
        source.gauge(READER_IDLE_RATIO, 0.5 * worker)
        send(worker, source, sums)

    def shown() -> list[float]:
        found = scrape(sums)
        names = ("tiersidecar_gateway_connections", "tiersidecar_gateway_unmapped_brokers")
        ratio, ready = series("kafka_remote_log_reader_idle_ratio"), series("tiersidecar_metadata_ready")
        return [found.get(series(name, **LABELS), -1) for name in names] + [found[ready], found[ratio]]

    assert shown() == [15, 2, 0, 0.75]
    sums.drop(1)
    assert shown() == [10, 2, 1, 1]
    sums.drop(2)
    assert shown() == [-1, -1, 0, 0]


def test_what_this_process_sets_is_one_of_them(sums: SummedTelemetry) -> None:
    """It has the role read, say, and waits for its metadata too."""
    source = RelayedTelemetry()
    source.gauge(METADATA_READY, 1)
    sums.gauge(METADATA_READY, 0)
    send(1, source, sums)
    assert scrape(sums)[series("tiersidecar_metadata_ready")] == 0
    sums.gauge(METADATA_READY, 1)
    assert scrape(sums)[series("tiersidecar_metadata_ready")] == 1
    sums.drop(1)
    assert scrape(sums)[series("tiersidecar_metadata_ready")] == 1


def test_a_series_is_gone_once_all_have_forgotten_it(sums: SummedTelemetry) -> None:
    labels, sources = {"topic": "t", "partition": "0"}, [RelayedTelemetry(), RelayedTelemetry()]
    for worker, source in enumerate(sources, start=1):
        source.gauge(HALTED_PARTITIONS, 1, **labels)
        send(worker, source, sums)
    name = series("tiersidecar_halted_partitions", **labels)
    sources[0].forget(HALTED_PARTITIONS, **labels)
    send(1, sources[0], sums)
    assert scrape(sums, partitions=True)[name] == 1
    sources[1].forget(HALTED_PARTITIONS, **labels)
    send(2, sources[1], sums)
    assert name not in scrape(sums, partitions=True)


def test_a_counter_that_is_forgotten_begins_anew(sums: SummedTelemetry) -> None:
    labels = {"principal": "User:a", "client_id": "c", "topic": "t"}
    source = RelayedTelemetry()
    source.count(COLD_READ_BYTES, 100, **labels)
    send(1, source, sums)
    source.count(COLD_READ_BYTES, 5, **labels)
    source.forget(COLD_READ_BYTES, **labels)
    source.count(COLD_READ_BYTES, 7, **labels)
    send(1, source, sums)
    assert scrape(sums)[series("tiersidecar_cold_read_bytes_total", **labels)] == 7


def test_a_counter_stays_while_another_worker_counts_it(sums: SummedTelemetry) -> None:
    """A reader that has been silent at one worker for an hour goes on at another: its sum does not begin anew."""
    labels = {"principal": "User:a", "client_id": "c", "topic": "t"}
    sources = [RelayedTelemetry(), RelayedTelemetry()]
    for worker, source in enumerate(sources, start=1):
        source.count(COLD_READ_BYTES, 100, **labels)
        send(worker, source, sums)
    name = series("tiersidecar_cold_read_bytes_total", **labels)
    sources[0].forget(COLD_READ_BYTES, **labels)
    send(1, sources[0], sums)
    assert scrape(sums)[name] == 200
    sources[1].forget(COLD_READ_BYTES, **labels)
    send(2, sources[1], sums)
    assert name not in scrape(sums)


def test_of_a_dead_worker_only_what_it_alone_could_have_forgotten_is_left(sums: SummedTelemetry) -> None:
    labels = {"principal": "User:a", "client_id": "c", "topic": "t"}
    sources = [RelayedTelemetry(), RelayedTelemetry()]
    for worker, source in enumerate(sources, start=1):
        source.count(COLD_READ_BYTES, 100, **labels)
        send(worker, source, sums)
    sums.drop(1)
    sources[1].forget(COLD_READ_BYTES, **labels)
    send(2, sources[1], sums)
    assert series("tiersidecar_cold_read_bytes_total", **labels) not in scrape(sums)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"counts": [["no_such_metric", [], 1]]}, id="a metric that there is not"),
        pytest.param({"counts": [["tiersidecar_gateway_requests_total", [], 1]]}, id="without its label"),
        pytest.param({"counts": [["tiersidecar_gateway_connections", ["a"], 1]]}, id="counted, and no counter"),
        pytest.param({"counts": [["tiersidecar_gateway_requests_total", ["a"], -1]]}, id="a counter that goes back"),
        pytest.param({"counts": [["tiersidecar_gateway_requests_total", ["a"], 10**400]]}, id="more than there can be"),
        pytest.param(
            {"counts": [["tiersidecar_gateway_requests_total", ["a"], float("nan")]]}, id="counted, and no number"
        ),
        pytest.param({"observed": [["kafka_remote_log_reader_fetch_seconds", [], float("inf")]]}, id="for ever"),
        pytest.param({"gauges": [["tiersidecar_gateway_requests_total", ["a"], 1]]}, id="set, and no gauge"),
        pytest.param({"gauges": [["tiersidecar_halted_partitions", [1, 2], 1]]}, id="labels that are no texts"),
        pytest.param({"counts": 1}, id="no list"),
        pytest.param([], id="no object"),
    ],
)
def test_what_is_not_metrics_is_refused(sums: SummedTelemetry, changes: Any) -> None:
    """And whatever there is of others' can be shown, and dropped."""
    for worker in (1, 2):
        with pytest.raises(ValueError, match=r".+"):
            sums.add(worker, changes)
    assert scrape(sums, partitions=True)
    sums.drop(1)
    assert scrape(sums, partitions=True)


def test_a_label_that_is_no_text_is_shown_as_well_as_can_be(sums: SummedTelemetry) -> None:
    """A directory, say, of which the system gives bytes."""
    source = RelayedTelemetry()
    source.gauge(GATEWAY_CONNECTIONS, 1, listener="a\udcff")
    send(1, source, sums)
    name = series("tiersidecar_gateway_connections", listener="a?")
    assert scrape(sums)[name] == 1
    sums.drop(1)
    assert name not in scrape(sums)


def test_labels_are_the_metrics_own() -> None:
    with pytest.raises(ValueError, match="has labels"):
        RelayedTelemetry().count(GATEWAY_REQUESTS, 1)


Step = tuple[str, int, int]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["count", "gauge", "send", "die"]), st.integers(1, 3), st.integers(0, 9))),
)
def test_it_is_what_one_would_add_up(steps: list[Step]) -> None:
    """As a plain model has it: what was sent of counts, and the last gauge that each living worker has sent."""
    sums, sources = SummedTelemetry(version="1"), {worker: RelayedTelemetry() for worker in (1, 2, 3)}
    unsent, counted = dict.fromkeys(sources, 0), 0
    wanted, shown = dict[int, int](), dict[int, int]()
    for what, worker, amount in steps:
        match what:
            case "count":
                sources[worker].count(GATEWAY_REQUESTS, amount, **LABELS)
                unsent[worker] += amount
            case "gauge":
                sources[worker].gauge(GATEWAY_CONNECTIONS, amount, **LABELS)
                wanted[worker] = amount
            case "send":
                send(worker, sources[worker], sums)
                counted, unsent[worker] = counted + unsent[worker], 0
                if worker in wanted:
                    shown[worker] = wanted[worker]
            case _:
                sums.drop(worker)
                sources[worker], unsent[worker] = RelayedTelemetry(), 0
                wanted.pop(worker, None)
                shown.pop(worker, None)
    found = scrape(sums)
    assert found.get(series("tiersidecar_gateway_requests_total", **LABELS), 0) == counted
    assert found.get(series("tiersidecar_gateway_connections", **LABELS), 0) == sum(shown.values())

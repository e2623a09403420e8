"""Metrics as Prometheus scrapes them, parsed by its client's own parser."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Literal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tiersidecar.adapters.telemetry_prometheus import PrometheusTelemetry
from tiersidecar.ports.metrics.catalogue import CATALOGUE
from tiersidecar.ports.metrics.copying import COPY_BYTES, COPY_LAG_BYTES, COPY_OLDEST_AGE
from tiersidecar.ports.metrics.process import METADATA_READY, RECONCILE_AGE, STORE_BYTES, STORE_OPERATIONS
from tiersidecar.ports.metrics.reading import READ_REQUESTED_BYTES
from tiersidecar.ports.metrics.retention import DELETE_REQUESTS
from tiersidecar.ports.telemetry import Metric

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(telemetry: PrometheusTelemetry, *, partitions: bool = False) -> Series:
    """Every sample; fails on what Prometheus would refuse: a family that comes twice, or a series that does."""
    families = list(text_string_to_metric_families(telemetry.render(partitions=partitions).decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = [
        (sample.name, frozenset(sample.labels.items()), sample.value)
        for family in families
        for sample in family.samples
    ]
    assert len({(name, labels) for name, labels, _ in samples}) == len(samples)
    return {(name, labels): value for name, labels, value in samples}


def series(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@pytest.fixture
def telemetry() -> PrometheusTelemetry:
    return PrometheusTelemetry(version="1.2.3")


def test_counters_and_gauges_keep_their_names_and_labels(telemetry: PrometheusTelemetry) -> None:
    telemetry.count(COPY_BYTES, 100, topic="orders")
    telemetry.count(COPY_BYTES, 20, topic="orders")
    telemetry.count(STORE_OPERATIONS, verb="put", outcome="ok")
    telemetry.gauge(METADATA_READY, 1)
    scraped = scrape(telemetry)
    assert scraped[series("kafka_remote_copy_bytes_total", topic="orders")] == 120
    assert scraped[series("tiersidecar_store_operations_total", verb="put", outcome="ok")] == 1
    assert scraped[series("tiersidecar_metadata_ready")] == 1
    assert not [name for name, _ in scraped if name.endswith("_created")]


def test_a_plain_scrape_sums_over_partitions_and_a_detailed_one_does_not(telemetry: PrometheusTelemetry) -> None:
    for topic, partition, lag in (("orders", "0", 10), ("orders", "1", 5), ("clicks", "0", 2)):
        telemetry.gauge(COPY_LAG_BYTES, lag, topic=topic, partition=partition)
    plain, detailed = scrape(telemetry), scrape(telemetry, partitions=True)
    assert plain[series("kafka_remote_copy_lag_bytes", topic="orders")] == 15
    assert plain[series("kafka_remote_copy_lag_bytes", topic="clicks")] == 2
    assert not [
        labels for name, labels in plain if name == "kafka_remote_copy_lag_bytes" and "partition" in dict(labels)
    ]
    assert detailed[series("kafka_remote_copy_lag_bytes", topic="orders", partition="1")] == 5
    assert series("kafka_remote_copy_lag_bytes", topic="orders") not in detailed


def test_a_partition_that_is_forgotten_leaves_the_sum(telemetry: PrometheusTelemetry) -> None:
    """U18: no frozen lag of a partition that is no longer ours."""
    telemetry.gauge(COPY_LAG_BYTES, 10, topic="orders", partition="0")
    telemetry.gauge(COPY_LAG_BYTES, 5, topic="orders", partition="1")
    telemetry.forget(COPY_LAG_BYTES, topic="orders", partition="0")
    assert scrape(telemetry)[series("kafka_remote_copy_lag_bytes", topic="orders")] == 5
    telemetry.forget(COPY_LAG_BYTES, topic="orders", partition="1")
    telemetry.forget(COPY_LAG_BYTES, topic="orders", partition="1")
    assert not [name for name, _ in scrape(telemetry) if name == "kafka_remote_copy_lag_bytes"]


def test_histograms_count_their_observations() -> None:
    metric = Metric(name="t_seconds", kind="histogram", help="Time.", labels=("verb",))
    telemetry = PrometheusTelemetry(version="1", catalogue=(metric,))
    telemetry.observe(metric, 0.2, verb="get")
    assert scrape(telemetry)[series("t_seconds_count", verb="get")] == 1


def test_build_and_process_are_told(telemetry: PrometheusTelemetry) -> None:
    scraped = scrape(telemetry)
    assert [dict(labels)["version"] for name, labels in scraped if name == "tiersidecar_build_info"] == ["1.2.3"]
    assert scraped[series("process_resident_memory_bytes")] > 0


def test_metrics_without_labels_show_from_the_start_where_0_is_true(telemetry: PrometheusTelemetry) -> None:
    shown = {
        name.removesuffix("_count") for name, _ in scrape(telemetry)
    }  # the name of a histogram has no sample itself
    assert {metric.name for metric in CATALOGUE if not metric.labels and not metric.absent_until_set} <= shown


@pytest.mark.parametrize("labels", [{}, {"topic": "a", "partition": "0"}, {"partition": "0"}])
def test_wrong_labels_are_refused(telemetry: PrometheusTelemetry, labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="kafka_remote_copy_bytes_total has labels"):
        telemetry.count(COPY_BYTES, 1, **labels)


def test_a_metric_outside_the_catalogue_is_refused(telemetry: PrometheusTelemetry) -> None:
    with pytest.raises(ValueError, match="t_other is not in the catalogue"):
        telemetry.gauge(Metric(name="t_other", kind="gauge", help="?"), 1)


def test_a_metric_of_another_kind_is_refused(telemetry: PrometheusTelemetry) -> None:
    with pytest.raises(TypeError, match="is a gauge, not a counter"):
        telemetry.count(COPY_OLDEST_AGE)


def test_two_telemetries_do_not_share_series() -> None:
    one, other = PrometheusTelemetry(version="1"), PrometheusTelemetry(version="1")
    one.gauge(METADATA_READY, 1)
    assert scrape(other)[series("tiersidecar_metadata_ready")] == 0


@pytest.mark.parametrize("kind", ["counter", "histogram"])
def test_what_is_no_gauge_is_refused_per_partition(kind: Literal["counter", "histogram"]) -> None:
    metric = Metric(name="t_seconds", kind=kind, help="Time.", labels=("topic", "partition"))
    with pytest.raises(ValueError, match=f"{kind} cannot have a label partition"):
        PrometheusTelemetry(version="1", catalogue=(metric,))


@pytest.mark.parametrize("labels", [{"topic": "orders"}, {"topic": "orders", "partition": "0", "state": "x"}])
def test_a_gauge_per_partition_wants_its_own_labels(telemetry: PrometheusTelemetry, labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="kafka_remote_copy_lag_bytes has labels"):
        telemetry.gauge(COPY_LAG_BYTES, 1, **labels)


def test_a_gauge_per_partition_is_not_counted(telemetry: PrometheusTelemetry) -> None:
    with pytest.raises(TypeError, match="kafka_remote_copy_lag_bytes is a gauge"):
        telemetry.count(COPY_LAG_BYTES, 1, topic="orders", partition="0")


def test_what_is_set_while_a_page_is_made_spoils_neither(telemetry: PrometheusTelemetry) -> None:
    """The page is made in a thread; a dictionary that grows while it is walked ends the walk with an error."""
    stop = threading.Event()

    def set_more() -> None:
        for partition in itertools.count():
            if stop.is_set():
                return
            telemetry.gauge(COPY_LAG_BYTES, 1, topic="orders", partition=str(partition))

    setting = threading.Thread(target=set_more)
    setting.start()
    try:
        for _ in range(20):
            telemetry.render()
    finally:
        stop.set()
        setting.join()


def test_four_thousand_partitions_take_little_memory_and_a_short_time(telemetry: PrometheusTelemetry) -> None:
    """As objects of the library they were 58 MiB and 0.6 s."""
    gauges = [metric for metric in CATALOGUE if "partition" in metric.labels]
    for number in range(4_000):
        for gauge in gauges:
            telemetry.gauge(gauge, number, topic="orders", partition=str(number))
    begun_s = time.thread_time()
    telemetry.render()
    assert time.thread_time() - begun_s < 0.25


def test_the_age_of_a_run_that_never_was_is_not_there() -> None:
    """It told 0 before: a reconcile run of this moment, where there was none, so that no alert on its age could fire."""
    telemetry = PrometheusTelemetry(version="1")
    assert b"tiersidecar_reconcile_age_seconds" not in telemetry.render()
    telemetry.gauge(RECONCILE_AGE, 7)
    telemetry.gauge(RECONCILE_AGE, 8)
    assert b"\ntiersidecar_reconcile_age_seconds 8.0\n" in telemetry.render()


def test_counters_go_by_the_names_of_the_plugin_too_where_they_mean_the_same(telemetry: PrometheusTelemetry) -> None:
    """S-228: as Prometheus' JMX exporter names the attributes of Aiven's plugin."""
    telemetry.count(STORE_BYTES, 100, verb="put")
    telemetry.count(STORE_BYTES, 7, verb="fetch")
    telemetry.count(DELETE_REQUESTS, 3, topic="orders")
    telemetry.count(READ_REQUESTED_BYTES, 50)
    of_plugin = {key: value for key, value in scrape(telemetry).items() if key[0].startswith("aiven_")}
    manager = "aiven_kafka_server_tieredstorage_remote_storage_manager_metrics"
    assert of_plugin == {
        series(f"{manager}_object_upload_bytes_total"): 100,
        series(f"{manager}_segment_delete_total", topic="orders"): 3,
        series(f"{manager}_segment_fetch_requested_bytes_total"): 50,
    }
    telemetry.forget(DELETE_REQUESTS, topic="orders")
    assert series(f"{manager}_segment_delete_total", topic="orders") not in scrape(telemetry)

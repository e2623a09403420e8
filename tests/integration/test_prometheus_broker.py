"""A real Prometheus that scrapes a real daemon: its metrics, each rule and each query of the dashboard on them (S-309)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started, wait_until_trimmed
from tests.support.daemon import Daemon, wait_for
from tests.support.dashboard import panel_queries, variable_queries
from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.prometheus import Prometheus, promtool, running_prometheus
from tests.support.read_service import fetch_records

pytestmark = [
    pytest.mark.broker,
    pytest.mark.server,
    pytest.mark.timeout(900),
]  # Prometheus and promtool are built the first time

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "tiersidecar.rules.yaml"
TOPIC = "watched-by-prometheus"
SILENT_WHERE_ALL_IS_WELL = (
    "tiersidecar_disk_seconds_to_full",
    "tiersidecar_trim_refusals_total",
    "tiersidecar_trim_held_by_group_bytes",
    'outcome="error"',
    "_errors_total",
    "tiersidecar_reads_shed_total",
    "tiersidecar_read_cache_bytes_total",  # plain segments of a filesystem store are read where they lie
    "tiersidecar_gateway_",  # no gateway runs
    "tiersidecar_reconcile_findings",
)
"""Panels that ask for these show nothing while nothing of their kind has happened."""


def has(prometheus: Prometheus, counter: str) -> bool:
    return bool(prometheus.query(f'{counter}{{topic="{TOPIC}"}} > 0'))


def rises(prometheus: Prometheus, counter: str) -> bool:
    """Between two scrapes: a counter that shows for the first time has no increase."""
    return bool(prometheus.query(f'increase({counter}{{topic="{TOPIC}"}}[1m]) > 0'))


@pytest.fixture(scope="module")
def watched(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Prometheus]]:
    """A daemon that copied, trimmed and served a topic while Prometheus looked on."""
    directory = tmp_path_factory.mktemp("watched")
    kafka.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    with started(directory, kafka, TOPIC) as daemon:
        daemon.wait_until_ready()
        address = daemon.status_url.removeprefix("http://")
        with running_prometheus(directory / "prometheus", targets={"tiersidecar": address}, rules=RULES) as prometheus:
            wait_for(lambda: prometheus.query("up == 1"), "the daemon was scraped", daemon)
            produce(kafka, TOPIC)
            wait_for(lambda: has(prometheus, "kafka_remote_copy_bytes_total"), "copies were seen", daemon)
            produce(kafka, TOPIC, seed=1)
            wait_for(lambda: rises(prometheus, "kafka_remote_copy_bytes_total"), "more copies were seen", daemon)
            stop = wait_until_trimmed(kafka, daemon, TOPIC)

            def read_more() -> bool:
                assert list(fetch_records(daemon.read_url, TOPIC, 0, stop=stop))
                return rises(prometheus, "kafka_remote_fetch_bytes_total")

            wait_for(read_more, "reads were seen", daemon)
            yield daemon, prometheus


@pytest.mark.parametrize("path", ["/metrics", "/metrics?partitions=1"])
def test_promtool_finds_no_fault_in_the_metrics(watched: tuple[Daemon, Prometheus], path: str) -> None:
    code, text = watched[0].status(path)
    assert code == 200
    assert f'topic="{TOPIC}"' in text
    promtool("check", "metrics", given=text.encode())


def test_what_was_done_is_what_prometheus_says(watched: tuple[Daemon, Prometheus]) -> None:
    daemon, prometheus = watched
    [target] = prometheus.targets()
    assert (target["health"], target["lastError"]) == ("up", "")
    by_topic = f'{{topic="{TOPIC}"}}'
    for name in ("kafka_remote_copy_bytes_total", "kafka_remote_log_size_bytes", "tiersidecar_trimmed_bytes_total"):
        [sample] = prometheus.query(name + by_topic)
        assert sample.value == daemon.metric(name, topic=TOPIC) > 0
    [scraped] = prometheus.query("scrape_samples_scraped")
    assert scraped.value < 600, "far more series than one topic needs"


def test_each_rule_is_evaluated_and_none_fires(watched: tuple[Daemon, Prometheus]) -> None:
    _, prometheus = watched
    rules = wait_until(lambda: evaluated(prometheus), "each rule was evaluated", 30)
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    told = {rule["name"]: rule["state"] for rule in rules if rule["state"] != "inactive"}
    assert told.pop("TiersidecarReconcileNever") == "pending", "nothing was ever reconciled here; two days are granted"
    assert [name for name in told if not of_this_machine(name)] == []


def of_this_machine(alert: str) -> bool:
    """Its disk may be as full as it likes."""
    return alert in {"TiersidecarDiskFills", "TiersidecarDiskBelowReserve"}


def evaluated(prometheus: Prometheus) -> list[dict[str, Any]]:
    rules = prometheus.rules()
    return rules if all(rule["health"] != "unknown" for rule in rules) else []


def test_each_panel_of_the_dashboard_has_what_it_shows(watched: tuple[Daemon, Prometheus]) -> None:
    _, prometheus = watched
    for query in panel_queries():
        samples = prometheus.query(query.filled_in)
        assert samples or any(name in query.expression for name in SILENT_WHERE_ALL_IS_WELL), query
        for sample in samples:
            assert query.labels_shown <= set(sample.labels), query
    for selector in variable_queries():
        assert prometheus.query(selector), selector


def test_a_daemon_that_is_gone_is_a_pending_alert(watched: tuple[Daemon, Prometheus]) -> None:
    """The last test of this module: the daemon is killed."""
    daemon, prometheus = watched
    daemon.kill9()
    [down] = wait_until(lambda: alerts(prometheus, "TiersidecarDown"), "an alert", 30)
    assert down["state"] == "pending"
    assert down["annotations"]["summary"] == f"The sidecar on {daemon.status_url.removeprefix('http://')} is down"


def alerts(prometheus: Prometheus, name: str) -> list[dict[str, Any]]:
    return [alert for alert in prometheus.ask("alerts")["alerts"] if alert["labels"]["alertname"] == name]

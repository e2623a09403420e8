"""A real Prometheus scrapes us: each rule and each query of the dashboard is evaluated there (S-309).

Once the status service with played values of every metric there is, once the daemon itself, which waits for its broker.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, daemon_settings
from tests.support.dashboard import panel_queries, variable_queries
from tests.support.inline_blocking import InlineBlocking
from tests.support.kafka_admin import wait_until
from tests.support.prometheus import Prometheus, promtool, running_prometheus
from tests.unit.services.status.test_server import Source
from tiersidecar.adapters.telemetry_prometheus import PrometheusTelemetry
from tiersidecar.ports.metrics.catalogue import CATALOGUE
from tiersidecar.ports.metrics.process import BUILD_INFO
from tiersidecar.services.status.server import serve_status

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]  # Prometheus and promtool are built the first time

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "tiersidecar.rules.yaml"
LOST = {"TiersidecarGap", "TiersidecarPinsLost", "TiersidecarSegmentsDropped"}
OF_A_LABEL = {"topic": "orders", "partition": "0", "outcome": "error", "reason": "disk_reserve"}
META_PROPERTIES = """version=1
cluster.id=AAAAAAAAAAAAAAAAAAAAAA
node.id=1
directory.id=BBBBBBBBBBBBBBBBBBBBBB
"""


def with_each_metric() -> PrometheusTelemetry:
    """Every metric has a sample; every counter that tells of lost data has risen before anybody looked."""
    telemetry = PrometheusTelemetry(version="1.2.3")
    for metric in CATALOGUE:
        labels = {name: OF_A_LABEL.get(name, f"a {name}") for name in metric.labels}
        match metric.kind:
            case "counter":
                telemetry.count(metric, 1, **labels)
            case "gauge" if metric is not BUILD_INFO:
                telemetry.gauge(metric, 1, **labels)
            case "histogram":
                telemetry.observe(metric, 0.1, **labels)
    return telemetry


async def test_rules_and_panels_have_what_they_ask_for(tmp_path: Path) -> None:
    telemetry = with_each_metric()
    async with serve_status(
        host="127.0.0.1", port=0, source=Source(), metrics=telemetry, blocking=InlineBlocking()
    ) as status:
        # In a thread: this loop answers Prometheus.
        await asyncio.to_thread(assert_all_is_shown, tmp_path, f"{status.host}:{status.port}")


def assert_all_is_shown(directory: Path, address: str) -> None:
    with running_prometheus(directory, targets={"tiersidecar": address}, rules=RULES) as prometheus:
        # Rates need two scrapes, ALERTS one evaluation more.
        wait_until(lambda: prometheus.query('count(ALERTS{alertstate="firing"}) >= 3'), "alerts fire", 60)
        wait_until(lambda: prometheus.query("rate(kafka_remote_copy_bytes_total[1m])"), "there are rates", 60)
        rules = wait_until(lambda: evaluated(prometheus), "each rule was evaluated", 60)
        assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
        assert {rule["name"] for rule in rules if rule["state"] == "firing"} == LOST
        for query in panel_queries():
            samples = prometheus.query(query.filled_in)
            assert samples, query
            for sample in samples:
                assert query.labels_shown <= set(sample.labels), query
        for selector in variable_queries():
            assert prometheus.query(selector), selector
        [scraped] = prometheus.query("scrape_samples_scraped")
        assert scraped.value < 3 * len(CATALOGUE), "more series than one topic needs"


def evaluated(prometheus: Prometheus) -> list[dict[str, Any]]:
    rules = prometheus.rules()
    return rules if all(rule["health"] != "unknown" for rule in rules) else []


@pytest.mark.parametrize("partitions", [False, True], ids=["summed", "by partition"])
def test_promtool_finds_no_fault_in_any_metric(partitions: bool) -> None:
    promtool("check", "metrics", given=with_each_metric().render(partitions=partitions))


def test_the_daemon_is_a_target_that_is_up_while_it_waits_for_its_broker_and_down_when_it_is_gone(
    tmp_path: Path,
) -> None:
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    (log_dir / "meta.properties").write_text(META_PROPERTIES)
    settings = daemon_settings(tmp_path, bootstrap_servers="127.0.0.1:1", log_dirs=[log_dir], topics=[{"name": "x"}])
    with Daemon(tmp_path, settings) as daemon:
        wait_until(lambda: daemon.status("/healthz")[0] == 200, "the daemon answers", 60)
        promtool("check", "metrics", given=daemon.status("/metrics")[1].encode())
        address = daemon.status_url.removeprefix("http://")
        with running_prometheus(tmp_path / "prometheus", targets={"tiersidecar": address}, rules=RULES) as prometheus:
            wait_until(lambda: pending(prometheus, "TiersidecarMetadataNotReady"), "it is not ready", 60)
            [target] = prometheus.targets()
            assert (target["health"], target["lastError"]) == ("up", "")
            assert not pending(prometheus, "TiersidecarDown")
            daemon.kill9()
            [down] = wait_until(lambda: pending(prometheus, "TiersidecarDown"), "it is down", 60)
            assert down["annotations"]["summary"] == f"The sidecar on {address} is down"


def pending(prometheus: Prometheus, name: str) -> list[dict[str, Any]]:
    alerts = [alert for alert in prometheus.ask("alerts")["alerts"] if alert["labels"]["alertname"] == name]
    assert {alert["state"] for alert in alerts} <= {"pending"}
    return alerts

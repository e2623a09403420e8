"""The budgets of readers are those that the configuration has, and operators are advised what is possible there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.builders.read_path import cold_reads_of, hole_advice
from tiersidecar.decide.reader_quotas import ColdReader
from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.telemetry import NoTelemetry

BUDGETS = """remote.log.manager.fetch.quota.window.num: 20
remote.fetch.quota:
- user: alice
  consumer.byte.rate: 1000
- user: <default>
  client.id: spark
  consumer.byte.rate: 10KiB
"""


@pytest.mark.parametrize(
    ("principal", "client_id", "seconds"),
    [
        pytest.param("User:alice", "spark", 10.24, id="alice's, whatever the client id: all of Kafka's order"),
        pytest.param("User:bob", "spark", 1.0, id="spark of any other user"),
        pytest.param("User:bob", "flink", 0.0, id="none"),
    ],
)
def test_budgets_are_as_configured(principal: str, client_id: str, seconds: float, tmp_path: Path) -> None:
    cold = cold_reads_of(load(tmp_path, LEAST + BUDGETS), ManualClock(), NoTelemetry())
    reader = ColdReader(principal=principal, client_id=client_id)
    cold.took(reader, "orders", 10_240)
    assert cold.throttle_s(reader) == (seconds if seconds > 1 else 0.0)
    cold.took(reader, "orders", 10_240)
    assert cold.throttle_s(reader) == pytest.approx(2 * seconds)


def test_a_budget_of_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs user, client\.id, or both"):
        load(tmp_path, LEAST + "remote.fetch.quota:\n- consumer.byte.rate: 1000\n")


def test_who_only_reads_another_cluster_s_topics_is_not_told_to_delete_from_them(tmp_path: Path) -> None:
    """A read-only mount refuses DeleteRecords (issue 21)."""
    source = "source: {bootstrap.servers: 'source:9092', mount.plan: /etc/mount.json}\n"
    assert "delete records up to next_offset through the gateway" in hole_advice(load(tmp_path, LEAST))
    advice = hole_advice(load(tmp_path, LEAST + source))
    assert "through the gateway" not in advice
    assert "in the cluster that wrote them" in advice

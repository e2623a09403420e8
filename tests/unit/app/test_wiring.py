"""What the composition root decides by itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.mount_file import MountPlan, write_plan
from tiersidecar.app.parts import whole_scan_interval_s
from tiersidecar.app.wiring import keeper_of, mount_of, reason_unread, until_met
from tiersidecar.domain.cluster_topics import NewPartition, NewTopic
from tiersidecar.domain.errors import ConfigError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.mounts import MOUNTED_START, Mount, MountedTopic
from tiersidecar.tasks.partition_table import PartitionTable

SOURCE = """
source:
  bootstrap.servers: source:9092
  mount.plan: {plan}
  client.id: replica
  request.timeout.ms: 17s
  security.protocol: SASL_SSL
  sasl.mechanism: PLAIN
  sasl.username: follower
  sasl.password: secret
"""
TOPIC_ID = Uuid(b"orders-topic-id!")


def test_the_topics_of_a_mount_are_reached_as_the_source_says(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST + SOURCE.format(plan="/etc/mount.json"))
    found, own = keeper_of(config).broker, config.broker
    assert [str(one) for one in found.bootstrap_servers] == ["source:9092"]
    assert (found.client_id, found.request_timeout_ms, found.sasl_username) == ("replica", 17_000, "follower")
    assert (found.uses_tls, own.uses_tls, own.client_id) == (True, False, "tiersidecar")
    least = load(tmp_path, LEAST)
    assert keeper_of(least) is least


@pytest.mark.parametrize(("interval", "seconds"), [("1h", 30), ("30s", 30), ("300ms", 0.3)])
def test_all_files_are_read_however_rarely_the_tasks_run(tmp_path: Path, interval: str, seconds: float) -> None:
    """Where file events tell nothing: a broker unlinks a segment a minute after it has renamed it."""
    config = load(tmp_path, f"{LEAST}\nremote.log.manager.task.interval.ms: {interval}\n")
    assert whole_scan_interval_s(config) == seconds


def plan_at(path: Path, *, is_read_only: bool) -> Path:
    partition = NewPartition(
        partition=0, replicas=(1,), leader_epoch=7, start_offset=MOUNTED_START if is_read_only else 20
    )
    plan = MountPlan(
        made_ms=1,
        former_cluster_id="source",
        topics=(NewTopic(name="orders", topic_id=TOPIC_ID, partitions=(partition,)),),
        next_producer_id=0,
        open_transactions={},
        is_read_only=is_read_only,
    )
    write_plan(plan, path)
    return path


def test_the_plan_says_what_is_mounted(tmp_path: Path) -> None:
    plan = plan_at(tmp_path / "mount.json", is_read_only=True)
    orders = MountedTopic(topic_id=TOPIC_ID, partitions=1)
    found = mount_of(load(tmp_path, LEAST + SOURCE.format(plan=plan)))
    assert found == Mount(source_cluster_id="source", topics={"orders": orders})
    assert mount_of(load(tmp_path, LEAST)) == Mount()


def test_another_plan_or_none_is_refused(tmp_path: Path) -> None:
    plan = plan_at(tmp_path / "mount.json", is_read_only=False)
    with pytest.raises(ConfigError, match="is not a plan of `tiersidecar mount plan --read-only`"):
        mount_of(load(tmp_path, LEAST + SOURCE.format(plan=plan)))
    with pytest.raises(ConfigError, match="cannot be read"):
        mount_of(load(tmp_path, LEAST + SOURCE.format(plan=tmp_path / "none.json")))


def test_a_gateway_that_has_not_looked_yet_is_not_ready_though_the_topics_are_in_reach() -> None:
    """Else it was for good, and told clients of a mounted topic nothing but errors while the source was away."""
    table, topic = PartitionTable(), SimpleNamespace(readiness_reason=None)
    reason = reason_unread(table, topic, topic)
    assert reason() == "the log dirs and the broker have not been looked at yet"
    table.watch_trouble, topic.readiness_reason = "", "2 partitions are being replayed"
    assert reason() == "2 partitions are being replayed"
    topic.readiness_reason = None
    assert reason() == ""


def test_a_source_that_goes_away_later_is_no_reason_not_to_be_ready() -> None:
    said = ["not reached yet", "", "gone"]
    ask = until_met(lambda: said.pop(0))
    assert [ask(), ask(), ask()] == ["not reached yet", "", ""]

"""Real clients read a tiered topic through the gateway as an untiered copy of it directly (issue 9; S-153, U7, T-51)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_cells import run_cell
from tests.support.gateway_clients import CLIENTS
from tests.support.gateway_table import TABLE, Cell
from tests.support.java_clients import utc_datetime
from tests.support.produce import produce_mix
from tests.support.reading import Reading
from tests.support.tiered_world import ORDERS, PARTITIONS, REMOTE_LOG_DIR, TieredWorld, open_tiered_world

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

DELETED = "deleted"
CELLS = [cell for cell in TABLE if cell.brokers == "1"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredWorld]:
    with open_tiered_world(tmp_path_factory.mktemp("gateway-clients"), brokers=1, topics=[DELETED]) as world:
        settings = world.kafka.client_settings
        asyncio.run(produce_mix(settings, DELETED, total_bytes=400_000, batch_bytes=16_384))
        yield world


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_same_records_in_the_same_order(world: TieredWorld, cell: Cell) -> None:
    seen, of_copy = run_cell(world, cell)
    assert seen == of_copy
    assert seen


@pytest.mark.parametrize("client", CLIENTS)
def test_remote_data_come_beside_much_local_data(world: TieredWorld, client: str) -> None:
    """A response too large to be held passes without what is remote, and the client has to ask again for it (design/0006)."""
    reading = Reading(topic=ORDERS.topic, beside=ORDERS.copy, ends=world.ends)
    copy = Reading(topic=ORDERS.copy, ends=world.ends)
    assert CLIENTS[client](world.access(), reading) == CLIENTS[client](world.access(through=False), copy)


def test_the_perf_consumer_counts_remote_data_beside_much_local_data(world: TieredWorld) -> None:
    visible = world.visible("read_uncommitted")
    reading = Reading(topic=ORDERS.topic, beside=ORDERS.copy, ends=world.ends, visible=visible, group="beside")
    copy = Reading(topic=ORDERS.copy, ends=world.ends, visible=visible, group="beside-copy")
    ((_, both, both_mb),) = world.java.performance(world.access(), reading)
    ((_, one, one_mb),) = world.java.performance(world.access(through=False), copy)
    assert both == 2 * one
    assert abs(float(both_mb) - 2 * float(one_mb)) < 0.001


@pytest.mark.parametrize("client", CLIENTS)
def test_who_may_not_read_directly_may_not_through_the_gateway(world: TieredWorld, client: str) -> None:
    """Rule 7; bob may ask for offsets, and not fetch: what is remote is denied in the broker's own words."""
    reading = Reading(topic=ORDERS.topic, ends={0: world.ends[0]}, visible=world.visible("read_uncommitted"))
    told = []
    for through in (False, True):
        access = world.access(user="bob", through=through)
        with pytest.raises(Exception, match=r"(?i)topic.?authorization|not authorized") as denied:
            CLIENTS[client](access, reading)
        told.append((denied.type, str(denied.value)))
    assert told[0] == told[1]


def test_the_console_consumer_is_denied_alike(world: TieredWorld) -> None:
    """It ends without a word but in its log."""
    reading = Reading(topic=ORDERS.topic, ends={0: world.ends[0]}, visible=world.visible("read_uncommitted"))
    logged = [world.tools.log_path.read_text()]
    for through in (False, True):
        assert world.java.console(world.access(user="bob", through=through), reading) == []
        logged.append(world.tools.log_path.read_text())
    times = [one.count("TopicAuthorizationException: Not authorized to access topics: [orders]") for one in logged]
    assert times[0] < times[1] < times[2]


# -- Kafka's own tools


def tool(world: TieredWorld, main_class: str, *arguments: str, through: bool = True) -> str:
    """What one prints that works for alice."""
    access = world.access(through=through)
    options = ("--bootstrap-server", access.servers, "--command-config", world.java.config(access))
    return world.tools.run(f"org.apache.kafka.tools.{main_class}", *options, *arguments).out


def listed(world: TieredWorld, topic: str, spec: str, *, through: bool = True) -> dict[int, int]:
    """Offsets by partition, as kafka-get-offsets prints them."""
    printed = tool(world, "GetOffsetShell", "--topic", topic, "--time", spec, through=through)
    return {int(line.split(":")[1]): int(line.split(":")[2] or -1) for line in printed.splitlines()}


def test_kafka_topics_describes_the_same(world: TieredWorld) -> None:
    told = [tool(world, "TopicCommand", "--describe", "--topic", ORDERS.topic, through=one) for one in (False, True)]
    assert f"Topic: {ORDERS.topic}" in told[0]
    assert told[0] == told[1]


@pytest.mark.parametrize("spec", ["earliest", "latest", "max-timestamp", "-1", "-2", "-3", "of a record", "of none"])
def test_kafka_get_offsets_says_the_same_as_of_the_untiered_copy(world: TieredWorld, spec: str) -> None:
    times = [one.timestamp_ms for one in world.produced]
    spec = {"of a record": str(sorted(times)[len(times) // 3]), "of none": str(max(times) + 3_600_000)}.get(spec, spec)
    assert listed(world, ORDERS.topic, spec) == listed(world, ORDERS.copy, spec, through=False)


@pytest.mark.parametrize("spec", ["earliest-local", "-4", "latest-tiered", "-5", "earliest-pending-upload", "-6"])
def test_kafka_get_offsets_says_where_the_tiers_meet(world: TieredWorld, spec: str) -> None:
    """As native tiered storage does: all but the active segments is remote, and nothing of it is local."""
    last = spec in ("latest-tiered", "-5")
    assert listed(world, ORDERS.topic, spec) == {start: at - last for start, at in world.local_starts.items()}


def log_dirs(world: TieredWorld, *, user: str = "alice", through: bool = True) -> dict[str, dict[str, int]]:
    """Sizes by log dir and partition, as kafka-log-dirs prints them; none where it fails."""
    access = world.access(user=user, through=through)
    options = ("--bootstrap-server", access.servers, "--command-config", world.java.config(access))
    command = ("org.apache.kafka.tools.LogDirsCommand", *options, "--describe", "--topic-list", ORDERS.topic)
    printed = next((line for line in world.tools.run(*command, check=False).out.splitlines() if line[:1] == "{"), "{}")
    return {
        one["logDir"]: {row["partition"]: row["size"] for row in one["partitions"] if not row["isFuture"]}
        for broker in json.loads(printed).get("brokers", ())
        for one in broker["logDirs"]
    }


def test_kafka_log_dirs_shows_remote_sizes_to_those_who_may_describe_the_cluster(world: TieredWorld) -> None:
    """U39."""
    directly, through = log_dirs(world, through=False), log_dirs(world)
    remote = through.pop(REMOTE_LOG_DIR)
    assert directly
    assert through.keys() == directly.keys()
    assert remote.keys() == {f"{ORDERS.topic}-{number}" for number in PARTITIONS}
    assert all(remote.values())
    assert log_dirs(world, user="bob") == log_dirs(world, user="bob", through=False) == {}


def test_kafka_consumer_groups_resets_to_offsets_of_both_tiers(world: TieredWorld) -> None:
    """In turn, the last from what the one before it has set; in the copy's group likewise."""
    middle = sorted(one.timestamp_ms for one in world.produced)[len(world.produced) // 3]
    resets = [
        ("--to-earliest",),
        ("--to-latest",),
        ("--to-datetime", utc_datetime(middle)),
        ("--to-offset", "50"),
        ("--by-duration", "P1D"),
        ("--to-offset", str(world.local_starts[0] + 1)),
        ("--shift-by", "-20"),
    ]
    found = list[dict[int, int]]()
    for reset in resets:
        found = [reset_offsets(world, topic, reset, through=topic == ORDERS.topic) for topic in ORDERS.both]
        assert found[0] == found[1], reset
        assert found[0].keys() == set(PARTITIONS)
    assert found[0][0] == world.local_starts[0] - 19


def reset_offsets(world: TieredWorld, topic: str, reset: tuple[str, ...], *, through: bool) -> dict[int, int]:
    printed = tool(
        world,
        "consumer.group.ConsumerGroupCommand",
        *("--group", f"reset-{topic}", "--topic", topic, "--reset-offsets", *reset, "--execute"),
        through=through,
    )
    rows = [line.split() for line in printed.splitlines() if f" {topic} " in line]
    return {int(row[-2]): int(row[-1]) for row in rows}


def test_kafka_delete_records_moves_the_log_start_of_both_tiers(world: TieredWorld, tmp_path: Path) -> None:
    local_start = world.wait_until_trimmed(DELETED, 0)
    for offset, expected in ((50, 50), (local_start + 1, local_start + 1)):
        wanted = tmp_path / f"{offset}.json"
        rows = [{"topic": DELETED, "partition": 0, "offset": offset}]
        wanted.write_text(json.dumps({"partitions": rows, "version": 1}))
        printed = tool(world, "DeleteRecordsCommand", "--offset-json-file", str(wanted))
        assert f"low_watermark: {expected}" in printed
        assert listed(world, DELETED, "earliest") == {0: expected}
    assert world.kafka.admin.earliest_offset(DELETED, 0) == local_start + 1

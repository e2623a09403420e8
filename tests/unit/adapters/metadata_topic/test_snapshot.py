"""The local snapshot: what comes back, what is discarded, and how schemas follow one another (U13, issue 4)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.support.metadata_events import DELETED, DELETING, FINISHED, ORDERS, added, updated
from tiersidecar.adapters.metadata_topic.partition_replica import LastRecord
from tiersidecar.adapters.metadata_topic.replica import ConsumedPosition, RestoredReplica
from tiersidecar.adapters.metadata_topic.snapshot import (
    SCHEMA,
    SavedPartition,
    SnapshotHead,
    SnapshotSchema,
    load_snapshot,
    pack_image,
    save_snapshot,
    unpack_image,
)
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache

HEAD = SnapshotHead(cluster_id="cluster", topic="metadata", topic_id=Uuid(b"metadata-topicid"), partition_count=3)
POSITIONS = {
    0: ConsumedPosition(position=7, leader_epoch=2, last=LastRecord(6, 0xDEADBEEF)),
    2: ConsumedPosition(position=0, leader_epoch=0, last=None),
}
OTHER = replace(ORDERS, partition=1)
NEXT_SCHEMA = SnapshotSchema(
    version=SCHEMA.version + 1,
    readable_since=SCHEMA.version,
    upgrades={SCHEMA.version: ("ALTER TABLE user_partition ADD COLUMN cleaner_offset INTEGER NOT NULL DEFAULT -1",)},
)


def cache_of(owner: TopicIdPartition = ORDERS, *, custom: bytes | None = b"\x01\x02") -> RemoteLogMetadataCache:
    cache = RemoteLogMetadataCache(owner)
    for number in range(5):
        cache.apply(added(number, 10 * number, 10 * number + 14, {0: 10 * number, 1: 10 * number + 5}, owner=owner))
        cache.apply(updated(number, FINISHED, owner=owner, custom=custom))
    cache.apply(updated(1, DELETING, owner=owner))
    cache.apply(updated(1, DELETED, owner=owner))
    cache.apply(updated(2, DELETING, owner=owner))
    cache.apply(added(6, 0, 99, owner=owner))
    return cache


def saved(cache: RemoteLogMetadataCache, applied_to: int = 6) -> SavedPartition:
    return SavedPartition(topic_id_partition=cache.topic_id_partition, applied_to=applied_to, image=cache.image())


def write(path: Path, *caches: RemoteLogMetadataCache, schema: SnapshotSchema = SCHEMA) -> None:
    save_snapshot(path, HEAD, POSITIONS, map(saved, caches), [c.topic_id_partition for c in caches], schema)


def read(path: Path, schema: SnapshotSchema = SCHEMA) -> RestoredReplica | None:
    return load_snapshot(path, topic="metadata", partition_count=3, schema=schema)


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "snapshot.db"


@pytest.mark.parametrize("custom", [b"\x01\x02", None], ids=["with custom metadata", "without custom metadata"])
def test_all_of_it_comes_back(path: Path, custom: bytes | None) -> None:
    caches = [
        cache_of(custom=custom),
        cache_of(OTHER, custom=custom),
        RemoteLogMetadataCache(replace(ORDERS, partition=2)),
    ]
    write(path, *caches)
    restored = read(path)
    assert restored is not None
    assert (restored.cluster_id, restored.topic_id, restored.positions) == ("cluster", HEAD.topic_id, POSITIONS)
    assert [one.topic_id_partition for one in restored.partitions] == [c.topic_id_partition for c in caches]
    assert [one.applied_to for one in restored.partitions] == [6, 6, 6]
    for one, cache in zip(restored.partitions, caches, strict=True):
        assert list(one.cache.list_remote_log_segments()) == list(cache.list_remote_log_segments())
        assert one.cache.image() == cache.image()


def test_no_file_is_no_snapshot(path: Path) -> None:
    assert read(path) is None


def test_only_what_changed_is_written_again_and_what_is_not_kept_goes(path: Path) -> None:
    write(path, cache_of(), cache_of(OTHER))
    changed = cache_of()
    changed.apply(updated(6, FINISHED))
    save_snapshot(path, HEAD, POSITIONS, [saved(changed, 9)], [ORDERS, OTHER])
    restored = read(path)
    assert restored is not None
    assert {one.topic_id_partition: one.applied_to for one in restored.partitions} == {ORDERS: 9, OTHER: 6}
    save_snapshot(path, HEAD, {}, [], [OTHER])
    restored = read(path)
    assert restored is not None
    assert ([one.topic_id_partition for one in restored.partitions], restored.positions) == ([OTHER], {})


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        pytest.param("DROP TABLE position", "no such table", id="a table is missing"),
        pytest.param("DELETE FROM meta WHERE name = 'topic_id'", "topic_id", id="the topic id is missing"),
        pytest.param(
            "UPDATE meta SET value = 'x' WHERE name = 'topic_id'", "checksum of its positions", id="a bad topic id"
        ),
        pytest.param("UPDATE meta SET value = 'other' WHERE name = 'topic'", "it is of other", id="another topic"),
        pytest.param(
            "UPDATE meta SET value = '50' WHERE name = 'partition_count'", "50 partitions", id="another count"
        ),
        pytest.param("UPDATE meta SET value = 'odd' WHERE name = 'byte_order'", "odd-endian", id="another byte order"),
        pytest.param("UPDATE meta SET value = 'x' WHERE name = 'schema_version'", "invalid literal", id="no version"),
        pytest.param("UPDATE position SET position = 99", "checksum of its positions", id="a changed position"),
        pytest.param("UPDATE user_partition SET applied_to = 99", "checksum of orders-0", id="a changed offset"),
        pytest.param("UPDATE user_partition SET rows = x'00'", "checksum of orders-0", id="flipped bytes"),
        pytest.param("UPDATE user_partition SET detail = '{}'", "checksum of orders-0", id="a changed detail"),
        pytest.param(
            "UPDATE user_partition SET detail = CAST(detail AS BLOB)", "another type", id="a column of another type"
        ),
    ],
)
def test_a_corrupt_snapshot_is_discarded_with_a_warning(path: Path, statement: str, reason: str) -> None:
    write(path, cache_of())
    execute(path, statement)
    with capture_logs() as logs:
        assert read(path) is None
    assert [(line["event"], line["log_level"]) for line in logs] == [("metadata.snapshot.discarded", "warning")]
    assert reason in logs[0]["reason"]
    assert not path.exists()
    write(path, cache_of())
    assert read(path) is not None


@settings(deadline=None, max_examples=60)
@given(position=st.integers(0, 40_000), flip=st.integers(1, 255))
def test_no_flipped_byte_of_the_file_crashes_or_goes_unnoticed(
    position: int, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("flip") / "snapshot.db"
    write(path, cache_of())
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= flip
    path.write_bytes(data)
    restored = read(path)
    if restored is not None:  # space that SQLite does not use
        assert (restored.cluster_id, restored.topic_id, restored.positions) == ("cluster", HEAD.topic_id, POSITIONS)
        assert [(one.topic_id_partition, one.applied_to) for one in restored.partitions] == [(ORDERS, 6)]
        assert restored.partitions[0].cache.image() == cache_of().image()


def test_a_file_that_is_no_database_is_discarded(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)
    assert read(path) is None
    assert path.with_name("snapshot.db.discarded").exists()


def test_upgrade_by_one_schema_version(path: Path) -> None:
    write(path, cache_of())
    restored = read(path, NEXT_SCHEMA)
    assert restored is not None
    assert restored.partitions[0].cache.image() == cache_of().image()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT cleaner_offset FROM user_partition").fetchall() == [(-1,)]
        assert database.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone() == ("2",)


def test_downgrade_by_one_schema_version(path: Path) -> None:
    """What the next version wrote is read, and written on, by this one."""
    write(path, cache_of())
    assert read(path, NEXT_SCHEMA) is not None
    write(path, cache_of(), schema=NEXT_SCHEMA)
    restored = read(path)
    assert restored is not None
    write(path, cache_of(), cache_of(OTHER))
    restored = read(path)
    assert restored is not None
    assert len(restored.partitions) == 2


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        pytest.param(replace(NEXT_SCHEMA, readable_since=2), "newer than 1", id="a newer one that we may not read"),
        pytest.param(SnapshotSchema(version=0, readable_since=0), "older than any", id="an older one without upgrade"),
    ],
)
def test_other_schemas_are_discarded(path: Path, schema: SnapshotSchema, reason: str) -> None:
    write(path, cache_of(), schema=schema)
    with capture_logs() as logs:
        assert read(path) is None
    assert reason in logs[0]["reason"]


def test_an_image_is_packed_without_loss() -> None:
    image = cache_of().image()
    assert unpack_image(pack_image(image)) == image

"""The remote log of a real broker's topic after our cleaner lane, against what the broker's own cleaner leaves (S-242, S-256,
S-257, S-258, S-263, S-282).

The topic is cleanup.policy=delete while it is written, so that nothing is cleaned before its segments are in the remote tier;
then it becomes a compacted one, and both clean.  Two rounds: the second one sees what the first has left, and what the broker
writes next.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from tests.support.clean_world import CleanWorld, live
from tests.support.compacted_logs import LogSegment, all_records, committed_records, table
from tests.support.compacted_topic import read_segments, wait_until_cleaned, write_at_random
from tests.support.kafka_cluster import KafkaCluster
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import Record

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

TOPIC, SEGMENT_BYTES = "compacted", 16 * 1024
DELETE_RETENTION_MS = 200
CLEANED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001"}
PAUSED = {"min.cleanable.dirty.ratio": "1.0", "cleanup.policy": "delete"}
KEYS, STEPS, ROUNDS = 40, 150, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """``active`` is the segment that neither cleaned: markers of what is below it may be in it.  ``tables`` are what readers
    built of the remote log at places of our round."""

    before: tuple[LogSegment, ...]
    brokers: tuple[LogSegment, ...]
    remote: tuple[LogSegment, ...]
    active: LogSegment
    tables: tuple[dict[bytes, Record], ...]


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Round]]:
    with KafkaCluster(tmp_path_factory.mktemp("clean"), properties={"log.cleaner.backoff.ms": "200"}) as kafka:
        configs = {"cleanup.policy": "delete", "retention.ms": "-1", "delete.retention.ms": str(DELETE_RETENTION_MS)}
        kafka.create_topic(TOPIC, partitions=1, segment_bytes=SEGMENT_BYTES, configs=configs)
        world = CleanWorld(scratch=tmp_path_factory.mktemp("scratch") / "cleaned")
        world.configure(delete_retention_ms=str(DELETE_RETENTION_MS))
        found, end = list[Round](), 0
        for number in range(ROUNDS):
            draw = random.Random(number)
            asyncio.run(write_at_random(kafka.client_settings, TOPIC, 0, draw, steps=STEPS, keys=KEYS))
            before = read_segments(kafka[1], TOPIC, 0)
            new = [one for one in before[:-1] if one.base_offset >= end]
            end = before[-1].base_offset
            kafka.admin.alter_topic(TOPIC, CLEANED)
            wait_until_cleaned(kafka[1], TOPIC, [end])
            brokers = read_segments(kafka[1], TOPIC, 0)[:-1]
            remote, tables = asyncio.run(_cleaned(world, new, before[-1]))
            found.append(
                Round(before=before, brokers=brokers, remote=tuple(remote), active=before[-1], tables=tuple(tables))
            )
            kafka.admin.alter_topic(TOPIC, PAUSED)
        yield found


async def _cleaned(
    world: CleanWorld, new: Sequence[LogSegment], active: LogSegment
) -> tuple[list[LogSegment], list[dict[bytes, Record]]]:
    """Upload, and clean; the tables of readers at every swap."""
    tables: list[dict[bytes, Record]] = []

    async def look() -> None:
        tables.append(table(committed_records([*await world.read(), active])))

    world.clock.jump(DELETE_RETENTION_MS / 1000 + 1)
    await world.add(*new)
    world.broker.last_stable_offsets[world.owner] = Offset(active.base_offset)
    await look()
    done = await world.clean({"clean.finished": look, "clean.trashed": look, "clean.published": look})
    assert (done.reason, done.left) == ("", "")
    assert done.cleaner_offset > 0
    return await world.read(), tables


@pytest.mark.parametrize("number", range(ROUNDS), ids=["first round", "second round"])
def test_the_remote_log_holds_for_each_key_the_value_that_the_brokers_cleaner_leaves(
    rounds: list[Round], number: int
) -> None:
    done = rounds[number]
    brokers = table(committed_records([*done.brokers, done.active]))
    remote = table(committed_records([*done.remote, done.active]))
    assert live(remote) == live(brokers) == live(table(committed_records(done.before)))
    assert brokers.keys() <= remote.keys(), "a tombstone stays here for as long as there, or longer"
    assert all(remote[key] == brokers[key] for key in brokers)


@pytest.mark.parametrize("number", range(ROUNDS), ids=["first round", "second round"])
def test_readers_build_the_same_table_at_every_moment_of_the_swaps(rounds: list[Round], number: int) -> None:
    tables = rounds[number].tables
    assert len(tables) > 5
    assert all(live(one) == live(tables[0]) for one in tables)


def test_it_is_a_fraction_of_what_it_was(rounds: list[Round]) -> None:
    for done in rounds:
        remote = sum(len(one.log) for one in done.remote)
        assert remote < sum(len(one.log) for one in rounds[0].before) * (len(rounds) + 1) / 2


def test_the_workload_has_what_there_is_to_see(rounds: list[Round]) -> None:
    """Or the comparison would say little."""
    headers = [header for done in rounds for one in done.before for _, header in iter_batch_headers(one.log)]
    assert len({one.compression for one in headers}) == 5
    assert {one.is_transactional for one in headers} == {True, False}
    first, second = rounds
    shown = {one.offset for one in committed_records(first.before)}
    written = {one.offset for segment in first.before for one in all_records(segment.log) if not one.is_control}
    assert written - shown, "transactions that were aborted"
    tombstones = {key for key, one in table(committed_records(first.before)).items() if one.value is None}
    assert tombstones
    remote = {one.offset for one in committed_records(second.remote)}
    gone = {one.offset for one in table(committed_records(first.before)).values() if one.value is None}
    assert gone - remote, "tombstones whose horizon was over in the second round"

"""Segments whose transaction markers a broker's cleaner took away before they were copied (issue 23; S-259, S-260)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.clean_world import COMPACTED
from tests.support.deep_checks import deep_findings
from tests.support.manual_clock import ManualClock
from tests.support.remote_events import fold, in_state
from tests.support.tier_shell import TierShell
from tests.unit.tasks.test_odd_segments import companion
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.decide.topics import read_cleaner_settings
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LocalSegment, Pin, PinnedPartition, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.kafka.producer_state import open_states, read_open_producers
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder
from tiersidecar.tasks.segment_objects import LayoutSettings

TOPIC = "transactions-0"


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[TierShell]:
    async with ThreadBlocking(max_threads=2) as blocking:
        shell = TierShell(
            tmp_path, blocking, LayoutSettings(), TopicPolicy(), clock=ManualClock(), partitions=("plain-0", TOPIC)
        )
        await shell.look()
        yield shell


def sealed(shell: TierShell) -> tuple[LocalSegment, ...]:
    return shell.table.local.partitions[shell.topic_id_partition(TOPIC)].sealed_segments


async def clean_away_what_crosses_borders(shell: TierShell) -> None:
    """As a cleaner that finds the records of these transactions aborted or of older values, and later their markers alone."""
    crossing = {one for segment in sealed(shell) for one in open_of(segment)}
    assert crossing
    ongoing = dict[int, int]()
    for segment in sealed(shell):
        log, kept = Path(segment.log_path).read_bytes(), bytearray()
        for position, header in iter_batch_headers(log):
            if header.is_transactional and not header.is_control:
                ongoing.setdefault(header.producer_id, header.base_offset)
            transaction = (header.producer_id, ongoing.get(header.producer_id, -1))
            if header.is_control:
                ongoing.pop(header.producer_id, None)
            if not (header.is_transactional and transaction in crossing):
                kept += log[position : position + header.size_bytes]
        rebuilder = SegmentRebuilder(where="log", base_offset=segment.base_offset, earlier_snapshot=None)
        rebuilder.feed(kept)
        made = rebuilder.finish()
        Path(segment.log_path).write_bytes(kept)
        companion(segment, "index").write_bytes(made.offset_index)
        companion(segment, "timeindex").write_bytes(made.time_index)
        companion(segment, "txnindex").write_bytes(made.transaction_index or b"")
    await shell.look()


def open_of(segment: LocalSegment) -> list[tuple[int, int]]:
    return sorted(
        (one.producer_id, one.current_transaction_first_offset)
        for one in read_open_producers(companion(segment, "snapshot").read_bytes())
    )


def owner_of(shell: TierShell) -> TopicIdPartition:
    return shell.topic_id_partition(TOPIC)


def be_compacted(shell: TierShell) -> None:
    """Here it is copied from the broker's own files: no picture is taken."""
    settings = read_cleaner_settings(COMPACTED)
    assert settings is not None
    shell.table.compacted_topics[owner_of(shell).topic] = settings
    shell.table.record(owner_of(shell)).is_pictured = True
    local = shell.table.local.partitions[owner_of(shell)]
    for one in local.sealed_segments:
        shell.table.pins.add(
            Pin(
                owner=PinnedPartition.of(owner_of(shell)),
                log_dir=local.log_dir,
                segment=one,
                leader_epochs=local.leader_epochs,
                max_timestamp_ms=one.modified_ms,
                is_whole=True,
            )
        )


async def copied(shell: TierShell) -> list[RemoteLogSegmentMetadata]:
    await shell.copy.run(shell.tiered(owner_of(shell)))
    return in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)


async def open_at_ends(shell: TierShell, remote: list[RemoteLogSegmentMetadata]) -> list[list[tuple[int, int]]]:
    return [
        sorted(
            (one.producer_id, one.current_transaction_first_offset)
            for one in open_states(await shell.blobs.read_producer_snapshot(segment))
        )
        for segment in remote
    ]


async def test_of_a_compacted_topic_they_have_ended_where_the_broker_says_so(shell: TierShell) -> None:
    """Else read_committed of the remote log would stop at the first of them for good."""
    await clean_away_what_crosses_borders(shell)
    be_compacted(shell)
    remote = await copied(shell)
    assert await open_at_ends(shell, remote) == [open_of(one) for one in sealed(shell)]
    for segment in remote:
        assert await deep_findings(shell.store, segment, remote) == [], "and reconcile --deep finds nothing lacking"


async def test_of_any_other_topic_the_batches_count(shell: TierShell) -> None:
    """A broker may have lost its state: a transaction of which no end is found stays open (rule 14)."""
    await clean_away_what_crosses_borders(shell)
    remote = await copied(shell)
    told = await open_at_ends(shell, remote)
    assert len(told[-1]) > len(open_of(sealed(shell)[-1]))


async def test_one_that_the_broker_did_not_know_where_the_segment_begins_stays_open(shell: TierShell) -> None:
    """It has lost its state: then its word for the end is worth nothing, on a compacted topic either."""
    segments = sealed(shell)
    stop = segments[0].next_base_offset
    assert stop is not None
    stable = shell.broker.last_stable_offsets[owner_of(shell)]
    shell.broker.last_stable_offsets[owner_of(shell)] = stop
    assert len(await copied(shell)) == 1
    known = open_of(segments[0])
    assert known
    await clean_away_what_crosses_borders(shell)
    companion(segments[0], "snapshot").unlink()
    be_compacted(shell)
    shell.broker.last_stable_offsets[owner_of(shell)] = stable
    remote = await copied(shell)
    assert set(known) <= set((await open_at_ends(shell, remote))[1])

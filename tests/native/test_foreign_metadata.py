"""The native fold of metadata beside Python's, of what writers other than ours may leave in the topic, and of caches that are
saved, restored and asked between the batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from random import Random

from structlog.testing import capture_logs

from tests.native.foreign_metadata import EXTREMES, ForeignWriter
from tests.native.test_metadata_fold import KEPT, Story, contents, folded, some_event
from tests.native.test_walks import on_both
from tests.support.metadata_events import FINISHED, added, updated
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.unit.adapters.metadata_topic.replicas import FakeRecord, owner
from tiersidecar.adapters.metadata_topic.held import HeldPartition, partition_key
from tiersidecar.adapters.metadata_topic.partition_replica import PartitionReplica
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata
from tiersidecar.formats.metadata.serde import write_event

SEEDS = 600
HIGHEST = 2**63 - 1


def records_of(told: Iterable[MetadataEvent]) -> list[FakeRecord]:
    return [FakeRecord(at, write_event(event, knows_txn_index_empty=True)) for at, event in enumerate(told)]


def entries(*epochs: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs)


def at_the_limits(lots: Random, event: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """The segment with offsets and epochs at the ends of their ranges."""
    start = lots.choice([0, 5, HIGHEST - 1, HIGHEST])
    starts = {
        lots.randrange(-1, 3): lots.choice([EXTREMES[0], *EXTREMES, start, start]) for _ in range(lots.randrange(1, 4))
    }
    return replace(
        event,
        start_offset=Offset(start),
        end_offset=Offset(lots.choice([start, min(start + 9, HIGHEST), HIGHEST])),
        segment_leader_epochs=entries(*sorted(starts.items())),
    )


def foreign_values(lots: Random, writer: ForeignWriter) -> list[bytes]:
    """One event; mostly, of a segment at the limits, its end as well: what it leaves among the epochs is then seen."""
    event = some_event(lots)
    if not isinstance(event, RemoteLogSegmentMetadata) or lots.random() < 0.7:
        return [writer.write(event)]
    segment = event.remote_log_segment_id
    finished = replace(updated(0, FINISHED), remote_log_segment_id=segment)
    return [writer.write(one) for one in (at_the_limits(lots, event), finished)]


def used(lots: Random, held: HeldPartition) -> object:
    """What goes on between two batches of a cache: a snapshot, a restart from it, a look, the end of the replay."""
    if lots.random() < 0.2:
        held.cache.mark_loaded()
    match lots.randrange(6):
        case 0:
            return held.cache.image()
        case 1:
            held.cache = RemoteLogMetadataCache.from_image(held.topic_id_partition, held.cache.image())
        case 2:
            return [held.cache.finished_runs(epoch) for epoch in range(-1, 3)]
        case 3:
            return held.cache.mark
    return None


def lived(seed: int) -> object:
    """All that is left of some batches, and all that was seen between them."""
    lots, telemetry = Random(seed), RecordedTelemetry()
    replica = PartitionReplica(topic="metadata", number=7, telemetry=telemetry)
    holders = {partition_key(owner(number)): HeldPartition(owner(number)) for number in KEPT}
    writer, offset, seen = ForeignWriter(lots, lots.choice([0.0, 0.01, 0.05])), 0, []
    with capture_logs() as logs:
        for _ in range(lots.randrange(1, 7)):
            values = [value for _ in range(lots.randrange(30)) for value in foreign_values(lots, writer)]
            records = [FakeRecord(offset + at, value) for at, value in enumerate(values)]
            offset += len(records) - lots.choice([0, 0, 0, 2])  # sometimes the end of a batch comes again
            replica._fold(holders, list(records), logs=True)
            seen += [used(lots, held) for held in holders.values()]
    left = [
        (held.applied_to, contents(held.cache), list(held.cache.list_remote_log_segments(0)))
        for held in holders.values()
    ]
    return left, seen, replica.changes, telemetry.values, logs


def test_records_of_foreign_writers_into_caches_that_are_used_meanwhile() -> None:
    for seed in range(SEEDS):
        on_both(partial(lived, seed), seed)


def test_an_epoch_whose_highest_offset_is_below_all_that_64_bits_hold() -> None:
    """Epochs out of order, the second from the lowest offset there is: the first ends one below that."""
    told: list[MetadataEvent] = [
        replace(added(1, 5, 9, owner=owner(0)), segment_leader_epochs=entries((0, 5), (1, -(2**63)))),
        *(added(number, number * 10, number * 10 + 9, owner=owner(0)) for number in (2, 3)),
        *(updated(number, FINISHED, owner=owner(0)) for number in (1, 2, 3)),
    ]
    for batches in ([], [4], [5], [4, 1]):
        on_both(partial(folded, Story(records=records_of(told), batches=batches)))


def test_segments_of_more_epochs_than_are_looked_through() -> None:
    told: list[MetadataEvent] = [
        *(
            added(
                number,
                start,
                start + 99,
                {epoch: start + epoch - number for epoch in range(number, number + 50)},
                owner=owner(0),
            )
            for number, start in ((3, 0), (1, 100), (30, 200), (3, 300))
        ),
        *(updated(number, FINISHED, owner=owner(0)) for number in (30, 1, 3)),
    ]
    for batches in ([], [3], [5, 1]):
        on_both(partial(folded, Story(records=records_of(told), batches=batches)))

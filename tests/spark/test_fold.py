"""What Spark makes of events is what the daemon's cache makes of them, at both cuts (rule 5; S-097, S-099, S-100, S-101)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.event_sequences import event_sequence
from tests.support.metadata_events import ORDERS
from tiersidecar.domain.errors import IllegalTransitionError, UnknownSegmentError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.segments import MetadataEvent
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.metadata.serde import write_event
from tiersidecar.spark.events import decoded
from tiersidecar.spark.fold import folded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SEQUENCES = 4_000
RAW = "partition int, offset bigint, is_late boolean, value binary"


def state_of(events: Sequence[MetadataEvent], uuid: bytes, partition: int) -> State | None:
    """None: gone, or never there."""
    cache = RemoteLogMetadataCache(replace(ORDERS, partition=partition))
    for event in events:
        with suppress(IllegalTransitionError, UnknownSegmentError):
            cache.apply(event)
    segment = cache.segment(Uuid(uuid))
    return None if segment is None else segment.state


def test_no_difference_to_the_daemons_cache(spark: SparkSession) -> None:
    sequences = {seed: event_sequence(seed, replace(ORDERS, partition=seed)) for seed in range(SEQUENCES)}
    cuts = {seed: seed % (len(events) + 1) for seed, events in sequences.items()}
    rows = [
        (0, at, at >= cuts[seed], bytearray(write_event(event, knows_txn_index_empty=True)))
        for seed, events in sequences.items()
        for at, event in enumerate(events)
    ]
    events = decoded(spark.createDataFrame(rows, RAW)).persist()
    found = folded(events, "", lambda frame: frame.persist()).collect()
    wrong: list[Any] = []
    for row in found:
        seed, uuid = row["partition"], bytes(row["uuid"])
        for name, seen in (("after", sequences[seed]), ("before", sequences[seed][: cuts[seed]])):
            state = None if row[name] in {None, State.DELETE_SEGMENT_FINISHED} else State(row[name])
            if state is not state_of(seen, uuid, seed):
                wrong.append((seed, name, state))
    assert wrong == []
    there = {(row["partition"], bytes(row["uuid"])) for row in found}
    live = 0
    for seed, seen in sequences.items():
        cache = RemoteLogMetadataCache(replace(ORDERS, partition=seed))
        for event in seen:
            with suppress(IllegalTransitionError, UnknownSegmentError):
                cache.apply(event)
        for segment in cache.list_remote_log_segments():
            live += 1
            assert (seed, segment.remote_log_segment_id.uuid) in there
    assert live > SEQUENCES

"""Records that a broker gives though nobody may have them any more (DESIGN.md section 5).

A broker writes its log start down once a minute.  After a crash it begins again below what a user, or retention, has deleted,
until the leader's sidecar has told it the remote log start once more.  That start is known here, in memory, as far as this
process has read the state topic.  Which history it was said of, the batch itself tells: its leader epoch.  So an election that
is not known here yet sends nobody past what the new leader has written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiersidecar.domain.errors import CorruptDataError, MetadataNotReadyError, TruncatedDataError
from tiersidecar.domain.ids import Uuid
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.formats.wire.fetch_requests import FetchPartition, FetchRequest, PartitionKey
from tiersidecar.formats.wire.fetch_responses import (
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    FetchedPartition,
    FilledPartition,
)
from tiersidecar.ports.state_log import StateLog
from tiersidecar.services.gateway.tiered_partitions import ANYBODY, Asker, TieredPartitions


class DeletedRecords:
    """Each Fetch is looked at: nearly always one look-up in memory for each partition with records, and no more."""

    def __init__(self, *, tiered: TieredPartitions, state: StateLog) -> None:
        self._tiered, self._state = tiered, state

    def suspects(
        self, rows: Sequence[FetchedPartition], asked: Mapping[PartitionKey, FetchPartition]
    ) -> list[FetchedPartition]:
        """Those of ``rows`` whose records may begin with deleted ones.  Where nobody knows what was asked, the log start that
        the broker tells is below it."""
        found = []
        for row in rows:
            if row.records_bytes:
                known = asked.get(row.key)
                if self.is_suspect(row.key, row.log_start_offset if known is None else known.fetch_offset):
                    found.append(row)
        return found

    def is_any_suspect(self, request: FetchRequest) -> bool:
        """Whether records that ``request`` names a partition of may begin with deleted ones."""
        if request.is_of_follower:
            return False
        return any(self.is_suspect(key, partition.fetch_offset) for key, partition in request.partitions.items())

    def is_suspect(self, key: PartitionKey, offset: int) -> bool:
        """Whether ``offset`` lies below a start that was said, of whatever history."""
        topic, partition = key
        topic_id = Uuid(topic) if isinstance(topic, bytes) else self._tiered.topic_id(topic)
        return topic_id is not None and offset < self._state.highest_start(topic_id, partition)

    def judge(
        self, key: PartitionKey, offset: int, records: memoryview, asker: Asker = ANYBODY
    ) -> FilledPartition | None:
        """What a client gets instead of ``records``, asked for from ``offset`` on; None: they are his.

        Out of range is what natively would be, by the offset alone: of a batch around the log start the client skips what lies
        before it.
        """
        try:
            view = self._tiered.find(*key, asker)
            if view is None:
                return None  # what the broker says of it stands, of its log start, too
            leader_epoch = read_batch_header(records).partition_leader_epoch
            start = self._state.partition_state(view.topic_id_partition).start_for(leader_epoch)
        except MetadataNotReadyError:
            return FilledPartition(error_code=NOT_LEADER_OR_FOLLOWER)
        except (TruncatedDataError, CorruptDataError):
            return None  # nobody can read a record of it
        return FilledPartition(error_code=OFFSET_OUT_OF_RANGE, log_start_offset=start) if offset < start else None

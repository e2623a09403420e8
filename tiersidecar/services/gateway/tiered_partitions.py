"""Which partitions of a request are tiered, as the gateway sees them, and which of their records are deleted.

A broker gives records that nobody may have any more (DESIGN.md section 5): it writes its log start down once a minute, and
after a crash it begins again below what a user, or retention, has deleted, until the leader's sidecar has trimmed it once more.
The remote log start is known here, in memory, as far as this process has read the state topic.  Of which history it is, the
batch itself tells: its leader epoch.  So an election that is not known here yet sends nobody past what the new leader
has written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.errors import CorruptDataError, MetadataNotReadyError, TruncatedDataError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.formats.wire.fetch import (
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FilledPartition,
    PartitionKey,
)
from tiersidecar.ports.state_log import StateLog


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredView:
    """A tiered partition that the broker replicates."""

    topic_id_partition: TopicIdPartition
    leader_epoch: LeaderEpoch


class Moment(Protocol):
    """What was known of tiered partitions at a moment."""

    def find(self, topic: str, partition: int) -> TieredView | None:
        """By the topic's name; None where it was not known to be tiered."""
        ...


@dataclass(slots=True, kw_only=True)
class Asker:
    """The client for which a partition is looked for.

    ``told`` are ids that the broker has told it of topics by name.  ``asked_at`` is what was known when its request was sent,
    by which the broker has answered: what is of another topic or leader epoch since then is none that it was asked about.
    """

    told: dict[str, Uuid] = field(default_factory=dict)
    asked_at: Moment | None = None

    def check(self, view: TieredView) -> None:
        """
        Raises:
            MetadataNotReadyError: its request was about another topic, or leader epoch, than ``view`` is of.
        """
        partition = view.topic_id_partition
        if self.asked_at is not None and self.asked_at.find(partition.topic, partition.partition) != view:
            raise MetadataNotReadyError(subject=f"{partition}, which was another when it was asked for")


ANYBODY = Asker()
"""Nobody has told it anything."""


class TieredPartitions(Protocol):
    def find(self, topic: str | bytes, partition: int, asker: Asker = ANYBODY) -> TieredView | None:
        """By the topic's name, or the 16 bytes of its id.  None: it is not tiered, and what the broker says of it stands.

        Raises:
            MetadataNotReadyError: it may be tiered, and nothing is known of it yet; or the name is another topic's by now than
                what is known is of; or what is known has changed since ``asker`` has asked.
        """
        ...

    def may_be_tiered(self, topic: str) -> bool:
        """Return whether partitions of it are tiered, or may turn out to be: of all others the broker's word stands.  Asked
        before the broker has said what a client may know: it takes as long whether or not there is such a topic."""
        ...

    def find_on_disk(self, topic: str, partition: int) -> TieredView | None:
        """By the topic's name, as the broker has it on its disk now, whether or not a look at the cluster has met it; None
        where it is not there, or no rule tiers it.  Reads a small file."""
        ...

    def now(self) -> Moment:
        """Return what is known now: it takes no time, however many partitions there are."""
        ...

    def topic_id(self, topic: str) -> Uuid | None:
        """Of a topic's name, as last seen, whether tiered or not; None where there was none."""
        ...


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
        """Return whether records that ``request`` names a partition of may begin with deleted ones."""
        if request.is_of_follower:
            return False
        return any(self.is_suspect(key, partition.fetch_offset) for key, partition in request.partitions.items())

    def is_suspect(self, key: PartitionKey, offset: int) -> bool:
        """Return whether ``offset`` lies below a start that was said, of whatever history."""
        topic, partition = key
        topic_id = Uuid(topic) if isinstance(topic, bytes) else self._tiered.topic_id(topic)
        return topic_id is not None and offset < self._state.highest_start(topic_id, partition)

    def classify(
        self, key: PartitionKey, offset: int, records: memoryview, asker: Asker = ANYBODY
    ) -> FilledPartition | None:
        """Return what a client gets instead of ``records``, asked for from ``offset`` on; None: they are his.

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

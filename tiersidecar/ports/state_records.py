"""Records of the state topic beside the partitions' own: requests for another copy, accepted losses, the trash, leases, how
far partitions are cleaned.

A request asks to copy again what the store has lost, from what a broker's disk still has.  ``tiersidecar repair`` asks; the
leader's sidecar does it, or declines.  Where the leader has declined, so do the followers'.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.cleaner import CleanerClaim
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.ports.state_log import PauseLog, StateChanges, StateLog


@dataclass(frozen=True, slots=True, kw_only=True)
class RecopyRequest:
    """Offsets, both inclusive, that are to be remote again.

    ``segment_uuid`` is the segment to be given up once others hold all of them; None: they are in none.  ``from_store``: its
    batches are right, its indexes are not: it is written again from the store.  ``declined`` says why the
    sidecar of a broker cannot.
    """

    topic_id_partition: TopicIdPartition
    start_offset: Offset
    end_offset: Offset
    segment_uuid: Uuid | None = None
    from_store: bool = False
    requested_ms: int
    declined: Mapping[BrokerId, str] = field(default_factory=dict)

    def is_same(self, other: RecopyRequest) -> bool:
        """Return whether both ask for the same, whatever their times and answers."""
        return (self.topic_id_partition, self.start_offset, self.end_offset, self.segment_uuid) == (
            other.topic_id_partition,
            other.start_offset,
            other.end_offset,
            other.segment_uuid,
        )


def segments_of(requests: Iterable[RecopyRequest]) -> frozenset[Uuid]:
    """Return the remote segments that ``requests`` give up: the store has lost a part of each."""
    return frozenset(request.segment_uuid for request in requests if request.segment_uuid is not None)


class RecopyRequests(Protocol):
    def recopies(self, topic_id_partition: TopicIdPartition) -> Sequence[RecopyRequest]:
        """Return the requests that are not done, ascending by offset.

        Raises:
            MetadataNotReadyError: the topic has not been replayed to its end yet.
        """

    async def request_recopy(self, request: RecopyRequest) -> None:
        """Request it, or request it again; return after read-back.  Of two for the same the later one counts."""

    async def decline_recopy(self, request: RecopyRequest, broker_id: BrokerId, reason: str) -> None:
        """Record that this broker cannot; return after read-back.  A request that is gone by now stays gone."""

    async def forget_recopy(self, request: RecopyRequest) -> None:
        """Remove a request that is done or void (a tombstone); return after read-back."""


class AcceptedLosses(Protocol):
    @property
    def topic_id(self) -> str:
        """Return the state topic's present id; empty while that is not known."""
        ...

    def accepted_losses(self) -> Collection[str]:
        """Return ids of topics that may lack what was in them before.

        Raises:
            MetadataNotReadyError: the state topic has not been replayed to its end yet.
        """
        ...

    async def accept_losses(self, topic_ids: Mapping[str, str], *, by: str) -> None:
        """Record that what the topics of these names and ids lack is lost for good; return after read-back."""


class TrashLog(Protocol):
    def trash(self, topic_id_partition: TopicIdPartition) -> Sequence[TrashEntry]:
        """Return the trash of a partition, ascending by id; the topic's name has no part in it.

        Raises:
            MetadataNotReadyError: the topic has not been replayed to its end yet.
        """

    def trash_partitions(self) -> Sequence[TopicIdPartition]:
        """Return every partition with an entry, also of topics that are gone; raise what :meth:`trash` does."""

    async def put_into_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        """Merge each with what is known of its id (:meth:`TrashEntry.merged_with`), write it, return after read-back.

        Raises:
            PublishTimeoutError: not read back in time.
        """

    async def take_out_of_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        """Remove each (a tombstone), unless more was decided in it since; return after read-back.  One that is gone is no
        error."""


class Leases(Protocol):
    def lease(self, name: str) -> Lease | None:
        """Return the lease that counts, as read back; None where it was never claimed.

        Raises:
            MetadataNotReadyError: the topic has not been replayed to its end yet.
        """

    async def catch_up(self) -> None:
        """Return once everything is read that is in the topic now.

        Raises:
            MetadataNotReadyError: it could not be read to its end.
        """

    async def publish_lease(self, lease: Lease) -> Lease:
        """Claim, renew or release; return after read-back the lease that counts then: another process's where it was faster.

        Raises:
            PublishTimeoutError: not read back in time.
        """


class KnownLeases(Protocol):
    def known_leases(self) -> Sequence[Lease]:
        """Return every lease that counts, released or not, by name.

        Raises:
            MetadataNotReadyError: the topic has not been replayed to its end yet.
        """


class CleanerLog(Protocol):
    def cleaner_claims(self, topic_id_partition: TopicIdPartition) -> Sequence[CleanerClaim]:
        """Return what leaders have said of how far they had cleaned a partition, ascending by leader epoch, of each the
        last (:func:`~tiersidecar.domain.cleaner.merged_claims`).  A lineage says which of them count.

        Raises:
            MetadataNotReadyError: the topic has not been replayed to its end yet.
        """
        ...

    async def publish_cleaner_claim(self, topic_id_partition: TopicIdPartition, claim: CleanerClaim) -> None:
        """Merge ``claim`` with what is known, write it, return after read-back.

        Raises:
            PublishTimeoutError: not read back in time.
        """


class RequestingStateLog(
    StateLog,
    StateChanges,
    RecopyRequests,
    Leases,
    KnownLeases,
    TrashLog,
    AcceptedLosses,
    PauseLog,
    CleanerLog,
    Protocol,
):
    """The whole state topic."""

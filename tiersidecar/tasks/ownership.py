"""Right to act on a segment: which are in flight in this process already, and what is asked right before anything is published,
deleted or trimmed: is the partition ours, does this process still hold the role, and is it forbidden?

Segments whose copy or removal is in flight join the lanes of a partition (S-030).  Copies are in the journal as well, before
anything of them is published, so that the next process knows them for ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Set
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

import structlog

from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.copy_journal import CopyJournal
from tiersidecar.ports.metrics.copying import COPY_OLDEST_AGE
from tiersidecar.ports.telemetry import Telemetry


class Ownership(Protocol):
    def require_role(self) -> None:
        """Return if this process holds its broker's tier role now; to be called right before each act, without a wait between.

        Raises:
            LeaseLostError: another process may hold it.
        """

    async def confirm(
        self, topic_id_partition: TopicIdPartition, *, anew: bool = False, place: str | None = None
    ) -> None:
        """Return if :meth:`require_role` does, and once the topic's remote data are known for this cluster's, in this very
        store: ``anew`` where no answer of some seconds ago will do.  ``place`` is where the segment lies that it is about, None
        for where new ones go.

        Raises:
                LeaseLostError: another process may hold the role.
            NotOwnedError: they are another cluster's.
            OwnerMissingError: this is not the store that they are in.
            StoreError: the store is away.
        """


class RoleLease(Protocol):
    def require(self) -> None:
        """Return if the tier role is held."""


class Claims(Protocol):
    async def claim(
        self, topic_id_partition: TopicIdPartition, *, anew: bool = False, place: str | None = None
    ) -> None:
        """Return once the topic's id is this cluster's."""


class LeasedOwnership:
    """An :class:`Ownership` by lease and claims."""

    def __init__(self, lease: RoleLease, claims: Claims) -> None:
        self._lease, self._claims = lease, claims

    def require_role(self) -> None:
        self._lease.require()

    async def confirm(
        self, topic_id_partition: TopicIdPartition, *, anew: bool = False, place: str | None = None
    ) -> None:
        self._lease.require()
        await self._claims.claim(topic_id_partition, anew=anew, place=place)
        self._lease.require()


class Unquestioned:
    """An :class:`Ownership` of a process that writes nothing (``mode: observe``), and of tests of other things."""

    def require_role(self) -> None:
        return None

    async def confirm(
        self, topic_id_partition: TopicIdPartition, *, anew: bool = False, place: str | None = None
    ) -> None:
        return None


UNQUESTIONED = Unquestioned()


class MayDelete(Protocol):
    """Permission to delete, to be asked right before each: a round that reads back or removes thousands of segments lasts for
    hours."""

    @property
    def reason_not_to_delete(self) -> str:
        """Return why nothing at all may be deleted now, locally or remotely (a switch, lost metadata); empty when it may."""

    @property
    def reason_not_to_delete_remote(self) -> str:
        """Return why nothing remote may be deleted: :attr:`reason_not_to_delete`, or a live broker of the cluster whose sidecar
        is of an earlier version, or has shown nothing yet."""

    def reason_not_to_delete_of(self, topic_id: Uuid) -> str:
        """Return why nothing of just this topic may be deleted: :attr:`reason_not_to_delete`, or an operator has paused it."""
        ...

    def reason_not_to_delete_remote_of(self, topic_id: Uuid) -> str:
        """Return why nothing remote of just this topic may be deleted: :attr:`reason_not_to_delete_remote`, or an operator has
        paused it."""
        ...


log = structlog.get_logger(__name__)


class InFlight:
    """A set of segment ids, and of the copies among them the time each began."""

    def __init__(self, *, clock: Clock, telemetry: Telemetry, journal: CopyJournal) -> None:
        self._clock, self._telemetry, self._journal = clock, telemetry, journal
        self._ids: set[RemoteLogSegmentId] = set()
        self._copies_since_s: dict[RemoteLogSegmentId, float] = {}

    @property
    def ids(self) -> frozenset[RemoteLogSegmentId]:
        return frozenset(self._ids)

    @property
    def begun(self) -> Set[Uuid]:
        """Return copies of ours by the journal, those of former processes too."""
        return self._journal.begun

    @contextmanager
    def holding(self, segment_id: RemoteLogSegmentId) -> Iterator[None]:
        """Keep ``segment_id`` in the set for the length of the block, however it ends."""
        self._ids.add(segment_id)
        try:
            yield
        finally:
            self._ids.discard(segment_id)

    @asynccontextmanager
    async def copying(self, segment_id: RemoteLogSegmentId) -> AsyncIterator[None]:
        """Keep it as :meth:`holding` does; its age counts, and the journal has it until the block has ended well."""
        self._copies_since_s[segment_id] = self._clock.monotonic_s()
        try:
            with self.holding(segment_id):
                await self._note(segment_id)
                yield
                await self.settle(segment_id)
        finally:
            del self._copies_since_s[segment_id]
            self.report_age()

    async def settle(self, segment_id: RemoteLogSegmentId) -> None:
        """Note that the copy is finished, or removed: the journal may forget it."""
        try:
            await self._journal.settle(segment_id.uuid)
        except StateDirError as error:
            log.warning("copy_journal.not_written", error=str(error))

    async def _note(self, segment_id: RemoteLogSegmentId) -> None:
        """Write it into the journal.  A disk that does not take it stops no copy: what a crash would leave of this one then
        waits for the grace of a copy that is not ours."""
        try:
            await self._journal.begin(segment_id.uuid)
        except StateDirError as error:
            log.warning("copy_journal.not_written", error=str(error))

    def report_age(self) -> None:
        """Set the gauge for the oldest copy (U1)."""
        oldest_s = min(self._copies_since_s.values(), default=None)
        self._telemetry.gauge(COPY_OLDEST_AGE, 0 if oldest_s is None else self._clock.monotonic_s() - oldest_s)

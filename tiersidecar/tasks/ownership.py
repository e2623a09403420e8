"""What is asked right before anything is published, deleted or trimmed: is it ours, is it still we, and is it forbidden?"""

from __future__ import annotations

from typing import Protocol

from tiersidecar.domain.ids import TopicIdPartition, Uuid


class Ownership(Protocol):
    def require_role(self) -> None:
        """Return if this process holds its broker's tier role now; to be called right before each act, without a wait between.

        Raises:
            LeaseLostError: another process may hold it.
        """

    async def confirm(
        self, topic_id_partition: TopicIdPartition, *, anew: bool = False, place: str | None = None
    ) -> None:
        """As :meth:`require_role`, and once the topic's remote data are known for this cluster's, in this very store: ``anew``
        where no answer of some seconds ago will do.  ``place`` is where the segment lies that it is about, None for where new
        ones go.

        Raises:
            LeaseLostError: as above.
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
    """To be asked right before each delete: a round that reads back or removes thousands of segments lasts for hours."""

    @property
    def reason_not_to_delete(self) -> str:
        """Return why nothing at all may be deleted now, locally or remotely (a switch, lost metadata); empty when it may."""

    @property
    def reason_not_to_delete_remote(self) -> str:
        """As :attr:`reason_not_to_delete`, and also why nothing remote may be deleted: a live broker of the cluster whose
        sidecar is of an earlier version, or has shown nothing yet."""

    def reason_not_to_delete_of(self, topic_id: Uuid) -> str:
        """As :attr:`reason_not_to_delete`, and also why nothing of just this topic may be: an operator has paused it."""
        ...

    def reason_not_to_delete_remote_of(self, topic_id: Uuid) -> str:
        """As :attr:`reason_not_to_delete_remote`, likewise."""
        ...

"""A large Fetch response on its way to the client, and what makes the next ones wait until they are whole."""

from __future__ import annotations

from collections.abc import Sequence

from tiersidecar.formats.wire.fetch import FetchRequest, PartitionKey
from tiersidecar.formats.wire.fetch_passing import FetchPassing
from tiersidecar.formats.wire.messages import UnaskedAnswerError
from tiersidecar.services.gateway.broker_offsets import Mounts
from tiersidecar.services.gateway.exchange import Buffer, ConnectionState, Exchange
from tiersidecar.services.gateway.fetch_in_hand import FetchSessions
from tiersidecar.services.gateway.tiered_partitions import DeletedRecords

_COLLECTED_AFTER = 16
"""Responses of a connection that are collected after one with a partition out of range: a client that fetches by turns should
not be put off each time that its turn comes."""


class PassingFetch:
    """``services.gateway.exchange.Passing``, without the partitions that are out of range, and without what may have been
    deleted: those the client asks for again."""

    def __init__(
        self,
        exchange: Exchange,
        request: FetchRequest,
        size_bytes: int,
        *,
        sessions: FetchSessions,
        deleted: DeletedRecords,
        mounts: Mounts,
    ) -> None:
        self._connection, self._request = exchange.connection, request
        self._sessions, self._deleted = sessions, deleted
        is_consumer = not request.is_of_follower
        self._walk = FetchPassing(
            exchange.api_version,
            size_bytes,
            hides_out_of_range=is_consumer,
            is_suspect=self._is_suspect if is_consumer else None,
            is_hidden=(lambda key: mounts.is_mounted_topic(key[0])) if is_consumer and mounts.are_any else None,
            check=self._check if sessions.knows(exchange.connection, request) else None,
        )

    def feed(self, data: memoryview) -> Sequence[Buffer]:
        """See :class:`Passing`."""
        passed = self._walk.feed(data)
        if self._walk.is_done:
            if self._walk.found_out_of_range:
                expect_more(self._connection, found_out_of_range=True)
            self._sessions.follow(self._connection, self._request, self._walk)
        return passed

    def _check(self, key: PartitionKey) -> None:
        if self._sessions.asked_of(self._connection, self._request, key) is None:
            raise UnaskedAnswerError(f"Fetch: of {key} nothing was asked")

    def _is_suspect(self, key: PartitionKey, log_start_offset: int) -> bool:
        """Of a partition that an incremental request has left out, mostly: for the others the response was not to pass."""
        asked = self._sessions.asked_of(self._connection, self._request, key)
        return self._deleted.is_suspect(key, log_start_offset if asked is None else asked.fetch_offset)


def expect_more(connection: ConnectionState, *, found_out_of_range: bool) -> None:
    """A client that has met what is remote, or deleted, has its next responses collected; each without it is one less."""
    if found_out_of_range:
        connection.fetches_to_collect = _COLLECTED_AFTER
    elif connection.fetches_to_collect:
        connection.fetches_to_collect -= 1

"""A Fetch while the broker has it: what was asked, and what will be filled if the broker says once more what it said last.

A consumer of remote data gets the same answer from its broker again and again, byte for byte: out of range.  So that answer is
read once, and the next Fetch is classified while the broker looks at it.  Nothing is sent before the broker has answered, and
only where its answer is that one.

A large request, of thousands of partitions, is read off the event loop, and only once the broker has answered it: before, it
may be any client's.  A large response goes to the client as it comes; requests that come meanwhile wait until it is whole.

An incremental request (KIP-227) leaves out partitions whose offset and limits have not changed, and the broker answers for them
from what it remembers.  So the gateway must remember as well: it has no other way to know which offset was out of range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from weakref import WeakSet

from tiersidecar.formats.wire.fetch import (
    NO_ERROR,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionKey,
    read_fetch_request,
)
from tiersidecar.formats.wire.fetch_passing import FetchPassing
from tiersidecar.formats.wire.messages import UnaskedAnswerError
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.services.gateway.exchange import (
    Answered,
    Buffer,
    ConnectionState,
    Exchange,
    Expected,
    FetchSession,
    InHand,
)
from tiersidecar.services.gateway.out_of_range import OutOfRangeClassifier
from tiersidecar.services.gateway.tiered_partitions import DeletedRecords, Mounts

MAX_SESSION_PARTITIONS = 200_000
"""For all clients together: about 40 MB.  Past it new sessions are refused, and those clients repeat all their partitions."""
_SESSIONS_PER_CONNECTION = 4
"""A client has one at a time; those before it may not have been closed yet."""


def check_all_asked(response: FetchResponse, asked: Mapping[PartitionKey, FetchPartition]) -> None:
    """
    Raises:
        UnaskedAnswerError: the response has a partition that is not in ``asked``.
    """
    for row in response.partitions:
        if row.key not in asked:
            raise UnaskedAnswerError(f"Fetch: of {row.key} nothing was asked")


class FetchSessions:
    """The sessions of all connections."""

    def __init__(self, max_partitions: int = MAX_SESSION_PARTITIONS) -> None:
        self._max_partitions = max_partitions
        self._sessions: WeakSet[FetchSession] = WeakSet()

    def has_room(self, partitions: int) -> bool:
        """Return whether a session of so many partitions more can be remembered."""
        return self._kept_partitions() + partitions <= self._max_partitions

    def follow(
        self, connection: ConnectionState, request: FetchRequest, response: FetchResponse | FetchPassing
    ) -> FetchSession | None:
        """Return what the partitions of ``response`` were asked for with, the request's own and those it left out; None for a
        session that began before this connection, or that we could not remember."""
        if not request.is_incremental:
            connection.fetch_sessions.pop(request.session_id, None)
            session = FetchSession(dict(request.partitions))
            if response.session_id and response.error_code == NO_ERROR:
                self._keep(connection, response.session_id, session)
            return session
        kept = connection.fetch_sessions.get(request.session_id)
        if kept is None:
            return None
        if response.error_code != NO_ERROR:
            del connection.fetch_sessions[request.session_id]  # the client begins a new one
            return None
        before = len(kept.partitions)
        kept.update(request)
        if len(kept.partitions) > before and self._kept_partitions() > self._max_partitions:
            # It has grown too large: the client is to begin anew as soon as it matters, and will be refused then.
            del connection.fetch_sessions[request.session_id]
        return kept

    def asked_of(self, connection: ConnectionState, request: FetchRequest, key: PartitionKey) -> FetchPartition | None:
        """Return what ``request``, which has not been answered, asks of a partition; None if nothing, or if that is unknown."""
        said = request.partitions.get(key)
        if not request.is_incremental:
            return said
        kept = connection.fetch_sessions.get(request.session_id)
        if kept is None or key in request.forgotten:
            return None
        return kept.partitions.get(key) if said is None else said

    def knows(self, connection: ConnectionState, request: FetchRequest) -> bool:
        """Return whether :meth:`asked_of` knows all that ``request`` asks for."""
        return not request.is_incremental or request.session_id in connection.fetch_sessions

    def _kept_partitions(self) -> int:
        return sum(len(session.partitions) for session in self._sessions)

    def _keep(self, connection: ConnectionState, session_id: int, session: FetchSession) -> None:
        sessions = connection.fetch_sessions
        sessions[session_id] = session
        self._sessions.add(session)
        while len(sessions) > _SESSIONS_PER_CONNECTION:
            del sessions[next(iter(sessions))]


_MOST_KEPT_BYTES = 4096
"""The kept part of an answer, for each connection."""
_LARGE_BYTES = 16 * 1024
"""A large request: some 500 partitions, or 5,000 topics without any, which take a few milliseconds."""
_HOLDS_S = 0.1
"""How long a classification may wait for the broker: what is older is made anew."""


class FetchesInHand:
    """At most one of each connection, since Fetch is ``alone``."""

    def __init__(
        self, *, classifier: OutOfRangeClassifier, sessions: FetchSessions, clock: Clock, blocking: Blocking
    ) -> None:
        self._classifier, self._sessions, self._clock, self._blocking = classifier, sessions, clock, blocking

    def read(self, exchange: Exchange) -> FetchRequest:
        """Return the request, which is read once.

        Raises:
            MalformedMessageError: it is none.
        """
        known = self._known(exchange)
        if known is not None:
            return known
        request = read_fetch_request(exchange.request, exchange.api_version)
        exchange.connection.fetch_in_hand = InHand(exchange.request, request)
        return request

    def is_to_be_read_apart(self, exchange: Exchange) -> bool:
        """Return whether it is too large to be read on the event loop, and has not been read."""
        return is_large(exchange) and self._known(exchange) is None

    async def read_apart(self, exchange: Exchange) -> None:
        """Have it read off the event loop.

        Raises:
            MalformedMessageError: it is no Fetch request.
        """
        request = await self._blocking.run(read_fetch_request, exchange.request, exchange.api_version)
        exchange.connection.fetch_in_hand = InHand(exchange.request, request)

    def expect(self, exchange: Exchange) -> None:
        """Classify the partitions that were out of range the last time, by what is remembered.

        Raises:
            MalformedMessageError: it is no Fetch request.
        """
        if is_large(exchange):
            return
        request, answered = self.read(exchange), exchange.connection.fetch_answered
        if answered is None or answered.version != exchange.api_version:
            return
        if request.is_of_follower:
            return  # a follower that fetches is none of ours (T-57)
        asked = dict[PartitionKey, FetchPartition]()
        for row in answered.fetched.partitions:
            partition = self._sessions.asked_of(exchange.connection, request, row.key)
            if partition is None:
                return
            asked[row.key] = partition
        asked = {row.key: asked[row.key] for row in answered.rows}
        classified = self._classifier.classify_at_once(asked, exchange.connection.asker)
        if classified is not None:
            expected = Expected(
                answered=answered, asked=asked, classified=classified, since_s=self._clock.monotonic_s()
            )
            exchange.connection.fetch_in_hand = InHand(exchange.request, request, expected)

    def take(self, exchange: Exchange) -> InHand:
        """Return what is known of a request that the broker has answered.

        Raises:
            MalformedMessageError: it is no Fetch request.
        """
        request = self.read(exchange)
        in_hand, exchange.connection.fetch_in_hand = exchange.connection.fetch_in_hand, None
        return InHand(exchange.request, request) if in_hand is None else in_hand

    def _known(self, exchange: Exchange) -> FetchRequest | None:
        in_hand = exchange.connection.fetch_in_hand
        return in_hand.request if in_hand is not None and in_hand.body is exchange.request else None

    def has_come(self, expected: Expected, response: memoryview) -> bool:
        """Return whether the broker's answer is the expected one, and has come soon enough."""
        is_recent = self._clock.monotonic_s() - expected.since_s <= _HOLDS_S
        return is_recent and response == expected.answered.response


def is_large(exchange: Exchange) -> bool:
    """Return whether the request takes so long to read that others would notice."""
    return len(exchange.request) > _LARGE_BYTES


def remember(connection: ConnectionState, answered: Answered) -> None:
    """Keep the answer where the next may be the same; not one with records, for what a client has it does not ask for again,
    and what was deleted is looked at anew."""
    is_kept = len(answered.response) <= _MOST_KEPT_BYTES and not answered.fetched.records_bytes
    connection.fetch_answered = replace(answered, response=bytes(answered.response)) if is_kept else None


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
        """Return the bytes that may go on: the same number in all as came, in order, whatever the pieces."""
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
        """Return whether records may begin with deleted ones; mostly asked of partitions left out of an incremental request."""
        asked = self._sessions.asked_of(self._connection, self._request, key)
        return self._deleted.is_suspect(key, log_start_offset if asked is None else asked.fetch_offset)


def expect_more(connection: ConnectionState, *, found_out_of_range: bool) -> None:
    """Collect the next responses of a client that has met remote or deleted records; each without them is one less."""
    if found_out_of_range:
        connection.fetches_to_collect = _COLLECTED_AFTER
    elif connection.fetches_to_collect:
        connection.fetches_to_collect -= 1

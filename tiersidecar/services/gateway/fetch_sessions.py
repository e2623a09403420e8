"""What clients have asked for in their incremental fetch sessions (KIP-227).

An incremental request leaves out partitions whose offset and limits have not changed, and the broker answers for them from
what it remembers.  So the gateway must remember as well: it has no other way to know which offset was out of range.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakSet

from tiersidecar.formats.wire.fetch_passing import FetchPassing
from tiersidecar.formats.wire.fetch_requests import FetchPartition, FetchRequest, PartitionKey
from tiersidecar.formats.wire.fetch_responses import NO_ERROR, FetchResponse
from tiersidecar.formats.wire.messages import UnaskedAnswerError
from tiersidecar.services.gateway.exchange import ConnectionState
from tiersidecar.services.gateway.fetch_state import FetchSession

MAX_SESSION_PARTITIONS = 200_000
"""Of all clients together: about 40 MB.  Past it new sessions are refused, and those clients repeat all their partitions."""
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
        """Whether a session of so many partitions more can be remembered."""
        return self._kept_partitions() + partitions <= self._max_partitions

    def follow(
        self, connection: ConnectionState, request: FetchRequest, response: FetchResponse | FetchPassing
    ) -> FetchSession | None:
        """What the partitions of ``response`` were asked for with, the request's own and those it left out; None for a
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
        """What ``request``, which has not been answered, asks of a partition; None if nothing, or nobody can tell."""
        said = request.partitions.get(key)
        if not request.is_incremental:
            return said
        kept = connection.fetch_sessions.get(request.session_id)
        if kept is None or key in request.forgotten:
            return None
        return kept.partitions.get(key) if said is None else said

    def knows(self, connection: ConnectionState, request: FetchRequest) -> bool:
        """Whether :meth:`asked_of` tells all that ``request`` asks for."""
        return not request.is_incremental or request.session_id in connection.fetch_sessions

    def _kept_partitions(self) -> int:
        return sum(len(session.partitions) for session in self._sessions)

    def _keep(self, connection: ConnectionState, session_id: int, session: FetchSession) -> None:
        sessions = connection.fetch_sessions
        sessions[session_id] = session
        self._sessions.add(session)
        while len(sessions) > _SESSIONS_PER_CONNECTION:
            del sessions[next(iter(sessions))]

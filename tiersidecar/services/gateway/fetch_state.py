"""What a connection remembers of Fetch: its sessions, the request that the broker has, and the last answer that was filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiersidecar.formats.wire.cursor import Replacement
from tiersidecar.formats.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse, PartitionKey
from tiersidecar.services.gateway.out_of_range import Classified


class FetchSession:
    """The partitions of one session, as they were last asked for."""

    __slots__ = ("__weakref__", "partitions")

    def __init__(self, partitions: dict[PartitionKey, FetchPartition]) -> None:
        self.partitions = partitions

    def update(self, request: FetchRequest) -> None:
        """Take in an incremental request."""
        self.partitions.update(request.partitions)
        for key in request.forgotten:
            self.partitions.pop(key, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What the broker said to a Fetch that is changed: ``rows`` are the partitions to change, in its order, all of them out of
    range where nothing is withheld; ``addresses`` the gateways' in place of the brokers'."""

    version: int
    response: bytes | memoryview
    fetched: FetchResponse
    rows: Sequence[FetchedPartition]
    addresses: Sequence[Replacement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is to be filled if the broker's answer is ``answered``: ``classified`` at ``since_s``, for what was ``asked``."""

    answered: Answered
    asked: Mapping[PartitionKey, FetchPartition]
    classified: Mapping[PartitionKey, Classified]
    since_s: float


@dataclass(frozen=True, slots=True)
class InHand:
    """A Fetch that was read before the broker answered it; ``body`` is that of its exchange, by which it is known again."""

    body: memoryview
    request: FetchRequest
    expected: Expected | None = None

"""Nothing of what is mounted read-only is written, and no partition is added to it.

The broker must not write there, not even a transaction's marker, and it decides first, as everywhere, whether the client may
know of the topic at all.  So these partitions are asked for under numbers that no topic has: the broker authorises the topic,
finds no such partition, and answers all others as ever.  That it finds none becomes TOPIC_AUTHORIZATION_FAILED, which no
client tries again; every other error stands, so that a client without rights gets the same answer as for any topic.

CreatePartitions is refused in the same way, with a number of partitions that no topic can be brought to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tiersidecar.formats.wire.cursor import ApiKey, Cursor, Replacement, splice, string_bytes
from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.services.gateway import addresses
from tiersidecar.services.gateway.advertised import AdvertisedAddresses
from tiersidecar.services.gateway.exchange import Exchange, Passing, Rewrite, Rewritten
from tiersidecar.services.gateway.produce_passing import FIRST_FLEXIBLE_PRODUCE, ProducePassing, produce_topic

_NO_PARTITION = 1 << 30
"""Added to a partition's number.  A topic has a few hundred thousand partitions at most."""
_NO_COUNT = 0
"""A number of partitions: a topic has more, and CreatePartitions makes no fewer."""
_UNKNOWN_TOPIC_OR_PARTITION, _REFUSED, _INVALID_PARTITIONS = 3, 29, 37
"""``_REFUSED`` is TOPIC_AUTHORIZATION_FAILED."""
_INDEX, _ERROR = struct.Struct(">i"), struct.Struct(">h")
_MOST_ROWS = 10_000
"""Topics and partitions of a request: all are looked at before the broker says whether the client has any right."""
_MOST_TAGS = 4
"""At any one place of a request; Kafka has none in these."""

IsMounted = Callable[[str | bytes], bool]
"""Takes a topic's name, or the 16 bytes of its id."""


class _Walk(Cursor):
    """A cursor over a request, which goes no further than through ``left`` topics and partitions."""

    __slots__ = ("left",)

    def __init__(self, request: memoryview, *, flexible: bool) -> None:
        super().__init__(request, flexible=flexible)
        self.left = _MOST_ROWS

    def rows(self) -> Iterator[int]:
        """Yield the numbers of an array's items."""
        for number in range(self.array_length()):
            self.left -= 1
            if self.left < 0:
                raise MalformedMessageError(f"a request for more than {_MOST_ROWS} topics and partitions")
            yield number

    def skip_tagged_fields(self, *, most: int | None = None) -> None:
        super().skip_tagged_fields(most=_MOST_TAGS)


class MountRefusals(Rewrite):
    """The refusal for one of these APIs.  Requests and answers change in place: none grows."""

    reads_request = True

    def __init__(self, api_key: ApiKey, is_mounted: IsMounted, advertised: AdvertisedAddresses) -> None:
        self._layout, self._is_mounted, self._advertised = _LAYOUTS[api_key], is_mounted, advertised
        self.most_request_bytes = self._layout.most_request_bytes

    def versions(self) -> range:
        """Return the API versions that it can rewrite; ApiVersions offers clients no others."""
        return self._layout.versions

    def prepare(self, exchange: Exchange) -> Rewritten:
        """Return another request body to send instead, as pieces; None passes the client's own."""
        request, version = exchange.request, exchange.api_version
        for topic, at in self._layout.asked(_Walk(request, flexible=self._layout.is_flexible(version)), version):
            (partition,) = _INDEX.unpack_from(request, at)
            _INDEX.pack_into(request, at, self._number_of(topic, partition))
        return None

    def _number_of(self, topic: str | bytes, partition: int) -> int:
        """Return what the broker is asked for.  No topic has a negative number: it goes as it is.

        Raises:
            MalformedMessageError: nor has any such a number.
        """
        if partition >= _NO_PARTITION:
            raise MalformedMessageError(f"partition {partition}, which no topic has")
        return partition | _NO_PARTITION if partition >= 0 and self._is_mounted(topic) else partition

    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        """Return what the client gets instead of ``response``, a body that begins after the response header."""
        version, layout, is_changed = exchange.api_version, self._layout, False
        for at, error_at in layout.answered(Cursor(response, flexible=layout.is_flexible(version)), version):
            (partition,) = _INDEX.unpack_from(response, at)
            if partition >= _NO_PARTITION:
                is_changed = True
                _INDEX.pack_into(response, at, partition ^ _NO_PARTITION)
                if _ERROR.unpack_from(response, error_at) == (_UNKNOWN_TOPIC_OR_PARTITION,):
                    _ERROR.pack_into(response, error_at, _REFUSED)
        others = addresses.in_produce(version, response, self._advertised) if layout.has_addresses else []
        return splice(response, others) or ([response] if is_changed else None)


class ProduceRefusal(MountRefusals):
    """The refusal for Produce, whose requests are too large to wait for."""

    reads_request = False

    def passing_request(self, api_version: int, size_bytes: int) -> Passing:
        """Return how a request that is not read, a frame of ``size_bytes`` with its size, passes."""
        return ProducePassing(
            api_version, size_bytes, number_of=self._number_of, most_rows=_MOST_ROWS, most_tags=_MOST_TAGS
        )


class NewPartitionsRefusal(Rewrite):
    """The refusal for CreatePartitions.  The controller authorises each topic before it looks at the number."""

    reads_request = True
    most_request_bytes = 256 * 1024

    def __init__(self, is_mounted: IsMounted) -> None:
        self._is_mounted = is_mounted

    def versions(self) -> range:
        """Return the API versions that it can rewrite; ApiVersions offers clients no others."""
        return range(4)

    def prepare(self, exchange: Exchange) -> Rewritten:
        """Put in a number of partitions that no mounted topic can be brought to."""
        request = exchange.request
        walk = _Walk(request, flexible=_has_compact_names(exchange))
        for _ in walk.rows():
            topic, at = walk.string(), walk.position
            walk.skip(_INDEX.size)  # count
            for _ in walk.rows():  # assignments
                walk.skip(_INDEX.size * max(walk.array_length(), 0))  # broker_ids
                walk.skip_tagged_fields()
            walk.skip_tagged_fields()
            if self._is_mounted(topic):
                _INDEX.pack_into(request, at, _NO_COUNT)
        return None

    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        """Return what the client gets instead of ``response``, a body that begins after the response header."""
        cursor = Cursor(response, flexible=_has_compact_names(exchange))
        cursor.skip(4)  # throttle_time_ms
        changes = list[Replacement]()
        for _ in range(cursor.array_length()):
            topic, at = cursor.string(), cursor.position
            error = cursor.int16()
            cursor.skip_string()  # error_message, of the number that it was asked for
            if error == _INVALID_PARTITIONS and self._is_mounted(topic):
                message = string_bytes("the topic is mounted read-only", flexible=cursor.flexible)
                changes.append((at, cursor.position, _ERROR.pack(_REFUSED) + message))
            cursor.skip_tagged_fields()
        return splice(response, changes)


def mount_refusals(is_mounted: IsMounted, advertised: AdvertisedAddresses) -> dict[int, Rewrite]:
    """Return the refusals by API key."""
    refusals: dict[int, Rewrite] = {key: MountRefusals(key, is_mounted, advertised) for key in _LAYOUTS}
    refusals[ApiKey.PRODUCE] = ProduceRefusal(ApiKey.PRODUCE, is_mounted, advertised)
    refusals[ApiKey.CREATE_PARTITIONS] = NewPartitionsRefusal(is_mounted)
    return refusals


def _has_compact_names(exchange: Exchange) -> bool:
    return exchange.api_version >= 2


def _nothing_read(walk: _Walk, version: int) -> Iterator[tuple[str | bytes, int]]:
    """Read nothing of Produce: :class:`ProducePassing` does."""
    return iter(())


def _produce_answered(cursor: Cursor, version: int) -> Iterator[tuple[int, int]]:
    for _ in range(cursor.array_length()):
        produce_topic(cursor, version)
        for _ in range(cursor.array_length()):
            yield _skip_index(cursor), cursor.position
            cursor.skip(2 + 8)  # error_code, base_offset
            if version >= 2:
                cursor.skip(8)  # log_append_time_ms
            if version >= 5:
                cursor.skip(8)  # log_start_offset
            if version >= 8:
                for _ in range(cursor.array_length()):
                    cursor.skip(4)  # batch_index
                    cursor.skip_string()  # batch_index_error_message
                    cursor.skip_tagged_fields()
                cursor.skip_string()  # error_message
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()


def _transaction_asked(walk: _Walk, version: int) -> Iterator[tuple[str | bytes, int]]:
    walk.skip_string()  # transactional_id
    walk.skip(8 + 2)  # producer_id, producer_epoch
    yield from _indexes_asked(walk)


def _transaction_answered(cursor: Cursor, version: int) -> Iterator[tuple[int, int]]:
    cursor.skip(4)  # throttle_time_ms
    yield from _errors_answered(cursor)


def _markers_asked(walk: _Walk, version: int) -> Iterator[tuple[str | bytes, int]]:
    for _ in walk.rows():
        walk.skip(8 + 2 + 1)  # producer_id, producer_epoch, transaction_result
        yield from _indexes_asked(walk)
        walk.skip(4)  # coordinator_epoch
        if version >= 2:
            walk.skip(1)  # transaction_version
        walk.skip_tagged_fields()


def _markers_answered(cursor: Cursor, version: int) -> Iterator[tuple[int, int]]:
    for _ in range(cursor.array_length()):
        cursor.skip(8)  # producer_id
        yield from _errors_answered(cursor)
        cursor.skip_tagged_fields()


def _indexes_asked(walk: _Walk) -> Iterator[tuple[str | bytes, int]]:
    """Yield topics whose partitions are nothing but numbers."""
    for _ in walk.rows():
        topic = walk.string()
        for _ in walk.rows():
            yield topic, _skip_index(walk)
        walk.skip_tagged_fields()


def _errors_answered(cursor: Cursor) -> Iterator[tuple[int, int]]:
    """Walk the answer to that."""
    for _ in range(cursor.array_length()):
        cursor.skip_string()
        for _ in range(cursor.array_length()):
            yield _skip_index(cursor), cursor.position
            cursor.skip(2)  # error_code
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()


def _deletes_asked(walk: _Walk, version: int) -> Iterator[tuple[str | bytes, int]]:
    for _ in walk.rows():
        topic = walk.string()
        for _ in walk.rows():
            yield topic, _skip_index(walk)
            walk.skip(8)  # offset
            walk.skip_tagged_fields()
        walk.skip_tagged_fields()


def _deletes_answered(cursor: Cursor, version: int) -> Iterator[tuple[int, int]]:
    cursor.skip(4)  # throttle_time_ms
    for _ in range(cursor.array_length()):
        cursor.skip_string()
        for _ in range(cursor.array_length()):
            yield _skip_index(cursor), cursor.position + 8
            cursor.skip(8 + 2)  # low_watermark, error_code
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()


def _skip_index(cursor: Cursor) -> int:
    """Skip a partition's number, and return where it is."""
    at = cursor.position
    cursor.skip(_INDEX.size)
    return at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The layout of one API's messages, by Kafka's message definitions.  ``versions`` are those that clients use.

    ``asked`` yields the topic of each partition of a request, and where its number is; ``answered`` where the number is in a
    response, and where its error.  ``most_request_bytes`` as a :class:`Rewrite` has it.
    """

    versions: range
    first_flexible: int
    asked: Callable[[_Walk, int], Iterator[tuple[str | bytes, int]]]
    answered: Callable[[Cursor, int], Iterator[tuple[int, int]]]
    has_addresses: bool = False
    most_request_bytes: int | None = 64 * 1024

    def is_flexible(self, version: int) -> bool:
        return version >= self.first_flexible


_LAYOUTS = {
    ApiKey.PRODUCE: _Layout(
        versions=range(14),
        first_flexible=FIRST_FLEXIBLE_PRODUCE,
        asked=_nothing_read,
        answered=_produce_answered,
        has_addresses=True,
        most_request_bytes=None,
    ),
    # From version 4 on brokers ask each other, for several transactions at once.
    ApiKey.ADD_PARTITIONS_TO_TXN: _Layout(
        versions=range(4), first_flexible=3, asked=_transaction_asked, answered=_transaction_answered
    ),
    ApiKey.DELETE_RECORDS: _Layout(
        versions=range(3),
        first_flexible=2,
        asked=_deletes_asked,
        answered=_deletes_answered,
        most_request_bytes=16 * 1024,
    ),
    # Brokers send it to each other, and so does an operator who ends a hanging transaction.
    ApiKey.WRITE_TXN_MARKERS: _Layout(
        versions=range(1, 3), first_flexible=1, asked=_markers_asked, answered=_markers_answered
    ),
}

"""Produce, AddPartitionsToTxn and DeleteRecords of partitions that are mounted read-only are refused.

The broker must not write there, not even a transaction's marker, and it decides first, as everywhere, whether the client may
know of the topic at all.  So these partitions are asked for under numbers that no topic has: the broker authorises the topic,
finds no such partition, and answers all others as ever.  What it says of them becomes TOPIC_AUTHORIZATION_FAILED, which no
client tries again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tiersidecar.domain.ids import Uuid
from tiersidecar.formats.wire.cursor import Cursor, Replacement, splice
from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.services.gateway import addresses
from tiersidecar.services.gateway.advertised import AdvertisedAddresses
from tiersidecar.services.gateway.exchange import Exchange, Rewrite, Rewritten
from tiersidecar.services.gateway.request_heads import ApiKey

_NO_PARTITION = 1 << 30
"""Added to a partition's number.  A topic has a few hundred thousand partitions at most."""
_REFUSED = 29
"""TOPIC_AUTHORIZATION_FAILED."""
_INDEX, _ERROR, _ID = struct.Struct(">i"), struct.Struct(">h"), struct.Struct("16s")

IsMounted = Callable[[str | bytes], bool]
"""Of a topic's name, or the 16 bytes of its id."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a partition's number is in a message, and the topic that it is of; ``error_at`` is where its error is in a
    response."""

    topic: str | bytes
    partition: int
    at: int
    error_at: int = -1


class MountRefusals(Rewrite):
    """Of one of these APIs."""

    reads_request = True

    def __init__(self, api_key: ApiKey, is_mounted: IsMounted, advertised: AdvertisedAddresses) -> None:
        self._layout, self._is_mounted, self._advertised = _LAYOUTS[api_key], is_mounted, advertised

    def versions(self) -> range:
        """See :class:`Rewrite`."""
        return self._layout.versions

    def prepare(self, exchange: Exchange) -> Rewritten:
        """With other numbers of partitions that are mounted."""
        version, changes = exchange.api_version, list[Replacement]()
        for place in self._layout.asked(Cursor(exchange.request, flexible=self._layout.is_flexible(version)), version):
            if place.partition >= _NO_PARTITION:
                raise MalformedMessageError(f"partition {place.partition}, which no topic has")
            if self._is_mounted(place.topic):
                changes.append((place.at, place.at + _INDEX.size, _INDEX.pack(place.partition | _NO_PARTITION)))
        return splice(exchange.request, changes)

    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        """See :class:`Rewrite`."""
        version, changes = exchange.api_version, list[Replacement]()
        cursor = Cursor(response, flexible=self._layout.is_flexible(version))
        for place in self._layout.answered(cursor, version):
            if place.partition >= _NO_PARTITION:
                changes.append((place.at, place.at + _INDEX.size, _INDEX.pack(place.partition ^ _NO_PARTITION)))
                changes.append((place.error_at, place.error_at + _ERROR.size, _ERROR.pack(_REFUSED)))
        if self._layout.has_addresses:
            changes += addresses.in_produce(version, response, self._advertised)
        return splice(response, changes)


def mount_refusals(is_mounted: IsMounted, advertised: AdvertisedAddresses) -> dict[int, Rewrite]:
    """By API key."""
    return {key: MountRefusals(key, is_mounted, advertised) for key in _LAYOUTS}


def _produce_asked(cursor: Cursor, version: int) -> Iterator[_Place]:
    if version >= _FIRST_WITH_TRANSACTIONS:
        cursor.skip_string()  # transactional_id
    cursor.skip(2 + 4)  # acks, timeout_ms
    for _ in range(cursor.array_length()):
        topic = _topic(cursor, has_id=version >= _FIRST_PRODUCE_WITH_IDS)
        for _ in range(cursor.array_length()):
            at = cursor.position
            yield _Place(topic, cursor.int32(), at)
            cursor.skip_bytes()  # records
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()


def _produce_answered(cursor: Cursor, version: int) -> Iterator[_Place]:
    for _ in range(cursor.array_length()):
        topic = _topic(cursor, has_id=version >= _FIRST_PRODUCE_WITH_IDS)
        for _ in range(cursor.array_length()):
            at = cursor.position
            yield _Place(topic, cursor.int32(), at, cursor.position)
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


def _transaction_asked(cursor: Cursor, version: int) -> Iterator[_Place]:
    cursor.skip_string()  # transactional_id
    cursor.skip(8 + 2)  # producer_id, producer_epoch
    for _ in range(cursor.array_length()):
        topic = cursor.string()
        for _ in range(cursor.array_length()):
            at = cursor.position
            yield _Place(topic, cursor.int32(), at)
        cursor.skip_tagged_fields()


def _transaction_answered(cursor: Cursor, version: int) -> Iterator[_Place]:
    cursor.skip(4)  # throttle_time_ms
    for _ in range(cursor.array_length()):
        topic = cursor.string()
        for _ in range(cursor.array_length()):
            at = cursor.position
            yield _Place(topic, cursor.int32(), at, cursor.position)
            cursor.skip(2)  # partition_error_code
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()


def _deletes_asked(cursor: Cursor, version: int) -> Iterator[_Place]:
    for _ in range(cursor.array_length()):
        topic = cursor.string()
        for _ in range(cursor.array_length()):
            at = cursor.position
            yield _Place(topic, cursor.int32(), at)
            cursor.skip(8)  # offset
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()


def _deletes_answered(cursor: Cursor, version: int) -> Iterator[_Place]:
    cursor.skip(4)  # throttle_time_ms
    for _ in range(cursor.array_length()):
        topic = cursor.string()
        for _ in range(cursor.array_length()):
            at = cursor.position
            yield _Place(topic, cursor.int32(), at, cursor.position + 8)
            cursor.skip(8 + 2)  # low_watermark, error_code
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()


def _topic(cursor: Cursor, *, has_id: bool) -> str | bytes:
    return Uuid(cursor.fixed(_ID)[0]) if has_id else cursor.string()


_FIRST_WITH_TRANSACTIONS, _FIRST_PRODUCE_WITH_IDS = 3, 13


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Of one API's messages, by Kafka's message definitions.  ``versions`` are those that clients use."""

    versions: range
    first_flexible: int
    asked: Callable[[Cursor, int], Iterator[_Place]]
    answered: Callable[[Cursor, int], Iterator[_Place]]
    has_addresses: bool = False

    def is_flexible(self, version: int) -> bool:
        return version >= self.first_flexible


_LAYOUTS = {
    ApiKey.PRODUCE: _Layout(
        versions=range(14),
        first_flexible=9,
        asked=_produce_asked,
        answered=_produce_answered,
        has_addresses=True,
    ),
    # From version 4 on brokers ask each other, for several transactions at once.
    ApiKey.ADD_PARTITIONS_TO_TXN: _Layout(
        versions=range(4), first_flexible=3, asked=_transaction_asked, answered=_transaction_answered
    ),
    ApiKey.DELETE_RECORDS: _Layout(
        versions=range(3), first_flexible=2, asked=_deletes_asked, answered=_deletes_answered
    ),
}

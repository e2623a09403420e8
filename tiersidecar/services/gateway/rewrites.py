"""The rewrites that need nothing but the response: gateways' addresses for brokers', and the versions that clients may use."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiersidecar.formats.wire.cursor import Cursor, splice, uvarint_bytes
from tiersidecar.services.gateway import addresses
from tiersidecar.services.gateway.addresses import FindAddresses
from tiersidecar.services.gateway.advertised import AdvertisedAddresses
from tiersidecar.services.gateway.api_keys import ApiKey
from tiersidecar.services.gateway.exchange import Buffer, Exchange, Rewrite

_UNSUPPORTED_VERSION = 35


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressRewrite:
    """Puts the gateways' addresses into one API's responses.  Implements :class:`Rewrite`."""

    known: range
    find: FindAddresses
    advertised: AdvertisedAddresses
    reads_request: bool = False
    alone: bool = False

    def versions(self) -> range:
        return self.known

    async def prepare(self, exchange: Exchange) -> Sequence[Buffer] | None:
        return None

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Sequence[Buffer] | None:
        return splice(response, self.find(exchange.api_version, response, self.advertised))


def address_rewrites(advertised: AdvertisedAddresses) -> dict[int, Rewrite]:
    """For every API whose responses name brokers; the versions are those of Kafka 4.3."""
    known: dict[ApiKey, tuple[range, FindAddresses]] = {
        ApiKey.PRODUCE: (range(14), addresses.in_produce),
        ApiKey.FETCH: (range(4, 19), addresses.in_fetch),
        ApiKey.METADATA: (range(14), addresses.in_metadata),
        ApiKey.FIND_COORDINATOR: (range(7), addresses.in_find_coordinator),
        ApiKey.DESCRIBE_QUORUM: (range(3), addresses.in_describe_quorum),
        ApiKey.DESCRIBE_CLUSTER: (range(3), addresses.in_describe_cluster),
        ApiKey.SHARE_FETCH: (range(1, 3), addresses.in_share_fetch),
        ApiKey.SHARE_ACKNOWLEDGE: (range(1, 3), addresses.in_share_acknowledge),
    }
    return {
        key: AddressRewrite(known=versions, find=find, advertised=advertised) for key, (versions, find) in known.items()
    }


class ApiVersionsRewrite:
    """Offers clients only what all of ``rewrites``, and this one, can read.  Implements :class:`Rewrite`.

    APIs that no rewrite is for keep the broker's range: they pass as bytes, whatever is in them.
    """

    reads_request = False
    alone = False

    def __init__(self, rewrites: Mapping[int, Rewrite]) -> None:
        self._ranges = {key: rewrite.versions() for key, rewrite in rewrites.items()}
        self._ranges[ApiKey.API_VERSIONS] = self.versions()

    def versions(self) -> range:
        return range(5)

    async def prepare(self, exchange: Exchange) -> Sequence[Buffer] | None:
        return None

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Sequence[Buffer] | None:
        """A broker that does not know the request's version answers in version 0, with an error (KIP-511)."""
        version = 0 if response[:2] == _UNSUPPORTED_VERSION.to_bytes(2, "big") else exchange.api_version
        cursor = Cursor(response, flexible=version >= 3)
        cursor.skip(2)  # error_code
        start, length, kept = cursor.position, cursor.array_length(), list[bytes]()
        for _ in range(length):
            kept += self._clamped(cursor)
        count = uvarint_bytes(len(kept) + 1) if cursor.flexible else struct.pack(">i", len(kept))
        return splice(response, [(start, cursor.position, count + b"".join(kept))])

    def _clamped(self, cursor: Cursor) -> list[bytes]:
        key, oldest, newest, tagged_at = cursor.int16(), cursor.int16(), cursor.int16(), cursor.position
        cursor.skip_tagged_fields()
        ours = self._ranges.get(key)
        if ours is not None:
            oldest, newest = max(oldest, ours.start), min(newest, ours.stop - 1)
        if oldest > newest:
            return []
        return [struct.pack(">hhh", key, oldest, newest) + bytes(cursor.buffer[tagged_at : cursor.position])]


def unsupported_api_versions(correlation_id: int) -> bytes:
    """The whole frame of the answer to an ApiVersions request that is too new for the gateway.

    As a broker's, which clients know how to go on from: version 0, the error, and the versions of ApiVersions.
    """
    newest = ApiVersionsRewrite({}).versions().stop - 1
    body = struct.pack(">hihhh", _UNSUPPORTED_VERSION, 1, ApiKey.API_VERSIONS, 0, newest)
    return struct.pack(">ii", 4 + len(body), correlation_id) + body

"""The rewrites that need no remote tier: gateways' addresses for brokers', logins, and the versions that clients may use."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tiersidecar.domain.ids import Uuid
from tiersidecar.formats.wire.cursor import ApiKey, Cursor, mechanism_in, splice, uvarint_bytes
from tiersidecar.services.gateway import addresses
from tiersidecar.services.gateway.addresses import FindAddresses
from tiersidecar.services.gateway.advertised import AdvertisedAddresses
from tiersidecar.services.gateway.exchange import Exchange, Rewrite, Rewritten

TopicIds = Callable[[str], Uuid | None]
"""Takes a topic's name."""
_UNSUPPORTED_VERSION = 35
_LOOKED_THROUGH_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressRewrite(Rewrite):
    """Puts the gateways' addresses into one API's responses."""

    known: range
    find: FindAddresses
    advertised: AdvertisedAddresses

    def versions(self) -> range:
        return self.known

    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        return splice(response, self.find(exchange.api_version, response, self.advertised))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRewrite(Rewrite):
    """Rewrites addresses, and notes which topics have another id for this client than ``topic_id`` gives: from then on it gets
    nothing of a former topic of that name.  Large answers are not searched, which would take milliseconds: the log dirs show it
    soon."""

    addresses: AddressRewrite
    topic_id: TopicIds

    def versions(self) -> range:
        return self.addresses.versions()

    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        if len(response) <= _LOOKED_THROUGH_BYTES:
            known = exchange.connection.asker.topic_ids
            for name, topic_id in addresses.topic_ids_in_metadata(exchange.api_version, response).items():
                if self.topic_id(name) in (None, topic_id):
                    known.pop(name, None)
                else:
                    known[name] = topic_id
        return self.addresses.rewrite(exchange, response)


@dataclass(frozen=True, slots=True)
class SaslHandshakeRewrite(Rewrite):
    """Passes the messages, and has the broker's answer change where the login stands.  ``raw_tokens``: whether version 0 is
    offered, after which tokens go without headers (KIP-43)."""

    raw_tokens: bool = False
    reads_request = True
    alone = True

    def versions(self) -> range:
        return range(0 if self.raw_tokens else 1, 2)

    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        mechanism, error_code = mechanism_in(exchange.request), Cursor(response, flexible=False).int16()
        exchange.connection.login.shaken(mechanism, error_code, is_raw=exchange.api_version == 0)
        return None


class SaslAuthenticateRewrite(Rewrite):
    """Passes the messages, and has the broker's answer change where the login stands."""

    reads_request = True
    alone = True

    def versions(self) -> range:
        return range(3)

    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        cursor = Cursor(response, flexible=exchange.api_version >= 2)
        error_code = cursor.int16()
        cursor.skip_string()  # error_message
        answer = cursor.bytes()
        token = Cursor(exchange.request, flexible=exchange.api_version >= 2).bytes()
        exchange.connection.login.authenticated(token, error_code, answer)
        return None


def frame_rewrites(
    advertised: AdvertisedAddresses, *, topic_id: TopicIds = lambda name: None, raw_tokens: bool = False
) -> dict[int, Rewrite]:
    """Return all of these but ApiVersions', which has to know the others.  ``topic_id`` gives the gateway's id of a topic."""
    known = address_rewrites(advertised)
    return {
        **known,
        ApiKey.METADATA: MetadataRewrite(addresses=known[ApiKey.METADATA], topic_id=topic_id),
        ApiKey.SASL_HANDSHAKE: SaslHandshakeRewrite(raw_tokens),
        ApiKey.SASL_AUTHENTICATE: SaslAuthenticateRewrite(),
    }


def address_rewrites(advertised: AdvertisedAddresses) -> dict[int, AddressRewrite]:
    """Return a rewrite for every API whose responses name brokers; the versions are those of Kafka 4.3."""
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


class ApiVersionsRewrite(Rewrite):
    """Offers clients only what all of ``rewrites``, and this one, can read.

    APIs that no rewrite is for keep the broker's range: they pass as bytes, whatever is in them.
    """

    def __init__(self, rewrites: Mapping[int, Rewrite]) -> None:
        self._ranges = {key: rewrite.versions() for key, rewrite in rewrites.items()}
        self._ranges[ApiKey.API_VERSIONS] = self.versions()

    def versions(self) -> range:
        return range(5)

    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        """Rewrite the answer; a broker that does not know the request's version uses version 0, with an error (KIP-511)."""
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
    """Return the whole frame of the answer to an ApiVersions request that is too new for the gateway.

    As a broker's, which clients know how to go on from: version 0, the error, and the versions of ApiVersions.
    """
    newest = ApiVersionsRewrite({}).versions().stop - 1
    body = struct.pack(">hihhh", _UNSUPPORTED_VERSION, 1, ApiKey.API_VERSIONS, 0, newest)
    return struct.pack(">ii", 4 + len(body), correlation_id) + body

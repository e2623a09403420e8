"""Where responses name brokers: the places to put gateways' addresses in, found without decoding the rest.

Each function takes a response body and gives what to replace; the layouts are those of Kafka's message definitions
(``clients/src/main/resources/common/message``, 4.3).  Node ids below 0 stand for "none" and keep what they have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from tiersidecar.domain.ids import Uuid
from tiersidecar.formats.wire.cursor import Cursor, Replacement, string_bytes, uvarint_bytes
from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.services.gateway.advertised import AdvertisedAddresses

FindAddresses = Callable[[int, memoryview, AdvertisedAddresses], list[Replacement]]
"""Takes the API version, the response body and the gateways; gives the replacements in order."""

_NODE_ENDPOINTS_TAG = 0
_FIRST_METADATA_WITH_IDS = 10
_UUID, _NO_ID = struct.Struct("16s"), bytes(16)
_CURRENT_LEADER_BYTES = 8


def in_metadata(version: int, body: memoryview, advertised: AdvertisedAddresses) -> list[Replacement]:
    """Replace the brokers of a MetadataResponse, which come before everything that is large."""
    cursor = Cursor(body, flexible=version >= 9)
    if version >= 3:
        cursor.skip(4)  # throttle_time_ms
    found: list[Replacement] = []
    for _ in range(cursor.array_length()):
        found += _node(cursor, advertised)
        if version >= 1:
            cursor.skip_string()  # rack
        cursor.skip_tagged_fields()
    return found


def topic_ids_in_metadata(version: int, body: memoryview) -> dict[str, Uuid]:
    """Return topic ids by name from a MetadataResponse of version 10 or later.  Only topics without an error have one."""
    if version < _FIRST_METADATA_WITH_IDS:
        return {}
    cursor = Cursor(body, flexible=True)
    cursor.skip(4)  # throttle_time_ms
    for _ in range(cursor.array_length()):
        cursor.skip(4)  # node_id
        cursor.skip_string()  # host
        cursor.skip(4)  # port
        cursor.skip_string()  # rack
        cursor.skip_tagged_fields()
    cursor.skip_string()  # cluster_id
    cursor.skip(4)  # controller_id
    found: dict[str, Uuid] = {}
    for _ in range(cursor.array_length()):
        cursor.skip(2)  # error_code
        name_at = cursor.position
        cursor.skip_string()  # name, null where the broker knows none of this id
        (topic_id,) = cursor.fixed(_UUID)
        if topic_id != _NO_ID and body[name_at]:
            found[Cursor(body, flexible=True, position=name_at).string()] = Uuid(topic_id)
        cursor.skip(1)  # is_internal
        for _ in range(cursor.array_length()):
            cursor.skip(2 + 4 + 4 + 4)  # error_code, partition_index, leader_id, leader_epoch
            for _ in range(3):  # replicas, in sync, offline
                cursor.skip(4 * max(cursor.array_length(), 0))
            cursor.skip_tagged_fields()
        cursor.skip(4)  # topic_authorized_operations
        cursor.skip_tagged_fields()
    return found


def in_find_coordinator(version: int, body: memoryview, advertised: AdvertisedAddresses) -> list[Replacement]:
    """Replace the coordinators of a FindCoordinatorResponse: one, from version 4 (KIP-699) several."""
    cursor = Cursor(body, flexible=version >= 3)
    if version >= 1:
        cursor.skip(4)  # throttle_time_ms
    if version < 4:
        cursor.skip(2)  # error_code
        if version >= 1:
            cursor.skip_string()  # error_message
        return _node(cursor, advertised)
    found: list[Replacement] = []
    for _ in range(cursor.array_length()):
        cursor.skip_string()  # key
        found += _node(cursor, advertised)
        cursor.skip(2)  # error_code
        cursor.skip_string()  # error_message
        cursor.skip_tagged_fields()
    return found


def in_describe_cluster(version: int, body: memoryview, advertised: AdvertisedAddresses) -> list[Replacement]:
    """Replace the brokers of a DescribeClusterResponse (KIP-700)."""
    cursor = Cursor(body, flexible=True)
    cursor.skip(4 + 2)  # throttle_time_ms, error_code
    cursor.skip_string()  # error_message
    if version >= 1:
        cursor.skip(1)  # endpoint_type
    cursor.skip_string()  # cluster_id
    cursor.skip(4)  # controller_id
    found: list[Replacement] = []
    for _ in range(cursor.array_length()):
        found += _node(cursor, advertised)
        cursor.skip_string()  # rack
        if version >= 2:
            cursor.skip(1)  # is_fenced
        cursor.skip_tagged_fields()
    return found


def in_describe_quorum(version: int, body: memoryview, advertised: AdvertisedAddresses) -> list[Replacement]:
    """Replace the controllers' listeners of a DescribeQuorumResponse, from version 2 (KIP-853)."""
    if version < 2:
        return []
    cursor = Cursor(body, flexible=True)
    cursor.skip(2)  # error_code
    cursor.skip_string()  # error_message
    for _ in range(cursor.array_length()):
        cursor.skip_string()  # topic_name
        for _ in range(cursor.array_length()):
            _skip_quorum_partition(cursor)
        cursor.skip_tagged_fields()
    found: list[Replacement] = []
    for _ in range(cursor.array_length()):
        node_id = cursor.int32()
        for _ in range(cursor.array_length()):
            cursor.skip_string()  # listener name
            found += _address(cursor, node_id, ">H", advertised)
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()
    return found


def in_produce(version: int, body: memoryview, advertised: AdvertisedAddresses) -> list[Replacement]:
    """Replace the hints at new leaders' nodes of a ProduceResponse, from version 10 (KIP-951)."""
    if version < 10:
        return []
    cursor = Cursor(body, flexible=True)
    for _ in range(cursor.array_length()):
        _skip_topic_name(cursor, has_id=version >= 13)
        for _ in range(cursor.array_length()):
            cursor.skip(4 + 2 + 8 + 8 + 8)  # index, error_code, base_offset, log_append_time_ms, log_start_offset
            for _ in range(cursor.array_length()):
                cursor.skip(4)  # batch_index
                cursor.skip_string()
                cursor.skip_tagged_fields()
            cursor.skip_string()  # error_message
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()
    cursor.skip(4)  # throttle_time_ms
    return _tagged_node_endpoints(cursor, advertised)


def in_fetch(version: int, body: memoryview, advertised: AdvertisedAddresses) -> list[Replacement]:
    """Replace the hints at new leaders' nodes of a FetchResponse, from version 16 (KIP-951), behind all records."""
    if version < 16:
        return []
    cursor = Cursor(body, flexible=True)
    cursor.skip(4 + 2 + 4)  # throttle_time_ms, error_code, session_id
    for _ in range(cursor.array_length()):
        cursor.skip(16)  # topic_id
        for _ in range(cursor.array_length()):
            cursor.skip(4 + 2 + 8 + 8 + 8)  # index, error_code, high_watermark, last_stable_offset, log_start_offset
            cursor.skip_structs(16)  # aborted_transactions
            cursor.skip(4)  # preferred_read_replica
            cursor.skip_bytes()  # records
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()
    return _tagged_node_endpoints(cursor, advertised)


def in_share_fetch(version: int, body: memoryview, advertised: AdvertisedAddresses) -> list[Replacement]:
    """Replace the hints at new leaders' nodes of a ShareFetchResponse (KIP-932), behind all records."""
    cursor = Cursor(body, flexible=True)
    cursor.skip(4 + 2)  # throttle_time_ms, error_code
    cursor.skip_string()  # error_message
    cursor.skip(4)  # acquisition_lock_timeout_ms
    for _ in range(cursor.array_length()):
        cursor.skip(16)  # topic_id
        for _ in range(cursor.array_length()):
            _skip_acknowledged_partition(cursor)
            cursor.skip_bytes()  # records
            cursor.skip_structs(8 + 8 + 2)  # acquired_records
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()
    return _node_endpoints(cursor, advertised)


def in_share_acknowledge(version: int, body: memoryview, advertised: AdvertisedAddresses) -> list[Replacement]:
    """Replace the hints at new leaders' nodes of a ShareAcknowledgeResponse (KIP-932)."""
    cursor = Cursor(body, flexible=True)
    cursor.skip(4 + 2)  # throttle_time_ms, error_code
    cursor.skip_string()  # error_message
    if version >= 2:
        cursor.skip(4)  # acquisition_lock_timeout_ms
    for _ in range(cursor.array_length()):
        cursor.skip(16)  # topic_id
        for _ in range(cursor.array_length()):
            cursor.skip(4 + 2)  # index, error_code
            cursor.skip_string()  # error_message
            cursor.skip(_CURRENT_LEADER_BYTES)
            cursor.skip_tagged_fields()  # of current_leader
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()
    return _node_endpoints(cursor, advertised)


def _node(cursor: Cursor, advertised: AdvertisedAddresses) -> list[Replacement]:
    """Replace the address after a node id: host and an int32 port."""
    return _address(cursor, cursor.int32(), ">i", advertised)


def _address(cursor: Cursor, node_id: int, port_layout: str, advertised: AdvertisedAddresses) -> list[Replacement]:
    start = cursor.position
    cursor.skip_string()  # host
    cursor.skip(struct.calcsize(port_layout))
    if node_id < 0:
        return []
    host, port = advertised.address_of(node_id)
    return [
        (start, cursor.position, string_bytes(host, flexible=cursor.flexible) + struct.pack(port_layout, port)),
    ]


def _node_endpoints(cursor: Cursor, advertised: AdvertisedAddresses) -> list[Replacement]:
    found: list[Replacement] = []
    for _ in range(cursor.array_length()):
        found += _node(cursor, advertised)
        cursor.skip_string()  # rack
        cursor.skip_tagged_fields()
    return found


def _tagged_node_endpoints(cursor: Cursor, advertised: AdvertisedAddresses) -> list[Replacement]:
    """Replace those in the tagged fields at ``cursor``; the field's own size changes with its content."""
    for _ in range(cursor.uvarint()):
        tag, size_at = cursor.uvarint(), cursor.position
        size = cursor.uvarint()
        begin = cursor.position
        if tag != _NODE_ENDPOINTS_TAG:
            cursor.skip(size)
            continue
        inside = _node_endpoints(cursor, advertised)
        if cursor.position != begin + size:
            raise MalformedMessageError(f"NodeEndpoints have {size} bytes, {cursor.position - begin} were read")
        grown = sum(len(instead) - (stop - start) for start, stop, instead in inside)
        return [(size_at, begin, uvarint_bytes(size + grown)), *inside]
    return []


def _skip_topic_name(cursor: Cursor, *, has_id: bool) -> None:
    if has_id:
        cursor.skip(16)
    else:
        cursor.skip_string()


def _skip_quorum_partition(cursor: Cursor) -> None:
    cursor.skip(4 + 2)  # partition_index, error_code
    cursor.skip_string()  # error_message
    cursor.skip(4 + 4 + 8)  # leader_id, leader_epoch, high_watermark
    for _ in range(2):  # current_voters, observers: id, directory id, end offset, last fetch, last caught up
        cursor.skip_structs(4 + 16 + 8 + 8 + 8)
    cursor.skip_tagged_fields()


def _skip_acknowledged_partition(cursor: Cursor) -> None:
    cursor.skip(4 + 2)  # partition_index, error_code
    cursor.skip_string()  # error_message
    cursor.skip(2)  # acknowledge_error_code
    cursor.skip_string()  # acknowledge_error_message
    cursor.skip(_CURRENT_LEADER_BYTES)
    cursor.skip_tagged_fields()  # of current_leader

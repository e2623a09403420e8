"""Records of the proposals topic: JSON values with a schema version ``v``, no keys.

Whoever may write there writes what they like: a record is read strictly, and a long one not at all.
"""

from __future__ import annotations

import json
from typing import Any

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, format_uuid, parse_uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.proposals import DeleteProposal

SCHEMA_VERSION = 1
MAX_VALUE_BYTES = 8192
"""A topic's name has at most 249 bytes; names of clients are cut when they are written."""
_MAX_TEXT = 512
_INT64_MAX = 2**63 - 1


def write_proposal(proposal: DeleteProposal) -> bytes:
    """The record's value."""
    tip = proposal.topic_id_partition
    document = {
        "v": SCHEMA_VERSION,
        "kind": "delete-records",
        "cluster_id": proposal.cluster_id,
        "topic_id": format_uuid(tip.topic_id),
        "topic": tip.topic,
        "partition": tip.partition,
        "offset": proposal.offset,
        "leader_epoch": proposal.leader_epoch,
        "low_watermark": proposal.low_watermark,
        "start_generation": proposal.start_generation,
        "principal": proposal.principal[:_MAX_TEXT],
        "client_id": proposal.client_id[:_MAX_TEXT],
        "address": proposal.address[:_MAX_TEXT],
        "gateway": proposal.gateway,
        "proposed_ms": proposal.proposed_ms,
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def read_proposal(value: bytes | None, *, where: str) -> DeleteProposal:
    """The proposal.

    Raises:
        CorruptDataError: it is none of this version's.
    """
    if value is None or len(value) > MAX_VALUE_BYTES:
        raise _corrupt(where, "no value" if value is None else f"{len(value)} bytes are too many")
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _corrupt(where, f"no JSON: {type(error).__name__}") from error
    if not isinstance(document, dict):
        raise _corrupt(where, "not an object")
    if (document.get("v"), document.get("kind")) != (SCHEMA_VERSION, "delete-records"):
        raise _corrupt(where, "not of this version and kind")
    try:
        topic_id = parse_uuid(_text(document, "topic_id", where))
    except ValueError as error:
        raise _corrupt(where, "topic_id is no topic id") from error
    return DeleteProposal(
        cluster_id=_text(document, "cluster_id", where),
        topic_id_partition=TopicIdPartition(
            topic_id=topic_id,
            topic=_text(document, "topic", where),
            partition=_integer(document, "partition", where, at_most=2**31 - 1),
        ),
        offset=Offset(_integer(document, "offset", where)),
        leader_epoch=LeaderEpoch(_integer(document, "leader_epoch", where, at_most=2**31 - 1)),
        low_watermark=Offset(_integer(document, "low_watermark", where, at_least=-1)),
        start_generation=_integer(document, "start_generation", where),
        principal=_text(document, "principal", where),
        client_id=_text(document, "client_id", where),
        address=_text(document, "address", where),
        gateway=BrokerId(_integer(document, "gateway", where, at_most=2**31 - 1)),
        proposed_ms=_integer(document, "proposed_ms", where),
    )


def _text(document: dict[str, Any], name: str, where: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise _corrupt(where, f"{name} is no text of at most {_MAX_TEXT} characters")
    return value


def _integer(document: dict[str, Any], name: str, where: str, *, at_least: int = 0, at_most: int = _INT64_MAX) -> int:
    value = document.get(name)
    if type(value) is not int or not at_least <= value <= at_most:
        raise _corrupt(where, f"{name} is no number from {at_least} to {at_most}")
    return value


def _corrupt(where: str, reason: str) -> CorruptDataError:
    return CorruptDataError(where=where, position=0, reason=reason)

"""The APIs that the gateway treats in a way of their own (``org.apache.kafka.common.protocol.ApiKeys``)."""

from __future__ import annotations

from enum import IntEnum


class ApiKey(IntEnum):
    """By Kafka's numbers; every other API passes as bytes."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    DELETE_RECORDS = 21
    OFFSET_FOR_LEADER_EPOCH = 23
    SASL_AUTHENTICATE = 36
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79


BEFORE_LOGIN = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS})
"""What a broker answers to anybody (SaslServerAuthenticator); to anything else it ends the connection."""

"""Fields known to the Kafka version that will read our events: written for that one, read in every form."""

from __future__ import annotations

TXN_INDEX_EMPTY_SINCE = (4, 0)
"""KAFKA-16780: absent from 3.9's records and storage API, present in 4.x (seen in 3.9.2 and 4.3.1)."""


def knows_txn_index_empty(kafka_version: tuple[int, int]) -> bool:
    """Return whether brokers of ``(major, minor)`` write TxnIndexEmpty in events and txnIdxEmpty in manifests."""
    return kafka_version >= TXN_INDEX_EMPTY_SINCE

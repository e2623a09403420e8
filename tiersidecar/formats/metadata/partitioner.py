"""The metadata partition that holds the events of a user partition (RemoteLogMetadataTopicPartitioner; S-088).

``toPositive(murmur2(be32(Objects.hash(topicId.lsb, topicId.msb, partition)))) % n``.  The topic's name has no part in it.
"""

from __future__ import annotations

from struct import Struct

from tiersidecar.domain.ids import TopicIdPartition

_MASK = 0xFFFF_FFFF
_TOPIC_ID = Struct(">IIII")


def metadata_partition(topic_id_partition: TopicIdPartition, partition_count: int) -> int:
    """Return the partition of a metadata topic with ``partition_count`` partitions."""
    msb_high, msb_low, lsb_high, lsb_low = _TOPIC_ID.unpack(topic_id_partition.topic_id)
    code = 1
    # Objects.hash: 31-fold over Long.hashCode(lsb), Long.hashCode(msb) and the partition.
    for part in (lsb_high ^ lsb_low, msb_high ^ msb_low, topic_id_partition.partition):
        code = (31 * code + part) & _MASK
    return (_murmur2_of_int32(code) & 0x7FFF_FFFF) % partition_count


def _murmur2_of_int32(value: int) -> int:
    """Return ``Utils.murmur2`` of the four big-endian bytes of ``value``: one round, since the input is one word."""
    multiplier = 0x5BD1E995
    word = int.from_bytes(value.to_bytes(4, "big"), "little")
    word = (word * multiplier) & _MASK
    word ^= word >> 24
    word = (word * multiplier) & _MASK
    code = 0x9747B28C ^ 4
    code = ((code * multiplier) & _MASK) ^ word
    code ^= code >> 13
    code = (code * multiplier) & _MASK
    return code ^ (code >> 15)

"""confluent-kafka, which is librdkafka, as one of the clients of :mod:`tests.support.gateway_clients`."""

from __future__ import annotations

from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from tests.support.reading import Access, Deadline, Progress, Reading, Seen, in_order

_OTHER_LEADER = (
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.LEADER_NOT_AVAILABLE,  # also librdkafka's own word while its metadata name none
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
)


def read_with_confluent(access: Access, reading: Reading) -> list[Seen]:
    """Read in either group protocol, or with partitions of its own choice."""
    consumer = confluent_kafka.Consumer(_settings(access, reading))
    try:
        _begin(consumer, reading)
        return in_order(_by_count(consumer, reading) if reading.is_by_count else _to_ends(consumer, reading), reading)
    finally:
        consumer.close()


def _settings(access: Access, reading: Reading) -> dict[str, Any]:
    return {
        **access.librdkafka_settings,
        "group.id": reading.group or "none",
        "group.protocol": "consumer" if reading.membership == "consumer" else "classic",
        "enable.auto.commit": False,
        "auto.offset.reset": reading.reset,
        "isolation.level": reading.isolation,
        "enable.partition.eof": True,
        "log_level": 0,
        "client.rack": reading.rack,
        "topic.metadata.refresh.interval.ms": 10_000,
        "max.partition.fetch.bytes": reading.max_partition_bytes,
        "fetch.max.bytes": max(reading.fetch_max_bytes, reading.max_partition_bytes),
        "fetch.wait.max.ms": reading.max_wait_ms,
        "message.max.bytes": min(reading.fetch_max_bytes, 1_000_000),
    }


def _begin(consumer: Any, reading: Reading) -> None:
    starts = dict[int, int]()
    if reading.start == "timestamp":
        starts = _offsets_for_times(consumer, reading)
    elif reading.start == "hops":
        starts = {0: reading.hops[0]}
    if reading.membership == "assigned":
        known = {"latest": confluent_kafka.OFFSET_END, "earliest": confluent_kafka.OFFSET_BEGINNING}[reading.reset]
        consumer.assign(
            [
                confluent_kafka.TopicPartition(topic, number, starts.get(number, known))
                for topic in reading.topics
                for number in reading.ends
            ]
        )
        return

    def assigned(member: Any, partitions: list[Any]) -> None:
        for one in partitions:
            one.offset = starts.get(one.partition, one.offset)
        take = member.incremental_assign if reading.membership == "consumer" else member.assign
        take(partitions)

    consumer.subscribe([reading.topic], on_assign=assigned)


def _offsets_for_times(consumer: Any, reading: Reading) -> dict[int, int]:
    times = [confluent_kafka.TopicPartition(reading.topic, number, reading.since_ms) for number in reading.ends]
    deadline = Deadline()
    while True:
        try:
            found = consumer.offsets_for_times(times, timeout=30)
        except KafkaException as refused:
            errors = [refused.args[0]]
        else:
            # Of one partition alone it raises nothing, and gives the offset -1, which is also what means the log's end.
            errors = [one.error for one in found if one.error is not None]
            if not errors:
                return {one.partition: one.offset for one in found}
        # Unlike others it leaves it to the application to try again when the leader has changed.
        if any(error.code() not in _OTHER_LEADER for error in errors):
            raise KafkaException(errors[0])
        deadline.check("offsets by time", errors)
        consumer.poll(0.1)


def _to_ends(consumer: Any, reading: Reading) -> list[Seen]:
    seen, progress, positions = list[Seen](), Progress(reading.ends), dict[int, int]()
    last = dict[int, Any]()
    while progress.goes_on(positions):
        for message in consumer.consume(500, timeout=0.2):
            if message.topic() != reading.topic:
                continue
            if _is_end(message):
                positions[message.partition()] = message.offset()
                continue
            seen.append(_of_confluent(message))
            positions[message.partition()] = message.offset() + 1
            if message.offset() < reading.ends[message.partition()]:
                last[message.partition()] = message
    if reading.commits:
        for message in last.values():
            consumer.commit(message=message, asynchronous=False)
    return seen


def _by_count(consumer: Any, reading: Reading) -> list[Seen]:
    seen, deadline = list[Seen](), Deadline()
    for hop in reading.hops or (None,):
        if hop is not None:
            _seek(consumer, confluent_kafka.TopicPartition(reading.topic, 0, hop), deadline)
        found = list[Seen]()
        while len(found) < reading.count:
            deadline.check("a hop", hop, len(found))
            messages = consumer.consume(reading.count - len(found), timeout=0.2)
            found += [_of_confluent(message) for message in messages if not _is_end(message)]
        seen += found
    return seen


def _seek(consumer: Any, place: Any, deadline: Deadline) -> None:
    while True:
        try:
            consumer.seek(place)
        except KafkaException as refused:
            if refused.args[0].code() not in (KafkaError._STATE, KafkaError._UNKNOWN_PARTITION):
                raise
            # Not assigned yet, or not begun to fetch.
            deadline.check("a place to seek to", place)
            consumer.consume(1, timeout=0.1)
        else:
            return


def _is_end(message: Any) -> bool:
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return error is not None


def _of_confluent(message: Any) -> Seen:
    headers = tuple((name, content) for name, content in message.headers() or ())
    return message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(), headers

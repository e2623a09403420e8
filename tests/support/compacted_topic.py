"""A topic on a real broker whose log our cleaner and the broker's own both clean."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from tests.support.compacted_logs import LogSegment
from tests.support.kafka_admin import wait_until
from tests.support.kafka_broker import KafkaBroker
from tests.support.produce import Style, open_sender
from tiersidecar.formats.kafka.log_dir_files import read_offset_checkpoint

CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
STYLES = (
    Style(),
    Style(compression="gzip"),
    Style(compression="snappy", idempotent=True),
    Style(compression="lz4", idempotent=True),
    Style(compression="zstd", idempotent=True),
    Style(compression="zstd", outcome="committed"),
    Style(outcome="committed"),
)
_BATCH_BYTES = 3000


async def write_at_random(
    client_settings: Mapping[str, Any],
    topic: str,
    partition: int,
    draw: random.Random,
    *,
    steps: int,
    keys: int,
    null_keys: float = 0.05,
) -> None:
    """Batches of all styles in turns, and transactions of two producers that overlap and end either way; all have ended when
    this returns.  Some values are null, and ``null_keys`` of the keys: a topic that is compacted by now refuses them."""
    async with AsyncExitStack() as stack:
        producers = [
            (style, await stack.enter_async_context(open_sender(client_settings, style, _BATCH_BYTES)))
            for style in STYLES
        ]
        open_now: list[AIOKafkaProducer] = []
        for _ in range(steps):
            style, producer = draw.choice(producers)
            if style.outcome is not None and producer not in open_now:
                await producer.begin_transaction()
                open_now.append(producer)
            await _send(producer, topic, partition, draw, keys, null_keys)
            if open_now and draw.random() < 0.2:
                await _end(open_now.pop(draw.randrange(len(open_now))), draw)
        for producer in open_now:
            await _end(producer, draw)


async def _send(
    producer: AIOKafkaProducer, topic: str, partition: int, draw: random.Random, keys: int, null_keys: float
) -> None:
    builder = producer.create_batch()
    for _ in range(draw.randint(1, 8)):
        key = None if draw.random() < null_keys else b"key-%d" % draw.randrange(keys)
        value = None if draw.random() < 0.2 else draw.randbytes(20) + b"text " * draw.randrange(60)
        headers = [("header", draw.randbytes(3))] * draw.randrange(3)
        if builder.append(timestamp=None, key=key, value=value, headers=headers) is None:
            break
    builder.close()
    await (await producer.send_batch(builder, topic, partition=partition))


async def _end(producer: AIOKafkaProducer, draw: random.Random) -> None:
    if draw.random() < 0.5:
        await producer.commit_transaction()
    else:
        await producer.abort_transaction()


def read_segments(broker: KafkaBroker, topic: str, partition: int) -> tuple[LogSegment, ...]:
    """Return all segments of a partition as they lie on disk; the last one is active."""
    directory = broker.partition_dir(topic, partition)
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    end = broker.admin.latest_offset(topic, partition)
    return tuple(
        LogSegment(base_offset=base, next_base_offset=stop, log=_log_of(directory, base).read_bytes())
        for base, stop in zip(bases, [*bases[1:], end], strict=True)
    )


def wait_until_cleaned(broker: KafkaBroker, topic: str, offsets: Sequence[int]) -> None:
    """Wait until the broker's cleaner has come to each partition's offset: cleaned segments are swapped in before that is
    said."""

    def is_cleaned() -> bool:
        return all(cleaner_offset(broker, topic, number) == offset for number, offset in enumerate(offsets))

    wait_until(is_cleaned, f"the broker's cleaner is at {list(offsets)} of {topic}", 60)


def cleaner_offset(broker: KafkaBroker, topic: str, partition: int) -> int | None:
    """Return what the broker's checkpoint says."""
    path = broker.log_dirs[0] / CLEANER_CHECKPOINT
    if not path.exists():
        return None
    return read_offset_checkpoint(path.read_bytes(), where=str(path)).get((topic, partition))


def _log_of(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.log"

"""``tiersidecar events``: print the events of the metadata topic, and follow new ones."""

from __future__ import annotations

import errno
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.commands.looking import DONE, look
from tiersidecar.app.commands.options import ConfigFile, parse_target
from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import BrokerRefusedError, CorruptDataError

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer
from dataclasses import dataclass, field

from tiersidecar.app.commands.tables import moment, size
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, format_uuid
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemotePartitionDeleteMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """An event with its place and time in the topic; ``problem`` says why an unreadable one has no ``event``."""

    partition: int
    offset: int
    time_ms: int
    event: MetadataEvent | None
    problem: str = ""

    @property
    def owner(self) -> TopicIdPartition | None:
        """Return the partition that the event concerns."""
        if self.event is None:
            return None
        if isinstance(self.event, RemotePartitionDeleteMetadata):
            return self.event.topic_id_partition
        return self.event.remote_log_segment_id.topic_id_partition

    def is_of(self, topic: str | None, partition: int | None) -> bool:
        """Return whether the event is selected; an unreadable one always is."""
        owner = self.owner
        if owner is None or topic is None:
            return True
        return owner.topic == topic and partition in (None, owner.partition)


@dataclass(slots=True)
class EventLines:
    """Formats events; it remembers the offsets of segments, which updates do not contain."""

    _known: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = field(default_factory=dict)

    def document(self, recorded: Recorded) -> dict[str, Any]:
        """Return an event as a JSON document."""
        event, owner = recorded.event, recorded.owner
        where = {
            "time_ms": recorded.time_ms,
            "metadata_partition": recorded.partition,
            "metadata_offset": recorded.offset,
        }
        if event is None or owner is None:
            return {**where, "kind": "unreadable", "problem": recorded.problem}
        of = {"topic": owner.topic, "topic_id": format_uuid(owner.topic_id), "partition": owner.partition}
        said = {"state": event.state.name, "broker_id": event.broker_id, "event_ms": event.event_timestamp_ms}
        if isinstance(event, RemotePartitionDeleteMetadata):
            return {**where, "kind": "partition-delete", **of, **said}
        begin = self._begin(event)
        found = {
            **where,
            "kind": "segment" if isinstance(event, RemoteLogSegmentMetadata) else "segment-update",
            **of,
            "segment_id": format_uuid(event.remote_log_segment_id.uuid),
            **said,
        }
        if begin is None:
            return found
        return found | {
            "start_offset": begin.start_offset,
            "end_offset": begin.end_offset,
            "size_bytes": begin.segment_size_in_bytes,
            "max_timestamp_ms": begin.max_timestamp_ms,
            "leader_epochs": [[entry.epoch, entry.start_offset] for entry in begin.segment_leader_epochs],
        }

    def text(self, recorded: Recorded) -> str:
        """Return an event as a line of text."""
        said = self.document(recorded)
        head = f"{moment(recorded.time_ms)}  {recorded.partition}@{recorded.offset}"
        if said["kind"] == "unreadable":
            return f"{head}  cannot be read: {said['problem']}"
        parts = [head, f"{said['topic']}/{said['partition']}", said["state"], f"broker {said['broker_id']}"]
        if "start_offset" in said:
            parts += [f"offsets {said['start_offset']} to {said['end_offset']}", str(size(said["size_bytes"]))]
        return "  ".join([*parts, said.get("segment_id", "")]).rstrip()

    def _begin(self, event: Any) -> RemoteLogSegmentMetadata | None:
        if isinstance(event, RemoteLogSegmentMetadata):
            self._known[event.remote_log_segment_id] = event
        return self._known.get(event.remote_log_segment_id)


_POLL_MS = 500


class _UnheardError(Exception):
    """The output is not read any more (``events | head``).  Where the consumer is open, a broken pipe would be taken for the
    broker's."""


def events(
    config_file: ConfigFile,
    target: Annotated[
        str | None, typer.Argument(metavar="TOPIC[/PARTITION]", help="Only of this topic or partition.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new events, until Ctrl-C.")] = False,
    last: Annotated[int, typer.Option(metavar="N", min=0, help="Begin with the last N events; 0 shows all.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")] = False,
) -> None:
    """Print the events of remote segments: copies and deletions, begun and finished.

    The topic is not compacted, so it has the whole history of each segment within its own retention.
    """
    topic, partition = (None, None) if target is None else parse_target(target)
    lines = EventLines()

    def say(recorded: Recorded) -> None:
        line = json.dumps(lines.document(recorded), ensure_ascii=False) if as_json else lines.text(recorded)
        try:
            typer.echo(line)
        except BrokenPipeError as error:
            raise _UnheardError from error

    def act(config: Config) -> int:
        try:
            run_to_end(_read(config, lambda one: one.is_of(topic, partition), say, lines, last=last, follow=follow))
        except _UnheardError as error:
            raise BrokenPipeError(errno.EPIPE, "the output is not read") from error
        return DONE

    look(config_file, act)


async def _read(
    config: Config,
    is_asked_for: Callable[[Recorded], bool],
    say: Callable[[Recorded], None],
    lines: EventLines,
    *,
    last: int,
    follow: bool,
) -> None:
    """Print the existing events in order of time, then follow; partitions are read in any order."""
    async with event_consumer(config) as consumer:
        ends = await consumer.end_offsets(consumer.assignment())
        kept: deque[Recorded] = deque()
        while any([await consumer.position(one) < end for one, end in ends.items()]):
            kept += [recorded for recorded in await next_events(consumer) if is_asked_for(recorded)]
        found = sorted(kept, key=lambda one: (one.time_ms, one.partition, one.offset))
        for number, one in enumerate(found):
            if last and number < len(found) - last:
                lines.document(one)  # what began there is named in the updates that follow
            else:
                say(one)
        while follow:
            for recorded in await next_events(consumer):
                if is_asked_for(recorded):
                    say(recorded)


@asynccontextmanager
async def event_consumer(config: Config, metadata_partitions: Collection[int] = ()) -> AsyncIterator[AIOKafkaConsumer]:
    """Open a consumer of the metadata topic, or of these partitions of it, from its beginning; it commits nothing and joins no
    group."""
    from aiokafka import TopicPartition

    from tiersidecar.adapters.kafka.aiokafka_settings import aiokafka_kwargs
    from tiersidecar.adapters.kafka.broker import open_broker
    from tiersidecar.adapters.kafka.connection import ConnectionLimits
    from tiersidecar.adapters.kafka_clients import open_consumer, translated
    from tiersidecar.app.builders.security import bootstrap_servers, broker_security

    topic, client_id = config.remote_log_metadata_topic_name, f"{config.broker.client_id}-command"
    servers, security = bootstrap_servers(config.broker), broker_security(config.broker)
    limits = ConnectionLimits(request_timeout_s=config.broker.request_timeout_ms / 1000)
    async with open_broker(servers, security, client_id=client_id, limits=limits) as broker:
        views = await broker.describe_partitions([topic])
    if not views:
        raise BrokerRefusedError(api="Metadata", subject=f"topic {topic}", error="UNKNOWN_TOPIC_OR_PARTITION")
    async with open_consumer(servers, aiokafka_kwargs(security), client_id=client_id) as consumer:
        with translated("Fetch", topic, servers):
            found = [view.topic_id_partition.partition for view in views]
            wanted = [one for one in found if one in metadata_partitions] if metadata_partitions else found
            consumer.assign([TopicPartition(topic, one) for one in wanted])
            for partition, first in (await consumer.beginning_offsets(consumer.assignment())).items():
                consumer.seek(partition, first)
            yield consumer


async def next_events(consumer: AIOKafkaConsumer) -> list[Recorded]:
    """Return what has come within half a second, in the order of each partition."""
    batches = await consumer.getmany(timeout_ms=_POLL_MS)
    return [_recorded(record) for records in batches.values() for record in records]


def _recorded(record: Any) -> Recorded:
    from tiersidecar.formats.metadata.serde import read_event

    event, problem = None, ""
    try:
        event = read_event(record.value or b"", where=f"{record.topic}-{record.partition}@{record.offset}")
    except CorruptDataError as error:
        problem = str(error)
    return Recorded(
        partition=record.partition, offset=record.offset, time_ms=record.timestamp, event=event, problem=problem
    )

"""``handover from-native``: the data that native tiering has, and what is in the way of the sidecar that is to take it over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiersidecar.app.commands.session import Session
from tiersidecar.app.commands.tables import size, table
from tiersidecar.app.handover.look import (
    finished_of,
    leader_epochs_of,
    list_objects_of,
    open_command_store,
    read_native_segments,
    sizes_of,
)
from tiersidecar.app.handover.plan import Plan, PlannedPartition, PlannedSegment, write_plan
from tiersidecar.app.handover.run import BrokerSettings, HandoverLook, brokers_with, unknown_sight, with_cluster
from tiersidecar.app.handover.settings import NATIVE_METADATA_TOPIC
from tiersidecar.app.handover.verify import with_records
from tiersidecar.app.reconcile_parts import read_owner
from tiersidecar.decide.native_settings import BrokerFiles, Sight
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.offsets import EpochEntry, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.broker import OffsetSpec

Say = Callable[[str], None]

_DEAD_AFTER_MS = 3 * 3_600_000
"""The age that reconcile and repair use as well (``--copy-grace``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePartition:
    """A partition under native tiering.  ``unfinished`` are copies and deletions, ``copying`` those of them that may still be
    running.  ``log_start_offset`` is the users'; ``local_log_start_offset`` where the disk begins, -1 while tiering is off
    already: then the log start is the disk's."""

    owner: TopicIdPartition
    finished: tuple[RemoteLogSegmentMetadata, ...]
    unfinished: tuple[RemoteLogSegmentMetadata, ...]
    copying: tuple[RemoteLogSegmentMetadata, ...]
    log_start_offset: Offset
    local_log_start_offset: Offset
    high_watermark: Offset
    leader_epochs: tuple[EpochEntry, ...]
    object_bytes: Mapping[str, int]

    @property
    def hides_deleted(self) -> bool:
        """Return whether a segment begins below the users' log start: the sidecar would let read what they deleted.

        Whole segments below it too, until the broker has deleted them.  Once tiering is off, nothing says what users had: the
        plan of an earlier look does."""
        return self.local_log_start_offset >= 0 and any(
            one.start_offset < self.log_start_offset for one in self.finished
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverLook:
    """All topics; ``refusals`` by topic are about all of it."""

    topics: tuple[str, ...]
    partitions: tuple[NativePartition, ...]
    refusals: tuple[str, ...]
    cluster: HandoverLook
    key_prefix: str

    @property
    def _tiering(self) -> list[BrokerSettings]:
        return [one for one in self.cluster.brokers if one.may_be_native]

    def warnings(self) -> Iterator[str]:
        """Yield what must not be done yet."""
        if seeing := brokers_with(self._tiering, Sight.SEEING):
            yield (
                f"brokers {seeing} see the events: remote.storage.enable=false would delete all that is remote "
                "until their metadata manager reads nothing (step 3)"
            )

    def obstacles(self) -> Iterator[str]:
        """Yield what has to be done first."""
        yield from self.refusals
        if unknown := brokers_with(self._tiering, Sight.UNKNOWN):
            yield f"{unknown_sight(unknown)}. One that does deletes all that is remote at remote.storage.enable=false"
        for partition in self.partitions:
            if partition.copying:
                offsets = ", ".join(f"{one.start_offset} to {one.end_offset}" for one in partition.copying[:5])
                yield (
                    f"{partition.owner}: {len(partition.copying)} copies are unfinished (offsets {offsets}): set "
                    "remote.log.copy.disable=true, and wait until the broker has finished them. One that was interrupted "
                    f"stays unfinished; {_DEAD_AFTER_MS // 3_600_000} h after its beginning it is not waited for any more"
                )
            for segment in partition.finished:
                if min(sizes_of(segment, partition.object_bytes, self.key_prefix)) < 0:
                    yield (
                        f"{partition.owner}: the configured store lacks objects of the segment with offsets "
                        f"{segment.start_offset} to {segment.end_offset}: are bucket and key.prefix those of the plugin?"
                    )
                    break


def copies_in_progress(segments: Iterable[RemoteLogSegmentMetadata], now_ms: int) -> list[RemoteLogSegmentMetadata]:
    """Return copies that the broker may yet finish.

    No others are in the way, nor is any deletion: what the broker has not ended behind the first segment that it keeps it never
    ends while retention is -1, and the sidecar does, once it has taken over."""
    return [
        one
        for one in segments
        if one.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED and now_ms - one.event_timestamp_ms < _DEAD_AFTER_MS
    ]


async def look_from_native(
    session: Session, topics: Sequence[str], say: Say, files: BrokerFiles | None = None
) -> TakeoverLook:
    """Look at ``topics`` as native tiering has them; ``files`` are brokers' server.properties.

    Raises:
        BrokerRefusedError: there is no such topic.
        TiersidecarError: brokers, topics or the store cannot be read.
    """
    refusals, partitions = [], []
    for topic in topics:
        configs = (await session.broker.describe_topic_configs([topic])).get(topic, {})
        refusals += [f"{topic}: {one}" for one in _refusals(session, topic, configs)]
        partitions += await _partitions(session, topic, is_on=configs.get("remote.storage.enable") == "true", say=say)
        refusals += [f"{topic}: {one}" for one in await _claims(session, topic)]
    return TakeoverLook(
        topics=tuple(topics),
        partitions=tuple(partitions),
        refusals=tuple(refusals),
        cluster=await with_cluster(session, (), say, files),
        key_prefix=session.config.store.key_prefix,
    )


def _refusals(session: Session, topic: str, configs: Mapping[str, str | None]) -> Iterator[str]:
    config = session.config
    if configs.get("remote.storage.enable") != "true":
        yield "remote.storage.enable is not true: native tiering has none of its data, or was switched off already"
    if config.policy_for(topic) is None:
        yield "no rule of the sidecar's configuration names it: add one, with the retention that it is to have"
    if "compact" in (configs.get("cleanup.policy") or ""):
        yield "cleanup.policy has compact, and compacted topics are not tiered"
    if config.remote_log_metadata_topic_name != NATIVE_METADATA_TOPIC:
        yield f"remote.log.metadata.topic.name is {config.remote_log_metadata_topic_name}, must be {NATIVE_METADATA_TOPIC}"
    for name in ("retention.ms", "retention.bytes"):
        if configs.get(name) not in (None, "-1"):
            yield (
                f"{name} is {configs[name]}, must be -1: once native tiering is off, the broker deletes by it what is not "
                "remote yet"
            )


async def _claims(session: Session, topic: str) -> list[str]:
    cluster = (await session.broker.describe_cluster()).cluster_id
    topic_id = (await session.partitions(topic))[0].topic_id_partition.topic_id
    async with open_command_store(session) as store:
        owner = await read_owner(store, session.config.store.key_prefix, format_uuid(topic_id))
    if owner in (None, cluster):
        return []
    return [f"the store says that its data are cluster {owner}'s: `tiersidecar adopt`"]


async def _partitions(session: Session, topic: str, *, is_on: bool, say: Say) -> list[NativePartition]:
    views = await session.partitions(topic)
    say(f"reading the events of {topic}")
    native = await read_native_segments(session.config, [view.topic_id_partition for view in views])
    found = []
    async with open_command_store(session) as store:
        for view in views:
            owner = view.topic_id_partition
            say(f"looking at its partitions: {owner}")
            log_start = await session.offset(view, OffsetSpec.EARLIEST)
            local = await session.offset(view, OffsetSpec.EARLIEST_LOCAL) if is_on else Offset(-1)
            finished = finished_of(native[owner])
            found.append(
                NativePartition(
                    owner=owner,
                    finished=tuple(finished),
                    unfinished=tuple(
                        one for one in native[owner] if one.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED
                    ),
                    copying=tuple(copies_in_progress(native[owner], session.clock.now_ms())),
                    log_start_offset=log_start,
                    local_log_start_offset=local,
                    high_watermark=await session.offset(view, OffsetSpec.LATEST),
                    leader_epochs=await leader_epochs_of(session.broker, view, log_start),
                    object_bytes=await list_objects_of(store, owner, session.config.store.key_prefix),
                )
            )
    return found


async def write_takeover(session: Session, look: TakeoverLook, path: Path, records: str | None, say: Say) -> None:
    """Write the plan that ``verify`` compares with; nothing of it is for ``files``.

    Raises:
        HandoverError: the file is there already, or records do not come.
    """
    planned = [_planned(one, look.key_prefix) for one in look.partitions]
    if records is not None:
        planned = await with_records(session.config, records, planned, say)
    cluster_id = look.cluster.cluster_id
    made_ms = session.clock.now_ms()
    write_plan(Plan(made_ms=made_ms, cluster_id=cluster_id, partitions=tuple(planned), to_native=False), path)


def _planned(partition: NativePartition, key_prefix: str) -> PlannedPartition:
    return PlannedPartition(
        owner=partition.owner,
        log_start_offset=partition.log_start_offset,
        leader_epochs=partition.leader_epochs,
        high_watermark=partition.high_watermark,
        copied_stop=Offset(max((one.end_offset + 1 for one in partition.finished), default=0)),
        segments=tuple(
            PlannedSegment(
                uuid=one.remote_log_segment_id.uuid,
                start_offset=one.start_offset,
                end_offset=one.end_offset,
                size_bytes=one.segment_size_in_bytes,
                object_bytes=sizes_of(one, partition.object_bytes, key_prefix),
            )
            for one in partition.finished
        ),
    )


def takeover_text(look: TakeoverLook) -> str:
    """Return each partition as native tiering has it, as text."""
    columns = ("partition", "log start", "local start", "end", "segments", "bytes", "unfinished", "first segment")
    rows = [
        (
            str(one.owner),
            one.log_start_offset,
            None if one.local_log_start_offset < 0 else one.local_log_start_offset,
            one.high_watermark,
            len(one.finished),
            size(sum(segment.segment_size_in_bytes for segment in one.finished)),
            len(one.unfinished),
            one.finished[0].start_offset if one.finished else None,
        )
        for one in look.partitions
    ]
    return table(columns, rows)


def takeover_document(look: TakeoverLook) -> dict[str, Any]:
    """Return the look as JSON."""
    return {
        "partitions": [
            {
                "topic": one.owner.topic,
                "partition": one.owner.partition,
                "log_start_offset": one.log_start_offset,
                "local_log_start_offset": one.local_log_start_offset,
                "high_watermark": one.high_watermark,
                "finished": len(one.finished),
                "unfinished": len(one.unfinished),
                "needs_delete_records": one.hides_deleted,
            }
            for one in look.partitions
        ],
        "brokers": [
            {"broker_id": broker.broker_id, "native": broker.is_native, "sight": broker.sight}
            for broker in look.cluster.brokers
        ],
    }

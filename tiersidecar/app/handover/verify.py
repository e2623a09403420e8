"""Afterwards: checks that a hand-over kept what its plan foretold: events, objects, log starts and, where asked for,
records."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tiersidecar.adapters.kafka.aiokafka_settings import aiokafka_kwargs
from tiersidecar.adapters.kafka_clients import open_consumer, translated
from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.commands.session import Session
from tiersidecar.app.config.config import Config
from tiersidecar.app.handover.look import (
    finished_of,
    list_objects_of,
    open_command_store,
    read_native_segments,
    sizes_of,
)
from tiersidecar.app.handover.plan import Plan, PlannedPartition, PlannedSegment, RecordsDigest
from tiersidecar.app.handover.settings import as_native
from tiersidecar.domain.errors import HandoverError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.readable import size_text
from tiersidecar.ports.broker import OffsetSpec

COMMITTED = "read_committed"
_POLL_MS = 1_000
_MOST_POLLS_WITHOUT = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPartition:
    """``kept`` segments are as they were, ``gone`` went as foretold, ``waiting`` will go; ``added`` were copied since.

    ``faults`` are what the plan did not foretell.
    """

    owner: TopicIdPartition
    kept: int
    gone: int
    waiting: int
    added: int
    records: int | None = None
    faults: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStarts:
    """Where a partition begins: ``now`` for readers of the native broker (``to_native``) or of the sidecar, -1 before its first
    round.  ``users`` is where it begins for users by the state topic, -1 if that says nothing."""

    now: int
    users: int
    to_native: bool


async def verify_plan(
    session: Session, plan: Plan, say: Callable[[str], None], *, reads_records: bool
) -> list[VerifiedPartition]:
    """Compare each partition of the plan with what there is now.

    Raises:
        StoreError, BrokerRefusedError, MetadataNotReadyError: it cannot be looked at.
        HandoverError: records are asked for, and the plan has no digest of them.
    """
    owners = [one.owner for one in plan.partitions]
    say("reading the events")
    native = await read_native_segments(as_native(session.config) if plan.to_native else session.config, owners)
    found = []
    async with open_command_store(session) as store:
        for planned in plan.partitions:
            say(f"comparing its partitions: {planned.owner}")
            listed = await list_objects_of(store, planned.owner, session.config.store.key_prefix)
            starts = await _log_starts(session, planned, to_native=plan.to_native)
            verified = compare_partition(
                planned, native[planned.owner], listed, session.config.store.key_prefix, starts
            )
            if reads_records:
                verified = await _compare_records(session.config, planned, verified, say)
            found.append(verified)
    return found


async def _log_starts(session: Session, planned: PlannedPartition, *, to_native: bool) -> LogStarts:
    owner, state = planned.owner, session.state.partition_state(planned.owner)
    view = await session.partition(owner.topic, owner.partition)
    if view.topic_id_partition.topic_id != owner.topic_id:
        raise HandoverError(subject=str(owner), reason="the topic was created again since the plan")
    if not to_native:
        return LogStarts(now=state.highest_start, users=state.highest_start, to_native=False)
    now = await session.offset(view, OffsetSpec.EARLIEST)
    return LogStarts(now=now, users=state.start_in(Lineage.of(planned.leader_epochs)), to_native=True)


def compare_partition(
    planned: PlannedPartition, native: NativeSegments, listed: dict[str, int], key_prefix: str, starts: LogStarts
) -> VerifiedPartition:
    """Compare one partition with its events, its objects (sizes by key) and its log starts as they are now."""
    now = {one.remote_log_segment_id.uuid: one for one in finished_of(native)}
    faults: list[str] = []
    kept = gone = waiting = 0
    for segment in planned.segments:
        found = now.pop(segment.uuid, None)
        if found is None:
            gone += bool(segment.goes)
            if not segment.goes:
                faults.append(
                    f"{_named(segment)} is no longer finished: it was deleted, and the plan did not predict that"
                )
            continue
        kept, waiting = kept + (not segment.goes), waiting + bool(segment.goes)
        if (found.start_offset, found.end_offset, found.segment_size_in_bytes) != (
            segment.start_offset,
            segment.end_offset,
            segment.size_bytes,
        ):
            faults.append(f"{_named(segment)} has other offsets or another size than in the plan")
        sizes = sizes_of(found, listed, key_prefix)
        if sizes != segment.object_bytes:
            shown = ", ".join("none" if one < 0 else size_text(one) for one in sizes)
            faults.append(f"{_named(segment)}: its objects are not those of the plan (now {shown})")
    faults += _start_faults(planned, starts)
    return VerifiedPartition(
        owner=planned.owner, kept=kept, gone=gone, waiting=waiting, added=len(now), faults=tuple(faults)
    )


def _start_faults(planned: PlannedPartition, starts: LogStarts) -> Iterator[str]:
    """Yield faults of the log start: too late a one has lost records, too early a one gives back what users have deleted."""
    deleted_to = max(planned.log_start_offset, starts.users)
    latest = max(_foretold_start(planned), deleted_to)
    if starts.now > latest:
        yield f"its log starts at {starts.now}, and was to start at {latest}"
    elif 0 <= starts.now < deleted_to:
        owner = planned.owner
        remedy = (
            f'kafka-delete-records.sh with {{"topic": "{owner.topic}", "partition": {owner.partition}, "offset": {deleted_to}}}'
            if starts.to_native
            else f"tiersidecar delete-records {owner.topic} -p {owner.partition} --offset {deleted_to}"
        )
        yield f"its log starts at {starts.now}, and users have deleted what is below {deleted_to}: {remedy}"


def _foretold_start(planned: PlannedPartition) -> int:
    """Return the planned log start.  A takeover foretells none: the sidecar begins with the first segment, if not where users'
    records begin."""
    if planned.foretold_start is not None:
        return planned.foretold_start
    return min((one.start_offset for one in planned.segments), default=planned.high_watermark)


def _named(segment: PlannedSegment) -> str:
    return f"the segment of offsets {segment.start_offset} to {segment.end_offset}"


async def _compare_records(
    config: Config, planned: PlannedPartition, verified: VerifiedPartition, say: Callable[[str], None]
) -> VerifiedPartition:
    if planned.records is None:
        raise HandoverError(subject=str(planned.owner), reason="the plan has no digest of its records (--records)")
    before = planned.records
    now = await digest_records(
        config, bootstrap_servers(config.broker), planned.owner, before.start_offset, before.stop_offset, say
    )
    faults = list(verified.faults)
    if (now.count, now.sha256) != (before.count, before.sha256):
        place = f"from offset {before.start_offset} to {before.stop_offset}"
        faults.append(f"other records {place}: {now.count:,} now, {before.count:,} at the time of the plan")
    return replace(verified, records=now.count, faults=tuple(faults))


async def with_records(
    config: Config,
    servers: str,
    planned: Sequence[PlannedPartition],
    say: Callable[[str], None],
    *,
    committed: bool = False,
) -> list[PlannedPartition]:
    """Return the planned partitions with a digest of all their records, read from ``servers``, and, if asked for, of the
    ``committed`` ones.

    Raises:
        As :func:`digest_records`.
    """
    found = []
    for one in planned:
        start, stop = one.log_start_offset, one.high_watermark
        records = await digest_records(config, servers, one.owner, start, stop, say)
        if committed:
            stable = await digest_records(config, servers, one.owner, start, stop, say, isolation=COMMITTED)
            one = replace(one, committed=stable)
        found.append(replace(one, records=records))
    return found


async def digest_records(
    config: Config,
    servers: str,
    owner: TopicIdPartition,
    start: int,
    stop: int,
    say: Callable[[str], None],
    *,
    isolation: str = "read_uncommitted",
) -> RecordsDigest:
    """Read all records of [``start``, ``stop``) from ``servers``, a broker or a gateway, and digest them: offset, timestamp,
    key, value and headers of each.  With ``isolation`` of :data:`COMMITTED` those of aborted transactions are left out, and it
    ends where a transaction is open.

    Raises:
        BrokerUnreachableError, BrokerRefusedError: they cannot be read.
        HandoverError: nothing came for half a minute.
    """
    from aiokafka import TopicPartition

    security = aiokafka_kwargs(broker_security(config.broker))
    place, digest, count, without = TopicPartition(owner.topic, owner.partition), hashlib.sha256(), 0, 0
    client_id = f"{config.broker.client_id}-handover"
    async with open_consumer(servers, security, client_id=client_id, isolation=isolation) as consumer:
        with translated("Fetch", str(owner), servers):
            consumer.assign([place])
            if isolation == COMMITTED:
                stop = min(stop, (await consumer.end_offsets([place]))[place])
            consumer.seek(place, start)
            while (at := await consumer.position(place)) < stop:
                say(f"reading records of {owner}: offset {at:,} of {stop:,}")
                batches = await consumer.getmany(place, timeout_ms=_POLL_MS)
                moved = await consumer.position(place) > at
                without = 0 if moved else without + 1
                if without == _MOST_POLLS_WITHOUT:
                    raise HandoverError(subject=str(owner), reason=f"no record comes at offset {at} from {servers}")
                for record in (one for some in batches.values() for one in some if one.offset < stop):
                    digest.update(_record_bytes(record))
                    count += 1
    return RecordsDigest(start_offset=start, stop_offset=stop, count=count, sha256=digest.hexdigest())


def _record_bytes(record: Any) -> bytes:
    """Return a record's bytes so that no two that differ are alike: each part with its length, -1 for none."""
    parts: Iterable[bytes | None] = (
        record.key,
        record.value,
        *(part for name, value in record.headers for part in (name.encode(), value)),
    )
    head = struct.pack(">qqi", record.offset, record.timestamp, len(record.headers))
    return head + b"".join(struct.pack(">i", -1 if part is None else len(part)) + (part or b"") for part in parts)

"""Afterwards: checks that the brokers have by themselves all that went back to them: log starts, replicas, records, objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tiersidecar.app.builders.security import bootstrap_servers
from tiersidecar.app.commands.session import Session
from tiersidecar.app.handover.look import list_objects_of, open_command_store
from tiersidecar.app.handover.plan import Plan, PlannedPartition, RecordsDigest
from tiersidecar.app.handover.verify import COMMITTED, VerifiedPartition, digest_records
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError, HandoverError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.readable import size_text
from tiersidecar.domain.segments import LeaderView
from tiersidecar.formats.aiven.keys import plugin_keys
from tiersidecar.ports.broker import OffsetSpec

Say = Callable[[str], None]


async def verify_return(session: Session, plan: Plan, say: Say, *, reads_records: bool) -> list[VerifiedPartition]:
    """Compare each partition of the plan with what the brokers have now; the sidecars may be stopped.

    Raises:
        StoreError, BrokerRefusedError: it cannot be looked at.
        HandoverError: records are asked for, and the plan has no digest of them.
    """
    found = []
    async with open_command_store(session) as store:
        for planned in plan.partitions:
            owner = planned.owner
            say(f"comparing its partitions: {owner}")
            view = await session.partition(owner.topic, owner.partition)
            if view.topic_id_partition.topic_id != owner.topic_id:
                raise HandoverError(subject=str(owner), reason="the topic was created again since the plan")
            faults = [*await _log_start_faults(session, planned, view), *await _replica_faults(session, planned, view)]
            listed = await list_objects_of(store, owner, session.config.store.key_prefix)
            kept, gone = _objects(planned, listed, session.config.store.key_prefix)
            one = VerifiedPartition(owner=owner, kept=kept, gone=gone, waiting=0, added=0, faults=tuple(faults))
            found.append(await _with_records(session, planned, one, say) if reads_records else one)
    return found


def _objects(planned: PlannedPartition, listed: dict[str, int], key_prefix: str) -> tuple[int, int]:
    """Return how many of the planned segments have their objects still, and how many have not: nothing needs them any more."""
    segments = {one.segment.remote_log_segment_id.uuid: one.segment for one in planned.pieces}.values()
    kept = sum(all(key in listed for key in plugin_keys(one, key_prefix).in_upload_order) for one in segments)
    return kept, len(segments) - kept


async def _log_start_faults(session: Session, planned: PlannedPartition, view: LeaderView) -> list[str]:
    now = await session.offset(view, OffsetSpec.EARLIEST)
    state = session.state.partition_state(planned.owner)
    deleted_to = max(planned.log_start_offset, state.start_in(Lineage.of(planned.leader_epochs)))
    return list(log_start_faults(planned, now, deleted_to))


def log_start_faults(planned: PlannedPartition, now: int, deleted_to: int) -> Iterator[str]:
    """Yield what is wrong with a log that begins at ``now``, where users have deleted what is below ``deleted_to``."""
    given_up = [stop for start, stop in planned.gaps if start == planned.log_start_offset]
    latest = max([deleted_to, *given_up])
    if now > latest:
        yield (
            f"its log starts at {now}, and was to start at {latest}: a replica that was not restored led it, or retention is "
            "on. The records are in the store: start again with a new plan"
        )
    elif now < deleted_to:
        owner = planned.owner
        deletion = f'{{"topic": "{owner.topic}", "partition": {owner.partition}, "offset": {deleted_to}}}'
        yield (
            f"its log starts at {now}, and users have deleted what is below {deleted_to}: "
            f"kafka-delete-records.sh with {deletion}"
        )


async def _replica_faults(session: Session, planned: PlannedPartition, view: LeaderView) -> list[str]:
    """Return faults of the replicas: one that lacks what was restored has too few bytes, which would show once it leads."""
    faults = []
    if behind := sorted(set(map(int, view.replicas)) - set(map(int, view.in_sync_replicas))):
        faults.append(f"replicas {', '.join(map(str, behind))} are not in sync")
    least = least_bytes(planned)
    for broker_id in map(int, view.replicas):
        try:
            uses = await session.broker.describe_log_dirs(
                BrokerId(broker_id), planned.owner.topic, [planned.owner.partition]
            )
        except (BrokerRefusedError, BrokerUnreachableError) as error:
            faults.append(f"the replica of broker {broker_id} cannot be looked at: {error}")
            continue
        has = sum(use.partition_bytes.get(planned.owner.partition, 0) for use in uses)
        if not uses:
            faults.append(f"broker {broker_id} shows no log dir of it: Describe on the cluster is needed")
        elif has < least:
            faults.append(
                f"the replica of broker {broker_id} has {size_text(has)}, and the restored segments alone {size_text(least)}: "
                "it lacks some of them. Restore it before it leads"
            )
    return faults


def least_bytes(planned: PlannedPartition) -> int:
    """Return what a replica has at least that lacks nothing: all segments that were copied whole."""
    return sum(
        one.segment.segment_size_in_bytes
        for one in planned.pieces
        if (one.start_offset, one.stop_offset) == (one.segment.start_offset, one.segment.next_offset)
    )


async def _with_records(
    session: Session, planned: PlannedPartition, verified: VerifiedPartition, say: Say
) -> VerifiedPartition:
    if planned.records is None or planned.committed is None:
        raise HandoverError(subject=str(planned.owner), reason="the plan has no digest of its records (--records)")
    faults = list(verified.faults)
    for before, isolation in ((planned.records, "read_uncommitted"), (planned.committed, COMMITTED)):
        now = await _digest(session, planned, before, isolation, say)
        if (now.count, now.sha256) != (before.count, before.sha256):
            place = f"from offset {before.start_offset} to {before.stop_offset}"
            faults.append(
                f"other records {place}, {isolation}: {now.count:,} now, {before.count:,} at the time of the plan"
            )
    return replace(verified, records=planned.records.count, faults=tuple(faults))


async def _digest(
    session: Session, planned: PlannedPartition, before: RecordsDigest, isolation: str, say: Say
) -> RecordsDigest:
    config = session.config
    start, stop = before.start_offset, before.stop_offset
    servers = bootstrap_servers(config.broker)
    return await digest_records(config, servers, planned.owner, start, stop, say, isolation=isolation)

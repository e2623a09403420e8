"""``handover back-to-local``: the data that go back to the brokers' disks, the obstacles to it, and the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiersidecar.app.commands.recover import running_sidecars
from tiersidecar.app.commands.session import Session
from tiersidecar.app.commands.tables import size, table
from tiersidecar.app.handover.look import (
    Histories,
    leader_epochs_of,
    list_objects_of,
    open_command_store,
    open_histories,
    sizes_of,
)
from tiersidecar.app.handover.plan import Plan, PlannedPartition, PlannedPiece, PlannedSegment, write_plan
from tiersidecar.app.handover.replicas import with_replicas
from tiersidecar.app.handover.verify import with_records
from tiersidecar.decide.back_to_local import (
    REMEDIES,
    Hindering,
    Hindrance,
    PartitionReturn,
    Piece,
    ReturnView,
    decide_return,
)
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import PauseKind, TieringMode
from tiersidecar.domain.readable import size_text
from tiersidecar.domain.segments import LeaderView, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.state_records import segments_of
from tiersidecar.ports.store import Store
from tiersidecar.reading.lineage import StateLogStarts
from tiersidecar.reading.segment_lookup import SegmentLookup

Say = Callable[[str], None]
_SETTLED = {"retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenReturn:
    """A partition as it was seen, and the decision on it.  ``object_bytes`` are the sizes of its objects by key."""

    plan: PartitionReturn
    broker_log_start_offset: Offset
    high_watermark: Offset
    object_bytes: Mapping[str, int]
    replicas: tuple[int, ...]

    @property
    def missing_bytes(self) -> int:
        """Return about how many bytes a replica lacks that begins where the leader does."""
        border = self.broker_log_start_offset
        cut = (replace(one, stop=Offset(min(one.stop, border))) for one in self.plan.pieces if one.start < border)
        return sum(one.size_bytes for one in cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRoom:
    """Bytes that one log dir is to take, and bytes that its volume has left; -1 where they are not known."""

    broker_id: int
    log_dir: str
    missing_bytes: int
    usable_bytes: int

    @property
    def is_enough(self) -> bool:
        return self.usable_bytes < 0 or self.missing_bytes <= self.usable_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnLook:
    """Everything that a return is decided on; ``hindrances`` are those of topics, by name."""

    cluster_id: str
    topics: tuple[str, ...]
    partitions: tuple[SeenReturn, ...]
    hindrances: tuple[tuple[str, Hindering], ...]
    rooms: tuple[BrokerRoom, ...]
    brokers: Mapping[int, str]
    key_prefix: str
    notes: tuple[str, ...] = ()

    def obstacles(self) -> Iterator[str]:
        """Yield what has to be done first."""
        for subject, one in self._all():
            yield f"{subject}: {one.hindrance}: {one.detail}"
        for room in self.rooms:
            if not room.is_enough:
                yield (
                    f"broker {room.broker_id}: {room.log_dir} has {size_text(room.usable_bytes)} left, and "
                    f"{size_text(room.missing_bytes)} go there"
                )

    def remedies(self) -> Iterator[str]:
        """Yield what to do about them, each kind once."""
        topic = self.topics[0] if len(self.topics) == 1 else "TOPIC"
        for kind in dict.fromkeys(one.hindrance for _, one in self._all()):
            yield f"{kind}: {REMEDIES[kind]}".replace("TOPIC", topic)

    def _all(self) -> Iterator[tuple[str, Hindering]]:
        yield from self.hindrances
        for partition in self.partitions:
            for one in partition.plan.hindrances:
                yield str(partition.plan.owner), one


async def look_back_to_local(session: Session, topics: Sequence[str], say: Say, *, accepts_gaps: bool) -> ReturnLook:
    """Look at ``topics`` as they are to go back.

    Raises:
        BrokerRefusedError: there is no such topic, or a leader changed meanwhile.
        TiersidecarError: brokers, topics or the store cannot be read.
    """
    session.config.require_one_place("the way back to local")
    hindrances: list[tuple[str, Hindering]] = []
    found: list[SeenReturn] = []
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_command_store(session))
        for topic in topics:
            views = await session.partitions(topic)
            configs = (await session.broker.describe_topic_configs([topic])).get(topic, {})
            topic_id = views[0].topic_id_partition.topic_id
            hindrances += [(topic, one) for one in _of_topic(session, topic_id, configs)]
            say(f"reading the events of {topic}")
            histories = await open_histories(session, stack, store, [view.topic_id_partition for view in views])
            looked = _Looked(session, histories, store, accepts_gaps=accepts_gaps)
            for view in views:
                say(f"looking at its partitions: {view.topic_id_partition}")
                found.append(await looked.see(view))
    cluster = await session.broker.describe_cluster()
    say("asking the brokers for their log dirs")
    rooms, notes = await _rooms(session, found)
    return ReturnLook(
        cluster_id=cluster.cluster_id,
        topics=tuple(topics),
        partitions=tuple(found),
        hindrances=tuple(hindrances),
        rooms=tuple(rooms),
        brokers={int(one): at for one, at in cluster.brokers.items()},
        key_prefix=session.config.store.key_prefix,
        notes=tuple(notes),
    )


def _of_topic(session: Session, topic_id: Uuid, configs: Mapping[str, str | None]) -> Iterator[Hindering]:
    if (configs.get("remote.storage.enable") or "").lower() == "true":
        yield Hindering(hindrance=Hindrance.NATIVE, detail="remote.storage.enable is true")
    if "compact" in (configs.get("cleanup.policy") or ""):
        yield Hindering(hindrance=Hindrance.COMPACTED, detail=f"cleanup.policy is {configs['cleanup.policy']}")
    state = session.topic_state(topic_id)
    if state is None or state.mode != TieringMode.DETACHED:
        mode = "as configured" if state is None else state.mode
        yield Hindering(hindrance=Hindrance.NOT_DETACHED, detail=f"its tiering is on ({mode})")
    if wrong := [f"{name} is {configs.get(name)}" for name, value in _SETTLED.items() if configs.get(name) != value]:
        yield Hindering(hindrance=Hindrance.RETENTION, detail=", ".join(wrong))
    if not session.state.why_paused(topic_id, PauseKind.DELETES) and (running := running_sidecars(session)):
        nodes = ", ".join(map(str, running))
        yield Hindering(
            hindrance=Hindrance.DELETES, detail=f"sidecars run beside brokers {nodes}, and its deletes are not paused"
        )


class _Looked:
    """Partitions of one topic, while they are looked at."""

    def __init__(self, session: Session, histories: Histories, store: Store, *, accepts_gaps: bool) -> None:
        self._session, self._histories, self._store = session, histories, store
        self._accepts_gaps = accepts_gaps
        self._lookup = SegmentLookup(
            metadata=histories.metadata,
            lineages=histories.lineages,
            log_starts=StateLogStarts(session.state),
            clock=session.clock,
        )

    async def see(self, view: LeaderView) -> SeenReturn:
        owner, session = view.topic_id_partition, self._session
        log_start = await session.offset(view, OffsetSpec.EARLIEST)
        high_watermark = await session.offset(view, OffsetSpec.LATEST)
        lineage = await self._histories.of(owner, await leader_epochs_of(session.broker, view, log_start))
        state = session.state.partition_state(owner)
        start = state.start_in(lineage)
        pieces = await self._pieces(owner, max(start, 0))
        prefix = session.config.store.key_prefix
        listed = await list_objects_of(self._store, owner, prefix)
        incomplete = {_uuid(one.segment) for one in pieces if min(sizes_of(one.segment, listed, prefix)) < 0}
        plan = decide_return(
            ReturnView(
                owner=owner,
                lineage=lineage,
                log_start_offset=start,
                broker_log_start_offset=log_start,
                high_watermark=high_watermark,
                pieces=tuple(pieces),
                recopied=segments_of(session.state.recopies(owner)),
                incomplete=frozenset(incomplete),
                awaits_answer=state.awaits_answer,
            ),
            accepts_gaps=self._accepts_gaps,
        )
        return SeenReturn(
            plan=plan,
            broker_log_start_offset=log_start,
            high_watermark=high_watermark,
            object_bytes=listed,
            replicas=tuple(map(int, view.replicas)),
        )

    async def _pieces(self, owner: TopicIdPartition, start: int) -> list[Piece]:
        """Return what readers are given from ``start`` on, up to the end of what is remote."""
        finished = [
            one
            for one in self._histories.metadata.list_remote_log_segments(owner)
            if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]
        entries = (entry.start_offset for one in finished for entry in one.segment_leader_epochs)
        # Behind a hole the next piece begins with a segment, or with one of its epochs.
        later = sorted({*entries, *(one.start_offset for one in finished)})
        found, at = list[Piece](), start
        while (located := await self._lookup.locate(owner, at)) is not None or later:
            if located is None:
                if (following := later.pop(0)) > at:
                    at = following
                continue
            found.append(Piece(start=Offset(at), stop=located.stop_offset, segment=located.metadata))
            at = located.stop_offset
        return found


def _uuid(segment: RemoteLogSegmentMetadata) -> Uuid:
    return segment.remote_log_segment_id.uuid


async def _rooms(session: Session, partitions: Sequence[SeenReturn]) -> tuple[list[BrokerRoom], list[str]]:
    """Return the room by log dir; a replica that begins elsewhere than its leader takes more or less, which only its broker's
    disk shows."""
    needed: dict[tuple[int, str], tuple[int, int]] = {}
    notes: list[str] = []
    by_topic: dict[tuple[int, str], dict[int, int]] = {}
    for one in partitions:
        for broker_id in one.replicas:
            by_topic.setdefault((broker_id, one.plan.owner.topic), {})[one.plan.owner.partition] = one.missing_bytes
    for (broker_id, topic), missing in sorted(by_topic.items()):
        try:
            uses = await session.broker.describe_log_dirs(BrokerId(broker_id), topic, sorted(missing))
        except (BrokerRefusedError, BrokerUnreachableError) as error:
            notes.append(f"broker {broker_id}: its log dirs cannot be looked at: {error}")
            continue
        if not uses:
            notes.append(
                f"broker {broker_id}: it shows no log dir of {topic} (Describe on the cluster): its room is unknown"
            )
        for use in uses:
            before, _ = needed.get((broker_id, use.log_dir), (0, 0))
            more = sum(missing[partition] for partition in use.partition_bytes)
            needed[broker_id, use.log_dir] = before + more, use.usable_bytes
    rooms = [
        BrokerRoom(broker_id=broker_id, log_dir=log_dir, missing_bytes=missing_bytes, usable_bytes=usable)
        for (broker_id, log_dir), (missing_bytes, usable) in needed.items()
    ]
    return rooms, notes


async def write_return(session: Session, look: ReturnLook, path: Path, records_from: str | None, say: Say) -> Plan:
    """Read the records where they are asked for, and write the plan.

    Raises:
        HandoverError: the file is there already, or cannot be written; a replica is behind; or records do not come.
    """
    planned = await with_replicas(session, [_planned(one, look.key_prefix) for one in look.partitions])
    if records_from is not None:
        planned = await with_records(session.config, records_from, planned, say, committed=True)
    plan = Plan(
        made_ms=session.clock.now_ms(),
        cluster_id=look.cluster_id,
        partitions=tuple(planned),
        to_native=False,
        back_to_local=True,
        brokers=look.brokers,
    )
    write_plan(plan, path)
    return plan


def _planned(seen: SeenReturn, key_prefix: str) -> PlannedPartition:
    plan = seen.plan
    return PlannedPartition(
        owner=plan.owner,
        log_start_offset=plan.log_start_offset,
        leader_epochs=plan.leader_epochs,
        high_watermark=seen.high_watermark,
        broker_log_start_offset=seen.broker_log_start_offset,
        copied_stop=plan.copied_stop,
        segments=tuple(
            PlannedSegment(
                uuid=_uuid(segment),
                start_offset=segment.start_offset,
                end_offset=segment.end_offset,
                size_bytes=segment.segment_size_in_bytes,
                object_bytes=sizes_of(segment, seen.object_bytes, key_prefix),
            )
            for segment in {_uuid(one.segment): one.segment for one in plan.pieces}.values()
        ),
        gaps=plan.gaps,
        pieces=tuple(
            PlannedPiece(start_offset=one.start, stop_offset=one.stop, segment=one.segment) for one in plan.pieces
        ),
    )


def return_text(look: ReturnLook) -> str:
    """Return as text what goes back of each partition, and where."""
    columns = ("partition", "log start", "brokers begin at", "segments", "goes back", "up to", "given up")
    rows = [
        (
            str(seen.plan.owner),
            seen.plan.log_start_offset,
            seen.broker_log_start_offset,
            len([one for one in seen.plan.pieces if one.start < seen.broker_log_start_offset]),
            size(seen.missing_bytes),
            min(seen.plan.copied_stop, seen.broker_log_start_offset),
            ", ".join(f"[{start}, {stop})" for start, stop in seen.plan.gaps),
        )
        for seen in look.partitions
    ]
    rooms = [
        (
            room.broker_id,
            room.log_dir,
            size(room.missing_bytes),
            size(room.usable_bytes if room.usable_bytes >= 0 else None),
        )
        for room in look.rooms
    ]
    return "\n".join([table(columns, rows), "", table(("broker", "log dir", "takes", "has left"), rooms)])


def return_document(look: ReturnLook) -> dict[str, Any]:
    """Return the look as JSON."""
    return {
        "partitions": [
            {
                "topic": seen.plan.owner.topic,
                "partition": seen.plan.owner.partition,
                "log_start_offset": seen.plan.log_start_offset,
                "broker_log_start_offset": seen.broker_log_start_offset,
                "high_watermark": seen.high_watermark,
                "missing_bytes": seen.missing_bytes,
                "pieces": [[one.start, one.stop] for one in seen.plan.pieces],
                "gaps": [list(gap) for gap in seen.plan.gaps],
                "findings": [
                    {"obstacle": one.hindrance, "detail": one.detail, "remedy": one.remedy}
                    for one in seen.plan.hindrances
                ],
            }
            for seen in look.partitions
        ],
        "log_dirs": [
            {
                "broker_id": room.broker_id,
                "log_dir": room.log_dir,
                "missing_bytes": room.missing_bytes,
                "usable_bytes": room.usable_bytes,
            }
            for room in look.rooms
        ],
    }

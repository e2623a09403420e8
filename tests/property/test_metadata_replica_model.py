"""Whatever becomes of the metadata topic: partitions become ready, or the halt says why not (S-095)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.metadata_events import FINISHED, added, updated
from tests.unit.adapters.metadata_topic.replicas import FACTS, Topic, owner, snapshot_of
from tiersidecar.adapters.metadata_topic.replica import RestoredReplica
from tiersidecar.domain.ids import TopicIdPartition, Uuid

PARTITIONS = 3
Step = tuple[str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, PARTITIONS - 1)),
        st.tuples(st.just("read"), st.integers(0, 5)),
        st.tuples(st.just("read aside"), st.integers(1, 5)),
        st.tuples(st.just("cut"), st.integers(1, 6)),
        st.tuples(st.just("new session"), st.just(0)),
        st.tuples(st.just("assign"), st.integers(1, 2**PARTITIONS - 1)),
        st.tuples(st.just("restart"), st.integers(1, 2**PARTITIONS - 1)),
    ),
    max_size=30,
)


def chosen_of(bits: int) -> list[TopicIdPartition]:
    return [owner(number) for number in range(PARTITIONS) if bits & 1 << number]


def copied(snapshot: RestoredReplica | None) -> RestoredReplica | None:
    """The file is read anew at each start."""
    if snapshot is None:
        return None
    images = [(one, one.cache.image()) for one in snapshot.partitions]
    caches = [replace(one, cache=type(one.cache).from_image(one.topic_id_partition, image)) for one, image in images]
    return replace(snapshot, partitions=tuple(caches))


class Model:
    """A topic, its replica, and which segments the topic names.  A cut shows with the next session, before anything more is
    read, as leaders change then; others may write first."""

    def __init__(self) -> None:
        self.topic, self.assigned, self.written, self.is_cut = Topic(), [owner(0)], 0, False
        self.known: dict[TopicIdPartition, set[Uuid]] = {}
        """Finished segments that each partition has known since it was assigned."""
        self.snapshot: RestoredReplica | None = None
        self.topic.start(self.assigned)

    def do(self, step: Step) -> None:
        match step:
            case "write", which:
                self.written += 1
                start = 10 * self.written
                self.topic.write(added(self.written, start, start + 9, owner=owner(which)))
                self.topic.write(updated(self.written, FINISHED, owner=owner(which)))
            case "read", count:
                self.see_cut()
                self.topic.read_live(count)
            case "read aside", count:
                self.see_cut()
                self.topic.read_separately(count)
            case "cut", count:
                self.topic.cut(max(0, len(self.topic.records) - count))
                self.is_cut = True
            case "new session", _:
                self.begin_session()
            case "assign", chosen:
                self.assigned = chosen_of(chosen)
                self.topic.replica.assign(self.assigned)
            case "restart", chosen:
                self.restart(chosen_of(chosen))

    def restart(self, assigned: list[TopicIdPartition]) -> None:
        """Stop, which writes a snapshot unless it must be kept, and start with that."""
        if self.topic.replica.is_lost:
            self.known = {}
        elif self.topic.replica.partitions[0].live:
            self.snapshot = snapshot_of(self.topic)
        fresh, saved = Topic(restored=copied(self.snapshot)), self.snapshot.partitions if self.snapshot else ()
        fresh.records, self.topic, self.assigned, self.is_cut = self.topic.records, fresh, assigned, False
        in_snapshot = {one.topic_id_partition for one in saved}
        self.known = {one: known for one, known in self.known.items() if one in in_snapshot}
        self.topic.start(assigned)

    def note_finished(self) -> None:
        ready = {partition: self.finished(partition) for partition in self.assigned if self.is_ready(partition)}
        self.known = {one: self.known.get(one, set()) | ready.get(one, set()) for one in self.assigned}

    def finished(self, partition: TopicIdPartition) -> set[Uuid]:
        segments = self.topic.replica.require(partition).list_remote_log_segments()
        return {one.remote_log_segment_id.uuid for one in segments if one.state is FINISHED}

    def see_cut(self) -> None:
        if self.is_cut:
            self.begin_session()

    def begin_session(self) -> None:
        self.is_cut = False
        self.topic.replica.begin_session(FACTS)

    def settle(self) -> None:
        """Read all that there is; a replay of the whole topic takes a second look."""
        self.begin_session()
        for _ in range(3):
            self.topic.read_live()
            self.topic.read_separately()

    def is_ready(self, partition: TopicIdPartition) -> bool:
        held = self.topic.replica.held(partition)
        return held is not None and held.is_ready

    def named(self, which: int) -> list[int]:
        """Return the segments that a replica would know that read the topic from the beginning."""
        fresh = Topic()
        fresh.records = list(self.topic.records)
        fresh.start([owner(which)])
        fresh.read_live()
        return fresh.segments(which)


@given(STEPS)
@example([("write", 0), ("write", 0), ("read", 1), ("cut", 1)]).via("the end to be reached is gone")
@example([("write", 0), ("read", 2), ("cut", 1), ("read", 1), ("assign", 2)]).via(
    "others are assigned while it is lost"
)
@example(
    [("read", 1), ("write", 0), ("read", 2), ("write", 1), ("assign", 3), ("read aside", 3), ("cut", 2), ("write", 0)]
).via("a newcomer has read what is written anew then")
@example([("write", 0), ("read", 2), ("cut", 1), ("write", 1)]).via("only the end of a copy is lost")
def test_each_partition_becomes_ready_or_the_topic_is_known_to_have_lost_data(steps: list[Step]) -> None:
    async def run() -> None:
        model = Model()
        for step in steps:
            model.do(step)
            model.note_finished()
        model.settle()
        if model.topic.replica.is_lost:
            assert model.topic.replica.halted_reason is not None
            return
        for partition in model.assigned:
            assert model.is_ready(partition), f"{partition} waits for offsets that the topic does not have"
            assert model.topic.segments(partition.partition) == model.named(partition.partition)
            if model.topic.replica.halted_reason is None:
                assert model.known.get(partition, set()) <= model.finished(partition), (
                    "what was finished is lost unseen"
                )

    asyncio.run(run())

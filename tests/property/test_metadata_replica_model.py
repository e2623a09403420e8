"""Whatever becomes of the metadata topic: partitions become ready, or the halt says why not (S-095)."""

from __future__ import annotations

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.metadata_events import FINISHED, added, updated
from tests.unit.adapters.metadata_topic.replicas import FACTS, Topic, owner
from tiersidecar.domain.ids import TopicIdPartition

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
    ),
    max_size=30,
)


class Model:
    """A topic, its replica, and which segments the topic names; cuts show with the next session, as leaders change then."""

    def __init__(self) -> None:
        self.topic, self.assigned, self.written = Topic(), [owner(0)], 0
        self.topic.start(self.assigned)

    def do(self, step: Step) -> None:
        match step:
            case "write", which:
                self.written += 1
                start = 10 * self.written
                self.topic.write(added(self.written, start, start + 9, owner=owner(which)))
                self.topic.write(updated(self.written, FINISHED, owner=owner(which)))
            case "read", count:
                self.topic.read_live(count)
            case "read aside", count:
                self.topic.read_separately(count)
            case "cut", count:
                self.topic.cut(max(0, len(self.topic.records) - count))
                self.topic.replica.begin_session(FACTS)
            case "new session", _:
                self.topic.replica.begin_session(FACTS)
            case "assign", chosen:
                self.assigned = [owner(number) for number in range(PARTITIONS) if chosen & 1 << number]
                self.topic.replica.assign(self.assigned)

    def settle(self) -> None:
        """Read all that there is; a replay of the whole topic takes a second look."""
        self.topic.replica.begin_session(FACTS)
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
def test_each_partition_becomes_ready_or_the_topic_is_known_to_have_lost_data(steps: list[Step]) -> None:
    async def run() -> None:
        model = Model()
        for step in steps:
            model.do(step)
        model.settle()
        if model.topic.replica.is_lost:
            assert model.topic.replica.halted_reason is not None
            return
        for partition in model.assigned:
            assert model.is_ready(partition), f"{partition} waits for offsets that the topic does not have"
            assert model.topic.segments(partition.partition) == model.named(partition.partition)

    asyncio.run(run())

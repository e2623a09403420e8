"""In which order the records of a deleted partition go: a read-only mount of another cluster may begin to read at any of them
(issue 21)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.support.manual_clock import ManualClock
from tests.support.metadata_events import ORDERS
from tests.support.scripted import ScriptedBroker
from tests.unit.adapters.no_clients import NoClients
from tests.unit.adapters.state_topic.test_catch_up import DELETED, FACTS
from tiersidecar.adapters.state_topic.log import TopicBasedStateLog
from tiersidecar.adapters.state_topic.replica import StateReplica
from tiersidecar.adapters.state_topic.settings import StateTopicSettings
from tiersidecar.decide.trash import NO_DELAYS, deleted_topic
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.trash import TrashKind
from tiersidecar.ports.failpoints import NO_FAILPOINTS
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.telemetry import NoTelemetry


class AppliedAtOnce:
    """What is sent has been read back; ``seen`` is what a reader that stops there knows: is there a state, and trash?"""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, bool]] = []
        self.trash: list[set[TrashKind]] = []
        settings = StateTopicSettings(bootstrap_servers="broker:1", topic="state")
        self.replica = StateReplica(
            settings, broker=ScriptedBroker(), clock=ManualClock(), ids=None, telemetry=NoTelemetry(),  # type: ignore[arg-type]
            clients=NoClients(),
        )  # fmt: skip
        self.log = TopicBasedStateLog(
            settings, replica=self.replica, producer=self, clock=ManualClock(), ids=None,  # type: ignore[arg-type]
            failpoints=NO_FAILPOINTS,
        )  # fmt: skip
        self.replica._facts, self.replica.unreachable = FACTS, None
        self.replica._ready_at, self.replica._position = 0, 0

    async def send(
        self,
        topic: str,
        *,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        sent_by_s: float | None = None,
    ) -> int:
        self.replica.fold.apply(key, value, where=topic)
        self.seen.append((self.log.partition_state(ORDERS) != PartitionState(), bool(self.log.trash(ORDERS))))
        self.trash.append({entry.kind for entry in self.log.trash(ORDERS)})
        self.replica.read_back.advance(len(self.seen))
        return len(self.seen) - 1

    async def send_batch(self, topic: str, *, partition: int, values: Sequence[bytes], timestamp_ms: int) -> int:
        raise AssertionError("each is sent for itself")

    async def close(self) -> None:
        return None


async def test_the_trash_of_a_deleted_partition_goes_after_its_state() -> None:
    topic = AppliedAtOnce()
    await topic.log.publish_partition_state(ORDERS, DELETED)
    await topic.log.put_into_trash(ORDERS, [deleted_topic(delays=NO_DELAYS, now_ms=1, by="broker 1")])
    await topic.log.forget_partition(ORDERS)
    assert topic.seen == [(True, False), (True, True), (False, True), (False, False)]


async def test_the_topics_own_entry_goes_last_for_it_tells_that_the_deletion_is_not_over() -> None:
    """Killed between two of them, the next process finds neither a state nor, without it, a reason to go on."""
    topic = AppliedAtOnce()
    whole = deleted_topic(delays=NO_DELAYS, now_ms=1, by="broker 1")
    others = [
        replace(whole, id=replace(whole.id, kind=kind, generation=2, leader_epoch=LeaderEpoch(3)))
        for kind in TrashKind
        if kind is not TrashKind.TOPIC
    ]
    await topic.log.publish_partition_state(ORDERS, DELETED)
    await topic.log.put_into_trash(ORDERS, [whole, *others])
    topic.trash.clear()
    await topic.log.forget_partition(ORDERS)
    assert all(TrashKind.TOPIC in kinds for kinds in topic.trash[:-1])
    assert (topic.trash[-2:], len(topic.trash)) == ([{TrashKind.TOPIC}, set()], 1 + len(TrashKind))

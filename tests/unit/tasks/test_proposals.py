"""What the leader's sidecar makes of proposals, honest and other ones (issue 17: little power)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import structlog

from tests.support.leaders_sidecar import CLUSTER, LeadersSidecar
from tests.support.manual_clock import ManualClock
from tests.support.scripted import MemoryStateLog, ScriptedBroker
from tests.unit.decide.test_proposals import ANEW, PROPOSAL, TOPIC_ID_PARTITION, view
from tiersidecar.adapters.proposals_topic.log import write_proposal
from tiersidecar.decide.proposals import MAX_AGE_MS, NEWS_MS
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError, LeaseLostError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.proposals import DeleteProposal
from tiersidecar.domain.trash import TrashKind
from tiersidecar.ports.metrics.retention import PROPOSALS
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.tasks.ownership import Unquestioned

DELAYS = TrashDelays(retention_ms=2_000, user_ms=1_000)


class World:
    """A leader whose log begins at 200 and ends at 246."""

    def __init__(self, **fields: Any) -> None:
        self.clock, self.broker, self.state = ManualClock(), ScriptedBroker(), MemoryStateLog()
        self.broker.views = (view(),)
        self.broker.log_starts[TOPIC_ID_PARTITION], self.broker.last_stable_offsets[TOPIC_ID_PARTITION] = 200, 246
        self.sidecar = LeadersSidecar(broker=self.broker, state=self.state, clock=self.clock, delays=DELAYS, **fields)
        self.sidecar.tiers(view())

    @property
    def start(self) -> int:
        return self.state.partition_state(TOPIC_ID_PARTITION).remote_log_start_offset

    def count(self, outcome: str) -> float:
        return self.sidecar.telemetry.value(PROPOSALS, outcome=outcome) or 0


def proposal(**fields: Any) -> DeleteProposal:
    return replace(PROPOSAL, **{"cluster_id": CLUSTER, "start_generation": 0, **fields})


async def test_a_delete_below_the_local_start_is_said_and_goes_into_the_trash_with_who_asked() -> None:
    world = World()
    await world.sidecar.propose(proposal())
    state = world.state.partition_state(TOPIC_ID_PARTITION)
    assert (state.remote_log_start_offset, state.remote_log_start_epoch, state.trim_offset) == (50, 4, -1)
    (entry,) = world.state.trash(TOPIC_ID_PARTITION)
    assert (entry.kind, entry.up_to, entry.due_ms - entry.decided_ms) == (TrashKind.USER, 50, 1_000)
    assert "User:alice (tool, 192.0.2.7)" in entry.by
    assert world.count("carried_out") == 1


async def test_a_delete_that_the_broker_has_done_is_said_with_its_trim() -> None:
    world = World()
    await world.sidecar.propose(proposal(offset=Offset(200)))
    state = world.state.partition_state(TOPIC_ID_PARTITION)
    assert (state.remote_log_start_offset, state.trim_offset, state.trim_epoch) == (200, 200, 4)


async def test_a_replayed_proposal_changes_nothing() -> None:
    world = World()
    await world.sidecar.propose(proposal())
    said, entries = world.state.partition_state(TOPIC_ID_PARTITION), world.state.trash(TOPIC_ID_PARTITION)
    world.clock.jump(60)
    for _ in range(3):
        await world.sidecar.propose(proposal())
    assert (world.state.partition_state(TOPIC_ID_PARTITION), world.state.trash(TOPIC_ID_PARTITION)) == (said, entries)


async def test_a_replayed_proposal_does_not_undo_an_undelete() -> None:
    world = World()
    await world.sidecar.propose(proposal())
    back = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(4), start_generation=1)
    await world.state.publish_partition_state(TOPIC_ID_PARTITION, back)
    await world.sidecar.propose(proposal())
    assert world.start == 0
    assert world.count("refused") == 1


async def test_a_replayed_proposal_does_not_undo_an_undelete_that_was_not_read_yet() -> None:
    """Taken for said it would be told as done, and said again it would undo what came after it."""
    world = World()
    await world.sidecar.propose(proposal())
    back = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(4), start_generation=1)
    world.state.publish_elsewhere(TOPIC_ID_PARTITION, back)
    await world.sidecar.propose(proposal())
    await world.state.catch_up()
    assert world.start == 0
    assert (world.count("carried_out"), world.count("refused")) == (1, 1)


async def test_what_cannot_be_looked_up_in_the_state_topic_is_decided_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    async def away() -> None:
        raise BrokerUnreachableError(address="127.0.0.1:9092", reason="refused")

    with monkeypatch.context() as patch:
        patch.setattr(world.state, "catch_up", away)
        await world.sidecar.propose(proposal())
    assert (world.start, world.count("refused")) == (-1, 0)
    await world.clock.advance(1)
    await world.sidecar.receive()
    assert world.start == 50


MISUSES = {
    "above the high watermark": proposal(offset=Offset(247), low_watermark=Offset(247)),
    "a huge offset": proposal(offset=Offset(2**63 - 1), low_watermark=Offset(2**63 - 1)),
    "not deleted by the broker": proposal(offset=Offset(201), low_watermark=Offset(201)),
    "of a former topic of the name": proposal(topic_id_partition=ANEW),
    "of another cluster": proposal(cluster_id="theirs"),
    "of an earlier epoch": proposal(leader_epoch=LeaderEpoch(3)),
    "not what the broker accepted": proposal(low_watermark=Offset(49)),
}


@pytest.mark.parametrize("misuse", MISUSES)
async def test_what_is_forged_is_refused_at_once_and_logged_with_who(misuse: str) -> None:
    world = World()
    with structlog.testing.capture_logs() as events:
        await world.sidecar.propose(MISUSES[misuse])
    assert not world.state.partition_states
    assert not world.state.entries
    (event,) = [one for one in events if one["event"] == "proposal.refused"]
    assert event["principal"] == "User:alice"
    assert event["client"] == "192.0.2.7"
    assert event["reason"]


async def test_what_cannot_be_read_is_logged_and_holds_up_nothing() -> None:
    world = World()
    with structlog.testing.capture_logs() as events:
        await world.sidecar.receive(b"\x00garbage", None, b"{}", write_proposal(proposal()))
    assert world.start == 50
    assert [event["reason"].partition(":")[0] for event in events if event["event"] == "proposal.refused"] == [
        "it cannot be read"
    ] * 3


async def test_a_flood_is_bounded_in_questions_and_in_events() -> None:
    world = World()
    asked = itertools.count()
    ask = world.broker.describe_partitions

    async def counted(topics: Any = None) -> Any:
        next(asked)
        return await ask(topics)

    world.broker.describe_partitions = counted  # type: ignore[method-assign]
    flood = [write_proposal(proposal(offset=Offset(300 + n), low_watermark=Offset(300 + n))) for n in range(99)]
    with structlog.testing.capture_logs() as events:
        await world.sidecar.receive(*flood, write_proposal(proposal()))
        await world.clock.advance(1)
        await world.sidecar.receive()
    assert world.start == 50, "an honest one among them is carried out"
    assert next(asked) == 1
    assert [event["event"] for event in events if "refused" in event["event"]] == ["proposal.refused"] * 5 + [
        "proposals.refused"
    ]
    assert world.count("refused") == 99


async def test_topics_that_the_broker_has_not_shown_us_are_not_asked_for() -> None:
    """It would refuse the whole question, and with it all honest proposals."""
    world = World()
    asked = list[Any]()
    ask = world.broker.describe_partitions

    async def noted(topics: Any = None) -> Any:
        asked.append(topics)
        return await ask(topics)

    world.broker.describe_partitions = noted  # type: ignore[method-assign]
    hidden = TopicIdPartition(topic_id=TOPIC_ID_PARTITION.topic_id, topic="secret", partition=0)
    forged = [proposal(topic_id_partition=replace_topic_id_partition(hidden, number)) for number in range(3000)]
    for begin in range(0, 3000, 100):
        await world.sidecar.receive(*(write_proposal(one) for one in forged[begin : begin + 100]))
    await world.sidecar.propose(proposal())
    assert world.start == 50
    assert asked == [["orders"]]
    assert world.count("refused") == 3000 - 1000, "a thousand wait, and no more"
    await world.clock.advance(MAX_AGE_MS / 1000 + 1)
    await world.sidecar.receive(b"")
    assert world.count("refused") == 3001


async def test_a_topic_that_may_not_be_described_puts_off_only_its_own() -> None:
    world = World()
    ask, refused = world.broker.describe_partitions, {"mine", "yours"}
    world.sidecar.table.topic_ids = {**world.sidecar.table.topic_ids, "mine": ANEW.topic_id, "yours": ANEW.topic_id}

    async def describe(topics: Any = None) -> Any:
        if not refused.isdisjoint(topics):
            raise BrokerRefusedError(api="Metadata", subject="a topic", error="TOPIC_AUTHORIZATION_FAILED")
        return await ask(topics)

    world.broker.describe_partitions = describe  # type: ignore[method-assign]
    hidden = [replace(TOPIC_ID_PARTITION, topic=topic, topic_id=ANEW.topic_id) for topic in sorted(refused)]
    forged = [write_proposal(proposal(topic_id_partition=topic_id_partition)) for topic_id_partition in hidden]
    await world.sidecar.receive(*forged, write_proposal(proposal()))
    assert (world.start, world.count("refused")) == (50, 0)
    await world.clock.advance(NEWS_MS / 1000 + 1)
    await world.sidecar.receive(b"")
    assert world.count("refused") == 1 + 2


async def test_a_flood_of_generations_to_come_leaves_places_to_others_and_does_not_last() -> None:
    world = World()
    other = replace(TOPIC_ID_PARTITION, partition=1)
    honest = proposal(topic_id_partition=other)
    await world.sidecar.propose(honest)
    absurd = [proposal(start_generation=2**63 - 1, client_id=str(number)) for number in range(1200)]
    for begin in range(0, 1200, 100):
        await world.sidecar.receive(*(write_proposal(one) for one in absurd[begin : begin + 100]))
    assert (world.start, world.count("refused")) == (-1, 1200 + 1 - 1000)
    seen = view()
    world.broker.views = (seen, replace(seen, topic_id_partition=other))
    world.broker.log_starts[other], world.broker.last_stable_offsets[other] = 200, 246
    world.sidecar.tiers(world.broker.views[1])
    await world.clock.advance(NEWS_MS / 1000 - 1)
    await world.sidecar.receive(b"")
    assert world.state.partition_state(other).remote_log_start_offset == 50
    await world.clock.advance(2)
    await world.sidecar.receive(b"")
    assert world.count("refused") == 1200 + 2, "an undelete that nobody has heard of for so long is none"


async def test_partitions_that_a_topic_does_not_have_take_one_group_of_places() -> None:
    """E4: each number was a group of its own, and a thousand of them pushed out who waits for an election."""
    world = World()
    forged = [
        proposal(topic_id_partition=replace_topic_id_partition(TOPIC_ID_PARTITION, 1000 + n)) for n in range(1200)
    ]
    for begin in range(0, 1200, 100):
        await world.sidecar.receive(*(write_proposal(one) for one in forged[begin : begin + 100]))
    await world.sidecar.propose(proposal(leader_epoch=LeaderEpoch(5)))
    world.broker.views = (replace(view(), leader_epoch=LeaderEpoch(5)),)
    await world.clock.advance(1)
    await world.sidecar.receive()
    assert world.start == 50


def replace_topic_id_partition(topic_id_partition: TopicIdPartition, partition: int) -> TopicIdPartition:
    return TopicIdPartition(topic_id=topic_id_partition.topic_id, topic=topic_id_partition.topic, partition=partition)


class NoRole(Unquestioned):
    """Another process has the lease, until ``has_role``."""

    has_role = False

    def require_role(self) -> None:
        if not self.has_role:
            raise LeaseLostError(reason="standing by")


async def test_without_the_lease_nothing_is_said_and_with_it_again_it_is() -> None:
    ownership = NoRole()
    world = World(ownership=ownership)
    await world.sidecar.propose(proposal())
    assert not world.state.partition_states
    ownership.has_role = True
    await world.clock.advance(1)
    await world.sidecar.receive()
    assert world.start == 50


async def test_a_broker_that_is_away_only_delays() -> None:
    world = World()
    ask = world.broker.describe_partitions

    async def away(topics: Any = None) -> Any:
        raise BrokerUnreachableError(address="127.0.0.1:9092", reason="refused")

    world.broker.describe_partitions = away  # type: ignore[method-assign]
    await world.sidecar.propose(proposal())
    assert world.start == -1
    world.broker.describe_partitions = ask  # type: ignore[method-assign]
    await world.clock.advance(1)
    await world.sidecar.receive()
    assert world.start == 50


async def test_a_leader_that_has_just_changed_is_asked_again() -> None:
    """ListOffsets is fenced by the epoch: its answer is of this history or none."""
    world = World()
    world.broker.error = "FENCED_LEADER_EPOCH"
    await world.sidecar.propose(proposal())
    assert world.start == -1
    world.broker.views, world.broker.error = (view(epoch=5),), None
    await world.clock.advance(1)
    await world.sidecar.receive()
    assert world.start == -1
    assert world.count("refused") == 1, "of an earlier epoch by now"


async def test_what_another_broker_leads_is_left_to_it() -> None:
    world = World()
    world.broker.views = (view(leader=2),)
    await world.sidecar.propose(proposal())
    assert world.start == -1
    assert world.count("refused") == 0


async def test_who_asked_for_what_is_told_whether_it_is_carried_out_or_refused() -> None:
    """An operator who looks for a deletion finds it by any of these."""
    world = World()
    facts = {
        "topic": "orders",
        "partition": 0,
        "offset": 50,
        "leader_epoch": 4,
        "principal": "User:alice",
        "client_id": "tool",
        "client": "192.0.2.7",
        "gateway": 1,
    }
    with structlog.testing.capture_logs() as events:
        await world.sidecar.propose(proposal())
        await world.sidecar.propose(proposal(cluster_id="theirs"))
    (done,) = [event for event in events if event["event"] == "records.deleted"]
    (refused,) = [event for event in events if event["event"] == "proposal.refused"]
    assert done == {**facts, "event": "records.deleted", "log_level": "info", "remote_log_start_offset": 50}
    assert refused.items() >= {**facts, "log_level": "warning"}.items()
    assert "at" in refused


@pytest.mark.parametrize("early_s", [-3600, 3600])
async def test_the_clocks_of_two_machines_may_be_an_hour_apart(early_s: int) -> None:
    """The broker has done its part: taken for old, or for news that never came, the delete would be half done for ever."""
    world = World()
    world.clock.jump(early_s)
    to_come = proposal(proposed_ms=PROPOSAL.proposed_ms)
    world.broker.views = ()
    await world.sidecar.propose(to_come)
    world.broker.views = (view(),)
    await world.clock.advance(1)
    await world.sidecar.receive()
    assert (world.start, world.count("refused")) == (50, 0)


async def test_a_replay_is_not_told_as_another_deletion() -> None:
    world = World()
    with structlog.testing.capture_logs() as events:
        await world.sidecar.propose(proposal())
        world.clock.jump(60)
        await world.sidecar.propose(proposal())
    assert [event["event"] for event in events if event["event"] == "records.deleted"] == ["records.deleted"]


async def test_a_client_without_a_name_is_told_as_one() -> None:
    world = World()
    await world.sidecar.propose(proposal(client_id=""))
    (entry,) = world.state.trash(TOPIC_ID_PARTITION)
    assert entry.by == "DeleteRecords through the gateway of broker 1: User:alice (no client id, 192.0.2.7)"


async def test_it_reads_on_from_what_is_not_too_old_to_count() -> None:
    world = World()
    asked: list[tuple[object, int]] = []

    class Topic:
        async def keep_reading(self, take: object, *, max_age_ms: int) -> None:
            asked.append((take, max_age_ms))

    task = world.sidecar.task
    task._proposals = Topic()  # type: ignore[assignment]
    await task.run()
    assert asked == [(task.take, MAX_AGE_MS)]

"""``tiersidecar compact``: which topics it refuses, what it shows, and how it ends (issue 23)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.compacted_logs import committed_records, table
from tests.unit.app.test_compact_run import NOTHING_LEFT, Beside, at_once, beside, nothing_more
from tests.unit.app.test_compact_turns import another_partition
from tests.unit.tasks.test_clean import puts, random_log
from tests.unit.tasks.test_clean_look import cleaned_in_epoch_one
from tiersidecar.app.commands.compact import Wanted, look_at_compaction
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import Pause, PausedThing, PauseKind
from tiersidecar.ports.broker import ClusterDescription, OffsetAnswer, OffsetSpec
from tiersidecar.tasks.rewriting_commands import LEAST_SETTLE_S

__all__ = ["beside"]


def wanted(there: Beside, partition: int | None = None) -> Wanted:
    return Wanted(topic=there.world.owner.topic, partition=partition, scratch=there.scratch)


def enabled(there: Beside) -> Beside:
    config = there.session.config.model_copy(update={"compaction_enabled": True})
    return replace(there, session=replace(there.session, config=config))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("not tiered", "is not tiered"),
        ("not compacted", "cleanup.policy has no compact"),
        ("not enabled", "compacted topics are tiered with compaction.enabled alone"),
        ("native", "the broker tiers the topic itself"),
        ("deletes paused", "deletes and trims are paused"),
        ("copies paused", "copying is paused"),
        ("a broker without a sidecar", "brokers 3 have no sidecar of this version yet"),
    ],
)
async def test_topics_of_which_nothing_is_cleaned(
    beside: Beside, case: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = beside.world
    await world.add(*random_log(1))
    there = beside if case == "not enabled" else enabled(beside)
    if case == "not tiered":
        del world.state.topics[world.owner.topic_id]
    if case == "not compacted":
        world.configure(cleanup_policy="delete")
    if case == "native":
        world.configure(remote_storage_enable="true")
    if case.endswith("paused"):
        kind = PauseKind.DELETES if case.startswith("deletes") else PauseKind.COPIES
        thing = PausedThing(kind=kind, topic_id=world.owner.topic_id)
        await world.state.publish_pause(Pause(thing=thing, topic=world.owner.topic, since_ms=0, by="an operator"))
    if case == "a broker without a sidecar":

        async def describe_cluster() -> ClusterDescription:
            return ClusterDescription(cluster_id="scripted", brokers={BrokerId(3): "broker:9092"})

        monkeypatch.setattr(world.broker, "describe_cluster", describe_cluster)
    assert reason in (await look_at_compaction(there.session, wanted(there))).refusal


async def test_a_partition_that_is_not_there_is_an_error(beside: Beside) -> None:
    with pytest.raises(BrokerRefusedError):
        await look_at_compaction(enabled(beside).session, wanted(beside, partition=7))


async def test_it_shows_what_is_dirty_and_then_cleans_it(beside: Beside) -> None:
    there, log = enabled(beside), random_log(8, steps=60)
    await beside.world.add(*log)
    beside.world.configure(min_cleanable_dirty_ratio="1")
    end, size = log[-1].next_base_offset, sum(len(one.log) for one in log)
    intent = await look_at_compaction(there.session, wanted(there))
    assert (intent.facts["cleanable_segments"], intent.facts["cleanable_bytes"]) == (len(log), size)
    (step,) = intent.steps
    assert step.startswith(
        f"partition 0: clean {len(log)} dirty segments of {size} bytes, offsets 0 to {end - 1}, and 0 bytes"
    )
    assert intent.apply is not None
    waited = list[str]()

    async def wait() -> None:
        waited.append("for what the cleaner had begun")

    at_once(beside, LEAST_SETTLE_S, wait)
    outcome = await intent.apply()
    assert len(waited) == 1
    assert outcome is not None
    (cleaned,) = outcome["cleaned"]
    assert (outcome["complete"], cleaned["rounds"], cleaned["clean_up_to"]) == (True, 1, end)
    assert (cleaned["left"], cleaned["then"]) == (None, NOTHING_LEFT)
    assert cleaned["bytes_after"] < cleaned["bytes_before"] <= size
    assert await beside.world.table_read() == table(committed_records(log))


async def test_where_nothing_is_dirty_or_the_chain_ends_it_says_so(beside: Beside) -> None:
    there = enabled(beside)
    await beside.world.add(puts(0, (b"a", b"1")), puts(5, (b"a", b"2")))
    intent = await look_at_compaction(there.session, wanted(there, partition=0))
    assert intent.notes == ("partition 0: nothing from offset 1 on: no segment holds offsets 1 to 4",)
    await beside.compact()
    intent = await look_at_compaction(there.session, wanted(there))
    assert intent.steps == ()
    assert intent.notes == (f"partition 0: {NOTHING_LEFT}; no segment holds offsets 1 to 4",)


async def test_a_partition_that_nobody_leads_is_said_and_the_others_are_cleaned(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, log = enabled(beside), random_log(3)
    await beside.world.add(*log)
    second = await another_partition(beside)
    list_offsets = beside.broker.list_offsets

    async def without_leader(
        partitions: Mapping[TopicIdPartition, LeaderEpoch], spec: OffsetSpec | int, *, read_committed: bool = False
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        answers = await list_offsets(partitions, spec, read_committed=read_committed)
        gone = answers.keys() & {second}
        return answers | {one: replace(answers[one], error="LEADER_NOT_AVAILABLE") for one in gone}

    monkeypatch.setattr(beside.broker, "list_offsets", without_leader)
    intent = await look_at_compaction(there.session, wanted(there))
    assert ["LEADER_NOT_AVAILABLE" in note for note in intent.notes] == [True]
    assert (len(intent.steps), intent.complete) == (1, False)
    assert intent.apply is not None
    at_once(beside, LEAST_SETTLE_S, nothing_more)
    at_once(beside, 5.0, nothing_more)  # until there is another leader
    outcome = await intent.apply()
    assert outcome is not None
    first, other = outcome["cleaned"]
    assert (outcome["complete"], first["left"], first["clean_up_to"]) == (False, None, log[-1].next_base_offset)
    assert "LEADER_NOT_AVAILABLE" in other["left"]
    with pytest.raises(BrokerRefusedError):
        await look_at_compaction(there.session, wanted(there, partition=1))


async def test_where_an_unclean_election_left_the_remote_log_without_keys_it_is_not_done(beside: Beside) -> None:
    """There may be nothing to clean: then the exit code is 3, since an operator has to have the topic copied again."""
    there = enabled(beside)
    await cleaned_in_epoch_one(beside.world)
    beside.elect(1, (0, 0), (1, 2))
    assert (await look_at_compaction(there.session, wanted(there))).complete is None
    beside.elect(2, (0, 0), (2, 2))
    intent = await look_at_compaction(there.session, wanted(there))
    assert intent.complete is False
    assert any("the remote log may lack keys" in note for note in intent.notes)

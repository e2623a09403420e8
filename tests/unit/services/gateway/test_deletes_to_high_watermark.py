"""A delete of offset -1 is of the high watermark at its moment, and of nothing that came later (issue 17).

A committer's tests on real brokers.  Of a delete that one replica was late for, the broker told REQUEST_TIMED_OUT after its
wait.  Meanwhile 200 records had come, were copied, and the local start was trimmed to 126; the high watermark had been 101.
The gateway took the start for what was deleted, and 25 records were lost that came after the delete.  The mend of that had
seven faults of its own (J1 to J8 here), most of a kind: something failed once the broker had deleted, and the client asked
again, for more.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from itertools import chain, count, repeat
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from tests.support.gateway_deletes import (
    DELETE_RECORDS,
    LOCAL_START,
    MARK,
    OTHERS,
    VERSION,
    WAIT,
    Between,
    Broker,
    Deletes,
    Row,
    asked_for,
    audited,
    nothing,
    request_of,
    response_of,
)
from tests.support.gateway_world import World
from tests.support.leaders_sidecar import lease_of
from tests.support.manual_clock import ManualClock
from tests.unit.services.gateway.test_asked_and_answered import (
    ASKED_AT,
    deletes,
    led_in,
    world_before,
)
from tests.unit.services.gateway.test_deletes_of_new_topics import becomes_known_later, is_set_back, make_new
from tiersidecar.domain.errors import BrokerUnreachableError, MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.proposals import DeleteProposal
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.reading.segment_lookup import OffsetBounds
from tiersidecar.services.gateway import delete_records_rewrite
from tiersidecar.services.gateway.delete_records_rewrite import DeleteRecordsRewrite
from tiersidecar.services.gateway.exchange import UpstreamClosedError
from tiersidecar.services.gateway.tiered_partitions import TieredView


async def deleted(world: World, rewrite: DeleteRecordsRewrite, between: Between = nothing, **asked: Any) -> Row:
    return (await asked_for(world, rewrite, between, **asked)).rows[key_of(world)]


def key_of(world: World) -> tuple[str, int]:
    return world.partition.topic, world.partition.partition


def tier_partitions(world: World, number_of: int, monkeypatch: pytest.MonkeyPatch) -> list[TopicIdPartition]:
    """So many of the world's topic, of which nothing is remote."""
    known, (view, *_) = [replace(world.partition, partition=number) for number in range(number_of)], world.broker.views
    world.tiered.known = known
    world.broker.views = tuple(replace(view, topic_id_partition=one) for one in known)
    for one in known:
        world.broker.last_stable_offsets[one] = MARK

    async def empty(partition: Any) -> OffsetBounds:
        return OffsetBounds(start=Offset(0), end=Offset(0), log_start=Offset(0))

    monkeypatch.setattr(world.path.reader, "bounds", empty)
    return known


ASK_AGAIN = (ErrorCode.request_timed_out, -1)


async def test_it_is_asked_for_up_to_0_first_and_then_with_its_number() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker, key = Broker(world), key_of(world)
        with capture_logs() as logs:
            asked = await asked_for(world, rewrite)
        assert (asked.first, broker.asked) == ({key: 0}, [{key: MARK}])
        assert asked.rows == {key: (ErrorCode.none, MARK)}
        assert [one.offset for one in sidecar.proposed] == [MARK]
        assert audited(logs) == [(key[0], MARK, "none")]


async def test_what_is_not_tiered_goes_as_it_is_with_the_first_step() -> None:
    """Behind it, a client over its quota had to wait: a topic that was made anew meanwhile lost all of its records (G0), as did
    one that waited with the others for all that they need (N6)."""
    async with world_before(nothing) as world:
        rewrite, _ = deletes(world)
        broker, key = Broker(world), key_of(world)
        with capture_logs() as logs:
            asked = await asked_for(world, rewrite, also={(OTHERS, 0): -1, (OTHERS, 1): 7})
        assert asked.first == {key: 0, (OTHERS, 0): -1, (OTHERS, 1): 7}
        assert broker.asked == [{key: MARK}]
        assert list(asked.rows) == [key, (OTHERS, 0), (OTHERS, 1)]
        assert sorted(audited(logs)) == [(OTHERS, -1, "none"), (OTHERS, 7, "none"), (key[0], MARK, "none")]
        assert (world.connection.deletes_under_way, world.connection.asker.asked_at) == ({}, None), (
            "of an idle connection"
        )


@pytest.mark.parametrize("also_allowed", [False, True])
async def test_who_may_not_delete_gets_the_broker_s_own_answer(*, also_allowed: bool) -> None:
    """E1: that of another order, after a second question, told of a topic that one may not see that it is tiered."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker, error = Broker(world), ErrorCode.topic_authorization_failed
        refused = {key_of(world): error} if also_allowed else {key_of(world): error, (OTHERS, 0): error}
        asked = await asked_for(world, rewrite, also={(OTHERS, 0): 7}, refuses=refused)
        assert (asked.is_passed, broker.asked, sidecar.proposed) == (True, [], [])


@pytest.mark.parametrize("late_s", [0.0, 2.5])
async def test_behind_what_waits_for_its_followers_it_is_asked_for_again(
    late_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: what has come meanwhile was deleted as well."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker, times = Broker(world), chain((0.0,), repeat(late_s))
        monkeypatch.setattr(rewrite._clock, "monotonic_s", lambda: float(next(times)))
        asked = await asked_for(world, rewrite, also={(OTHERS, 0): 7})
        expected = (ASK_AGAIN, 0, 0) if late_s else ((ErrorCode.none, MARK), 1, 1)
        assert (asked.rows[key_of(world)], len(broker.asked), len(sidecar.proposed)) == expected
        assert asked.rows[OTHERS, 0] == (ErrorCode.none, LOCAL_START)


async def test_what_not_all_followers_had_in_time_is_no_more_than_it_was_then() -> None:
    """The start has been trimmed further while the broker waited for them."""
    async with world_before(nothing) as world:
        world.broker.log_starts[world.partition] = 240
        rewrite, sidecar = deletes(world)
        Broker(world, {key_of(world): ASK_AGAIN})
        row = await deleted(world, rewrite)
        assert row == ASK_AGAIN
        assert [one.offset for one in sidecar.proposed] == [MARK]


async def test_who_has_waited_for_a_late_replica_has_not_to_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is proposed all the same: else nothing remote was deleted until the replica is back."""

    async def never_said(*_: object) -> None:
        await asyncio.Event().wait()

    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        monkeypatch.setattr(rewrite._remote, "_until_said", never_said)
        Broker(world, {key_of(world): ASK_AGAIN})
        async with asyncio.timeout(2):
            row = await deleted(world, rewrite)
        assert (row, len(sidecar.proposed)) == (ASK_AGAIN, 1)


@pytest.mark.parametrize("error", [ErrorCode.topic_authorization_failed, ErrorCode.policy_violation])
async def test_who_may_not_delete_is_told_so_and_no_more_is_asked(error: ErrorCode) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world)
        row = await deleted(world, rewrite, refuses={key_of(world): error})
        assert (row, broker.asked, sidecar.proposed) == ((error, -1), [], [])


async def test_what_was_refused_is_not_asked_for_again_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """J1: by then the broker led it, and took the 0 of the first request; its client was told that all was deleted."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        for one in tier_partitions(world, 2, monkeypatch):
            sidecar.tiers(next(view for view in world.broker.views if view.topic_id_partition == one))
        broker, key = Broker(world), key_of(world)
        other, error = (key[0], 1), ErrorCode.not_leader_or_follower
        asked = await asked_for(world, rewrite, also={other: 7}, refuses={key: error})
        assert asked.rows == {key: (error, -1), other: (ErrorCode.none, 7)}
        assert broker.asked == [{other: 7}]


async def test_a_row_that_is_missing_in_the_second_answer_is_asked_for_again() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        Broker(world)
        world.upstream.answers[DELETE_RECORDS] = lambda version, body: response_of({})
        with capture_logs() as logs:
            assert (await deleted(world, rewrite), sidecar.proposed) == (ASK_AGAIN, [])
        assert audited(logs) == [(world.partition.topic, MARK, "unknown")]


async def test_what_is_refused_the_second_time_is_refused() -> None:
    error = ErrorCode.topic_authorization_failed
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world, {key_of(world): (error, -1)})
        assert (await deleted(world, rewrite), len(broker.asked), sidecar.proposed) == ((error, -1), 1, [])


# -- nothing is deleted that could not be deleted remotely too


def is_elected_unseen(world: World) -> None:
    led_in(world, ASKED_AT + 1)


def has_no_high_watermark(world: World) -> None:
    world.broker.error = "LEADER_NOT_AVAILABLE"


def has_lost_its_sidecar(world: World) -> None:
    """J6: each try moved the broker's start, for as long as a client went on."""
    world.state.leases["1"] = replace(lease_of(1), released=True)


def is_not_known_any_more(world: World) -> None:
    world.tiered.is_ready = False


@pytest.mark.parametrize(
    "between",
    [
        is_elected_unseen,
        has_no_high_watermark,
        has_lost_its_sidecar,
        is_not_known_any_more,
    ],
)
async def test_nothing_is_deleted_where_it_could_not_be_deleted_remotely(between: Between) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world)
        with capture_logs() as logs:
            row = await deleted(world, rewrite, between)
        assert (row, broker.asked, sidecar.proposed, audited(logs)) == (ASK_AGAIN, [], [], [])


def is_elected_on_disk(world: World) -> None:
    later = LeaderEpoch(ASKED_AT + 1)
    led_in(world, later)
    world.tiered.on_disk = TieredView(topic_id_partition=world.partition, leader_epoch=later)


def is_made_anew(world: World) -> None:
    make_new(world, topic_id=Uuid(b"the later topic."))


@pytest.mark.parametrize("change", [is_elected_on_disk, is_made_anew, is_set_back])
async def test_nor_where_it_has_become_another_since_it_was_made_ready(
    change: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1: the high watermark of one partition grew old while another was waited for, and was deleted from the topic of the
    same name that had been made meanwhile."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker, read = Broker(world), rewrite._remote.high_watermarks

        async def changed(partitions: Any) -> Any:
            change(world)
            return await read(partitions)

        monkeypatch.setattr(rewrite._remote, "high_watermarks", changed)
        assert (await deleted(world, rewrite), broker.asked, sidecar.proposed) == (ASK_AGAIN, [], [])


@pytest.mark.parametrize("also", [{}, {(OTHERS, 0): 7}], ids=["this process stood still", "the broker waited"])
@pytest.mark.parametrize("change", [is_elected_on_disk, is_made_anew])
async def test_nor_where_it_has_become_another_before_the_first_answer_was_read(
    change: Between, also: Deletes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E0: the answer lay unread for a second; what was found on the disk then was taken for what it was of."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker, times = Broker(world), chain((0.0,), repeat(1.0))
        monkeypatch.setattr(rewrite._clock, "monotonic_s", lambda: float(next(times)))
        asked = await asked_for(world, rewrite, change, also=also)
        assert (asked.rows[key_of(world)], broker.asked, sidecar.proposed) == (ASK_AGAIN, [], [])


NOW_MS, LASTS_MS = 1_700_000_000_000, 60_000


@pytest.mark.parametrize(
    ("looks", "is_silent"),
    [
        pytest.param([(0, 0)], False, id="has just renewed its lease"),
        pytest.param([(0, -61)], True, id="had stopped long before"),
        pytest.param([(0, 0), (9, 2), (100, 40)], False, id="renews"),
        pytest.param([(0, 0), (100, 2)], True, id="has renewed it since the last delete and then died"),
        pytest.param([(0, 0), (50, 0), (61, 0)], True, id="has died since"),
        pytest.param([(0, -600)], True, id="is not known to renew, by a clock that is late"),
        pytest.param([(0, -600), (20, -585)], False, id="renews, by a clock that is late"),
        pytest.param([(0, -600), (20, -585), (81, -585)], True, id="has died, by a clock that is late"),
        pytest.param([(0, 600), (61, 600)], True, id="has died, by a clock that is early"),
    ],
)
async def test_nor_where_the_leader_s_sidecar_has_been_silent_for_long(
    looks: list[tuple[int, int]], *, is_silent: bool
) -> None:
    """N2: it was killed, and each try of a client moved the broker's start.  ``looks`` are when a delete is asked for, and when
    the lease says that it was renewed, in seconds."""
    async with world_before(nothing) as world:
        rewrite, _ = deletes(world)
        clock = ManualClock(NOW_MS)
        rewrite._remote._clock = clock
        found = None
        for at_s, renewed_s in looks:
            await clock.advance(at_s - (clock.now_ms() - NOW_MS) / 1000)
            lease = replace(lease_of(1), renewed_ms=NOW_MS + renewed_s * 1000, duration_ms=LASTS_MS)
            found = rewrite._remote._is_silent(lease)
        assert found is is_silent


async def test_nor_where_the_leader_s_sidecar_is_silent() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker, lease = Broker(world), lease_of(1)
        world.state.leases["1"] = replace(lease, renewed_ms=lease.renewed_ms - 600_000)
        assert (await deleted(world, rewrite), broker.asked, sidecar.proposed) == (ASK_AGAIN, [], [])


async def test_nor_where_the_leader_s_sidecar_is_about_to_stop() -> None:
    """Half of the deletes under way at a restart were done by the broker, and told to ask again."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world)
        world.state.leases["1"] = replace(lease_of(1), stopping=True)
        assert (await deleted(world, rewrite), broker.asked, sidecar.proposed) == (ASK_AGAIN, [], [])


async def test_but_where_only_its_clock_is_early() -> None:
    """F3: by a clock that is ten minutes early each proposal was one that its client had been answered long ago."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        Broker(world)
        lease = lease_of(1)
        world.state.leases["1"] = replace(lease, renewed_ms=lease.renewed_ms + 600_000)
        row = await deleted(world, rewrite)
        assert (row, len(sidecar.proposed)) == ((ErrorCode.none, MARK), 1)


async def test_nor_where_the_leader_s_sidecar_is_of_a_former_release() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.state.leases["1"] = lease_of(1, decides_proposals=False)
        broker = Broker(world)
        row = await deleted(world, rewrite)
        assert (row, broker.asked, sidecar.proposed) == ((ErrorCode.unsupported_version, -1), [], [])


async def test_nor_while_the_state_topic_has_not_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """J4: after each start of a gateway the first delete moved the broker's start, and was asked for again."""

    def not_read(partition: Any) -> PartitionState:
        raise MetadataNotReadyError(subject=str(partition))

    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world)
        with monkeypatch.context() as unread:
            unread.setattr(world.state, "partition_state", not_read)
            assert (await deleted(world, rewrite), broker.asked) == (ASK_AGAIN, [])
        row = await deleted(world, rewrite)
        assert (row, len(sidecar.proposed)) == ((ErrorCode.none, MARK), 1)


async def test_nor_while_the_state_topic_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of it before counts as read."""

    async def cut_off() -> None:
        raise BrokerUnreachableError(address="127.0.0.1:9092", reason="refused")

    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world)
        monkeypatch.setattr(world.state, "catch_up", cut_off)
        assert (await deleted(world, rewrite), broker.asked, sidecar.proposed) == (ASK_AGAIN, [], [])


async def test_nor_while_its_metadata_has_not_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_read(partition: Any) -> Any:
        raise MetadataNotReadyError(subject=str(partition))

    monkeypatch.setattr(delete_records_rewrite, "_LEAST_WAIT_S", 0.2)
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world)
        monkeypatch.setattr(world.path.reader, "bounds", not_read)
        assert (await deleted(world, rewrite), broker.asked, sidecar.proposed) == (ASK_AGAIN, [], [])


async def test_a_new_one_is_not_deleted_before_it_is_known() -> None:
    """J3: of 20 new partitions each went raw at once, was asked for again, and twice deleted."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        world.tiered.is_ready = False
        broker = Broker(world)
        asked = await asked_for(world, rewrite, also={(world.partition.topic, number): -1 for number in range(1, 20)})
        assert (set(asked.rows.values()), broker.asked, sidecar.proposed) == ({ASK_AGAIN}, [], [])


async def test_many_are_proposed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """N7: of 300 the second part was begun only once the first was decided, and had no time left."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        known = tier_partitions(world, 300, monkeypatch)
        Broker(world)
        all_of_them = asyncio.Barrier(len(known))

        async def proposed(proposal: DeleteProposal) -> None:
            await all_of_them.wait()
            said = PartitionState().with_delete(proposal.offset, proposal.leader_epoch, 0)
            await world.state.publish_partition_state(proposal.topic_id_partition, said)

        monkeypatch.setattr(sidecar, "propose", proposed)
        asked = await asked_for(world, rewrite, also={(world.partition.topic, one.partition): 50 for one in known[1:]})
        assert {error for error, _ in asked.rows.values()} == {ErrorCode.none}


def is_about_to_stop(world: World) -> None:
    world.state.leases["1"] = replace(lease_of(1), stopping=True)


def has_stopped(world: World) -> None:
    world.state.leases["1"] = replace(lease_of(1), released=True)


@pytest.mark.parametrize("meanwhile", [is_about_to_stop, has_stopped, has_lost_its_sidecar])
async def test_what_the_broker_has_deleted_is_proposed_whatever_has_become_of_the_sidecar(meanwhile: Between) -> None:
    """H1: one that is about to stop, or the next one, decides it."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        Broker(world, meanwhile=meanwhile)
        assert await deleted(world, rewrite) == (ErrorCode.none, MARK)
        assert [one.offset for one in sidecar.proposed] == [MARK]


async def test_a_gateway_that_is_to_stop_waits_for_second_steps_and_begins_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        begun, said = asyncio.Event(), asyncio.Event()
        broker, propose = Broker(world, meanwhile=lambda _: begun.set()), sidecar.propose

        async def proposed_later(proposal: DeleteProposal) -> None:
            await said.wait()
            await propose(proposal)

        monkeypatch.setattr(sidecar, "propose", proposed_later)
        asking = asyncio.create_task(deleted(world, rewrite), name="asking")
        await begun.wait()
        stopping = asyncio.create_task(rewrite._second_steps.end(), name="stopping")
        await asyncio.sleep(0.01)
        assert await deleted(world, rewrite) == ASK_AGAIN
        assert (stopping.done(), len(broker.asked)) == (False, 1)
        said.set()
        assert await asking == (ErrorCode.none, MARK)
        await stopping


async def test_after_an_election_its_next_try_is_of_the_later_epoch() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        Broker(world)
        assert await deleted(world, rewrite, is_elected_unseen) == ASK_AGAIN
        sidecar.tiers(led_in(world, ASKED_AT + 1))
        assert await deleted(world, rewrite) == (ErrorCode.none, MARK)
        assert [one.leader_epoch for one in sidecar.proposed] == [ASKED_AT + 1]


async def test_a_topic_that_is_new_is_waited_for_first() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        world.tiered.may_be = True
        Broker(world)
        row = await deleted(world, rewrite, becomes_known_later)
        assert (row[0], [one.offset for one in sidecar.proposed]) == (ErrorCode.none, [MARK])


async def test_the_second_answer_proves_nothing_of_what_has_changed_since() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        Broker(world, meanwhile=is_set_back)
        assert (await deleted(world, rewrite), sidecar.proposed) == (ASK_AGAIN, [])


async def test_what_is_not_tiered_goes_as_it_is() -> None:
    async with world_before(nothing) as world:
        rewrite, _ = deletes(world)
        world.tiered.known = []
        body = request_of({(world.partition.topic, 0): -1}, WAIT)
        assert rewrite.prepare(world.exchange(DELETE_RECORDS, VERSION, body)) is None


async def test_what_turns_out_not_to_be_tiered_is_the_broker_s() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        world.tiered.untiered = {world.partition.topic: world.partition.topic_id}
        broker = Broker(world, {key_of(world): (ErrorCode.none, 230)})
        row = await deleted(world, rewrite)
        assert (row, list(broker.asked[0].values()), sidecar.proposed) == ((ErrorCode.none, 230), [MARK], [])


# -- time


async def test_a_client_that_is_gone_has_nothing_deleted_for_it() -> None:
    """J5: 100 records that came after its end were deleted."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world)
        world.upstream.is_client_gone = True
        with pytest.raises(UpstreamClosedError):
            await asked_for(world, rewrite)
        exchange = world.exchange(DELETE_RECORDS, VERSION, request_of({(world.partition.topic, 0): -1}, WAIT))
        with capture_logs() as logs:
            rewrite.abandoned(exchange)
        assert (broker.asked, sidecar.proposed, audited(logs)) == ([], [], [])


async def test_a_gateway_that_stood_still_asks_for_nothing_that_it_has_looked_at_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """N1: after seconds of SIGSTOP the topic was another of the same name."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker, times = Broker(world), count(step=3)
        monkeypatch.setattr(rewrite._clock, "monotonic_s", lambda: float(next(times)))
        assert (await deleted(world, rewrite), broker.asked, sidecar.proposed) == (ASK_AGAIN, [], [])


@pytest.mark.parametrize("change", [nothing, is_made_anew, is_elected_on_disk, is_set_back])
async def test_while_a_client_over_its_quota_is_muted_its_delete_stays_what_it_was(change: Between) -> None:
    """F2: for so long the broker reads nothing of it.  What is written meanwhile came after it, and a topic that is made anew
    is another."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world, throttle=timedelta(milliseconds=30))
        throttle = timedelta(milliseconds=400)
        asking = asyncio.create_task(asked_for(world, rewrite, throttle=throttle), name="asking")
        await asyncio.sleep(0.1)
        assert not broker.asked
        world.broker.last_stable_offsets[world.partition] = MARK + 1
        change(world)
        asked = await asking
        if change is nothing:
            assert (list(broker.asked[0].values()), asked.throttle_s) == ([MARK], 0.03)
        else:
            assert (set(asked.rows.values()), broker.asked, sidecar.proposed) == ({ASK_AGAIN}, [], [])


async def test_a_mark_that_is_not_told_at_once_is_not_that_of_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: right after an election the former leader was asked, and what came while another row was waited for was deleted."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker, read, tries = Broker(world), rewrite._remote.high_watermarks, count()

        async def later(partitions: Any) -> Any:
            return {} if next(tries) < 3 else await read(partitions)

        monkeypatch.setattr(rewrite._remote, "high_watermarks", later)
        assert (await deleted(world, rewrite), broker.asked, sidecar.proposed) == (ASK_AGAIN, [], [])
        assert await deleted(world, rewrite) == (ErrorCode.none, MARK)


async def test_nothing_is_deleted_of_what_was_not_known_when_the_broker_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R2: the state topic is read meanwhile, and whether it is the topic that was asked about nothing tells."""

    def not_read(partition: Any) -> PartitionState:
        raise MetadataNotReadyError(subject=str(partition))

    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world)
        unread = monkeypatch.context()
        with unread as patch:
            patch.setattr(world.state, "partition_state", not_read)
            asking = asyncio.create_task(asked_for(world, rewrite, throttle=timedelta(milliseconds=200)), name="asking")
            await asyncio.sleep(0.1)
        asked = await asking
        assert (set(asked.rows.values()), broker.asked, sidecar.proposed) == ({ASK_AGAIN}, [], [])


async def test_a_client_that_would_be_muted_for_long_is_not_waited_for() -> None:
    async with world_before(nothing) as world:
        rewrite, _ = deletes(world)
        broker = Broker(world)
        asked = await asked_for(world, rewrite, throttle=timedelta(seconds=21))
        assert (set(asked.rows.values()), broker.asked) == ({ASK_AGAIN}, [])


@pytest.mark.parametrize("seconds", [0, -20])
async def test_a_client_that_gives_the_broker_no_time_is_answered_all_the_same(seconds: int) -> None:
    """J8: with a negative time the second request was sent, and given up at once."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        timeout = timedelta(seconds=seconds)
        Broker(world, timeout=timeout)
        row = await deleted(world, rewrite, timeout=timeout)
        assert (row, len(sidecar.proposed)) == ((ErrorCode.none, MARK), 1)


async def test_what_the_broker_does_not_answer_in_time_is_audited_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """J7: a delete that was refused first, accepted then and not answered left no event.  Now it is not asked for again."""

    def never(version: int, body: bytes) -> bytes:
        raise TimeoutError

    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        tier_partitions(world, 3, monkeypatch)
        Broker(world)
        world.upstream.answers[DELETE_RECORDS] = never
        key = key_of(world)
        refused, other = (key[0], 1), (key[0], 2)
        with capture_logs() as logs:
            asked = await asked_for(
                world, rewrite, also={refused: 3, other: 7}, refuses={refused: ErrorCode.policy_violation}
            )
        assert asked.rows == {key: ASK_AGAIN, refused: (ErrorCode.policy_violation, -1), other: ASK_AGAIN}
        assert sorted(audited(logs)) == [(key[0], 7, "unknown"), (key[0], MARK, "unknown")]
        assert sidecar.proposed == []


async def test_a_client_that_goes_while_the_broker_deletes_is_audited_with_the_number() -> None:
    async with world_before(nothing) as world:
        rewrite, _ = deletes(world)
        Broker(world)
        exchange = world.exchange(DELETE_RECORDS, VERSION, request_of({(world.partition.topic, 0): -1}, WAIT))

        def goes(version: int, body: bytes) -> bytes:
            rewrite.abandoned(exchange)
            raise UpstreamClosedError

        world.upstream.answers[DELETE_RECORDS] = goes
        with capture_logs() as logs, pytest.raises(UpstreamClosedError):
            await asked_for(world, rewrite)
        assert audited(logs) == [(world.partition.topic, MARK, "unknown")]

"""An undelete is answered only when the leader knows which deletions have begun: what it sent and nobody has read back may be
written yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.expiry import HOUR_MS
from tests.support.expiry_world import PausingMetadataLog, run, run_until
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.segments import TOPIC_ID_PARTITION
from tests.support.undelete_world import UndeleteWorld, command_config
from tiersidecar.domain.errors import MetadataNotReadyError, PublishTimeoutError, TrashError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import UNLIMITED
from tiersidecar.domain.segments import MetadataEvent
from tiersidecar.tasks.local_start import ASKED_WITHIN_S
from tiersidecar.tasks.removal import BEGUN_WITHIN_S


class LateMetadataLog(PausingMetadataLog):
    """While ``is_late``, what is published is on its way: it is there once the topic is read to its end, or, while it
    ``is_slow``, when a test says so."""

    is_late = is_away = is_slow = False

    def __init__(self) -> None:
        super().__init__()
        self.on_their_way: list[MetadataEvent] = []

    async def publish(self, event: MetadataEvent, *, until_s: float | None = None) -> None:
        if not self.is_late:
            await super().publish(event)
            return
        self.on_their_way.append(event)
        raise PublishTimeoutError(subject=str(TOPIC_ID_PARTITION), waited_ms=1)

    async def catch_up(self, topic_id_partition: TopicIdPartition) -> None:
        if self.is_away:
            raise MetadataNotReadyError(subject=str(topic_id_partition))
        if self.is_slow:
            return
        for event in self.on_their_way:
            await MemoryMetadataLog.publish(self, event)
        self.on_their_way.clear()


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UndeleteWorld:
    monkeypatch.setattr("tests.support.expiry_world.PausingMetadataLog", LateMetadataLog)
    made = UndeleteWorld(command_config(tmp_path))
    run(made.sidecar.round())
    made.delete(20)
    run(made.sidecar.round())
    made.pass_time(2 * HOUR_MS)
    return made


def _log(there: UndeleteWorld) -> LateMetadataLog:
    assert isinstance(there.world.metadata, LateMetadataLog)
    return there.world.metadata


def _begin_and_time_out(there: UndeleteWorld) -> None:
    _log(there).is_late = True
    with pytest.raises(PublishTimeoutError):
        run(there.sidecar.round())
    _log(there).is_late = False
    assert _log(there).on_their_way


def test_an_undelete_tells_that_what_was_given_up_is_deleted(there: UndeleteWorld) -> None:
    _begin_and_time_out(there)
    with pytest.raises(TrashError, match="offsets 0 to 9 were due, and deleted while this was done"):
        there.undelete()


def test_an_undelete_is_not_answered_while_that_cannot_be_known(there: UndeleteWorld) -> None:
    _begin_and_time_out(there)
    _log(there).is_away = True
    with pytest.raises(MetadataNotReadyError):
        there.undelete()
    assert there.world.state.partition_state(TOPIC_ID_PARTITION).awaits_answer


def test_a_lane_that_was_cancelled_left_one_too(there: UndeleteWorld) -> None:
    run_until(there.sidecar.round(), "metadata.sent")
    _log(there).is_away = True
    with pytest.raises(MetadataNotReadyError):
        there.undelete()
    _log(there).is_away = False
    run(there.sidecar.round())
    assert not there.world.state.partition_state(TOPIC_ID_PARTITION).awaits_answer


class Wire:
    """Brings what is on its way once it is ``arrives_ms``; looked at whenever a command waits."""

    def __init__(self, there: UndeleteWorld, after_s: float) -> None:
        self._log, self._clock = _log(there), there.clock
        self._arrives_ms = there.clock.now_ms() + int(after_s * 1000)

    async def round(self) -> None:
        if self._clock.now_ms() >= self._arrives_ms:
            for event in self._log.on_their_way:
                await MemoryMetadataLog.publish(self._log, event)
            self._log.on_their_way.clear()


@pytest.mark.parametrize("after_s", [0.05, 20.0, BEGUN_WITHIN_S])
def test_an_undelete_waits_for_what_a_process_that_is_gone_may_have_sent(there: UndeleteWorld, after_s: float) -> None:
    _begin_and_time_out(there)
    _log(there).is_slow = True
    there.restart(UNLIMITED)
    there.clock.rounds.append(Wire(there, after_s))  # type: ignore[arg-type]
    with pytest.raises(TrashError, match="offsets 0 to 9 were due, and deleted while this was done"):
        there.undelete()


def test_it_waits_for_nothing_while_nothing_of_it_is_due(tmp_path: Path) -> None:
    there = UndeleteWorld(command_config(tmp_path))
    run(there.sidecar.round())
    there.delete(20)
    before_ms = there.clock.now_ms()
    assert there.undelete()
    assert there.clock.now_ms() - before_ms < 1000


def test_a_deletion_is_not_begun_long_after_the_look_whether_it_is_undone(
    there: UndeleteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state topic's end came late: the undelete may be durable for so long that nobody waits any more."""
    caught_up = there.world.state.catch_up

    async def slowly() -> None:
        there.pass_time(int(BEGUN_WITHIN_S * 1000))
        await caught_up()

    monkeypatch.setattr(there.world.state, "catch_up", slowly)
    with pytest.raises(PublishTimeoutError):
        run(there.sidecar.round())
    assert len(there.world.readable()) == 8


def test_that_time_is_for_its_send_too(there: UndeleteWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    caught_up, untils_s = there.world.state.catch_up, list[float | None]()
    began_s = there.sidecar.clock.monotonic_s()

    async def slowly() -> None:
        there.pass_time(10_000)
        await caught_up()

    async def publish(self: LateMetadataLog, event: MetadataEvent, *, until_s: float | None = None) -> None:
        untils_s.append(until_s)
        await MemoryMetadataLog.publish(self, event)

    monkeypatch.setattr(there.world.state, "catch_up", slowly)
    monkeypatch.setattr(LateMetadataLog, "publish", publish)
    run(there.sidecar.round())
    assert untils_s[:2] == [began_s + BEGUN_WITHIN_S, None], "the end of a deletion has no such bound"


def test_nor_is_delete_records_sent_long_after_that_look(there: UndeleteWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    caught_up = there.world.state.catch_up

    async def slowly() -> None:
        there.pass_time(int(ASKED_WITHIN_S * 1000) + 1)
        await caught_up()

    there.sidecar.broker.log_starts[TOPIC_ID_PARTITION] = Offset(0)
    monkeypatch.setattr(there.world.state, "catch_up", slowly)
    with pytest.raises(MetadataNotReadyError):
        run(there.sidecar.round())
    assert there.sidecar.broker.deleted == []
    monkeypatch.undo()
    run(there.sidecar.round())
    assert there.sidecar.broker.deleted == [(TOPIC_ID_PARTITION, 20)]

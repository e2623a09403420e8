"""An undelete is answered only when the leader knows which deletions have begun: what it sent and nobody has read back may be
written yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.expiry import HOUR_MS
from tests.support.expiry_world import PausingMetadataLog, run, run_until
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.segments import TIP
from tests.support.undelete_world import UndeleteWorld, command_config
from tiersidecar.domain.errors import MetadataNotReadyError, PublishTimeoutError, TrashError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.segments import MetadataEvent


class LateMetadataLog(PausingMetadataLog):
    """While ``is_late``, what is published is on its way: it is there once the topic is read to its end."""

    is_late = is_away = False

    def __init__(self) -> None:
        super().__init__()
        self.on_their_way: list[MetadataEvent] = []

    async def publish(self, event: MetadataEvent) -> None:
        if not self.is_late:
            await super().publish(event)
            return
        self.on_their_way.append(event)
        raise PublishTimeoutError(subject=str(TIP), waited_ms=1)

    async def catch_up(self, topic_id_partition: TopicIdPartition) -> None:
        if self.is_away:
            raise MetadataNotReadyError(subject=str(topic_id_partition))
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
    assert there.world.state.partition_state(TIP).awaits_answer


def test_a_lane_that_was_cancelled_left_one_too(there: UndeleteWorld) -> None:
    run_until(there.sidecar.round(), "metadata.sent")
    _log(there).is_away = True
    with pytest.raises(MetadataNotReadyError):
        there.undelete()
    _log(there).is_away = False
    run(there.sidecar.round())
    assert not there.world.state.partition_state(TIP).awaits_answer

"""What a file has forgotten of leader epochs, and the state topic has not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.scripted import MemoryStateLog
from tests.support.segments import TOPIC_ID_PARTITION
from tests.unit.reading.test_lineage import FixedLog
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Lineage
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.tasks.remembered_epochs import RememberedEpochs

Entries = Sequence[tuple[int, int]]


@pytest.mark.parametrize(
    ("file", "said", "epochs"),
    [
        pytest.param([(7, 657)], [(3, 0), (7, 336)], [(3, 0), (7, 336)], id="the front of the epoch is gone"),
        pytest.param([(7, 657), (9, 700)], [(3, 0), (7, 336)], [(3, 0), (7, 336), (9, 700)], id="another began since"),
        pytest.param(
            [(3, 40), (7, 336)], [(3, 0), (6, 300)], [(3, 0), (7, 336)], id="what is said is of a history that ended"
        ),
        pytest.param([(9, 700)], [(3, 0), (7, 336)], [(9, 700)], id="an epoch between may have gone unsaid"),
        pytest.param([(6, 450)], [(3, 0), (7, 336)], [(6, 450)], id="a deposed leader's file, which is cut next"),
        pytest.param([(7, 336)], [(3, 0), (7, 657)], [(7, 336)], id="what is said had forgotten more than the file"),
        pytest.param([(7, 657)], [], [(7, 657)], id="nobody has said anything"),
        pytest.param([], [(3, 0), (7, 336)], [], id="no file"),
    ],
)
async def test_epochs_that_were_said_come_before_the_file(file: Entries, said: Entries, epochs: Entries) -> None:
    state = MemoryStateLog()
    await state.publish_partition_state(TOPIC_ID_PARTITION, PartitionState().with_epochs(Lineage.of(said)))
    assert list(RememberedEpochs(live=FixedLog(dict(file)), state=state).leader_epochs(TOPIC_ID_PARTITION)) == list(
        epochs
    )


def test_while_the_state_topic_is_read_the_file_counts() -> None:
    class Unread:
        def partition_state(self, topic_id_partition: TopicIdPartition) -> PartitionState:
            raise MetadataNotReadyError(subject=str(topic_id_partition))

    live = FixedLog({7: 657})
    live.pinned = {5: 100}
    remembered = RememberedEpochs(live=live, state=Unread())
    assert list(remembered.leader_epochs(TOPIC_ID_PARTITION)) == [(7, 657)]
    assert list(remembered.pinned_leader_epochs(TOPIC_ID_PARTITION)) == [(5, 100)]

"""Whose directory it is: a leader's file ends with the epoch in which it leads."""

from __future__ import annotations

import pytest

from tests.support.pins import local_partition
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.decide.topics import UnwrittenEpoch, may_be_unwritten, reason_to_doubt_directory, reason_unseen
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.segments import LeaderView

LED = LeaderView(
    topic_id_partition=TOPIC_ID_PARTITION,
    leader_id=BrokerId(1),
    leader_epoch=LeaderEpoch(5),
    replicas=(BrokerId(1),),
    in_sync_replicas=(BrokerId(1),),
)


@pytest.mark.parametrize(
    ("epochs", "says"),
    [
        pytest.param([(5, 0)], "", id="a log that begins in this epoch, also an empty one"),
        pytest.param([(0, 0), (3, 100), (5, 200)], "", id="earlier epochs before it"),
        pytest.param([(5, 150)], "", id="a moved log start has dropped the earlier ones"),
        pytest.param([(0, 0), (3, 100)], "ends with leader epoch 3, and the broker leads in 5", id="an earlier disk"),
        pytest.param([(0, 0), (6, 100)], "ends with leader epoch 6, and the broker leads in 5", id="an older answer"),
        pytest.param([], "has no leader epoch, and the broker leads in 5", id="no file yet"),
    ],
)
def test_a_leaders_file_ends_with_its_own_epoch(epochs: list[tuple[int, int]], says: str) -> None:
    reason = reason_to_doubt_directory(LED, local_partition(local_segments(0, 100), epochs=epochs))
    assert says in reason
    assert bool(reason) is bool(says)


@pytest.mark.parametrize(
    ("told", "bases", "is_proven"),
    [
        pytest.param(
            (5, 3, 250), (0, 100, 250), True, id="the broker does not know its epoch either, and ends where we do"
        ),
        pytest.param((5, 3, 300), (0, 100, 250), True, id="our active segment may have records"),
        pytest.param((5, 3, 249), (0, 100, 250), False, id="we have sealed more than the broker has of the epoch"),
        pytest.param((4, 3, 250), (0, 100, 250), False, id="said in an earlier epoch"),
        pytest.param((5, 2, 250), (0, 100, 250), False, id="said of an earlier file"),
        pytest.param((5, 3, 250), (), False, id="a directory without segments"),
    ],
)
def test_a_log_moved_before_the_first_record_of_its_epoch_is_told_by_the_broker(
    told: tuple[int, int, int], bases: tuple[int, ...], is_proven: bool
) -> None:
    """An AlterReplicaLogDirs after an election; also where an earlier disk has the same batches, which does no harm."""
    leader_epoch, last_epoch, end_offset = told
    unwritten = UnwrittenEpoch(
        leader_epoch=LeaderEpoch(leader_epoch), last_epoch=LeaderEpoch(last_epoch), end_offset=Offset(end_offset)
    )
    local = local_partition(local_segments(*bases), epochs=[(0, 0), (3, 90)])
    assert bool(reason_to_doubt_directory(LED, local, unwritten)) is not is_proven


@pytest.mark.parametrize(
    ("epochs", "asks"),
    [
        pytest.param([(0, 0), (3, 100)], 3, id="a file that ends earlier"),
        pytest.param([(5, 0)], None, id="it is proven"),
        pytest.param([(6, 0)], None, id="the answer is older than the file"),
        pytest.param([], None, id="no epoch to ask of: an empty log that was moved waits for its first record"),
    ],
)
def test_the_broker_is_asked_only_of_a_file_that_ends_in_an_earlier_epoch(
    epochs: list[tuple[int, int]], asks: int | None
) -> None:
    assert may_be_unwritten(LED, local_partition(local_segments(0, 100), epochs=epochs)) == asks


def test_a_log_dir_that_cannot_be_read_may_have_what_is_not_seen() -> None:
    assert "unless" not in reason_unseen({})
    assert "unless in what cannot be read: /a, /b:" in reason_unseen({"/b": "EIO", "/a": "EIO"})
    many = dict.fromkeys("/abcdef", "EIO")
    assert f"unless in what cannot be read: /, a, b and {len(many) - 3} others:" in reason_unseen(many)

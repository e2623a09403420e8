"""Whose directory it is: a leader's file ends with the epoch in which it leads."""

from __future__ import annotations

import pytest

from tests.support.pins import local_partition
from tests.support.segments import TIP, local_segments
from tiersidecar.decide.place import reason_to_doubt_directory, reason_unseen
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.segments import LeaderView

LED = LeaderView(
    topic_id_partition=TIP,
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


def test_a_log_dir_that_cannot_be_read_may_have_what_is_not_seen() -> None:
    assert "unless" not in reason_unseen({})
    assert "unless in what cannot be read: /a, /b:" in reason_unseen({"/b": "EIO", "/a": "EIO"})

"""Replicas of what is handed over: each has to be known and there (issue 21)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.metadata_events import ORDERS
from tiersidecar.app.handover.replicas import replica_faults
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.segments import LeaderView


def ids(numbers: Sequence[int]) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


ROWS: dict[str, tuple[Sequence[int], Sequence[int], str]] = {
    "all are in sync": ([1, 2, 3], [3, 1, 2], ""),
    "one is behind": ([1, 2], [1, 2, 3], "replicas 3 are not in sync"),
    "a broker is down": ([1, 2], [1, 2], "replicas 3 are not in sync, brokers 3 are down"),
    "the last one in sync is down": ([3], [1, 2], "replicas 1, 2 are not in sync, brokers 3 are down"),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_which_replicas_are_in_the_way(sentence: str) -> None:
    in_sync, up, fault = ROWS[sentence]
    view = LeaderView(
        topic_id_partition=ORDERS,
        leader_id=BrokerId(1),
        leader_epoch=LeaderEpoch(0),
        replicas=ids([1, 2, 3]),
        in_sync_replicas=ids(in_sync),
    )
    found = list(replica_faults([view], ids(up)))
    assert len(found) == bool(fault)
    assert not fault or found[0].startswith(f"orders-0: {fault}: ")

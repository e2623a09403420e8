"""What is still to be copied is found once, and anew where anything that it is found of is another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.pins import local_partition
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.decide.copy import pending_segments
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import LocalPartition, LocalSegment
from tiersidecar.tasks import copy_admission
from tiersidecar.tasks.partition_table import PartitionTable

LOCAL = local_partition(local_segments(0, 100, 200, 300))


def bases(pending: tuple[LocalSegment, ...]) -> list[int]:
    return [one.base_offset for one in pending]


def test_it_is_not_found_again_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    table, asked = PartitionTable(), list[Any]()

    def found(*given: Any) -> tuple[LocalSegment, ...]:
        asked.append(given)
        return pending_segments(*given)

    monkeypatch.setattr(copy_admission, "pending_segments", found)
    for _ in range(3):
        assert bases(copy_admission.pending_copies(table, LOCAL, 99)) == [100, 200]
    assert len(asked) == 1


def _nothing(table: PartitionTable) -> None:
    return None


def _start(table: PartitionTable) -> None:
    table.record(TOPIC_ID_PARTITION).remote_log_start = 200


def _holes(table: PartitionTable) -> None:
    table.record(TOPIC_ID_PARTITION).copy_holes = (ByteRange(0, 10),)


def _hands(table: PartitionTable) -> None:
    table.forget(TOPIC_ID_PARTITION)


@pytest.mark.parametrize(
    ("change", "local", "copied_offset", "pending"),
    [
        pytest.param(_nothing, LOCAL, 199, [200], id="more is remote"),
        pytest.param(_nothing, LOCAL, -1, [0, 100, 200], id="it is not known any more what is"),
        pytest.param(_start, LOCAL, 99, [200], id="what was to be copied lies below the remote log start"),
        pytest.param(_holes, LOCAL, 99, [0, 100, 200], id="something is missing below"),
        pytest.param(
            _nothing, replace(LOCAL, segments=local_segments(0, 100, 200, 300, 400)), 99, [100, 200, 300], id="a roll"
        ),
        pytest.param(_hands, LOCAL, 99, [100, 200], id="it changed hands"),
    ],
)
def test_it_is_found_anew(
    change: Callable[[PartitionTable], None], local: LocalPartition, copied_offset: int, pending: list[int]
) -> None:
    table = PartitionTable()
    assert bases(copy_admission.pending_copies(table, LOCAL, 99)) == [100, 200]
    change(table)
    assert bases(copy_admission.pending_copies(table, local, copied_offset)) == pending

"""What goes below disk.reserve : strict mode trims nothing that is not copied and within total retention,
unless ``disk.pressure.policy`` is ``drop-oldest``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.decide.pin_room import Disk, PinLimits
from tiersidecar.decide.pressure_trim import DiskPressurePolicy, PressedPartition, decide_pressure

KEEP, TRIM, DROP = DiskPressurePolicy.KEEP, DiskPressurePolicy.TRIM_COPIED, DiskPressurePolicy.DROP_OLDEST
OTHER = replace(TOPIC_ID_PARTITION, partition=1)


def partition(topic_id_partition: object, remote: int, *ages_ms: int) -> PressedPartition:
    """Sealed segments of 100 offsets and 100 bytes, last changed at these times."""
    bases = [100 * n for n in range(len(ages_ms) + 1)]
    sealed = [replace(one, modified_ms=at) for one, at in zip(local_segments(*bases), ages_ms, strict=False)]
    return PressedPartition(topic_id_partition=topic_id_partition, sealed=sealed, remote=remote)  # type: ignore[arg-type]


BOTH = (partition(TOPIC_ID_PARTITION, 2, 1, 3, 5, 7), partition(OTHER, 1, 2, 4, 6, 8))


@pytest.mark.parametrize(
    ("policy", "missing", "going", "expected"),
    [
        pytest.param(DROP, 0, 0, {}, id="the reserve is free: nothing goes"),
        pytest.param(KEEP, 500, 0, {}, id="by default nothing goes for space, whatever is missing"),
        pytest.param(TRIM, 1, 0, {TOPIC_ID_PARTITION: 100}, id="a byte is missing: the oldest remote segment goes"),
        pytest.param(TRIM, 100, 0, {TOPIC_ID_PARTITION: 100}, id="exactly as much as is missing"),
        pytest.param(TRIM, 101, 0, {TOPIC_ID_PARTITION: 100, OTHER: 100}, id="the oldest of all partitions go first"),
        pytest.param(TRIM, 201, 0, {TOPIC_ID_PARTITION: 200, OTHER: 100}, id="each partition's in their order"),
        pytest.param(
            TRIM, 9999, 0, {TOPIC_ID_PARTITION: 200, OTHER: 100}, id="trim-copied never drops what is not remote"
        ),
        pytest.param(
            DROP, 250, 0, {TOPIC_ID_PARTITION: 200, OTHER: 100}, id="drop-oldest too takes what is remote first"
        ),
        pytest.param(DROP, 301, 0, {TOPIC_ID_PARTITION: 200, OTHER: 200}, id="and only then the oldest that is not"),
        pytest.param(
            DROP, 9999, 0, {TOPIC_ID_PARTITION: 400, OTHER: 400}, id="all sealed segments at most: the active one stays"
        ),
        pytest.param(DROP, 500, 500, {}, id="what the broker has yet to delete, and pins, count as free"),
        pytest.param(DROP, 500, 450, {TOPIC_ID_PARTITION: 100}, id="so that no more goes than is needed"),
    ],
)
def test_what_goes(policy: DiskPressurePolicy, missing: int, going: int, expected: dict[object, int]) -> None:
    disk = Disk(log_dirs=frozenset({"/d"}), size_bytes=100_000, free_bytes=10_000 - missing)
    found = decide_pressure(policy, disk, PinLimits(), going, BOTH)
    assert {topic_id_partition: trim.offset for topic_id_partition, trim in found.items()} == expected
    assert {trim.drops for trim in found.values()} <= {policy is DROP}


@pytest.mark.parametrize(
    ("policy", "missing", "expected"),
    [
        pytest.param(TRIM, 9999, {TOPIC_ID_PARTITION: -1, OTHER: -1}, id="trim-copied knows no last resort"),
        pytest.param(DROP, 300, {TOPIC_ID_PARTITION: -1, OTHER: -1}, id="what is remote is enough"),
        pytest.param(
            DROP, 301, {TOPIC_ID_PARTITION: -1, OTHER: 200}, id="all that is remote is not: of the one that gives more"
        ),
        pytest.param(DROP, 9999, {TOPIC_ID_PARTITION: 400, OTHER: 400}, id="of both"),
    ],
)
def test_where_damaged_copies_stay_as_long_as_there_are_others(
    policy: DiskPressurePolicy, missing: int, expected: dict[object, int]
) -> None:
    disk = Disk(log_dirs=frozenset({"/d"}), size_bytes=100_000, free_bytes=10_000 - missing)
    found = decide_pressure(policy, disk, PinLimits(), 0, BOTH)
    assert {topic_id_partition: trim.last_resort for topic_id_partition, trim in found.items()} == expected


def test_a_partition_without_sealed_segments_has_nothing_to_give() -> None:
    disk = Disk(log_dirs=frozenset({"/d"}), size_bytes=1000, free_bytes=0)
    assert decide_pressure(DROP, disk, PinLimits(), 0, [partition(TOPIC_ID_PARTITION, 0)]) == {}

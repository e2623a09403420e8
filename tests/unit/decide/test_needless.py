"""Which segments of repair's and erasures' trash entries go once they are due: only what others hold still (issue 16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS, segment, view
from tiersidecar.decide.expire import decide_expiry
from tiersidecar.decide.expiry_standing import standings
from tiersidecar.decide.needless import is_covered, needless_segments
from tiersidecar.decide.trash import TrashDelays, needless, replaced
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind

DAY = TrashDelays(retention_ms=24 * HOUR_MS, user_ms=HOUR_MS)
KEPT = segment(0, 99, age_h=1)
NAME = replace(KEPT.remote_log_segment_id, uuid=Uuid(b"the-other-twin--"))
TWIN = replace(KEPT, remote_log_segment_id=NAME)
LATER = segment(100, 199, age_h=1)


def entry(*names: RemoteLogSegmentMetadata, kind: TrashKind = TrashKind.REPAIR, generation: int = 0) -> TrashEntry:
    """Decided a day and an hour ago, and so due."""
    decided_ms = NOW_MS - 25 * HOUR_MS
    made = needless(
        TWIN, LeaderEpoch(0), generation=generation, delays=DAY, now_ms=decided_ms, reason="twins", by="repair"
    )
    made_id = TrashId(generation=generation, leader_epoch=LeaderEpoch(0), kind=kind, opened_ms=made.id.opened_ms)
    return replace(made, id=made_id, segments=frozenset(name.remote_log_segment_id.uuid for name in names))


def going(remote: tuple[RemoteLogSegmentMetadata, ...], *trash: TrashEntry, **fields: Any) -> list[Uuid]:
    found = decide_expiry(view(remote, trash=trash, delays=DAY, log_start_offset=0, high_watermark=300, **fields))
    return [one.metadata.remote_log_segment_id.uuid for one in found.expired]


FOREIGN = replace(KEPT, segment_leader_epochs=segment(0, 99, epochs=((1, 0),)).segment_leader_epochs)


@pytest.mark.parametrize(
    ("remote", "trash", "fields", "goes"),
    [
        pytest.param((KEPT, TWIN, LATER), [entry(TWIN)], {}, True, id="its twin stands"),
        pytest.param((TWIN, LATER), [entry(TWIN)], {}, False, id="its twin is gone"),
        pytest.param((KEPT, TWIN, LATER), [entry(TWIN, KEPT)], {}, False, id="its twin is named likewise"),
        pytest.param(
            (KEPT, TWIN, LATER),
            [entry(TWIN), entry(KEPT, kind=TrashKind.OUTSIDE_LINEAGE)],
            {},
            False,
            id="its twin is in the trash for another reason",
        ),
        pytest.param((KEPT, TWIN, LATER), [entry(TWIN, generation=-1)], {}, False, id="it was undone"),
        pytest.param((FOREIGN, TWIN, LATER), [entry(TWIN)], {}, False, id="its twin is of another history"),
        pytest.param(
            (KEPT, TWIN, LATER),
            [entry(TWIN)],
            {"damaged": {KEPT.remote_log_segment_id.uuid}},
            False,
            id="its twin is damaged",
        ),
        pytest.param(
            (KEPT, TWIN, LATER), [entry(TWIN)], {"in_flight": {KEPT.remote_log_segment_id}}, False, id="its twin goes now"
        ),
        pytest.param((KEPT, TWIN, LATER), [entry(TWIN)], {"hold": "an operator"}, False, id="nothing moves after an undelete"),
        pytest.param((KEPT, TWIN, LATER), [entry(TWIN)], {"clock_doubt": "it jumped"}, False, id="the clock is in doubt"),
        pytest.param(
            (segment(0, 49, age_h=1), segment(50, 149, age_h=1), TWIN), [entry(TWIN)], {}, True, id="two hold it together"
        ),
        pytest.param(
            (segment(0, 49, age_h=1), segment(60, 149, age_h=1), TWIN), [entry(TWIN)], {}, False, id="with a hole between"
        ),
    ],
)  # fmt: skip
def test_what_is_needless_still(
    remote: tuple[RemoteLogSegmentMetadata, ...], trash: list[TrashEntry], fields: dict[str, Any], goes: bool
) -> None:
    found = going(remote, *trash, start=0, **fields)
    assert (TWIN.remote_log_segment_id.uuid in found) is goes
    assert KEPT.remote_log_segment_id.uuid not in found


def test_what_retention_gives_up_waits_for_its_own_time() -> None:
    """The entry of repair was due long before: it says nothing about data that nothing else holds."""
    old = replace(TWIN, max_timestamp_ms=NOW_MS - 9 * HOUR_MS)
    policy = TopicPolicy(retention_ms=5 * HOUR_MS)
    assert going((old, LATER), entry(old), start=0, policy=policy) == []


def test_a_segment_does_not_cover_itself() -> None:
    assert not is_covered(TWIN, [TWIN])
    assert is_covered(TWIN, [TWIN, KEPT])
    assert not is_covered(TWIN, [segment(0, 98)])
    assert not is_covered(TWIN, [segment(1, 99)])
    assert is_covered(TWIN, [segment(0, 98), segment(99, 99)]), "one with its last offset alone"
    assert is_covered(TWIN, [segment(0, 0), segment(1, 99)]), "one with its first offset alone"


def erased(*names: RemoteLogSegmentMetadata, hours_ago: float = 2) -> TrashEntry:
    """An entry of an erasure, which is due after an hour (``user.delete.delay``)."""
    decided_ms = int(NOW_MS - hours_ago * HOUR_MS)
    return replaced(names, LeaderEpoch(0), opened_ms=decided_ms, delays=DAY, now_ms=decided_ms, by="erase")


@pytest.mark.parametrize(
    ("remote", "trash", "fields", "goes"),
    [
        pytest.param((KEPT, TWIN, LATER), [erased(TWIN)], {}, True, id="what replaced it stands"),
        pytest.param((KEPT, TWIN, LATER), [erased(TWIN, hours_ago=0.5)], {}, False, id="it is not due yet"),
        pytest.param((TWIN, LATER), [erased(TWIN)], {}, False, id="what replaced it is gone"),
        pytest.param(
            (KEPT, TWIN, LATER), [erased(TWIN)], {"hold": "an operator"}, True, id="a hold keeps offsets alone"
        ),
        pytest.param((KEPT, TWIN, LATER), [erased(TWIN)], {"start_generation": 7}, True, id="an undelete undoes none"),
        pytest.param((KEPT, TWIN, LATER), [erased(TWIN), entry(TWIN)], {}, True, id="repair has named it, too"),
        pytest.param(
            (KEPT, TWIN, LATER),
            [erased(TWIN)],
            {"damaged": {KEPT.remote_log_segment_id.uuid}},
            False,
            id="what replaced it is damaged",
        ),
        pytest.param(
            (KEPT, TWIN, LATER), [erased(TWIN)], {"clock_doubt": "it jumped"}, False, id="the clock is in doubt"
        ),
    ],
)
def test_what_an_erasure_replaced_goes_while_its_offsets_are_held(
    remote: tuple[RemoteLogSegmentMetadata, ...], trash: list[TrashEntry], fields: dict[str, Any], goes: bool
) -> None:
    found = going(remote, *trash, start=0, **fields)
    assert (TWIN.remote_log_segment_id.uuid in found) is goes
    assert KEPT.remote_log_segment_id.uuid not in found


@pytest.mark.parametrize(
    ("remote", "generation", "stays"),
    [
        pytest.param((KEPT, TWIN, LATER), 0, True, id="its segment is there"),
        pytest.param((TWIN, LATER), 0, True, id="nothing else holds its offsets: an undelete must still refuse it"),
        pytest.param((KEPT, TWIN, LATER), 3, True, id="the start was set back"),
        pytest.param((KEPT, LATER), 0, False, id="its segment is gone"),
    ],
)
def test_the_entry_of_an_erasure_stays_until_its_segments_are_gone(
    remote: tuple[RemoteLogSegmentMetadata, ...], generation: int, stays: bool
) -> None:
    trash = (erased(TWIN),)
    given = view(
        remote, trash=trash, delays=DAY, log_start_offset=0, high_watermark=300, start=0, start_generation=generation
    )
    assert (decide_expiry(given).trash.take_out == ()) is stays


def cleaned(*names: RemoteLogSegmentMetadata, hours_ago: float = 25) -> TrashEntry:
    """An entry of a cleaner, which is due after a day (``delete.delay``)."""
    decided_ms = int(NOW_MS - hours_ago * HOUR_MS)
    kind = TrashKind.COMPACTION
    return replaced(
        names, LeaderEpoch(0), opened_ms=decided_ms, delays=DAY, now_ms=decided_ms, by="broker 1", kind=kind
    )


@pytest.mark.parametrize(
    ("remote", "trash", "fields", "goes"),
    [
        pytest.param((KEPT, TWIN, LATER), [cleaned(TWIN)], {}, True, id="what replaced it stands"),
        pytest.param((KEPT, TWIN, LATER), [cleaned(TWIN, hours_ago=23)], {}, False, id="it is not due yet"),
        pytest.param((TWIN, LATER), [cleaned(TWIN)], {}, False, id="what replaced it is gone"),
        pytest.param((KEPT, TWIN, LATER), [cleaned(TWIN, KEPT)], {}, False, id="what replaced it was replaced, too"),
        pytest.param((KEPT, TWIN, LATER), [cleaned(TWIN)], {"hold": "an operator"}, True, id="a hold keeps offsets"),
        pytest.param((KEPT, TWIN, LATER), [cleaned(TWIN)], {"start_generation": 7}, True, id="an undelete undoes none"),
        pytest.param(
            (KEPT, TWIN, LATER), [cleaned(TWIN, hours_ago=1), erased(TWIN)], {}, True, id="an erasure has named it, too"
        ),
    ],
)
def test_what_a_cleaner_replaced_goes_while_its_offsets_are_held(
    remote: tuple[RemoteLogSegmentMetadata, ...], trash: list[TrashEntry], fields: dict[str, Any], goes: bool
) -> None:
    found = going(remote, *trash, start=0, **fields)
    assert (TWIN.remote_log_segment_id.uuid in found) is goes
    assert KEPT.remote_log_segment_id.uuid not in found


@pytest.mark.parametrize(
    ("trash", "kind"),
    [
        pytest.param([entry(TWIN)], TrashKind.REPAIR, id="repair alone"),
        pytest.param([cleaned(TWIN), entry(TWIN)], TrashKind.COMPACTION, id="a cleaner, then repair"),
        pytest.param([entry(TWIN), cleaned(TWIN)], TrashKind.COMPACTION, id="repair, then a cleaner"),
        pytest.param([erased(TWIN), cleaned(TWIN)], TrashKind.ERASURE, id="an erasure, then a cleaner"),
        pytest.param([cleaned(TWIN), erased(TWIN)], TrashKind.ERASURE, id="a cleaner, then an erasure"),
        pytest.param([erased(TWIN), entry(LATER), entry(TWIN)], TrashKind.ERASURE, id="an erasure first of three"),
    ],
)
def test_what_several_have_named_goes_by_the_strongest_of_them_in_any_order(
    trash: list[TrashEntry], kind: TrashKind
) -> None:
    given = view((KEPT, TWIN, LATER), trash=tuple(trash), delays=DAY, log_start_offset=0, high_watermark=300, start=0)
    (removal,) = needless_segments(given, standings(given.remote_segments, given.lineage), [])
    assert (removal.metadata, removal.kind) == (TWIN, kind)

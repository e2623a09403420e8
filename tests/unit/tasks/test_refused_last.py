"""In which order what is due is deleted, so that one segment that the store refuses to delete holds up no other."""

from __future__ import annotations

from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tiersidecar.decide.cleanup import Removal
from tiersidecar.tasks.removal import RefusedLast

DUE = [Removal(metadata=remote_segment(start, start + 99), reason="due") for start in (0, 100, 200, 300)]


def order(refused: RefusedLast, due: list[Removal] = DUE) -> list[int]:
    return [one.metadata.start_offset for one in refused.order(TOPIC_ID_PARTITION, due)]


def test_what_was_refused_comes_last_and_of_that_what_was_refused_longest_ago_first() -> None:
    refused = RefusedLast()
    assert order(refused) == [0, 100, 200, 300]
    for one in (DUE[2], DUE[0], DUE[1]):
        refused.refused(one)
    assert order(refused) == [300, 200, 0, 100]
    refused.refused(DUE[2])
    assert order(refused) == [300, 0, 100, 200]
    assert order(refused) == [300, 0, 100, 200], "however often it is asked"


def test_what_is_due_no_more_is_forgotten() -> None:
    refused = RefusedLast()
    refused.refused(DUE[0])
    assert order(refused, DUE[1:]) == [100, 200, 300]
    assert order(refused) == [0, 100, 200, 300]

"""What a sidecar does about lost remote data that its broker may still have (U12): new copies first, then the old one goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiersidecar.decide.recopy import RecopyAction, RecopyView, decide_recopy, without
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import ByteRange, EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State

TOPIC_ID_PARTITION = TopicIdPartition(topic_id=Uuid(bytes(16)), topic="orders", partition=0)
COPY, RETIRE, FORGET, DECLINE, WAIT = (
    RecopyAction.COPY,
    RecopyAction.RETIRE,
    RecopyAction.FORGET,
    RecopyAction.DECLINE,
    RecopyAction.WAIT,
)


def remote(
    start: int, end: int, *, state: State = State.COPY_SEGMENT_FINISHED, epoch: int = 0
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(
            topic_id_partition=TOPIC_ID_PARTITION, uuid=Uuid(start.to_bytes(8) + end.to_bytes(8))
        ),
        start_offset=Offset(start),
        end_offset=Offset(end),
        max_timestamp_ms=0,
        broker_id=BrokerId(1),
        event_timestamp_ms=0,
        segment_size_in_bytes=100,
        segment_leader_epochs=(EpochEntry(LeaderEpoch(epoch), Offset(start)),),
        state=state,
    )


def local(base: int, next_base: int | None) -> LocalSegment:
    end = None if next_base is None else Offset(next_base)
    return LocalSegment(directory="d", base_offset=Offset(base), next_base_offset=end, size_bytes=100, modified_ms=0)


DAMAGED = RecopyView(
    start_offset=10,
    end_offset=19,
    names_segment=True,
    segment=remote(10, 19),
    lineage=Lineage((EpochEntry(LeaderEpoch(0), Offset(0)),)),
    whole=(),
    local=(local(0, 10), local(10, 20), local(20, None)),
    copied_offset=19,
    remote_log_start_offset=-1,
)
GAP = replace(DAMAGED, names_segment=False, segment=None)


@pytest.mark.parametrize(
    ("view", "action", "base_offset"),
    [
        pytest.param(DAMAGED, COPY, 10, id="the broker still has the very segment"),
        pytest.param(
            replace(DAMAGED, local=(local(5, 15), local(15, 20), local(20, None))), COPY, 5, id="rolled otherwise here"
        ),
        pytest.param(
            replace(DAMAGED, local=(local(5, 15), local(15, 20), local(20, None)), whole=(remote(5, 14),)),
            COPY,
            15,
            id="the process ended between two copies: the second one is missing",
        ),
        pytest.param(
            replace(DAMAGED, whole=(remote(5, 14), remote(15, 19))),
            RETIRE,
            None,
            id="the process ended when all was copied: the damaged one is left",
        ),
        pytest.param(
            replace(DAMAGED, local=(local(20, None),), whole=(remote(10, 19),)),
            RETIRE,
            None,
            id="another live segment holds all of it, and no broker anything",
        ),
        pytest.param(
            replace(DAMAGED, local=(local(12, 20), local(20, None))), DECLINE, None, id="a part of it is on no disk"
        ),
        pytest.param(
            replace(DAMAGED, local=(local(10, 19), local(19, None))),
            COPY,
            10,
            id="its last offset is in the active one",
        ),
        pytest.param(
            replace(DAMAGED, local=(local(10, 19), local(20, None))), DECLINE, None, id="its last offset is on no disk"
        ),
        pytest.param(
            replace(DAMAGED, local=(local(0, 10), local(15, 20), local(20, None))),
            DECLINE,
            None,
            id="a hole among pins",
        ),
        pytest.param(replace(DAMAGED, local=()), DECLINE, None, id="nothing is on this broker"),
        pytest.param(
            replace(DAMAGED, segment=remote(10, 19, epoch=7)), DECLINE, None, id="the segment is of another history"
        ),
        pytest.param(
            replace(DAMAGED, segment=None), FORGET, None, id="the process ended when the damaged one was deleted"
        ),
        pytest.param(
            replace(DAMAGED, segment=remote(10, 19, state=State.DELETE_SEGMENT_STARTED)),
            FORGET,
            None,
            id="its deletion has begun: the retain lane ends it",
        ),
        pytest.param(replace(DAMAGED, remote_log_start_offset=20), FORGET, None, id="nobody may read it any more"),
        pytest.param(
            replace(DAMAGED, remote_log_start_offset=19), COPY, 10, id="but one offset of it may still be read"
        ),
        pytest.param(replace(DAMAGED, whole=(remote(10, 18),)), COPY, 10, id="others hold all but its last offset"),
        pytest.param(
            replace(DAMAGED, local=(local(0, 10), local(10, 21), local(21, None))),
            WAIT,
            None,
            id="its local segment has one offset more than is remote",
        ),
        pytest.param(
            replace(DAMAGED, remote_log_start_offset=15, final_start_offset=15, whole=(remote(15, 19),)),
            RETIRE,
            None,
            id="what is below the remote log start, for good, need not be held",
        ),
        pytest.param(
            replace(DAMAGED, remote_log_start_offset=15, whole=(remote(15, 19),)),
            COPY,
            10,
            id="its front is in the trash: it is copied too",
        ),
        pytest.param(
            replace(DAMAGED, remote_log_start_offset=15, whole=(remote(15, 19),), local=()),
            WAIT,
            None,
            id="its front is in the trash, and nowhere else: an undelete would need it",
        ),
        pytest.param(
            replace(DAMAGED, remote_log_start_offset=15, final_start_offset=12, whole=(remote(12, 19),), local=()),
            RETIRE,
            None,
            id="others hold what of its front is in the trash",
        ),
        pytest.param(
            replace(DAMAGED, remote_log_start_offset=15, local=(local(15, 20),)),
            COPY,
            15,
            id="what may be read is copied, though its front is nowhere else",
        ),
        pytest.param(
            replace(DAMAGED, segment=remote(10, 19, epoch=7), remote_log_start_offset=15, whole=(remote(15, 19),)),
            RETIRE,
            None,
            id="no undelete brings back what is of another history",
        ),
        pytest.param(
            replace(DAMAGED, local=(local(0, 10), local(10, None))), WAIT, None, id="it is in the active segment here"
        ),
        pytest.param(
            replace(DAMAGED, local=(local(0, 10), local(10, 30), local(30, None))),
            WAIT,
            None,
            id="its local segment reaches beyond what is committed for certain",
        ),
        pytest.param(GAP, COPY, 10, id="a gap that the broker can fill"),
        pytest.param(replace(GAP, whole=(remote(10, 19),)), FORGET, None, id="a gap that is filled"),
        pytest.param(replace(GAP, local=()), DECLINE, None, id="a gap that nobody can fill"),
    ],
)
def test_steps(view: RecopyView, action: RecopyAction, base_offset: int | None) -> None:
    step = decide_recopy(view)
    assert step.action is action
    assert step.reason
    assert (None if step.local is None else step.local.base_offset) == base_offset


@pytest.mark.parametrize(
    ("held", "holes"),
    [
        pytest.param([], [(10, 20)], id="nothing"),
        pytest.param([(0, 30)], [], id="more than all"),
        pytest.param([(0, 12), (15, 16), (18, 40)], [(12, 15), (16, 18)], id="both ends and a middle"),
        pytest.param([(12, 14), (11, 18)], [(10, 11), (18, 20)], id="one within another"),
        pytest.param([(0, 10), (20, 30)], [(10, 20)], id="neighbours that touch"),
    ],
)
def test_what_is_held_by_none(held: list[tuple[int, int]], holes: list[tuple[int, int]]) -> None:
    found = without(ByteRange(10, 20), [ByteRange(*span) for span in held])
    assert [(one.start, one.stop) for one in found] == holes


@pytest.mark.parametrize(
    ("view", "action"),
    [
        pytest.param(DAMAGED, RecopyAction.REWRITE, id="its batches are right: written again from the store"),
        pytest.param(replace(DAMAGED, local=()), RecopyAction.REWRITE, id="though no disk has it any more"),
        pytest.param(replace(DAMAGED, whole=(remote(10, 19),)), RETIRE, id="another one holds its offsets"),
        pytest.param(
            replace(DAMAGED, remote_log_start_offset=15, final_start_offset=15, whole=(remote(15, 19),), local=()),
            RecopyAction.REWRITE,
            id="others hold what may be read: its front is sound, and is kept as well",
        ),
        pytest.param(replace(DAMAGED, segment=None), FORGET, id="it is gone"),
        pytest.param(replace(DAMAGED, remote_log_start_offset=20), FORGET, id="nobody may read it any more"),
        pytest.param(
            replace(DAMAGED, lineage=Lineage((EpochEntry(LeaderEpoch(3), Offset(0)),))),
            DECLINE,
            id="of another history nothing tells what was open before it",
        ),
    ],
)
def test_a_segment_whose_indexes_are_wrong(view: RecopyView, action: RecopyAction) -> None:
    """Issue 16: what earlier versions wrote is repaired under new segment ids."""
    assert decide_recopy(replace(view, from_store=True)).action is action

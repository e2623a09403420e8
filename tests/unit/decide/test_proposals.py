"""Which proposed deletes are carried out (issue 17: little power; DESIGN section 4, rule 13)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tiersidecar.decide.proposals import (
    MAX_AGE_MS,
    NEWS_MS,
    LocalLog,
    Outcome,
    decide_by_place,
    decide_by_words,
    decide_proposal,
    places_for,
)
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.proposals import DeleteProposal
from tiersidecar.domain.segments import LeaderView

TOPIC_ID_PARTITION = TopicIdPartition(topic_id=Uuid(b"\1" * 16), topic="orders", partition=0)
ANEW = TopicIdPartition(topic_id=Uuid(b"\2" * 16), topic="orders", partition=0)
PROPOSAL = DeleteProposal(
    cluster_id="ours",
    topic_id_partition=TOPIC_ID_PARTITION,
    offset=Offset(50),
    leader_epoch=LeaderEpoch(4),
    low_watermark=Offset(200),
    start_generation=2,
    principal="User:alice",
    client_id="tool",
    address="192.0.2.7",
    gateway=BrokerId(1),
    proposed_ms=1_000,
)
LOG_START, HIGH_WATERMARK = 200, 246


def view(*, topic_id_partition: TopicIdPartition = TOPIC_ID_PARTITION, leader: int = 1, epoch: int = 4) -> LeaderView:
    return LeaderView(
        topic_id_partition=topic_id_partition,
        leader_id=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        replicas=(BrokerId(1), BrokerId(2)),
        in_sync_replicas=(BrokerId(1), BrokerId(2)),
    )


@pytest.mark.parametrize(
    ("fields", "waited_ms", "refusal"),
    [
        pytest.param({}, 0, None, id="the broker is to be asked"),
        pytest.param({}, MAX_AGE_MS, None, id="as old as it may be"),
        pytest.param({"low_watermark": -1}, 0, None, id="accepted, and not every follower had it in time"),
        pytest.param({"low_watermark": 50}, 0, None, id="the low watermark is what was asked for"),
        pytest.param({"cluster_id": "theirs"}, 0, "cluster theirs", id="of another cluster, by a mirrored topic"),
        pytest.param({}, MAX_AGE_MS + 1, "answered long ago", id="replayed, or nobody was there to decide"),
        pytest.param({}, -60_000, None, id="the broker's clock is ahead"),
        pytest.param({"low_watermark": 49}, 0, "did not accept", id="the broker's answer says another offset"),
        pytest.param({"offset": -1}, 0, "offset -1 is none", id="no offset at all"),
        pytest.param({"offset": 0}, 0, None, id="the first offset"),
        pytest.param({"offset": 2**63 - 1}, 0, "did not accept", id="a huge offset"),
    ],
)
def test_words(fields: dict[str, Any], waited_ms: int, refusal: str | None) -> None:
    verdict = decide_by_words(replace(PROPOSAL, **fields), cluster_id="ours", waited_ms=waited_ms)
    if refusal is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict.outcome is Outcome.REFUSED
        assert refusal in verdict.reason


@pytest.mark.parametrize(
    ("seen", "is_tiered", "waited_ms", "outcome"),
    [
        pytest.param(view(), True, 0, None, id="ours, in the proposal's epoch"),
        pytest.param(view(), False, 0, Outcome.REFUSED, id="of a topic that is not tiered"),
        pytest.param(view(), None, 0, Outcome.LATER, id="of a topic that nobody has looked at yet"),
        pytest.param(view(leader=2), True, 0, Outcome.ANOTHERS, id="another broker leads in this epoch"),
        pytest.param(view(leader=2, epoch=5), True, 0, Outcome.ANOTHERS, id="another broker leads by now"),
        pytest.param(
            view(epoch=5), True, 0, Outcome.REFUSED, id="we lead, but in a later epoch: its offsets may be others'"
        ),
        pytest.param(view(epoch=3), True, 0, Outcome.LATER, id="the gateway knows a later epoch than we"),
        pytest.param(view(epoch=3), True, NEWS_MS + 1, Outcome.REFUSED, id="of an epoch that there is not"),
        pytest.param(view(leader=2, epoch=3), True, 0, Outcome.LATER, id="we may lead by now"),
        pytest.param(view(topic_id_partition=ANEW), True, 0, Outcome.REFUSED, id="the topic was made anew"),
        pytest.param(
            view(topic_id_partition=ANEW, epoch=0), True, 0, Outcome.REFUSED, id="made anew, its epochs begin again"
        ),
        pytest.param(None, None, NEWS_MS, Outcome.LATER, id="a topic that we have not heard of yet"),
        pytest.param(None, None, NEWS_MS + 1, Outcome.REFUSED, id="a topic that there is not"),
    ],
)
def test_place(seen: LeaderView | None, is_tiered: bool | None, waited_ms: int, outcome: Outcome | None) -> None:
    verdict = decide_by_place(PROPOSAL, view=seen, broker_id=BrokerId(1), is_tiered=is_tiered, waited_ms=waited_ms)
    assert (None if verdict is None else verdict.outcome) is outcome
    assert verdict is None or bool(verdict.reason) is (outcome is not Outcome.ANOTHERS), "it is said why"


@pytest.mark.parametrize(
    ("offset", "outcome", "trims"),
    [
        pytest.param(0, Outcome.CARRIED_OUT, False, id="nothing goes"),
        pytest.param(
            50, Outcome.CARRIED_OUT, False, id="below the local start: the broker's bound answer is the proof"
        ),
        pytest.param(LOG_START, Outcome.CARRIED_OUT, True, id="where the broker's log starts: it has done it"),
        pytest.param(LOG_START + 1, Outcome.REFUSED, False, id="above the broker's log start: it has not done it"),
        pytest.param(HIGH_WATERMARK, Outcome.REFUSED, False, id="all of it, which the broker still has"),
        pytest.param(HIGH_WATERMARK + 1, Outcome.REFUSED, False, id="above the high watermark"),
        pytest.param(2**63 - 1, Outcome.REFUSED, False, id="a huge offset"),
    ],
)
def test_offsets(offset: int, outcome: Outcome, trims: bool) -> None:
    local = LocalLog(log_start_offset=Offset(LOG_START), high_watermark=Offset(HIGH_WATERMARK))
    verdict = decide_proposal(replace(PROPOSAL, offset=Offset(offset)), local=local, start_generation=2, waited_ms=0)
    assert (verdict.outcome, verdict.trims) == (outcome, trims)
    assert bool(verdict.reason) is (outcome is not Outcome.CARRIED_OUT), "it is said why not"


def test_all_of_a_log_that_the_broker_has_emptied() -> None:
    emptied = LocalLog(log_start_offset=Offset(HIGH_WATERMARK), high_watermark=Offset(HIGH_WATERMARK))
    verdict = decide_proposal(
        replace(PROPOSAL, offset=Offset(HIGH_WATERMARK)), local=emptied, start_generation=2, waited_ms=0
    )
    assert (verdict.outcome, verdict.trims) == (Outcome.CARRIED_OUT, True)


@pytest.mark.parametrize(
    ("known", "waited_ms", "outcome"),
    [
        pytest.param(2, MAX_AGE_MS, Outcome.CARRIED_OUT, id="of this generation"),
        pytest.param(3, 0, Outcome.REFUSED, id="replayed after an operator has brought the records back"),
        pytest.param(1, NEWS_MS, Outcome.LATER, id="the gateway knows of an undelete that we have not read"),
        pytest.param(1, NEWS_MS + 1, Outcome.REFUSED, id="of an undelete that there is not"),
    ],
)
def test_generations(known: int, waited_ms: int, outcome: Outcome) -> None:
    local = LocalLog(log_start_offset=Offset(LOG_START), high_watermark=Offset(HIGH_WATERMARK))
    verdict = decide_proposal(PROPOSAL, local=local, start_generation=known, waited_ms=waited_ms)
    assert verdict.outcome is outcome
    assert bool(verdict.reason) is (outcome is not Outcome.CARRIED_OUT), "it is said why not"


@pytest.mark.parametrize(
    ("groups", "kept"),
    [
        pytest.param("abc", {0, 1, 2}, id="there is room"),
        pytest.param("aaaaaab", {0, 1, 6}, id="a flood takes no place of another"),
        pytest.param("baaaaaa", {0, 1, 2}, id="nor of one that was there before"),
        pytest.param("abcdef", {0, 1, 2}, id="of equals those that came first"),
    ],
)
def test_places(groups: str, kept: set[int]) -> None:
    assert places_for(groups, 3) == kept


def test_the_second_of_each_group_comes_before_the_third_of_any() -> None:
    assert places_for("aaaabb", 4) == {0, 1, 4, 5}
    assert places_for("aaaabb", 5) == {0, 1, 2, 4, 5}

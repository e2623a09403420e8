"""The fencing of cleaner offsets: each row of the KIP's table, in every order of arrival (S-271, S-272, S-273, S-274)."""

from __future__ import annotations

from itertools import permutations

import pytest

from tiersidecar.decide.cleaner_offsets import decide_cleaner_offsets
from tiersidecar.domain.cleaner import CleanerClaim
from tiersidecar.domain.offsets import LeaderEpoch, Offset


def claim(name: str, epoch: int, offsets: dict[int, int]) -> CleanerClaim:
    return CleanerClaim(
        leader_epoch=LeaderEpoch(epoch),
        offsets={LeaderEpoch(one): Offset(offset) for one, offset in offsets.items()},
        name=name,
    )


SEG_0 = claim("seg-0", 0, {0: 100})
SEG_2 = claim("seg-2", 1, {0: 100, 1: 155})
SEG_1_LATE = claim("seg-1", 0, {0: 123})


@pytest.mark.parametrize(
    ("claims", "offsets", "rejected"),
    [
        pytest.param([], {}, set(), id="nothing was cleaned"),
        pytest.param([SEG_0], {0: 100}, set(), id="A finishes one compaction"),
        pytest.param([SEG_0, SEG_2], {0: 100, 1: 155}, set(), id="B becomes leader and finishes one"),
        pytest.param([SEG_0, SEG_1_LATE], {0: 123}, set(), id="A goes on, before anybody else leads"),
        pytest.param([SEG_0, SEG_2, SEG_1_LATE], {0: 100, 1: 155}, {"seg-1"}, id="A was deposed and publishes late"),
        pytest.param(
            [
                SEG_0,
                SEG_2,
                SEG_1_LATE,
                claim("seg-3", 2, {0: 100, 1: 155, 2: 180}),
                claim("seg-4", 1, {0: 100, 1: 160}),
            ],
            {0: 100, 1: 155, 2: 180},
            {"seg-1", "seg-4"},
            id="both A and B are zombies of C",
        ),
        pytest.param(
            [claim("seg-0", 0, {0: 100}), claim("seg-1", 2, {2: 50})],
            {2: 50},
            {"seg-0"},
            id="the new leader never knew of the old one's cleaning",
        ),
        pytest.param(
            [claim("seg-0", 1, {1: 100}), claim("seg-1", 1, {2: 500})],
            {1: 100},
            {"seg-1"},
            id="no word of its own epoch",
        ),
        pytest.param(
            [claim("seg-0", 1, {1: 100, 2: 500})], {}, {"seg-0"}, id="nobody knows of epochs that are to come"
        ),
        pytest.param(
            [SEG_0, SEG_2, claim("seg-3", 1, {0: 100, 1: 170})], {0: 100, 1: 170}, set(), id="B cleans once more"
        ),
    ],
)
def test_whatever_order_they_arrive_in(claims: list[CleanerClaim], offsets: dict[int, int], rejected: set[str]) -> None:
    for order in permutations(claims):
        found = decide_cleaner_offsets(order)
        assert found.offsets == offsets
        assert {one.claim.name for one in found.rejected} == rejected
        assert {one.name for one in found.accepted} == {one.name for one in claims} - rejected


def test_the_latest_epoch_says_what_is_clean() -> None:
    assert decide_cleaner_offsets([SEG_0, claim("seg-1", 1, {0: 100, 1: 60})]).cleaner_offset == 60
    assert decide_cleaner_offsets([]).cleaner_offset is None


def test_a_rejection_says_why() -> None:
    (rejected,) = decide_cleaner_offsets([SEG_1_LATE, SEG_2]).rejected
    assert rejected.reason == "epoch 1 found epoch 0 to end at 100, below 123"

"""Which segments are pinned and which pins go, for one partition (S-044, S-048, S-049, S-053)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pytest

from tests.support.pins import local_partition, pin_of
from tests.support.segments import FINISHED, local_segments, remote_segment
from tiersidecar.decide.pin import PinView, cut_off_pins, decide_pin, is_remote, without_remote_pins
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.segments import Pin, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState

RACE = TopicPolicy(mode=RetentionMode.RACE)


@dataclass(frozen=True)
class Remote:
    """A lookup as the metadata cache does it: by epoch and offset, finished segments only."""

    segments: tuple[RemoteLogSegmentMetadata, ...] = ()

    def __call__(self, epoch: int, offset: int) -> Iterator[RemoteLogSegmentMetadata]:
        for segment in self.segments:
            starts = [entry.start_offset for entry in segment.segment_leader_epochs]
            for entry, stop in zip(segment.segment_leader_epochs, [*starts[1:], segment.next_offset], strict=True):
                if segment.state is FINISHED and entry.epoch == epoch and entry.start_offset <= offset < stop:
                    yield segment


def remote(*ranges: tuple[int, int], epochs: tuple[tuple[int, int], ...] = ((0, 0),)) -> Remote:
    return Remote(tuple(remote_segment(start, end, epochs=epochs) for start, end in ranges))


def view(
    *bases: int,
    pins: Iterable[Pin] = (),
    epochs: Iterable[tuple[int, int]] = ((0, 0),),
    policy: TopicPolicy | None = None,
    segments_at: Remote | None = Remote(),
    can_pin: bool = True,
    made_ms: int = -1,
) -> PinView:
    return PinView(
        policy=policy or TopicPolicy(),
        local=local_partition(local_segments(*bases), epochs=epochs, made_ms=made_ms),
        pins=tuple(pins),
        can_pin=can_pin,
        segments_at=segments_at,
    )


@pytest.mark.parametrize(
    ("given", "high_watermark", "expected"),
    [
        pytest.param(view(0, 50, 100), 999, [0, 50], id="sealed segments are pinned, the active one is not"),
        pytest.param(view(0, 50, 100), 100, [0, 50], id="one that ends right below the high watermark is"),
        pytest.param(view(0, 50, 100), 99, [0], id="one that reaches above the high watermark may yet be cut off"),
        pytest.param(view(0, 50, 100), -1, [], id="nothing while the high watermark is not known"),
        pytest.param(view(0, 50, 100, segments_at=remote((0, 49))), 999, [50], id="what is remote needs no pin"),
        pytest.param(
            view(0, 50, 100, segments_at=remote((0, 69))), 999, [50], id="half of a segment remote is not a segment"
        ),
        pytest.param(
            view(0, 50, 100, segments_at=remote((0, 29), (30, 99))),
            999,
            [],
            id="a leader that rolls elsewhere holds it too",
        ),
        pytest.param(
            view(0, 50, 100, segments_at=remote((0, 99), epochs=((3, 0),))),
            999,
            [0, 50],
            id="what another history copied does not count",
        ),
        pytest.param(view(0, 50, 100, pins=[pin_of(0, 50)]), 999, [50], id="what is pinned stays as it is"),
        pytest.param(
            view(0, 50, pins=[pin_of(0, 50, inode=7)]),
            999,
            [0],
            id="another file of its offsets is pinned in its place",
        ),
        pytest.param(
            view(0, 60, pins=[pin_of(0, 50, inode=7)]), 999, [0], id="and one that a new log has rolled elsewhere"
        ),
        pytest.param(
            view(0, 50, pins=[pin_of(0, 50, log_dir="/other", inode=7)]),
            999,
            [],
            id="a partition that has moved is pinned where it was",
        ),
        pytest.param(
            view(0, 50, 100, pins=[pin_of(0, 50, is_whole=False)]),
            999,
            [0, 50],
            id="a pin without its snapshot is mended",
        ),
        pytest.param(
            view(0, 50, policy=TopicPolicy(copy_disabled=True)), 999, [], id="S-052 nothing is copied, so none"
        ),
        pytest.param(view(0, 50, can_pin=False), 999, [], id="no place for links"),
        pytest.param(view(0, 50, segments_at=None), 999, [], id="strict: before the replay nothing can be lost"),
        pytest.param(
            view(0, 50, segments_at=None, policy=RACE), 999, [0], id="race: before the replay everything may be"
        ),
        pytest.param(
            view(100, 150, epochs=[(3, 105)], segments_at=remote((100, 149), epochs=((2, 90), (3, 105)))),
            999,
            [],
            id="a live file that has forgotten the first offsets' epoch",
        ),
    ],
)
def test_what_is_pinned(given: PinView, high_watermark: int, expected: list[int]) -> None:
    plan = decide_pin(given).below(high_watermark)
    assert [segment.base_offset for segment in plan.pin] == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(view(0, 50, pins=[pin_of(0, 50)]), [], id="not remote: it stays"),
        pytest.param(
            view(0, 50, pins=[pin_of(0, 50)], segments_at=remote((0, 49))), [(0, "remote")], id="COPY_SEGMENT_FINISHED"
        ),
        pytest.param(
            view(100, 150, pins=[pin_of(0, 50), pin_of(50, 100)], segments_at=remote((50, 99))),
            [(50, "remote")],
            id="a hole before it stays pinned",
        ),
        pytest.param(
            view(0, pins=[pin_of(50, 100, epochs=[(0, 0), (3, 50)], inode=7)], segments_at=remote((0, 99))),
            [],
            id="what was copied in an epoch that was cut off, and a new log that has not fetched the later one yet",
        ),
        pytest.param(
            view(0, 50, pins=[pin_of(0, 50)], segments_at=None),
            [],
            id="before the replay nothing is known to be remote",
        ),
        pytest.param(
            view(200, pins=[pin_of(0, 50)], epochs=[(0, 200)]),
            [],
            id="a moved log start raises the first epoch's start",
        ),
        pytest.param(
            view(200, pins=[pin_of(0, 50)], epochs=[(4, 200)]), [], id="a moved log start drops the older epochs"
        ),
        pytest.param(
            view(200, pins=[pin_of(0, 50, epochs=())], epochs=[(4, 200)]), [], id="unreadable epochs contradict nothing"
        ),
        pytest.param(
            view(200, pins=[pin_of(0, 50, epochs=())], epochs=[(0, 0), (1, 20)]),
            [],
            id="nor where the live file reaches back to the pin",
        ),
        pytest.param(
            view(200, pins=[pin_of(0, 100)], epochs=[(0, 0), (1, 60)]),
            [(0, "truncated")],
            id="an unclean election cut the pinned range",
        ),
        pytest.param(
            view(200, pins=[pin_of(0, 60)], epochs=[(0, 0), (1, 60)]), [], id="an election right behind it cut nothing"
        ),
        pytest.param(
            view(80, pins=[pin_of(60, 100, epochs=[(0, 0), (3, 60)])], epochs=[(0, 0), (2, 60)]),
            [(60, "truncated")],
            id="an epoch of the pin that the live file does not have",
        ),
        pytest.param(
            view(0, 50, pins=[pin_of(50, 100)]), [(50, "truncated")], id="the active segment begins where it does"
        ),
        pytest.param(
            view(50, 90, 150, pins=[pin_of(50, 100)]),
            [(50, "truncated")],
            id="the same file was rolled elsewhere since",
        ),
        pytest.param(
            view(30, pins=[pin_of(50, 100)]), [], id="the active segment begins below it: it is of this history yet"
        ),
        pytest.param(
            view(30, made_ms=5, pins=[pin_of(50, 100, inode=7, modified_ms=5)]),
            [(50, "truncated")],
            id="below one that was written in this directory: the follower may never fetch the epoch that cut it off",
        ),
        pytest.param(
            view(0, made_ms=6, pins=[pin_of(50, 100, inode=7, modified_ms=5)]),
            [],
            id="below one that is older than the directory: the replica is built anew",
        ),
        pytest.param(
            view(30, made_ms=5, pins=[pin_of(50, 100, inode=7, modified_ms=5, log_dir="/other")]),
            [],
            id="below one in the log dir that the partition has left",
        ),
        pytest.param(
            view(30, pins=[pin_of(50, 100, epochs=())]),
            [(50, "truncated")],
            id="below one of no known epochs: there is no other sign",
        ),
        pytest.param(
            view(200, epochs=[(3, 70)], pins=[pin_of(60, 100, epochs=[(0, 0), (3, 60)])]),
            [],
            id="the pin's own epoch, which a moved log start has raised within it",
        ),
        pytest.param(
            view(200, epochs=[(4, 70)], pins=[pin_of(50, 100)]),
            [(50, "truncated")],
            id="a later epoch from its middle on, with the older ones dropped",
        ),
        pytest.param(
            view(200, epochs=[(4, 100)], pins=[pin_of(50, 100)]), [], id="a later epoch from its end on, likewise"
        ),
        pytest.param(
            view(0, epochs=[], pins=[pin_of(50, 100, inode=7)]),
            [],
            id="simulation, losses seed 70021: a log that begins anew contradicts nothing",
        ),
        pytest.param(
            view(50, epochs=[], pins=[pin_of(50, 100, inode=7)]),
            [],
            id="where it begins at the pin's own base, in another file",
        ),
        pytest.param(
            view(0, epochs=[(0, 0)], pins=[pin_of(50, 100, epochs=[(0, 0), (3, 50)], inode=7)]),
            [],
            id="an epoch that the new log has not fetched yet",
        ),
        pytest.param(
            view(0, 50, epochs=[(0, 0)], pins=[pin_of(50, 100, epochs=[(0, 0), (3, 50)], inode=7)]),
            [],
            id="nor where its active segment begins there, and may be empty",
        ),
        pytest.param(
            view(0, 60, epochs=[(0, 0)], pins=[pin_of(50, 100, epochs=[(0, 0), (3, 50)], inode=7)]),
            [(50, "truncated")],
            id="an epoch that the new log would have by now",
        ),
        pytest.param(
            view(0, 50, epochs=[(0, 0), (4, 60)], pins=[pin_of(60, 100, epochs=[(0, 0), (3, 60)], inode=7)]),
            [(60, "truncated")],
            id="a later epoch began below it, whether it has a record or none",
        ),
        pytest.param(
            view(50, 100, pins=[pin_of(50, 100, inode=7)]),
            [],
            id="another file of the same offsets takes its place, which is no drop",
        ),
        pytest.param(
            view(50, 120, pins=[pin_of(50, 100, inode=7)]),
            [],
            id="rolled elsewhere anew: it stays until the new file is pinned",
        ),
        pytest.param(
            view(50, 120, pins=[pin_of(50, 100, inode=7), pin_of(50, 120)]),
            [(50, "replaced")],
            id="and goes then",
        ),
        pytest.param(
            view(50, 80, 120, pins=[pin_of(50, 80), pin_of(50, 100, inode=7), pin_of(80, 120)]),
            [(50, "replaced")],
            id="two files hold what one did",
        ),
        pytest.param(
            view(50, 80, 120, pins=[pin_of(50, 100, inode=7), pin_of(80, 120)]),
            [],
            id="one of the two is not pinned yet",
        ),
        pytest.param(
            view(50, 80, 100, pins=[pin_of(50, 80), pin_of(50, 100, inode=7), pin_of(80, 100)]),
            [(50, "replaced")],
            id="two files that end where it does",
        ),
        pytest.param(
            view(50, 80, 120, pins=[pin_of(50, 80, inode=8), pin_of(50, 100, inode=7), pin_of(80, 120)]),
            [],
            id="one of the two is pinned as another file yet",
        ),
        pytest.param(
            view(50, 120, pins=[pin_of(50, 100, log_dir="/other", inode=7), pin_of(50, 120)]),
            [],
            id="one in the log dir that the partition has left stays",
        ),
        pytest.param(
            view(70, 120, pins=[pin_of(50, 100)]), [], id="rebuilt from a leader's log start within it: it stays"
        ),
    ],
)
def test_what_is_dropped(given: PinView, expected: list[tuple[int, str]]) -> None:
    assert [(unpin.pin.base_offset, unpin.reason.value) for unpin in decide_pin(given).drop] == expected


def test_no_pin_goes_because_of_a_copy_that_may_be_lost_again() -> None:
    given = view(0, 50, pins=[pin_of(0, 50)], segments_at=remote((0, 49)))
    assert decide_pin(replace(given, is_sure=False)).drop == ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(view(0), True, id="nothing sealed"),
        pytest.param(view(0, 50, pins=[pin_of(0, 50)]), True, id="all pinned"),
        pytest.param(view(0, 50), False, id="a segment to pin"),
        pytest.param(view(0, 50, segments_at=None), False, id="the metadata is to come"),
        pytest.param(view(0, 50, pins=[pin_of(0, 50, is_whole=False)]), False, id="a snapshot is to come"),
    ],
)
def test_settled_means_nothing_to_do_until_something_changes(given: PinView, expected: bool) -> None:
    assert decide_pin(given).is_settled is expected


def test_a_pin_and_its_twin_agree() -> None:
    local = local_partition(local_segments(0, 50, 100))
    whole, short, beyond = pin_of(0, 50), pin_of(0, 40), pin_of(100, 140)
    assert cut_off_pins([whole], local) == ()
    assert cut_off_pins([short], local) == (short,)
    assert cut_off_pins([short], local, is_compacted=True) == (), "a cleaner has merged it with what followed"
    assert cut_off_pins([beyond], local, is_compacted=True) == (beyond,), "no cleaner merges into the active segment"


def test_of_a_compacted_partition_nothing_stays_above_what_was_cut_off() -> None:
    """Nothing would be pinned again below it."""
    local, pins = local_partition(local_segments(0, 50)), (pin_of(0, 50), pin_of(50, 100), pin_of(100, 150))
    assert cut_off_pins(pins, local) == pins[1:2]
    assert cut_off_pins(pins, local, is_compacted=True) == pins[1:]


def test_a_copy_that_is_not_finished_counts_for_nothing() -> None:
    started = remote_segment(0, 49, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
    assert not is_remote(Lineage.of([(0, 0)]), Remote((started,)), local_segments(0, 50)[0])


def test_a_zombies_segment_beyond_its_epoch_does_not_stand_for_the_next_one() -> None:
    """It is outside the lineage, and will be deleted."""
    lineage = Lineage.of([(0, 0), (1, 60)])
    zombie = remote((0, 99))
    assert not is_remote(lineage, zombie, local_segments(0, 100)[0])
    assert not is_remote(lineage, zombie, local_segments(0, 50)[0])


def test_the_own_copy_counts_though_a_zombies_longer_one_is_the_one_that_is_read() -> None:
    """Else the pin stays, and is copied again, for ever (simulation, cluster seed 184)."""
    lineage = Lineage.of([(0, 0), (1, 60)])
    both = remote((50, 99), (50, 59))
    own = pin_of(50, 60).segment
    assert is_remote(lineage, both, own)
    assert without_remote_pins((own,), lineage, both) == ()


def test_the_active_segment_is_never_remote() -> None:
    assert not is_remote(Lineage.of([(0, 0)]), remote((0, 99)), local_segments(0)[0])


def test_only_pinned_segments_are_left_out_of_a_copy_plan() -> None:
    segments = (pin_of(0, 50).segment, pin_of(50, 100).segment, *local_segments(100, 150))
    left = without_remote_pins(segments, Lineage.of([(0, 0)]), remote((0, 49), (100, 149)))
    assert [segment.base_offset for segment in left] == [50, 100, 150]


def test_what_lies_below_the_offset_that_is_asked_from_need_not_be_remote() -> None:
    lineage, segment = Lineage.of([(0, 0)]), local_segments(0, 100)[0]
    half = remote((50, 99))
    assert not is_remote(lineage, half, segment)
    assert not is_remote(lineage, half, segment, from_offset=49)
    assert is_remote(lineage, half, segment, from_offset=50)
    assert not is_remote(lineage, half, segment, from_offset=100), "nothing of the segment is asked about"


def test_thousands_of_pins_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with each takes seconds of the event loop, at each segment that is rolled in an outage."""

    def refuse(one: Pin, other: object) -> bool:
        raise AssertionError(f"{one} is compared with {other}")

    monkeypatch.setattr(Pin, "__eq__", refuse)
    beside = [pin_of(base, base + 50) for base in range(0, 500, 50)]
    elsewhere = [pin_of(base, base + 50, inode=7) for base in range(10, 400, 50)]
    pins = sorted([*beside, *elsewhere], key=lambda pin: pin.base_offset)
    plan = decide_pin(view(*range(0, 550, 50), pins=pins))
    assert [unpin.pin.base_offset for unpin in plan.drop] == [pin.base_offset for pin in elsewhere]

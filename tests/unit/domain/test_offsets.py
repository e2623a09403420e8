"""Byte ranges are half-open.  Lineages: Kafka's rules as rows, and against plain models that look at single offsets; and an
offset said in one leader epoch, seen from a later history (T-04's cap, for the remote log start).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.domain.offsets import ByteRange, EpochEntry, LeaderEpoch, Lineage, Offset


@pytest.mark.parametrize(("start", "stop", "size"), [(0, 0, 0), (5, 5, 0), (5, 9, 4)])
def test_the_stop_is_not_in_the_range(start: int, stop: int, size: int) -> None:
    assert len(ByteRange(start, stop)) == size


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4)])
def test_a_range_neither_begins_below_zero_nor_ends_before_it_begins(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="not a byte range"):
        ByteRange(start, stop)


Epochs = dict[int, int]
"""Start offsets by epoch."""


def lineage(epochs: Epochs) -> Lineage:
    return Lineage(entries(epochs))


def entries(epochs: Epochs) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs.items())


def rising(least: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(least, most), unique=True, min_size=0, max_size=6).map(sorted)


@st.composite
def lineages(draw: st.DrawFn, least_count: int = 0) -> Lineage:
    epochs, starts = draw(rising(0, 12)), draw(rising(0, 30))
    count = max(min(len(epochs), len(starts)), least_count)
    epochs = (epochs + [13 + extra for extra in range(count)])[:count]
    starts = (starts + [31 + extra for extra in range(count)])[:count]
    return lineage(dict(zip(epochs, starts, strict=True)))


# How entries become a lineage


@pytest.mark.parametrize(
    ("given_entries", "expected"),
    [
        pytest.param([], {}, id="nothing"),
        pytest.param([(0, 0), (2, 35)], {0: 0, 2: 35}, id="in order"),
        pytest.param(
            [(0, 0), (1, 0), (2, 0), (3, 30), (4, 40), (5, 60), (6, 60), (7, 70), (8, 70)],
            {2: 0, 3: 30, 4: 40, 6: 60, 8: 70},
            id="T-08: equal start offsets collapse to the highest epoch",
        ),
        pytest.param([(0, 0), (3, 50), (2, 60)], {0: 0, 2: 60}, id="a lower epoch drops those above it"),
        pytest.param([(0, 0), (3, 50), (4, 40)], {0: 0, 4: 40}, id="a lower start drops those above it"),
        pytest.param([(1, 50), (2, 60), (3, 10)], {3: 10}, id="one entry drops several"),
        pytest.param([(4, 70), (4, 100)], {4: 70}, id="the same epoch again, later: the first stays"),
        pytest.param([(4, 70), (4, 60)], {4: 60}, id="the same epoch again, earlier: it moves"),
    ],
)
def test_entries_are_assigned_as_by_the_brokers_cache(given_entries: list[tuple[int, int]], expected: Epochs) -> None:
    """``LeaderEpochFileCache.assign``."""
    assert Lineage.of(given_entries) == lineage(expected)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30))))
def test_any_entries_make_a_lineage_that_knows_the_last_of_them(given_entries: list[tuple[int, int]]) -> None:
    made = Lineage.of(given_entries)
    assert bool(made) is bool(given_entries)
    if given_entries:
        epoch, start = given_entries[-1]
        assert made.entries[-1].epoch == epoch
        assert made.entries[-1].start_offset <= start
    assert Lineage.of(made.entries) == made


@pytest.mark.parametrize("epochs", [[(0, 0), (0, 5)], [(1, 5), (2, 5)], [(2, 5), (1, 9)]])
def test_entries_that_do_not_ascend_are_no_lineage(epochs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="do not ascend"):
        Lineage(tuple(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs))


# What a lineage says of an offset


@given(lineages(), st.integers(-1, 40))
def test_the_epoch_of_an_offset_is_the_last_that_began(known: Lineage, offset: int) -> None:
    began = [entry.epoch for entry in known.entries if entry.start_offset <= offset]
    assert known.epoch_for_offset(offset) == (began[-1] if began else None)


@given(lineages(), st.integers(0, 40))
def test_an_epoch_ends_where_its_offsets_do(known: Lineage, log_end_offset: int) -> None:
    last = known.entries[-1].start_offset if known else 0
    end = max(log_end_offset, last)
    for entry in known.entries:
        stop = known.end_offset_of(entry.epoch, end)
        assert stop is not None
        epochs = {known.epoch_for_offset(offset) for offset in range(entry.start_offset, stop)}
        assert epochs <= {entry.epoch}
        assert known.epoch_for_offset(stop) != entry.epoch or stop == end
    assert known.end_offset_of(99, end) is None


def test_the_latest_epoch_of_nothing_is_none() -> None:
    assert Lineage().latest_epoch == -1
    assert lineage({3: 0, 5: 9}).latest_epoch == 5


# The epochs of a segment


@pytest.mark.parametrize(
    ("known", "start", "end", "expected"),
    [
        pytest.param({0: 0, 1: 100, 2: 200}, 100, 200, {1: 100}, id="T-01: just one epoch of three"),
        pytest.param({0: 0, 2: 35}, 20, 40, {0: 20, 2: 35}, id="a boundary inside: the first start is raised"),
        pytest.param({0: 0, 2: 35}, 35, 36, {2: 35}, id="begins at a boundary"),
        pytest.param({0: 0, 2: 35}, 0, 35, {0: 0}, id="ends at a boundary"),
        pytest.param({5: 50}, 20, 60, {5: 50}, id="begins below the lineage: nothing is raised"),
        pytest.param({5: 50}, 20, 50, {}, id="wholly below the lineage"),
        pytest.param({5: 50}, 60, 60, {}, id="no offsets"),
    ],
)
def test_entries_of_a_range(known: Epochs, start: int, end: int, expected: Epochs) -> None:
    """``LeaderEpochFileCache.epochEntriesInRange``."""
    assert lineage(known).entries_in_range(start, end) == entries(expected)


@given(lineages(), st.integers(0, 40), st.integers(0, 40))
def test_the_entries_of_a_range_say_what_each_of_its_offsets_says(known: Lineage, start: int, end: int) -> None:
    expected: Epochs = {}
    for offset in range(start, end):
        epoch = known.epoch_for_offset(offset)
        if epoch is not None:
            expected.setdefault(epoch, offset)
    assert known.entries_in_range(start, end) == entries(expected)


@given(lineages(), st.integers(0, 40))
def test_the_entries_below_an_offset_are_not_cut_at_the_front(known: Lineage, end: int) -> None:
    """S-034."""
    assert known.entries_below(end) == tuple(entry for entry in known.entries if entry.start_offset < end)


# Whether a remote segment is of this history

MANY = {0: 0, 1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 7: 70}
CUT = {7: 51, 9: 100}


@pytest.mark.parametrize(
    ("known", "log_end", "segment", "end", "is_ours"),
    [
        pytest.param(MANY, 90, {1: 15, 2: 20, 3: 30}, 35, True, id="T-09: several epochs"),
        pytest.param(MANY, 90, {1: 15}, 19, True, id="T-09: one epoch"),
        pytest.param(MANY, 90, {0: 0}, 5, True, id="T-09: begins where the first epoch does"),
        pytest.param(MANY, 90, {7: 70}, 75, True, id="T-09: begins where the last epoch does"),
        pytest.param(MANY, 90, {1: 15, 2: 20}, 29, True, id="T-09: ends where an epoch does"),
        pytest.param(MANY, 90, {5: 55, 6: 60, 7: 70}, 85, False, id="T-10: an epoch that the lineage lacks"),
        pytest.param(MANY, 90, {1: 15, 2: 20, 4: 40}, 45, False, id="T-10: lacks an epoch of the lineage"),
        pytest.param(MANY, 90, MANY, 95, False, id="T-11: ends above the log end"),
        pytest.param(MANY, 90, MANY, 90, False, id="T-11: ends at the log end"),
        pytest.param({0: 0, 1: 99}, 50, {0: 0}, 50, False, id="T-11: ends at the log end, below a stale epoch"),
        pytest.param(MANY, 90, MANY, 89, True, id="T-11: ends just below the log end"),
        pytest.param(MANY, 90, {1: 5, 2: 20}, 25, False, id="T-12: begins before its first epoch does"),
        pytest.param(MANY, 90, {1: 15, 2: 20}, 35, False, id="T-12: ends after its last epoch does"),
        pytest.param(CUT, 210, {5: 14, 7: 15, 9: 100}, 150, True, id="T-13: overlaps the cut-off head"),
        pytest.param(CUT, 210, {2: 5, 3: 6}, 7, False, id="T-14: all epochs below the head"),
        pytest.param(CUT, 210, {7: 15, 9: 100, 10: 200}, 250, False, id="T-14: the last epoch above the lineage"),
        pytest.param(CUT, 210, {8: 75}, 100, False, id="T-14: an epoch between two of the lineage"),
        pytest.param(CUT, 210, {7: 15, 9: 101}, 150, False, id="T-14: a boundary one too high"),
        pytest.param(CUT, 210, {9: 99}, 150, False, id="T-14: begins one before its epoch does"),
        pytest.param({}, 210, {0: 0}, 5, False, id="no lineage: nothing is known to be ours"),
        pytest.param(
            {2: 0, 3: 30},
            90,
            {0: 0, 1: 0, 2: 0, 3: 30},
            40,
            True,
            id="T-08: epochs without a record are not looked at",
        ),
    ],
)
def test_a_segment_is_within_the_lineage(known: Epochs, log_end: int, segment: Epochs, end: int, is_ours: bool) -> None:
    """``RemoteLogManagerTest.testRemoteSegmentWithinLeaderEpochs`` and ``…ForOverlappingSegments``."""
    assert lineage(known).contains_segment(entries(segment), end, log_end) is is_ours


@st.composite
def histories_and_segments(draw: st.DrawFn) -> tuple[Lineage, Lineage, int]:
    """A lineage, a segment's epochs and its end: any, or a piece of the lineage with one entry changed, added or gone."""
    known = draw(lineages(least_count=1))
    if draw(st.booleans()):
        segment = draw(lineages(least_count=1))
        return known, segment, segment.entries[-1].start_offset + draw(st.integers(0, 20))
    start = draw(st.integers(0, 40))
    end = start + draw(st.integers(0, 30))
    epochs = {int(epoch): int(offset) for epoch, offset in known.entries_in_range(start, end + 1)}
    match draw(st.sampled_from(["as it is", "change", "add", "drop"])):
        case "change" if epochs:
            epochs[draw(st.sampled_from(sorted(epochs)))] = draw(st.integers(0, 45))
        case "add":
            epochs[draw(st.integers(0, 14))] = draw(st.integers(0, 45))
        case "drop" if epochs:
            del epochs[draw(st.sampled_from(sorted(epochs)))]
    segment = Lineage.of(sorted(epochs.items())) or lineage({0: start})
    return known, segment, max(end, segment.entries[-1].start_offset)


@given(histories_and_segments(), st.integers(1, 60))
def test_a_segment_is_ours_if_the_epoch_of_each_of_its_offsets_is(
    drawn: tuple[Lineage, Lineage, int], log_end: int
) -> None:
    """The rules of Kafka, told of single offsets: the head of the lineage reaches down as far as may be, because a moved
    log start has raised it; what epochs below the head wrote proves nothing, but something must be proved."""
    known, segment, end = drawn
    start, head = segment.entries[0].start_offset, known.entries[0].epoch
    proving = []
    for offset in range(start, end + 1):
        theirs, ours = segment.epoch_for_offset(offset), known.epoch_for_offset(offset)
        if theirs is not None and theirs >= head:
            proving.append(theirs == (head if ours is None else ours))
    is_ours = end < log_end and bool(proving) and all(proving)
    assert known.contains_segment(segment.entries, end, log_end) is is_ours


@given(lineages(least_count=1), st.integers(0, 40), st.integers(1, 20))
def test_every_segment_of_a_history_is_within_it(known: Lineage, start: int, length: int) -> None:
    epochs = known.entries_in_range(start, start + length)
    if epochs and epochs[0].start_offset == start:
        assert known.contains_segment(epochs, start + length - 1, start + length)


# What the broker's file and a remote blob make together


@pytest.mark.parametrize(
    ("blob", "live", "expected"),
    [
        pytest.param({}, {0: 0, 2: 35}, {0: 0, 2: 35}, id="nothing remote: the live file"),
        pytest.param({0: 0, 2: 35}, {}, {0: 0, 2: 35}, id="no live file: the blob"),
        pytest.param({0: 0, 2: 35}, {0: 0, 2: 35, 4: 70}, {0: 0, 2: 35, 4: 70}, id="the live file goes on"),
        pytest.param(
            {0: 0, 2: 35, 4: 70},
            {4: 90, 6: 105},
            {0: 0, 2: 35, 4: 70, 6: 105},
            id="the log start moved: dropped epochs come back, the raised start of the first as well",
        ),
        pytest.param({0: 0}, {0: 70}, {0: 0}, id="the log start moved within the only epoch"),
        pytest.param(
            {0: 0, 2: 35, 3: 90},
            {0: 0, 2: 35, 4: 80},
            {0: 0, 2: 35, 4: 80},
            id="unclean election: the divergent epoch is not kept; never a union",
        ),
        pytest.param(
            {0: 0, 2: 35, 3: 90},
            {2: 60, 4: 80},
            {0: 0, 2: 35, 4: 80},
            id="unclean election and a moved log start",
        ),
        pytest.param({0: 0, 2: 35, 3: 90}, {0: 0, 2: 35}, {0: 0, 2: 35}, id="the log was truncated below the blob"),
        pytest.param(
            {0: 0, 2: 35}, {4: 70, 6: 80}, {0: 0, 2: 35, 4: 70, 6: 80}, id="they do not meet: one after the other"
        ),
        pytest.param(
            {0: 0, 1: 50, 2: 90},
            {3: 80},
            {0: 0, 1: 50, 3: 80},
            id="they do not meet: ours at or above the live file's first start are of another history",
        ),
        pytest.param(
            {0: 0, 5: 50},
            {3: 80},
            {0: 0, 3: 80},
            id="they do not meet: ours at or above the live file's first epoch are of another history",
        ),
        pytest.param(
            {0: 0, 4: 100},
            {4: 70, 6: 120},
            {0: 0, 4: 70, 6: 120},
            id="the live file knows an earlier start of the common epoch",
        ),
        pytest.param(
            {0: 0, 4: 100}, {6: 50}, {0: 0, 6: 50}, id="all replicas lost: a new epoch begins below what was copied"
        ),
    ],
)
def test_a_blob_is_carried_on_by_the_live_file(blob: Epochs, live: Epochs, expected: Epochs) -> None:
    """The blob of the last finished segment that agrees, then the live file's entries."""
    assert lineage(blob).extended_by(entries(live)) == lineage(expected)


@given(lineages(), lineages())
def test_the_live_file_is_right_about_all_that_it_still_covers(blob: Lineage, live: Lineage) -> None:
    joined = blob.extended_by(live.entries)
    assert joined.extended_by(live.entries) == joined
    if live:
        for offset in range(live.entries[0].start_offset, 50):
            assert joined.epoch_for_offset(offset) == live.epoch_for_offset(offset)


@given(lineages(least_count=1), st.integers(0, 50), st.integers(1, 60))
def test_a_history_whose_front_was_dropped_is_whole_again(history: Lineage, log_start: int, copied_to: int) -> None:
    """Whatever the log start, as long as a blob reaches into the first epoch that the live file still has."""
    live = history.entries_in_range(log_start, 1000)
    blob = Lineage(history.entries_below(copied_to))
    if blob.latest_epoch >= live[0].epoch:
        assert blob.extended_by(live) == history


# Batches on disk against the lineage


@pytest.mark.parametrize(
    ("seen", "ends", "is_explained"),
    [
        pytest.param({0: 20, 2: 35}, [34, 50], True, id="as written"),
        pytest.param({0: 20, 2: 38}, [30, 50], True, id="compaction took the batches around the boundary"),
        pytest.param({0: 20, 2: 38}, [37, 50], False, id="the new epoch's first batch says the old one"),
        pytest.param({0: 20, 2: 33}, [32, 50], False, id="the old epoch's last batch says the new one"),
        pytest.param({0: 20, 1: 35}, [34, 50], False, id="an epoch that never was"),
        pytest.param({9: 20}, [30], False, id="a future epoch"),
        pytest.param({}, [], True, id="no batch"),
    ],
)
def test_batches_are_explained_by_the_lineage(seen: Epochs, ends: list[int], is_explained: bool) -> None:
    assert lineage({0: 0, 2: 35, 4: 70}).explains(entries(seen), ends) is is_explained


def test_batches_below_the_first_entry_prove_nothing() -> None:
    """The log start moved while the segment was being read."""
    assert lineage({4: 70}).explains(entries({0: 20, 2: 35}), [34, 50])
    assert lineage({4: 70}).explains(entries({2: 35, 4: 70}), [69, 90])
    assert not lineage({4: 70}).explains(entries({2: 35}), [80])


@pytest.mark.parametrize(
    ("entries", "offset", "epoch", "expected"),
    [
        pytest.param([(0, 0), (2, 50)], 100, 2, 100, id="said by the present leader"),
        pytest.param([(0, 0), (2, 50)], 100, 0, 50, id="said by a leader whose tail an unclean election cut off"),
        pytest.param([(0, 0), (2, 50)], 100, 1, 50, id="said in an epoch that this history does not know"),
        pytest.param([(0, 0), (2, 50)], 40, 0, 40, id="of what both histories share"),
        pytest.param([(4, 0)], 100, 0, 0, id="the log began anew"),
        pytest.param([], 100, 0, 100, id="no history is known"),
        pytest.param([(0, 0)], -1, -1, -1, id="nothing was said"),
    ],
)
def test_as_of(entries: list[tuple[int, int]], offset: int, epoch: int, expected: int) -> None:
    assert Lineage.of(entries).as_of(offset, epoch) == expected

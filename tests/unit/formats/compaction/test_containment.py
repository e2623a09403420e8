"""Whether a remote log has every record of a local one (S-266, S-275)."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import SupportsIndex, overload

import pytest

from tests.support.compacted_logs import COMMIT, NOW_MS, LogSegment, clean, data_batch, marker_batch
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.compaction.containment import HeldBatch, first_lacking
from tiersidecar.formats.kafka.record_batches import iter_batch_headers

A, B, C = (b"a", b"1"), (b"b", b"1"), (b"c", b"1")
GONE = (b"a", None)


def batches(*logs: bytes) -> list[HeldBatch]:
    log = b"".join(logs)
    return [(header, log[at : at + header.size_bytes]) for at, header in iter_batch_headers(log)]


def cleaned(log: bytes, stop: int) -> bytes:
    """What a cleaner leaves of a log."""
    segment = LogSegment(base_offset=0, next_base_offset=stop, log=log)
    return clean([segment], now_ms=NOW_MS).segments[0].log


WHOLE = data_batch(0, [A, B, (b"a", b"2")]) + data_batch(3, [C])
LEFT = cleaned(WHOLE, 4)
MARKER = data_batch(0, [A], producer=(7, 0, 0), transactional=True) + marker_batch(1, COMMIT, producer_id=7)


@pytest.mark.parametrize(
    ("local", "remote", "start", "lacks"),
    [
        pytest.param(WHOLE, WHOLE, 0, None, id="both are as they were written"),
        pytest.param(LEFT, WHOLE, 0, None, id="the broker's cleaner alone was there"),
        pytest.param(LEFT, LEFT, 0, None, id="both were cleaned"),
        pytest.param(WHOLE, LEFT, 0, 0, id="an old value is in the local one alone"),
        pytest.param(WHOLE, LEFT, 1, None, id="it lies below the log start"),
        pytest.param(WHOLE, data_batch(0, [A, B, (b"a", b"2")]), 0, 3, id="the remote one ends before it"),
        pytest.param(data_batch(3, [C]), data_batch(0, [A, B, (b"a", b"2")]), 0, 3, id="nothing there is near"),
        pytest.param(
            data_batch(0, [GONE]), data_batch(0, [GONE]), 0, 0, id="a tombstone, though the remote one has it"
        ),
        pytest.param(MARKER, MARKER, 0, None, id="a marker that both have"),
        pytest.param(MARKER, MARKER[: -len(marker_batch(1, COMMIT, producer_id=7))], 0, 1, id="a marker of one alone"),
        pytest.param(
            data_batch(0, [A, B], codec=4),
            data_batch(0, [A, B], codec=1),
            0,
            None,
            id="they are compressed differently",
        ),
        pytest.param(b"", WHOLE, 0, None, id="nothing is left of the local one"),
    ],
)
def test_the_first_record_that_keeps_the_local_log(local: bytes, remote: bytes, start: int, lacks: int | None) -> None:
    found = first_lacking(batches(local), batches(remote), start_offset=start, where="remote")
    assert (None if found is None else found.offset) == lacks


@pytest.mark.parametrize(
    "remote",
    [
        pytest.param(data_batch(0, [(b"a", b"2")]), id="another value"),
        pytest.param(data_batch(0, [(b"x", b"1")]), id="another key"),
        pytest.param(data_batch(0, [A], base_timestamp=NOW_MS), id="another time"),
        pytest.param(data_batch(0, [A], producer=(7, 0, 0)), id="another producer's"),
    ],
)
def test_another_record_of_the_same_offset_is_damage(remote: bytes) -> None:
    with pytest.raises(CorruptDataError, match="at offset 0 is not the broker's"):
        first_lacking(batches(data_batch(0, [A])), batches(remote), start_offset=0, where="remote")


def test_a_record_of_another_leader_epoch_is_of_another_history() -> None:
    (local,) = batches(data_batch(0, [A]))
    other = (replace(local[0], partition_leader_epoch=3), local[1])  # type: ignore[arg-type]
    with pytest.raises(CorruptDataError):
        first_lacking([local], [other], start_offset=0, where="remote")


def test_an_empty_batch_holds_nothing() -> None:
    """A cleaner leaves it for its producer's last sequence."""
    (only,) = batches(data_batch(0, [A]))
    empty = (replace(only[0], record_count=0), only[1])
    assert first_lacking([empty], [], start_offset=0, where="remote") is None


class CountedLooks(list[HeldBatch]):
    """Counts the batches that are taken from it."""

    looks = 0

    @overload
    def __getitem__(self, at: SupportsIndex, /) -> HeldBatch: ...
    @overload
    def __getitem__(self, at: slice, /) -> list[HeldBatch]: ...
    def __getitem__(self, at: SupportsIndex | slice, /) -> HeldBatch | list[HeldBatch]:
        found = super().__getitem__(at)
        self.looks += len(found) if isinstance(at, slice) else 1
        return found


def test_many_tiny_batches_are_each_compared_with_those_of_their_offsets_alone() -> None:
    log = batches(*(data_batch(offset, [B]) for offset in range(300)))
    remote = CountedLooks(log)
    assert first_lacking(log, remote, start_offset=0, where="remote") is None
    assert remote.looks < 10 * len(log), "else a segment of tiny batches takes hours"


def test_a_batch_that_both_have_is_not_in_memory_as_records() -> None:
    """One batch of a MiB may open to a million of them, which would take hundreds of MiB."""
    log = batches(data_batch(0, [(b"", b"")] * 20_000, codec=4))
    tracemalloc.start()
    try:
        assert first_lacking(log, log, start_offset=0, where="remote") is None
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000_000, "as objects they take 200 bytes each"

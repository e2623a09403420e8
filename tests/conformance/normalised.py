"""What may differ between the simulated brokers and Kafka, each with the reason why; all else is compared as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tests.conformance.observation import FetchSeen, FilesSeen, Observation, ReplySeen, SegmentSeen

Normalisation = Callable[[Observation, int], Observation]


def nobody_leads(seen: Observation, began_ms: int) -> Observation:
    """While a partition is without a leader, its epoch and who is in sync are the controller's own book-keeping: Kafka 4 moves
    the last replica in sync to the eligible leaders, Kafka 3.9 does not, and nothing can be asked or written."""
    return seen if seen.leader is not None else replace(seen, leader_epoch=-1, in_sync=())


def epochs_by_rank(seen: Observation, began_ms: int) -> Observation:
    """Kafka's controller counts an epoch more where a partition is without a leader for a moment: nothing is written in it, and
    it is in no file.  Which of the epochs that are there is meant is what counts."""
    known = {seen.leader_epoch} - {-1}
    for files in seen.files.values():
        known |= {epoch for epoch, _ in files.epochs}
        known |= {batch.leader_epoch for segment in files.segments for batch in segment.batches}
    ranks = {epoch: rank for rank, epoch in enumerate(sorted(known))}

    def rank(epoch: int) -> int:
        return ranks.get(epoch, epoch if epoch < 0 else 1_000_000)

    return replace(
        seen,
        leader_epoch=rank(seen.leader_epoch),
        replies={name: replace(one, leader_epoch=rank(one.leader_epoch)) for name, one in seen.replies.items()},
        parted={(rank(epoch), offset): one for (epoch, offset), one in seen.parted.items()},
        files={
            broker: replace(
                files,
                epochs=tuple((rank(epoch), start) for epoch, start in files.epochs),
                segments=tuple(
                    replace(
                        segment,
                        batches=tuple(
                            replace(batch, leader_epoch=rank(batch.leader_epoch)) for batch in segment.batches
                        ),
                    )
                    for segment in files.segments
                ),
            )
            for broker, files in seen.files.items()
        },
    )


def producers_by_rank(seen: Observation, began_ms: int) -> Observation:
    """Kafka's coordinator gives producer ids out, one after the other; the simulation's are fixed.  A script's producers appear
    in the same order."""
    known = set[int]()
    for files in seen.files.values():
        known |= {batch.producer_id for segment in files.segments for batch in segment.batches}
        known |= {entry.producer_id for segment in files.segments for entry in segment.aborted}
        known |= {producer for snapshot in files.snapshots.values() for producer in snapshot}
    known |= {producer for fetched in seen.fetched.values() for producer, _ in fetched.aborted}
    ranks = {producer: rank for rank, producer in enumerate(sorted(known - {-1}))} | {-1: -1}

    def ranked(files: FilesSeen) -> FilesSeen:
        return replace(
            files,
            segments=tuple(_with_ranks(segment, ranks) for segment in files.segments),
            snapshots={
                offset: {ranks[producer]: first for producer, first in snapshot.items()}
                for offset, snapshot in files.snapshots.items()
            },
        )

    return replace(
        seen,
        fetched={
            key: replace(one, aborted=tuple(sorted((ranks[producer], first) for producer, first in one.aborted)))
            for key, one in seen.fetched.items()
        },
        files={broker: ranked(files) for broker, files in seen.files.items()},
    )


def _with_ranks(segment: SegmentSeen, ranks: dict[int, int]) -> SegmentSeen:
    return replace(
        segment,
        batches=tuple(replace(batch, producer_id=ranks[batch.producer_id]) for batch in segment.batches),
        aborted=tuple(entry._replace(producer_id=ranks[entry.producer_id]) for entry in segment.aborted),
    )


def markers_are_written_later(seen: Observation, began_ms: int) -> Observation:
    """The coordinator's own clock is in a marker; the records' timestamps are the script's."""

    def timed(one: ReplySeen) -> ReplySeen:
        since_ms = one.timestamp_ms - began_ms
        return one if one.timestamp_ms < 0 else replace(one, timestamp_ms=min(since_ms, 1))

    return replace(seen, replies={name: timed(one) for name, one in seen.replies.items()})


NORMALISATIONS: tuple[Normalisation, ...] = (nobody_leads, epochs_by_rank, producers_by_rank, markers_are_written_later)


def normalised(seen: Observation, began_ms: int) -> dict[str, Any]:
    """What is left to compare, by name."""
    for normalisation in NORMALISATIONS:
        seen = normalisation(seen, began_ms)
    return dict(_rows(seen))


def differences(modelled: dict[str, Any], real: dict[str, Any]) -> list[str]:
    """One line each."""
    names = sorted(modelled.keys() | real.keys())
    return [
        f"{name}: model {modelled.get(name, 'nothing')}, Kafka {real.get(name, 'nothing')}"
        for name in names
        if modelled.get(name) != real.get(name)
    ]


def _rows(seen: Observation) -> Iterable[tuple[str, Any]]:
    yield "outcome", seen.outcome
    yield "leader", seen.leader
    yield "leader epoch", seen.leader_epoch
    yield "in sync", seen.in_sync
    for name, reply in seen.replies.items():
        yield f"offset {name}", reply
    for (broker, name), fetched in seen.fetched.items():
        yield f"fetch at {broker} from {name}", _contents(fetched)
    for (epoch, offset), parted in seen.parted.items():
        yield f"a reader at {offset} in epoch {epoch}", parted
    for broker, files in seen.files.items():
        where = f"replica {broker}"
        yield f"{where} segments", [segment.base_offset for segment in files.segments]
        for segment in files.segments:
            yield f"{where} segment {segment.base_offset} batches", (segment.size, segment.batches)
            yield f"{where} segment {segment.base_offset} aborted", segment.aborted
        yield f"{where} epochs", files.epochs
        yield f"{where} checkpointed high watermark", files.high_watermark
        yield f"{where} snapshots", sorted(files.snapshots)
        for offset, snapshot in files.snapshots.items():
            yield f"{where} snapshot {offset}", snapshot


def _contents(fetched: FetchSeen) -> Any:
    """With an error a broker says nothing else that counts."""
    return fetched if fetched.error == "none" else fetched.error

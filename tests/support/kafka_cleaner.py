"""Kafka's own ``Cleaner`` class over logs of ours, in a JVM without a broker (``KafkaCleaner.java``)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.compacted_logs import LogSegment
from tests.support.kafka_jars import java_program, kafka_classpath
from tiersidecar.formats.compaction.cleaning import LastRecord
from tiersidecar.formats.kafka.indexes import AbortedTransaction

SOURCE = Path(__file__).with_name("KafkaCleaner.java")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerCase:
    """A log, all of which may be cleaned, and the terms of a round over it; ``map_bytes`` is to hold all keys."""

    segments: tuple[LogSegment, ...]
    aborted: tuple[AbortedTransaction, ...]
    producers: Mapping[int, LastRecord]
    now_ms: int
    delete_retention_ms: int
    first_dirty: int
    map_bytes: int

    def terms(self) -> str:
        """Return the terms as Java properties."""
        producers = [
            number
            for producer_id, one in self.producers.items()
            for number in (producer_id, -1 if one.data_offset is None else one.data_offset, one.epoch)
        ]
        rows = {
            "bases": [segment.base_offset for segment in self.segments],
            "ends": [segment.next_base_offset for segment in self.segments],
            "first.dirty": [self.first_dirty],
            "bound": [self.segments[-1].next_base_offset],
            "now": [self.now_ms],
            "delete.retention": [self.delete_retention_ms],
            "map.bytes": [self.map_bytes],
            "aborted": [number for one in self.aborted for number in one],
            "producers": producers,
        }
        return "".join(f"{name}={','.join(map(str, values))}\n" for name, values in rows.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCleaned:
    """Result of the cleaner: one segment out of all; the latest offset of the map; and what it took of the JVM's CPU time."""

    segment: LogSegment
    transaction_index: bytes
    latest_offset: int
    cpu_s: float


def clean_by_kafka(
    directory: Path, cases: Sequence[CleanerCase], *, jvm_options: Sequence[str] = ("-XX:TieredStopAtLevel=1",)
) -> list[KafkaCleaned]:
    """Clean all of them in one JVM, one after the other, in the empty ``directory``."""
    own = [directory / f"{number:04d}" for number in range(len(cases))]
    for place, case in zip(own, cases, strict=True):
        place.mkdir()
        for segment in case.segments:
            (place / f"{segment.base_offset:020d}.log").write_bytes(segment.log)
        (place / "terms.properties").write_text(case.terms())
    command = [java_program(), *jvm_options, "-cp", kafka_classpath(), str(SOURCE), str(directory)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    times = [float(line) for line in ran.stdout.splitlines()]
    return [_left(place, case, cpu_s) for place, case, cpu_s in zip(own, cases, times, strict=True)]


def _left(directory: Path, case: CleanerCase, cpu_s: float) -> KafkaCleaned:
    index = directory / "cleaned.txnindex"
    return KafkaCleaned(
        segment=LogSegment(
            base_offset=case.segments[0].base_offset,
            next_base_offset=case.segments[-1].next_base_offset,
            log=(directory / "cleaned.log").read_bytes(),
        ),
        transaction_index=index.read_bytes() if index.exists() else b"",
        latest_offset=int((directory / "latest").read_text()),
        cpu_s=cpu_s,
    )

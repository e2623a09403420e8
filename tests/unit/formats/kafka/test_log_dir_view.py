"""ListOffsets, answered from the files alone, equals what the broker answered (expected/offsets*.json)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import CLEAN_LOG_DIR, UNCLEAN_LOG_DIR, read_json
from tiersidecar.domain.segments import SegmentScan
from tiersidecar.formats.kafka.log_dir_files import LogFileKind, parse_log_file, read_offset_checkpoint
from tiersidecar.formats.kafka.producer_state import read_producer_snapshot
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import Record, read_records
from tiersidecar.formats.kafka.segment_scan import SegmentScanner

CLEAN = [pytest.param(name, told, id=name) for name, told in read_json("log-dirs", "expected", "offsets.json").items()]


def logs_of(directory: Path) -> list[Path]:
    names = [(parse_log_file(path.name), path) for path in directory.iterdir()]
    return sorted(path for name, path in names if name is not None and name.kind is LogFileKind.LOG)


def scans_of(directory: Path) -> Iterator[SegmentScan]:
    for path in logs_of(directory):
        scanner = SegmentScanner(where=path.name, base_offset=int(path.stem))
        scanner.feed(path.read_bytes())
        yield scanner.finish()


def records_of(directory: Path) -> Iterator[Record]:
    for path in logs_of(directory):
        log = memoryview(path.read_bytes())
        for position, header in iter_batch_headers(log):
            yield from read_records(log[position : position + header.size_bytes])


def log_end_of(directory: Path) -> int:
    last = int(logs_of(directory)[-1].stem)
    return max(last, *(scan.last_offset + 1 for scan in scans_of(directory)))


@pytest.mark.parametrize(("name", "told"), CLEAN)
def test_offsets_follow_from_the_files(name: str, told: dict[str, Any]) -> None:
    directory = CLEAN_LOG_DIR / name
    end = log_end_of(directory)
    assert end == told["latest"]

    topic, _, partition = name.rpartition("-")
    starts = read_offset_checkpoint((CLEAN_LOG_DIR / "log-start-offset-checkpoint").read_bytes(), where="starts")
    assert starts.get((topic, int(partition)), int(logs_of(directory)[0].stem)) == told["earliest"]

    # A clean stop leaves a producer snapshot at the log end: the oldest open transaction holds the LSO back.
    snapshot = directory / f"{end:020d}.snapshot"
    states = read_producer_snapshot(snapshot.read_bytes()) if snapshot.exists() else ()
    open_offsets = [state.current_transaction_first_offset for state in states]
    assert min((offset for offset in open_offsets if offset >= 0), default=end) == told["lso_read_committed_latest"]


@pytest.mark.parametrize(("name", "told"), CLEAN)
def test_the_latest_record_follows_from_the_files(name: str, told: dict[str, Any]) -> None:
    """ListOffsets MAX_TIMESTAMP: the first record of the latest time."""
    directory = CLEAN_LOG_DIR / name
    assert max((scan.max_timestamp_ms for scan in scans_of(directory)), default=-1) == told["max_timestamp_ms"]
    latest = (record.offset for record in records_of(directory) if record.timestamp_ms == told["max_timestamp_ms"])
    assert next(latest, -1) == told["max_timestamp"]


def test_after_a_kill_the_log_end_follows_from_the_files_alone() -> None:
    """No snapshot, stale checkpoints: the batches tell."""
    told = read_json("log-dirs", "expected", "offsets-unclean.json")
    names = sorted(path.parent.name for path in UNCLEAN_LOG_DIR.glob("*/partition.metadata"))
    present = [name for name in names if name in told]
    assert "epochs-0" in present
    ends = {name: log_end_of(UNCLEAN_LOG_DIR / name) for name in present}
    assert ends == {name: told[name]["latest"] for name in present}

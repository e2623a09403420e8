"""The companions of a segment: as they lie there, or a reason why not."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.unit.adapters.log_dirs_fs.broker_files import copy_golden_partition, sealed_segment
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.domain.errors import SegmentChangedError
from tiersidecar.ports.log_dirs import Artefact


@pytest.fixture
async def log_dirs(tmp_path: Path) -> AsyncIterator[FilesystemLogDirs]:
    async with ThreadBlocking(max_threads=2) as blocking:
        yield FilesystemLogDirs([str(tmp_path)], blocking=blocking, clock=ManualClock())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return copy_golden_partition("transactions-0", tmp_path)


async def test_they_come_byte_for_byte_and_the_snapshot_is_that_of_the_next_offset(
    log_dirs: FilesystemLogDirs, directory: Path
) -> None:
    """S-033: the producer snapshot is at the *next* base offset."""
    artefacts = await log_dirs.read_artefacts(sealed_segment(directory, 0))
    assert artefacts.offset_index == (directory / f"{0:020d}.index").read_bytes()
    assert artefacts.time_index == (directory / f"{0:020d}.timeindex").read_bytes()
    assert artefacts.transaction_index == (directory / f"{0:020d}.txnindex").read_bytes()
    assert artefacts.producer_snapshot == (directory / f"{43:020d}.snapshot").read_bytes()


async def test_a_segment_without_aborted_transactions_has_no_transaction_index(
    log_dirs: FilesystemLogDirs, tmp_path: Path
) -> None:
    directory = copy_golden_partition("plain-0", tmp_path)
    assert (await log_dirs.read_artefacts(sealed_segment(directory, 0))).transaction_index is None


@pytest.mark.parametrize(
    ("file", "artefact"),
    [
        (f"{43:020d}.snapshot", Artefact.PRODUCER_SNAPSHOT),
        (f"{0:020d}.index", Artefact.OFFSET_INDEX),
        (f"{0:020d}.timeindex", Artefact.TIME_INDEX),
    ],
    ids=["snapshot", "offset index", "time index"],
)
async def test_one_that_is_missing_may_come(
    log_dirs: FilesystemLogDirs, directory: Path, file: str, artefact: Artefact
) -> None:
    """S-024; U9: the snapshot appears after the following segment does."""
    (directory / file).unlink()
    artefacts = await log_dirs.read_artefacts(sealed_segment(directory, 0))
    [fault] = artefacts.faults
    assert (fault.artefact, fault.may_come) == (artefact, True)
    assert fault.reason == f"{directory / file} is not there"


@pytest.mark.parametrize("damage", ["flipped", "half", "empty"])
async def test_a_snapshot_that_fails_its_checks_may_come(
    log_dirs: FilesystemLogDirs, directory: Path, damage: str
) -> None:
    """It is not written in one step."""
    path = directory / f"{43:020d}.snapshot"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes({"flipped": bytes(data), "half": bytes(data[: len(data) // 2]), "empty": b""}[damage])
    artefacts = await log_dirs.read_artefacts(sealed_segment(directory, 0))
    [fault] = artefacts.faults
    assert (fault.artefact, fault.may_come) == (Artefact.PRODUCER_SNAPSHOT, True)
    assert artefacts.producer_snapshot is None


@pytest.mark.parametrize(
    ("kind", "artefact"),
    [
        ("index", Artefact.OFFSET_INDEX),
        ("timeindex", Artefact.TIME_INDEX),
        ("txnindex", Artefact.TRANSACTION_INDEX),
    ],
)
async def test_an_index_cut_within_an_entry_is_at_fault(
    log_dirs: FilesystemLogDirs, directory: Path, kind: str, artefact: Artefact
) -> None:
    path = directory / f"{0:020d}.{kind}"
    os.truncate(path, path.stat().st_size - 3)
    artefacts = await log_dirs.read_artefacts(sealed_segment(directory, 0))
    [fault] = artefacts.faults
    assert (fault.artefact, fault.may_come) == (artefact, False)
    assert str(path) in fault.reason


@pytest.mark.parametrize(
    ("offset", "position"), [(5, 1_000_000), (43, 100)], ids=["past the segment's bytes", "past its offsets"]
)
async def test_an_index_that_points_past_the_segment_is_at_fault(
    log_dirs: FilesystemLogDirs, directory: Path, offset: int, position: int
) -> None:
    path = directory / f"{0:020d}.index"
    path.write_bytes(offset.to_bytes(4, "big") + position.to_bytes(4, "big"))
    artefacts = await log_dirs.read_artefacts(sealed_segment(directory, 0))
    assert ["past the segment" in fault.reason for fault in artefacts.faults] == [True]
    assert artefacts.offset_index is None


async def test_the_earlier_snapshot_comes_with_them_where_it_can_be_used(
    log_dirs: FilesystemLogDirs, directory: Path
) -> None:
    """U9, rule 14: the producers' state before the segment."""
    segment = sealed_segment(directory, 43)
    earlier = directory / f"{43:020d}.snapshot"
    assert (await log_dirs.read_artefacts(segment)).earlier_snapshot == earlier.read_bytes()
    earlier.write_bytes(b"damaged")
    assert (await log_dirs.read_artefacts(segment)).earlier_snapshot is None


async def test_the_latest_timestamp_is_the_last_of_the_time_index(log_dirs: FilesystemLogDirs, directory: Path) -> None:
    segment = sealed_segment(directory, 0)
    async with log_dirs.open_segment(segment) as opened:
        scan = await opened.scan()
    assert (await log_dirs.read_artefacts(segment)).latest_timestamp_ms == scan.max_timestamp_ms


async def test_when_the_segment_itself_is_gone_that_is_what_is_said(
    log_dirs: FilesystemLogDirs, directory: Path
) -> None:
    segment = sealed_segment(directory, 0)
    for kind in ("log", "index", "timeindex", "txnindex"):
        (directory / f"{0:020d}.{kind}").unlink()
    with pytest.raises(SegmentChangedError, match="gone"):
        await log_dirs.read_artefacts(segment)

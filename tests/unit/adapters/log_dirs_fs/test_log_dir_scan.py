"""Scanning again: cheap where nothing changed, and never blind to a change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.adapters.log_dirs_fs.broker_files import START_S, ScratchLogDir
from tiersidecar.adapters.log_dirs_fs.log_dir_scan import LogDirScanner
from tiersidecar.domain.ids import Uuid

LATER_MS = 2_000_000_000_000


@pytest.fixture
def scratch(tmp_path: Path) -> ScratchLogDir:
    return ScratchLogDir(tmp_path / "d1")


def scanner_of(scratch: ScratchLogDir, now_ms: int = LATER_MS) -> LogDirScanner:
    return LogDirScanner(str(scratch.path), now_ms=lambda: now_ms)


def bases(scanner: LogDirScanner) -> dict[str, list[int]]:
    scan = scanner.scan()
    assert scan.faults == {}
    return {
        str(partition.topic_id_partition): [segment.base_offset for segment in partition.segments]
        for partition in scan.partitions
    }


def test_a_directory_with_the_same_mtime_is_not_listed_again(scratch: ScratchLogDir) -> None:
    scratch.add_partition("orders-0", 0, 100)
    scratch.set_mtime("orders-0", START_S)
    scanner = scanner_of(scratch)
    first = scanner.scan()
    scratch.add_file("orders-0", f"{200:020d}.log")
    scratch.set_mtime("orders-0", START_S)  # a change that cannot be: it shows that the directory was not looked into
    second = scanner.scan()
    assert second.partitions[0] is first.partitions[0]
    scratch.touch("orders-0")
    assert bases(scanner) == {"orders-0": [0, 100, 200]}


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [(0, [0, 100]), (1_999, [0, 100]), (2_001, [0])],
    ids=["changed this moment", "changed two seconds ago", "settled"],
)
def test_a_directory_that_changed_just_now_is_listed_again(
    scratch: ScratchLogDir, age_ms: int, expected: list[int]
) -> None:
    """A second change within one tick of the file system's clock leaves the mtime as it is."""
    scratch.add_partition("orders-0", 0)
    scratch.set_mtime("orders-0", START_S)
    scanner = scanner_of(scratch, START_S * 1000 + age_ms)
    assert bases(scanner) == {"orders-0": [0]}
    scratch.add_file("orders-0", f"{100:020d}.log")
    scratch.set_mtime("orders-0", START_S)
    assert bases(scanner) == {"orders-0": expected}


def test_the_active_segment_grows_without_its_directory_changing(scratch: ScratchLogDir) -> None:
    scratch.add_partition("orders-0", 0, 100, size_bytes=10)
    scanner = scanner_of(scratch)
    assert [segment.size_bytes for segment in scanner.scan().partitions[0].segments] == [10, 10]
    with (scratch.path / "orders-0" / f"{100:020d}.log").open("ab") as file:
        file.write(b"x" * 7)
    assert [segment.size_bytes for segment in scanner.scan().partitions[0].segments] == [10, 17]
    assert [segment.size_bytes for segment in scanner.scan().partitions[0].segments] == [10, 17]


def test_a_preallocated_active_segment_has_the_size_of_what_was_written(scratch: ScratchLogDir) -> None:
    """``preallocate=true``: retention by size took the hole for data, and gave up what was never copied (issue 16)."""
    scratch.add_partition("orders-0", 0, 100, size_bytes=5000)
    active = scratch.path / "orders-0" / f"{100:020d}.log"
    with active.open("r+b") as file:
        file.truncate(64 << 20)
    (sealed_bytes, active_bytes) = [segment.size_bytes for segment in scanner_of(scratch).scan().partitions[0].segments]
    assert sealed_bytes == 5000
    assert 5000 <= active_bytes <= 1 << 20


def test_a_roll_seals_the_segment_with_its_last_size(scratch: ScratchLogDir) -> None:
    scratch.add_partition("orders-0", 0, size_bytes=10)
    scanner = scanner_of(scratch)
    assert scanner.scan().partitions[0].sealed_segments == ()
    scratch.add_file("orders-0", f"{0:020d}.log", bytes(25))
    scratch.add_file("orders-0", f"{100:020d}.log")
    (sealed,) = scanner.scan().partitions[0].sealed_segments
    assert (sealed.base_offset, sealed.next_base_offset, sealed.size_bytes) == (0, 100, 25)


def test_a_truncation_makes_an_earlier_segment_active_again_with_its_new_size(scratch: ScratchLogDir) -> None:
    scratch.add_partition("orders-0", 0, 100, 200, size_bytes=50)
    scanner = scanner_of(scratch)
    scanner.scan()
    for base_offset in (200, 100):
        scratch.rename("orders-0", f"{base_offset:020d}.log", f"{base_offset:020d}.log.deleted")
    scratch.add_file("orders-0", f"{0:020d}.log", bytes(20))
    (segment,) = scanner.scan().partitions[0].segments
    assert (segment.base_offset, segment.next_base_offset, segment.size_bytes) == (0, None, 20)


def test_the_broker_deleting_the_first_segments_shows(scratch: ScratchLogDir) -> None:
    scratch.add_partition("orders-0", 0, 100, 200)
    scanner = scanner_of(scratch)
    scanner.scan()
    scratch.rename("orders-0", f"{0:020d}.log", f"{0:020d}.log.deleted")
    assert bases(scanner) == {"orders-0": [100, 200]}


def test_what_the_broker_has_renamed_at_the_front_is_told_until_it_is_removed(scratch: ScratchLogDir) -> None:
    """docs/design/0004-pins.md: retention renames, and removes file.delete.delay.ms later."""
    scratch.add_partition("orders-0", 0, 100, 200)
    scanner = scanner_of(scratch)
    for base_offset in (0, 100):
        scratch.rename("orders-0", f"{base_offset:020d}.log", f"{base_offset:020d}.log.deleted")
    (partition,) = scanner.scan().partitions
    told = [(one.base_offset, one.next_base_offset, one.size_bytes, one.log_path) for one in partition.deleted]
    directory = scratch.path / "orders-0"
    assert told == [
        (0, 100, 100, f"{directory}/{0:020d}.log.deleted"),
        (100, 200, 100, f"{directory}/{100:020d}.log.deleted"),
    ]
    (directory / f"{0:020d}.log.deleted").unlink()
    scratch.touch("orders-0")
    assert [one.base_offset for one in scanner.scan().partitions[0].deleted] == [100]


def test_what_a_truncation_has_renamed_is_not_told(scratch: ScratchLogDir) -> None:
    scratch.add_partition("orders-0", 0, 100, 200)
    scanner = scanner_of(scratch)
    scratch.rename("orders-0", f"{200:020d}.log", f"{200:020d}.log.deleted")
    assert scanner.scan().partitions[0].deleted == ()


def test_partitions_come_and_go(scratch: ScratchLogDir) -> None:
    scratch.add_partition("orders-0", 0)
    scanner = scanner_of(scratch)
    assert bases(scanner) == {"orders-0": [0]}
    scratch.add_partition("orders-1", 0)
    (scratch.path / "orders-0").rename(scratch.path / "orders-0.0123456789abcdef0123456789abcdef-delete")
    assert bases(scanner) == {"orders-1": [0]}


def test_a_topic_created_again_under_the_same_name_is_another(scratch: ScratchLogDir) -> None:
    """Same path, and here even the same mtime: the inode tells."""
    scratch.add_partition("orders-0", 0, 100)
    scratch.set_mtime("orders-0", START_S)
    scanner = scanner_of(scratch)
    scanner.scan()
    (scratch.path / "orders-0").rename(scratch.path / "orders-0.0123456789abcdef0123456789abcdef-delete")
    other_id = Uuid(bytes(range(2, 18)))
    scratch.add_partition("orders-0", 0, topic_id=other_id)
    scratch.set_mtime("orders-0", START_S)
    (partition,) = scanner.scan().partitions
    assert partition.topic_id_partition.topic_id == other_id


def test_a_partition_without_segments_is_not_there_yet(scratch: ScratchLogDir) -> None:
    scratch.add_partition("orders-0")
    scanner = scanner_of(scratch)
    assert bases(scanner) == {}
    scratch.add_file("orders-0", f"{0:020d}.log")
    assert bases(scanner) == {"orders-0": [0]}


class Listings:
    """Counts the directories that are listed; the first time, ``stale`` is still in them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *stale: str) -> None:
        self.of: list[str] = []
        self._listdir, self._stale = os.listdir, stale
        monkeypatch.setattr(os, "listdir", self._list)

    def _list(self, directory: str) -> list[str]:
        self.of.append(directory)
        return [*self._listdir(directory), *(self._stale if len(self.of) == 1 else ())]


def test_a_segment_that_vanishes_between_listing_and_stat_leaves_no_hole(
    scratch: ScratchLogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the segment before it would seem to reach to the one behind it."""
    scratch.add_partition("orders-0", 0, 200)
    listings = Listings(monkeypatch, f"{100:020d}.log")
    (partition,) = scanner_of(scratch).scan().partitions
    assert [(segment.base_offset, segment.next_base_offset) for segment in partition.segments] == [
        (0, 200),
        (200, None),
    ]
    assert len(listings.of) == 2


def test_a_directory_that_never_holds_still_is_a_fault(scratch: ScratchLogDir) -> None:
    """A link to nowhere is there when listed and gone when looked at, each time."""
    directory = scratch.add_partition("orders-0", 0)
    (directory / f"{7:020d}.log").symlink_to("nowhere")
    scan = scanner_of(scratch).scan()
    assert scan.partitions == ()
    assert "faster than they could be listed" in scan.faults[str(directory)]


def test_of_many_partitions_only_the_changed_one_is_listed(
    scratch: ScratchLogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be 4,000 of them."""
    for number in range(200):
        scratch.add_partition(f"orders-{number}", 0)
    scanner = scanner_of(scratch)
    scanner.scan()
    scratch.add_file("orders-77", f"{100:020d}.log")
    listings = Listings(monkeypatch)
    assert bases(scanner)["orders-77"] == [0, 100]
    assert listings.of == [f"{scratch.path}/orders-77"]


def test_a_directory_was_made_when_its_topic_id_was_written(scratch: ScratchLogDir) -> None:
    scratch.add_partition("orders-0", 0, 100)
    os.utime(scratch.path / "orders-0" / "partition.metadata", (START_S, START_S))
    (partition,) = scanner_of(scratch).scan().partitions
    assert partition.made_ms == START_S * 1000

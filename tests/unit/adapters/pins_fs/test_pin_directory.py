"""Links to a real broker's segments, and what is left when they are made or removed in part."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.adapters.pins_fs.real_segments import copy_log_dir, name_of, read_partition
from tiersidecar.adapters.log_dirs_fs.segment_file import read_segment_artefacts
from tiersidecar.adapters.pins_fs.pin_directory import PinDirectory
from tiersidecar.domain.errors import SegmentChangedError
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import LocalPartition, LocalSegment
from tiersidecar.ports.log_dirs import SegmentArtefacts

FIRST_EPOCH = (EpochEntry(LeaderEpoch(0), Offset(0)),)
"""All that ``plain-0`` has below its first segment's end."""


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return copy_log_dir(tmp_path)


@pytest.fixture
def local(log_dir: Path) -> LocalPartition:
    return read_partition(log_dir)


@pytest.fixture
def pins(tmp_path: Path, log_dir: Path) -> PinDirectory:
    (tmp_path / "pins").mkdir()
    return PinDirectory(str(tmp_path / "pins"), log_dir=str(log_dir))


def files(pins: PinDirectory) -> list[str]:
    return sorted(path.name for path in Path(pins.path).iterdir())


def test_a_pinned_segment_reads_as_it_did_after_the_broker_deleted_it(
    pins: PinDirectory, local: LocalPartition
) -> None:
    segment = local.segments[0]
    log, artefacts = Path(segment.log_path).read_bytes(), read_segment_artefacts(segment)
    pin = pins.make(name_of(local, segment), segment, local.leader_epochs)
    shutil.rmtree(local.directory)
    assert Path(pin.segment.log_path).read_bytes() == log
    assert read_segment_artefacts(pin.segment) == artefacts
    assert (pin.size_bytes, pin.segment.modified_ms) == (segment.size_bytes, segment.modified_ms)


def test_all_is_read_back_from_names_and_files(pins: PinDirectory, local: LocalPartition) -> None:
    made = [pins.make(name_of(local, segment), segment, local.leader_epochs) for segment in local.sealed_segments]
    listing = pins.list_names()
    assert pins.read(listing.whole) == tuple(made)
    assert listing.partial == ()
    assert all(pin.is_whole for pin in made)


def test_epochs_are_those_below_the_segments_end(pins: PinDirectory, local: LocalPartition) -> None:
    """What comes later may yet be cut off, and is not about this data."""
    segment = local.segments[0]
    entries = [EpochEntry(LeaderEpoch(e), Offset(o)) for e, o in ((0, 0), (2, 34), (3, 35), (5, 90))]
    assert pins.make(name_of(local, segment), segment, entries).leader_epochs == tuple(entries[:2])


def test_an_aborted_transactions_index_comes_along(pins: PinDirectory, log_dir: Path) -> None:
    local = read_partition(log_dir, "transactions-0")
    with_index = [one for one in local.sealed_segments if Path(one.log_path).with_suffix(".txnindex").exists()]
    assert with_index
    for segment in with_index:
        pin = pins.make(name_of(local, segment), segment, local.leader_epochs)
        assert read_segment_artefacts(pin.segment).transaction_index


def test_the_newest_timestamp_is_the_last_of_the_time_index(pins: PinDirectory, local: LocalPartition) -> None:
    segment = local.segments[0]
    pin = pins.make(name_of(local, segment), segment, local.leader_epochs)
    entries = Path(segment.log_path).with_suffix(".timeindex").read_bytes()
    assert pin.max_timestamp_ms == int.from_bytes(entries[-12:-4], "big") > 0


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 11, id="cut short"),
        pytest.param(b"\0" * 12, id="zeros"),
    ],
)
def test_without_a_time_index_it_is_the_time_of_change(
    pins: PinDirectory, local: LocalPartition, damage: bytes
) -> None:
    segment = local.segments[0]
    Path(segment.log_path).with_suffix(".timeindex").write_bytes(damage)
    pin = pins.make(name_of(local, segment), segment, local.leader_epochs)
    assert pin.max_timestamp_ms == segment.modified_ms


def test_a_missing_snapshot_is_linked_later(pins: PinDirectory, local: LocalPartition) -> None:
    """It appears after the successor segment."""
    segment = local.segments[0]
    snapshot = Path(segment.directory, f"{segment.next_base_offset:020d}.snapshot")
    later = snapshot.rename(snapshot.with_suffix(".later"))
    assert not pins.make(name_of(local, segment), segment, local.leader_epochs).is_whole
    later.rename(snapshot)
    mended = pins.make(name_of(local, segment), segment, ())
    assert mended.is_whole
    assert mended.leader_epochs == FIRST_EPOCH, "those of the time when it was pinned"


def test_a_segment_that_the_broker_deletes_meanwhile_leaves_nothing(pins: PinDirectory, local: LocalPartition) -> None:
    """Kafka renames the .log first, the rest after it."""
    segment = local.segments[0]
    Path(segment.log_path).rename(segment.log_path + ".deleted")
    with pytest.raises(FileNotFoundError):
        pins.make(name_of(local, segment), segment, local.leader_epochs)
    assert files(pins) == []


def rename_as_the_broker_does(local: LocalPartition, count: int) -> LocalPartition:
    """The first ``count`` segments, each with the producer snapshot at its own base, and the epochs below the new start."""
    for segment in local.segments[:count]:
        for path in Path(local.directory).glob(f"{segment.base_offset:020d}.*"):
            path.rename(f"{path}.deleted")
    Path(local.directory, "leader-epoch-checkpoint").write_text(f"0\n1\n7 {local.segments[count].base_offset}\n")
    return read_partition(Path(local.log_dir), Path(local.directory).name)


def test_a_renamed_segment_is_pinned_under_its_own_name(pins: PinDirectory, local: LocalPartition) -> None:
    """What retention took a moment ago, with the epochs that only its batches still tell."""
    expected = [(Path(one.log_path).read_bytes(), pinned_artefacts(one)) for one in local.segments[:2]]
    renamed = rename_as_the_broker_does(local, 2)
    assert [one.base_offset for one in renamed.deleted] == [0, 35]
    for segment, (log, artefacts) in zip(renamed.deleted, expected, strict=True):
        pin = pins.make(name_of(renamed, segment), segment, renamed.leader_epochs)
        assert Path(pin.segment.log_path).read_bytes() == log
        assert pinned_artefacts(pin.segment) == artefacts
        assert pin.leader_epochs == (EpochEntry(LeaderEpoch(0), segment.base_offset),)


def pinned_artefacts(segment: LocalSegment) -> SegmentArtefacts:
    """Without the snapshot at the segment's own base, which is the companion of the segment before it."""
    return replace(read_segment_artefacts(segment), earlier_snapshot=None)


def test_a_renamed_segment_whose_successor_is_gone_already_is_left(pins: PinDirectory, local: LocalPartition) -> None:
    """It would seem to hold what the one after it held."""
    renamed = rename_as_the_broker_does(local, 2)
    Path(renamed.deleted[1].log_path).unlink()
    (first,) = read_partition(Path(local.log_dir)).deleted
    assert first.next_base_offset == local.segments[2].base_offset
    with pytest.raises(SegmentChangedError, match="ends at offset 35, and the next segment left begins at 70"):
        pins.make(name_of(local, first), first, renamed.leader_epochs)
    assert files(pins) == []


def test_a_log_start_within_the_segment_has_taken_its_first_epochs(pins: PinDirectory, local: LocalPartition) -> None:
    segment = local.segments[0]
    pin = pins.make(name_of(local, segment), segment, [EpochEntry(LeaderEpoch(0), Offset(20))])
    assert pin.leader_epochs == FIRST_EPOCH


def test_damage_does_not_keep_a_segment_from_being_pinned(pins: PinDirectory, local: LocalPartition) -> None:
    segment = local.segments[0]
    Path(segment.log_path).write_bytes(b"x" * segment.size_bytes)
    assert pins.make(name_of(local, segment), segment, ()).leader_epochs == ()


def test_a_pin_stays_when_the_broker_deletes_while_it_is_mended(pins: PinDirectory, local: LocalPartition) -> None:
    segment = local.segments[0]
    pin = pins.make(name_of(local, segment), segment, local.leader_epochs)
    shutil.rmtree(local.directory)
    assert pins.make(name_of(local, segment), segment, local.leader_epochs) == pin


def test_another_file_of_the_same_offsets_is_pinned_anew(pins: PinDirectory, local: LocalPartition) -> None:
    """Truncated and written again with the same borders: the old inode is another history's."""
    segment = local.segments[0]
    pins.make(name_of(local, segment), segment, ())
    data = Path(segment.log_path).read_bytes()
    Path(segment.log_path).unlink()
    Path(segment.log_path).write_bytes(data[:-1] + b"x")
    pin = pins.make(name_of(local, segment), segment, local.leader_epochs)
    assert Path(pin.segment.log_path).read_bytes().endswith(b"x")
    assert pin.leader_epochs == FIRST_EPOCH


def test_a_pin_of_another_file_stays_when_the_broker_deletes_while_it_is_replaced(
    pins: PinDirectory, local: LocalPartition
) -> None:
    """Of a replica that was built anew: both files hold the same, and the old one may be the only copy."""
    segment = local.segments[0]
    pin = pins.make(name_of(local, segment), segment, local.leader_epochs)
    log = Path(segment.log_path)
    data = log.read_bytes()
    log.unlink()
    log.write_bytes(data)

    def link(source: str, target: str) -> None:
        log.unlink()
        os.link(source, target)

    gone_when_linked = PinDirectory(pins.path, log_dir=local.log_dir, link=link)
    with pytest.raises(FileNotFoundError):
        gone_when_linked.make(name_of(local, segment), segment, local.leader_epochs)
    assert pins.read(pins.list_names().whole) == (pin,)


def test_a_file_that_takes_anothers_place_has_the_epochs_that_only_the_pin_knows(
    pins: PinDirectory, local: LocalPartition
) -> None:
    segment = local.segments[1]
    older = [EpochEntry(LeaderEpoch(e), Offset(o)) for e, o in ((0, 0), (2, 10))]
    pins.make(name_of(local, segment), segment, older)
    log = Path(segment.log_path)
    data = log.read_bytes()
    log.unlink()
    log.write_bytes(data)
    pin = pins.make(name_of(local, segment), segment, [EpochEntry(LeaderEpoch(2), Offset(20))])
    assert pin.segment.inode == log.stat().st_ino
    assert pin.leader_epochs == tuple(older)


def test_two_processes_that_replace_one_file_at_once_never_write_into_the_brokers(
    pins: PinDirectory, local: LocalPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was frozen wakes when another has the role, at any step of it: what it writes to may be a link by now."""
    segment = local.segments[0]
    name, log = name_of(local, segment), Path(segment.log_path)
    pins.make(name, segment, local.leader_epochs)
    data = log.read_bytes()
    log.unlink()
    log.write_bytes(data)
    unlink = Path.unlink

    def linked_meanwhile(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        if path.name.startswith(name.prefix):
            os.link(log, path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", linked_meanwhile)
        with pytest.raises(FileExistsError):
            pins.make(name, segment, local.leader_epochs)
    assert log.read_bytes() == data
    pin = pins.make(name, segment, local.leader_epochs)
    assert (pin.segment.inode, pin.leader_epochs) == (log.stat().st_ino, FIRST_EPOCH)
    assert not [file for file in files(pins) if "replacement" in file]


class KilledError(BaseException):
    """kill -9."""


def test_killed_at_any_step_of_a_replacement_a_pin_has_its_bytes_and_epochs(
    tmp_path: Path, local: LocalPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the broker's new file is gone after it: the old one may be the only copy."""
    segment, steps = local.segments[0], 0
    name, log = name_of(local, segment), Path(segment.log_path)
    data = log.read_bytes()
    left = -1
    unlink, link, rename = os.unlink, os.link, os.rename

    def counted(step: Callable[..., None]) -> Callable[..., None]:
        def call(*args: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KilledError
            step(*args)

        return call

    while left <= 0:
        steps += 1
        (tmp_path / f"{steps}").mkdir()
        pins = PinDirectory(str(tmp_path / f"{steps}"), log_dir=local.log_dir, link=counted(link))
        pin = pins.make(name, segment, local.leader_epochs)
        log.unlink()
        log.write_bytes(data)
        left = steps
        with monkeypatch.context() as patched, suppress(KilledError):
            patched.setattr(os, "unlink", counted(unlink))
            patched.setattr(os, "replace", counted(rename))
            pins.make(name, segment, local.leader_epochs)
        (found,) = pins.read(pins.list_names().whole)
        assert Path(found.segment.log_path).read_bytes() == log.read_bytes() == data, f"step {steps}"
        assert found.leader_epochs == pin.leader_epochs, f"step {steps}"
    assert steps > 10


def test_a_link_that_was_to_take_a_pins_place_is_left_by_a_crash_until_the_next_start(
    pins: PinDirectory, local: LocalPartition
) -> None:
    """It would keep the bytes of a second file for as long as the pin is there."""
    segment = local.segments[0]
    name = name_of(local, segment)
    pin = pins.make(name, segment, local.leader_epochs)
    for file in ("replacement", "replacement-epochs"):
        os.link(local.segments[1].log_path, f"{pins.path}/{name.prefix}{file}")
    listing = pins.list_names()
    assert (listing.whole, listing.replaced, listing.partial) == ((name,), (name,), ())
    pins.forget_replacement(name)
    assert pins.list_names().replaced == ()
    assert pins.read(listing.whole) == (pin,)


@pytest.mark.parametrize("torn", [b"", b"0\n1\n"])
def test_epochs_that_a_power_failure_has_torn_are_those_of_the_batches(
    pins: PinDirectory, local: LocalPartition, torn: bytes
) -> None:
    """Without any, a log that is built anew below the pin would be taken for a truncation."""
    segment = local.segments[1]
    name = name_of(local, segment)
    pins.make(name, segment, local.leader_epochs)
    Path(f"{pins.path}/{name.prefix}leader-epoch-checkpoint").write_bytes(torn)
    (pin,) = pins.read([name])
    assert pin.leader_epochs == (EpochEntry(LeaderEpoch(0), Offset(35)),)
    Path(pin.segment.log_path).write_bytes(b"x" * 100)
    assert pins.read([name])[0].leader_epochs == (), "nothing is known then"


def test_a_disk_that_fails_leaves_nothing(tmp_path: Path, local: LocalPartition, log_dir: Path) -> None:
    calls = 0

    def failing(source: str, target: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(28, "No space left on device", source, None, target)
        os.link(source, target)

    pins = PinDirectory(str(tmp_path), log_dir=str(log_dir), link=failing)
    before = files(pins)
    segment = local.segments[0]
    with pytest.raises(OSError, match="No space"):
        pins.make(name_of(local, segment), segment, local.leader_epochs)
    assert files(pins) == before


def test_removed_whole_and_again(pins: PinDirectory, local: LocalPartition) -> None:
    for segment in local.sealed_segments:
        pins.make(name_of(local, segment), segment, local.leader_epochs)
    for segment in [*local.sealed_segments, local.segments[0]]:
        pins.remove(name_of(local, segment))
    assert files(pins) == []
    assert all(Path(one.log_path).exists() for one in local.segments), "the broker's own stay"


def test_no_directory_is_no_pins(tmp_path: Path) -> None:
    assert PinDirectory(str(tmp_path / "none"), log_dir="/d").list_names().whole == ()


def test_files_of_others_are_no_pins(pins: PinDirectory) -> None:
    Path(pins.path, "tiersidecar-pin.probe").touch()
    Path(pins.path, "notes").touch()
    assert (pins.list_names().whole, pins.list_names().partial) == ((), ())


def test_a_pin_that_goes_while_it_is_read_is_left_out(pins: PinDirectory, local: LocalPartition) -> None:
    assert pins.read([name_of(local, local.segments[0])]) == ()

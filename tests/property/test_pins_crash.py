"""A crash between any two steps leaves a whole pin, or leftovers that the next start sweeps (docs/design/0004-pins.md)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.adapters.pins_fs.real_segments import copy_log_dir, copy_partition, name_of, read_partition
from tiersidecar.adapters.log_dirs_fs.segment_file import read_segment_artefacts
from tiersidecar.adapters.pins_fs.pin_directory import PinDirectory
from tiersidecar.domain.segments import LocalSegment


class Crash(BaseException):
    """The process is gone: no handler of ours may see it."""


@contextmanager
def crash_before(step: int) -> Iterator[None]:
    """End the block before the ``step``-th change of the file system (os.link, os.unlink, renaming and creating a file)."""
    steps = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > step:
                raise Crash
            return real(*arguments, **keywords)

        return run

    create = Path.open

    def open_counted(path: Path, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        changes = not {"x", "w"}.isdisjoint(mode)
        return (counted(create) if changes else create)(path, mode, *arguments, **keywords)

    with (
        patch("os.link", counted(os.link)),
        patch("os.unlink", counted(os.unlink)),
        patch.object(Path, "unlink", counted(Path.unlink)),
        patch.object(Path, "replace", counted(Path.replace)),
        patch.object(Path, "open", open_counted),
        suppress(Crash),
    ):
        yield


def pins_of(directory: Path, log_dir: Path) -> PinDirectory:
    # The link is looked up late, so that it is the one that counts.
    return PinDirectory(str(directory), log_dir=str(log_dir), link=lambda source, target: os.link(source, target))


def contents(segment: LocalSegment) -> tuple[bytes, object]:
    """Without the snapshot at the segment's own base, which is the companion of the segment before it and not pinned."""
    return Path(segment.log_path).read_bytes(), replace(read_segment_artefacts(segment), earlier_snapshot=None)


NO_CRASH = 99
ACTIONS = st.tuples(
    st.sampled_from(["pin", "pin", "unpin", "broker deletes", "broker begins anew"]),
    st.integers(0, 1),
    st.one_of(st.just(NO_CRASH), st.integers(0, 14)),
)
"""What is done, to which segment, and before which change of the file system the process ends."""


@settings(max_examples=150, deadline=None)
@given(actions=st.lists(ACTIONS, min_size=1, max_size=8), topic=st.sampled_from(["plain-0", "transactions-0"]))
def test_a_crash_anywhere(actions: list[tuple[str, int, int]], topic: str) -> None:
    """After each crash and the sweep of the next start: what is listed as a pin reads back whole, nothing else of ours is
    there, and a segment that was pinned before stays so unless it was being removed.  One whose links were being replaced by
    those to another file may lack companions, which the next round links."""
    with tempfile.TemporaryDirectory() as scratch:
        log_dir = copy_log_dir(Path(scratch), [topic])
        local = read_partition(log_dir, topic)
        expected = {one.base_offset: contents(one) for one in local.sealed_segments}
        directory = Path(scratch, "pins")
        directory.mkdir()
        pinned: set[int] = set()
        was_anew, may_lack = False, set[int]()
        for action, number, step in actions:
            segment = local.sealed_segments[number]
            name = name_of(local, segment)
            if action == "pin" and was_anew and step < NO_CRASH:
                may_lack.add(segment.base_offset)
            with crash_before(step):
                if action == "pin":
                    with suppress(FileNotFoundError):
                        pins_of(directory, log_dir).make(name, segment, local.leader_epochs)
                elif action == "unpin":
                    pinned.discard(segment.base_offset)
                    pins_of(directory, log_dir).remove(name)
            if action == "broker deletes":
                shutil.rmtree(local.directory, ignore_errors=True)
            elif action == "broker begins anew":
                was_anew = True
                shutil.rmtree(local.directory, ignore_errors=True)
                copy_partition(log_dir, topic)
            pins = pins_of(directory, log_dir)
            for partial in pins.list_names().partial:
                pins.remove(partial)
            found = pins.read(pins.list_names().whole)
            for pin in found:
                assert Path(pin.segment.log_path).read_bytes() == expected[pin.base_offset][0]
                assert pin.is_whole or pin.base_offset in may_lack
                assert contents(pin.segment) == expected[pin.base_offset] or not pin.is_whole
                assert pin.leader_epochs
            assert len(list(directory.iterdir())) == sum(_file_count(pins, pin.segment) for pin in found)
            bases = {int(pin.base_offset) for pin in found}
            assert pinned <= bases
            pinned = bases


def _file_count(pins: PinDirectory, segment: LocalSegment) -> int:
    return len(list(Path(pins.path).glob(f"{segment.file_prefix}*")))

"""The time that was seen, kept in ``state.dir``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tiersidecar.adapters.seen_times import NAME, FileSeenTimes
from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.seen_time import SeenTime, UnseenTime

SEEN = SeenTime(until_ms=50, unseen=(UnseenTime(from_ms=1, to_ms=2), UnseenTime(from_ms=7, to_ms=9)))


async def test_what_one_process_wrote_last_the_next_one_reads(tmp_path: Path) -> None:
    times = FileSeenTimes(tmp_path, blocking=InlineBlocking())
    assert await times.read() is None
    await times.write(SeenTime(until_ms=3))
    await times.write(SEEN)
    assert await FileSeenTimes(tmp_path, blocking=InlineBlocking()).read() == SEEN


@pytest.mark.parametrize("text", ["", "{}", '{"until_ms": 5, "unseen_ms": [[1]]}', "[1]", "\x00" * 40])
async def test_what_cannot_be_read_is_nothing_known(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert await FileSeenTimes(tmp_path, blocking=InlineBlocking()).read() is None


async def test_a_disk_that_does_not_take_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(StateDirError, match="time-seen"):
        await FileSeenTimes(tmp_path / "gone", blocking=InlineBlocking()).write(SEEN)

"""The journal of copies in flight: what a process noted before it published, the next one knows (S-063)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tiersidecar.adapters.copy_journal import NAME, FileCopyJournal, open_copy_journal
from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.ids import Uuid, format_uuid

FIRST, SECOND, THIRD = (Uuid(bytes([n]) * 16) for n in (1, 2, 3))


async def begun_after_restart(directory: Path) -> set[Uuid]:
    async with open_copy_journal(directory, blocking=InlineBlocking()) as journal:
        return set(journal.begun)


async def test_what_was_begun_and_not_settled_is_known_to_the_next_process(tmp_path: Path) -> None:
    async with open_copy_journal(tmp_path, blocking=InlineBlocking()) as journal:
        for one in (FIRST, SECOND, THIRD):
            await journal.begin(one)
        await journal.settle(SECOND)
        assert journal.begun == {FIRST, THIRD}
    assert await begun_after_restart(tmp_path) == {FIRST, THIRD}
    assert await begun_after_restart(tmp_path) == {FIRST, THIRD}, "also after it was written anew"


async def test_a_beginning_is_on_the_disk_when_it_returns(tmp_path: Path) -> None:
    async with open_copy_journal(tmp_path, blocking=InlineBlocking()) as journal:
        await journal.begin(FIRST)
        assert format_uuid(FIRST) in (tmp_path / NAME).read_text()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text + f"+ {format_uuid(THIRD)[:9]}", id="the last line is cut off"),
        pytest.param(lambda text: "\x00\x00\n" + text, id="zeros before it"),
        pytest.param(lambda text: text + "+ ü\n?\n", id="garbage after it"),
    ],
)
async def test_lines_that_cannot_be_read_count_for_nothing(tmp_path: Path, damage: Callable[[str], str]) -> None:
    async with open_copy_journal(tmp_path, blocking=InlineBlocking()) as journal:
        await journal.begin(FIRST)
    path = tmp_path / NAME
    path.write_text(damage(path.read_text()))
    async with open_copy_journal(tmp_path, blocking=InlineBlocking()) as journal:
        assert journal.begun == {FIRST}
        await journal.begin(SECOND)
    assert await begun_after_restart(tmp_path) == {FIRST, SECOND}


async def test_a_directory_that_cannot_be_written_is_told_and_tried_again(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.write_text("a file where the directory should be")
    async with open_copy_journal(directory, blocking=InlineBlocking()) as journal:
        with pytest.raises(StateDirError, match="copies-in-flight cannot be written"):
            await journal.begin(FIRST)
        assert not journal.begun
        directory.unlink()
        await journal.begin(FIRST)
    assert await begun_after_restart(directory) == {FIRST}


async def test_the_file_does_not_grow_with_the_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiersidecar.adapters.copy_journal._MOST_LINES", 10)
    journal = FileCopyJournal(tmp_path / NAME, blocking=InlineBlocking())
    await journal.open()
    await journal.begin(FIRST)
    for _ in range(100):
        await journal.begin(SECOND)
        await journal.settle(SECOND)
    await journal.close()
    assert len((tmp_path / NAME).read_text().splitlines()) < 20
    assert await begun_after_restart(tmp_path) == {FIRST}

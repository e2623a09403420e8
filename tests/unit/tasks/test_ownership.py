"""Copies in flight are in the journal before they are published, and until they are over (S-063)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.tier_shell import TierShell
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import MetadataEvent
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.tasks.segment_objects import LayoutSettings


class KilledHere(BaseException):
    """As by kill -9."""


@pytest.fixture
async def shell(tmp_path: Path) -> TierShell:
    shell = TierShell(tmp_path, InlineBlocking(), LayoutSettings(), TopicPolicy())
    await shell.look()
    return shell


async def test_a_copy_is_in_the_journal_when_it_is_published_and_no_more_when_it_is_finished(shell: TierShell) -> None:
    known: list[bool] = []

    async def look() -> None:
        known.append(last_id(shell) in shell.journal.begun)

    shell.failpoints.actions["copy.started.published"] = look
    await shell.copy.run(shell.tiered(shell.topic_id_partition("plain-0")))
    assert known
    assert all(known)
    assert shell.journal.begun == set()


@pytest.mark.parametrize("place", ["copy.started.published", "copy.proven", "copy.finish.begun"])
async def test_a_process_that_ends_in_the_middle_leaves_an_entry(shell: TierShell, place: str) -> None:
    async def die() -> None:
        raise KilledHere

    shell.failpoints.actions[place] = die
    with pytest.raises(KilledHere):
        await shell.copy.run(shell.tiered(shell.topic_id_partition("plain-0")))
    assert shell.journal.begun == {last_id(shell)}


async def test_a_disk_that_takes_no_entry_stops_no_copy(shell: TierShell) -> None:
    shell.journal.full = True
    await shell.copy.run(shell.tiered(shell.topic_id_partition("plain-0")))
    states = [event.state for event in shell.metadata.events]
    assert states.count(State.COPY_SEGMENT_FINISHED) == states.count(State.COPY_SEGMENT_STARTED) > 0


def last_id(shell: TierShell) -> bytes:
    event: MetadataEvent = shell.metadata.events[-1]
    return event.remote_log_segment_id.uuid  # type: ignore[union-attr]

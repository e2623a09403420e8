"""Erasures that are killed anywhere, done again with other keys, with rounds of the leader's sidecar and purges in between.

At every moment all records are readable that nobody asked to erase; what a finished erasure took out is never read again; and
once all is purged it is in no object.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.expiry import view
from tests.unit.app.test_erase_run import KEY, OTHER, PLACES, KilledError, World, made_world, records_of
from tiersidecar.decide.erasure import Erasing
from tiersidecar.decide.expire import decide_expiry
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import planned_keys
from tiersidecar.formats.kafka.records import Record

STARTS = (0, 10, 20)
DAY_AND_HOUR = TrashDelays(retention_ms=86_400_000, user_ms=3_600_000)

erasures = st.tuples(st.sampled_from([KEY, OTHER]), st.sampled_from([None, None, *PLACES]), st.integers(0, 3))
rounds = st.booleans()
"""Of the leader's sidecar; with True all that is in the trash is purged before it."""


async def _round(world: World, *, purges: bool) -> None:
    """What the leader's sidecar decides of leftovers and of what is due, and does: events, then objects."""
    state, owner = world.session.state, world.builder.partition
    if purges:
        await state.put_into_trash(owner, [replace(one, purged_ms=one.decided_ms) for one in state.trash(owner)])
    seen = view(
        tuple(world.segments(*State)),
        trash=tuple(state.trash(owner)),
        delays=DAY_AND_HOUR,
        log_start_offset=100,
        high_watermark=200,
        start=0,
    )
    plan = decide_expiry(seen)
    for removal in (*plan.leftovers, *plan.expired):
        await _remove(world, removal.metadata)
    await state.take_out_of_trash(
        owner, decide_expiry(replace(seen, remote_segments=tuple(world.segments(*State)))).trash.take_out
    )


async def _remove(world: World, metadata: RemoteLogSegmentMetadata) -> None:
    if metadata.state is not State.DELETE_SEGMENT_STARTED:
        await world.builder.move(metadata, State.DELETE_SEGMENT_STARTED)
    for key in planned_keys(metadata).in_upload_order:
        (world.root / key).unlink(missing_ok=True)
    await world.builder.move(metadata, State.DELETE_SEGMENT_FINISHED)


class _Model:
    """All records as they were, which keys anyone asked to erase, and which an erasure that ended has."""

    def __init__(self, world: World, records: dict[int, list[Record]]) -> None:
        self._world, self._records = world, records
        self.asked: set[bytes] = set()
        self.erased: set[bytes] = set()

    async def check(self) -> None:
        for start, before in self._records.items():
            found = await self._world.records_at(start)
            assert [one for one in found if one.key not in self.asked] == [
                one for one in before if one.key not in self.asked
            ]
            assert all(one in before for one in found)
            assert not {one.key for one in found} & self.erased


async def _erase(world: World, model: _Model, key: bytes, place: str | None, hits: int) -> None:
    """Killed at the ``hits``-th time that ``place`` is passed, if it is."""
    left = hits

    async def kill() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError

    model.asked.add(key)
    world.keys = frozenset({key})
    try:
        result = await world.erase({} if place is None else {f"erase.{place}": kill})
    except KilledError:
        return
    assert result.left == []
    model.erased.add(key)


async def _play(directory: Path, steps: list[tuple[bytes, str | None, int] | bool]) -> None:
    world = made_world(directory)
    originals = {start: await world.add(start) for start in STARTS}
    model = _Model(world, {start: records_of(await world.log_of(one)) for start, one in originals.items()})
    for step in steps:
        if isinstance(step, bool):
            await _round(world, purges=step)
        else:
            await _erase(world, model, *step)
        await model.check()
    for key in sorted(model.asked):
        await _erase(world, model, key, None, 0)
    for _ in range(3):
        await _round(world, purges=True)
        await model.check()
    assert len(world.segments(*State)) == len(STARTS), "one for each, and no leftover"
    assert world.session.state.trash(world.builder.partition) == []
    stored = b"".join(path.read_bytes() for path in world.root.rglob("*") if path.is_file())
    assert not [key for key in model.asked if key in stored]


@given(st.lists(erasures | rounds, min_size=1, max_size=5))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_erased_is_never_read_again_and_nothing_else_is_lost(
    steps: list[tuple[bytes, str | None, int] | bool],
) -> None:
    with TemporaryDirectory() as directory:
        asyncio.run(_play(Path(directory), steps))


async def _play_copies(directory: Path, early: list[tuple[int, int]], late: list[tuple[int, int]]) -> None:
    world = made_world(directory)
    for copies in (early, late):
        for start, tens in copies:
            await world.add(5 * start, tens=tens)
        if copies is early:
            await world.erase()
    known = [offset for start, tens in (*early, *late) for offset in range(5 * start, 5 * start + 10 * tens)]
    read = {offset for offset in known if world.found_at(offset)}
    assert (await world.erase()).left == []
    for _ in range(2):
        assert {offset for offset in known if world.found_at(offset)} >= read
        for offset in read:
            assert KEY not in {one.key for one in await world.records_at(offset)}
        await _round(world, purges=True)
    assert not [one for one in (await world.look()).steps if one.erasing is not Erasing.IN_TRASH]


overlapping_copies = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 2)), max_size=3)


@given(overlapping_copies, overlapping_copies)
@example([(0, 1), (2, 1)], [(1, 1)])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_copies_that_overlap_in_any_way_are_never_read_with_what_was_erased(
    early: list[tuple[int, int]], late: list[tuple[int, int]]
) -> None:
    """Whatever leaders copied in whatever order, before an erasure and after it: after the next no look-up gives a segment that
    has such records, neither while the old ones are in the trash nor after they are deleted; and all is found that was."""
    with TemporaryDirectory() as directory:
        asyncio.run(_play_copies(Path(directory), early, late))

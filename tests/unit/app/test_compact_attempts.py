"""Of several attempts to put one segment up only one goes on (issue 23, S-276)."""

from __future__ import annotations

import pytest

from tests.support.manual_clock import ManualClock
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.app.compact_attempts import ATTEMPT_BEGINS_WITHIN_MS, claim_attempt, drop_old_attempts
from tiersidecar.domain.errors import SparkJobError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.own_objects import ATTEMPTS
from tiersidecar.ports.store import ObjectBody, StoredObject

ONE = SystemIds().random_uuid()
PREFIX = "tiered/"
KEY = f"{PREFIX}{ATTEMPTS}{format_uuid(ONE)}"


class SlowStore(MemoryStore):
    """Whose puts take as long as a test says."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock, ids=SystemIds())
        self.clock, self.takes_s = clock, 0.0

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        stored = await super().put_object(key, body, if_absent=if_absent)
        self.clock.jump(self.takes_s)
        return stored


async def claim(store: SlowStore, begun_ms: int) -> None:
    await claim_attempt(store, PREFIX, ONE, begun_ms, store.clock, SystemIds())


async def test_the_second_attempt_of_one_id_is_refused() -> None:
    store = SlowStore(clock := ManualClock())
    await claim(store, clock.now_ms())
    with pytest.raises(SparkJobError, match="another attempt may still write under the same id"):
        await claim(store, clock.now_ms())


async def test_no_two_attempts_put_the_same_bytes() -> None:
    """A store that knows its own object by size and checksum alone would take the first one's for the second's."""
    bodies = set()
    for _ in range(2):
        store = SlowStore(clock := ManualClock())
        await claim(store, clock.now_ms())
        bodies.add(await store.fetch_object(KEY, max_bytes=100))
    assert len(bodies) == 2


@pytest.mark.parametrize(
    ("begins_after_s", "put_takes_s", "may"),
    [(3599.0, 0.0, True), (3601.0, 0.0, False), (0.0, 3601.0, False), (3599.0, 2.0, False)],
    ids=["in time", "it begins too late", "its put takes too long", "both together take too long"],
)
async def test_an_attempt_that_begins_late_does_not_write(begins_after_s: float, put_takes_s: float, may: bool) -> None:
    """The object of another attempt may be gone by then."""
    store = SlowStore(clock := ManualClock())
    begun_ms, store.takes_s = clock.now_ms(), put_takes_s
    clock.jump(begins_after_s)
    if may:
        await claim(store, begun_ms)
        return
    with pytest.raises(SparkJobError, match="begins too late"):
        await claim(store, begun_ms)


async def test_the_objects_of_earlier_runs_go_when_no_attempt_of_them_may_begin_any_more() -> None:
    store = SlowStore(clock := ManualClock())
    await claim(store, clock.now_ms())
    clock.jump(2 * ATTEMPT_BEGINS_WITHIN_MS / 1000)
    await drop_old_attempts(store, PREFIX, clock.now_ms())
    assert (await store.head_object(KEY)).key == KEY
    clock.jump(2 * 86_400)
    await drop_old_attempts(store, PREFIX, clock.now_ms())
    assert [one async for one in store.list_objects(PREFIX)] == []

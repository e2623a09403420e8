"""When a cleaner waits for an operator's command that changes remote segments."""

from __future__ import annotations

from dataclasses import replace

from tests.support.manual_clock import ManualClock
from tests.support.scripted import MemoryStateLog
from tiersidecar.domain.lease import REPAIR_LEASE, Lease
from tiersidecar.tasks.rewriting_commands import RewritingCommands

HELD = Lease(
    name=REPAIR_LEASE,
    cluster_id="scripted",
    broker_id=-1,
    incarnation="one",
    term=1,
    host="desk",
    pid=7,
    version="1",
    renewed_ms=0,
    duration_ms=60_000,
)


async def test_it_waits_from_the_claim_to_the_release() -> None:
    state, clock = MemoryStateLog(), ManualClock()
    commands = RewritingCommands(state, clock)
    assert commands.reason_to_wait() == ""
    await state.publish_lease(HELD)
    assert commands.reason_to_wait() == "an erasure or a repair acts: process 7 on desk"
    await state.publish_lease(replace(HELD, released=True, renewal=True))
    assert commands.reason_to_wait() == ""


async def test_each_renewal_holds_for_the_whole_duration_by_this_processs_clock() -> None:
    state, clock = MemoryStateLog(), ManualClock()
    commands = RewritingCommands(state, clock)
    await state.publish_lease(HELD)
    assert commands.reason_to_wait()
    await clock.advance(59)
    await state.publish_lease(replace(HELD, renewed_ms=59_000, renewal=True))
    assert commands.reason_to_wait()
    await clock.advance(59)
    assert commands.reason_to_wait()
    await clock.advance(1)
    assert commands.reason_to_wait() == "", "its process was killed"


async def test_another_ones_lease_is_no_matter() -> None:
    state = MemoryStateLog()
    await state.publish_lease(replace(HELD, name="1"))
    assert RewritingCommands(state, ManualClock()).reason_to_wait() == ""

"""What the leader's sidecar says of a partition is what its own tasks do next (issue 20)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.explained_world import expire_of
from tests.support.manual_clock import ManualClock
from tests.support.tier_shell import BROKER, TierShell
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.decide.explain import Finding
from tiersidecar.decide.segment_rows import RowState
from tiersidecar.decide.trash import NO_DELAYS
from tiersidecar.domain.errors import NotLedHereError
from tiersidecar.domain.policy import TopicPolicy, TrimHolds
from tiersidecar.tasks.catch_up import CatchUp
from tiersidecar.tasks.explain import ExplainTask
from tiersidecar.tasks.lanes import Backoff, Lanes
from tiersidecar.tasks.retain import RetainTask
from tiersidecar.tasks.segment_objects import LayoutSettings

POLICY = TopicPolicy(local_retention_ms=0)
TOPIC = "plain"


class Asked:
    """A sidecar in memory over a real log dir, and its explanations."""

    def __init__(self, shell: TierShell, lanes: Lanes, *, observe_only: bool = False) -> None:
        self.shell = shell
        actor = replace(shell.actor, observe_only=observe_only)
        expire = expire_of(shell, ExpiryLimits(max_share=1.0), NO_DELAYS)
        self.task = ExplainTask(
            sources=shell.sources,
            edges=shell.edges,
            actor=actor,
            lanes=lanes,
            caught_up=CatchUp(shell.metadata, shell.state),
            copy=shell.copy,
            retain=RetainTask(expire=expire, trim=shell.trim, guard=shell.guard, slots=asyncio.Semaphore(1)),
            stores=shell.gates,
        )

    async def finding(self, about: str, offset: int = 0) -> tuple[RowState, Finding]:
        explanation = await self.task.explain(TOPIC, 0, offset)
        account = explanation.accounts[0]
        return account.row.state, next(one for one in account.findings if one.about == about)


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    async with ThreadBlocking(max_threads=2) as blocking:
        shell = TierShell(tmp_path, blocking, LayoutSettings(), POLICY, clock=ManualClock(now_ms=2_000_000_000_000))
        await shell.look()
        await shell.gate.wait_open()
        backoff = Backoff(initial_s=1.0, maximum_s=1.0)
        async with Lanes(clock=shell.clock, ids=shell.ids, telemetry=shell.telemetry, backoff=backoff) as lanes:
            yield Asked(shell, lanes)


async def test_a_segment_on_its_way_from_the_broker_to_the_store_alone(asked: Asked) -> None:
    tiered = asked.shell.tiered(asked.shell.topic_id_partition(f"{TOPIC}-0"))
    state, finding = await asked.finding("copy")
    assert (state, finding.says, finding.is_due) == (RowState.LOCAL, "it is copied next", True)
    await asked.shell.copy.run(tiered)
    state, finding = await asked.finding("trim")
    assert (state, finding.is_due) == (RowState.BOTH, True)
    await asked.shell.trim.run(tiered)
    state, finding = await asked.finding("expiry")
    assert (state, finding.is_due) == (RowState.REMOTE, False)
    assert "total retention keeps it" in finding.says


async def test_asking_changes_nothing(asked: Asked) -> None:
    rows = await asked.task.rows(TOPIC, 0)
    assert await asked.task.rows(TOPIC, 0) == rows
    assert [row.state for row in rows[-2:]] == [RowState.LOCAL, RowState.ACTIVE]
    assert asked.shell.broker.deleted == []
    assert list(asked.shell.metadata.list_remote_log_segments(asked.shell.topic_id_partition(f"{TOPIC}-0"))) == []


async def test_what_keeps_it_from_acting_is_told(asked: Asked) -> None:
    topic_id_partition = asked.shell.topic_id_partition(f"{TOPIC}-0")
    await asked.shell.copy.run(asked.shell.tiered(topic_id_partition))
    asked.shell.table.untrimmable_topics[TOPIC] = "retention.ms is 1, must be -1"
    _, finding = await asked.finding("trim")
    assert (finding.is_due, "retention.ms is 1, must be -1" in finding.says) == (False, True)
    asked.shell.table.untrimmable_topics.clear()
    asked.shell.policy = replace(POLICY, holds=TrimHolds(groups=("billing",)))
    await asked.shell.look()
    _, finding = await asked.finding("trim")
    assert "it is held: consumer group billing has no committed offset" in finding.says


async def test_only_the_leader_tells(asked: Asked) -> None:
    asked.shell.depose(asked.shell.topic_id_partition(f"{TOPIC}-0"))
    with pytest.raises(NotLedHereError, match=f"plain-0 is led by broker {BROKER}"):
        await asked.task.rows(TOPIC, 0)
    with pytest.raises(NotLedHereError, match="nowhere-7 is not a tiered partition"):
        await asked.task.explain("nowhere", 7, None)

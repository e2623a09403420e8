"""What a command waits for when it opens: an outage may pass, a right that is missing does not come by itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.manual_clock import ManualClock, settle
from tiersidecar.app.commands import session
from tiersidecar.app.commands.session import Session
from tiersidecar.domain.errors import BrokerRefusedError, MetadataNotReadyError

NO_READ = BrokerRefusedError(api="Fetch", subject="__tiersidecar_state", error="TOPIC_AUTHORIZATION_FAILED")


class Topic:
    """A state or metadata topic that is not ready, for a reason that may come later."""

    def __init__(self) -> None:
        self.readiness_reason: str | None = "it has not been reached yet"
        self.missing_right: BrokerRefusedError | None = None

    async def assign(self, partitions: object) -> None: ...

    async def wait_until_ready(self, partition: object) -> None:
        await asyncio.Event().wait()


async def test_a_missing_right_on_the_state_topic_ends_the_wait() -> None:
    """It was waited for like an outage, for a minute and longer."""
    topic, clock = Topic(), ManualClock()
    waiting = asyncio.create_task(session._until_ready(cast("Any", topic), clock))
    await settle()
    assert not waiting.done()
    topic.missing_right = NO_READ
    await clock.advance(0.1)
    assert waiting.done()
    with pytest.raises(BrokerRefusedError) as raised:
        await waiting
    assert raised.value is NO_READ


async def test_a_missing_right_on_the_metadata_topic_ends_the_wait() -> None:
    topic = Topic()
    topic.missing_right = NO_READ
    opened = Session(
        config=cast("Any", None),
        broker=cast("Any", None),
        state=cast("Any", None),
        metadata=cast("Any", topic),
        clock=ManualClock(),
    )
    with pytest.raises(BrokerRefusedError):
        async with asyncio.timeout(5):
            await opened.follow([cast("Any", SimpleNamespace())])


async def test_an_outage_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    topic, clock = Topic(), ManualClock()
    waiting = asyncio.create_task(session._until_ready(cast("Any", topic), clock))
    await clock.advance(30)
    assert not waiting.done()
    topic.readiness_reason = None
    await clock.advance(0.1)
    await waiting
    monkeypatch.setattr(session, "_READY_TIMEOUT_S", 0.01)
    topic.readiness_reason = "it has not been reached yet"
    with pytest.raises(MetadataNotReadyError, match="has not been reached yet"):
        await session._until_ready(cast("Any", topic), ManualClock())

"""What the read service knows of which topics are compacted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from tests.support.manual_clock import ManualClock
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.services.reader.compacted_topics import CompactedTopics


class Settings:
    """The broker's answers; ``asked`` counts the questions."""

    def __init__(self) -> None:
        self.policies = {"table": "compact", "both": "compact,delete", "events": "delete"}
        self.is_away, self.asked = False, 0

    async def describe_topic_configs(
        self, topics: Iterable[str], *, names: Sequence[str] | None = None
    ) -> dict[str, dict[str, str | None]]:
        self.asked += 1
        if self.is_away:
            raise BrokerUnreachableError(address="broker:1", reason="it is away")
        return {one: {"cleanup.policy": self.policies[one]} for one in topics if one in self.policies}

    async def describe_broker_configs(self, broker_id: BrokerId) -> dict[str, str | None]:
        raise AssertionError("nobody asks")


@pytest.mark.parametrize(
    ("topic", "is_compacted"), [("table", True), ("both", True), ("events", False), ("deleted", False)]
)
async def test_a_topic_is_compacted_if_its_policy_says_so(topic: str, is_compacted: bool) -> None:
    assert await CompactedTopics(Settings(), ManualClock()).has(topic) is is_compacted


async def test_the_answer_counts_for_half_a_minute_and_for_as_long_as_the_broker_is_away() -> None:
    broker, clock = Settings(), ManualClock()
    topics = CompactedTopics(broker, clock)
    assert await topics.has("table")
    broker.policies["table"] = "delete"
    clock.stand_still(29)
    assert await topics.has("table")
    assert broker.asked == 1
    clock.stand_still(2)
    broker.is_away = True
    assert await topics.has("table")
    broker.is_away = False
    assert not await topics.has("table")


async def test_of_what_the_broker_has_never_said_it_is_not_known() -> None:
    broker = Settings()
    broker.is_away = True
    with pytest.raises(BrokerUnreachableError):
        await CompactedTopics(broker, ManualClock()).has("table")


async def test_that_a_broker_does_not_know_a_topic_is_not_remembered() -> None:
    """It may not have heard of it yet, and half a minute of reading the remote tier first would show what was deleted."""
    broker = Settings()
    topics = CompactedTopics(broker, ManualClock())
    assert not await topics.has("new")
    broker.policies["new"] = "compact"
    assert await topics.has("new")

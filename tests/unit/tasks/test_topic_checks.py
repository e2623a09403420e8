"""Whether a topic's settings allow tiering it, looked at again and again (DESIGN.md section 5)."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.manual_clock import ManualClock
from tests.support.scripted import ScriptedBroker
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.tasks.board import Board
from tiersidecar.tasks.topic_checks import TopicChecks

TOPIC = "orders"


class ReticentBroker(ScriptedBroker):
    """Leaves out topics that it ``hides``, as one does whose settings we may not see."""

    hides = False

    async def describe_topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str | None]]:
        return {} if self.hides else await super().describe_topic_configs(topics)


async def test_a_topic_that_the_broker_tiers_itself_stays_refused_while_its_settings_are_not_told() -> None:
    """Two writers would each delete what the other counts on: an ACL that is taken away mends nothing."""
    board, broker = Board(), ReticentBroker()
    checks = TopicChecks(
        broker=broker,
        board=board,
        policy_for=lambda topic: TopicPolicy(),
        max_name_bytes=None,
        clock=ManualClock(),
        telemetry=NoTelemetry(),
    )
    settings = {"remote.storage.enable": "true", "retention.ms": "-1", "retention.bytes": "-1"}
    broker.settings[TOPIC] = settings
    await checks.check([TOPIC])
    assert "remote.storage.enable is true" in board.refused_topics[TOPIC]
    broker.hides = True
    await checks.check([TOPIC])
    assert TOPIC in board.refused_topics
    broker.hides = False
    settings["remote.storage.enable"] = "false"
    await checks.check([TOPIC])
    assert (board.refused_topics, board.untrimmable_topics) == ({}, {})
    broker.hides = True
    await checks.check([TOPIC])
    assert (board.refused_topics, TOPIC in board.untrimmable_topics) == ({}, True)

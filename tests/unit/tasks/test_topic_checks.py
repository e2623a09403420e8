"""Whether a topic's settings allow tiering it, looked at again and again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from structlog.testing import capture_logs

from tests.support.clean_world import COMPACTED
from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import ScriptedBroker
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.ports.metrics.retention import UNSAFE_TOPICS
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.topic_checks import TopicChecks

TOPIC = "orders"


class ReticentBroker(ScriptedBroker):
    """Leaves out topics that it ``hides``, as one does whose settings we may not see."""

    hides = False

    async def describe_topic_configs(
        self, topics: Iterable[str], *, names: Sequence[str] | None = None
    ) -> dict[str, dict[str, str | None]]:
        return {} if self.hides else await super().describe_topic_configs(topics)


async def test_a_topic_that_the_broker_tiers_itself_stays_refused_while_its_settings_are_not_told() -> None:
    """Two writers would each delete what the other counts on: an ACL that is taken away mends nothing."""
    table, broker = PartitionTable(), ReticentBroker()
    checks = TopicChecks(
        broker=broker,
        table=table,
        policy_for=lambda topic: TopicPolicy(),
        max_name_bytes=None,
        clock=ManualClock(),
        telemetry=NoTelemetry(),
    )
    settings = {"remote.storage.enable": "true", "retention.ms": "-1", "retention.bytes": "-1"}
    broker.settings[TOPIC] = settings
    await checks.check([TOPIC])
    assert "remote.storage.enable is true" in table.refused_topics[TOPIC]
    broker.hides = True
    await checks.check([TOPIC])
    assert TOPIC in table.refused_topics
    broker.hides = False
    settings["remote.storage.enable"] = "false"
    await checks.check([TOPIC])
    assert (table.refused_topics, table.untrimmable_topics) == ({}, {})
    broker.hides = True
    await checks.check([TOPIC])
    assert (table.refused_topics, TOPIC in table.untrimmable_topics) == ({}, True)


class Stage:
    """The checks of one sidecar; ``asked`` are the topics of each question."""

    def __init__(self, max_name_bytes: int | None = None, *, tiers_compacted: bool = False) -> None:
        self.table, self.broker, self.clock = PartitionTable(), AskedBroker(), ManualClock()
        self.telemetry = RecordedTelemetry()
        self.policies = {TOPIC: TopicPolicy(), "other": TopicPolicy(mode=RetentionMode.RACE)}
        self.checks = TopicChecks(
            broker=self.broker,
            table=self.table,
            policy_for=self.policies.get,
            max_name_bytes=max_name_bytes,
            clock=self.clock,
            telemetry=self.telemetry,
            tiers_compacted=tiers_compacted,
        )


class AskedBroker(ReticentBroker):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []

    async def describe_topic_configs(
        self, topics: Iterable[str], *, names: Sequence[str] | None = None
    ) -> dict[str, dict[str, str | None]]:
        self.asked.append(list(topics))
        return await super().describe_topic_configs(self.asked[-1])


GOOD = {"retention.ms": "-1", "retention.bytes": "-1"}
LIMITED = {**GOOD, "retention.ms": "1000"}


@pytest.mark.parametrize(
    ("topic", "settings", "refused", "untrimmable", "is_unsafe"),
    [
        pytest.param(TOPIC, GOOD, "", "", 0, id="all is well"),
        pytest.param(TOPIC, LIMITED, "", "retention.ms is 1000", 1, id="the broker's own retention deletes"),
        pytest.param("other", LIMITED, "", "", 0, id="as it is meant to in race mode"),
        pytest.param(TOPIC, {**GOOD, "cleanup.policy": "compact"}, "compact", "compact", 1, id="compacted"),
        pytest.param(
            "other",
            {**GOOD, "remote.storage.enable": "true"},
            "the broker tiers it itself",
            "the broker tiers it itself",
            1,
            id="tiered by the broker itself: neither copied nor trimmed, in any mode",
        ),
    ],
)
async def test_what_a_topics_settings_allow(
    topic: str, settings: dict[str, str | None], refused: str, untrimmable: str, is_unsafe: int
) -> None:
    stage = Stage()
    stage.broker.settings[topic] = settings
    with capture_logs() as told:
        await stage.checks.check([topic])
    events = ["topic.refused"] * bool(refused) + ["topic.trim_refused"] * bool(untrimmable)
    assert [one["event"] for one in told] == events
    assert (topic in stage.table.refused_topics) is bool(refused)
    assert refused in stage.table.refused_topics.get(topic, "")
    assert (topic in stage.table.untrimmable_topics) is bool(untrimmable)
    assert untrimmable in stage.table.untrimmable_topics.get(topic, "")
    assert stage.telemetry.value(UNSAFE_TOPICS, topic=topic) == is_unsafe


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
async def test_with_compaction_enabled_compacted_topics_are_tiered_and_known(policy: str) -> None:
    stage = Stage(tiers_compacted=True)
    stage.broker.settings[TOPIC] = {**GOOD, **COMPACTED, "cleanup.policy": policy}
    await stage.checks.check([TOPIC])
    assert stage.table.refused_topics == stage.table.untrimmable_topics == {}
    assert stage.table.compacted_topics[TOPIC].policy == policy
    assert stage.table.uncleaned_topics == set()
    stage.broker.settings[TOPIC] = GOOD
    await stage.checks.check([TOPIC])
    assert stage.table.compacted_topics == {}, "it is an ordinary one now"
    assert stage.table.uncleaned_topics == {TOPIC}
    stage.broker.settings[TOPIC] = {**GOOD, **COMPACTED, "cleanup.policy": policy}
    await stage.checks.check([TOPIC])
    assert stage.table.uncleaned_topics == set()


async def test_a_compacted_topic_of_which_a_setting_is_not_told_is_refused() -> None:
    stage = Stage(tiers_compacted=True)
    stage.broker.settings[TOPIC] = {**GOOD, **COMPACTED, "delete.retention.ms": None}
    await stage.checks.check([TOPIC])
    assert "does not report its cleaner's settings" in stage.table.refused_topics[TOPIC]
    assert stage.table.compacted_topics == {}


async def test_a_name_that_the_store_cannot_hold_is_refused() -> None:
    stage = Stage(max_name_bytes=20)
    await stage.checks.check([TOPIC])
    assert "the store takes 20" in stage.table.refused_topics[TOPIC]


async def test_a_topic_that_is_not_tiered_is_not_judged() -> None:
    stage = Stage()
    stage.broker.settings["nobodys"] = LIMITED
    await stage.checks.check(["nobodys", TOPIC])
    assert stage.table.untrimmable_topics == {}
    assert stage.telemetry.by_label(UNSAFE_TOPICS, "topic") == {TOPIC: 0}


async def test_a_change_is_told_once() -> None:
    stage = Stage()
    with capture_logs() as told:
        for settings in (LIMITED, LIMITED, {**GOOD, "retention.ms": "2000"}, GOOD, GOOD):
            stage.broker.settings[TOPIC] = settings
            await stage.checks.check([TOPIC])
    assert [(one["event"], one["log_level"]) for one in told] == [
        ("topic.trim_refused", "error"),
        ("topic.trim_refused", "error"),
        ("topic.trim_refused.cleared", "info"),
    ]
    assert {one["topic"] for one in told} == {TOPIC}


async def test_each_topic_is_looked_at_every_thirty_seconds() -> None:
    stage = Stage()
    await stage.checks.refresh(["other", TOPIC])
    await stage.clock.advance(29.9)
    await stage.checks.refresh([TOPIC, "other"])
    assert stage.broker.asked == [[TOPIC, "other"]], "in one question, in the order of their names"
    await stage.checks.check([TOPIC])
    await stage.clock.advance(0.1)
    await stage.checks.refresh([TOPIC, "other"])
    assert stage.broker.asked[2:] == [["other"]], "the other was looked at before a trim"


async def test_a_topic_that_is_gone_is_forgotten_and_looked_at_anew_when_it_is_back() -> None:
    stage = Stage()
    stage.broker.settings[TOPIC] = {**GOOD, "remote.storage.enable": "true"}
    await stage.checks.refresh([TOPIC])
    await stage.checks.refresh([])
    assert (stage.table.refused_topics, stage.table.untrimmable_topics) == ({}, {})
    assert stage.telemetry.value(UNSAFE_TOPICS, topic=TOPIC) is None
    await stage.checks.refresh([TOPIC])
    assert len(stage.broker.asked) == 2
    assert TOPIC in stage.table.refused_topics


@pytest.mark.parametrize(
    ("settings", "hides", "reason"),
    [
        pytest.param(GOOD, False, "", id="nobody but sidecars tiers it"),
        pytest.param(LIMITED, False, "", id="who may trim it is no matter"),
        pytest.param({**GOOD, "remote.storage.enable": "true"}, False, "the broker tiers it", id="the broker does"),
        pytest.param(GOOD, True, "did not show", id="who does is not known"),
        pytest.param({**GOOD, "remote.storage.enable": "true"}, True, "did not show", id="nor was it ever"),
    ],
)
async def test_what_another_may_be_copying_is_left_alone(
    settings: dict[str, str | None], hides: bool, reason: str
) -> None:
    stage = Stage()
    stage.broker.settings[TOPIC], stage.broker.hides = settings, hides
    found = await stage.checks.reason_to_leave(TOPIC)
    assert bool(found) is bool(reason)
    assert reason in found
    assert stage.broker.asked == [[TOPIC]], "as they are now"


async def test_what_was_known_of_it_outlasts_a_broker_that_does_not_tell() -> None:
    stage = Stage()
    stage.broker.settings[TOPIC] = {**GOOD, "remote.storage.enable": "true"}
    assert "the broker tiers it" in await stage.checks.reason_to_leave(TOPIC)
    stage.broker.hides = True
    assert "the broker tiers it" in await stage.checks.reason_to_leave(TOPIC)
    stage.broker.hides, stage.broker.settings[TOPIC] = False, GOOD
    assert await stage.checks.reason_to_leave(TOPIC) == ""

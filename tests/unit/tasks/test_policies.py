"""What the state topic says of a topic counts before the configuration (issue text; U10)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.scripted import MemoryStateLog
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.policy import RetentionMode, TopicPolicy, TrimHolds
from tiersidecar.ports.state_log import TopicState
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.policies import TopicPolicies, resolved_policy

CONFIGURED = TopicPolicy(retention_ms=1000, local_retention_ms=10, copy_lag_ms=5)
STATE = TopicState(
    topic="orders",
    mode="strict",
    retention_ms=2000,
    retention_bytes=50,
    local_retention_ms=20,
    local_retention_bytes=30,
)


def said(mode: str) -> TopicState:
    return TopicState(topic="orders", mode=mode, retention_ms=2000)


@pytest.mark.parametrize(
    ("default", "state", "expected"),
    [
        pytest.param(None, None, None, id="neither: left alone"),
        pytest.param(CONFIGURED, None, CONFIGURED, id="only the configuration"),
        pytest.param(
            None,
            STATE,
            TopicPolicy(retention_ms=2000, retention_bytes=50, local_retention_ms=20, local_retention_bytes=30),
            id="only the state topic",
        ),
        pytest.param(
            CONFIGURED,
            STATE,
            TopicPolicy(
                retention_ms=2000,
                retention_bytes=50,
                local_retention_ms=20,
                local_retention_bytes=30,
                copy_lag_ms=5,
            ),
            id="both: retention and mode by the state topic, the rest by the configuration",
        ),
        pytest.param(
            CONFIGURED, said("race"), TopicPolicy(mode=RetentionMode.RACE, retention_ms=2000, copy_lag_ms=5), id="race"
        ),
        pytest.param(
            None,
            said("detached"),
            TopicPolicy(mode=RetentionMode.RACE, retention_ms=2000, copy_disabled=True),
            id="U10 detached: nothing copied or trimmed, retention goes on",
        ),
        pytest.param(
            None,
            said("deleting"),
            TopicPolicy(mode=RetentionMode.RACE, retention_ms=2000, copy_disabled=True, delete_remote=True),
            id="KIP-950 switched off with deletion",
        ),
        pytest.param(
            CONFIGURED,
            said("frozen"),
            TopicPolicy(mode=RetentionMode.RACE, copy_disabled=True),
            id="a word of a later version: nothing is touched, nothing expires",
        ),
        pytest.param(
            CONFIGURED,
            replace(STATE, retention_ms=-5),
            TopicPolicy(mode=RetentionMode.RACE, copy_disabled=True),
            id="a retention that is no amount, by which everything would be past it: likewise",
        ),
        pytest.param(
            CONFIGURED,
            replace(STATE, local_retention_bytes=-3),
            TopicPolicy(mode=RetentionMode.RACE, copy_disabled=True),
            id="a local one likewise",
        ),
        pytest.param(
            None,
            replace(STATE, retention_ms=-1, retention_bytes=-1, local_retention_ms=-2, local_retention_bytes=-2),
            TopicPolicy(),
            id="no limit, and local data for as long as the total",
        ),
        pytest.param(
            None,
            replace(STATE, retention_bytes=-2),
            TopicPolicy(mode=RetentionMode.RACE, copy_disabled=True),
            id="a total that is as long as the total is none",
        ),
        pytest.param(
            replace(CONFIGURED, copy_disabled=True),
            said("strict"),
            TopicPolicy(retention_ms=2000, copy_lag_ms=5, copy_disabled=True),
            id="the configuration may switch copying off",
        ),
    ],
)
def test_resolution(default: TopicPolicy | None, state: TopicState | None, expected: TopicPolicy | None) -> None:
    assert resolved_policy(default, state, TopicPolicy()) == expected


def test_a_topic_that_only_enable_speaks_of_has_what_the_configuration_says_of_all() -> None:
    """Not least whom trims wait for: switching a topic on must not let them pass."""
    unnamed = TopicPolicy(copy_lag_ms=7, holds=TrimHolds(groups=("billing",)))
    found = resolved_policy(None, STATE, unnamed)
    assert found is not None
    assert (found.copy_lag_ms, found.holds.groups, found.retention_ms) == (7, ("billing",), 2000)


def test_the_state_is_of_a_topic_id_not_of_a_name() -> None:
    """A topic made anew under the name starts with the configuration."""
    table, state = PartitionTable(), MemoryStateLog()
    asyncio.run(state.publish_topic_state(TOPIC_ID_PARTITION.topic_id, STATE))
    policies = TopicPolicies(table=table, state=state, defaults=lambda topic: CONFIGURED, unnamed=TopicPolicy())
    assert policies.policy_for("orders") == CONFIGURED
    table.topic_ids = {"orders": TOPIC_ID_PARTITION.topic_id}
    found = policies.policy_for("orders")
    assert found is not None
    assert found.retention_ms == 2000


def test_whom_trims_wait_for_where_no_rule_names_the_topic_comes_from_all() -> None:
    table, state = PartitionTable(), MemoryStateLog()
    asyncio.run(state.publish_topic_state(TOPIC_ID_PARTITION.topic_id, STATE))
    table.topic_ids = {"orders": TOPIC_ID_PARTITION.topic_id}
    unnamed = TopicPolicy(holds=TrimHolds(groups=("billing",)))
    policies = TopicPolicies(table=table, state=state, defaults=lambda topic: None, unnamed=unnamed)
    found = policies.policy_for("orders")
    assert found is not None
    assert found.holds.groups == ("billing",)
    assert policies.policy_for("another") is None


def test_what_may_be_tiered_is_known_by_name_or_by_what_was_said_of_its_id() -> None:
    table, state, asked = PartitionTable(), MemoryStateLog(), list[str]()
    asyncio.run(state.publish_topic_state(TOPIC_ID_PARTITION.topic_id, STATE))

    def defaults(topic: str) -> TopicPolicy | None:
        asked.append(topic)
        return CONFIGURED if topic == "named" else None

    policies = TopicPolicies(table=table, state=state, defaults=defaults, unnamed=TopicPolicy())
    assert [policies.may_tier(topic) for topic in ("named", "orders", "another")] == [True, False, False]
    table.topic_ids = {"orders": TOPIC_ID_PARTITION.topic_id}
    assert [policies.may_tier(topic) for topic in ("named", "orders", "another")] == [True, True, False]
    assert asked == ["named", "orders", "another"], (
        "a client without any right may ask for it, a thousand times a request"
    )


def test_before_the_state_topic_has_been_read_any_topic_that_is_there_may_be_tiered() -> None:
    class Unread(MemoryStateLog):
        def topic_state(self, topic_id: Uuid) -> TopicState | None:
            raise MetadataNotReadyError(subject="the state topic")

    table = PartitionTable()
    table.topic_ids = {"orders": TOPIC_ID_PARTITION.topic_id}
    policies = TopicPolicies(table=table, state=Unread(), defaults=lambda topic: None, unnamed=TopicPolicy())
    assert [policies.may_tier(topic) for topic in ("orders", "another")] == [True, False]

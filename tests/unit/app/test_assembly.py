"""Which topics a gateway of a read-only mount takes for tiered (issue 21)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tiersidecar.app.assembly import policies_of
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.mounts import Mount, MountedTopic
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.tasks.partition_table import PartitionTable

PLANNED, OTHER = Uuid(b"planned-topic-id"), Uuid(b"other-topic-id!!")


class LostState:
    """The source is out of reach."""

    def topic_state(self, topic_id: Uuid) -> None:
        raise AssertionError("the source is asked what becomes of this cluster's topics")


def test_the_plan_alone_says_what_is_mounted() -> None:
    """Neither the source, which may be away, nor a name that a topic of this cluster has taken."""
    table, policy = PartitionTable(), TopicPolicy(retention_ms=5)
    opened: Any = SimpleNamespace(
        config=SimpleNamespace(source=SimpleNamespace(), unnamed_policy=policy),
        mount=Mount(topics={"orders": MountedTopic(topic_id=PLANNED, partitions=1)}),
        table=table,
        state=LostState(),
    )
    policies = policies_of(opened)
    assert policies.policy_for("orders") == policy, "before anybody has looked at the cluster"
    table.topic_ids = {"orders": PLANNED, "own": OTHER}
    assert policies.policy_for("orders") == policy
    assert policies.policy_for("own") is None
    assert not policies.may_tier("own")
    table.topic_ids = {"orders": OTHER}
    assert policies.policy_for("orders") is None

"""What holds a trim back is asked once for all topics, told once, and looked at again right before the records go (issue 6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.decide.trim import TrimHold
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.policy import ShareGroupHold, TopicPolicy, TrimHolds
from tiersidecar.ports.metrics.retention import TRIM_HELD_BY_GROUP, TRIM_REFUSALS
from tiersidecar.tasks.segment_objects import LayoutSettings
from tiersidecar.tasks.trim_gate import GROUPS_SHOWN, MAX_AGE_S, OTHERS

POLICY = TopicPolicy(local_retention_ms=0, holds=TrimHolds(groups=("billing",)))
ALL = TopicPolicy(local_retention_ms=0, holds=TrimHolds(groups_pattern=".*"))
NOBODY = TopicPolicy(local_retention_ms=0, holds=TrimHolds(share_groups=ShareGroupHold.IGNORE))


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[TierShell]:
    async with ThreadBlocking(max_threads=2) as blocking:
        clock, telemetry = ManualClock(now_ms=2_000_000_000_000), RecordedTelemetry()
        shell = TierShell(tmp_path, blocking, LayoutSettings(), POLICY, clock=clock, telemetry=telemetry)
        await shell.look()
        yield shell


async def copied(shell: TierShell, policy: TopicPolicy = POLICY) -> TieredPartition:
    """All sealed segments are remote and due."""
    shell.policy = policy
    await shell.look()
    tiered = shell.tiered(shell.topic_id_partition("plain-0"))
    await shell.copy.run(tiered)
    return tiered


async def pass_time(shell: TierShell) -> None:
    assert isinstance(shell.clock, ManualClock)
    await shell.clock.advance(MAX_AGE_S)


def hold_of(shell: TierShell, topic_id_partition: TopicIdPartition) -> TrimHold:
    hold = shell.table.record(topic_id_partition).trim_hold
    assert hold is not None
    return hold


async def test_a_trim_goes_as_far_as_the_group_has_read(shell: TierShell) -> None:
    tiered = await copied(shell)
    topic_id_partition = tiered.view.topic_id_partition
    segments = shell.table.local.partitions[topic_id_partition].segments
    with capture_logs() as logs:
        await shell.trim.run(tiered)
        assert shell.broker.deleted == []
        assert "billing has no committed offset" in hold_of(shell, topic_id_partition).reason
        shell.broker.groups.consumers["billing"] = {
            (topic_id_partition.topic, topic_id_partition.partition): segments[1].base_offset
        }
        await pass_time(shell)
        await shell.trim.run(tiered)
        assert shell.broker.deleted == [(topic_id_partition, segments[1].base_offset)]
        shell.broker.groups.consumers["billing"] = {
            (topic_id_partition.topic, topic_id_partition.partition): segments[-1].base_offset
        }
        await pass_time(shell)
        await shell.trim.run(tiered)
    assert shell.broker.deleted[-1] == (topic_id_partition, segments[-1].base_offset)
    assert shell.table.record(topic_id_partition).trim_hold is None
    told = [entry["event"] for entry in logs if entry["event"].startswith("trim.held_back")]
    assert told == ["trim.held_back", "trim.held_back.cleared"], "once, not at every look"


async def test_a_group_that_goes_back_meanwhile_stops_the_trim(shell: TierShell) -> None:
    """``kafka-consumer-groups --reset-offsets`` while segments are read back, which may take long."""
    tiered = await copied(shell)
    topic_id_partition = tiered.view.topic_id_partition
    last = shell.table.local.partitions[topic_id_partition].segments[-1].base_offset
    shell.broker.groups.consumers["billing"] = {(topic_id_partition.topic, topic_id_partition.partition): last}

    async def reset() -> None:
        shell.broker.groups.consumers["billing"] = {(topic_id_partition.topic, topic_id_partition.partition): 0}
        await pass_time(shell)

    shell.failpoints.actions["trim.verified"] = reset
    await shell.trim.run(tiered)
    assert shell.broker.deleted == []
    assert hold_of(shell, topic_id_partition).held_bytes > 0


@pytest.mark.parametrize(
    ("policy", "error", "is_trimmed"),
    [
        pytest.param(ALL, "CLUSTER_AUTHORIZATION_FAILED", False, id="groups by pattern cannot be listed"),
        pytest.param(TopicPolicy(local_retention_ms=0), "NOT_COORDINATOR", False, id="share groups cannot be listed"),
        pytest.param(NOBODY, "CLUSTER_AUTHORIZATION_FAILED", True, id="nobody is waited for, so nobody is listed"),
    ],
)
async def test_a_broker_that_refuses(shell: TierShell, policy: TopicPolicy, error: str, is_trimmed: bool) -> None:
    tiered = await copied(shell, policy)
    shell.broker.groups.error = error
    await shell.trim.run(tiered)
    assert bool(shell.broker.deleted) == is_trimmed
    hold = shell.table.record(tiered.view.topic_id_partition).trim_hold
    assert is_trimmed or (hold is not None and error in hold.reason)


async def test_partitions_that_are_due_together_share_a_look(shell: TierShell) -> None:
    await copied(shell, ALL)
    for topic_id_partition in list(shell.table.assignment)[:3]:
        tiered = shell.tiered(topic_id_partition)
        await shell.copy.run(tiered)
        await shell.trim.run(tiered)
    assert shell.broker.groups.asked == ["list", "list shares"]


async def test_the_metric_has_a_bounded_number_of_groups(shell: TierShell) -> None:
    tiered = await copied(shell, ALL)
    topic_id_partition = tiered.view.topic_id_partition
    telemetry = shell.telemetry
    assert isinstance(telemetry, RecordedTelemetry)
    shell.broker.groups.consumers = {
        f"group-{n:02}": {(topic_id_partition.topic, topic_id_partition.partition): 0} for n in range(GROUPS_SHOWN + 3)
    }
    await shell.trim.run(tiered)
    held = hold_of(shell, topic_id_partition).held_bytes
    shown = telemetry.by_label(TRIM_HELD_BY_GROUP, "group")
    assert len(shown) == GROUPS_SHOWN + 1
    assert shown[OTHERS] == 3 * held
    shell.broker.groups.consumers = {}
    await pass_time(shell)
    await shell.trim.run(tiered)
    assert telemetry.by_label(TRIM_HELD_BY_GROUP, "group") == {}


async def test_what_a_group_holds_in_several_partitions_is_shown_as_one_sum(shell: TierShell) -> None:
    await copied(shell, ALL)
    telemetry, held = shell.telemetry, 0
    assert isinstance(telemetry, RecordedTelemetry)
    two = [one for one in shell.table.assignment if one.topic == "plain"][:2]
    shell.broker.groups.consumers = {"billing": {(one.topic, one.partition): 0 for one in two}}
    for topic_id_partition in two:
        await shell.copy.run(shell.tiered(topic_id_partition))
        await shell.trim.run(shell.tiered(topic_id_partition))
        assert hold_of(shell, topic_id_partition).held_bytes > 0
        held += hold_of(shell, topic_id_partition).held_bytes
    assert telemetry.by_label(TRIM_HELD_BY_GROUP, "group") == {"billing": held}


@pytest.mark.parametrize(
    ("error", "refusals"),
    [
        pytest.param("GROUP_AUTHORIZATION_FAILED", 1, id="a group that cannot be asked for is a refusal, by its error"),
        pytest.param(None, None, id="one that is behind is none: it only has to read on"),
    ],
)
async def test_who_holds_a_trim_and_why(shell: TierShell, error: str | None, refusals: int | None) -> None:
    tiered = await copied(shell)
    topic_id_partition = tiered.view.topic_id_partition
    telemetry = shell.telemetry
    assert isinstance(telemetry, RecordedTelemetry)
    shell.broker.groups.consumers["billing"] = {(topic_id_partition.topic, topic_id_partition.partition): 0}
    if error is not None:
        shell.broker.groups.errors["billing"] = error
    await shell.trim.run(tiered)
    assert shell.broker.deleted == []
    assert (error or "billing") in hold_of(shell, topic_id_partition).reason
    assert telemetry.value(TRIM_REFUSALS, topic=topic_id_partition.topic, reason="groups") == refusals

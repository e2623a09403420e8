"""Watches for consumer groups that stand still below the start of the brokers' logs: how many offsets would they skip?

It is an alarm and nothing more.  Its cost is bounded: so many pairs of group and partition are asked for in each look, the next
groups in the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from tiersidecar.decide.groups_below_trim import BelowStart, LocalStart, Partition, decide_below
from tiersidecar.decide.topics import PartitionRole
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.policy import RetentionMode
from tiersidecar.ports.broker import GroupType, ReadGroups
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.retention import GROUP_BELOW_TRIM
from tiersidecar.ports.state_log import StateLog
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.partition_table import PartitionTable

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 300.0
STILL_S = 1800.0
"""How long a group has to stand still before it is reported."""
MOST_ASKED = 50_000
"""Pairs of group and partition in one look: an answer of that size takes about a second of the processor."""
MOST_SHOWN = 20
"""Pairs of group and topic with a series of their own, those with the most offsets; the others are one together."""
OTHERS = "(others)"
_PARTITIONS_IN_ONE_GO = 64
"""About a millisecond between two looks at the loop."""

_Key = tuple[str, str]
"""Group and topic."""


class HasGroups(Protocol):
    @property
    def groups(self) -> ReadGroups: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """Time on the monotonic clock since when it has stood there."""

    below: BelowStart
    since_s: float


class GroupsBelowTrim:
    """Watches the partitions that this broker leads in strict mode.  ``rests`` is why nothing is to be looked at, empty
    else."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        broker: HasGroups,
        state: StateLog,
        clock: Clock,
        telemetry: Telemetry,
        rests: Callable[[], str],
    ) -> None:
        self._table, self._broker, self._state = table, broker, state
        self._clock, self._telemetry, self._rests = clock, telemetry, rests
        self._standing: dict[_Key, _Standing] = {}
        self._warned: set[_Key] = set()
        self._shown: set[_Key] = set()
        self._asked_up_to = ""
        self._problem = ""

    async def run(self) -> None:
        """Look, until cancelled.  A fault of a look ends nothing but the look: this process also copies."""
        while True:
            await self._clock.sleep(LOOK_INTERVAL_S)
            try:
                await self.look()
            except Exception as error:
                log.exception("groups.below_trim.look.failed", reason=str(error) or repr(error))

    async def look(self) -> None:
        """Ask for some groups; where they cannot be asked for, nothing is reported."""
        try:
            await self._look({} if self._rests() else await self._trimmed())
            self._problem = ""
        except RetriableError as error:
            self._standing.clear()
            if not self._problem:
                log.info("groups.below_trim.not_known", reason=str(error))
            self._problem = str(error)
        self._report()

    async def _trimmed(self) -> dict[Partition, LocalStart]:
        """Return led partitions of which something is remote alone."""
        starts: dict[Partition, LocalStart] = {}
        for number, (topic_id_partition, tiered) in enumerate(list(self._table.assignment.items()), 1):
            if number % _PARTITIONS_IN_ONE_GO == 0:
                await asyncio.sleep(0)
            local_start = self._table.record(topic_id_partition).log_start_offset
            if (
                tiered.role is not PartitionRole.LEADER
                or tiered.policy.mode is not RetentionMode.STRICT
                or local_start <= 0
            ):
                continue
            remote_start = self._state.partition_state(topic_id_partition).start_in(
                self._table.lineage_on_disk(topic_id_partition)
            )
            if local_start > remote_start:
                starts[topic_id_partition.topic, topic_id_partition.partition] = LocalStart(
                    local_log_start_offset=local_start, remote_log_start_offset=max(remote_start, 0)
                )
        return starts

    async def _look(self, starts: Mapping[Partition, LocalStart]) -> None:
        if not starts:
            self._standing.clear()
            return
        listed = await self._broker.groups.list_groups()
        groups = sorted(group for group, kind in listed.items() if kind is GroupType.CONSUMER)
        asked = self._next(groups, max(MOST_ASKED // len(starts), 1))
        answers = await self._broker.groups.committed_offsets(asked, starts) if asked else {}
        self._standing = {
            key: standing for key, standing in self._standing.items() if key[0] in listed and key[0] not in asked
        } | {
            (group, topic): self._since((group, topic), below)
            for group, answer in answers.items()
            if answer.error is None
            for topic, below in decide_below(answer.offsets, starts).items()
        }

    def _next(self, groups: list[str], most: int) -> list[str]:
        """Return the groups after the last ones, and from the first again."""
        rest = [group for group in groups if group > self._asked_up_to] or groups
        asked = rest[:most]
        self._asked_up_to = asked[-1] if asked else ""
        return asked

    def _since(self, key: _Key, below: BelowStart) -> _Standing:
        """Return since when the group stands there.  A trim that goes on puts more below; that the group has moved shows in
        what it has committed."""
        before = self._standing.get(key)
        still = before is not None and before.below.committed <= below.committed
        return _Standing(below=below, since_s=before.since_s if before and still else self._clock.monotonic_s())

    def _report(self) -> None:
        now_s = self._clock.monotonic_s()
        still = {
            key: standing.below.offsets
            for key, standing in self._standing.items()
            if now_s - standing.since_s >= STILL_S
        }
        for group, topic in sorted(still.keys() - self._warned):
            log.warning("group.below_trim", group=group, topic=topic, offsets=still[group, topic])
        for group, topic in sorted(self._warned - still.keys()):
            log.info("group.below_trim.over", group=group, topic=topic)
        self._warned = set(still)
        ranked = sorted(still.items(), key=lambda one: (-one[1], one[0]))
        shown = dict(ranked[:MOST_SHOWN])
        if len(ranked) > MOST_SHOWN:
            shown[OTHERS, OTHERS] = sum(offsets for _, offsets in ranked[MOST_SHOWN:])
        for group, topic in self._shown - shown.keys():
            self._telemetry.forget(GROUP_BELOW_TRIM, group=group, topic=topic)
        for (group, topic), offsets in shown.items():
            self._telemetry.gauge(GROUP_BELOW_TRIM, offsets, group=group, topic=topic)
        self._shown = set(shown)

"""Takes over: the bucket's data become the new cluster's, and its topics say what the former cluster's said.

The claim comes first, which is the fence: sidecars of the former cluster that come back find that the data are another
cluster's, and write nothing more.  It may be done again after a failure; a step that was done is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.at_once import at_once
from tiersidecar.app.builders.store import open_store
from tiersidecar.app.commands.session import Session
from tiersidecar.app.mount_claims import FoundClaims, MountClaims
from tiersidecar.app.mount_file import MountPlan
from tiersidecar.app.recover_look import FormerCluster
from tiersidecar.app.recover_report import RecoverReport
from tiersidecar.app.recover_run import Recoverer
from tiersidecar.decide.mount import GroupRestore, SeenPartition, decide_group, partition_fault
from tiersidecar.domain.cluster_topics import NewPartition, TopicPartition
from tiersidecar.domain.errors import MountRefusedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot, GroupCommits
from tiersidecar.ports.telemetry import NoTelemetry

_LED_TIMEOUT_S = 60.0
_COORDINATORS_TIMEOUT_S = 60.0
_COORDINATORS_TO_COME = frozenset({"COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"})
_LOOK_AGAIN_S = 0.2
_GROUPS_AT_ONCE = 50
_SETTLED_AT_ONCE = 50
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MountLook:
    """The steps between the plan and its end.  ``faults`` say why nothing is done."""

    faults: tuple[str, ...]
    leaderless: tuple[TopicPartition, ...]
    claims: FoundClaims
    written: int
    report: RecoverReport | None = None


@dataclass(slots=True, kw_only=True)
class GroupReport:
    """How restoring the groups went."""

    restored: int = 0
    there_already: int = 0
    ahead: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def take(self, group: str, wanted: GroupRestore, error: str) -> None:
        """Count what was done for one; ``error`` is why nothing was."""
        if error:
            self.refused[group] = error
            return
        self.restored += bool(wanted.commits)
        self.there_already += bool(wanted.there_already)
        if wanted.ahead:
            self.ahead[group] = [
                f"{topic}-{partition}: from {committed} to {end}"
                for (topic, partition), (committed, end) in wanted.ahead.items()
            ]

    def facts(self) -> dict[str, Any]:
        """Return figures, and names of what people must look at."""
        return {
            "groups_restored": self.restored,
            "groups_there_already": self.there_already,
            "groups_set_back": self.ahead,
            "groups_refused": self.refused,
        }


class MountPublisher:
    """Publishes one plan.  ``say`` is called with each step, for people.  ``former_is_gone``: the operator says that
    the former cluster is gone, so it is not checked for signs of life.  ``cluster_snapshot`` is the key of the one to use, None
    for the plan's."""

    def __init__(
        self,
        session: Session,
        plan: MountPlan,
        say: Callable[[str], None],
        *,
        former_is_gone: bool = False,
        cluster_snapshot: str | None = None,
    ) -> None:
        self._cluster_snapshot = cluster_snapshot if cluster_snapshot is not None else plan.cluster_snapshot
        self._session, self._plan, self._say, self._former_is_gone = session, plan, say, former_is_gone

    async def look(self) -> MountLook:
        """Compare the cluster with the plan, and look what would be published; changes nothing.

        Raises:
            BrokerRefusedError, BrokerUnreachableError, StoreError: something is away.
        """
        found = await self._compare()
        return found if found.faults else replace(found, report=await self._recoverer(found.claims).plan())

    async def _compare(self) -> MountLook:
        """Compare the cluster with the plan."""
        self._say("looking at the cluster's topics")
        views = await self._views()
        seen = await self._seen(views)
        faults = [
            f"{owner}: {fault}"
            for owner, one in self._plan.partitions()
            if (fault := partition_fault(owner.topic_id, one, seen.get((owner.topic, owner.partition))))
        ]
        async with self._claims() as claims:
            claimed = await claims.look(former_is_gone=self._former_is_gone)
        return MountLook(
            faults=(*faults, *claimed.faults),
            leaderless=tuple(place for place, one in seen.items() if not one.has_leader),
            claims=claimed,
            written=sum(
                seen[owner.topic, owner.partition].log_end > one.start_offset
                for owner, one in self._plan.partitions()
                if (owner.topic, owner.partition) in seen
            ),
        )

    async def apply(self) -> Mapping[str, Any]:
        """Look again, and do it.

        Raises:
            MountRefusedError: the cluster is not the planned one any more, or a partition gets no leader.
            As :meth:`look`, and :class:`~tiersidecar.app.recover_run.Recoverer`.
        """
        found = await self._compare()
        if found.faults:
            raise MountRefusedError(reason="; ".join(found.faults[:_MOST_NAMED]))
        views = await self._led(found.leaderless)
        async with self._claims() as claims:
            await claims.claim(found.claims)
        report = await self._recoverer(found.claims).apply()
        aborted = await self._settle_all(views)
        groups = await self._restore_groups(found.claims.cluster)
        return {"published": {**report.facts(), "transactions_aborted": aborted}, **groups.facts()}

    def _recoverer(self, claims: FoundClaims) -> Recoverer:
        former = FormerCluster(
            cluster_id=self._plan.former_cluster_id,
            ends={(owner.topic_id, owner.partition): one.start_offset for owner, one in self._plan.partitions()},
            earlier=claims.lineage[1:],
        )
        return Recoverer(self._session, [topic.name for topic in self._plan.topics], self._say, former)

    # -- looking

    async def _views(self) -> dict[TopicPartition, LeaderView]:
        described = await self._session.broker.describe_partitions([topic.name for topic in self._plan.topics])
        return {(view.topic_id_partition.topic, view.topic_id_partition.partition): view for view in described}

    async def _seen(self, views: Mapping[TopicPartition, LeaderView]) -> dict[TopicPartition, SeenPartition]:
        led = {view.topic_id_partition: view.leader_epoch for view in views.values() if view.leader_id >= 0}
        earliest = await self._session.broker.list_offsets(led, OffsetSpec.EARLIEST)
        latest = await self._session.broker.list_offsets(led, OffsetSpec.LATEST)
        found = {}
        for place, view in views.items():
            start, end = earliest.get(view.topic_id_partition), latest.get(view.topic_id_partition)
            has_leader = start is not None and end is not None and start.error is None and end.error is None
            found[place] = SeenPartition(
                topic_id=view.topic_id_partition.topic_id,
                leader_epoch=view.leader_epoch,
                has_leader=has_leader,
                log_start=start.offset if has_leader and start is not None else -1,
                log_end=end.offset if has_leader and end is not None else -1,
            )
        return found

    # -- doing

    async def _led(self, leaderless: Sequence[TopicPartition]) -> Mapping[TopicPartition, LeaderView]:
        """Have every partition led.  All replicas are empty and begin at the same offset: nothing is lost by any of them."""
        if leaderless:
            self._say(f"electing leaders of {len(leaderless):,} partitions")
            await self._session.broker.mounting.elect_leaders(leaderless)
        try:
            async with asyncio.timeout(_LED_TIMEOUT_S):
                while True:
                    views = await self._views()
                    seen = await self._seen(views)
                    if all(one.has_leader for one in seen.values()):
                        break
                    await self._session.clock.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            waiting = sorted(f"{topic}-{number}" for (topic, number), one in seen.items() if not one.has_leader)
            named = ", ".join(waiting[:_MOST_NAMED])
            raise MountRefusedError(reason=f"no leader for {named}: are all brokers of the plan running?") from None
        for owner, one in self._plan.partitions():
            if fault := partition_fault(owner.topic_id, one, seen.get((owner.topic, owner.partition))):
                raise MountRefusedError(reason=f"{owner}: {fault}")
        return views

    async def _settle_all(self, views: Mapping[TopicPartition, LeaderView]) -> int:
        """Settle each partition; with thousands, one answer after the other would take minutes."""

        async def settle(planned: tuple[TopicIdPartition, NewPartition]) -> int:
            owner, one = planned
            return await self._settle(owner, one.leader_epoch, one.start_offset, views)

        return sum(await at_once(settle, self._plan.partitions(), _SETTLED_AT_ONCE))

    async def _settle(
        self,
        owner: TopicIdPartition,
        planned_epoch: int,
        start_offset: int,
        views: Mapping[TopicPartition, LeaderView],
    ) -> int:
        """End what was open where the log goes on, and say that all below is remote; return how many transactions were ended.
        What is said shows that it was done."""
        known = self._session.state.partition_state(owner)
        if start_offset == 0 or known.trim_epoch > planned_epoch:
            return 0
        place = owner.topic, owner.partition
        view, open_ones = views[place], self._plan.open_transactions.get(place, ())
        self._say(f"ending transactions and saying where logs begin: {owner}")
        for one in open_ones:
            await self._session.broker.mounting.abort(place, view.leader_id, one.producer_id, one.producer_epoch)
        offset = Offset(start_offset)
        await self._session.state.publish_partition_state(owner, known.with_trim(offset, view.leader_epoch, offset))
        return len(open_ones)

    async def _restore_groups(self, cluster: ClusterSnapshot | None) -> GroupReport:
        report = GroupReport()
        if cluster is None:
            return report
        ends = {(owner.topic, owner.partition): one.start_offset for owner, one in self._plan.partitions()}
        epochs = {(owner.topic, owner.partition): one.leader_epoch for owner, one in self._plan.partitions()}
        names = sorted(cluster.groups)
        for start in range(0, len(names), _GROUPS_AT_ONCE):
            self._say(f"restoring groups: {start:,} of {len(names):,}")
            chunk = names[start : start + _GROUPS_AT_ONCE]
            known = await self._commits_of(chunk)
            wanted = {
                group: decide_group(cluster.groups[group], ends, known[group].commits.keys(), epochs) for group in chunk
            }
            errors = await asyncio.gather(*(self._restore(known[group], group, wanted[group]) for group in chunk))
            for group, error in zip(chunk, errors, strict=True):
                report.take(group, wanted[group], error)
        return report

    async def _commits_of(self, groups: Sequence[str]) -> Mapping[str, GroupCommits]:
        """Return their commits here.  A new cluster makes the coordinators' topic when the first group is asked for."""
        deadline_s = self._session.clock.monotonic_s() + _COORDINATORS_TIMEOUT_S
        while True:
            known = await self._session.broker.groups.commits(groups)
            waits = any(one.error in _COORDINATORS_TO_COME for one in known.values())
            if not waits or self._session.clock.monotonic_s() >= deadline_s:
                return known
            await self._session.clock.sleep(_LOOK_AGAIN_S)

    async def _restore(self, known: GroupCommits, group: str, wanted: GroupRestore) -> str:
        """Restore; return Kafka's name of the error that prevents it, empty where none does."""
        if known.error or not wanted.commits:
            return known.error
        return await self._session.broker.groups.commit(group, wanted.commits)

    @asynccontextmanager
    async def _claims(self) -> AsyncIterator[MountClaims]:
        clock = self._session.clock
        pace = UploadPace(None, clock)
        async with (
            open_store(self._session.config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()) as store,
            ThreadBlocking(max_threads=1) as blocking,
        ):
            yield MountClaims(
                store=store,
                key_prefix=self._session.config.store.key_prefix,
                blocking=blocking,
                clock=clock,
                plan=self._plan,
                ours=(await self._session.broker.describe_cluster()).cluster_id,
                say=self._say,
                cluster_snapshot=self._cluster_snapshot,
            )

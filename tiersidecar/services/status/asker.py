"""The cluster as this sidecar sees it by asking all others: at most once a second, however many clients look at the page.

An address may lead to another cluster's sidecar, by a mistake in ``status.advertised`` or behind a proxy.  Nothing that it
answers counts.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from tiersidecar.domain.errors import MetadataNotReadyError, TiersidecarError
from tiersidecar.ports.clock import Blocking
from tiersidecar.services.status.answers import Answer, reason_of_another_cluster
from tiersidecar.services.status.cluster import Cluster, Sidecar, put_together, read_overview
from tiersidecar.services.status.documents import explanation_document, row_document
from tiersidecar.services.status.once import Once
from tiersidecar.services.status.overview import Overview
from tiersidecar.services.status.peers import DETAIL_S, OVERVIEW_S, Peers
from tiersidecar.services.status.shares import Share
from tiersidecar.services.status.source import SidecarStatus, StatusSource

_KEPT_S = 1.0


class ClusterAsker:
    """``also`` are addresses of status services that have no lease: of gateways and readers in processes of their own."""

    def __init__(
        self,
        *,
        source: StatusSource,
        overview: Overview,
        peers: Peers,
        blocking: Blocking,
        also: Sequence[str] = (),
        overview_s: float = OVERVIEW_S,
    ) -> None:
        self._source, self._overview, self._peers, self._blocking = source, overview, peers, blocking
        self._also, self._overview_s = also, overview_s
        self._once: Once[Cluster] = Once(self._look, kept_s=_KEPT_S)
        self._details = Share(at_once=2, waiting=16, rest=1.0)  # they ask the broker and the store

    async def cluster(self) -> Cluster:
        """Return all sidecars, asked within the last second."""
        return await self._once.value()

    def close(self) -> None:
        """Ask no more."""
        self._once.close()

    async def segments(self, cluster: Cluster, topic: str, partition: int) -> Answer:
        """Return the leader's list of segments, as ``/segments`` has it."""

        async def own() -> dict[str, Any]:
            return {"segments": [row_document(row) for row in await self._source.segment_rows(topic, partition)]}

        return await self._of_leader(cluster, "/segments", {"topic": topic, "partition": partition}, own)

    async def explanation(self, cluster: Cluster, topic: str, partition: int, offset: int | None) -> Answer:
        """Return why they are where they are, as the leader's ``/explain`` has it."""

        async def own() -> dict[str, Any]:
            return explanation_document(await self._source.explanation(topic, partition, offset))

        query = {"topic": topic, "partition": partition} | ({} if offset is None else {"offset": offset})
        return await self._of_leader(cluster, "/explain", query, own)

    async def _of_leader(
        self, cluster: Cluster, path: str, query: dict[str, Any], own: Callable[[], Awaitable[dict[str, Any]]]
    ) -> Answer:
        leader = next(
            (sidecar for sidecar in cluster.sidecars if _leads(sidecar, query["topic"], query["partition"])), None
        )
        if leader is None:
            return Answer(problem="no sidecar that answers leads it")
        if leader.is_own:
            return await self._ask_this_process(own)
        answer = await self._peers.ask(leader.address, f"{path}?{urlencode(query)}", DETAIL_S)
        reason = self._reason_of_another_cluster(leader.address, answer)
        return Answer(code=answer.code, problem=reason) if reason else answer

    def _reason_of_another_cluster(self, address: str, answer: Answer) -> str:
        return reason_of_another_cluster(address, answer.document or {}, self._source.summary().cluster_id or "")

    async def _ask_this_process(self, own: Callable[[], Awaitable[dict[str, Any]]]) -> Answer:
        try:
            async with asyncio.timeout(DETAIL_S), self._details.place():
                return Answer(document=await own(), code=200)
        except TimeoutError:
            return Answer(problem=f"it did not answer within {DETAIL_S:g} s")
        except TiersidecarError as error:
            return Answer(problem=str(error))

    async def _look(self) -> Cluster:
        asked_ms = time.time_ns() // 1_000_000
        own = asyncio.ensure_future(self._own())
        try:
            others = await asyncio.gather(*(self._ask(one) for one in self._others()))
            sidecars = [await own, *others]
        finally:
            own.cancel()
        sidecars.sort(key=lambda one: (one.node_id is None, one.node_id or 0, one.address))
        return await self._blocking.run(put_together, sidecars, asked_ms)

    def _others(self) -> list[SidecarStatus]:
        """Return all but this process; none while it does not know which cluster is its own."""
        if not self._source.summary().cluster_id:
            return []
        leases = self._leases()
        named = [SidecarStatus(node_id=-1, address=one, host="", version="", is_over=False) for one in self._also]
        return [*(lease for lease in leases if lease.node_id != self._leased_node), *named]

    @property
    def _leased_node(self) -> int:
        """Return the broker whose lease is this process's own: a gateway, or a standby, is beside the same broker."""
        summary = self._source.summary()
        holds = "tier" in summary.roles and summary.mode == "enforce" and not summary.standing_by
        return -1 if summary.node_id is None or not holds else summary.node_id

    async def _own(self) -> Sidecar:
        summary = self._source.summary()
        address = next((lease.address for lease in self._leases() if lease.node_id == self._leased_node), "")
        # In the form in which another sidecar would read it.
        document = json.loads(await self._blocking.run(json.dumps, await self._overview.document()))
        read = await self._blocking.run(_read, summary.node_id, address, summary.version, Answer(document=document))
        return replace(read, is_own=True)

    def _leases(self) -> Sequence[SidecarStatus]:
        try:
            return self._source.sidecars()
        except MetadataNotReadyError:
            return ()

    async def _ask(self, one: SidecarStatus) -> Sidecar:
        node_id = None if one.node_id < 0 else one.node_id
        if one.why_not_asked:
            return Sidecar(node_id=node_id, address="", version=one.version, problem=one.why_not_asked)
        answer = await self._peers.ask(one.address, "/overview", self._overview_s)
        if reason := self._reason_of_another_cluster(one.address, answer):
            return Sidecar(
                node_id=node_id, address=one.address, version=one.version, problem=reason, is_of_another_cluster=True
            )
        return await self._blocking.run(_read, node_id, one.address, one.version, answer)


def _read(node_id: int | None, address: str, version: str, answer: Answer) -> Sidecar:
    """Read an answer, in a thread: thousands of partitions take some milliseconds."""
    if answer.document is None or answer.problem:
        return Sidecar(node_id=node_id, address=address, version=version, problem=answer.problem)
    try:
        overview = read_overview(answer.document)
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError):
        problem = f"what it answered (HTTP {answer.code}) is no overview that this version reads"
        return Sidecar(node_id=node_id, address=address, version=version, problem=problem)
    shown = node_id if overview.node_id < 0 else overview.node_id
    return Sidecar(node_id=shown, address=address, version=overview.version, overview=overview)


def _leads(one: Sidecar, topic: str, partition: int) -> bool:
    leads = () if one.overview is None else one.overview.leads
    return any((line.topic, line.partition) == (topic, partition) for line in leads)

"""Whose remote data a topic id's are: claimed once, by a put that finds nothing, and never taken from another cluster."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.segments import TIP
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.errors import NotOwnedError
from tiersidecar.domain.ids import BrokerId, format_uuid
from tiersidecar.ports.store import BytesBody
from tiersidecar.tasks.topic_owners import TopicOwner, TopicOwners, owner_key, read_owning_cluster

KEY = owner_key("prefix/", TIP.topic_id)


class Stage:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock, ids=SystemIds())

    def owners(self, cluster_id: str) -> TopicOwners:
        return TopicOwners(
            store=self.store,
            key_prefix="prefix/",
            clock=self.clock,
            cluster_id=cluster_id,
            broker_id=BrokerId(1),
            incarnation="x",
        )

    async def overwrite(self, data: bytes) -> None:
        await self.store.put_object(KEY, BytesBody(data))


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_the_first_claim_makes_the_object_and_holds_for_all_sidecars_of_the_cluster(stage: Stage) -> None:
    await stage.owners("ours").claim(TIP)
    assert read_owning_cluster(await stage.store.fetch_object(KEY)) == "ours"
    await stage.owners("ours").claim(TIP)


async def test_another_clusters_claim_is_respected(stage: Stage) -> None:
    await stage.owners("theirs").claim(TIP)
    with pytest.raises(NotOwnedError, match="says cluster theirs"):
        await stage.owners("ours").claim(TIP)


async def test_of_two_at_once_one_gets_it(stage: Stage) -> None:
    claims = [stage.owners(name).claim(TIP) for name in ("ours", "theirs")]
    results = await asyncio.gather(*claims, return_exceptions=True)
    assert sorted(type(one).__name__ for one in results) == ["NoneType", "NotOwnedError"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"cluster_id": 7}'])
async def test_an_object_that_cannot_be_read_is_nobodys_leave(stage: Stage, data: bytes) -> None:
    await stage.overwrite(data)
    with pytest.raises(NotOwnedError, match="cannot be read"):
        await stage.owners("ours").claim(TIP)


async def test_an_answer_counts_for_ten_seconds(stage: Stage) -> None:
    ours = stage.owners("ours")
    await ours.claim(TIP)
    await stage.overwrite(b'{"cluster_id":"theirs"}')
    await stage.clock.advance(9)
    await ours.claim(TIP)
    await stage.clock.advance(2)
    with pytest.raises(NotOwnedError):
        await ours.claim(TIP)


def test_an_owner_object_has_these_bytes() -> None:
    """They outlive this release: what a cluster claimed is never claimed anew."""
    owner = TopicOwner(cluster_id="c", topic="orders", claimed_ms=7, broker_id=2, incarnation="host/1")
    assert owner.write(TIP.topic_id) == (
        b'{"version":1,"cluster_id":"c","topic":"orders","topic_id":"'
        + format_uuid(TIP.topic_id).encode()
        + b'","claimed_ms":7,"broker_id":2,"incarnation":"host/1"}'
    )

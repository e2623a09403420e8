"""Which topics ``tiersidecar pause`` and ``resume`` mean by a name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tiersidecar.app.commands.pause import look_at_pause, look_at_resume
from tiersidecar.app.commands.session import Session
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.policy import Pause, PausedThing, PauseKind

FORMER, ANEW = Uuid(b"f" * 16), Uuid(b"a" * 16)
COPIES, DELETES = PauseKind.COPIES, PauseKind.DELETES


class State:
    def __init__(self, *known: Uuid) -> None:
        self.known: dict[PausedThing, Pause] = {}
        self._ids = known

    def partitions(self) -> list[TopicIdPartition]:
        return [TopicIdPartition(topic_id=id_, topic="orders", partition=0) for id_ in self._ids]

    def pauses(self) -> list[Pause]:
        return list(self.known.values())

    def known_leases(self) -> list[object]:
        return []

    async def publish_pause(self, pause: Pause) -> None:
        self.known[pause.thing] = pause

    async def forget_pause(self, pause: Pause) -> None:
        del self.known[pause.thing]


def session_of(state: State, live: Uuid | None) -> Session:
    found = [] if live is None else [TopicIdPartition(topic_id=live, topic="orders", partition=0)]
    views = [SimpleNamespace(topic_id_partition=one) for one in found]

    async def describe_partitions(topics: object) -> list[SimpleNamespace]:
        return views

    async def describe_cluster() -> SimpleNamespace:
        return SimpleNamespace(brokers={})

    async def partitions(topic: str) -> list[SimpleNamespace]:
        if not views:
            raise BrokerRefusedError(api="Metadata", subject=topic, error="UNKNOWN_TOPIC_OR_PARTITION")
        return views

    return cast(
        "Session",
        SimpleNamespace(
            state=state,
            partitions=partitions,
            broker=SimpleNamespace(describe_partitions=describe_partitions, describe_cluster=describe_cluster),
            clock=SimpleNamespace(now_ms=lambda: 0),
            config=SimpleNamespace(deletes_brokers_without_sidecar=()),
        ),
    )


@pytest.mark.parametrize(
    ("live", "paused"),
    [
        pytest.param(None, [(DELETES, FORMER)], id="it is deleted"),
        pytest.param(ANEW, [(COPIES, ANEW), (DELETES, ANEW), (DELETES, FORMER)], id="and made anew"),
        pytest.param(FORMER, [(COPIES, FORMER), (DELETES, FORMER)], id="it is there"),
    ],
)
async def test_the_deletion_of_a_topic_that_is_gone_is_paused_and_resumed_by_its_name(
    live: Uuid | None, paused: list[tuple[PauseKind, Uuid]]
) -> None:
    """docs/operations/disasters.md: who deleted a topic by mistake pauses its deletes within the grace."""
    state = State(FORMER)
    intent = await look_at_pause(session_of(state, live), "orders", (COPIES, DELETES), "by mistake")
    assert intent.apply is not None
    await intent.apply()
    assert {(one.kind, one.topic_id) for one in state.known} == set(paused)
    assert len(intent.steps) == len(paused)
    resumed = await look_at_resume(session_of(state, live), "orders", (COPIES, DELETES))
    assert resumed.apply is not None
    await resumed.apply()
    assert not state.known


@pytest.mark.parametrize(
    ("state", "kinds"),
    [
        pytest.param(State(), (COPIES, DELETES), id="no topic ever had the name"),
        pytest.param(State(FORMER), (COPIES,), id="nothing is copied of one that is gone"),
    ],
)
async def test_what_cannot_be_paused_is_refused(state: State, kinds: tuple[PauseKind, ...]) -> None:
    with pytest.raises(BrokerRefusedError):
        await look_at_pause(session_of(state, None), "orders", kinds, "")

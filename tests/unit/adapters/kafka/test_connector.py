from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.adapters.kafka import answers
from tests.unit.adapters.kafka.scripted_peer import Conversation, scripted_peer
from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import BrokerConnection
from tiersidecar.adapters.kafka.connector import ConnectionPool, Connector
from tiersidecar.adapters.kafka.security import PLAINTEXT, SaslMechanism, SecurityProtocol, SecuritySettings
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError

ALICE = SecuritySettings(
    security_protocol=SecurityProtocol.SASL_PLAINTEXT,
    sasl_mechanism=SaslMechanism.PLAIN,
    username="alice",
    password="secret",
)


class ManualClock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def plain_peer(talk: Conversation) -> None:
    await talk.tell_versions()
    while True:
        header, _ = await talk.hear()
        talk.answer(header, answers.metadata(header))


async def hour_long_login(talk: Conversation) -> None:
    await talk.tell_versions()
    header, _ = await talk.hear()
    talk.answer(header, answers.handshake())
    header, _ = await talk.hear()
    talk.answer(header, answers.authenticated(lifetime_s=3600))
    await talk.until_closed()


async def test_of_many_callers_one_connects() -> None:
    async with scripted_peer(plain_peer) as peer:
        connector = Connector(PLAINTEXT, client_id="x")
        pool = ConnectionPool(is_usable=connector.is_usable)
        found = await asyncio.gather(
            *(pool.connection(peer.address, lambda: connector.connect(peer.address)) for _ in range(5))
        )
        await pool.close()

    assert len({id(connection) for connection in found}) == 1
    assert peer.connections == 1
    assert not found[0].is_open


async def test_a_connection_that_is_gone_is_made_again() -> None:
    async with scripted_peer(plain_peer) as peer:
        connector = Connector(PLAINTEXT, client_id="x")
        pool = ConnectionPool(is_usable=connector.is_usable)
        first = await pool.connection("key", lambda: connector.connect(peer.address))
        await first.close()
        assert pool.live_connection("key") is None
        second = await pool.connection("key", lambda: connector.connect(peer.address))
        assert second.is_open
        await pool.close()


async def test_a_login_is_renewed_before_it_ends() -> None:
    """KIP-368; 85 % of the session's lifetime."""
    clock = ManualClock()
    async with scripted_peer(hour_long_login) as peer:
        connector = Connector(ALICE, client_id="x", monotonic_s=clock)
        pool = ConnectionPool(is_usable=connector.is_usable)
        first = await pool.connection("key", lambda: connector.connect(peer.address))
        clock.now_s += 3059
        assert await pool.connection("key", lambda: connector.connect(peer.address)) is first
        clock.now_s += 1
        second = await pool.connection("key", lambda: connector.connect(peer.address))
        assert second is not first
        assert not first.is_open
        await pool.close()
    assert peer.connections == 2


async def test_what_is_in_flight_on_an_old_login_is_still_answered() -> None:
    clock, release = ManualClock(), asyncio.Event()

    async def slow(talk: Conversation) -> None:
        await talk.tell_versions()
        header, _ = await talk.hear()
        await release.wait()
        talk.answer(header, answers.metadata(header))
        await talk.until_closed()

    async with scripted_peer(slow) as peer:
        connector = Connector(PLAINTEXT, client_id="x", monotonic_s=clock)
        pool = ConnectionPool(is_usable=connector.is_usable)
        first = await pool.connection("key", lambda: connector.connect(peer.address))
        first.usable_until_s = clock.now_s
        asking = asyncio.create_task(first.ask(apis.METADATA, lambda version: apis.metadata(version, ())))
        await asyncio.sleep(0)
        await pool.connection("key", lambda: connector.connect(peer.address))
        release.set()
        assert (await asking).cluster_id == "c"
        await pool.close()
        assert not first.is_open


async def test_the_connection_used_longest_ago_makes_room() -> None:
    """DESIGN section 4, rule 8: pools are bounded."""
    async with scripted_peer(plain_peer) as peer:
        connector = Connector(PLAINTEXT, client_id="x")
        pool = ConnectionPool(is_usable=connector.is_usable, max_connections=2)

        async def get(key: str) -> BrokerConnection:
            return await pool.connection(key, lambda: connector.connect(peer.address))

        first, second = await get("1"), await get("2")
        assert await get("1") is first
        await get("3")
        assert pool.live_connection("2") is None
        assert pool.live_connection("1") is first
        await get("4")
        assert not second.is_open
        await pool.close()


async def test_a_failed_login_leaves_no_connection_open() -> None:
    closed = asyncio.Event()

    async def refusing(talk: Conversation) -> None:
        await talk.tell_versions()
        header, _ = await talk.hear()
        talk.answer(header, answers.handshake(ErrorCode.unsupported_sasl_mechanism))
        await talk.until_closed()
        closed.set()

    async with scripted_peer(refusing) as peer:
        connector = Connector(ALICE, client_id="x")
        pool = ConnectionPool(is_usable=connector.is_usable)
        with pytest.raises(BrokerRefusedError):
            await pool.connection("key", lambda: connector.connect(peer.address))
        await closed.wait()
        assert pool.live_connection("key") is None


async def test_a_failed_connection_is_tried_again_by_the_next_caller() -> None:
    async with scripted_peer(plain_peer) as peer:
        address = peer.address
    connector = Connector(PLAINTEXT, client_id="x")
    pool = ConnectionPool(is_usable=connector.is_usable)
    for _ in range(2):
        with pytest.raises(BrokerUnreachableError):
            await pool.connection(address, lambda: connector.connect(address))

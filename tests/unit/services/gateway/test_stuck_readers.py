"""Clients that do not take their answers, and what others get meanwhile (issue 17)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

from tests.support.gateway_core import Core
from tests.support.scripted_kafka import request
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.services.gateway.exchange import Buffer, Exchange, Rewrite
from tiersidecar.services.gateway.frames import ResponseMemory

MIB = 2**20
STUCK, OTHER = "192.0.2.1", "192.0.2.2"


class Filling(Rewrite):
    """Rewrites ListOffsets v1, and takes memory for more."""

    reads_request = True
    alone = True

    def __init__(self, more_bytes: int = 0) -> None:
        self._more_bytes = more_bytes
        self.filled_bytes = 0

    def versions(self) -> range:
        return range(1, 4)

    def rewrite(self, exchange: Exchange, response: memoryview) -> Sequence[Buffer] | None:
        self.filled_bytes = exchange.upstream.take_memory(self._more_bytes)
        return (response, bytes(self.filled_bytes))


def connection(memory: ResponseMemory, address: str, *, more_bytes: int = 0) -> tuple[Core, Filling]:
    """A connection that has asked."""
    rewrite = Filling(more_bytes)
    core = Core({ApiKey.LIST_OFFSETS: rewrite}, memory=memory, address=f"{address}:1")
    core.conversation.from_client(request(ApiKey.LIST_OFFSETS, 1, 1))
    return core, rewrite


def begin_answer(core: Core, size_bytes: int) -> bytes:
    """Have the broker begin its answer of ``size_bytes``; gives the rest."""
    answer = struct.pack(">i", size_bytes - 4) + core.broker.take()[8:12] + bytes(size_bytes - 8)
    core.conversation.from_broker(answer[:100])
    return answer[100:]


def is_waiting(core: Core) -> bool:
    """For memory."""
    return not core.conversation.wants_answer_bytes


def answer(core: Core, size_bytes: int) -> bool:
    """Whether the broker's answer is read, and has gone to the client, which has not taken it."""
    core.client.is_full = True
    rest = begin_answer(core, size_bytes)
    if is_waiting(core):
        return False
    core.conversation.from_broker(rest)
    return len(core.client.take()) >= size_bytes


async def test_a_client_that_reads_nothing_leaves_room_for_another_s_answers_and_fills() -> None:
    """Found by review: one Fetch of many partitions took all of it, and everybody else's answers were empty, or waited."""
    memory = ResponseMemory(16 * MIB)
    stuck, greedy = connection(memory, STUCK, more_bytes=1000 * MIB)
    assert answer(stuck, 300 * 1024)
    assert memory.held_bytes <= 4 * MIB, "a quarter for each connection"
    assert greedy.filled_bytes > 3 * MIB
    others = [connection(memory, STUCK, more_bytes=1000 * MIB)[0] for _ in range(50)]
    assert sum(answer(one, 300 * 1024) for one in others) < len(others)
    assert memory.held_bytes <= 12 * MIB
    other, filling = connection(memory, OTHER, more_bytes=2 * MIB)
    assert answer(other, MIB)
    assert filling.filled_bytes == 2 * MIB
    other.conversation.taken()
    for one in (stuck, *others):
        one.close()
    assert memory.held_bytes == 0


async def test_an_answer_of_more_than_a_quarter_waits_for_another_such_one_and_for_nothing_else() -> None:
    memory = ResponseMemory(16 * MIB)
    stuck, _ = connection(memory, STUCK)
    assert answer(stuck, 20 * MIB), "it passes beside"
    small, _ = connection(memory, OTHER)
    assert answer(small, 3 * MIB)
    large, _ = connection(memory, OTHER)
    rest = begin_answer(large, 5 * MIB)
    assert is_waiting(large)
    again, _ = connection(memory, OTHER)
    assert answer(again, 3 * MIB), "it waits for none that are larger"
    stuck.conversation.taken()
    await asyncio.sleep(0)
    assert not is_waiting(large)
    large.conversation.from_broker(rest)
    assert len(large.client.take()) == 5 * MIB
    for core in (stuck, small, large, again):
        core.conversation.taken()
    assert (memory.held_bytes, memory.beside_bytes) == (0, 0)


async def test_a_connection_that_ends_while_it_waits_leaves_its_turn_to_the_next() -> None:
    memory = ResponseMemory(16 * MIB)
    holder, gone, following = (connection(memory, STUCK)[0] for _ in range(3))
    assert answer(holder, 5 * MIB)
    begin_answer(gone, 5 * MIB)
    begin_answer(following, 6 * MIB)
    gone.close()
    holder.close()
    await asyncio.sleep(0)
    assert memory.beside_bytes == 6 * MIB
    following.close()
    assert memory.beside_bytes == 0

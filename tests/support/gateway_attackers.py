"""Connections that never log in, each sending what it may: ``python -m tests.support.gateway_attackers PORT COUNT SECONDS``.

A closed connection is made anew.  Prints how many were open at the end, and how many were made.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
import sys

_FETCH, _API_VERSIONS, _HANDSHAKE, _AUTHENTICATE = 1, 18, 17, 36
_PAUSE_S = 0.5


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    payload = struct.pack(">hhih", api_key, version, 1, 1) + b"a" + body
    return struct.pack(">i", len(payload)) + payload


def _half(api_key: int, version: int) -> bytes:
    """60 KiB of 64."""
    return _frame(api_key, version, bytes(64_000))[:61_440]


KINDS = (
    _half(_AUTHENTICATE, 1),
    _half(_HANDSHAKE, 1),
    _half(_API_VERSIONS, 0),
    _frame(_FETCH, 4, struct.pack(">iiiib", -1, 500, 1, 2**20, 0) + bytes(131_000)),
    _frame(_API_VERSIONS, 0, b"") * 200,
    b"",
)


async def _attack(port: int, kind: bytes, tls: ssl.SSLContext | None, made: list[int], opened: set[int]) -> None:
    while True:
        number = len(made)
        made.append(number)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            opened.add(number)
            writer.write(kind)
            while await reader.read(65_536):
                pass
        except OSError:
            pass
        else:
            writer.transport.abort()
        opened.discard(number)
        await asyncio.sleep(_PAUSE_S)


async def _run(port: int, count: int, seconds: float, *, is_tls: bool) -> None:
    tls = ssl._create_unverified_context() if is_tls else None
    made, opened = list[int](), set[int]()
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(_attack(port, KINDS[number % len(KINDS)], tls, made, opened)))
        if number % 50 == 49:
            await asyncio.sleep(0.02)
    print(json.dumps({"begun": count}), flush=True)
    await asyncio.sleep(seconds)
    print(json.dumps({"open": len(opened), "made": len(made)}), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), is_tls="tls" in sys.argv[4:]))

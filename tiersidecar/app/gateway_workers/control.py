"""The channel between a worker process and the one that started it: lines of JSON on a pair of sockets.

A worker reports once a second.  A worker's report is not trusted with more than it is for: metrics of the catalogue, and texts.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from tiersidecar.reading.reader_limits import ColdReading

RELOAD, STOP = "reload", "stop"
"""Sent to a worker: read the configuration again; stop in order."""

_MOST_LINE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """``reasons`` why the worker is not ready; ``node`` are cluster id and node id of its broker, once it knows them."""

    reasons: Sequence[str] = ()
    warnings: Sequence[str] = ()
    cold: Sequence[ColdReading] = ()
    node: tuple[str, int] | None = None
    metrics: Any = None

    def to_line(self) -> bytes:
        """Return it as a line."""
        cold = [[one.principal, one.client_id, one.topic, one.requests, one.size_bytes] for one in self.cold]
        document = {
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            "cold": cold,
            "node": self.node,
            "metrics": self.metrics or {},
        }
        return json.dumps(document).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Report:
        """Read one.

        Raises:
            ValueError: it is none.
        """
        try:
            document = json.loads(line)
            node = document["node"]
            return cls(
                reasons=[_text(one) for one in document["reasons"]],
                warnings=[_text(one) for one in document["warnings"]],
                cold=[
                    ColdReading(
                        principal=_text(principal),
                        client_id=_text(client_id),
                        topic=_text(topic),
                        requests=int(requests),
                        size_bytes=int(size_bytes),
                    )
                    for principal, client_id, topic, requests, size_bytes in document["cold"]
                ],
                node=None if node is None else (_text(node[0]), int(node[1])),
                metrics=document["metrics"],
            )
        except (ArithmeticError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(f"not a worker's report: {error!r}") from error


def _text(value: object) -> str:
    """Return a text that every page can show: names of files may have bytes that are none."""
    return str(value).encode("utf-8", "replace").decode()


class Channel:
    """One end of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def of(cls, end: socket.socket) -> Channel:
        """Take over ``end``."""
        end.settimeout(0)
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_MOST_LINE_BYTES))

    async def send(self, line: bytes) -> None:
        """Send a line; waits while the other end reads nothing.

        Raises:
            OSError: the other end is closed.
        """
        self._writer.write(line)
        await self._writer.drain()

    def say(self, word: str) -> None:
        """Send a short line, as soon as may be; to an end that is closed, nothing."""
        if not self._writer.is_closing():
            self._writer.write(word.encode() + b"\n")

    async def line(self) -> bytes:
        """Return the next line; empty once the other end is closed.

        Raises:
            ValueError: it is too long.
        """
        try:
            return await self._reader.readline()
        except OSError:
            return b""

    async def words(self) -> AsyncIterator[str]:
        """Yield what the other end says, until it is closed."""
        while line := await self.line():
            yield line.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Close this end."""
        self._writer.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

"""DescribeLogDirs with one log dir more: what the remote tier has of the partitions that this broker leads.

The rows are of partitions that the broker itself has answered with, so the rights are the broker's to check: it answers with
none to a client that may not describe the cluster.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, write_message
from tiersidecar.ports.clock import Blocking
from tiersidecar.services.gateway.exchange import Exchange, Rewrite, Rewritten
from tiersidecar.services.gateway.messages import changed_row

_UNKNOWN = -1
_IN_ONE_GO = 250


class RemoteSizes(Protocol):
    def led_bytes(self, topic: str, partition: int) -> int | None:
        """Return bytes of finished remote segments; None unless the broker leads the partition, and it is tiered and known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsRewrite(Rewrite):
    """Adds ``log_dir``, whose replicas are of no future log, and whose volume has no size."""

    log_dir: str
    sizes: RemoteSizes
    blocking: Blocking
    alone = True

    def versions(self) -> range:
        """Return the API versions that it can rewrite; ApiVersions offers clients no others."""
        return range(1, 6)

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        """Return what the client gets instead of ``response``, a body that begins after the response header."""
        message = await self.blocking.run(_read, exchange.api_version, bytes(response))
        topics: dict[str, Any] = {}
        for topic in (topic for result in message.results if not result.error_code for topic in result.topics):
            if rows := await self._remote_rows(topic):  # of a topic in several log dirs, all together
                known = topics.get(topic.name)
                before = () if known is None else known.partitions
                topics[topic.name] = replace(topic, partitions=(*before, *rows))
        if not topics:
            return None
        return [await self.blocking.run(_with_log_dir, message, self.log_dir, tuple(topics.values()))]

    async def _remote_rows(self, topic: Any) -> list[Any]:
        rows = []
        for number, row in enumerate(topic.partitions, 1):
            if number % _IN_ONE_GO == 0:
                await asyncio.sleep(0)
            size_bytes = None if row.is_future_key else self.sizes.led_bytes(str(topic.name), int(row.partition_index))
            if size_bytes is not None:
                rows.append(replace(row, partition_size=size_bytes, offset_lag=0))
        return rows


def _read(version: int, body: bytes) -> Any:
    schema = load_response_schema(ApiKey.DESCRIBE_LOG_DIRS, version)
    message, end = read_message(schema, body)
    if end != len(body):
        raise MalformedMessageError(f"{schema.__name__}: {len(body) - end} bytes are left over")
    return message


def _with_log_dir(message: Any, log_dir: str, topics: tuple[Any, ...]) -> bytes:
    values: dict[str, Any] = {"log_dir": log_dir, "topics": topics, "error_code": ErrorCode.none}
    values |= {"total_bytes": _UNKNOWN, "usable_bytes": _UNKNOWN, "is_cordoned": False}
    return write_message(replace(message, results=(*message.results, changed_row(message.results[0], **values))))

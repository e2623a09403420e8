"""Run the role ``read``: the HTTP read service over the remote tier."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack

import structlog

from tiersidecar.adapters.kafka.authorizer import open_authorizer
from tiersidecar.adapters.kafka.local_reads import BrokerLocalReads
from tiersidecar.app.builders.security import caller_listener, known_callers, server_tls
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.gateway_pins import pending_copies
from tiersidecar.app.parts import Parts
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.services.reader.compacted_topics import CompactedTopics
from tiersidecar.services.reader.server import ReaderServiceSettings, serve_reader
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.roster import keep_roster

log = structlog.get_logger(__name__)


async def run_read(parts: Parts) -> None:
    """Serve until cancelled.

    Raises:
        ConfigError: the certificate cannot be used.
        ListenError: the address cannot be listened on.
    """
    config = parts.config
    async with AsyncExitStack() as stack:
        authorizer = await stack.enter_async_context(
            open_authorizer(caller_listener(config), client_id=f"{config.broker.client_id}-reader")
        )
        server = await stack.enter_async_context(
            serve_reader(
                path=parts.reads,
                catalogue=_AssignedPartitions(parts.table),
                authorize=authorizer,
                local=BrokerLocalReads(authorizer),
                pending=pending_copies(parts),
                compacted=CompactedTopics(parts.broker, parts.clock),
                telemetry=parts.telemetry,
                blocking=parts.blocking,
                settings=ReaderServiceSettings(
                    host=config.read.listen.host,
                    port=config.read.listen.port,
                    ssl_context=server_tls(config.read),
                    requires_credentials=config.read.authentication == "required",
                    known_callers=known_callers(config.read),
                    max_requests=config.read.max_requests,
                    recheck_s=config.read.recheck_ms / 1000,
                    write_timeout_s=config.read.write_timeout_ms / 1000,
                    least_taken_bytes_per_s=config.read.write_least_bytes_per_second,
                ),
            )
        )
        log.info("read.listening", url=server.url)
        if Role.TIER in parts.roles:
            await asyncio.Event().wait()  # the tier role keeps the roster
        parts.status.reasons.append(lambda: parts.table.watch_trouble)
        await keep_roster(parts.roster, parts.look_interval_s)


class _AssignedPartitions:
    """Partitions that the table has assigned to this sidecar, as leader's or follower's."""

    def __init__(self, table: PartitionTable) -> None:
        self._table = table

    def partitions(self) -> Collection[TopicIdPartition]:
        return self._table.assignment.keys()

"""Run the role ``gateway``: Kafka's protocol in front of the local broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

import structlog

from tiersidecar.adapters.audit_topic import open_audit_topic
from tiersidecar.adapters.kafka.aiokafka_settings import aiokafka_kwargs
from tiersidecar.adapters.kafka_clients import KeptProducer
from tiersidecar.app.builders.gateway import (
    advertised_addresses,
    gateway_limits,
    gateway_rewrites,
    listener_settings,
    unauthenticated_limits,
)
from tiersidecar.app.builders.gateway_fill import RemoteTier, mount_without_source, open_remote_tier
from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.config.top_level import Mode, Role
from tiersidecar.app.parts import Parts
from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.clock import Clock
from tiersidecar.services.gateway.address_watch import AddressWatch, AdvertisedListener
from tiersidecar.services.gateway.audit import NO_AUDIT_TOPIC, AuditTopic
from tiersidecar.services.gateway.frames import ResponseMemory
from tiersidecar.services.gateway.listener import serve_gateway
from tiersidecar.services.gateway.mounted_logs import MountedLogs
from tiersidecar.services.gateway.unauthenticated import Unauthenticated
from tiersidecar.tasks.roster import keep_roster

log = structlog.get_logger(__name__)

_ADDRESSES_LOOKED_AT_S = 30.0
_OTHERS_LOOKED_AT_S = 0.05


async def run_gateway(parts: Parts) -> None:
    """Serve until cancelled.

    Raises:
        ConfigError: a certificate cannot be used, or the section ``source`` is missing.
        ListenError: an address cannot be listened on.
    """
    section, shares = parts.config.gateway, parts.shares
    memory = ResponseMemory(section.response_memory_bytes, shares=shares)
    unauthenticated = Unauthenticated(unauthenticated_limits(section), shares)
    parts.status.reasons.append(_reason_not_listening)
    async with AsyncExitStack() as stack:
        audit = await _open_audit(stack, parts)
        tier = open_remote_tier(stack, parts, audit)
        parts.status.before_stop.take(tier.second_steps.end)
        if tier.mounts is None or tier.source is None:
            # Nor does a gateway without a source come up before such a broker: it would let records be written there.
            if fault := mount_without_source(await parts.log_dirs.scan()):
                raise ConfigError(source="source", faults=(fault,))
            parts.status.reasons.append(lambda: mount_without_source(parts.table.local))
        else:
            parts.status.mount_halted, parts.status.mount_halts = (
                tier.mounts.halted,
                partial(_warnings, parts, tier.mounts),
            )
            parts.status.reasons.append(tier.mounts.reason_not_ready)
            parts.status.reasons.append(tier.mounts.unplanned.reason_not_ready)
            # Before any client: what was seeded by another plan takes no record, not even the first.
            parts.table.local = await parts.log_dirs.scan()
            await tier.mounts.unplanned.look(parts.broker)
            await tier.source.look_first()
        watched: dict[str, AdvertisedListener] = {}
        for listener in section.listeners:
            advertised = advertised_addresses(listener, parts.identity.broker_id)
            serving = await stack.enter_async_context(
                serve_gateway(
                    listener_settings(parts.config, listener, is_one_of_several=shares is not None),
                    rewrites=gateway_rewrites(parts, tier, advertised),
                    limits=gateway_limits(section),
                    memory=memory,
                    telemetry=parts.telemetry,
                    unauthenticated=unauthenticated,
                    audit=audit,
                    shares=shares,
                )
            )
            log.info("gateway.listening", listener=serving.name, host=serving.host, port=serving.port)
            configured = bool(listener.advertised_nodes) or listener.advertised_pattern is not None
            watched[serving.name] = AdvertisedListener(advertised=advertised, configured=configured)
        parts.status.reasons.remove(_reason_not_listening)
        if shares is not None:
            looking = asyncio.create_task(_look_at_others(memory, parts.clock), name="memory of other workers")
            stack.callback(looking.cancel)
        await _keep_looking(parts, watched, tier)


async def _look_at_others(memory: ResponseMemory, clock: Clock) -> None:
    """See what other workers give back: they have no way to wake a response here that waits for memory."""
    while True:
        await clock.sleep(_OTHERS_LOOKED_AT_S)
        memory.look_again()


def _reason_not_listening() -> str:
    return "the gateway does not listen yet"


async def _keep_looking(parts: Parts, listeners: Mapping[str, AdvertisedListener], tier: RemoteTier) -> None:
    watch = AddressWatch(listeners=listeners, broker=parts.broker, clock=parts.clock, telemetry=parts.telemetry)
    parts.status.reasons.append(watch.reason_not_ready)
    async with asyncio.TaskGroup() as group:
        group.create_task(watch.run(_ADDRESSES_LOOKED_AT_S), name="advertised addresses")
        if tier.mounts is not None and tier.source is not None:
            watching = tier.mounts.watch(parts.broker, parts.look_interval_s)
            group.create_task(watching, name="mounted logs")
            looking = tier.mounts.unplanned.watch(parts.broker, parts.look_interval_s)
            group.create_task(looking, name="logs that are not planned")
            group.create_task(tier.source.watch(parts.look_interval_s), name="owners of what is mounted")
        if not {Role.TIER, Role.READ} & parts.roles:  # else another role keeps the roster
            parts.status.reasons.append(lambda: parts.table.watch_trouble)
            group.create_task(keep_roster(parts.roster, parts.look_interval_s), name="roster")


def _warnings(parts: Parts, mounts: MountedLogs) -> Sequence[str]:
    """Return warnings about partitions, and about the source's topics: a lost one brings nothing new any more."""
    return [*mounts.halts(), *filter(None, (parts.metadata.halted_reason, parts.state.halted_reason))]


async def _open_audit(stack: AsyncExitStack, parts: Parts) -> AuditTopic:
    """Open the configured audit topic; in ``mode: observe`` nothing is written."""
    broker, topic = parts.config.broker, parts.config.gateway.audit_topic_name
    if topic is None or parts.config.mode is Mode.OBSERVE:
        return NO_AUDIT_TOPIC
    producer = KeptProducer(
        bootstrap_servers(broker), aiokafka_kwargs(broker_security(broker)), client_id=broker.client_id
    )
    return await stack.enter_async_context(
        open_audit_topic(topic, producer=producer, clock=parts.clock, telemetry=parts.telemetry)
    )

"""Look at the store, the broker and the machine that a configuration names; writes nothing but one object, which it removes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.internal_topics import InternalTopic, ensure_topic
from tiersidecar.adapters.kafka.broker import KafkaBroker, open_broker
from tiersidecar.adapters.kafka.connection import ConnectionLimits
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.adapters.proposals_topic.log import ProposalsTopicSettings
from tiersidecar.adapters.state_topic.settings import StateTopicSettings
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.gateway import advertised_addresses
from tiersidecar.app.builders.logs import open_state_log
from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.builders.store import open_key_ring, open_store
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.config.values import Address
from tiersidecar.app.config_machine import brokers_listeners, check_places, check_reach, most_descriptors
from tiersidecar.app.identity import confirm_cluster, identity_of
from tiersidecar.app.reconcile_parts import read_owner
from tiersidecar.decide.config_check import (
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    READ,
    WRITE,
    Finding,
    Listener,
    check_clock,
    check_descriptors,
    check_gateway,
    check_log_dirs,
    check_owner,
    check_ports,
    check_replicas,
    check_rights,
    error,
    missing_rights,
    ok,
    warning,
)
from tiersidecar.decide.topics import reason_not_to_store, reason_not_to_tier, reason_not_to_trim
from tiersidecar.domain.data_keys import NO_CONTEXT, context_of_ids
from tiersidecar.domain.errors import BrokerRefusedError, PartitionCountError, StoreError, TiersidecarError
from tiersidecar.domain.ids import BrokerId, Uuid, format_uuid, place_of
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.formats.aiven.transforms import DATA_KEY_SIZE
from tiersidecar.ports.key_wrapping import asked_keys
from tiersidecar.ports.store import PROBE_NAME, BytesBody, Store, probe_store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.tasks.policies import resolved_policy

_STATE_S = 30.0
Findings = list[Finding]


@dataclass(slots=True, kw_only=True)
class _Seen:
    """Results of earlier checks that later ones need."""

    cluster_id: str = ""
    node_id: int | None = None
    brokers: Mapping[BrokerId, str] = field(default_factory=dict)
    broker_settings: Mapping[str, str | None] = field(default_factory=dict)
    tiered: Mapping[str, tuple[Uuid, TopicPolicy]] = field(default_factory=dict)


async def look_at_config(config: Config) -> Findings:
    """Try everything; what cannot be tried is a finding of its own, and keeps nothing else from being looked at."""
    look = _Look(config)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(
            open_broker(
                bootstrap_servers(config.broker),
                broker_security(config.broker),
                client_id=f"{config.broker.client_id}-command",
                limits=ConnectionLimits(request_timeout_s=config.broker.request_timeout_ms / 1000),
            )
        )
        pace = UploadPace(None, look.clock)
        store = await stack.enter_async_context(
            open_store(config, pace=pace, clock=look.clock, ids=look.ids, telemetry=NoTelemetry())
        )
        await look.machine()
        if await look.broker(broker):
            await look.attempt("topics", "see docs/operations/acls.md", lambda: look.topics(broker))
        if await look.store(store):
            await look.attempt("owner", "look at store.*", lambda: look.owners(store))
        if config.store.encryption_enabled:
            keys = open_key_ring(config)
            do = "look at store.encryption.key.wrapping.*, and see docs/security.md: nothing is copied until then"
            await look.attempt("keys", do, lambda: look.keys(keys))
    await look.gateway()
    look.ports()
    return look.findings


class _Look:
    """One look, check by check."""

    def __init__(self, config: Config) -> None:
        self._config, self.clock, self.ids = config, SystemClock(), SystemIds()
        self._seen = _Seen()
        self.findings: Findings = []

    # -- this machine

    async def machine(self) -> None:
        """Look at log dirs, user, disks, descriptors, state.dir."""
        async with ThreadBlocking(max_threads=2) as blocking:
            log_dirs = FilesystemLogDirs(self._config.log_dirs, blocking=blocking, clock=self.clock)
            try:
                identity = identity_of(await log_dirs.identities())
            except TiersidecarError as failure:
                self._add(
                    error("log.dirs", str(failure), "name the log.dirs of one broker, formatted, on this machine")
                )
            else:
                self._seen.node_id, self._seen.cluster_id = identity.broker_id, identity.cluster_id
                self._add(ok("log.dirs", f"of node {identity.broker_id} of cluster {identity.cluster_id}"))
            self.findings += await blocking.run(lambda: list(check_places(self._config)))
        listeners = self._config.gateway.listeners
        self._add(check_descriptors(most_descriptors(), sum(listener.max_connections for listener in listeners)))

    # -- the broker

    async def broker(self, broker: KafkaBroker) -> bool:
        """Return whether it answers."""
        servers = bootstrap_servers(self._config.broker)
        try:
            described = await broker.describe_cluster()
        except TiersidecarError as failure:
            self._add(
                error(
                    "broker",
                    str(failure),
                    "check broker.bootstrap.servers, broker.security.protocol and broker.sasl.*",
                )
            )
            return False
        self._seen.brokers = described.brokers
        self._add(
            ok("broker", f"{servers} is of cluster {described.cluster_id}, which has {len(described.brokers)} brokers")
        )
        await self.attempt(
            "broker", "check broker.bootstrap.servers", lambda: self._identity(broker, described.cluster_id)
        )
        await self.attempt("broker", "upgrade the broker", lambda: self._apis(broker))
        await self.attempt("log.dirs", "compare them by hand", lambda: self._brokers_settings(broker))
        await self.attempt("rights", "see docs/operations/acls.md", lambda: self._cluster_rights(broker))
        return True

    async def _identity(self, broker: KafkaBroker, cluster_id: str) -> None:
        if self._seen.node_id is None:
            self._seen.cluster_id = cluster_id
            return
        async with ThreadBlocking(max_threads=1) as blocking:
            dirs = FilesystemLogDirs(self._config.log_dirs, blocking=blocking, clock=self.clock)
            identity = identity_of(await dirs.identities())
        addresses = [str(server) for server in self._config.broker.bootstrap_servers]
        await confirm_cluster(broker, identity, self.clock, bootstrap=addresses)
        if identity.broker_id not in self._seen.brokers:
            says = f"node {identity.broker_id} of log.dirs is not among the brokers {sorted(self._seen.brokers)}"
            self._add(warning("broker", says, "is the broker beside these log.dirs running?"))
        else:
            self._add(ok("broker", f"cluster id and node id {identity.broker_id} are those of log.dirs"))

    async def _apis(self, broker: KafkaBroker) -> None:
        if missing := await broker.missing_apis():
            says = f"the broker does not know {', '.join(missing)} in a version of ours"
            self._add(error("broker", says, "Kafka 3.9 and later are supported"))
        else:
            major, minor = await broker.kafka_version()
            self._add(ok("broker", f"it knows all requests that are needed (Kafka {major}.{minor} or later)"))

    async def _brokers_settings(self, broker: KafkaBroker) -> None:
        node_id = self._seen.node_id
        if node_id is None or node_id not in self._seen.brokers:
            return
        try:
            self._seen.broker_settings = await broker.describe_broker_configs(BrokerId(node_id))
        except BrokerRefusedError:
            self._add(check_log_dirs(self._config.log_dirs, None))
            return
        known = self._seen.broker_settings.get("log.dirs") or self._seen.broker_settings.get("log.dir")
        self._add(check_log_dirs(self._config.log_dirs, known))

    async def _cluster_rights(self, broker: KafkaBroker) -> None:
        self._add(check_rights("the cluster", await broker.authorized_cluster_operations(), [DESCRIBE]))

    # -- topics

    async def topics(self, broker: KafkaBroker) -> None:
        """Look at the sidecars' own topics, then those that are tiered."""
        own = _own_topics(self._config)
        rights = await broker.authorized_operations([one.name for one in own])
        for topic in own:
            do = "see docs/operations/install.md for how it must be"
            await self.attempt("topics", do, lambda topic=topic: self._own_topic(broker, topic))  # type: ignore[misc]
            if topic.name in rights:
                self._add(check_rights(topic.name, rights[topic.name], [READ, WRITE, DESCRIBE_CONFIGS]))
        # Without these rights the replay of the state would only run into its time limit; what is missing is a finding already.
        reads_state = own[1].name in rights and not missing_rights(rights[own[1].name], [READ, DESCRIBE_CONFIGS])
        await self.attempt("topics", "see docs/operations/acls.md", lambda: self._tiered(broker, reads_state))

    async def _own_topic(self, broker: KafkaBroker, topic: InternalTopic) -> None:
        try:
            facts = await ensure_topic(broker, topic, may_create=False)
        except PartitionCountError as failure:
            self._add(error("topics", str(failure), "set the number of partitions as the topic has it"))
            return
        except BrokerRefusedError as failure:
            if failure.error != "UNKNOWN_TOPIC_OR_PARTITION":
                raise
            cannot = check_replicas(topic.name, topic.replication_factor, len(self._seen.brokers))
            says = f"{topic.name} is not there: a sidecar makes it when it starts, if it may"
            self._add(cannot or ok("topics", says))
            return
        for weakness in facts.weaknesses:
            self._add(error("topics", weakness, "set it so: until then nothing is trimmed, expired or deleted"))
        if not facts.weaknesses:
            self._add(ok("topics", f"{topic.name} has the settings that it needs"))

    async def _tiered(self, broker: KafkaBroker, reads_state: bool) -> None:
        """Look at the topics that the rules name and, if ``reads_state``, at those that were enabled."""
        views = await broker.describe_partitions()
        ids = {view.topic_id_partition.topic: view.topic_id_partition.topic_id for view in views}
        policies = {topic: self._config.policy_for(topic) for topic in ids}
        if reads_state:
            policies |= await self._enabled(broker, ids)
        tiered = {topic: (ids[topic], policy) for topic, policy in policies.items() if policy is not None}
        self._seen.tiered = tiered
        for rule in self._config.topics:
            if not any(rule.matches(topic) for topic in ids):
                says = f"no topic that we may see matches the rule {rule.name or rule.pattern}"
                self._add(warning("topics", says, "is it spelt right, and may this user Describe it?"))
        if not tiered:
            self._add(warning("topics", "no topic is tiered", "name some in topics, or use `tiersidecar enable`"))
            return
        settings = await broker.describe_topic_configs(sorted(tiered))
        rights = await broker.authorized_operations(sorted(tiered))
        for topic, (_, policy) in sorted(tiered.items()):
            tiers_compacted = self._config.compaction_enabled
            self.findings += _of_tiered(topic, policy, settings.get(topic), tiers_compacted=tiers_compacted)
            needed = [DESCRIBE_CONFIGS, DELETE] if policy.mode is RetentionMode.STRICT else [DESCRIBE_CONFIGS]
            self._add(check_rights(f"topic {topic}", rights.get(topic), needed))

    async def _enabled(self, broker: KafkaBroker, ids: Mapping[str, Uuid]) -> dict[str, TopicPolicy | None]:
        """Return policies by the state topic, read only; look at the clocks of the sidecars that write in it as well."""
        telemetry, roles = NoTelemetry(), frozenset({Role.READ})  # a reader mends nothing
        async with open_state_log(
            self._config, broker=broker, clock=self.clock, ids=self.ids, telemetry=telemetry, roles=roles
        ) as state:
            async with asyncio.timeout(_STATE_S):
                while state.readiness_reason is not None:  # noqa: ASYNC110  # it has no event for it
                    await asyncio.sleep(0.05)
            for lease in state.known_leases():
                ahead_s = (lease.renewed_ms - self.clock.now_ms()) / 1000
                if not lease.released and ahead_s > 0:  # a lease that is behind may just be old
                    self._add(check_clock(f"broker {lease.broker_id}'s sidecar", ahead_s))
            return {
                topic: resolved_policy(
                    self._config.policy_for(topic), state.topic_state(topic_id), self._config.unnamed_policy
                )
                for topic, topic_id in ids.items()
                if topic not in self._config.internal_topics
            }

    # -- the store

    async def store(self, store: Store) -> bool:
        """Return whether all places can be read and written; an object of its own is written, read, listed and removed."""
        default, *places = self._config.key_prefixes
        name = self._config.store.place if places else store.description
        for prefix in places:
            await self._place(store, prefix)
        try:
            await probe_store(store, ids=self.ids, prefix=default)
            self._add(ok("store", f"{name}: objects can be written, read, listed and removed"))
            self._add(check_clock("the store", await self._store_ahead_s(store)))
        except StoreError as failure:
            do = "look at store.*, and whether these credentials may put, get, list and delete there"
            self._add(error("store", f"{name}: {failure}", do))
            return False
        return True

    async def _place(self, store: Store, prefix: str) -> None:
        name = f"place {place_of(prefix)}"
        try:
            await probe_store(store, ids=self.ids, prefix=prefix)
        except StoreError as failure:
            do = "look at this place's keys, and whether these credentials may put, get, list and delete there"
            self._add(error("store", f"{name}: {failure}", do))
            return
        self._add(ok("store", f"{name}: objects can be written, read, listed and removed"))

    async def _store_ahead_s(self, store: Store) -> float:
        key = f"{self._config.store.key_prefix}{PROBE_NAME}{format_uuid(self.ids.random_uuid())}"
        try:
            await store.put_object(key, BytesBody(b"clock"))
            return ((await store.head_object(key)).modified_ms - self.clock.now_ms()) / 1000
        finally:
            with suppress(StoreError):
                await store.delete_objects([key])

    async def owners(self, store: Store) -> None:
        """Look at whose the remote data of each tiered topic are, and whether the store takes keys as long as theirs."""
        foreign = 0
        for topic, (topic_id, _) in sorted(self._seen.tiered.items()):
            if reason := reason_not_to_store(topic, store.max_name_bytes):
                self._add(error("store", f"{topic}: {reason}", "until then nothing of it is copied"))
            owner = await read_owner(store, self._config.store.key_prefix, format_uuid(topic_id))
            if (found := check_owner(topic, self._seen.cluster_id, owner)) is not None:
                foreign += 1
                self._add(found)
        if self._seen.tiered and not foreign:
            self._add(ok("owner", "no tiered topic's remote data are another cluster's"))

    async def keys(self, keys: DataKeys | None) -> None:
        """Check that the key service, if one is to wrap the keys of new segments, wraps a data key and opens it again."""
        service = asked_keys(keys)
        if keys is None or service is None or service.is_at_hand(None, NO_CONTEXT):
            return
        topic_id = next((topic_id for topic_id, _ in self._seen.tiered.values()), self.ids.random_uuid())
        context = context_of_ids(format_uuid(topic_id), format_uuid(self.ids.random_uuid()))
        data_key = self.ids.random_bytes(DATA_KEY_SIZE)
        await service.blocking.run(keys.wrap, data_key, self.ids.random_bytes, context)
        self._add(ok("keys", f"{self._config.store.encryption_key_wrapping} wraps data keys, and opens them again"))

    # -- the gateway, and ports

    async def gateway(self) -> None:
        """Look at the address that clients get for each broker: whether it is a name, and whether anything listens there."""
        local = self._seen.node_id if self._seen.node_id is not None else -1
        for section in self._config.gateway.listeners:
            addresses = advertised_addresses(section, local)
            mapped = {node: addresses.address_of(node) for node in self._seen.brokers if addresses.is_mapped(node)}
            shown_to_clients = {int(node): str(Address(*place)) for node, place in mapped.items()}
            self.findings += check_gateway(section.name, self._seen.brokers.keys(), shown_to_clients)
            for node, (host, port) in sorted(mapped.items()):
                self._add(await check_reach(f"listener {section.name}, broker {node}", host, port))

    def ports(self) -> None:
        """Check that no two listeners of this machine are on one port."""
        config = self._config
        wanted = [
            Listener("read.listen", config.read.listen.host, config.read.listen.port),
            Listener("status.listen", config.status.listen.host, config.status.listen.port),
        ]
        gateway = config.gateway.listeners
        wanted += [Listener(f"gateway listener {one.name}", one.listen.host, one.listen.port) for one in gateway]
        wanted += brokers_listeners(self._seen.broker_settings.get("listeners"))
        self.findings += check_ports(wanted)

    def _add(self, finding: Finding) -> None:
        self.findings.append(finding)

    async def attempt(self, check: str, do: str, look: Callable[[], Awaitable[None]]) -> None:
        """Do ``look``; what keeps it from being done is a finding of ``check``."""
        try:
            await look()
        except TimeoutError:
            self._add(error(check, "it took too long", do))
        except TiersidecarError as failure:
            self._add(error(check, str(failure), do))


def _own_topics(config: Config) -> tuple[InternalTopic, ...]:
    """Return the metadata topic, the state topic and the proposals as they must be."""
    servers = bootstrap_servers(config.broker)
    factor, in_sync = config.remote_log_metadata_topic_replication_factor, config.remote_log_metadata_topic_min_isr
    return (
        MetadataTopicSettings(
            bootstrap_servers=servers,
            topic=config.remote_log_metadata_topic_name,
            partitions=config.remote_log_metadata_topic_num_partitions,
            replication_factor=factor,
            min_insync_replicas=in_sync,
        ).required_topic,
        StateTopicSettings(
            bootstrap_servers=servers,
            topic=config.state_topic_name,
            replication_factor=factor,
            min_insync_replicas=in_sync,
        ).required_topic,
        ProposalsTopicSettings(
            bootstrap_servers=servers,
            topic=config.proposals_topic_name,
            replication_factor=factor,
            min_insync_replicas=in_sync,
        ).required_topic,
    )


def _of_tiered(
    topic: str, policy: TopicPolicy, settings: Mapping[str, str | None] | None, *, tiers_compacted: bool
) -> Iterator[Finding]:
    if settings is None:
        says = f"the broker does not show the settings of {topic}"
        yield error("retention", says, "give DescribeConfigs on it to the sidecar's user")
    elif reason := reason_not_to_tier(settings, tiers_compacted=tiers_compacted):
        yield error("retention", f"{topic}: {reason}", "leave it out of topics, or change the topic")
    elif reason := reason_not_to_trim(policy, settings):
        do = f"`tiersidecar enable {topic}` takes the broker's retention over; mode: race leaves it to the broker"
        yield error(
            "retention", f"{topic}: mode is strict, but {reason}: nothing is trimmed, and the broker deletes", do
        )
    else:
        yield ok("retention", f"{topic}: the broker's settings fit mode {policy.mode}")

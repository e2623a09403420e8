"""``handover to-native`` and ``from-native``: look at topics and brokers, say what would happen, write the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiersidecar.app.commands.recover import running_sidecars
from tiersidecar.app.commands.session import Session, open_session
from tiersidecar.app.commands.tables import size, table
from tiersidecar.app.handover.look import SeenPartition, look_at_topic
from tiersidecar.app.handover.plan import Plan, write_plan
from tiersidecar.app.handover.replicas import with_replicas
from tiersidecar.app.handover.settings import NATIVE_METADATA_TOPIC, as_native, has_own_topic, native_settings
from tiersidecar.app.handover.verify import with_records
from tiersidecar.decide.handover import REMEDIES, Obstacle
from tiersidecar.decide.native_settings import (
    BrokerFiles,
    SettingFound,
    Sight,
    Verdict,
    decide_settings,
    sight_of,
    with_file,
)
from tiersidecar.decide.native_tiering import Deletion, DeletionReason
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadataUpdate
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metadata_log import PublishMetadata

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """One broker's native settings, as far as it shows them; ``problem`` says why they could not be looked at."""

    broker_id: BrokerId
    rows: tuple[SettingFound, ...] = ()
    sight: Sight = Sight.UNKNOWN
    problem: str = ""

    @property
    def is_native(self) -> bool:
        """Return whether its native tiering is on."""
        return bool(self.rows) and self.rows[0].verdict is Verdict.SAME

    @property
    def may_be_native(self) -> bool:
        return self.is_native or bool(self.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLook:
    """One topic; ``refusals`` are about all of it."""

    topic: str
    policy: TopicPolicy
    partitions: tuple[SeenPartition, ...]
    configs: Mapping[str, str | None]
    refusals: tuple[str, ...] = ()

    @property
    def is_native(self) -> bool:
        return (self.configs.get("remote.storage.enable") or "").lower() == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverLook:
    """Everything that a hand-over is decided on."""

    cluster_id: str
    topics: tuple[TopicLook, ...]
    brokers: tuple[BrokerSettings, ...]
    running: Sequence[int] = field(default=())

    @property
    def partitions(self) -> list[SeenPartition]:
        return [partition for topic in self.topics for partition in topic.partitions]

    @property
    def names(self) -> str:
        return " ".join(topic.topic for topic in self.topics)

    def obstacles(self) -> Iterator[str]:
        """Yield what has to be done first, worst first; what writing the plan does itself is none."""
        for topic in self.topics:
            yield from (f"{topic.topic}: {reason}" for reason in topic.refusals)
            if topic.is_native and (seeing := brokers_with(self.brokers, Sight.SEEING)):
                yield (
                    f"{topic.topic}: remote.storage.enable is true already, and brokers {seeing} see its events: they delete "
                    "by what their files say now"
                )
            if topic.is_native and (unknown := brokers_with(self.brokers, Sight.UNKNOWN)):
                yield f"{topic.topic}: remote.storage.enable is true already, and {unknown_sight(unknown)}"
        for partition in self.partitions:
            for finding in partition.plan.findings:
                if finding.obstacle is not Obstacle.DISPLACED:
                    yield f"{partition.plan.owner}: {finding.obstacle}: {finding.detail}"
            if lost := partition.without_objects:
                ranges = ", ".join(f"{one.start_offset} to {one.end_offset}" for one in lost[:5])
                yield f"{partition.plan.owner}: objects are missing of segments with offsets {ranges}: `tiersidecar reconcile`"

            if copied := partition.with_objects:
                ranges = ", ".join(f"{one.start_offset} to {one.end_offset}" for one in copied[:5])
                yield (
                    f"{partition.plan.owner}: {NATIVE_METADATA_TOPIC} has segments that the sidecar's topic has not, with "
                    f"offsets {ranges}, and their objects exist: native brokers copied them, and the plan would delete them. "
                    "Take the topic over first: `handover from-native` with remote.log.metadata.topic.name="
                    f"{NATIVE_METADATA_TOPIC}"
                )

    def remedies(self) -> Iterator[str]:
        """Yield what to do about the obstacles, each kind once; commands that take one topic name it if there is one."""
        topic = self.names if len(self.topics) == 1 else "TOPIC"
        kinds = dict.fromkeys(finding.obstacle for one in self.partitions for finding in one.plan.findings)
        for kind in kinds:
            if kind is not Obstacle.DISPLACED:
                yield f"{kind}: {REMEDIES[kind]}".replace("TOPIC", topic)


def brokers_with(brokers: Sequence[BrokerSettings], sight: Sight) -> str:
    """Return their ids as text; empty where there is none."""
    return ", ".join(str(one.broker_id) for one in brokers if one.sight is sight)


def unknown_sight(brokers: str) -> str:
    """Return what to do about brokers whose sight is not known."""
    return (
        f"it is not known whether brokers {brokers} see its events: give all lines of docs/operations/handover.md to them, or "
        "compare each one's file by --broker-properties"
    )


async def look_to_native(
    session: Session,
    topics: Sequence[str],
    accepted: frozenset[Obstacle],
    say: Say,
    files: BrokerFiles | None = None,
) -> HandoverLook:
    """Look at ``topics`` as they are to be handed over; ``files`` are brokers' server.properties.

    Raises:
        BrokerRefusedError: there is no such topic.
        TiersidecarError: brokers, topics or the store cannot be read.
    """
    found = []
    for topic in topics:
        configs = (await session.broker.describe_topic_configs([topic])).get(topic, {})
        views = await session.partitions(topic)
        policy = session.policy(topic, views[0].topic_id_partition.topic_id)
        refusals = list(_refusals(session, topic, policy, configs))
        partitions: list[SeenPartition] = []
        if policy is not None and topic not in session.config.internal_topics:
            partitions = await look_at_topic(session, topic, policy, say, accepted=accepted)
        found.append(
            TopicLook(
                topic=topic,
                policy=policy or TopicPolicy(),
                partitions=tuple(partitions),
                configs=configs,
                refusals=tuple(refusals),
            )
        )
    return await with_cluster(session, found, say, files)


def _refusals(
    session: Session, topic: str, policy: TopicPolicy | None, configs: Mapping[str, str | None]
) -> Iterator[str]:
    if topic in session.config.internal_topics:
        yield "it is internal, and Kafka tiers no internal topic"
    if policy is None:
        yield "the sidecar does not tier it: there is nothing to hand over"
    elif policy.delete_remote:
        yield "all its remote data are being deleted (`disable --delete-remote`)"
    if "compact" in (configs.get("cleanup.policy") or ""):
        yield "cleanup.policy has compact, and Kafka tiers no compacted topic"
    yield from wrapping_refusal(session.config.store.encryption_key_wrapping)


def wrapping_refusal(kind: str | None) -> Iterator[str]:
    """Return why segments under a key service cannot be handed over: the plugin knows RSA keys alone."""
    if kind is not None:
        yield (
            f"encryption.key.wrapping is {kind}, and native brokers cannot open segments whose data keys a key service has "
            "wrapped: set encryption.key.pair.id, so that new ones are under an RSA key, wait until the others have expired, "
            "and remove encryption.key.wrapping"
        )


async def with_cluster(
    session: Session, topics: Sequence[TopicLook], say: Say, files: BrokerFiles | None = None
) -> HandoverLook:
    """Return what was seen of ``topics``, with the settings of all brokers and the sidecars that run."""
    cluster = await session.broker.describe_cluster()
    brokers = []
    for broker_id in sorted(cluster.brokers):
        say("asking the brokers for their settings")
        brokers.append(await _settings_of(session, broker_id, (files or {}).get(broker_id)))
    return HandoverLook(
        cluster_id=cluster.cluster_id,
        topics=tuple(topics),
        brokers=tuple(brokers),
        running=running_sidecars(session),
    )


async def _settings_of(session: Session, broker_id: BrokerId, file: Mapping[str, str | None] | None) -> BrokerSettings:
    try:
        found = await session.broker.describe_broker_configs(broker_id)
    except (BrokerRefusedError, BrokerUnreachableError) as error:
        return unseen(broker_id, str(error), file)
    compared = found if file is None else with_file(found, file)
    rows = decide_settings(native_settings(session.config), found)
    return BrokerSettings(broker_id=broker_id, rows=rows, sight=sight_of(compared))


def unseen(broker_id: BrokerId, problem: str, file: Mapping[str, str | None] | None) -> BrokerSettings:
    """Return the settings of a broker that shows none: its file, if it was given, says whether it sees the events."""
    sight = Sight.UNKNOWN if file is None else sight_of(file)
    return BrokerSettings(broker_id=broker_id, problem=problem, sight=sight)


async def make_plan(session: Session, look: HandoverLook, path: Path, records_from: str | None, say: Say) -> Plan:
    """Publish what Kafka's metadata manager lacks, read the records where they are asked for, and write the plan.

    It lacks all of a topic whose events are in a metadata topic of another name, and what other copies have displaced.

    Raises:
        HandoverError: the file is there already, or cannot be written; a replica is behind; or records do not come.
        TiersidecarError: an event could not be published.
    """
    planned = await with_replicas(session, [partition.planned() for partition in look.partitions])
    if has_own_topic(session.config):
        await _publish_natively(session, look, say)
    else:
        assert session.metadata is not None, "handover opens its session with metadata"
        await _publish_again(session.metadata, look, session.clock, say)
    if records_from is not None:
        planned = await with_records(session.config, records_from, planned, say)
    plugin = {one.name: one.wanted for one in native_settings(session.config)}
    plan = Plan(made_ms=session.clock.now_ms(), cluster_id=look.cluster_id, partitions=tuple(planned), plugin=plugin)
    write_plan(plan, path)
    return plan


async def _publish_again(metadata: PublishMetadata, look: HandoverLook, clock: Clock, say: Say) -> None:
    for partition in look.partitions:
        for segment in partition.plan.displaced:
            say(f"publishing what other copies have displaced: {partition.plan.owner}")
            await metadata.publish(
                RemoteLogSegmentMetadataUpdate(
                    remote_log_segment_id=segment.remote_log_segment_id,
                    broker_id=segment.broker_id,
                    event_timestamp_ms=clock.now_ms(),
                    state=segment.state,
                    custom_metadata=segment.custom_metadata,
                )
            )


async def _publish_natively(session: Session, look: HandoverLook, say: Say) -> None:
    """Publish into Kafka's own metadata topic; a second run goes on where the first one ended."""
    owners = [partition.plan.owner for partition in look.partitions]
    async with open_session(as_native(session.config), with_metadata=True) as native:
        metadata = await native.follow(owners)
        for partition in look.partitions:
            for number, event in enumerate(partition.unpublished):
                count = len(partition.unpublished)
                say(f"publishing into {NATIVE_METADATA_TOPIC}: {partition.plan.owner}, {number:,} of {count:,} events")
                await metadata.publish(event)
        await _publish_again(metadata, look, session.clock, say)


def partitions_text(look: HandoverLook) -> str:
    """Return what a native broker keeps and deletes of each partition, prepared and naively."""
    columns = (
        "partition", "log start", "history from", "segments", "kept", "kept bytes", "deleted", "why", "lost as it is",
    )  # fmt: skip
    rows = []
    for seen in look.partitions:
        plan = seen.plan
        first = plan.leader_epochs[0] if plan.leader_epochs else None
        rows.append(
            (
                str(plan.owner),
                plan.log_start_offset,
                "" if first is None else f"epoch {first.epoch} at {first.start_offset}",
                len(seen.segments),
                len(plan.prepared.kept),
                size(sum(one.segment_size_in_bytes for one in plan.prepared.kept)),
                len(plan.prepared.deletions),
                reasons_text(plan.prepared.deletions),
                _lost_text(plan.lost_naively),
            )
        )
    return table(columns, rows)


def reasons_text(deletions: Sequence[Deletion]) -> str:
    """Return how many for each reason."""
    counts = {reason: sum(one.reason is reason for one in deletions) for reason in DeletionReason}
    return ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)


def _lost_text(deletions: Sequence[Deletion]) -> str:
    if not deletions:
        return "nothing"
    lost = size(sum(one.segment.segment_size_in_bytes for one in deletions))
    return f"{len(deletions)} segments, {lost}: {reasons_text(deletions)}"


def settings_notes(look: HandoverLook) -> Iterator[str]:
    """Yield what in the brokers' settings does not fit, or is not shown."""
    for broker in look.brokers:
        if broker.problem:
            yield f"broker {broker.broker_id}: its settings cannot be checked: {broker.problem}"
            continue
        if not broker.is_native:
            yield f"broker {broker.broker_id}: native tiering is off (remote.log.storage.system.enable)"
            continue
        for row in broker.rows:
            if row.verdict in (Verdict.DIFFERENT, Verdict.MISSING):
                shown = "is not set" if row.found is None else f"is {row.found!r}"
                yield f"broker {broker.broker_id}: {row.setting.name} {shown}, must be {row.setting.wanted!r}"
        hidden = [row.setting.name for row in broker.rows if row.verdict is Verdict.HIDDEN]
        if hidden:
            yield (
                f"broker {broker.broker_id} does not show {', '.join(hidden)}: `handover files --broker-properties` compares "
                "its file"
            )


def document_of(look: HandoverLook) -> dict[str, Any]:
    """Return the look as JSON."""
    return {
        "partitions": [_partition_document(seen) for seen in look.partitions],
        "brokers": [
            {
                "broker_id": broker.broker_id,
                "problem": broker.problem or None,
                "sight": broker.sight,
                "settings": {
                    row.setting.name: {"wanted": row.setting.wanted, "found": row.found, "verdict": row.verdict}
                    for row in broker.rows
                },
            }
            for broker in look.brokers
        ],
        "running_sidecars": list(look.running),
    }


def _partition_document(seen: SeenPartition) -> dict[str, Any]:
    plan = seen.plan
    return {
        "topic": plan.owner.topic,
        "partition": plan.owner.partition,
        "log_start_offset": plan.log_start_offset,
        "broker_log_start_offset": seen.log_start_offset,
        "high_watermark": seen.high_watermark,
        "copies_from": plan.prepared.copies_from,
        "leader_epochs": [list(entry) for entry in plan.leader_epochs],
        "kept": len(plan.prepared.kept),
        "kept_bytes": sum(one.segment_size_in_bytes for one in plan.prepared.kept),
        "deleted": _deletions(plan.prepared.deletions),
        "lost_naively": _deletions(plan.lost_naively),
        "displaced": [[one.start_offset, one.end_offset] for one in plan.displaced],
        "unreadable": [list(hole) for hole in plan.prepared.unreadable],
        "findings": [{"obstacle": one.obstacle, "detail": one.detail, "remedy": one.remedy} for one in plan.findings],
    }


def _deletions(deletions: Sequence[Deletion]) -> dict[str, dict[str, int]]:
    return {
        reason.value: {"segments": len(some), "bytes": sum(one.segment.segment_size_in_bytes for one in some)}
        for reason in DeletionReason
        if (some := [one for one in deletions if one.reason is reason])
    }

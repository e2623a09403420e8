"""``tiersidecar adopt``: make the remote data of a topic id this cluster's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.options import AsJson, ConfigFile
from tiersidecar.domain.ids import (
    DEFAULT_PLACE,
    TopicIdPartition,
    Uuid,
    format_uuid,
    named_place,
    parse_uuid,
    place_prefix,
)

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session
    from tiersidecar.ports.state_log import PartitionState
    from tiersidecar.ports.store import Store


def _topic_id(text: str) -> Uuid:
    try:
        return parse_uuid(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def adopt(
    topic_id: Annotated[str, typer.Argument(metavar="TOPIC_ID", help="The topic's id, as kafka-topics shows it.")],
    config_file: ConfigFile,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it; without this option nothing is changed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Claim the remote data of a topic id for this cluster.

    Nothing is copied or deleted for an id that this cluster never led, or that another cluster has claimed in the store.
    Adopting the id ends that: make sure that the other cluster no longer uses this data. If this cluster has no topic of that
    id, its data is then deleted like that of a deleted topic.
    """
    wanted = _topic_id(topic_id)
    manner = Manner(config_file=config_file, yes=yes, dry_run=not yes, as_json=as_json)
    carry_out(lambda session: look_at_adoption(session, wanted), manner, with_metadata=False)


async def look_at_adoption(session: Session, topic_id: Uuid) -> Intent:
    """Return which cluster owns the data now, and what adopting it changes."""
    cluster_id = (await session.broker.describe_cluster()).cluster_id
    recorded = {
        topic_id_partition: (topic_id_partition, state)
        for topic_id_partition, state in _states(session).items()
        if topic_id_partition.topic_id == topic_id
    }
    partitions = [recorded[topic_id_partition] for topic_id_partition in sorted(recorded)]
    error = (await session.broker.describe_topic_ids([topic_id])).get(topic_id)
    async with _open_store(session) as store:
        owner = await owner_in(session, store, topic_id)
        owners = {
            owner,
            *[await owner_in(session, store, topic_id, place) for place in _places(session, partitions)],
        }
    facts = {
        "topic": partitions[0][0].topic if partitions else None,
        "topic_id": format_uuid(topic_id),
        "exists_here": error is None,
        "partitions_with_a_state": len(partitions),
        "cluster": cluster_id,
        "owner_in_the_store": owner or None,
    }
    if not partitions:
        return Intent(
            facts=facts,
            refusal="no record of the state topic names this topic id: check the id with `kafka-topics --describe`",
        )
    is_recorded = all(session.state.is_ours(topic_id_partition) for topic_id_partition, _ in partitions)
    if owners == {cluster_id} and is_recorded:
        return Intent(facts=facts)
    steps = ["the owner object in the store will name this cluster", "so will the records of the state topic"]
    if error is not None:
        steps.append("no topic of this id exists here: its remote data are deleted after deletes.topic.grace.ms")
    return Intent(facts=facts, steps=tuple(steps), apply=lambda: _adopt(session, cluster_id, partitions))


def _places(session: Session, partitions: Sequence[tuple[TopicIdPartition, PartitionState]]) -> list[str]:
    """Return the places, besides the default one, where segments of the topic go or were seen."""
    places = {session.config.place_of_topic(partition.topic) for partition, _ in partitions}
    places.update(*(state.places_seen for _, state in partitions))
    return [place for place in session.config.places if place in places]


def _states(session: Session) -> dict[TopicIdPartition, PartitionState]:
    """Return the states of all partitions, from this cluster's records and from those of others."""
    foreign = {
        topic_id_partition: partition.state
        for topic_id_partition, partition in session.state.foreign_partitions().items()
    }
    return foreign | {
        topic_id_partition: session.state.partition_state(topic_id_partition)
        for topic_id_partition in session.state.partitions()
    }


async def owner_in(session: Session, store: Store, topic_id: Uuid, place: str = DEFAULT_PLACE) -> str:
    """Return the cluster that the owner object in ``place`` names, and the place if it names another one; empty if there is
    none, and why it cannot be read if so."""
    from tiersidecar.domain.errors import ObjectNotFoundError, ObjectTooLargeError
    from tiersidecar.domain.own_objects import MOST_OWNER_BYTES
    from tiersidecar.tasks.topic_owners import owner_key, read_owned_place, read_owning_cluster

    key = owner_key(place_prefix(place) or session.config.store.key_prefix, topic_id)
    try:
        data = await store.fetch_object(key, max_bytes=MOST_OWNER_BYTES)
        cluster_id, said = read_owning_cluster(data), read_owned_place(data)
        return cluster_id if said in (None, place) else f"{cluster_id}, in {named_place(said)}"
    except ObjectNotFoundError:
        return ""
    except ObjectTooLargeError as error:
        return f"unreadable: {error.reason}"
    except ValueError as error:
        return f"unreadable: {error}"


async def _adopt(session: Session, cluster_id: str, partitions: list[tuple[TopicIdPartition, PartitionState]]) -> None:
    """Write the owner object first, because sidecars act on the records at once."""
    from tiersidecar.ports.store import BytesBody
    from tiersidecar.tasks.topic_owners import TopicOwner, owner_key

    topic_id_partition = partitions[0][0]
    owner = TopicOwner(
        cluster_id=cluster_id,
        topic=topic_id_partition.topic,
        claimed_ms=session.clock.now_ms(),
        broker_id=-1,
        incarnation="adopted",
    )
    async with _open_store(session) as store:
        for place in (DEFAULT_PLACE, *_places(session, partitions)):
            key = owner_key(place_prefix(place) or session.config.store.key_prefix, topic_id_partition.topic_id)
            await store.put_object(key, BytesBody(replace(owner, place=place).write(topic_id_partition.topic_id)))
    for partition, state in partitions:
        await session.state.publish_partition_state(partition, state)


@asynccontextmanager
async def _open_store(session: Session) -> AsyncIterator[Store]:
    from tiersidecar.adapters.clock import SystemIds
    from tiersidecar.adapters.stores.paced import UploadPace
    from tiersidecar.app.builders.store import open_store
    from tiersidecar.ports.telemetry import NoTelemetry

    pace = UploadPace(None, session.clock)
    async with open_store(
        session.config, pace=pace, clock=session.clock, ids=SystemIds(), telemetry=NoTelemetry()
    ) as store:
        yield store

"""Metadata: one broker, which is this service, leads all that the bucket has."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from tiersidecar.formats.wire.cursor import Buffer
from tiersidecar.services.bucket.answers import Asked, Turns, items, made, uuid_of
from tiersidecar.services.bucket.places import Place, Places

NODE_ID = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    """The one broker as clients see it."""

    host: str
    port: int
    cluster_id: str


class MetadataApi:
    """Answers from memory."""

    def __init__(self, places: Places, advertised: Advertised) -> None:
        self._places, self._advertised = places, advertised

    async def answer(self, asked: Asked) -> list[Buffer]:
        """Return the response's body."""
        response = asked.response_type
        topic_type = items(response, "topics")
        wanted = asked.message().topics
        named: dict[tuple[str | None, uuid.UUID | None], None]
        if wanted is None or (asked.version == 0 and not wanted):
            named = dict.fromkeys((name, None) for name in self._places.topics(asked.user))
        else:
            # Each once, however often it is named: else a small request would ask for billions of rows.
            named = dict.fromkeys(self._named(asked, one) for one in wanted)
        topics, turns, count = list[Any](), Turns(), 0
        for name, topic_id in named:
            topics.append(self._row(topic_type, asked, name, topic_id))
            rows = self._places.partition_count(name or "") + 1
            count += rows
            await turns.after(rows)
        at = self._advertised
        return await asked.answered_in_rows(
            count,
            brokers=(made(items(response, "brokers"), node_id=NODE_ID, host=at.host, port=at.port),),
            cluster_id=at.cluster_id,
            controller_id=NODE_ID,
            topics=tuple(topics),
        )

    def _named(self, asked: Asked, wanted: Any) -> tuple[str | None, uuid.UUID | None]:
        """Return the topic's name, or the id for which the user knows none."""
        if wanted.name is not None:
            return str(wanted.name), None
        name = None if wanted.topic_id is None else self._places.name_of(asked.user, wanted.topic_id)
        return name, wanted.topic_id if name is None else None

    def _row(self, topic_type: Any, asked: Asked, name: str | None, topic_id: uuid.UUID | None) -> Any:
        if name is None:
            return made(topic_type, error_code=ErrorCode.unknown_topic_id, topic_id=topic_id)
        return self._topic(topic_type, asked, name)

    def _topic(self, topic_type: Any, asked: Asked, name: str) -> Any:
        found = self._places.find(asked.user, name, 0)
        if isinstance(found, ErrorCode):
            return made(topic_type, error_code=found, name=name)
        partition_type = items(topic_type, "partitions")
        places = [self._places.find(asked.user, name, number) for number in range(self._places.partition_count(name))]
        return made(
            topic_type,
            name=name,
            topic_id=uuid_of(self._places.topic_id(name)),
            partitions=tuple(
                made(
                    partition_type,
                    partition_index=number,
                    leader_id=NODE_ID,
                    leader_epoch=place.leader_epoch,
                    replica_nodes=(NODE_ID,),
                    isr_nodes=(NODE_ID,),
                )
                for number, place in enumerate(places)
                if isinstance(place, Place)
            ),
        )

"""Where a client's topic and partition number lead: to a partition of the bucket, or to an error."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.services.bucket.picture import BucketPicture
from tiersidecar.services.bucket.users import User


@dataclass(frozen=True, slots=True)
class Place:
    """``partition`` None: the topic has one of that number, of which nothing is in the bucket.  It is empty, from 0 to 0."""

    partition: TopicIdPartition | None
    leader_epoch: LeaderEpoch


class Places:
    """Looks things up for one user at a time.  Only users who may read a topic of that name learn whether it exists."""

    def __init__(self, picture: BucketPicture) -> None:
        self._picture = picture

    def find(self, user: User, topic: str, number: int) -> Place | ErrorCode:
        """Find partition ``number`` of the topic of that name."""
        if not user.may_read(topic):
            return ErrorCode.topic_authorization_failed
        if not 0 <= number < self.partition_count(topic):
            return ErrorCode.unknown_topic_or_partition
        partition = self._picture.topic(topic).get(number)
        epoch = LeaderEpoch(0) if partition is None else self._picture.latest_epoch(partition)
        return Place(partition, epoch)

    def find_by_id(self, user: User, topic_id: bytes, number: int) -> Place | ErrorCode:
        """Return the same by a topic id.  One that the user may not read is as unknown as one that does not exist."""
        topic = self._picture.name_of(Uuid(topic_id))
        if topic is None or not user.may_read(topic):
            return ErrorCode.unknown_topic_id
        return self.find(user, topic, number)

    def partition_count(self, topic: str) -> int:
        """Return one more than the highest number in the bucket: clients take partitions to be numbered without gaps."""
        return self._picture.partition_count(topic)

    def topics(self, user: User) -> list[str]:
        """Return those that the user may read, in order."""
        return [topic for topic in self._picture.topics() if user.may_read(topic)]

    def name_of(self, user: User, topic_id: uuid.UUID) -> str | None:
        """Return the name that stands for a topic id, for those who may read it."""
        topic = self._picture.name_of(Uuid(topic_id.bytes))
        return topic if topic is not None and user.may_read(topic) else None

    def topic_id(self, topic: str) -> Uuid:
        """Return the living id of a topic that exists."""
        return next(iter(self._picture.topic(topic).values())).topic_id

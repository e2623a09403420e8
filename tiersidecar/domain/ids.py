"""Identities: Kafka's Uuid, TopicIdPartition and RemoteLogSegmentId; and the names that topics and places may have.

A topic's name becomes the name of directories and files: one that comes from a bucket or a file is checked first.

Places are stores with a name beside the one of section ``store``, which is the default place and has none.  Everywhere above
the stores, the key of an object in place ``cold`` is ``@cold/<its key below the place's own key.prefix>``, so that whatever has
a key has the place as well.  Names of topics have no ``@``.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import NewType

Uuid = NewType("Uuid", bytes)
"""16 bytes, big endian, as Kafka writes a Uuid on the wire."""

BrokerId = NewType("BrokerId", int)


def format_uuid(uuid: Uuid) -> str:
    """Return the 22 characters that Kafka prints: base64url without padding (``org.apache.kafka.common.Uuid``)."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode("ascii")


def parse_uuid(text: str) -> Uuid:
    """Return the id that :func:`format_uuid` printed.

    Raises:
        ValueError: ``text`` is not base64url of 16 bytes.
    """
    if "+" in text or "/" in text:  # altchars lets these pass
        raise ValueError(f"{text!r} is not a Kafka Uuid: it is of the other base64 alphabet")
    try:
        raw = base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"{text!r} is not a Kafka Uuid: {error}") from error
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a Kafka Uuid: {len(raw)} bytes instead of 16")
    return Uuid(raw)


def is_acceptable_random_uuid(uuid: Uuid) -> bool:
    """Return whether ``Uuid.randomUuid()`` would hand this id out: not reserved, and its text not beginning with a dash."""
    return uuid not in _RESERVED and not format_uuid(uuid).startswith("-")


_RESERVED = frozenset({Uuid(bytes(16)), Uuid(bytes(15) + b"\x01")})


class _KeepsItsHash:
    """``_hash`` is set when it is first asked for.  It is no field: a copy in another process has to make its own."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TopicIdPartition(_KeepsItsHash):
    """One partition of one incarnation of a topic: the name may come back, the id never does.

    It is the key of nearly every table, and beside thousands of partitions a twentieth of what an idle process does is to make
    hashes of them.
    """

    topic_id: Uuid
    topic: str
    partition: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            value = hash((self.topic_id, self.topic, self.partition))
            object.__setattr__(self, "_hash", value)
            return value

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def qualified(self) -> str:
        """Return ``<topic>-<topicId>/<partition>``, as object keys and logs of doubtful cases name it."""
        return f"{self.topic}-{format_uuid(self.topic_id)}/{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentId:
    """One copy attempt of one segment: a fresh ``uuid`` for every attempt (S-029)."""

    topic_id_partition: TopicIdPartition
    uuid: Uuid

    def __str__(self) -> str:
        return f"{self.topic_id_partition}:{format_uuid(self.uuid)}"


_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_MOST_CHARACTERS = 249


def topic_name_fault(name: str) -> str:
    """Return why no topic can have this name, for messages; empty if one can (``org.apache.kafka.common.internals.Topic``)."""
    if not name:
        return "the name of a topic is empty"
    if name in {".", ".."}:
        return f"no topic can be named {name!r}"
    if len(name) > _MOST_CHARACTERS:
        return f"{name[:_MOST_CHARACTERS]!r}… is not a topic name: it has {len(name):,} characters, of at most 249"
    if not _NAME.fullmatch(name):
        return f"{name!r} is not a topic name: it may have letters of ASCII, digits, '.', '_' and '-'"
    return ""


DEFAULT_PLACE = ""
"""The store of section ``store``."""

MOST_PLACE_NAME_BYTES = 32
PLACE_NAME = rf"[a-z0-9][a-z0-9-]{{0,{MOST_PLACE_NAME_BYTES - 1}}}"

_MARK = "@"
_PLACE_NAME, _PLACED_KEY = re.compile(PLACE_NAME), re.compile(rf"{_MARK}({PLACE_NAME})/")


def is_place_name(text: str) -> bool:
    """Return whether a place can have this name."""
    return _PLACE_NAME.fullmatch(text) is not None


def is_like_placed(key_prefix: str) -> bool:
    """Return whether keys that begin so could look like those of a place."""
    return key_prefix.startswith(_MARK)


def place_prefix(place: str) -> str:
    """Return what the keys of all objects in ``place`` begin with; empty for the default place."""
    return f"{_MARK}{place}/" if place else ""


def named_place(place: str) -> str:
    """Return what messages call ``place``."""
    return f"place {place}" if place else "section store"


def place_of(key: str) -> str:
    """Return the place of the object under ``key``."""
    found = _PLACED_KEY.match(key) if key.startswith(_MARK) else None
    return DEFAULT_PLACE if found is None else found[1]

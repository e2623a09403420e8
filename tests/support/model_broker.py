"""A broker as far as one connection of it goes: its SASL states, its rights, and an answer to each request, in order.

Modelled on ``SaslServerAuthenticator``, ``KafkaChannel.maybeBeginServerReauthentication`` and ``KafkaApis`` of Kafka 4.3.
Answers carry the number of their request as throttle time, where they have one, so that no two are alike.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from tiersidecar.formats.wire.cursor import Cursor
from tiersidecar.formats.wire.fetch import read_fetch_request

PRODUCE, FETCH, METADATA, HEARTBEAT, SYNC_GROUP = 0, 1, 3, 12, 14
HANDSHAKE, API_VERSIONS, DELETE_RECORDS, AUTHENTICATE = 17, 18, 21, 36
UNSUPPORTED_MECHANISM, ILLEGAL_STATE, AUTHENTICATION_FAILED, NOT_AUTHORIZED, OUT_OF_RANGE = 33, 34, 58, 29, 1
OWN, SECRET = "own", "secret"
LOCAL_START, END = 100, 200
HIGH_WATERMARK = -1
"""Offset of a delete of all that there is, up to ``END``."""
LARGE_RECORDS = 70 * 1024
VERSIONS = {PRODUCE: 7, FETCH: 11, METADATA: 1, HEARTBEAT: 0, SYNC_GROUP: 1, DELETE_RECORDS: 1, API_VERSIONS: 2}
"""The one version of each that clients of the model use."""


class State(Enum):
    INITIAL = auto()
    HANDSHAKE = auto()
    """After ApiVersions."""
    AUTHENTICATE = auto()
    BAD_MECHANISM = auto()
    COMPLETE = auto()


@dataclass(slots=True, kw_only=True)
class ModelBroker:
    """``answers`` are all so far, each with the number of the client's frame that it answers.

    Args:
        sasl: whether its listener demands logins.
        mechanisms: those that it has.  A token is right if it begins with ``ok``; GSSAPI takes three, and answers two.
        renews: whether logins end, so that clients log in again; at most once between two calls of :meth:`tick`.
        fills: answer a Fetch as natively tiered storage would, where the client may read: with records of the topic's name.
    """

    sasl: bool = True
    mechanisms: tuple[str, ...] = ("PLAIN", "SCRAM-SHA-256", "GSSAPI")
    renews: bool = False
    fills: bool = False
    host: str = "real-broker"
    assignment: bytes = b""
    is_closed: bool = False
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    accepted_deletes: list[tuple[str, int]] = field(default_factory=list)
    second_requests: int = 0
    """Frames that no client has sent: the gateway asks once more before it answers."""
    raw_frames: set[int] = field(default_factory=set)
    """Those that were taken for tokens without headers."""
    _log_start: int = LOCAL_START
    _state: State = State.INITIAL
    _has_headers: bool = True
    _mechanism: str = ""
    _tokens: int = 0
    _was_complete: bool = False
    _may_renew: bool = True
    _kept: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        if not self.sasl:
            self._state = State.COMPLETE

    def tick(self) -> None:
        """Let a second pass."""
        self._may_renew = True

    def feed(self, data: bytes, *, is_second: bool = False) -> bytes:
        """Return what it answers to the frames that ``data`` completes; nothing once it is closed.  ``is_second``: it is the
        gateway's own second request, whose answer has the number of the first."""
        self._kept += data
        self.second_requests += is_second
        first = len(self.answers)
        while len(self._kept) >= 4 and not self.is_closed:
            (size,) = struct.unpack_from(">i", self._kept)
            if not 0 <= size <= 2**20:
                self.is_closed = True
                break
            if len(self._kept) < 4 + size:
                break
            payload = bytes(self._kept[4 : 4 + size])
            del self._kept[: 4 + size]
            self.frames.append(payload)
            answer = self._take(payload)
            if answer is not None:
                self.answers.append((len(self.frames) - 1, struct.pack(">i", len(answer)) + answer))
        return b"".join(answer for _, answer in self.answers[first:])

    def _take(self, payload: bytes) -> bytes | None:
        if self._state is State.BAD_MECHANISM:
            self.raw_frames.add(len(self.frames) - 1)
            return self._close()
        if self._state is State.AUTHENTICATE and not self._has_headers:
            self.raw_frames.add(len(self.frames) - 1)
            return self._token(payload)
        head = struct.unpack_from(">hhi", payload) if len(payload) >= 10 else (-1, 0, 0)
        key, version, correlation_id = head
        if key not in _KNOWN:
            if self._state is State.INITIAL and "GSSAPI" in self.mechanisms:
                self._begin("GSSAPI", has_headers=False)
                self.raw_frames.add(len(self.frames) - 1)
                return self._token(payload)
            return self._close()
        cursor = Cursor(payload, flexible=False, position=8)
        cursor.skip_string()
        body = memoryview(payload)[cursor.position :]
        answer = self._answer(key, version, body)
        return None if answer is None else struct.pack(">i", correlation_id) + answer

    def _close(self) -> bytes | None:
        """Give no answer."""
        self.is_closed = True
        return None

    # Before it is complete

    def _answer(self, key: int, version: int, body: memoryview) -> bytes | None:
        match self._state:
            case State.COMPLETE:
                if key == HANDSHAKE and self.sasl and self.renews and self._may_renew:
                    self._may_renew = False
                    return self._handshake(version, body)
                return _ANSWERS[key](self, version, body)
            case State.AUTHENTICATE:
                if key == AUTHENTICATE:
                    return self._authenticate(body)
                self._close()
                return _REFUSALS[key](body)
            case State.INITIAL | State.HANDSHAKE if key == HANDSHAKE:
                return self._handshake(version, body)
            case State.INITIAL if key == API_VERSIONS:
                self._state = State.HANDSHAKE
                return self._api_versions(version, body)
        return self._close()

    def _handshake(self, version: int, body: memoryview) -> bytes | None:
        mechanism = Cursor(body, flexible=False).string()
        names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in self.mechanisms)
        listed = struct.pack(">i", len(self.mechanisms)) + names
        if mechanism not in self.mechanisms:
            self._close()
            if self._was_complete:
                return None  # a login that is renewed ends without an answer
            return struct.pack(">h", UNSUPPORTED_MECHANISM) + listed
        if self._was_complete and mechanism != self._mechanism:
            self._state = State.BAD_MECHANISM
        else:
            self._begin(mechanism, has_headers=version > 0)
        return struct.pack(">h", 0) + listed

    def _begin(self, mechanism: str, *, has_headers: bool) -> None:
        self._state, self._mechanism, self._has_headers, self._tokens = State.AUTHENTICATE, mechanism, has_headers, 0

    def _token(self, token: bytes) -> bytes | None:
        """Return the broker's own, None if it has none; closes if it is wrong."""
        self._tokens += 1
        if not self._is_right(token):
            return self._close()
        last = {"PLAIN": 1, "SCRAM-SHA-256": 2, "GSSAPI": 3}[self._mechanism]
        if self._tokens < last:
            return b"r=nonce" if self._mechanism == "SCRAM-SHA-256" else b"\x60\x01token"
        self._state, self._was_complete = State.COMPLETE, True
        return {"PLAIN": b"", "SCRAM-SHA-256": b"v=signature", "GSSAPI": None}[self._mechanism]

    def _is_right(self, token: bytes) -> bool:
        match self._mechanism, self._tokens:
            case "PLAIN", _:
                return token == b"\0mallory\0mallory-secret"
            case "SCRAM-SHA-256", 1:
                return token.startswith(b"n,,n=")
            case "SCRAM-SHA-256", _:
                return token.startswith(b"c=")
        return token.startswith((b"\x60", b"\x05\x04"))

    def _authenticate(self, body: memoryview) -> bytes:
        answer = self._token(Cursor(body, flexible=False).bytes())
        if self.is_closed:
            return struct.pack(">hhi", AUTHENTICATION_FAILED, -1, 0)
        return struct.pack(">hhi", 0, -1, len(answer or b"")) + (answer or b"")

    # Complete

    def _serial(self) -> bytes:
        return struct.pack(">i", len(self.frames) - self.second_requests)

    def _api_versions(self, version: int, body: memoryview) -> bytes:
        rows = b"".join(struct.pack(">hhh", key, 0, newest) for key, newest in _NEWEST.items())
        return struct.pack(">hi", 0, len(_NEWEST)) + rows + self._serial()

    def _metadata(self, version: int, body: memoryview) -> bytes:
        host = self.host.encode()
        broker = struct.pack(">ih", 1, len(host)) + host + struct.pack(">ih", 9092, -1)
        return struct.pack(">i", 1) + broker + struct.pack(">ii", 1, 0)

    def _heartbeat(self, version: int, body: memoryview) -> bytes:
        return b"\0\0"

    def _sync_group(self, version: int, body: memoryview) -> bytes:
        """Answer; its assignment lies where other APIs' answers have what matters: no serial in its throttle time."""
        return struct.pack(">ihi", 0, 0, len(self.assignment)) + self.assignment

    def _produce(self, version: int, body: memoryview) -> bytes | None:
        (acks,) = struct.unpack_from(">h", body, 2)
        return None if acks == 0 else struct.pack(">i", 0) + self._serial()

    def _not_now(self, version: int, body: memoryview) -> bytes:
        return struct.pack(">hi", ILLEGAL_STATE, 0)

    def _not_now_token(self, version: int, body: memoryview) -> bytes:
        return struct.pack(">hhi", ILLEGAL_STATE, -1, 0)

    def _fetch(self, version: int, body: memoryview) -> bytes:
        rows = []
        for (topic, partition), asked in read_fetch_request(body, version).partitions.items():
            assert isinstance(topic, str)
            error, records = 0, b""
            if topic != OWN:
                error = NOT_AUTHORIZED
            elif asked.fetch_offset < LOCAL_START:
                error, records = (0, remote_records(topic)) if self.fills else (OUT_OF_RANGE, b"")
            else:
                records = bytes(LARGE_RECORDS if asked.max_bytes > LARGE_RECORDS else 10)
            rows.append(fetch_row(topic, partition, error, records))
        return self._serial() + struct.pack(">hii", 0, 0, len(rows)) + b"".join(rows)

    def _delete(self, version: int, body: memoryview) -> bytes:
        cursor = Cursor(body, flexible=False)
        rows = []
        for _ in range(cursor.array_length()):
            topic = cursor.string()
            for _ in range(cursor.array_length()):
                partition, offset = cursor.fixed(struct.Struct(">iq"))
                error = 0 if topic == OWN else NOT_AUTHORIZED
                offset = END if offset == HIGH_WATERMARK else offset
                if not error and offset > 0:
                    self.accepted_deletes.append((topic, offset))
                    self._log_start = max(self._log_start, offset)
                rows.append(delete_row(topic, partition, self._log_start if not error else -1, error))
        return self._serial() + struct.pack(">i", len(rows)) + b"".join(rows)


def remote_records(topic: str) -> bytes:
    """Return what the remote tier has of ``topic``."""
    return b"remote records of " + topic.encode()


def fetch_row(topic: str, partition: int, error: int, records: bytes) -> bytes:
    """Return a topic of one partition, of version 11."""
    name = topic.encode()
    row = struct.pack(">ihqqqiii", partition, error, -1, -1, -1, -1, -1, len(records)) + records
    return struct.pack(">h", len(name)) + name + struct.pack(">i", 1) + row


def delete_row(topic: str, partition: int, low_watermark: int, error: int) -> bytes:
    """Return a topic of one partition, of version 1."""
    name = topic.encode()
    return struct.pack(">h", len(name)) + name + struct.pack(">iiqh", 1, partition, low_watermark, error)


_Answer = Callable[[ModelBroker, int, memoryview], bytes | None]
_ANSWERS: dict[int, _Answer] = {
    PRODUCE: ModelBroker._produce,
    FETCH: ModelBroker._fetch,
    METADATA: ModelBroker._metadata,
    HEARTBEAT: ModelBroker._heartbeat,
    SYNC_GROUP: ModelBroker._sync_group,
    HANDSHAKE: ModelBroker._not_now,
    API_VERSIONS: ModelBroker._api_versions,
    DELETE_RECORDS: ModelBroker._delete,
    AUTHENTICATE: ModelBroker._not_now_token,
}
_KNOWN = frozenset(_ANSWERS)
_NEWEST = dict.fromkeys(_ANSWERS, 20) | {AUTHENTICATE: 2, HANDSHAKE: 1}
_REFUSALS: dict[int, Callable[[memoryview], bytes | None]] = {
    # What a broker says in the midst of a login to anything but SaslAuthenticate, before it closes.
    PRODUCE: lambda body: None if bytes(body[2:4]) == bytes(2) else struct.pack(">ii", 0, 0),
    FETCH: lambda body: struct.pack(">ihii", 0, ILLEGAL_STATE, 0, 0),
    METADATA: lambda body: struct.pack(">iii", 0, -1, 0),
    HEARTBEAT: lambda body: struct.pack(">h", ILLEGAL_STATE),
    SYNC_GROUP: lambda body: struct.pack(">ihi", 0, ILLEGAL_STATE, 0),
    HANDSHAKE: lambda body: struct.pack(">hi", ILLEGAL_STATE, 0),
    API_VERSIONS: lambda body: struct.pack(">hii", ILLEGAL_STATE, 0, 0),
    DELETE_RECORDS: lambda body: struct.pack(">ii", 0, 0),
}

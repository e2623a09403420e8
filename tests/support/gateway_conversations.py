"""Conversations of hostile clients through the gateway's core, held against what a broker answers the same client directly.

Each is drawn from a seed: what the client says, in which pieces, and when the broker's answers come.  :func:`converse` gives
what is wrong with what came of it; nothing, if the gateway does what it should.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.gateway_attacker import (
    CORRELATION_ID,
    assignment_like_a_delete_answer,
    assignment_like_a_fetch_answer,
    delete_frame,
    deletes_frame,
    fetch_frame,
)
from tests.support.gateway_core import Core, RecordedAudit
from tests.support.inline_blocking import InlineBlocking
from tests.support.leaders_sidecar import CLUSTER, LeadersSidecar
from tests.support.manual_clock import ManualClock
from tests.support.model_broker import (
    API_VERSIONS,
    AUTHENTICATE,
    DELETE_RECORDS,
    END,
    FETCH,
    HANDSHAKE,
    HEARTBEAT,
    HIGH_WATERMARK,
    LOCAL_START,
    METADATA,
    OUT_OF_RANGE,
    OWN,
    PRODUCE,
    SECRET,
    SYNC_GROUP,
    VERSIONS,
    ModelBroker,
    delete_row,
    fetch_row,
    remote_records,
)
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import MemoryStateLog
from tests.support.scripted_kafka import ADVERTISED
from tiersidecar.decide.gateway_fill import OutOfRange
from tiersidecar.decide.trash import NO_DELAYS
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Offset
from tiersidecar.domain.segments import LeaderView
from tiersidecar.formats.wire.fetch import FetchResponse, FilledPartition, PartitionKey, read_fetch_response
from tiersidecar.ports.broker import OffsetAnswer, OffsetSpec
from tiersidecar.reading.segment_lookup import OffsetBounds
from tiersidecar.services.gateway.addresses import in_fetch
from tiersidecar.services.gateway.delete_records_rewrite import DeleteRecordsRewrite, SecondSteps
from tiersidecar.services.gateway.exchange import Rewrites, is_no_request
from tiersidecar.services.gateway.fetch_in_hand import FetchSessions
from tiersidecar.services.gateway.fetch_rewrite import FetchRewrite, FetchSources
from tiersidecar.services.gateway.host import Refusal
from tiersidecar.services.gateway.out_of_range import Classified
from tiersidecar.services.gateway.remote_deletes import Proposer
from tiersidecar.services.gateway.rewrites import ApiVersionsRewrite, frame_rewrites
from tiersidecar.services.gateway.tiered_partitions import BothTiers, BrokerOffsets, TieredView

PARTITIONS = {
    name: TopicIdPartition(topic_id=Uuid(bytes([number]) * 16), topic=name, partition=0)
    for number, name in enumerate((OWN, SECRET), start=1)
}
RIGHT_TOKENS = {
    "PLAIN": (b"\0mallory\0mallory-secret",),
    "SCRAM-SHA-256": (b"n,,n=mallory,r=1", b"c=biws,r=1,p=x"),
    "GSSAPI": (b"\x60\x82token", b"\x05\x04token", b"\x05\x04end"),
}


# -- the gateway, with a remote tier that has everything


class NeverWaits(ManualClock):
    """The model's throttle times are numbers of its answers."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class FillsAll:
    """In place of the classifier, the reader and the deleted records: whatever the broker's answer lets through is read."""

    def __init__(self) -> None:
        self.state, self.audited = MemoryStateLog(), RecordedAudit()
        self.sidecar = LeadersSidecar(broker=self, state=self.state, clock=ManualClock(), delays=NO_DELAYS)
        for view in self._views(PARTITIONS):
            self.sidecar.tiers(view)

    def classify_at_once(self, asked: Any, asker: Any = None) -> Any:
        return {key: Classified(verdict=OutOfRange.FILL, partition=PARTITIONS[key[0]]) for key in asked}

    def is_still_of(self, classified: Any, asker: Any = None) -> bool:
        return True

    def fill_at_once(self, wanted: Any) -> Any:
        return {key: FilledPartition(records=[remote_records(key[0])]) for key in wanted.classified}

    def suspects(self, rows: Any, asked: Any) -> list[Any]:
        return []

    def is_any_suspect(self, request: Any) -> bool:
        return False

    def is_suspect(self, key: Any, offset: int) -> bool:
        return False

    # For deletes

    def now(self) -> FillsAll:
        return self

    def find(self, topic: Any, partition: int, asker: Any = None) -> TieredView | None:
        known = PARTITIONS.get(topic)
        return None if known is None else TieredView(topic_id_partition=known, leader_epoch=LeaderEpoch(0))

    def may_be_tiered(self, topic: str) -> bool:
        return topic in PARTITIONS

    def find_on_disk(self, topic: str, partition: int) -> TieredView | None:
        return self.find(topic, partition)

    async def describe_partitions(self, topics: Sequence[str]) -> list[LeaderView]:
        return self._views(topics)

    async def list_offsets(
        self, partitions: Mapping[TopicIdPartition, LeaderEpoch], spec: OffsetSpec | int
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        """Answer as a leader that has done whatever its answer said that it did."""
        answer = OffsetAnswer(offset=Offset(2**40), timestamp_ms=-1, leader_epoch=LeaderEpoch(0))
        return dict.fromkeys(partitions, answer)

    def _views(self, topics: Iterable[str]) -> list[LeaderView]:
        return [
            LeaderView(
                topic_id_partition=PARTITIONS[topic],
                leader_id=BrokerId(1),
                leader_epoch=LeaderEpoch(0),
                replicas=(BrokerId(1),),
                in_sync_replicas=(BrokerId(1),),
            )
            for topic in topics
        ]

    async def current(self, partitions: Any) -> Any:
        return {partition: await self.current_of(partition) for partition in partitions}

    async def current_of(self, partition: TopicIdPartition) -> BrokerOffsets:
        return BrokerOffsets(
            log_start_offset=Offset(LOCAL_START),
            high_watermark=Offset(END),
            last_stable_offset=Offset(END),
            asked_at_s=0.0,
        )

    async def bounds(self, partition: TopicIdPartition) -> OffsetBounds:
        return OffsetBounds(start=Offset(0), end=Offset(0), log_start=Offset(0))


def rewrites_over(tier: FillsAll, *, raw_tokens: bool) -> Rewrites:
    """Return the gateway's own table, but for what reads the store."""
    everything: Any = tier
    rewrites = frame_rewrites(ADVERTISED, raw_tokens=raw_tokens)
    rewrites[FETCH] = FetchRewrite(
        sources=FetchSources(classifier=everything, deleted=everything, fill=everything, sessions=FetchSessions()),
        clock=ManualClock(),
        telemetry=RecordedTelemetry(),
        blocking=InlineBlocking(),
        remote_max_wait_ms=500,
        find_addresses=lambda version, response: in_fetch(version, response, ADVERTISED),
    )
    rewrites[DELETE_RECORDS] = DeleteRecordsRewrite(
        second_steps=SecondSteps(),
        tiers=BothTiers(tiered=everything, reader=everything, offsets=everything, pending=everything),
        state=tier.state,
        proposer=Proposer(cluster_id=CLUSTER, broker_id=BrokerId(1), proposals=tier.sidecar),
        broker=everything,
        blocking=InlineBlocking(),
        clock=NeverWaits(),
        audit=tier.audited,
    )
    rewrites[API_VERSIONS] = ApiVersionsRewrite(rewrites)
    return rewrites


# -- what a client says


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """``steps`` are frames, and None for a second that passes.  ``forges``: how the broker's answers are spoilt, "" if they are
    not."""

    sasl: bool
    renews: bool
    raw_tokens: bool
    steps: tuple[bytes | None, ...]
    assignment: bytes
    forges: str
    ends_early: bool


def draw_script(draw: random.Random) -> Script:
    sasl, forges = draw.random() < 0.85, draw.choice(FORGERIES) if draw.random() < 0.15 else ""
    steps = list[bytes | None]()
    if sasl and draw.random() < 0.9:
        steps += _login(draw, draw.choice((0, 1, 1)))
    for _ in range(draw.randint(0, 6)):
        steps += _some(draw)
    if draw.random() < 0.2:
        draw.shuffle(steps)
    if forges:
        steps += [frame(SYNC_GROUP), fetch_frame(SECRET), frame(DELETE_RECORDS)]
    weapon = (
        draw.choice((assignment_like_a_fetch_answer(SECRET), _DELETE_WEAPON)) if forges or draw.random() < 0.9 else b""
    )
    return Script(
        sasl=sasl,
        renews=draw.random() < 0.5,
        raw_tokens=draw.random() < 0.6,
        steps=tuple(steps),
        assignment=weapon,
        forges=forges,
        ends_early=draw.random() < 0.1,
    )


_DELETE_WEAPON = assignment_like_a_delete_answer(SECRET, 150)
FORGERIES = ("again", "again", "unasked", "swapped")
"""An answer twice; of a partition that was not asked for; two in each other's place."""


def _login(draw: random.Random, version: int) -> list[bytes | None]:
    mechanism = draw.choice(tuple(RIGHT_TOKENS))
    tokens = list(RIGHT_TOKENS[mechanism])
    if draw.random() < 0.15:
        tokens[draw.randrange(len(tokens))] = draw.choice((b"", b"wrong", bytes(40), frame(METADATA)[4:]))
    if draw.random() < 0.1:
        del tokens[draw.randrange(len(tokens)) :]
    before = [frame(API_VERSIONS)] if draw.random() < 0.3 else []
    if draw.random() < 0.06:
        return [*before, *(with_size(token) for token in RIGHT_TOKENS["GSSAPI"])]  # without a handshake
    if draw.random() < 0.06:
        mechanism = "UNKNOWN"
    return [*before, handshake(mechanism, version), *(token_frame(token, version) for token in tokens)]


def _some(draw: random.Random) -> list[bytes | None]:
    match draw.randrange(9):
        case 0 | 1:
            return [_fetch(draw)]
        case 2:
            topics = draw.choice(((OWN,), (SECRET,), (OWN, SECRET), (SECRET, OWN)))
            return [deletes_frame({topic: draw.choice((150, 150, HIGH_WATERMARK)) for topic in topics})]
        case 3:
            return [frame(draw.choice((METADATA, SYNC_GROUP, HEARTBEAT, HEARTBEAT, API_VERSIONS)))]
        case 4:
            return [produce(draw.choice((0, 0, 1))), frame(HEARTBEAT)]
        case 5:
            return [None] if draw.random() < 0.5 else [None, *_login(draw, draw.choice((0, 1)))]
        case 6:
            return _login(draw, draw.choice((0, 0, 1)))
        case 7:  # the attack
            tokens = [frame(draw.choice((METADATA, HEARTBEAT)))] * draw.randint(1, 2)
            first = draw.choice(tuple(RIGHT_TOKENS))
            request = draw.choice((fetch_frame(SECRET), frame(DELETE_RECORDS)))
            return [handshake(first, 0), *tokens, handshake("GSSAPI", 0), frame(SYNC_GROUP), frame(HEARTBEAT), request]
        case _:
            return [with_size(draw.choice((b"", b"\x60\x82", bytes(20), b"GET / HTTP/1.1\r\n", b"c=biws")))]


def _fetch(draw: random.Random) -> bytes:
    topic, offset = draw.choice((OWN, SECRET)), draw.choice((0, LOCAL_START))
    return fetch_frame(topic, offset=offset, max_bytes=draw.choice((1000, 2**20)))


def with_size(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def frame(key: int, topic: str = SECRET) -> bytes:
    """Return a frame of an API whose body matters little."""
    match key:
        case _ if key == DELETE_RECORDS:
            return delete_frame(topic, 150)
        case _ if key == METADATA:
            body = struct.pack(">i", 0)
        case _ if key == SYNC_GROUP:
            body = b"\0\1g" + struct.pack(">i", 1) + b"\0\1m" + struct.pack(">i", 0)
        case _ if key == HEARTBEAT:
            body = b"\0\1g" + struct.pack(">i", 1) + b"\0\1m"
        case _:
            body = b""
    return with_size(struct.pack(">hhih", key, VERSIONS[key], CORRELATION_ID, 1) + b"c" + body)


def produce(acks: int) -> bytes:
    body = struct.pack(">hhii", -1, acks, 1000, 0)
    return with_size(struct.pack(">hhih", PRODUCE, VERSIONS[PRODUCE], CORRELATION_ID, 1) + b"c" + body)


def handshake(mechanism: str, version: int) -> bytes:
    name = mechanism.encode()
    return with_size(
        struct.pack(">hhih", HANDSHAKE, version, CORRELATION_ID, 1) + b"c" + struct.pack(">h", len(name)) + name
    )


def token_frame(token: bytes, version: int) -> bytes:
    """Return the token as the handshake's ``version`` has it."""
    if version == 0:
        return with_size(token)
    return with_size(struct.pack(">hhihci", AUTHENTICATE, 0, CORRELATION_ID, 1, b"c", len(token)) + token)


# -- a conversation, and what is wrong with it


async def converse(seed: int) -> list[str]:
    """Return what is wrong with the conversation of this seed."""
    draw = random.Random(seed)
    script = draw_script(draw)
    tier = FillsAll()
    direct = ModelBroker(
        sasl=script.sasl, renews=script.renews, fills=True, host="gateway-1", assignment=script.assignment
    )
    behind = ModelBroker(sasl=script.sasl, renews=script.renews, assignment=script.assignment)
    core = Core(rewrites_over(tier, raw_tokens=script.raw_tokens), new_id=lambda: draw.getrandbits(32) - 2**31)
    passage = _Passage(core, behind, draw, script.forges)
    for step in script.steps:
        if step is None:
            await passage.drain()
            direct.tick()
            behind.tick()
            continue
        direct.feed(step)
        await passage.say(step)
    if script.ends_early:
        core.close()
    else:
        await passage.drain()
    core.close()
    wrong = _harm(script, core, tier, behind, passage)
    if not script.forges:
        wrong += _differences(script, core, direct, passage)
    return [f"seed {seed}: {one}" for one in wrong]


class _Passage:
    """Carries bytes between client, core and broker, in pieces, some of them late."""

    def __init__(self, core: Core, broker: ModelBroker, draw: random.Random, forges: str) -> None:
        self.core, self.broker, self.draw, self.forges = core, broker, draw, forges
        self.heard, self.forged = bytearray(), ""
        self._late = bytearray()  # what the broker has said, and the gateway has not heard
        self._said = bytearray()  # what waits in the client's socket while the gateway does not read

    async def say(self, data: bytes) -> None:
        self._said += data
        await self._turn(answers=self.draw.random() < 0.5)

    async def drain(self) -> None:
        before = -1
        while before != (before := self._progress()):
            await self._turn(answers=True)

    def _progress(self) -> int:
        return len(self.heard) * 2**20 + len(self.broker.frames) * 2**10 - len(self._said) - len(self._late)

    async def _turn(self, *, answers: bool) -> None:
        core = self.core
        while self._said and core.conversation.wants_request_bytes and core.refusal is None:
            size = len(self._said) if self.draw.random() < 0.6 else self.draw.randint(1, len(self._said))
            data = bytes(self._said[:size])
            del self._said[:size]
            core.conversation.from_client(bytearray(data) if self.draw.random() < 0.5 else data)
        asked = core.broker.take()
        said = self.broker.feed(asked) if asked else b""
        self._late += self._forge(said) if self.forges and said else said
        while answers and self._late and core.refusal is None:
            size = len(self._late) if self.draw.random() < 0.6 else self.draw.randint(1, len(self._late))
            data = bytes(self._late[:size])
            del self._late[:size]
            core.conversation.from_broker(bytearray(data))
            second = await self._settled()
            self._late += second
            if second and self.draw.random() < 0.3:
                break  # its answer comes later, or never
            await asyncio.sleep(0)
        self._late += await self._settled()
        self.heard += core.client.take()

    async def _settled(self) -> bytes:
        """Return what the broker says to what the gateway asks of it once more, before it answers its client."""
        core, said = self.core, b""
        await core.settled()
        if core.is_rewriting and (asked := core.broker.take()):
            said = self.broker.feed(asked, is_second=True)
        return self._forge(said) if self.forges and said else said

    def _forge(self, said: bytes) -> bytes:
        """Forge an answer once, when there is something that it can be done to."""
        frames = split(said)
        key = struct.unpack_from(">h", self.broker.frames[-1])[0] if len(self.broker.frames[-1]) > 1 else -1
        last, _ = self.broker.answers[-1]
        is_last_answered = last == len(self.broker.frames) - 1 and last not in self.broker.raw_frames
        is_refused = self.broker.sasl and not self.broker._was_complete
        if self.forged or is_refused or self.broker.is_closed or not is_last_answered:
            return said
        if self.forges == "again" and key == SYNC_GROUP:
            self.forged = "again"
            return said + frames[-1]
        if self.forges == "swapped" and len(frames) > 1 and frames[-1] != frames[-2]:
            self.forged = "swapped"
            return b"".join([*frames[:-2], frames[-1], frames[-2]])
        if self.forges == "unasked" and key in (FETCH, DELETE_RECORDS):
            self.forged = "unasked"
            head = 14 if key == FETCH else 8
            (count,) = struct.unpack_from(">i", frames[-1], 4 + head)
            other = fetch_row("other", 0, OUT_OF_RANGE, b"") if key == FETCH else delete_row("other", 0, 1, 0)
            payload = frames[-1][4 : 4 + head] + struct.pack(">i", count + 1) + frames[-1][8 + head :] + other
            return b"".join([*frames[:-1], with_size(payload)])
        return said


def split(data: bytes) -> list[bytes]:
    """Return frames, with their sizes; what is left of one is one."""
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack(">i", data[at : at + 4].ljust(4, b"\0"))
        found.append(data[at : at + 4 + size])
        at += 4 + size
    return found


def _harm(script: Script, core: Core, tier: FillsAll, broker: ModelBroker, passage: _Passage) -> list[str]:
    """Return what must not be, whatever was said."""
    wrong = list[str]()
    heard = bytes(passage.heard)
    if remote_records(SECRET) in heard:
        wrong.append("records of a topic that the broker refused")
    if b"real-broker" in heard:
        wrong.append("the broker's own address")
    said = {one for one, state in tier.state.partition_states.items() if state.remote_log_start_offset != NO_OFFSET}
    for partition in said | {one.topic_id_partition for one in tier.sidecar.proposed}:
        if partition.topic not in {topic for topic, _ in broker.accepted_deletes}:
            wrong.append(f"a delete of {partition.topic} that the broker refused")
    wrong += _not_audited(core, tier, broker)
    for number, payload in enumerate(broker.frames):
        if number in broker.raw_frames or len(payload) < 10:
            continue
        key, version, wire_id = struct.unpack_from(">hhi", payload)
        if key == HANDSHAKE and version == 0 and not script.raw_tokens:
            wrong.append("a handshake of version 0 at the broker")
        is_read = key in (FETCH, METADATA, DELETE_RECORDS, API_VERSIONS, HANDSHAKE, AUTHENTICATE)
        if is_read and wire_id == CORRELATION_ID:
            wrong.append(f"a request of API {key} under the client's own id")
    if core.refusal is Refusal.FAULT:
        wrong.append(f"a fault: {core.error!r}")
    if passage.forged == "unasked" and not script.ends_early and core.refusal is not Refusal.UNBOUND:
        wrong.append("an answer of what was not asked for was taken")
    return wrong


def _not_audited(core: Core, tier: FillsAll, broker: ModelBroker) -> list[str]:
    """Return what is not audited: each delete that the broker accepted, and each conversation that was refused, has an event of
    its own."""
    audited = Counter((str(facts["topic"]), facts["offset"]) for facts in tier.audited.of("gateway.audit.delete"))
    wrong = [
        f"no event of a delete of {one}"
        for one, count in Counter(broker.accepted_deletes).items()
        if audited[one] < count
    ]
    is_refused = core.refusal is not None and core.refusal not in (Refusal.FAULT, Refusal.BROKER_GONE)
    events = core.audited.of("gateway.audit.refused")
    if len(events) != is_refused:
        wrong.append(f"{len(events)} events of a conversation that ended with {core.refusal}")
    wrong += ["an event without an address" for facts in events if facts["client"] != core.state.client]
    return wrong


def _differences(script: Script, core: Core, direct: ModelBroker, passage: _Passage) -> list[str]:
    """Compare with what an honest broker says to the same client."""
    if core.refusal is Refusal.UNBOUND:
        return [f"an honest broker's answer was refused: {core.error}"]
    allowed, is_cut = _allowed(script, direct)
    heard = split(bytes(passage.heard))
    wrong = [
        f"answer {number} is {got[:60]!r}, and not {due[:60]!r}"
        for number, (got, (key, due)) in enumerate(zip(heard, allowed, strict=False))
        if not _is_same(key, got, due)
    ]
    if len(heard) > len(allowed):
        wrong.append(f"{len(heard)} answers where {len(allowed)} were due")
    is_refused = core.refusal is Refusal.MALFORMED and (is_cut or direct.is_closed)
    if len(heard) < len(allowed) and not script.ends_early and not is_refused:
        wrong.append(f"only {len(heard)} answers of {len(allowed)}; it ended with {core.refusal}: {core.error}")
    return wrong


def _allowed(script: Script, direct: ModelBroker) -> tuple[list[tuple[int, bytes]], bool]:
    """Return the broker's answers, each with its API, up to where the gateway ends the conversation; and whether it does."""
    by_frame, allowed = dict(direct.answers), list[tuple[int, bytes]]()
    for number, payload in enumerate(direct.frames):
        answer, is_raw = by_frame.get(number), number in direct.raw_frames
        key, version = struct.unpack_from(">hh", payload.ljust(4, b"\xff"))
        if _is_refused(script, payload, key, version, is_raw=is_raw):
            return allowed, True
        if key == PRODUCE and answer is None and number - 1 in direct.raw_frames:
            return allowed, True
        if answer is not None:
            allowed.append((_TOKEN if is_raw else key, answer))
            if not is_raw and key in (HANDSHAKE, AUTHENTICATE) and answer[8:10] != b"\0\0":
                return allowed, True
    return allowed, False


_TOKEN = -1


def _is_refused(script: Script, payload: bytes, key: int, version: int, *, is_raw: bool) -> bool:
    """Return whether the gateway ends the conversation before this frame."""
    if is_raw:
        return not script.raw_tokens
    if len(payload) < 10 or is_no_request(payload):
        return True
    return key == HANDSHAKE and version == 0 and not script.raw_tokens


def _is_same(key: int, got: bytes, due: bytes) -> bool:
    if got == due:
        return True
    if key == API_VERSIONS:  # fewer versions
        return got[4:10] == due[4:10]
    if key != FETCH:
        return False
    rows, expected = (read_fetch_response(memoryview(one)[8:], VERSIONS[FETCH]) for one in (got, due))
    return got[4:14] == due[4:14] and _contents(rows, got) == _contents(expected, due)


def _contents(response: FetchResponse, data: bytes) -> list[tuple[PartitionKey, int, bytes]]:
    return [
        (row.key, row.error_code, data[8 + row.records_start :][: row.records_bytes]) for row in response.partitions
    ]

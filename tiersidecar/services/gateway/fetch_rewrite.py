"""Fetch: what has left the broker's disk is filled in from the remote tier (S-136 to S-148, S-155, T-52 to T-57, U2, U7).

The broker answers first.  Its OFFSET_OUT_OF_RANGE says that this client may read the partition: without the right to, it
would have said so instead.  Records that a user has deleted and that the broker still has are out of range as well.  All other
bytes of the response pass as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiersidecar.decide.gateway_fill import OutOfRange, Patience, decide_patience
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.formats.wire.cursor import Replacement, splice
from tiersidecar.formats.wire.fetch import (
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_VERSIONS,
    FULL_EPOCH,
    NO_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    SESSIONLESS_EPOCH,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FilledPartition,
    PartitionKey,
    most_partitions,
    read_fetch_response,
    replacing,
    session_epoch_position,
    throttling,
    write_session_error,
)
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.metrics.gateway import GATEWAY_OUT_OF_RANGE
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.services.gateway.exchange import (
    Answered,
    ConnectionState,
    Exchange,
    Expected,
    Passing,
    Rewrite,
    Rewritten,
    Upstream,
)
from tiersidecar.services.gateway.fetch_fill import FetchFill, FillRequest
from tiersidecar.services.gateway.fetch_in_hand import (
    FetchesInHand,
    FetchSessions,
    PassingFetch,
    check_all_asked,
    expect_more,
    is_large,
    remember,
)
from tiersidecar.services.gateway.out_of_range import ANSWERED, Classified, OutOfRangeClassifier
from tiersidecar.services.gateway.tiered_partitions import DeletedRecords, Mounts, NoMounts

FindAddresses = Callable[[int, memoryview], Sequence[Replacement]]
"""Finds, by version, the brokers' addresses in a response, and gives the gateways' in their place (KIP-951)."""

_NEW_SESSION = FULL_EPOCH.to_bytes(4, "big")
_ASKED_AGAIN = FilledPartition(error_code=NOT_LEADER_OR_FOLLOWER)
_BEYOND = FilledPartition(error_code=OFFSET_OUT_OF_RANGE)
_TRIED_AGAIN = frozenset({OutOfRange.RETRY, OutOfRange.HOLE})

_TURN_S = 0.25
"""How often a response that is held is looked at: whether what has been copied meanwhile can be given."""
_BESIDE_BROKER_S = 0.5
"""The most that a response is held with partitions in it of which the broker has said nothing wrong: it has answered at once,
and does not watch for their records until it is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FetchSources:
    """The sources of a Fetch beside the broker's own answer: ``classifier`` decides what an offset out of range means,
    ``deleted`` withholds, ``fill`` reads the remote tier, ``sessions`` has what clients ask for without repeating it, and
    of ``mounts`` nothing is the broker's own."""

    classifier: OutOfRangeClassifier
    deleted: DeletedRecords
    fill: FetchFill
    sessions: FetchSessions
    mounts: Mounts = field(default_factory=NoMounts)


class FetchRewrite(Rewrite):
    """``services.gateway.exchange.Rewrite`` of Fetch."""

    reads_request = True
    alone = True

    def __init__(
        self,
        *,
        sources: FetchSources,
        clock: Clock,
        telemetry: Telemetry,
        blocking: Blocking,
        remote_max_wait_ms: int,
        find_addresses: FindAddresses,
    ) -> None:
        self._classifier, self._deleted = sources.classifier, sources.deleted
        self._fill, self._sessions, self._mounts = sources.fill, sources.sessions, sources.mounts
        self._clock, self._telemetry = clock, telemetry
        self._remote_max_wait_ms, self._find_addresses = remote_max_wait_ms, find_addresses
        self._in_hand = FetchesInHand(
            classifier=sources.classifier, sessions=sources.sessions, clock=clock, blocking=blocking
        )
        for verdict in OutOfRange:  # a series that begins with its first event shows no increase
            telemetry.count(GATEWAY_OUT_OF_RANGE, 0, outcome=verdict.name.lower())

    def versions(self) -> range:
        """Return the API versions that it can rewrite; ApiVersions offers clients no others."""
        return FETCH_VERSIONS

    def prepare(self, exchange: Exchange) -> Rewritten:
        """Pass the request unchanged, but refuse a fetch session that we could not keep up with, by not asking for it."""
        connection = exchange.connection
        connection.asker.asked_at, connection.asked_s = self._classifier.now(), self._clock.monotonic_s()
        position = session_epoch_position(exchange.api_version)
        if position is None or exchange.request[position : position + len(_NEW_SESSION)] != _NEW_SESSION:
            return None
        if self._sessions.has_room(most_partitions(len(exchange.request), exchange.api_version)):
            return None
        if not is_large(exchange) and self._sessions.has_room(len(self._in_hand.read(exchange).partitions)):
            return None
        refusal = SESSIONLESS_EPOCH.to_bytes(4, "big", signed=True)
        return splice(exchange.request, [(position, position + len(refusal), refusal)])

    def forwarded(self, exchange: Exchange) -> None:
        """Prepare what can be for the answer: the request, which was read, is on its way."""
        self._in_hand.expect(exchange)

    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten | Coroutine[Any, Any, Rewritten]:
        """Return what the client gets instead of ``response``.  At once, unless something has to be read or looked at first."""
        if self._in_hand.is_to_be_read_apart(exchange):
            return self._rewrite_large(exchange, response)
        return self._rewrite(exchange, response)

    async def _rewrite_large(self, exchange: Exchange, response: memoryview) -> Rewritten:
        await self._in_hand.read_apart(exchange)
        answer = self._rewrite(exchange, response)
        return await answer if isinstance(answer, Coroutine) else answer

    def _rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten | Coroutine[Any, Any, Rewritten]:
        in_hand = self._in_hand.take(exchange)
        expected, request = in_hand.expected, in_hand.request
        if expected is not None and self._in_hand.has_come(expected, response):
            filled = self._filled_as_expected(exchange, request, expected)
            if filled is not None:
                return filled
        version = exchange.api_version
        fetched = read_fetch_response(response, version)
        session = self._sessions.follow(exchange.connection, request, fetched)
        hidden = self._hidden(fetched)
        rows = [row for row in fetched.partitions if row.error_code == OFFSET_OUT_OF_RANGE or row.key in hidden]
        expect_more(exchange.connection, found_out_of_range=bool(rows))
        addresses = self._find_addresses(version, response)
        if request.is_of_follower:  # a follower that fetches is none of ours (T-57)
            return splice(response, addresses)
        partitions = {} if session is None else session.partitions
        if session is not None:
            check_all_asked(fetched, partitions)
        others = [row for row in fetched.partitions if row.key not in hidden] if hidden else fetched.partitions
        suspects = self._deleted.suspects(others, partitions)
        if not rows and not suspects:
            return splice(response, addresses)
        known = {row.key: partitions[row.key] for row in (*rows, *suspects) if row.key in partitions}
        if len(known) < len(rows) + len(suspects):
            # It is unknown which offset was out of range: the client begins a new session, and names it again.
            return [write_session_error(version, fetched.throttle_time_ms, FETCH_SESSION_ID_NOT_FOUND)]
        withheld = self._withheld(exchange.connection, response, suspects, known)
        withheld |= self._beyond(rows, known)
        rows = [row for row in rows if row.key not in withheld]
        known = {row.key: known[row.key] for row in rows}
        changed = [row for row in fetched.partitions if row.key in known or row.key in withheld]
        answered = Answered(version=version, response=response, fetched=fetched, rows=changed, addresses=addresses)
        if not rows:
            return _replaced(answered, withheld)
        if exchange.connection.is_late(self._clock.monotonic_s(), request.max_wait_ms / 1000):
            self._telemetry.count(GATEWAY_OUT_OF_RANGE, len(rows), outcome=OutOfRange.RETRY.name.lower())
            return _replaced(answered, {**dict.fromkeys(known, _ASKED_AGAIN), **withheld})
        remember(exchange.connection, answered)
        out_of_range = _OutOfRange(
            exchange=exchange,
            request=request,
            fetched=fetched,
            asked=known,
            withheld=withheld,
            hidden=hidden,
            is_beside_others=len(partitions) > len(changed),
        )
        classified = self._classifier.classify_at_once(known, exchange.connection.asker)
        answers = None if classified is None else self._fill_at_once(out_of_range, classified)
        if answers is not None:
            return _replaced(answered, {**answers, **withheld})
        return self._rewrite_later(out_of_range, answered)

    def _hidden(self, fetched: FetchResponse) -> frozenset[PartitionKey]:
        """Return the mounted partitions of which the broker gives something of its own, be it the end of its log: that log is
        not as it was seeded, or the client asks for its very start."""
        if not self._mounts.are_any:
            return frozenset()
        return frozenset(
            row.key
            for row in fetched.partitions
            if row.error_code == NO_ERROR and self._mounts.is_mounted_topic(row.key[0])
        )

    def _beyond(
        self, rows: Sequence[FetchedPartition], asked: Mapping[PartitionKey, FetchPartition]
    ) -> dict[PartitionKey, FilledPartition]:
        """Return the answers for offsets of a mounted partition that are above all histories, whether or not anything is known
        of its own."""
        if not self._mounts.are_any:
            return {}
        beyond = dict.fromkeys(
            (
                row.key
                for row in rows
                if asked[row.key].fetch_offset >= MOUNTED_START and self._mounts.is_mounted_topic(row.key[0])
            ),
            _BEYOND,
        )
        if beyond:
            self._telemetry.count(GATEWAY_OUT_OF_RANGE, len(beyond), outcome=OutOfRange.STANDS.name.lower())
        return beyond

    def _withheld(
        self,
        connection: ConnectionState,
        response: memoryview,
        suspects: Sequence[FetchedPartition],
        asked: Mapping[PartitionKey, FetchPartition],
    ) -> dict[PartitionKey, FilledPartition]:
        """Return what stands in place of records that no client may have any more."""
        if suspects:
            expect_more(connection, found_out_of_range=True)
        withheld = dict[PartitionKey, FilledPartition]()
        for row in suspects:
            records = response[row.records_start : row.records_start + row.records_bytes]
            answer = self._deleted.classify(row.key, asked[row.key].fetch_offset, records, connection.asker)
            if answer is not None:
                withheld[row.key] = answer
        return withheld

    def _filled_as_expected(self, exchange: Exchange, request: FetchRequest, expected: Expected) -> Rewritten:
        """Return None if not all of it has been read, or a topic has been made anew since it was classified."""
        answered = expected.answered
        if not self._classifier.is_still_of(expected.classified, exchange.connection.asker):
            return None
        out_of_range = _OutOfRange(exchange=exchange, request=request, fetched=answered.fetched, asked=expected.asked)
        answers = self._fill_at_once(out_of_range, expected.classified)
        if answers is None:
            return None
        self._sessions.follow(exchange.connection, request, answered.fetched)
        expect_more(exchange.connection, found_out_of_range=True)
        return _replaced(answered, answers)

    async def _rewrite_later(self, out_of_range: _OutOfRange, answered: Answered) -> Rewritten:
        return _replaced(answered, await self._answers(out_of_range))

    def passing(self, exchange: Exchange, size_bytes: int) -> Passing | None:
        """Let a large response pass, but not for a client that has lately met remote data."""
        if exchange.connection.fetches_to_collect or self._in_hand.is_to_be_read_apart(exchange):
            return None
        request = self._in_hand.read(exchange)
        if self._deleted.is_any_suspect(request):
            return None
        self._in_hand.take(exchange)
        return PassingFetch(
            exchange, request, size_bytes, sessions=self._sessions, deleted=self._deleted, mounts=self._mounts
        )

    def _fill_at_once(
        self, out_of_range: _OutOfRange, classified: Mapping[PartitionKey, Classified]
    ) -> dict[PartitionKey, FilledPartition] | None:
        """Return what replaces the broker's answers, where all of it has been read ahead; None where it has not."""
        answers = self._fill.fill_at_once(out_of_range.to_fill(classified, wait_s=0.0))
        if answers is not None:
            self._telemetry.count(GATEWAY_OUT_OF_RANGE, len(classified), outcome=OutOfRange.FILL.name.lower())
        return answers

    async def _answers(self, out_of_range: _OutOfRange) -> dict[PartitionKey, FilledPartition]:
        """Return what replaces the broker's answers; those that stand are left out."""
        request, began_s = out_of_range.request, self._clock.monotonic_s()
        asker = out_of_range.exchange.connection.asker
        patience = decide_patience(
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            local_bytes=out_of_range.local_bytes,
            remote_max_wait_ms=self._remote_max_wait_ms,
        )
        while True:
            max_wait_s = request.max_wait_ms / 1000
            classified = await self._classifier.classify(out_of_range.asked, asker, max_wait_s=max_wait_s)
            wait_s = _left_s(patience.for_first, began_s, self._clock)
            answers = await self._fill.fill(out_of_range.to_fill(classified, wait_s=wait_s))
            for key, one in classified.items():
                if one.verdict in _TRIED_AGAIN or key in out_of_range.hidden:
                    answers.setdefault(key, _ASKED_AGAIN)
            if out_of_range.withheld or not _is_held(out_of_range, classified, answers):
                break
            until_s = began_s + self._hold_s(out_of_range, answers, patience)
            if not await self._has_grown(classified.values(), until_s, out_of_range.exchange.upstream):
                break
        for one in classified.values():
            self._telemetry.count(GATEWAY_OUT_OF_RANGE, outcome=one.verdict.name.lower())
        if not self._classifier.is_still_of(classified, asker):
            return dict.fromkeys(out_of_range.asked, _ASKED_AGAIN)
        return {**answers, **out_of_range.withheld}

    def _hold_s(
        self, out_of_range: _OutOfRange, answers: Mapping[PartitionKey, FilledPartition], patience: Patience
    ) -> float:
        hold_s = patience.hold
        if any(answer.error_code != NO_ERROR for answer in answers.values()):
            # An error is no long poll: a client that would wait for minutes is not to try again so late.
            hold_s = min(hold_s, self._remote_max_wait_ms / 1000)
        return min(hold_s, _BESIDE_BROKER_S) if out_of_range.is_beside_others else hold_s

    async def _has_grown(self, classified: Collection[Classified], until_s: float, upstream: Upstream) -> bool:
        """Return True as soon as more is remote of a partition that has nothing else, or False at ``until_s``, and once the
        client is gone."""
        mounted = [one for one in classified if one.offsets is not None and one.offsets.is_mounted]
        while (left_s := until_s - self._clock.monotonic_s()) > 0:
            is_last = not mounted or left_s < 1.5 * _TURN_S  # what is found at the very end comes too late to be read
            await self._clock.sleep(left_s if is_last else _TURN_S)
            if is_last or upstream.is_client_gone:
                return False
            if await self._classifier.has_any_grown(mounted, left_s - _TURN_S):
                return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutOfRange:
    """A Fetch, and what was ``asked`` of the partitions that the broker has answered OFFSET_OUT_OF_RANGE, and of those among
    ``hidden``, of which it has answered what no client is to see; ``withheld`` is answered already.  ``is_beside_others``: the
    client asks for partitions as well of which the broker has said nothing wrong."""

    exchange: Exchange
    request: FetchRequest
    fetched: FetchResponse
    asked: Mapping[PartitionKey, FetchPartition]
    withheld: Mapping[PartitionKey, FilledPartition] = field(default_factory=dict)
    hidden: frozenset[PartitionKey] = frozenset()
    is_beside_others: bool = False

    @property
    def local_bytes(self) -> int:
        """Return what the client gets of the broker's records."""
        return sum(row.records_bytes for row in self.fetched.partitions if row.key not in self.hidden)

    def to_fill(self, classified: Mapping[PartitionKey, Classified], *, wait_s: float) -> FillRequest:
        """Return those of ``classified`` that the remote tier has, or that end there."""
        return FillRequest(
            exchange=self.exchange,
            request=self.request,
            local_bytes=self.local_bytes,
            asked=self.asked,
            classified={key: one for key, one in classified.items() if one.verdict in ANSWERED},
            wait_s=wait_s,
        )


def _replaced(answered: Answered, answers: Mapping[PartitionKey, FilledPartition]) -> Rewritten:
    throttle_ms = max((one.throttle_ms for one in answers.values()), default=0)
    changes = throttling(answered.fetched, throttle_ms)
    for row in answered.rows:
        answer = answers.get(row.key)
        if answer is not None:
            changes += replacing(answered.version, row, answer)
    # The addresses stand behind all partitions.
    return splice(answered.response, [*changes, *answered.addresses])


def _left_s(of_s: float, began_s: float, clock: Clock) -> float:
    return max(of_s - (clock.monotonic_s() - began_s), 0.0)


def _is_held(
    out_of_range: _OutOfRange,
    classified: Mapping[PartitionKey, Classified],
    answers: Mapping[PartitionKey, FilledPartition],
) -> bool:
    """Return whether the client would get nothing that it can go on with."""
    if any(answer.records_bytes for answer in answers.values()):
        return False
    partitions = out_of_range.fetched.partitions
    if any(partition.error_code not in (NO_ERROR, OFFSET_OUT_OF_RANGE) for partition in partitions):
        return False
    return all(one.verdict is not OutOfRange.STANDS or key in out_of_range.hidden for key, one in classified.items())

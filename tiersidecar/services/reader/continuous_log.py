"""A partition as one log: remote as far as the remote tier reaches, the broker's own from there on.

Where the remote tier has not got what lies before its end (expired before it was copied, or lost), the broker may still have
it, and serves it. Local records come by Fetch with the caller's credentials, never from files, which also have records above
the high watermark.

Of a compacted topic it is the other way round, as for a client of the gateway: remote is only what the broker has no more. Each
tier has its own cleaner, and where copies stand still the broker's may have removed a tombstone of which the remote tier still
has the key's value.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from tiersidecar.domain.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    HistoryChangedError,
    OffsetBetweenTiersError,
    OffsetOutOfRangeError,
    TiersidecarError,
    TruncatedDataError,
)
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.ports.broker import Credentials, LocalBatches, ReadLocal
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.pins import PendingCopies
from tiersidecar.reading.border_walks import BorderWalks
from tiersidecar.reading.remote_log_reader import FetchedBatches, RemoteBatches, RemoteLogReader
from tiersidecar.reading.segment_lookup import History
from tiersidecar.services.reader.border_moves import BORDER_LOOKS, BorderMoves
from tiersidecar.services.reader.broker_batches import BrokerPart, part_of
from tiersidecar.services.reader.compacted_topics import CompactedTopics

_FETCH_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """A caller's read of a partition: from ``offset`` to ``stop_offset`` (exclusive), or to the present end."""

    caller: Credentials
    partition: TopicIdPartition
    offset: int
    stop_offset: int | None = None
    read_committed: bool = False


@dataclass(frozen=True, slots=True)
class _Decided:
    """The offset (exclusive) up to which the remote tier can be read, and the aborted transactions with markers past it.
    ``missing``: a transaction is open at the border, and the broker does not have what follows."""

    stop: int
    beyond: tuple[AbortedTransaction, ...] = ()
    missing: OffsetOutOfRangeError | None = None


class ContinuousLog:
    """Reads of both tiers; only of the remote one without ``local``.  ``pending`` knows what is in neither for now, and
    ``compacted`` which topics are compacted; without it none is."""

    def __init__(
        self,
        *,
        reader: RemoteLogReader,
        local: ReadLocal | None,
        blocking: Blocking,
        pending: PendingCopies | None = None,
        compacted: CompactedTopics | None = None,
    ) -> None:
        self._reader = reader
        self._local = local
        self._blocking = blocking
        self._pending = pending
        self._compacted = compacted
        self._walks = BorderWalks()

    async def read_batches(self, read: LogRead, *, max_bytes: int) -> FetchedBatches:
        """Return one bounded answer, of one tier: it ends at the border at the latest, and begins there where cleaning has left
        nothing remote before it.

        Raises:
            As :meth:`RemoteLogReader.read_batches` and :meth:`ReadLocal.fetch`; and
            OffsetBetweenTiersError: the broker has dropped what the remote tier does not have yet.
        """
        for moves_left in reversed(range(BORDER_LOOKS)):
            border = await self._border(read, read.offset, (await self._reader.bounds(read.partition)).end)
            nothing: FetchedBatches | None = None
            if self._local is None or read.offset < border:
                found = await self._read_remote(read, border, max_bytes)
                if found.slices or self._local is None or (read.stop_offset is not None and read.stop_offset <= border):
                    return found
                nothing = found  # cleaning has left nothing up to the border; an empty answer would say that the log ends here
            offset = read.offset if nothing is None else border
            try:
                return await self._read_local(self._local, replace(read, offset=offset), max_bytes)
            except OffsetOutOfRangeError as error:
                if nothing is not None and offset >= error.start:
                    return nothing  # this broker has not got that far yet
                if offset >= error.start or not moves_left or await self._is_deleted(read.partition, offset):
                    raise await self._refusal(read, offset, error) from error
        raise AssertionError("the last move returns or raises")

    async def stream_batches(self, read: LogRead) -> AsyncGenerator[RemoteBatches, None]:
        """Yield all of it.  Close it when you leave before its end.

        Raises:
            As :meth:`RemoteLogReader.stream_batches` and :meth:`ReadLocal.fetch`; and
            OffsetBetweenTiersError: the broker has dropped what the remote tier does not have yet.
        """
        next_offset, moves = read.offset, BorderMoves()
        given: History | None = None
        while True:
            history = await self._history_after(read, given, next_offset)
            missing: OffsetOutOfRangeError | None = None
            border = await self._border(read, next_offset, history.end)
            if self._local is None or next_offset < border:
                stop = border if read.stop_offset is None else min(border, read.stop_offset)
                given = history
                try:
                    decided = await self._decided(read, history, stop)
                    async with aclosing(self._remote(read, next_offset, decided, history)) as parts:
                        async for part in parts:
                            next_offset = part.batches.next_offset
                            yield part
                except HistoryChangedError:
                    if not moves.may_look_again(next_offset):
                        raise
                    continue  # the remote tier may end earlier now, and other transactions be aborted
                except OffsetOutOfRangeError as error:
                    if self._local is None or await self._is_deleted(read.partition, next_offset):
                        raise
                    missing = error
                else:
                    if decided.missing is not None:
                        if moves.may_look_again(next_offset):
                            continue  # the remote tier may have got it meanwhile
                        raise await self._refusal(read, decided.missing.offset, decided.missing) from decided.missing
                    if self._local is None or decided.stop < stop:
                        return
                    next_offset = max(next_offset, stop)
            if read.stop_offset is not None and next_offset >= read.stop_offset:
                return
            await self._history_after(read, given, next_offset)
            last_epoch = NO_EPOCH if next_offset == read.offset else _epoch_before(next_offset, history)
            try:
                async with aclosing(self._of_broker(self._local, read, next_offset, last_epoch)) as parts:
                    async for part in parts:
                        next_offset, missing = part.batches.next_offset, None
                        yield part
            except OffsetOutOfRangeError as error:
                if missing is not None:
                    raise missing from error
                # The broker may have trimmed, once it was remote, what was local at the first look.
                if next_offset >= error.start or await self._is_deleted(read.partition, next_offset):
                    raise await self._refusal(read, next_offset, error) from error
                if not moves.may_look_again(next_offset):
                    raise await self._refusal(read, next_offset, error) from error
                if read.stop_offset is None:
                    read = replace(read, stop_offset=error.stop)  # one that trims overtake for ever would have no end
            else:
                return

    async def start_offset(self, caller: Credentials, partition: TopicIdPartition) -> Offset:
        """Return the first offset of both tiers.

        Raises:
            OffsetBetweenTiersError: the log begins in what is in neither tier for now.
        """
        bounds = await self._reader.bounds(partition)
        if self._local is None:
            return bounds.start
        try:
            start = (await self._local.find_offset(caller, partition, -2)).offset
        except (BrokerRefusedError, BrokerUnreachableError):
            if bounds.start < bounds.end:
                return bounds.start  # only the leader knows whether it still has what came before
            raise
        if bounds.start < bounds.end:
            return Offset(max(min(bounds.start, start), bounds.log_start))
        if start > max(bounds.log_start, 0):
            bounds = await self._reader.current_bounds(partition)
            if bounds.start < bounds.end:
                return Offset(max(min(bounds.start, start), bounds.log_start))
        if bounds.log_start < start and await self.is_pending(partition, start):
            raise OffsetBetweenTiersError(
                subject=str(partition), offset=bounds.end, remote_end=bounds.end, local_start=start
            )
        if start < bounds.log_start:
            # After a crash the broker's log start is that of a minute ago; the broker has at most this much of what is deleted.
            start = max(start, min(bounds.log_start, await self.end_offset(caller, partition)))
        return start

    async def is_pending(self, partition: TopicIdPartition, local_start: int) -> bool:
        """Return whether pins hold what the broker has deleted below ``local_start``, and the remote tier is yet to get."""
        return self._pending is not None and await self._pending.is_pending(partition, below=local_start)

    async def end_offset(self, caller: Credentials, partition: TopicIdPartition) -> Offset:
        """Return the high watermark; without a broker to ask, the end of the remote tier."""
        if self._local is None:
            return (await self._reader.bounds(partition)).end
        return (await self._local.find_offset(caller, partition, -1)).offset

    # -- the remote tier, and its border

    async def _read_remote(self, read: LogRead, border: Offset, max_bytes: int) -> FetchedBatches:
        stop_offset = border if read.stop_offset is None else min(border, read.stop_offset)
        try:
            return await self._reader.read_batches(
                read.partition, read.offset, max_bytes=max_bytes, stop_offset=stop_offset
            )
        except OffsetOutOfRangeError as missing:
            if self._local is None or await self._is_deleted(read.partition, read.offset):
                raise
            try:
                return await self._read_local(self._local, read, max_bytes)
            except OffsetOutOfRangeError:
                raise missing from None

    async def _border(self, read: LogRead, offset: int, remote_end: Offset) -> Offset:
        """Return the offset (exclusive) up to which the remote tier is read, from ``offset`` on."""
        if self._local is None or self._compacted is None or not await self._compacted.has(read.partition.topic):
            return remote_end
        try:
            # A follower, too, answers this, while only the leader lists offsets.
            await self._fetch(self._local, read, offset, max_bytes=1, last_fetched_epoch=NO_EPOCH)
        except OffsetOutOfRangeError as error:
            return min(remote_end, Offset(error.start)) if offset < error.start else remote_end
        return min(remote_end, Offset(offset))

    async def _history_after(self, read: LogRead, given: History | None, next_offset: int) -> History:
        """Return the present history.

        Raises:
            HistoryChangedError: the reader has got remote records below ``next_offset``, by the history ``given``, that are not
                of this one: its next records do not follow those.
        """
        history = (await self._reader.bounds(read.partition)).history
        if given is not None and not given.agrees(history.lineage, read.offset, min(next_offset, given.end)):
            raise HistoryChangedError(subject=str(read.partition), end_offset=next_offset)
        return history

    def _remote(
        self, read: LogRead, offset: int, decided: _Decided, history: History
    ) -> AsyncGenerator[RemoteBatches, None]:
        return self._reader.stream_batches(
            read.partition,
            offset,
            stop_offset=decided.stop,
            read_committed=read.read_committed,
            aborted_beyond=decided.beyond,
            history=history,
        )

    async def _decided(self, read: LogRead, history: History, stop: int) -> _Decided:
        """Return how far below ``stop`` the remote tier can be read, which ends where ``history`` does (S-156).

        While a transaction is open at the border, no end of any is reported (:class:`BorderWalks`).
        """
        if not read.read_committed:
            return _Decided(stop)
        end_offset = history.end
        stable = await self._reader.last_stable_offset(read.partition)
        if self._local is None or stop <= stable:
            return _Decided(min(stop, stable))
        open_at_end = await self._reader.open_at(read.partition, end_offset)
        fetch = partial(self._fetch_bytes, self._local, read)
        try:
            beyond = await self._walks.aborted_beyond(read.partition, history, open_at_end, fetch)
        except OffsetOutOfRangeError as error:
            return _Decided(stable, missing=error if end_offset < error.start else None)
        return _Decided(stable) if beyond is None else _Decided(stop, beyond)

    async def _is_deleted(self, partition: TopicIdPartition, offset: int) -> bool:
        """Return whether no reader may have ``offset`` any more, whichever tier still has it."""
        return offset < (await self._reader.bounds(partition)).log_start

    # -- the broker's own log

    async def _read_local(self, local: ReadLocal, read: LogRead, max_bytes: int) -> FetchedBatches:
        fetched = await self._fetch_undeleted(local, read, read.offset, max_bytes=max_bytes)
        cut = await self._cut(fetched, read, read.offset, _stop(read, fetched))
        if cut is None:
            return FetchedBatches(slices=(), next_offset=Offset(read.offset), aborted_transactions=None)
        batches = cut.part.batches
        return FetchedBatches(slices=(batches,), next_offset=batches.next_offset, aborted_transactions=None)

    async def _of_broker(
        self, local: ReadLocal, read: LogRead, offset: int, last_epoch: LeaderEpoch
    ) -> AsyncGenerator[RemoteBatches, None]:
        """Yield the broker's batches.  ``last_epoch`` is that of the record right before ``offset`` in the reader's data: a
        broker may know of an election before the lineage does."""
        stop: int | None = None
        while stop is None or offset < stop:
            fetched = await self._fetch_undeleted(
                local, read, offset, max_bytes=_FETCH_BYTES, last_fetched_epoch=last_epoch
            )
            stop = _stop(read, fetched) if stop is None else stop
            cut = await self._cut(fetched, read, offset, stop)
            if cut is None:
                return
            offset, last_epoch = cut.part.batches.next_offset, cut.last_epoch
            yield cut.part

    async def _fetch_undeleted(
        self,
        local: ReadLocal,
        read: LogRead,
        offset: int,
        *,
        max_bytes: int,
        last_fetched_epoch: LeaderEpoch = NO_EPOCH,
    ) -> LocalBatches:
        """Fetch, and check the start: after a crash a broker's log start is a minute old, and its records may be deleted.

        Raises:
            OffsetOutOfRangeError: ``offset`` is.
        """
        fetched = await self._fetch(local, read, offset, max_bytes=max_bytes, last_fetched_epoch=last_fetched_epoch)
        try:
            header = read_batch_header(fetched.records, where=f"Fetch of {read.partition}")
        except TruncatedDataError:
            return fetched  # nothing
        self._reader.check_batch_start(
            read.partition, offset, header.partition_leader_epoch, Offset(fetched.high_watermark)
        )
        return fetched

    async def _fetch(
        self,
        local: ReadLocal,
        read: LogRead,
        offset: int,
        *,
        max_bytes: int,
        last_fetched_epoch: LeaderEpoch,
    ) -> LocalBatches:
        return await local.fetch(
            read.caller,
            read.partition,
            offset,
            max_bytes=max_bytes,
            read_committed=read.read_committed,
            last_fetched_epoch=last_fetched_epoch,
        )

    async def _fetch_bytes(
        self, local: ReadLocal, read: LogRead, offset: int, max_bytes: int, last_epoch: LeaderEpoch
    ) -> LocalBatches:
        return await self._fetch(local, read, offset, max_bytes=max_bytes, last_fetched_epoch=last_epoch)

    async def _cut(self, fetched: LocalBatches, read: LogRead, offset: int, stop: int) -> BrokerPart | None:
        return await self._blocking.run(part_of, fetched, read.partition, offset, stop, read.read_committed)

    async def _refusal(self, read: LogRead, offset: int, error: OffsetOutOfRangeError) -> TiersidecarError:
        """Return the error for an offset that the broker does not have.  Between the tiers it is not "out of range", which
        would make the client skip records that may be on their way."""
        bounds = await self._reader.current_bounds(read.partition)
        has_remote = bounds.start < bounds.end
        # What was trimmed because it was remote is somewhere, though the metadata do not show it.
        is_pending = not has_remote and (offset < bounds.held or await self.is_pending(read.partition, error.start))
        if max(bounds.start, bounds.log_start) <= offset < error.start and (has_remote or is_pending):
            return OffsetBetweenTiersError(
                subject=str(read.partition), offset=offset, remote_end=bounds.end, local_start=error.start
            )
        if not has_remote:
            return error
        start = max(bounds.start, min(bounds.log_start, error.stop))
        return OffsetOutOfRangeError(subject=str(read.partition), offset=offset, start=start, stop=error.stop)


def _epoch_before(offset: int, history: History) -> LeaderEpoch:
    """Return the leader epoch of the record right before ``offset``; -1 where it is not known."""
    epoch = history.lineage.epoch_for_offset(offset - 1)
    return NO_EPOCH if epoch is None else epoch


def _stop(read: LogRead, fetched: LocalBatches) -> int:
    """Return where the read ends: what comes after the first look at the log is for the next read."""
    end_offset = fetched.last_stable_offset if read.read_committed else fetched.high_watermark
    return end_offset if read.stop_offset is None else min(end_offset, read.stop_offset)

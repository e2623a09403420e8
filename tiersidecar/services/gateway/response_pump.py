"""From a broker to its client: matches each answer with the request that is next, and lets it pass or collects it."""

from __future__ import annotations

import struct
from typing import Protocol

from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.services.gateway.exchange import Buffer, PassesLarge, Passing
from tiersidecar.services.gateway.limits import ResponseMemory
from tiersidecar.services.gateway.pending import Fate, Pending, PendingQueue

_SIZE_BYTES = 4
_HEAD = struct.Struct(">ii")
_FREE_BYTES = 256 * 1024
"""What each connection may collect without asking: one read's worth, so that small answers never wait behind large ones, and
an answer that a rewrite asked for never waits for memory that the rewrite itself holds."""
_LARGE_BYTES = 64 * 1024
"""From here on it matters that nobody waits for the end of a response, and that its memory is not ours."""


class ResponseSink(Protocol):
    """Where responses go, in order."""

    def forward_response(self, data: memoryview) -> None:
        """Bytes for the client."""

    def collected(self, pending: Pending, frame: memoryview, memory_bytes: int) -> None:
        """A whole response, with its size; ``memory_bytes`` of the response memory are the sink's to give back."""

    def passed(self, pending: Pending) -> None:
        """A whole response has passed that a rewrite looked at on its way."""

    def answered(self, pending: Pending) -> None:
        """The request is no longer in flight."""

    def room_found(self) -> None:
        """The pump takes bytes again."""


class ResponsePump:
    """Pops from ``pending`` when an answer is complete, so that what is behind it waits."""

    def __init__(self, sink: ResponseSink, pending: PendingQueue, memory: ResponseMemory) -> None:
        self._sink, self._pending, self._memory = sink, pending, memory
        self._passing = 0
        self._passes: Passing | None = None  # what looks at the bytes that pass
        self._kept = bytearray()
        self._collecting: bytearray | None = None
        self._filled = 0
        self._waits_for_room = 0

    @property
    def takes_bytes(self) -> bool:
        """Whether there is use for more from the broker."""
        return self._waits_for_room == 0

    def close(self) -> None:
        """Give back the response memory; nothing may be fed after."""
        if self._waits_for_room:
            self._memory.forget(self._room)
        if self._collecting is not None:
            self._memory.give_back(_taken_for(self._collecting))
            self._collecting = None

    def flush_own(self) -> None:
        """Send the answers of ours that are next."""
        while self._pending and self._pending[0].fate is Fate.OWN:
            pending = self._pending.popleft()
            self._sink.forward_response(memoryview(pending.frame))
            self._sink.answered(pending)

    def feed(self, data: Buffer) -> None:
        """Take what the broker has sent.

        Raises:
            MalformedMessageError: it answers what nobody asked for.
        """
        if self._kept:
            self._kept += data
            if self._waits_for_room:
                return
            data = bytes(self._kept)
            self._kept.clear()
        self._cut(memoryview(data))

    def _cut(self, view: memoryview) -> None:
        size, at, run = len(view), 0, 0
        while at < size:
            if self._passes is not None:
                at += self._look_and_pass(self._passes, view[at:])
                run = at
                continue
            if self._passing:
                step = min(self._passing, size - at)
                self._passing -= step
                at += step
                if self._passing == 0:
                    self._forward(view[run:at])
                    run = at
                    self._done()
                continue
            if self._collecting is not None:
                at += self._collect(self._collecting, view[at:])
                run = at
                continue
            self._forward(view[run:at])
            run = at
            taken = self._begin(view[at:])
            if taken is None:
                self._kept += view[at:]
                return
            at += taken
            run = at
        self._forward(view[run:at])

    def _forward(self, data: memoryview) -> None:
        if data:
            self._sink.forward_response(data)

    def _begin(self, frame: memoryview) -> int | None:
        """Bytes that are dealt with; None while too few are there, or no memory."""
        if len(frame) < _SIZE_BYTES:
            return None
        if not self._pending:
            raise MalformedMessageError("an answer to no request")
        first = self._pending[0]
        (size,) = struct.unpack_from(">i", frame)
        if first.fate is Fate.OPAQUE and size >= 0:
            self._passing = _SIZE_BYTES + size
            return 0
        if size < 4:
            raise MalformedMessageError(f"a response of {size} bytes")
        if len(frame) < _HEAD.size:
            return None
        _, correlation_id = _HEAD.unpack_from(frame)
        if correlation_id != first.correlation_id:
            raise MalformedMessageError(f"an answer to request {correlation_id}, {first.correlation_id} is next")
        if first.fate is Fate.PASS:
            self._passing = _SIZE_BYTES + size
            return 0
        return self._begin_to_rewrite(first, frame, _SIZE_BYTES + size)

    def _look_and_pass(self, passes: Passing, data: memoryview) -> int:
        step = min(self._passing, len(data))
        self._passing -= step
        for piece in passes.feed(data[:step]):
            self._sink.forward_response(memoryview(piece))
        if self._passing == 0:
            self._passes = None
            pending = self._pending.popleft()
            self._sink.passed(pending)
            self._sink.answered(pending)
            self.flush_own()
        return step

    def _begin_to_rewrite(self, first: Pending, frame: memoryview, total: int) -> int | None:
        rewrite: object = first.rewrite
        if total > _LARGE_BYTES and first.exchange is not None and isinstance(rewrite, PassesLarge):
            self._passes = rewrite.passing(first.exchange, total)
            if self._passes is not None:
                self._passing = total
                return 0
        return self._begin_to_collect(frame, total)

    def _begin_to_collect(self, frame: memoryview, total: int) -> int | None:
        if len(frame) >= total:
            self._give(memoryview(bytes(frame[:total])), 0)
            return total
        if total > _FREE_BYTES and not self._memory.take(total, self._room):
            self._waits_for_room = total
            return None
        self._collecting, self._filled = bytearray(total), 0
        return 0

    def _room(self) -> None:
        self._collecting, self._filled = bytearray(self._waits_for_room), 0
        self._waits_for_room = 0
        self._sink.room_found()

    def _collect(self, frame: bytearray, data: memoryview) -> int:
        step = min(len(frame) - self._filled, len(data))
        frame[self._filled : self._filled + step] = data[:step]
        self._filled += step
        if self._filled == len(frame):
            self._collecting = None
            self._give(memoryview(frame), _taken_for(frame))
        return step

    def _give(self, frame: memoryview, memory_bytes: int) -> None:
        pending = self._pending.popleft()
        self._sink.collected(pending, frame, memory_bytes)
        self._sink.answered(pending)
        self.flush_own()

    def _done(self) -> None:
        self._sink.answered(self._pending.popleft())
        self.flush_own()


def _taken_for(frame: bytearray) -> int:
    return len(frame) if len(frame) > _FREE_BYTES else 0

"""From a client to its broker: cuts requests apart by their sizes, and lets them pass or hands them over.

Bytes of requests that nobody reads go on in the pieces in which they came.  Not a coroutine: the caller feeds it, and holds it
when nothing more may pass for now.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.services.gateway.api_keys import ApiKey
from tiersidecar.services.gateway.exchange import Buffer, Rewrites
from tiersidecar.services.gateway.limits import GatewayLimits
from tiersidecar.services.gateway.request_heads import (
    HEAD_BYTES,
    LEAST_REQUEST_BYTES,
    produce_acks,
    read_head,
    sasl_mechanism,
)
from tiersidecar.services.gateway.sasl_phase import MOST_TOKEN_BYTES, SaslPhase

_SIZE_BYTES = 4
_MOST_HANDSHAKE_BYTES = 65_536


class RequestSink(Protocol):
    """Where requests go.  ``forward`` has the bytes, in order; the others say what they are, or take a request out of them.

    What is given is read over as soon as the call returns."""

    def forward(self, data: memoryview) -> None:
        """Bytes for the broker."""

    def request_begins(self, api_key: int, api_version: int, correlation_id: int) -> None:
        """One that is answered, and that passes without being read."""

    def whole_request(self, frame: memoryview) -> None:
        """One that the rewrite of its API reads; nothing of it is forwarded."""

    def unknown_api_versions(self, correlation_id: int) -> None:
        """An ApiVersions request that is too new for us; nothing of it is forwarded."""

    def token_begins(self) -> None:
        """A SASL token without a header."""

    def tokens_end(self) -> None:
        """The first request after SASL tokens without headers."""


@dataclass(frozen=True, slots=True)
class _Needs:
    """The frame cannot be judged before this many bytes of it are there."""

    total_bytes: int


@dataclass(frozen=True, slots=True)
class _Passes:
    total_bytes: int


@dataclass(frozen=True, slots=True)
class _Taken:
    """Out of the stream; the whole frame is there, and is given to the sink by ``give``."""

    total_bytes: int
    give: Callable[[memoryview], None]


class RequestPump:
    """``deadline_s`` is when the frame under way must have arrived; None between frames, and while held."""

    def __init__(
        self, sink: RequestSink, rewrites: Rewrites, limits: GatewayLimits, monotonic_s: Callable[[], float]
    ) -> None:
        self._sink, self._limits, self._monotonic_s = sink, limits, monotonic_s
        self._rewrites = {key: (rewrite, rewrite.versions()) for key, rewrite in rewrites.items()}
        self._sasl = SaslPhase()
        self._passing = 0  # bytes of the frame under way that are still to pass
        self._kept = bytearray()  # the beginning of a frame that cannot be judged yet, or all that came while held
        self._wanted = 0  # of the kept bytes
        self._held = False
        self._is_let_in = False
        self.deadline_s: float | None = None

    def let_in(self) -> None:
        """The broker has answered what it answers only to who is logged in."""
        self._is_let_in = True

    @property
    def takes_bytes(self) -> bool:
        """Whether there is use for more from the client: held, only for what is left of a request that has begun."""
        return not self._held or self._passing > 0

    def hold(self) -> None:
        """After the request in hand, let nothing pass until released."""
        self._held = True

    def release(self) -> None:
        """Go on, first with what came meanwhile.  Raises as :meth:`feed`."""
        self._held = False
        self._wanted = 0
        self.feed(b"")

    def feed(self, data: Buffer) -> None:
        """Take what the client has sent.

        Raises:
            MalformedMessageError: no Kafka client sends this.
        """
        if self._kept:
            self._kept += data
            if (self._held and not self._passing) or len(self._kept) < self._wanted:
                return
            data = bytes(self._kept)
            self._kept.clear()
        self._cut(memoryview(data))
        unfinished = self._passing > 0 or (bool(self._kept) and not self._held)
        if not unfinished:
            self.deadline_s = None
        elif self.deadline_s is None:
            self.deadline_s = self._deadline_s()

    def _cut(self, view: memoryview) -> None:
        size, at, run = len(view), 0, 0
        while at < size:
            if self._passing:
                step = min(self._passing, size - at)
                self._passing -= step
                at += step
                if self._passing == 0:
                    self.deadline_s = None
                continue
            if self._held:
                self._keep(view[at:], 0)
                break
            match self._judge(view[at:]):
                case _Passes(total_bytes):
                    self._passing = total_bytes
                case _Needs(total_bytes):
                    self._keep(view[at:], total_bytes)
                    break
                case _Taken(total_bytes, give):
                    self._forward(view[run:at])
                    run = at + total_bytes
                    give(view[at:run])
                    at = run
                    self.deadline_s = None
        self._forward(view[run:at])

    def _forward(self, data: memoryview) -> None:
        if data:
            self._sink.forward(data)

    def _keep(self, data: memoryview, wanted: int) -> None:
        self._kept += data
        self._wanted = wanted

    def _deadline_s(self) -> float:
        expected = self._passing or self._wanted
        allowed_s = self._limits.request_timeout_s + expected / self._limits.slowest_bytes_per_s
        return self._monotonic_s() + allowed_s

    def _judge(self, frame: memoryview) -> _Needs | _Passes | _Taken:
        if len(frame) < _SIZE_BYTES:
            return _Needs(_SIZE_BYTES)
        (size,) = struct.unpack_from(">i", frame)
        if self._sasl.is_on:
            verdict = self._judge_token(frame, size)
            if verdict is not None:
                return verdict
            self._sink.tokens_end()
        if not LEAST_REQUEST_BYTES <= size <= self._limits.socket_request_max_bytes:
            limit = self._limits.socket_request_max_bytes
            raise MalformedMessageError(f"a request of {size} bytes, the limit is {limit}")
        if len(frame) < HEAD_BYTES:
            return _Needs(HEAD_BYTES)
        return self._judge_request(frame)

    def _judge_token(self, frame: memoryview, size: int) -> _Needs | _Passes | None:
        if not 0 <= size <= MOST_TOKEN_BYTES:
            raise MalformedMessageError(f"a SASL token of {size} bytes, the limit is {MOST_TOKEN_BYTES}")
        match self._sasl.takes(frame):
            case True:
                self._sink.token_begins()
                return _Passes(_SIZE_BYTES + size)
            case None:
                return _Needs(HEAD_BYTES)
            case False:
                return None

    def _judge_request(self, frame: memoryview) -> _Needs | _Passes | _Taken:
        size, api_key, api_version, correlation_id = read_head(frame, 0)
        total = _SIZE_BYTES + size
        known = self._rewrites.get(api_key)
        if known is not None:
            rewrite, versions = known
            if api_version not in versions:
                return self._unknown_version(frame, total)
            if rewrite.reads_request:
                return self._whole(frame, total, self._sink.whole_request)
        if api_key == ApiKey.SASL_HANDSHAKE and api_version == 0:
            if total > _MOST_HANDSHAKE_BYTES:
                raise MalformedMessageError(f"a SaslHandshake of {size} bytes")
            if len(frame) < total:
                return _Needs(total)
            self._sasl.begin(sasl_mechanism(frame[:total]))
        if api_key == ApiKey.PRODUCE:
            acks = produce_acks(frame[:total], api_version)
            if acks is None:
                if len(frame) >= total:
                    raise MalformedMessageError("a Produce request that ends before its acks")
                return _Needs(len(frame) + 1)
            if acks == 0:
                return _Passes(total)
        self._sink.request_begins(api_key, api_version, correlation_id)
        return _Passes(total)

    def _unknown_version(self, frame: memoryview, total: int) -> _Needs | _Taken:
        _, api_key, api_version, correlation_id = read_head(frame, 0)
        if api_key != ApiKey.API_VERSIONS:
            raise MalformedMessageError(f"API {api_key} version {api_version}, which was not offered")
        return self._whole(frame, total, lambda _: self._sink.unknown_api_versions(correlation_id))

    def _whole(self, frame: memoryview, total: int, give: Callable[[memoryview], None]) -> _Needs | _Taken:
        limits = self._limits
        limit = limits.max_collected_request_bytes
        if not self._is_let_in:
            limit = min(limit, limits.max_first_request_bytes)
        if total > limit:
            when = "" if self._is_let_in else ", before the broker has answered any"
            raise MalformedMessageError(f"a request of {total} bytes where {limit} are the most{when}")
        return _Needs(total) if len(frame) < total else _Taken(total, give)

"""Fetch responses, looked at while they pass: for responses too large to wait for.

The size of a frame goes first, so nothing in it may grow or shrink.  Fields that must change are disabled in place: an
OFFSET_OUT_OF_RANGE becomes "no error, no records", after which a client asks again; records that may have been deleted become
zeros behind an error, after which it does, too; and the hints at brokers' own addresses
(NodeEndpoints, KIP-951) get a tag that no client knows, after which it asks for Metadata.  The layout is in
``fetch_responses``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from tiersidecar.formats.wire.cursor import Buffer, Cursor
from tiersidecar.formats.wire.fetch import (
    FIRST_WITH_SESSIONS,
    NO_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    PartitionKey,
    TopicKey,
    is_flexible,
    partition_layout,
    read_topic_key,
)
from tiersidecar.formats.wire.messages import MalformedMessageError, UnaskedAnswerError

_FRAME_HEAD_BYTES = 8
"""Size and correlation id."""
_HEAD = Struct(">hi")
_NO_ERROR, _TRY_AGAIN = NO_ERROR.to_bytes(2, "big"), NOT_LEADER_OR_FOLLOWER.to_bytes(2, "big")
_FIRST_WITH_NODE_ENDPOINTS = 16
_NODE_ENDPOINTS_TAG, _UNKNOWN_TAG = 0, b"\x7f"
_OFTEN_BYTES = 64 * 1024
"""Up to this size, parsing is tried again with each new piece; above it, only when the size has doubled."""
_MOST_KEPT_BYTES = 8 * 1024 * 1024
"""Size of the fields of one partition, aborted transactions included, and never its records."""

IsSuspect = Callable[[PartitionKey, int], bool]
"""Given a partition, and the log start offset that the broker returns with its records (-1 before version 5), returns whether
some of these may have been deleted."""
IsHidden = Callable[[PartitionKey], bool]


class FetchPassing:
    """Takes a whole frame in pieces, and returns the pieces to pass on: as many bytes in all, if later by a few.

    ``size_bytes`` counts the frame with its size.  ``found_out_of_range``, or what is suspect, and ``error_code``,
    ``session_id`` are of what has passed so far.  With ``hides_out_of_range`` off, that error stays.  Of partitions that
    ``is_hidden`` nothing passes but errors.  ``check`` is called with each partition before anything of it passes, and raises
    where it must not.
    """

    def __init__(
        self,
        version: int,
        size_bytes: int,
        *,
        hides_out_of_range: bool = True,
        is_suspect: IsSuspect | None = None,
        is_hidden: IsHidden | None = None,
        check: Callable[[PartitionKey], None] | None = None,
    ) -> None:
        self._version, self._left = version, size_bytes
        self._hides, self._is_suspect, self._check = hides_out_of_range, is_suspect, check
        self._is_hidden = is_hidden
        self._topic_key: TopicKey = ""
        self._blanks = False
        self._step = self._head
        self._topics = self._partitions = self._records = 0
        self._patch: tuple[int, bytes] | None = None
        # Without tagged fields, the end of a struct has no bytes.
        self._empty = () if is_flexible(version) else (self._partition_end, self._topic_end, self._tail)
        self._kept = bytearray()
        self._wanted = 0
        self.error_code = NO_ERROR
        self.session_id = 0
        self.found_out_of_range = False

    @property
    def is_done(self) -> bool:
        """Return whether the frame has ended."""
        return self._left == 0

    def feed(self, data: memoryview) -> Sequence[Buffer]:
        """Take ``data``, which is no more than what is left of the frame.

        Raises:
            MalformedMessageError: it is no Fetch response of this version.
        """
        self._left -= len(data)
        if len(data) <= self._records and self._left:
            self._records -= len(data)
            return (self._of_records(data),)
        passed: list[Buffer] = []
        if self._records:
            passed.append(self._of_records(data[: self._records]))
            data, self._records = data[self._records :], 0
        if self._kept:
            self._kept += data
            if len(self._kept) > _MOST_KEPT_BYTES:
                raise MalformedMessageError(f"fields of more than {_MOST_KEPT_BYTES} bytes in a Fetch response")
            if len(self._kept) < self._wanted and self._left:
                return passed
            data = memoryview(bytes(self._kept))
            self._kept.clear()
        self._walk(data, passed)
        return passed

    def _walk(self, data: memoryview, passed: list[Buffer]) -> None:
        cursor, at = Cursor(data, flexible=is_flexible(self._version)), 0
        while at < len(data) or (not self._records and self._step in self._empty):
            try:
                self._step(cursor)
            except UnaskedAnswerError:
                raise
            except MalformedMessageError:
                self._keep(data[at:])
                return
            self._pass_on(data, at, cursor.position, passed)
            at = min(cursor.position + self._records, len(data))
            passed.append(self._of_records(data[cursor.position : at]))
            self._records -= at - cursor.position
            cursor.position = at
        if not self._left and (self._records or self._step != self._end):
            raise MalformedMessageError("a Fetch response that ends too soon")

    def _of_records(self, data: memoryview) -> Buffer:
        return bytes(len(data)) if self._blanks else data

    def _keep(self, data: memoryview) -> None:
        """Keep ``data`` while too little is there to parse."""
        if not self._left:
            raise MalformedMessageError(f"no Fetch response of version {self._version}")
        self._kept += data
        self._wanted = 2 * len(data) if len(data) > _OFTEN_BYTES else 0

    def _pass_on(self, data: memoryview, start: int, stop: int, passed: list[Buffer]) -> None:
        if self._patch is None:
            passed.append(data[start:stop])
            return
        at, instead = self._patch
        passed += (data[start:at], instead, data[at + len(instead) : stop])
        self._patch = None

    # One step each: read by the cursor, or leave everything as it was and raise.

    def _head(self, cursor: Cursor) -> None:
        cursor.skip(_FRAME_HEAD_BYTES)
        cursor.skip_tagged_fields()
        cursor.skip(4)  # throttle_time_ms
        error_code, session_id = cursor.fixed(_HEAD) if self._version >= FIRST_WITH_SESSIONS else (NO_ERROR, 0)
        self._topics = cursor.array_length()
        self.error_code, self.session_id = error_code, session_id
        self._step = self._topic if self._topics > 0 else self._tail

    def _topic(self, cursor: Cursor) -> None:
        topic_key = read_topic_key(cursor, self._version)
        self._partitions = cursor.array_length()
        self._topic_key = topic_key
        self._step = self._partition if self._partitions > 0 else self._topic_end

    def _partition(self, cursor: Cursor) -> None:
        start = cursor.position
        partition, error_code, _, _, *rest = cursor.fixed(partition_layout(self._version))
        cursor.skip_structs(16)  # aborted_transactions
        if self._version >= 11:
            cursor.skip(4)  # preferred_read_replica
        length = cursor.uvarint() - 1 if cursor.flexible else cursor.int32()
        if self._check is not None:
            self._check((self._topic_key, partition))
        if error_code == OFFSET_OUT_OF_RANGE and self._hides:
            self.found_out_of_range = True
            self._patch = (start + 4, _NO_ERROR)
        self._blanks = False
        if length > 0 and self._is_suspect is not None:
            self._blanks = self._is_suspect((self._topic_key, partition), rest[0] if rest else -1)
        if error_code == NO_ERROR and self._is_hidden is not None:
            self._blanks = self._blanks or self._is_hidden((self._topic_key, partition))
        if self._blanks:
            self.found_out_of_range = True
            self._patch = (start + 4, _TRY_AGAIN)
        self._records = max(length, 0)
        self._step = self._partition_end

    def _partition_end(self, cursor: Cursor) -> None:
        cursor.skip_tagged_fields()
        self._partitions -= 1
        self._step = self._partition if self._partitions else self._topic_end

    def _topic_end(self, cursor: Cursor) -> None:
        cursor.skip_tagged_fields()
        self._topics -= 1
        self._step = self._topic if self._topics else self._tail

    def _tail(self, cursor: Cursor) -> None:
        node_endpoints = None
        if cursor.flexible:
            for _ in range(cursor.uvarint()):
                at, tag = cursor.position, cursor.uvarint()
                cursor.skip(cursor.uvarint())
                if tag == _NODE_ENDPOINTS_TAG and self._version >= _FIRST_WITH_NODE_ENDPOINTS:
                    node_endpoints = (at, _UNKNOWN_TAG)
        self._patch, self._step = node_endpoints, self._end

    def _end(self, cursor: Cursor) -> None:
        raise MalformedMessageError("bytes behind a Fetch response")

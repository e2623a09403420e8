"""Read single segments back from the store, with the checks of ``reconcile --deep``, as the metadata name them now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.adapters.stores.wrapped_store import WrappedStore
from tiersidecar.decide.reconcile_findings import Finding, FindingKind, Graces
from tiersidecar.decide.reconcile_segments import KINDS
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import main_path, read_custom_metadata
from tiersidecar.ports.store import Buffer, Store
from tiersidecar.reconcile.deep_check import DeepCheck, KeyRingOpener
from tiersidecar.reconcile.segment_check import OBJECT_COLUMNS, SegmentCheck, preceding_of

Preceding = Mapping[str, list[dict[str, Any]]]
"""By the key of a segment's objects without its suffix."""

_NO_GRACE = Graces(finding_ms=0, copy_ms=0)


class Verdict(StrEnum):
    """The result of reading one segment.  ``GONE``: its deletion began meanwhile.  ``UNFINISHED``: by its state it is not there
    whole, so there was nothing to read.  ``NOT_CHECKED``: its data key is not to be had, which says nothing of its content."""

    SOUND = "sound"
    DAMAGED = "damaged"
    NOT_CHECKED = "not-checked"
    GONE = "gone"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One segment, its findings, and how many bytes of the store were read for it."""

    segment: RemoteLogSegmentMetadata
    verdict: Verdict
    findings: tuple[Finding, ...]
    read_bytes: int


class ReadsAtPace(WrappedStore):
    """Passes everything on to ``store``; what is fetched waits for ``pace``, is counted, and ``note`` gets the sum."""

    def __init__(self, store: Store, pace: UploadPace, note: Callable[[int], None] = lambda _: None) -> None:
        super().__init__(store)
        self._pace, self._note = pace, note
        self.read_bytes = 0

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        left = len(byte_range)
        while left:
            left -= await self._pace.grant(left)
        found = await super().fetch_range(key, byte_range)
        self._count(len(found))
        return found

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        """Fetch a small object of unknown size: its bytes are counted against what is fetched next."""
        found = await super().fetch_object(key, max_bytes=max_bytes)
        left = len(found)
        while left:
            left -= await self._pace.grant(left)
        self._count(len(found))
        return found

    def _count(self, count: int) -> None:
        self.read_bytes += count
        self._note(self.read_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentVerifier:
    """Checks segments of one cluster in one store.  ``is_plain``: nothing compresses or encrypts, nor ever did."""

    store: ReadsAtPace
    key_prefix: str
    is_plain: bool
    open_key_ring: KeyRingOpener

    def preceding(self, partition: Iterable[RemoteLogSegmentMetadata]) -> Preceding:
        """Return what comes right before each segment of a partition, given all of them: it shows what is open there."""
        return preceding_of([self._row(segment) for segment in partition])

    async def verify(self, segment: RemoteLogSegmentMetadata, preceding: Preceding, now_ms: int) -> Verified:
        """Read all of ``segment``, which has ``preceding`` of its partition.

        Raises:
            StoreError: the store is away.
        """
        before = self.store.read_bytes
        if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            return Verified(segment=segment, verdict=Verdict.UNFINISHED, findings=(), read_bytes=0)
        findings = await self._findings(segment, preceding, now_ms)
        if not findings and None in (await self._objects(segment)).values():
            findings = await self._findings(segment, preceding, now_ms)  # an object went while it was read
        return Verified(
            segment=segment,
            verdict=_verdict(findings),
            findings=tuple(findings),
            read_bytes=self.store.read_bytes - before,
        )

    def key_of(self, segment: RemoteLogSegmentMetadata, kind: str) -> str:
        """Return where the object of ``kind`` is, one of :data:`~tiersidecar.decide.reconcile_segments.KINDS`."""
        return f"{self._stem(segment)}.{kind}"

    async def _findings(self, segment: RemoteLogSegmentMetadata, preceding: Preceding, now_ms: int) -> list[Finding]:
        row = self._row(segment)
        check = SegmentCheck(
            graces=_NO_GRACE,
            now_ms=max(now_ms, segment.event_timestamp_ms),  # another broker's clock may be ahead
            open_store=lambda: nullcontext(self.store),
            is_plain=self.is_plain,
            deep=DeepCheck(open_key_ring=self.open_key_ring),
        )
        return await check.check([{**row, **await self._objects(segment), "preceding": preceding.get(row["stem"])}])

    async def _objects(self, segment: RemoteLogSegmentMetadata) -> dict[str, int | None]:
        """Return the columns that say which objects there are."""
        found: dict[str, int | None] = {}
        for kind, name in zip(KINDS, OBJECT_COLUMNS, strict=True):
            try:
                stored = await self.store.head_object(self.key_of(segment, kind))
                found |= {f"{name}_bytes": stored.size_bytes, f"{name}_ms": stored.modified_ms}
            except ObjectNotFoundError:
                found |= {f"{name}_bytes": None, f"{name}_ms": None}
        return found

    def _row(self, segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
        topic_id_partition = segment.topic_id_partition
        state = int(segment.state)
        return {
            "stem": self._stem(segment),
            "topic": topic_id_partition.topic,
            "topic_id": format_uuid(topic_id_partition.topic_id),
            "topic_id_text": format_uuid(topic_id_partition.topic_id),
            "partition": topic_id_partition.partition,
            "segment_id": format_uuid(segment.remote_log_segment_id.uuid),
            "start_offset": segment.start_offset,
            "end_offset": segment.end_offset,
            "before": state,
            "after": state,
            "since_ms": segment.event_timestamp_ms,
            "segment_size_bytes": segment.segment_size_in_bytes,
            "remote_size_bytes": _custom(segment)[1],
            "is_topic_known": True,
            "is_topic_owned": True,
            "has_topics_name": True,
            "known_until": segment.end_offset,
            "epochs": ",".join(f"{epoch}:{start}" for epoch, start in segment.segment_leader_epochs),
            "foreign_bytes": None,
            "foreign_ms": None,
        }

    def _stem(self, segment: RemoteLogSegmentMetadata) -> str:
        prefix = _custom(segment)[0]
        path = main_path(segment.remote_log_segment_id, segment.start_offset)
        return (self.key_prefix if prefix is None else prefix) + path


def _verdict(findings: Sequence[Finding]) -> Verdict:
    if not findings:
        return Verdict.SOUND
    is_unknown = all(finding.kind is FindingKind.NOT_CHECKED for finding in findings)
    return Verdict.NOT_CHECKED if is_unknown else Verdict.DAMAGED


def _custom(segment: RemoteLogSegmentMetadata) -> tuple[str | None, int | None]:
    """Return object prefix and remote size, as far as recorded; custom metadata of another plugin say neither."""
    try:
        recorded = read_custom_metadata(segment.custom_metadata, where="custom metadata")
    except CorruptDataError:
        return None, None
    return recorded.recorded_prefix, recorded.remote_size

"""Turn rows of segments into findings, by the rules of :mod:`tiersidecar.decide.reconcile_segments`.

The store provides manifests, and a second look before anything is reported as missing or superfluous (U12).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from tiersidecar.decide.reconcile_findings import Finding, FindingKind, Graces, place_stopped_answering
from tiersidecar.decide.reconcile_segments import (
    KINDS,
    MANIFEST,
    Listed,
    ManifestFacts,
    SegmentRow,
    decide_segment,
    needs_manifest,
)
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, ObjectTooLargeError, StoreError
from tiersidecar.domain.ids import format_uuid as _segment_id
from tiersidecar.domain.ids import place_of
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.index_blob import ANY_SEGMENT
from tiersidecar.formats.aiven.manifest import Manifest, read_manifest
from tiersidecar.ports.store import Store
from tiersidecar.reconcile.deep_check import DeepCheck, Preceding

StoreOpener = Callable[[], AbstractAsyncContextManager[Store]]
"""Opens the store where it is called.  Spark pickles it, so that executors open it with credentials of their own."""

OBJECT_COLUMNS = ("log", "indexes", "manifest")
"""How columns are named for each of ``ObjectKind``: ``log_bytes``, ``log_ms``, ..."""

_REQUESTS_AT_ONCE = 32
_PRESENCE = {FindingKind.MISSING_OBJECT, FindingKind.SIZE_MISMATCH}
_EXCESS = {FindingKind.ORPHAN_OBJECT, FindingKind.OBJECT_AFTER_DELETE, FindingKind.LOST_METADATA}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCheck:
    """Checks rows of segments, in a Spark executor or in this process.

    Without ``open_store`` only the listing counts.  ``deep`` reads the objects themselves.  ``metadata_doubt`` says why events
    may be missing.
    """

    graces: Graces
    now_ms: int
    open_store: StoreOpener | None = None
    reads_manifests: bool = True
    is_plain: bool = False
    deep: DeepCheck | None = None
    metadata_doubt: str = ""

    async def check(self, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
        """Return the findings of ``rows``, which have the columns of a segment joined with its objects."""
        async with AsyncExitStack() as stack:
            store = None if self.open_store is None else await stack.enter_async_context(self.open_store())
            answers: list[list[Finding]] = [[] for _ in rows]
            waiting = iter(zip(rows, answers, strict=True))
            unchecked = defaultdict[str, list[str]](list)

            async def check_one_after_the_other() -> None:
                for row, answer in waiting:
                    answer += self._foreign(row)
                    try:
                        answer += await self._check_row(store, row)
                    except StoreError as error:
                        place = place_of(error.key)  # the segment before it may lie elsewhere
                        if not error.is_away or not place:
                            raise
                        unchecked[place].append(error.reason)

            await asyncio.gather(*(check_one_after_the_other() for _ in range(min(_REQUESTS_AT_ONCE, len(rows)))))
            found = [finding for answer in answers for finding in answer]
            return found + [
                place_stopped_answering(place, len(reasons), reasons[0]) for place, reasons in sorted(unchecked.items())
            ]

    async def _check_row(self, store: Store | None, columns: Mapping[str, Any]) -> list[Finding]:
        row = self._row(columns)
        if store is None:
            return [*decide_segment(row, self.graces, self.now_ms, self.metadata_doubt)]
        manifest = None
        if self.reads_manifests and needs_manifest(row):
            facts, manifest = await _read_manifest(store, row, columns)
            row = replace(row, manifest=facts)
        candidates = decide_segment(row, self.graces, self.now_ms, self.metadata_doubt)
        found = [finding for finding in candidates if await _still_so(store, finding)]
        if self.deep is not None and manifest is not None and row.is_live and not found:
            found += await self.deep.check(store, row, manifest, self.now_ms, _preceding(columns))
        return found

    def _foreign(self, columns: Mapping[str, Any]) -> Iterator[Finding]:
        size_bytes = columns["foreign_bytes"]
        if size_bytes is None:
            return
        age_ms = self.now_ms - columns["foreign_ms"]
        if age_ms >= self.graces.finding_ms:
            yield Finding(
                kind=FindingKind.FOREIGN_OBJECT,
                key=columns["stem"],
                found_bytes=size_bytes,
                age_ms=age_ms,
                detail="its key is not of the layout of segments",
            )

    def _row(self, columns: Mapping[str, Any]) -> SegmentRow:
        stem = columns["stem"]
        keys = {kind: f"{stem}.{kind}" for kind in KINDS}
        has_events = columns["after"] is not None
        return SegmentRow(
            topic=columns["topic"] or "",
            topic_id=columns["topic_id"] or "",
            partition=columns["partition"],
            segment_id=columns["segment_id"],
            start_offset=columns["start_offset"],
            end_offset=columns["end_offset"] if has_events else -1,
            before=None if columns["before"] is None else RemoteLogSegmentState(columns["before"]),
            after=RemoteLogSegmentState(columns["after"]) if has_events else None,
            since_ms=columns["since_ms"] if has_events else -1,
            segment_size_bytes=columns["segment_size_bytes"] if has_events else -1,
            remote_size_bytes=-1 if columns["remote_size_bytes"] is None else columns["remote_size_bytes"],
            is_plain=self.is_plain,
            is_topic_known=columns["is_topic_known"],
            is_topic_owned=columns["is_topic_owned"],
            has_topics_name=columns["has_topics_name"],
            known_until=-1 if columns["known_until"] is None else columns["known_until"],
            keys=keys if has_events else {},
            objects={
                kind: Listed(key=keys[kind], size_bytes=columns[f"{name}_bytes"], modified_ms=columns[f"{name}_ms"])
                for kind, name in zip(KINDS, OBJECT_COLUMNS, strict=True)
                if columns[f"{name}_bytes"] is not None
            },
        )


async def _read_manifest(
    store: Store, row: SegmentRow, columns: Mapping[str, Any]
) -> tuple[ManifestFacts, Manifest | None]:
    key = row.keys[MANIFEST]
    try:
        data = await store.fetch_object(key, max_bytes=ANY_SEGMENT.manifest_bytes)
        manifest = read_manifest(data, where=key)
    except ObjectNotFoundError:
        return ManifestFacts(is_gone=True), None
    except (CorruptDataError, ObjectTooLargeError) as error:
        return ManifestFacts(fault=str(error)), None
    facts = ManifestFacts(
        contradiction=_contradiction(manifest, row, columns["epochs"]),
        log_bytes=manifest.chunk_index.transformed_size,
        indexes_bytes=manifest.indexes.size_bytes,
    )
    return facts, manifest


def _preceding(columns: Mapping[str, Any]) -> list[Preceding]:
    """Return the preceding segments: few, and more than one only after elections."""
    return [
        replace(_ended(row), before=tuple(_ended(before) for before in row["before"] or ()))
        for row in columns["preceding"] or ()
    ]


def _ended(one: dict[str, Any]) -> Preceding:
    return Preceding(
        stem=one["stem"],
        start_offset=one["start_offset"],
        end_offset=one["end_offset"],
        epochs=epochs_of(one["epochs"]),
    )


def epochs_of(text: str) -> tuple[EpochEntry, ...]:
    """Return the leader epochs of a segment, which a row has as ``epoch:start,...``."""
    pairs = (one.split(":") for one in text.split(","))
    return tuple(EpochEntry(LeaderEpoch(int(epoch)), Offset(int(start))) for epoch, start in pairs)


def _contradiction(manifest: Manifest, row: SegmentRow, epochs: str) -> str:
    """Return the difference between manifest and metadata; "" if there is none."""
    said: dict[str, object] = {"size": manifest.chunk_index.original_file_size}
    known: dict[str, object] = {"size": row.segment_size_bytes}
    segment = manifest.segment
    if segment is not None:
        owner = segment.remote_log_segment_id.topic_id_partition
        entries = ",".join(f"{epoch}:{start}" for epoch, start in segment.segment_leader_epochs)
        said |= {
            "segment": f"{owner.qualified} {_segment_id(segment.remote_log_segment_id.uuid)}",
            "start offset": segment.start_offset,
            "end offset": segment.end_offset,
            "leader epochs": entries,
        }
        known |= {
            "segment": f"{row.topic}-{row.topic_id}/{row.partition} {row.segment_id}",
            "start offset": row.start_offset,
            "end offset": row.end_offset,
            "leader epochs": epochs,
        }
    wrong = [f"{name} {said[name]} instead of {known[name]}" for name in said if said[name] != known[name]]
    return "; ".join(wrong)


async def _still_so(store: Store, finding: Finding) -> bool:
    """Return whether the store, asked once more, says the same of the object."""
    if finding.kind not in _PRESENCE | _EXCESS:
        return True
    try:
        seen = await store.head_object(finding.key)
    except ObjectNotFoundError:
        return finding.kind is FindingKind.MISSING_OBJECT
    if finding.kind is FindingKind.SIZE_MISMATCH:
        return seen.size_bytes == finding.found_bytes
    return finding.kind in _EXCESS


def preceding_of(segments: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return, by stem, the live segments that end where each segment begins; their snapshots say what was open there.

    A segment without one has those that continue past its start instead, since an election may have cut them, each with the
    segments ``before`` it.
    """
    live: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    ended: dict[tuple[str, int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for row in segments:
        if row["before"] == row["after"] == RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            live[row["topic_id_text"], row["partition"]].append(row)
            ended[row["topic_id_text"], row["partition"], row["end_offset"] + 1].append(row)
    found: dict[str, list[dict[str, Any]]] = {}
    for place, rows in live.items():
        for row in rows:
            start = row["start_offset"]
            if before := ended.get((*place, start)):
                found[row["stem"]] = [_preceding_row(segment, None) for segment in before]
            elif start > 0:
                found[row["stem"]] = [
                    _preceding_row(
                        segment,
                        [_preceding_row(earlier, None) for earlier in ended.get((*place, segment["start_offset"]), ())],
                    )
                    for segment in rows
                    if segment["start_offset"] < start <= segment["end_offset"]
                ]
    return found


def _preceding_row(row: Mapping[str, Any], before: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {**{name: row[name] for name in ("stem", "start_offset", "end_offset", "epochs")}, "before": before}

"""Remote log metadata of one partition: a fold over its events (Kafka's RemoteLogMetadataCache; S-097 to S-101).

:meth:`RemoteLogMetadataCache.apply` is the one way in; a replay of millions of records calls its two halves, :meth:`add` and
:meth:`update`, with decoded fields instead of dataclasses.  An event that the rules forbid raises and changes nothing: the
consumer drops and counts it, as Kafka does.

The optional native core folds events into the same parts of the same objects (``native/src/metadata_partition.rs``), and leaves
to :meth:`RemoteLogMetadataCache.add` and :meth:`RemoteLogMetadataCache.update` what they might refuse: a change of how they
keep rows, pending numbers, maps or epochs is one there, too.  ``tests/native`` compares all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tiersidecar.domain.errors import IllegalTransitionError, UnknownSegmentError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.metadata_cache_rows import (
    AddedFields,
    CacheImage,
    EpochSegments,
    RelativeEpochs,
    Run,
    SegmentPicture,
    SegmentRows,
    UpdatedFields,
    added_fields,
    segment_of,
    updated_fields,
)
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentEvent,
)
from tiersidecar.domain.states import (
    PARTITION_DELETE_TRANSITIONS,
    SEGMENT_ADDITIONS,
    SEGMENT_UPDATES,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)

_STARTED = int(RemoteLogSegmentState.COPY_SEGMENT_STARTED)
_FINISHED = int(RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
_DELETING = int(RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
_DELETED = int(RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)


class RemoteLogMetadataCache:
    """Remote segments of one partition, by the events so far."""

    __slots__ = (
        "_epochs",
        "_is_loaded",
        "_maps",
        "_maps_by_epochs",
        "_mark",
        "_pending",
        "_rows",
        "delete_state",
        "topic_id_partition",
    )

    def __init__(self, topic_id_partition: TopicIdPartition) -> None:
        self.topic_id_partition = topic_id_partition
        self.delete_state: RemotePartitionDeleteState | None = None
        self._is_loaded = False
        self._clear()

    def _clear(self) -> None:
        self._rows = SegmentRows()
        self._pending: set[int] = set()  # rows being copied or deleted: listed, never read
        self._epochs: dict[int, EpochSegments] = {}
        self._maps: list[RelativeEpochs] = []
        self._maps_by_epochs: dict[RelativeEpochs, int] = {}
        self._mark: int | None = None

    @property
    def is_loaded(self) -> bool:
        """Return whether the history before now has been applied: from then on an update of an unknown segment is an error
        (T-63)."""
        return self._is_loaded

    def mark_loaded(self) -> None:
        """Mark it as loaded (:attr:`is_loaded`)."""
        self._is_loaded = True

    def __len__(self) -> int:
        """Return the number of segments in any state but DELETE_SEGMENT_FINISHED."""
        return len(self._rows)

    # -- changes

    def apply(self, event: MetadataEvent) -> bool:
        """Fold ``event`` in.  Return False for an update of a segment that was gone before this replay began: ignored (T-63).

        Raises:
            IllegalTransitionError: the state machine forbids it; nothing changed.
            UnknownSegmentError: an update of a segment that no event added; nothing changed.
        """
        match event:
            case RemoteLogSegmentMetadata():
                self.add(added_fields(event))
                return True
            case RemoteLogSegmentMetadataUpdate():
                return self.update(updated_fields(event))
            case RemotePartitionDeleteMetadata():
                self._mark_deleted(event.state)
                return True

    def check(self, event: MetadataEvent) -> None:
        """Raise as :meth:`apply` would, and change nothing.  A repeated DELETE_SEGMENT_FINISHED passes: the segment is deleted
        already."""
        match event:
            case RemoteLogSegmentMetadata():
                uuid = event.remote_log_segment_id.uuid
                self._check_added(self._rows.find(uuid), uuid, event.state)
            case RemoteLogSegmentMetadataUpdate():
                number = self._rows.find(event.remote_log_segment_id.uuid)
                if number is not None:
                    self._check_updated(number, event.state)
                elif event.state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                    raise UnknownSegmentError(segment=str(event.remote_log_segment_id))
            case RemotePartitionDeleteMetadata():
                self._check_deleted(event.state)

    def check_all(self, events: Iterable[SegmentEvent]) -> None:
        """Raise as :meth:`apply` would of one after the other, and change nothing."""
        states: dict[Uuid, int | None] = {}
        for event in events:
            uuid, target = event.remote_log_segment_id.uuid, int(event.state)
            source = states[uuid] if uuid in states else self._state(uuid)
            if isinstance(event, RemoteLogSegmentMetadata):
                allowed = SEGMENT_ADDITIONS[source]
            elif source is None:
                raise UnknownSegmentError(segment=str(event.remote_log_segment_id))
            else:
                allowed = SEGMENT_UPDATES[source]
            if target not in allowed:
                raise self._illegal(uuid, source, target)
            states[uuid] = None if target == _DELETED else target

    def add(self, fields: AddedFields) -> None:
        """Apply a RemoteLogSegmentMetadata like :meth:`apply`, by its fields."""
        uuid, start, end, max_timestamp_ms, size, epochs, is_empty, broker, event_timestamp_ms, custom, state = fields
        rows = self._rows
        number = rows.find(uuid)
        if number is not None or state != _STARTED:  # a new segment, mostly
            self._check_added(number, uuid, state)
        epoch_map = self._maps_by_epochs.get(epochs)
        if epoch_map is None:
            epoch_map = self._intern(epochs)
        row = (uuid, start, end, max_timestamp_ms, size, epoch_map, is_empty, broker, event_timestamp_ms, state)
        if number is None:
            number = rows.insert(row, custom)
        else:
            rows.replace(number, row, custom)
        self._pending.add(number)
        self._mark = None

    def update(self, fields: UpdatedFields) -> bool:
        """Apply a RemoteLogSegmentMetadataUpdate like :meth:`apply`, by its fields."""
        uuid, broker, event_timestamp_ms, custom, target = fields
        rows = self._rows
        number = rows.find(uuid)
        if number is None:
            if self._is_loaded:
                raise UnknownSegmentError(segment=self._name(uuid))
            return False
        start, end, epoch_map, source = rows.place(number)
        if target not in SEGMENT_UPDATES[source]:
            raise self._illegal(uuid, source, target)
        self._mark = None
        if target == _FINISHED:
            for segments, first, last in self._spans(epoch_map, start, end):
                segments.finish(number, first, last)
            self._pending.discard(number)
        elif target == _DELETING:
            for segments, first, _ in self._spans(epoch_map, start, end):
                if segments.withdraw(number, first):
                    self._restore_superseded(segments)
            self._pending.add(number)
        else:
            self._pending.discard(number)
            rows.remove(number)
            return True
        rows.update(number, broker, event_timestamp_ms, custom, target)
        return True

    def _restore_superseded(self, segments: EpochSegments) -> None:
        # Of equal spans the latest is read, which was finished because of content that the others have: one that is there
        # already, else the one that is restored first.
        for number in sorted(segments.superseded, key=self._age, reverse=True):
            segments.restore(number, *self._span_in(number, segments))

    def _age(self, number: int) -> tuple[int, bytes]:
        """Return the time of its last event, and its uuid, so that every replica picks the same."""
        return self._rows.row(number)[8], self._rows.uuid(number)

    def _span_in(self, number: int, segments: EpochSegments) -> tuple[int, int]:
        """Return the offsets of a row in that epoch: both ends inclusive."""
        start, end, _, epoch_map = self._rows.span(number)
        return next((first, last) for one, first, last in self._spans(epoch_map, start, end) if one is segments)

    def _spans(self, epoch_map: int, start: int, end: int) -> tuple[tuple[EpochSegments, int, int], ...]:
        """Return what each leader epoch holds of a segment: the epoch's segments, first and last offset."""
        epochs = self._maps[epoch_map]
        if len(epochs) == 1:  # nearly always
            ((epoch, first),) = epochs
            return ((self._epochs[epoch], start + first, end),)
        lasts = (*(start + first - 1 for _, first in epochs[1:]), end)
        return tuple(
            (self._epochs[epoch], start + first, last) for (epoch, first), last in zip(epochs, lasts, strict=True)
        )

    def _mark_deleted(self, state: RemotePartitionDeleteState) -> None:
        self._check_deleted(state)
        self.delete_state = state
        if state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            self.delete_state = None
            self._clear()

    def _intern(self, epochs: RelativeEpochs) -> int:
        for epoch, _ in epochs:
            if epoch not in self._epochs:
                self._epochs[epoch] = EpochSegments()
        number = self._maps_by_epochs[epochs] = len(self._maps)
        self._maps.append(epochs)
        return number

    def _state(self, uuid: bytes) -> int | None:
        number = self._rows.find(uuid)
        return None if number is None else self._rows.state(number)

    def _check_added(self, number: int | None, uuid: bytes, target: int) -> None:
        source = None if number is None else self._rows.state(number)
        if target not in SEGMENT_ADDITIONS[source]:
            raise self._illegal(uuid, source, target)

    def _check_updated(self, number: int, target: int) -> None:
        source = self._rows.state(number)
        if target not in SEGMENT_UPDATES[source]:
            raise self._illegal(self._rows.uuid(number), source, target)

    def _check_deleted(self, target: RemotePartitionDeleteState) -> None:
        if target not in PARTITION_DELETE_TRANSITIONS[self.delete_state]:
            source = "none" if self.delete_state is None else self.delete_state.name
            raise IllegalTransitionError(segment=str(self.topic_id_partition), source=source, target=target.name)

    def _illegal(self, uuid: bytes, source: int | None, target: int) -> IllegalTransitionError:
        return IllegalTransitionError(
            segment=self._name(uuid),
            source="none" if source is None else RemoteLogSegmentState(source).name,
            target=RemoteLogSegmentState(target).name,
        )

    def _name(self, uuid: bytes) -> str:
        return str(RemoteLogSegmentId(topic_id_partition=self.topic_id_partition, uuid=Uuid(uuid)))

    # -- look-ups

    def remote_log_segment_metadata(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return the finished segment that holds ``offset`` as written in ``leader_epoch`` (S-098, T-65, T-66)."""
        segments = self._epochs.get(leader_epoch)
        number = None if segments is None else segments.find(offset)
        return None if number is None else self._metadata(number)

    def finished_segments_at(self, leader_epoch: int, offset: int) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield all finished segments that hold ``offset`` as written in ``leader_epoch``: first the one that is read, last
        those that others cover."""
        segments = self._epochs.get(leader_epoch, EpochSegments())
        for number in segments.all_at(offset):
            yield self._metadata(number)
        for covered in sorted(segments.superseded):
            start, end = self._span_in(covered, segments)
            if start <= offset <= end:
                yield self._metadata(covered)

    def highest_offset_for_epoch(self, leader_epoch: int) -> int | None:
        """Return the highest offset, inclusive, ever finished for the epoch (T-67)."""
        segments = self._epochs.get(leader_epoch)
        return None if segments is None else segments.highest_offset

    def segment(self, uuid: Uuid) -> RemoteLogSegmentMetadata | None:
        """Return one segment in any state but DELETE_SEGMENT_FINISHED."""
        number = self._rows.find(uuid)
        return None if number is None else self._metadata(number)

    def list_remote_log_segments(self, leader_epoch: int | None = None) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield the segments of one epoch or of all, ascending by start offset; of equal starts the one that is read first.

        A walk that is interleaved with changes sees each segment as it is when reached, or not at all once it is gone.
        """
        numbers = sorted(self._listed(leader_epoch), key=lambda number: self._rows.span(number)[0])
        for uuid in [self._rows.uuid(number) for number in numbers]:
            number = self._rows.find(uuid)
            if number is not None:
                yield self._metadata(number)

    def segments_with(self, offsets: ByteRange) -> list[RemoteLogSegmentMetadata]:
        """Return those of :meth:`list_remote_log_segments` that hold any of ``offsets``, without reading the others."""
        found = [number for number in self._rows.numbers() if self._rows.overlaps(number, offsets.start, offsets.stop)]
        return [self._metadata(number) for number in sorted(found, key=lambda number: self._rows.span(number)[0])]

    @property
    def latest_leader_epoch(self) -> int:
        """Return the latest leader epoch of any segment that there is or was; -1 where there was none."""
        return max(self._epochs, default=-1)

    def list_unfinished_segments(self) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield segments that are being copied or deleted, without a walk over the finished ones."""
        if not self._pending:  # mostly so, and asked at each look
            return iter(())
        return iter([self._metadata(number) for number in sorted(self._pending)])

    def remote_log_size_bytes(self, leader_epoch: int | None = None) -> int:
        """Return the sum of the listed segments' sizes; that of all is kept, for looks at thousands of partitions."""
        if leader_epoch is None:
            return self._rows.size_bytes
        return sum(self._rows.span(number)[2] for number in self._listed(leader_epoch))

    def next_segment_with_txn_index(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return the first finished segment at or after ``offset`` in the epoch that has aborted transactions (S-157)."""
        segments = self._epochs.get(leader_epoch, EpochSegments())
        found = (number for number in segments.at_or_after(offset) if not self._rows.is_txn_index_empty(number))
        number = next(found, None)
        return None if number is None else self._metadata(number)

    def finished_runs(self, leader_epoch: int) -> tuple[Run, ...]:
        """Return the epoch's offsets that finished segments hold without a hole: start inclusive, stop exclusive, ascending."""
        segments = self._epochs.get(leader_epoch)
        return () if segments is None else segments.runs()

    @property
    def mark(self) -> int:
        """Return the mark of the :meth:`picture` of now: made once after each change."""
        if self._mark is None:
            self._mark = self.picture().mark
        return self._mark

    def _listed(self, leader_epoch: int | None) -> Iterable[int]:
        if leader_epoch is None:
            return self._rows.numbers()
        segments = self._epochs.get(leader_epoch)
        if segments is None:
            return ()
        pending = (number for number in sorted(self._pending) if self._is_in_epoch(number, leader_epoch))
        return (*segments.finished_rows(), *pending)

    def _is_in_epoch(self, number: int, leader_epoch: int) -> bool:
        return any(epoch == leader_epoch for epoch, _ in self._maps[self._rows.span(number)[3]])

    def picture(self) -> SegmentPicture:
        """Return all segments as they are now, at little cost."""
        data, custom, numbers = self._rows.copied()
        # Epoch maps are only ever added: those that the rows name now stay.
        return SegmentPicture(self.topic_id_partition, data=data, custom=custom, numbers=numbers, epoch_maps=self._maps)

    def _metadata(self, number: int) -> RemoteLogSegmentMetadata:
        row = self._rows.row(number)
        return segment_of(self.topic_id_partition, row, self._rows.custom(number), self._maps[row[5]])

    # -- snapshots

    def image(self) -> CacheImage:
        """Return everything but the partition, as plain values; gaps among the rows are closed first."""
        self._mark = None
        new_numbers = self._rows.compact()
        if new_numbers:
            for segments in self._epochs.values():
                segments.renumber(new_numbers)
            self._pending = {new_numbers[number] for number in self._pending}
        rows, custom = self._rows.image()
        return CacheImage(
            rows=rows,
            custom=custom,
            epoch_maps=tuple(self._maps_by_epochs),
            epochs=tuple(segments.image(epoch) for epoch, segments in self._epochs.items()),
            delete_state=self.delete_state,
        )

    @classmethod
    def from_image(cls, topic_id_partition: TopicIdPartition, image: CacheImage) -> RemoteLogMetadataCache:
        """Return a cache that answers the same as the one of :meth:`image`.  It is not loaded yet.

        Raises:
            ValueError: the image contradicts itself.
        """
        cache = cls(topic_id_partition)
        cache.delete_state = image.delete_state
        cache._rows = SegmentRows(image.rows, image.custom)
        cache._pending = cache._rows.unfinished(_FINISHED)
        cache._epochs = {part.epoch: EpochSegments.from_image(part) for part in image.epochs}
        for epochs in image.epoch_maps:
            cache._intern(epochs)
        return cache

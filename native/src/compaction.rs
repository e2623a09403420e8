//! Both passes of a cleaner as Python calls them.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::borrowed::{mut_slice_of, slice_of};
use crate::cleaning::{self, Bounds, Indexed, Left, Room, Run, Terms};
use crate::key_filter::{self, Keys};
use crate::offset_map::Slots;
use crate::records::{Frame, write_records};
use crate::unlocked;

/// Digests and offsets of an offset map.
type MapParts = (PyBuffer<u8>, PyBuffer<i64>);
/// Keys that are in the map, and how many may be.
type RoomParts = (usize, usize);
/// Base offset, last offset, base timestamp, largest timestamp, attributes, record count.
type FrameParts = (i64, i64, i64, i64, i16, i32);
/// Latest offset of the map, now, horizon for tombstones, first dirty offset.
type TermParts = (i64, i64, i64, i64);
/// Position, last indexed position, latest timestamp and its offset.
type IndexParts = (u64, u64, i64, i64);
/// Records read and kept; attributes, base and largest timestamp of the new batch, and its records; None: those it had.
type CleanedRecords = (usize, usize, Option<(i16, i64, i64, Vec<u8>)>);

/// Give (stop, last offset or -1, keys in the map).
#[pyfunction]
pub fn fill_map(
    py: Python<'_>,
    buffer: PyBuffer<u8>,
    start: usize,
    first_dirty: i64,
    map: MapParts,
    room: RoomParts,
) -> PyResult<(usize, i64, usize)> {
    let bytes = slice_of(&buffer)?;
    if !cleaning::begins_plain(bytes, start) {
        return Ok((start, -1, room.0));
    }
    let (mut digests, mut offsets) = map;
    let mut map = whole(Slots {
        digests: mut_slice_of(&mut digests)?,
        offsets: mut_slice_of(&mut offsets)?,
    })?;
    let mut room = room_of(room);
    let (stop, last_offset) = unlocked(py, bytes, start, || {
        cleaning::fill(bytes, start, first_dirty, &mut map, &mut room)
    });
    Ok((stop, last_offset, room.keys))
}

/// Give (whether all keys of a batch with these opened records are in the map, keys in the map).
#[pyfunction]
pub fn fill_map_from_records(
    py: Python<'_>,
    records: PyBuffer<u8>,
    frame: FrameParts,
    first_dirty: i64,
    map: MapParts,
    room: RoomParts,
) -> PyResult<(bool, usize)> {
    let body = slice_of(&records)?;
    let (mut digests, mut offsets) = map;
    let mut map = whole(Slots {
        digests: mut_slice_of(&mut digests)?,
        offsets: mut_slice_of(&mut offsets)?,
    })?;
    let (frame, mut room) = (frame_of(frame), room_of(room));
    let took_all = unlocked(py, body, 0, || {
        let mut scratch = Vec::new();
        cleaning::put(body, &frame, first_dirty, &mut map, &mut room, &mut scratch)
    });
    Ok((took_all, room.keys))
}

/// What was made of a run of batches.
#[pyclass(frozen, get_all)]
pub struct CleanedRun {
    stop: usize,
    records_read: u64,
    records_kept: u64,
    batches_read: u64,
    batches_kept: u64,
    untouched_batches: u64,
    last_offset_read: i64,
    last_offset_kept: i64,
    max_timestamp: i64,
    indexed: IndexParts,
    index_rows: Vec<cleaning::IndexRow>,
}

/// Give (what was made of the run, the batches that stay).
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "they are the two sides of a call"
)]
pub fn clean_run(
    py: Python<'_>,
    buffer: PyBuffer<u8>,
    start: usize,
    stop: usize,
    offsets: (i64, i64),
    kept_empty: PyBuffer<i64>,
    map: MapParts,
    terms: TermParts,
    indexed: IndexParts,
) -> PyResult<(CleanedRun, Vec<u8>)> {
    let (bytes, terms, indexed) = (slice_of(&buffer)?, terms_of(terms), indexed_of(indexed));
    if !cleaning::begins_plain(bytes, start) {
        return Ok(given(Run::at(start, indexed)));
    }
    let slots = whole(Slots {
        digests: slice_of(&map.0)?,
        offsets: slice_of(&map.1)?,
    })?;
    let bounds = Bounds {
        stop,
        least_offset: offsets.0.max(0),
        greatest_offset: offsets.1,
        kept_empty: slice_of(&kept_empty)?,
    };
    let run = unlocked(py, bytes, start, || {
        cleaning::clean(bytes, start, &bounds, &slots, &terms, indexed)
    });
    Ok(given(run))
}

/// Give (records read, records kept, the new batch); None: Python reads them.
#[pyfunction]
pub fn clean_records(
    py: Python<'_>,
    records: PyBuffer<u8>,
    frame: FrameParts,
    map: MapParts,
    terms: TermParts,
) -> PyResult<Option<CleanedRecords>> {
    let body = slice_of(&records)?;
    let slots = whole(Slots {
        digests: slice_of(&map.0)?,
        offsets: slice_of(&map.1)?,
    })?;
    let (attributes, frame, terms) = (frame.4, frame_of(frame), terms_of(terms));
    Ok(unlocked(py, body, 0, || {
        let mut kept = Vec::new();
        let left = cleaning::judge(body, &frame, attributes, &slots, &terms, &mut kept)?;
        let read = usize::try_from(frame.record_count).ok()?;
        let Left::Some(fields) = left else {
            return Some((read, kept.len(), None));
        };
        let mut out = Vec::new();
        write_records(&kept, body, fields.base_timestamp, &mut out);
        let batch = (
            fields.attributes,
            fields.base_timestamp,
            fields.max_timestamp,
            out,
        );
        Some((read, kept.len(), Some(batch)))
    }))
}

/// Give (stop, digests of the keys, when the first tombstone is due).
#[pyfunction]
pub fn collect_keys(
    py: Python<'_>,
    buffer: PyBuffer<u8>,
    start: usize,
) -> PyResult<(usize, Vec<u8>, i64)> {
    let bytes = slice_of(&buffer)?;
    if !cleaning::begins_plain(bytes, start) {
        return Ok((start, Vec::new(), i64::MAX));
    }
    let (stop, keys) = unlocked(py, bytes, start, || key_filter::collect_run(bytes, start));
    Ok((stop, keys.digests, keys.due))
}

/// Give (digests of the keys, when the first tombstone is due) of a batch with these opened records; None: Python reads them.
#[pyfunction]
pub fn collect_keys_from_records(
    py: Python<'_>,
    records: PyBuffer<u8>,
    frame: FrameParts,
) -> PyResult<Option<(Vec<u8>, i64)>> {
    let body = slice_of(&records)?;
    let (attributes, frame) = (frame.4, frame_of(frame));
    Ok(unlocked(py, body, 0, || {
        let (mut keys, mut scratch) = (Keys::none(), Vec::new());
        key_filter::collect(body, &frame, attributes, &mut keys, &mut scratch)
            .then_some((keys.digests, keys.due))
    }))
}

/// Set the bits of all digests.
#[pyfunction]
pub fn fill_filter(
    py: Python<'_>,
    bits: PyBuffer<u8>,
    probes: u8,
    digests: PyBuffer<u8>,
) -> PyResult<()> {
    let mut bits = bits;
    let (bits, digests) = (mut_slice_of(&mut bits)?, slice_of(&digests)?);
    require_bits(bits)?;
    unlocked(py, digests, 0, || {
        key_filter::fill(bits, probes.into(), digests);
    });
    Ok(())
}

/// Whether the filter may have any of the map's keys.
#[pyfunction]
pub fn filter_has_any(
    py: Python<'_>,
    bits: PyBuffer<u8>,
    probes: u8,
    map: MapParts,
) -> PyResult<bool> {
    let bits = slice_of(&bits)?;
    require_bits(bits)?;
    let slots = whole(Slots {
        digests: slice_of(&map.0)?,
        offsets: slice_of(&map.1)?,
    })?;
    Ok(unlocked(py, slots.digests, 0, || {
        key_filter::has_any(bits, probes.into(), slots.digests, slots.offsets)
    }))
}

fn require_bits(bits: &[u8]) -> PyResult<()> {
    if bits.is_empty() {
        return Err(PyValueError::new_err("a filter without bits"));
    }
    Ok(())
}

fn whole<D: AsRef<[u8]>, O: AsRef<[i64]>>(map: Slots<D, O>) -> PyResult<Slots<D, O>> {
    if map.is_whole() {
        return Ok(map);
    }
    Err(PyValueError::new_err(
        "digests and offsets are not those of one map",
    ))
}

fn room_of((keys, most_keys): RoomParts) -> Room {
    Room { keys, most_keys }
}

fn frame_of(parts: FrameParts) -> Frame {
    let (base_offset, last_offset, base_timestamp, max_timestamp, attributes, record_count) = parts;
    Frame {
        base_offset,
        last_offset,
        base_timestamp,
        append_time: cleaning::append_time(attributes, max_timestamp),
        record_count,
    }
}

fn terms_of((latest_offset, now_ms, horizon_ms, first_dirty): TermParts) -> Terms {
    Terms {
        latest_offset,
        now_ms,
        horizon_ms,
        first_dirty,
    }
}

fn indexed_of(parts: IndexParts) -> Indexed {
    let (position, indexed_position, latest_timestamp, latest_offset) = parts;
    Indexed {
        position,
        indexed_position,
        latest_timestamp,
        latest_offset,
    }
}

fn given(run: Run) -> (CleanedRun, Vec<u8>) {
    let indexed = run.indexed;
    let given = CleanedRun {
        stop: run.stop,
        records_read: run.records_read,
        records_kept: run.records_kept,
        batches_read: run.batches_read,
        batches_kept: run.batches_kept,
        untouched_batches: run.untouched_batches,
        last_offset_read: run.last_offset_read,
        last_offset_kept: run.last_offset_kept,
        max_timestamp: run.max_timestamp,
        indexed: (
            indexed.position,
            indexed.indexed_position,
            indexed.latest_timestamp,
            indexed.latest_offset,
        ),
        index_rows: run.rows,
    };
    (given, run.data)
}

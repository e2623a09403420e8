//! Both passes of a cleaner over runs of plain batches, and over the opened records of one batch.
//!
//! Plain is a sound batch of format 2 with records that are neither compressed nor of a transaction.

use crate::header::{Batch, HEADER_SIZE, sound_batch};
use crate::offset_map::Slots;
use crate::records::{Frame, Record, read_records, write_records};

/// Compression, transactional, control.
const NOT_PLAIN: i16 = 0x37;
const APPEND_TIME_FLAG: i16 = 0x08;
pub const DELETE_HORIZON_FLAG: i16 = 0x40;
const KEPT_ATTRIBUTES: i16 = 0x3f;
const NO_TIMESTAMP: i64 = -1;
const INDEX_INTERVAL: u64 = 4096;

/// The map as the first pass writes it.
pub type Filled<'a> = Slots<&'a mut [u8], &'a mut [i64]>;
/// The map as the second pass reads it.
pub type Known<'a> = Slots<&'a [u8], &'a [i64]>;

/// How many keys are in the map, and how many may be.
#[derive(Clone, Copy)]
pub struct Room {
    pub keys: usize,
    pub most_keys: usize,
}

/// Put the keys of the plain batches from `start` on into the map.  Returns where it stopped, and the last offset before that,
/// or -1.  Of a batch before which it stopped because the map is full, some keys are in it already: Python comes to the same.
pub fn fill(
    buffer: &[u8],
    start: usize,
    first_dirty: i64,
    map: &mut Filled<'_>,
    room: &mut Room,
) -> (usize, i64) {
    let (mut at, mut last_offset, mut records) = (start, -1, Vec::new());
    while let Some(batch) = sound_batch(buffer, at, |batch| is_plain(batch, last_offset)) {
        let body = &buffer[at + HEADER_SIZE..batch.stop];
        if !put(body, &batch.frame(), first_dirty, map, room, &mut records) {
            break;
        }
        last_offset = batch.last_offset;
        at = batch.stop;
    }
    (at, last_offset)
}

/// Put the keys of one batch's opened records into the map, and whether all were.
pub fn put(
    body: &[u8],
    frame: &Frame,
    first_dirty: i64,
    map: &mut Filled<'_>,
    room: &mut Room,
    records: &mut Vec<Record>,
) -> bool {
    if read_records(body, frame, records).is_none() {
        return false;
    }
    for record in records.iter() {
        let Some((begin, end)) = record.key else {
            continue;
        };
        if record.offset < first_dirty {
            continue;
        }
        if room.keys >= room.most_keys {
            return false;
        }
        match map.put(&body[begin..end], record.offset) {
            Some(was_empty) => room.keys += usize::from(was_empty),
            None => return false,
        }
    }
    true
}

/// What a round goes by: `CleaningTerms`, with the last offset that the map knows.
#[derive(Clone, Copy)]
pub struct Terms {
    pub latest_offset: i64,
    pub now_ms: i64,
    /// What tombstones get that have no horizon yet.
    pub horizon_ms: i64,
    /// From it on a horizon is another cleaner's.
    pub first_dirty: i64,
}

/// What stays of a batch.
pub enum Left {
    Nothing,
    /// All records, and the header as it is.
    Untouched,
    /// `records`, of which a new batch is to be written.
    Some(Rewritten),
}

/// Fields of the new batch.
#[derive(Clone, Copy)]
pub struct Rewritten {
    pub attributes: i16,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub record_count: i32,
}

/// What stays of a batch with these opened records; `records` are then those that do.  None: they cannot be read.
pub fn judge(
    body: &[u8],
    frame: &Frame,
    attributes: i16,
    map: &Known<'_>,
    terms: &Terms,
    records: &mut Vec<Record>,
) -> Option<Left> {
    read_records(body, frame, records)?;
    let is_dirty = frame.last_offset >= terms.first_dirty;
    let found = (attributes & DELETE_HORIZON_FLAG != 0).then_some(frame.base_timestamp);
    let keeps_tombstones = is_dirty || found.is_none_or(|horizon| terms.now_ms < horizon);
    records.retain(|record| {
        if record.offset > terms.latest_offset {
            return true;
        }
        record
            .key
            .is_some_and(|(begin, end)| record.offset >= map.get(&body[begin..end]))
            && (keeps_tombstones || !record.is_tombstone)
    });
    let Some(first) = records.first() else {
        return Some(Left::Nothing);
    };
    let former = found.filter(|_| !is_dirty);
    let sets_horizon = former.is_none() && records.iter().any(|record| record.is_tombstone);
    let count = i32::try_from(records.len()).ok()?;
    if count == frame.record_count && former == found && !sets_horizon {
        return Some(Left::Untouched);
    }
    let horizon = former.or(sets_horizon.then_some(terms.horizon_ms));
    let flag = horizon.map_or(0, |_| DELETE_HORIZON_FLAG);
    let times = records.iter().map(|record| record.timestamp);
    Some(Left::Some(Rewritten {
        attributes: (attributes & KEPT_ATTRIBUTES) | flag,
        base_timestamp: horizon.unwrap_or(first.timestamp),
        max_timestamp: times.fold(NO_TIMESTAMP, i64::max),
        record_count: count,
    }))
}

/// Bounds of a run.
pub struct Bounds<'a> {
    /// Batches end here or before.
    pub stop: usize,
    pub least_offset: i64,
    pub greatest_offset: i64,
    /// Last offsets of batches that may have to stay without a record, ascending.
    pub kept_empty: &'a [i64],
}

/// Where the new .log is, and what its indexes know there (`IndexRebuilder`).
#[derive(Clone, Copy)]
pub struct Indexed {
    pub position: u64,
    pub indexed_position: u64,
    pub latest_timestamp: i64,
    pub latest_offset: i64,
}

/// (last offset, position, latest timestamp, its offset) of an index entry.
pub type IndexRow = (i64, u64, i64, i64);

/// What was made of the batches that a run took.
pub struct Run {
    pub stop: usize,
    pub data: Vec<u8>,
    pub records_read: u64,
    pub records_kept: u64,
    pub batches_read: u64,
    pub batches_kept: u64,
    pub untouched_batches: u64,
    /// Of the last batch that was read, and of the last one that was kept; -1: there was none.
    pub last_offset_read: i64,
    pub last_offset_kept: i64,
    pub max_timestamp: i64,
    pub indexed: Indexed,
    pub rows: Vec<IndexRow>,
}

/// Rewrite the plain batches from `start` on.  Stops, too, before a batch that may have to stay although no record does.
pub fn clean(
    buffer: &[u8],
    start: usize,
    bounds: &Bounds<'_>,
    map: &Known<'_>,
    terms: &Terms,
    indexed: Indexed,
) -> Run {
    let mut run = Run::at(start, indexed);
    let (mut records, mut least_offset) = (Vec::new(), bounds.least_offset);
    let is_taken = |batch: &Batch, least_offset: i64| {
        is_plain(batch, least_offset - 1)
            && batch.stop <= bounds.stop
            && batch.last_offset <= bounds.greatest_offset
    };
    while let Some(batch) = sound_batch(buffer, run.stop, |batch| is_taken(batch, least_offset)) {
        let whole = &buffer[batch.start..batch.stop];
        let body = &whole[HEADER_SIZE..];
        let Some(left) = judge(
            body,
            &batch.frame(),
            batch.attributes,
            map,
            terms,
            &mut records,
        ) else {
            break;
        };
        let begin = run.data.len();
        let max_timestamp = match left {
            Left::Nothing if bounds.kept_empty.binary_search(&batch.last_offset).is_ok() => break,
            Left::Nothing => NO_TIMESTAMP,
            Left::Untouched => {
                run.data.extend_from_slice(whole);
                run.untouched_batches += 1;
                batch.max_timestamp
            }
            Left::Some(rewritten) => {
                if write_batch(whole, &rewritten, &records, &mut run.data).is_none() {
                    break;
                }
                rewritten.max_timestamp
            }
        };
        run.batches_read += 1;
        run.records_read += u64::from(batch.record_count.unsigned_abs());
        run.records_kept += records.len() as u64;
        run.last_offset_read = batch.last_offset;
        run.stop = batch.stop;
        least_offset = batch.last_offset + 1;
        if !records.is_empty() {
            run.batches_kept += 1;
            run.last_offset_kept = batch.last_offset;
            run.max_timestamp = run.max_timestamp.max(max_timestamp);
            run.index(
                batch.last_offset,
                max_timestamp,
                (run.data.len() - begin) as u64,
            );
        }
    }
    run
}

impl Run {
    /// One that has taken nothing yet.
    pub fn at(start: usize, indexed: Indexed) -> Self {
        Self {
            stop: start,
            data: Vec::new(),
            records_read: 0,
            records_kept: 0,
            batches_read: 0,
            batches_kept: 0,
            untouched_batches: 0,
            last_offset_read: -1,
            last_offset_kept: -1,
            max_timestamp: NO_TIMESTAMP,
            indexed,
            rows: Vec::new(),
        }
    }

    fn index(&mut self, last_offset: i64, max_timestamp: i64, size: u64) {
        let known = &mut self.indexed;
        if max_timestamp > known.latest_timestamp {
            (known.latest_timestamp, known.latest_offset) = (max_timestamp, last_offset);
        }
        if known.position - known.indexed_position > INDEX_INTERVAL {
            self.rows.push((
                last_offset,
                known.position,
                known.latest_timestamp,
                known.latest_offset,
            ));
            known.indexed_position = known.position;
        }
        known.position += size;
    }
}

/// Append the batch with `records` alone; None, and nothing is appended, where it would be too large for its length.
fn write_batch(
    whole: &[u8],
    fields: &Rewritten,
    records: &[Record],
    out: &mut Vec<u8>,
) -> Option<()> {
    let begin = out.len();
    out.extend_from_slice(&whole[..HEADER_SIZE]);
    write_records(records, &whole[HEADER_SIZE..], fields.base_timestamp, out);
    let Ok(length) = i32::try_from(out.len() - begin - 12) else {
        out.truncate(begin);
        return None;
    };
    let batch = &mut out[begin..];
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[21..23].copy_from_slice(&fields.attributes.to_be_bytes());
    batch[27..35].copy_from_slice(&fields.base_timestamp.to_be_bytes());
    batch[35..43].copy_from_slice(&fields.max_timestamp.to_be_bytes());
    batch[57..61].copy_from_slice(&fields.record_count.to_be_bytes());
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    Some(())
}

/// Whether a batch begins at `start` that a run would look at: a run that takes none is not worth giving Python's lock away.
pub fn begins_plain(buffer: &[u8], start: usize) -> bool {
    let mut begins = false;
    let _ = sound_batch(buffer, start, |batch| {
        begins = is_plain(batch, -1);
        false
    });
    begins
}

/// Whether the batch is plain, and its offsets rise above `last_offset`, which is -1 or above.
pub fn is_plain(batch: &Batch, last_offset: i64) -> bool {
    batch.attributes & NOT_PLAIN == 0 && batch.record_count > 0 && batch.base_offset > last_offset
}

/// The time of all records of a batch, where the log gave it.
pub fn append_time(attributes: i16, max_timestamp: i64) -> Option<i64> {
    (attributes & APPEND_TIME_FLAG != 0).then_some(max_timestamp)
}

impl Batch {
    /// What it says of its records.
    pub fn frame(&self) -> Frame {
        Frame {
            base_offset: self.base_offset,
            last_offset: self.last_offset,
            base_timestamp: self.base_timestamp,
            append_time: append_time(self.attributes, self.max_timestamp),
            record_count: self.record_count,
        }
    }
}

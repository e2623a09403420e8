//! The short loops of Python's cutter, scanner and digest: each takes sound batches that bring nothing new, and stops before
//! the first other one.

use crate::header::{Batch, HEADER_SIZE, sound_batch};

const COMPRESSION_MASK: i16 = 0x07;
const HIGHEST_COMPRESSION: i16 = 4;
/// Of a batch without any of these (transactional, control) a walk over transactions need not be told.
const TRANSACTION_FLAGS: i16 = 0x30;

/// Start and stop of batches.
pub type Spans = Vec<(usize, usize)>;

/// What a scan knows before a batch, and after it.
#[derive(Clone, Copy)]
pub struct Scanned {
    pub leader_epoch: i32,
    pub last_offset: i64,
    pub max_timestamp: i64,
    pub batch_count: u64,
}

/// Where the scan from `start` on stopped, what it knows there, and the start and stop of each batch of a transaction.
pub fn scan(buffer: &[u8], start: usize, known: Scanned) -> (usize, Scanned, Spans) {
    scan_with(buffer, start, known, |_| ())
}

/// The same, after the CRC32C of the file: `sum` is that of all that came before `buffer`, and the result is with all of it.
///
/// Each batch is summed right after its own checksum was, while it is in the processor's nearest cache.
pub fn sum_and_scan(
    buffer: &[u8],
    start: usize,
    mut sum: u32,
    known: Scanned,
) -> (u32, usize, Scanned, Spans) {
    sum = crc32c::crc32c_append(sum, &buffer[..start]);
    let (at, known, spans) = scan_with(buffer, start, known, |batch| {
        sum = crc32c::crc32c_append(sum, &buffer[batch.start..batch.stop]);
    });
    (crc32c::crc32c_append(sum, &buffer[at..]), at, known, spans)
}

fn scan_with(
    buffer: &[u8],
    start: usize,
    mut known: Scanned,
    mut take: impl FnMut(&Batch),
) -> (usize, Scanned, Spans) {
    let (mut at, mut of_transactions) = (start, Vec::new());
    let rises = |batch: &Batch, known: &Scanned| {
        batch.leader_epoch == known.leader_epoch && batch.base_offset > known.last_offset
    };
    while let Some(batch) = sound_batch(buffer, at, |batch| rises(batch, &known)) {
        take(&batch);
        if batch.attributes & TRANSACTION_FLAGS != 0 {
            of_transactions.push((batch.start, batch.stop));
        }
        known.last_offset = batch.last_offset;
        known.max_timestamp = known.max_timestamp.max(batch.max_timestamp);
        known.batch_count += 1;
        at = batch.stop;
    }
    (at, known, of_transactions)
}

/// Where the walk from `start` on stopped, the offset after the last batch that counted, and the headers of those that did.
pub fn digest(
    buffer: &[u8],
    start: usize,
    mut next_offset: i64,
    stop_offset: i64,
) -> (usize, i64, Vec<u8>) {
    let (mut at, mut headers) = (start, Vec::new());
    let is_plain = |batch: &Batch| {
        batch.base_offset >= 0 && batch.attributes & COMPRESSION_MASK <= HIGHEST_COMPRESSION
    };
    while let Some(batch) = sound_batch(buffer, at, is_plain) {
        if batch.last_offset >= next_offset && batch.base_offset < stop_offset {
            headers.extend_from_slice(&buffer[at..at + HEADER_SIZE]);
            next_offset = batch.last_offset + 1;
        }
        at = batch.stop;
    }
    (at, next_offset, headers)
}

/// What is wanted of a segment, and what is known of it where a cut begins.
#[derive(Clone, Copy)]
pub struct Cut {
    /// Wanted are batches from the first whose last offset is this or above, ...
    pub start_offset: i64,
    /// ... below this (exclusive).
    pub stop_offset: i64,
    /// Base offsets are this or above, ...
    pub least_offset: i64,
    /// ... last offsets at most this.
    pub greatest_offset: i64,
    pub leader_epoch: i64,
    /// The first offset that another epoch wrote.
    pub epoch_stop: i64,
    /// How many bytes may be taken.
    pub left_bytes: usize,
    /// Whether the first batch is taken even if it is larger.
    pub takes_any_size: bool,
}

/// The batches that a cut took or passed over.
#[derive(Clone, Copy)]
pub struct Taken {
    /// Where the first batch begins that was not looked at or not accepted.
    pub stop: usize,
    /// Where the first one that is wanted begins, and its base offset.
    pub first: Option<(usize, i64)>,
    /// Where the last one that is wanted begins, and the least offset that was due there.
    pub last: (usize, i64),
    pub next_offset: i64,
    pub skipped_bytes: usize,
}

/// The sound batches in the epoch and the bounds of `cut` from `start` on, up to the first that is not wanted or does not fit.
pub fn cut(buffer: &[u8], start: usize, cut: Cut) -> Taken {
    let mut left_bytes = cut.left_bytes;
    let mut taken = Taken {
        stop: start,
        first: None,
        last: (start, cut.least_offset),
        next_offset: cut.least_offset,
        skipped_bytes: 0,
    };
    let is_taken = |batch: &Batch, taken: &Taken, left_bytes: usize| {
        batch.base_offset >= taken.next_offset
            && batch.last_offset <= cut.greatest_offset
            && i64::from(batch.leader_epoch) == cut.leader_epoch
            && batch.base_offset < cut.epoch_stop
            && (batch.last_offset < cut.start_offset
                || (batch.base_offset < cut.stop_offset
                    && (batch.stop - batch.start <= left_bytes
                        || (cut.takes_any_size && taken.first.is_none()))))
    };
    while let Some(batch) = sound_batch(buffer, taken.stop, |batch| {
        is_taken(batch, &taken, left_bytes)
    }) {
        let size = batch.stop - batch.start;
        if batch.last_offset >= cut.start_offset {
            left_bytes = left_bytes.saturating_sub(size);
            taken.first.get_or_insert((batch.start, batch.base_offset));
            taken.last = (batch.start, taken.next_offset);
        } else {
            taken.skipped_bytes += size;
        }
        taken.next_offset = batch.last_offset + 1;
        taken.stop = batch.stop;
    }
    taken
}

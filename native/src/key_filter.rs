//! The keys of a cleaned segment, and the Bloom filter of them (`tiersidecar.formats.compaction.key_filter`).

use crate::cleaning::{DELETE_HORIZON_FLAG, is_plain};
use crate::header::{HEADER_SIZE, sound_batch};
use crate::records::{Frame, Record, read_records};

const DIGEST_SIZE: usize = 16;
const HALF: usize = DIGEST_SIZE / 2;

/// Digests of the keys that a run had, and when the first of its tombstones may go (`i64::MAX`: it has none).
pub struct Keys {
    pub digests: Vec<u8>,
    pub due: i64,
}

impl Keys {
    pub fn none() -> Self {
        Self {
            digests: Vec::new(),
            due: i64::MAX,
        }
    }
}

/// Where the run of plain batches from `start` on stopped, and its keys.  It stops, too, before a batch with a record that has
/// no key, or a tombstone without a horizon.
pub fn collect_run(buffer: &[u8], start: usize) -> (usize, Keys) {
    let (mut at, mut keys, mut records) = (start, Keys::none(), Vec::new());
    while let Some(batch) = sound_batch(buffer, at, |batch| is_plain(batch, -1)) {
        let body = &buffer[at + HEADER_SIZE..batch.stop];
        if !collect(
            body,
            &batch.frame(),
            batch.attributes,
            &mut keys,
            &mut records,
        ) {
            break;
        }
        at = batch.stop;
    }
    (at, keys)
}

/// Add the keys of one batch's opened records to `keys`, and whether it was done: all or none.
pub fn collect(
    body: &[u8],
    frame: &Frame,
    attributes: i16,
    keys: &mut Keys,
    records: &mut Vec<Record>,
) -> bool {
    if read_records(body, frame, records).is_none() || records.iter().any(|one| one.key.is_none()) {
        return false;
    }
    if records.iter().any(|one| one.is_tombstone) {
        if attributes & DELETE_HORIZON_FLAG == 0 {
            return false;
        }
        keys.due = keys.due.min(frame.base_timestamp);
    }
    for (begin, end) in records.iter().filter_map(|one| one.key) {
        let digest = md5::compute(&body[begin..end]).0;
        keys.digests.extend_from_slice(&digest);
    }
    true
}

/// Set the bits of all `digests`; `bits` is not empty.
pub fn fill(bits: &mut [u8], probes: usize, digests: &[u8]) {
    for digest in digests.chunks_exact(DIGEST_SIZE) {
        for place in places(digest, probes, bits.len()) {
            bits[place / 8] |= 1 << (place % 8);
        }
    }
}

/// Whether the filter may have any of the keys in the map's slots; `bits` is not empty.
pub fn has_any(bits: &[u8], probes: usize, digests: &[u8], offsets: &[i64]) -> bool {
    digests
        .chunks_exact(DIGEST_SIZE)
        .zip(offsets)
        .any(|(digest, &offset)| {
            offset != 0
                && places(digest, probes, bits.len())
                    .all(|place| bits[place / 8] & (1 << (place % 8)) != 0)
        })
}

/// The places of a key's bits: of its digest's halves and a mix of both, the first one, the step, and what is added to the step.
fn places(digest: &[u8], probes: usize, size: usize) -> impl Iterator<Item = usize> {
    let half = |begin: usize| u64::from_be_bytes(std::array::from_fn(|at| digest[begin + at]));
    let (mut place, mut step) = (half(0), half(HALF));
    let change = mixed(place ^ step.rotate_left(32));
    let bits = size as u128 * 8;
    (0..probes).map(move |_| {
        let found = (u128::from(place) * bits) >> 64;
        place = place.wrapping_add(step);
        step = step.wrapping_add(change);
        found as usize
    })
}

/// The last step of SplitMix64.
fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

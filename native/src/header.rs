//! The fields of a format 2 batch header that decide whether a walk takes the batch.

pub const HEADER_SIZE: usize = 61;
const LOG_OVERHEAD: usize = 12;
const CRC_START: usize = 21;
const LEAST_LENGTH: i32 = (HEADER_SIZE - LOG_OVERHEAD) as i32;

/// A batch of format 2 that lies whole in the buffer, with a checksum that holds and offsets below 2^63 - 1.
pub struct Batch {
    pub start: usize,
    pub stop: usize,
    pub base_offset: i64,
    pub last_offset: i64,
    pub leader_epoch: i32,
    pub attributes: i16,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub record_count: i32,
}

/// The sound batch that begins at `start`, or None: for a part of a batch, an older format, damage, and an offset that leaves
/// no room for one after it.  Python looks at all of those, and names what is wrong with them.
///
/// `is_taken` is asked before the checksum is computed.
pub fn sound_batch(
    buffer: &[u8],
    start: usize,
    is_taken: impl FnOnce(&Batch) -> bool,
) -> Option<Batch> {
    let rest = buffer.get(start..)?;
    let header: &[u8; HEADER_SIZE] = rest.first_chunk()?;
    let length = i32::from_be_bytes(field(header, 8));
    let last_offset_delta = i32::from_be_bytes(field(header, 23));
    if header[16] != 2 || length < LEAST_LENGTH || last_offset_delta < 0 {
        return None;
    }
    let size = LOG_OVERHEAD + usize::try_from(length).ok()?;
    let whole = rest.get(..size)?;
    let base_offset = i64::from_be_bytes(field(header, 0));
    let last_offset = base_offset.checked_add(i64::from(last_offset_delta))?;
    if last_offset >= i64::MAX - 1 {
        return None;
    }
    let batch = Batch {
        start,
        stop: start + size,
        base_offset,
        last_offset,
        leader_epoch: i32::from_be_bytes(field(header, 12)),
        attributes: i16::from_be_bytes(field(header, 21)),
        base_timestamp: i64::from_be_bytes(field(header, 27)),
        max_timestamp: i64::from_be_bytes(field(header, 35)),
        record_count: i32::from_be_bytes(field(header, 57)),
    };
    let crc = u32::from_be_bytes(field(header, 17));
    (is_taken(&batch) && crc32c::crc32c(&whole[CRC_START..]) == crc).then_some(batch)
}

fn field<const N: usize>(header: &[u8; HEADER_SIZE], at: usize) -> [u8; N] {
    std::array::from_fn(|index| header[at + index])
}

//! The records of one batch of format 2, as places in its opened body, and their bytes in a new one.

/// What a batch says of its records, beside their bytes.
#[derive(Clone, Copy)]
pub struct Frame {
    pub base_offset: i64,
    pub last_offset: i64,
    pub base_timestamp: i64,
    /// The time of all records, where the log gave it.
    pub append_time: Option<i64>,
    pub record_count: i32,
}

/// A record: `tail` is all from its offset delta on, as the range `tail_start..stop` of the body.
#[derive(Clone, Copy)]
pub struct Record {
    pub offset: i64,
    pub timestamp: i64,
    pub key: Option<(usize, usize)>,
    pub is_tombstone: bool,
    pub tail_start: usize,
    pub stop: usize,
}

/// Put the records of `body` into `records`, emptied before.  None: it is not for certain as Python would read it.
pub fn read_records(body: &[u8], frame: &Frame, records: &mut Vec<Record>) -> Option<()> {
    records.clear();
    let mut at = 0;
    for _ in 0..frame.record_count {
        let record = read_record(body, at, frame)?;
        at = record.stop;
        records.push(record);
    }
    (at == body.len()).then_some(())
}

fn read_record(body: &[u8], at: usize, frame: &Frame) -> Option<Record> {
    let (length, begin) = read_int(body, at)?;
    let stop = begin.checked_add(usize::try_from(length).ok()?)?;
    let whole = body.get(..stop)?;
    let (timestamp_delta, tail_start) = read_long(whole, begin + 1)?;
    let (offset_delta, place) = read_int(whole, tail_start)?;
    let (key_size, mut place) = read_int(whole, place)?;
    let mut key = None;
    if let Ok(size) = usize::try_from(key_size) {
        let end = place.checked_add(size)?;
        key = Some((place, end));
        place = end;
    }
    let (value_size, place) = read_int(whole, place)?;
    if place.checked_add(usize::try_from(value_size.max(0)).ok()?)? > stop {
        return None;
    }
    let offset = frame.base_offset.checked_add(offset_delta)?;
    if !(frame.base_offset..=frame.last_offset).contains(&offset) {
        return None;
    }
    Some(Record {
        offset,
        timestamp: frame
            .append_time
            .unwrap_or(frame.base_timestamp.wrapping_add(timestamp_delta)),
        key,
        is_tombstone: value_size < 0,
        tail_start,
        stop,
    })
}

/// Append `records` of `body` to `out`, their times relative to `base_timestamp`.
pub fn write_records(records: &[Record], body: &[u8], base_timestamp: i64, out: &mut Vec<u8>) {
    for record in records {
        let tail = &body[record.tail_start..record.stop];
        let delta = record.timestamp.wrapping_sub(base_timestamp);
        write_varint((1 + varint_size(delta) + tail.len()) as i64, out);
        out.push(0);
        write_varint(delta, out);
        out.extend_from_slice(tail);
    }
}

/// A zig-zag varint, cut to 32 bits before the zig-zag as in Java, and the place after it.
fn read_int(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let (raw, place) = read_raw(bytes, at)?;
    Some((unzigzagged(raw & u64::from(u32::MAX)), place))
}

fn read_long(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let (raw, place) = read_raw(bytes, at)?;
    Some((unzigzagged(raw), place))
}

fn read_raw(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut raw = 0;
    for (index, byte) in bytes.get(at..)?.iter().take(10).enumerate() {
        raw |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((raw, at + index + 1));
        }
    }
    None
}

fn unzigzagged(raw: u64) -> i64 {
    ((raw >> 1) as i64) ^ -((raw & 1) as i64)
}

fn zigzagged(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn varint_size(value: i64) -> usize {
    let bits = 64 - (zigzagged(value) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn write_varint(value: i64, out: &mut Vec<u8>) {
    let mut raw = zigzagged(value);
    while raw >= 0x80 {
        out.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

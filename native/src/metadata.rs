//! Records of the metadata topic, as `tiersidecar/formats/metadata` reads them.
//!
//! The shapes that `hot.py` reads are read as it does, and those of segments with several leader epochs or long custom metadata
//! as `serde.py` does.  Everything else is left to Python, which alone says what is wrong with a record.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

pub const KEY_SIZE: usize = 20;
pub const UUID_SIZE: usize = 16;

/// Topic id and partition, as the records have them.
pub type Key = [u8; KEY_SIZE];
pub type Uuid = [u8; UUID_SIZE];

pub const STARTED: u8 = 0;
pub const FINISHED: u8 = 1;
pub const DELETING: u8 = 2;
pub const DELETED: u8 = 3;

const ADDED_KIND: u8 = 0;
const UPDATED_KIND: u8 = 1;
const LAST_KIND: u8 = 2;
const UVARINT_LIMIT: u64 = 1 << 31;

/// A RemoteLogSegmentMetadata.
pub struct Added {
    pub start: i64,
    pub end: i64,
    pub max_timestamp: i64,
    pub size: i32,
    /// Of the batch's epochs.
    pub epochs: Range<usize>,
    pub is_txn_index_empty: bool,
    pub update: Updated,
}

/// What a RemoteLogSegmentMetadataUpdate changes.  Custom metadata is a range of the value.
pub struct Updated {
    pub broker: i32,
    pub event_timestamp: i64,
    pub custom: Option<Range<usize>>,
    pub state: u8,
}

pub enum Event {
    /// It does not say for certain whose it is: Python reads it.
    Unreadable,
    /// It ends within its key, so no partition that is kept has it.
    OfNoPartition,
    /// Python reads it, if its partition is kept.
    Odd { partition: usize },
    Added {
        partition: usize,
        segment: usize,
        fields: Added,
    },
    Updated {
        partition: usize,
        segment: usize,
        fields: Updated,
    },
}

/// Records in their order.  User partitions and segments have numbers, in the order in which they first occur.
#[derive(Default)]
pub struct Batch {
    pub events: Vec<Event>,
    pub keys: Vec<Key>,
    pub uuids: Vec<Uuid>,
    /// Leader epochs with their starts relative to the segment's.
    pub epochs: Vec<(i32, i64)>,
}

impl Batch {
    pub fn read<'a>(values: impl ExactSizeIterator<Item = &'a [u8]>) -> Self {
        let mut batch = Self::default();
        batch.events.reserve_exact(values.len());
        let (mut partitions, mut segments) = (Numbers::default(), Numbers::default());
        segments.reserve(values.len() / 2);
        for value in values {
            let event = batch.read_one(value, &mut partitions, &mut segments);
            batch.events.push(event);
        }
        batch
    }

    fn read_one(
        &mut self,
        value: &[u8],
        partitions: &mut Numbers<Key>,
        segments: &mut Numbers<(usize, Uuid)>,
    ) -> Event {
        let Some((kind, position)) = peek(value) else {
            return Event::Unreadable;
        };
        let Some(key) = value
            .get(position..)
            .and_then(<[u8]>::first_chunk::<KEY_SIZE>)
        else {
            return Event::OfNoPartition;
        };
        let partition = *partitions.entry(*key).or_insert_with(|| {
            self.keys.push(*key);
            self.keys.len() - 1
        });
        let uuids = &mut self.uuids;
        let mut number_of = |uuid| {
            *segments.entry((partition, uuid)).or_insert_with(|| {
                uuids.push(uuid);
                uuids.len() - 1
            })
        };
        match kind {
            ADDED_KIND => {
                let known = self.epochs.len();
                if let Some((uuid, fields)) = read_added(value, position, &mut self.epochs) {
                    return Event::Added {
                        partition,
                        segment: number_of(uuid),
                        fields,
                    };
                }
                self.epochs.truncate(known);
            }
            UPDATED_KIND => {
                if let Some((uuid, fields)) = read_updated(value, position) {
                    return Event::Updated {
                        partition,
                        segment: number_of(uuid),
                        fields,
                    };
                }
            }
            _ => {}
        }
        Event::Odd { partition }
    }
}

/// Numbers in the order of their keys' first occurrence.
pub type Numbers<K> = HashMap<K, usize, BuildHasherDefault<Mixer>>;

/// A quick hash: the keys are random ids but for a few bytes, and only brokers write them.
#[derive(Default)]
pub struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The kind of a record, and where its topic id begins, as `hot.peek` finds it, whatever the name before it is.
fn peek(value: &[u8]) -> Option<(u8, usize)> {
    let &[1, kind @ 0..=LAST_KIND, 0, length, ..] = value else {
        return None;
    };
    let length = usize::from(length);
    if length < 0x80 {
        return Some((kind, 3 + length));
    }
    let second = usize::from(*value.get(4)?);
    Some((kind, 4 + (length & 0x7F | second << 7)))
}

fn read_added(
    value: &[u8],
    position: usize,
    epochs: &mut Vec<(i32, i64)>,
) -> Option<(Uuid, Added)> {
    let mut cursor = Cursor {
        value,
        at: position + KEY_SIZE,
        is_hot: true,
    };
    cursor.no_tags()?;
    let uuid = cursor.chunk()?;
    cursor.no_tags()?;
    let (start, end) = (cursor.int64()?, cursor.int64()?);
    if !(0 <= start && start <= end) {
        return None;
    }
    let broker = cursor.int32()?;
    let (max_timestamp, event_timestamp) = (cursor.int64()?, cursor.int64()?);
    let epochs = cursor.read_epochs(start, epochs)?;
    let size = cursor.int32()?;
    let custom = cursor.custom()?;
    let state = cursor.state()?;
    let is_txn_index_empty = match &value[cursor.at..] {
        [0] | [1, 0, 1, 0] => false,
        [1, 0, 1, 1] => true,
        _ => return None,
    };
    (cursor.is_hot || has_name(value, position)).then_some((
        uuid,
        Added {
            start,
            end,
            max_timestamp,
            size,
            epochs,
            is_txn_index_empty,
            update: Updated {
                broker,
                event_timestamp,
                custom,
                state,
            },
        },
    ))
}

fn read_updated(value: &[u8], position: usize) -> Option<(Uuid, Updated)> {
    let mut cursor = Cursor {
        value,
        at: position + KEY_SIZE,
        is_hot: true,
    };
    cursor.no_tags()?;
    let uuid = cursor.chunk()?;
    cursor.no_tags()?;
    let fields = Updated {
        broker: cursor.int32()?,
        event_timestamp: cursor.int64()?,
        custom: cursor.custom()?,
        state: cursor.state()?,
    };
    let is_whole = value[cursor.at..] == [0] && (cursor.is_hot || has_name(value, position));
    is_whole.then_some((uuid, fields))
}

/// Whether the topic's name is one that `serde.py` reads: `hot.py` does not look at it, nor at how its length is written.
fn has_name(value: &[u8], position: usize) -> bool {
    let begin = match (value[3], value[4]) {
        (0, _) => return false,
        (..0x80, _) => 4,
        (0x80, 0) => return false,
        (_, ..0x80) => 5,
        _ => return false,
    };
    value
        .get(begin..position)
        .is_some_and(|name| std::str::from_utf8(name).is_ok())
}

/// Reads on from `at`, which is at most the length.  `is_hot` is false once `hot.py` would have declined.
struct Cursor<'a> {
    value: &'a [u8],
    at: usize,
    is_hot: bool,
}

impl Cursor<'_> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let chunk = *self.value.get(self.at..)?.first_chunk::<N>()?;
        self.at += N;
        Some(chunk)
    }

    fn int32(&mut self) -> Option<i32> {
        self.chunk().map(i32::from_be_bytes)
    }

    fn int64(&mut self) -> Option<i64> {
        self.chunk().map(i64::from_be_bytes)
    }

    fn no_tags(&mut self) -> Option<()> {
        (self.chunk()? == [0]).then_some(())
    }

    fn state(&mut self) -> Option<u8> {
        let [state] = self.chunk()?;
        (state <= DELETED).then_some(state)
    }

    fn uvarint(&mut self) -> Option<usize> {
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            let [byte] = self.chunk()?;
            number |= u64::from(byte & 0x7F) << shift;
            shift += 7;
            if number >= UVARINT_LIMIT || shift > 35 {
                return None;
            }
            if byte < 0x80 {
                self.is_hot &= shift == 7;
                return usize::try_from(number).ok();
            }
        }
    }

    fn custom(&mut self) -> Option<Option<Range<usize>>> {
        let Some(size) = self.uvarint()?.checked_sub(1) else {
            return Some(None);
        };
        let begin = self.at;
        self.at = begin.checked_add(size)?;
        (self.at <= self.value.len()).then_some(Some(begin..self.at))
    }

    /// Append the epochs, which must ascend.
    fn read_epochs(&mut self, start: i64, epochs: &mut Vec<(i32, i64)>) -> Option<Range<usize>> {
        let count = self.uvarint()?.checked_sub(1)?;
        self.is_hot &= count == 1;
        let begin = epochs.len();
        for _ in 0..count {
            let (epoch, epoch_start) = (self.int32()?, self.int64()?);
            self.no_tags()?;
            if epochs[begin..].last().is_some_and(|last| last.0 >= epoch) {
                return None;
            }
            epochs.push((epoch, epoch_start.checked_sub(start)?));
        }
        (count > 0).then_some(begin..epochs.len())
    }
}

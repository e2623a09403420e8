//! The slots of `tiersidecar.formats.compaction.offset_map.OffsetMap`, which Python owns: 16 bytes of MD5 each, and the offset
//! plus 1, or 0 where the slot is empty.

const DIGEST_SIZE: usize = 16;
const HASHED_PROBES: usize = 13;

/// The map as it is read.
pub struct Slots<D, O> {
    pub digests: D,
    pub offsets: O,
}

impl<D: AsRef<[u8]>, O: AsRef<[i64]>> Slots<D, O> {
    /// Whether both parts have the same number of slots, and at least one.
    pub fn is_whole(&self) -> bool {
        let slots = self.offsets.as_ref().len();
        slots > 0 && Some(self.digests.as_ref().len()) == slots.checked_mul(DIGEST_SIZE)
    }

    /// The last offset of `key`, or -1.
    pub fn get(&self, key: &[u8]) -> i64 {
        self.find(&md5::compute(key).0)
            .map_or(-1, |slot| self.offsets.as_ref()[slot] - 1)
    }

    /// The slot of `digest`, or the empty one where it belongs.
    fn find(&self, digest: &[u8; DIGEST_SIZE]) -> Option<usize> {
        let slots = self.offsets.as_ref().len();
        let mut slot = 0;
        for probe in 0..HASHED_PROBES {
            let window = std::array::from_fn(|index| digest[probe + index]);
            slot = u32::from_be_bytes(window) as usize % slots;
            if self.is_of(slot, digest) {
                return Some(slot);
            }
        }
        (0..slots)
            .map(|step| (slot + 1 + step) % slots)
            .find(|&next| self.is_of(next, digest))
    }

    fn is_of(&self, slot: usize, digest: &[u8; DIGEST_SIZE]) -> bool {
        let begin = slot * DIGEST_SIZE;
        self.offsets.as_ref()[slot] == 0
            || self.digests.as_ref()[begin..begin + DIGEST_SIZE] == *digest
    }
}

impl<D: AsRef<[u8]> + AsMut<[u8]>, O: AsRef<[i64]> + AsMut<[i64]>> Slots<D, O> {
    /// Record `offset` as the last one of `key`, and whether its slot was empty; None where no slot is left.
    pub fn put(&mut self, key: &[u8], offset: i64) -> Option<bool> {
        let digest = md5::compute(key).0;
        let slot = self.find(&digest)?;
        let was_empty = self.offsets.as_ref()[slot] == 0;
        if was_empty {
            let begin = slot * DIGEST_SIZE;
            self.digests.as_mut()[begin..begin + DIGEST_SIZE].copy_from_slice(&digest);
        }
        self.offsets.as_mut()[slot] = offset + 1;
        Some(was_empty)
    }
}

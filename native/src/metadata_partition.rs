//! The fold of events into the cache of one user partition.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyIndexError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PySet};

use crate::borrowed::mut_slice_of;
use crate::metadata::{Added, DELETED, DELETING, FINISHED, STARTED, UUID_SIZE, Updated, Uuid};
use crate::metadata_epochs::Maps;

/// Of a row as `metadata_cache_rows.ROW` packs it.
const ROW_SIZE: usize = 62;
const START_AT: usize = UUID_SIZE;
const END_AT: usize = START_AT + 8;
const SIZE_AT: usize = END_AT + 16;
const MAP_AT: usize = SIZE_AT + 4;
const MUTABLE_AT: usize = MAP_AT + 5;
const STATE_AT: usize = ROW_SIZE - 1;

/// Of one partition in a batch, in a replay of some thousand partitions.
pub const USUAL_SEGMENTS: usize = 4;

/// A segment while a fold goes on; it counts if it is of the present `turn`.
#[derive(Clone, Copy, Default)]
pub struct Place {
    turn: u32,
    number: Option<u32>,
    state: u8,
    /// The row that was listed as unfinished when the fold began.
    was_pending: Option<u32>,
}

impl Place {
    fn is_pending(&self) -> Option<u32> {
        self.number.filter(|_| self.state != FINISHED)
    }
}

/// The fold of one user partition.
pub struct Fold<'py> {
    held: Bound<'py, PyAny>,
    cache: Bound<'py, PyAny>,
    rows: Bound<'py, PyAny>,
    number_of: Bound<'py, PyDict>,
    custom: Bound<'py, PyList>,
    data: Bound<'py, PyByteArray>,
    /// Of `data`, while no row is appended.
    buffer: Option<PyBuffer<u8>>,
    /// Size of `data`, behind which `appended` will be.
    stored: usize,
    appended: Vec<u8>,
    maps: Maps<'py>,
    touched: Vec<usize>,
    /// The uuid of the last call of `find`, if that looked it up: its hash is made.
    looked_up: Option<Bound<'py, PyBytes>>,
    turn: u32,
    pub applied_to: i64,
    pub has_applied: bool,
    has_changed: bool,
    grown_by: i64,
}

impl<'py> Fold<'py> {
    /// Begin with what the partition has.
    pub fn begin(py: Python<'py>, held: Bound<'py, PyAny>, turn: u32) -> PyResult<Self> {
        let cache = held.getattr(intern!(py, "cache"))?;
        let rows = cache.getattr(intern!(py, "_rows"))?;
        let data = rows.getattr(intern!(py, "_data"))?.cast_into()?;
        Ok(Self {
            applied_to: held.getattr(intern!(py, "applied_to"))?.extract()?,
            number_of: rows.getattr(intern!(py, "_number_of"))?.cast_into()?,
            custom: rows.getattr(intern!(py, "_custom"))?.cast_into()?,
            buffer: None,
            stored: PyByteArrayMethods::len(&data),
            data,
            appended: Vec::with_capacity(USUAL_SEGMENTS * ROW_SIZE),
            maps: Maps::of(&cache)?,
            touched: Vec::with_capacity(USUAL_SEGMENTS),
            looked_up: None,
            turn,
            has_applied: false,
            has_changed: false,
            grown_by: 0,
            held,
            cache,
            rows,
        })
    }

    /// Give the segment's place as it is at present: as an event before left it, or as the cache has it.
    pub fn find<'a>(
        &mut self,
        places: &'a mut [Place],
        segment: usize,
        uuids: &[Uuid],
    ) -> PyResult<&'a mut Place> {
        let place = &mut places[segment];
        if place.turn == self.turn {
            self.looked_up = None;
            return Ok(place);
        }
        let uuid = PyBytes::new(self.held.py(), &uuids[segment]);
        let number = self.number_of.get_item(&uuid)?;
        self.looked_up = Some(uuid);
        *place = Place {
            turn: self.turn,
            number: number.map(|number| number.extract()).transpose()?,
            ..Place::default()
        };
        if let Some(number) = place.number {
            place.state = self.row(number)?[STATE_AT];
            place.was_pending = place.is_pending();
        }
        self.touched.push(segment);
        Ok(place)
    }

    /// Take the first event of a segment.
    pub fn add(
        &mut self,
        place: &mut Place,
        uuid: &Uuid,
        added: &Added,
        epochs: &[(i32, i64)],
        value: &[u8],
    ) -> PyResult<bool> {
        if added.update.state != STARTED || place.number.is_some() {
            return Ok(false);
        }
        let mut row = [0; ROW_SIZE];
        row[..UUID_SIZE].copy_from_slice(uuid);
        row[START_AT..END_AT].copy_from_slice(&added.start.to_le_bytes());
        row[END_AT..END_AT + 8].copy_from_slice(&added.end.to_le_bytes());
        row[END_AT + 8..SIZE_AT].copy_from_slice(&added.max_timestamp.to_le_bytes());
        row[SIZE_AT..MAP_AT].copy_from_slice(&added.size.to_le_bytes());
        row[MAP_AT..MAP_AT + 4].copy_from_slice(&self.maps.number_of(epochs)?.to_le_bytes());
        row[MAP_AT + 4] = u8::from(added.is_txn_index_empty);
        write_update(&mut row, &added.update);
        let number = self.insert(&row, custom_of(self.held.py(), &added.update, value))?;
        let looked_up = self.looked_up.take();
        let uuid = looked_up.unwrap_or_else(|| PyBytes::new(self.held.py(), uuid));
        self.number_of.set_item(uuid, number)?;
        self.grown_by += i64::from(added.size);
        self.has_changed = true;
        place.number = Some(number);
        place.state = STARTED;
        Ok(true)
    }

    /// Give the number of the new row: that of one that was removed, if there is any, as `SegmentRows.insert` does.
    fn insert(&mut self, row: &[u8], custom: Option<Bound<'py, PyBytes>>) -> PyResult<u32> {
        if self.custom.len() == self.number_of.len() {
            self.appended.extend_from_slice(row);
            self.custom.append(custom)?;
            return Ok(u32::try_from(self.custom.len() - 1)?);
        }
        let free = self.rows.getattr(intern!(self.held.py(), "_free"))?;
        let free = free.cast::<PyList>()?;
        let number: u32 = free.get_item(free.len().saturating_sub(1))?.extract()?;
        self.row(number)?.copy_from_slice(row);
        self.custom.set_item(number as usize, custom)?;
        free.del_item(free.len() - 1)?;
        Ok(number)
    }

    /// Take an update.
    pub fn update(
        &mut self,
        place: &mut Place,
        uuid: &Uuid,
        update: &Updated,
        value: &[u8],
    ) -> PyResult<bool> {
        let py = self.held.py();
        let is_taken = match place.number {
            None => {
                let is_loaded: bool = self.cache.getattr(intern!(py, "_is_loaded"))?.extract()?;
                !is_loaded
            }
            Some(_) if !is_allowed(place.state, update.state) => false,
            Some(number) if update.state == DELETED => {
                self.remove(number, uuid)?;
                place.number = None;
                true
            }
            Some(number) => self.change(number, place, update, value)?,
        };
        if is_taken && update.state == DELETED {
            let deleted = self.held.getattr(intern!(py, "_deleted"))?;
            if !deleted.is_none() {
                deleted.cast::<PySet>()?.add(PyBytes::new(py, uuid))?;
            }
        }
        Ok(is_taken)
    }

    fn change(
        &mut self,
        number: u32,
        place: &mut Place,
        update: &Updated,
        value: &[u8],
    ) -> PyResult<bool> {
        let row = self.row(number)?;
        let start = i64::from_le_bytes(part(row, START_AT)?);
        let end = i64::from_le_bytes(part(row, END_AT)?);
        let map = u32::from_le_bytes(part(row, MAP_AT)?);
        let Some(slices) = self.maps.spans(map, start)? else {
            return Ok(false);
        };
        for slice in slices {
            let (epochs, start, end) = self.maps.span(slice, start, end);
            if update.state == FINISHED {
                epochs.finish(number, start, end)?;
            } else if epochs.withdraw(number, start)? {
                let segments = epochs.for_python()?.clone();
                self.write_rows()?;
                let name = intern!(segments.py(), "_restore_superseded");
                self.cache.call_method1(name, (segments,))?;
            }
        }
        write_update(self.row(number)?, update);
        let custom = custom_of(self.held.py(), update, value);
        self.custom.set_item(number as usize, custom)?;
        self.has_changed = true;
        place.state = update.state;
        Ok(true)
    }

    /// `SegmentRows.remove`.
    fn remove(&mut self, number: u32, uuid: &Uuid) -> PyResult<()> {
        let py = self.held.py();
        let size = i32::from_le_bytes(part(self.row(number)?, SIZE_AT)?);
        self.grown_by -= i64::from(size);
        self.number_of.del_item(PyBytes::new(py, uuid))?;
        self.custom.set_item(number as usize, py.None())?;
        let free = self.rows.getattr(intern!(py, "_free"))?;
        free.cast::<PyList>()?.append(number)?;
        self.has_changed = true;
        Ok(())
    }

    fn row(&mut self, number: u32) -> PyResult<&mut [u8]> {
        let at = number as usize * ROW_SIZE;
        let row = match at.checked_sub(self.stored) {
            Some(at) => self.appended.get_mut(at..at + ROW_SIZE),
            None => {
                let buffer = match &mut self.buffer {
                    Some(buffer) => buffer,
                    none => none.insert(PyBuffer::get(&self.data)?),
                };
                mut_slice_of(buffer)?.get_mut(at..at + ROW_SIZE)
            }
        };
        row.ok_or_else(|| PyIndexError::new_err(format!("there is no row {number}")))
    }

    /// Append the new rows to those of the cache.
    fn write_rows(&mut self) -> PyResult<()> {
        self.buffer = None;
        if self.appended.is_empty() {
            return Ok(());
        }
        let size = self.stored + self.appended.len();
        self.data.resize(size)?;
        let mut buffer = PyBuffer::get(&self.data)?;
        mut_slice_of(&mut buffer)?[self.stored..].copy_from_slice(&self.appended);
        self.stored = size;
        self.appended.clear();
        Ok(())
    }

    /// Leave the cache as it is after the events that were taken.
    pub fn end(&mut self, places: &[Place]) -> PyResult<()> {
        let py = self.held.py();
        self.write_rows()?;
        self.maps.write()?;
        self.list_pending(places)?;
        if self.grown_by != 0 {
            let name = intern!(py, "size_bytes");
            let size: i64 = self.rows.getattr(name)?.extract()?;
            self.rows.setattr(name, size + self.grown_by)?;
        }
        if self.has_changed {
            self.cache.setattr(intern!(py, "_mark"), py.None())?;
        }
        if self.has_applied {
            self.held
                .setattr(intern!(py, "applied_to"), self.applied_to)?;
            self.held.setattr(intern!(py, "is_dirty"), true)?;
        }
        Ok(())
    }

    /// A row that is not listed any more may have become another segment's, which is: so those come off first.
    fn list_pending(&self, places: &[Place]) -> PyResult<()> {
        let changed = self
            .touched
            .iter()
            .map(|segment| places[*segment])
            .map(|place| (place.was_pending, place.is_pending()))
            .filter(|(before, now)| before != now);
        if changed.clone().next().is_none() {
            return Ok(());
        }
        let pending = self.cache.getattr(intern!(self.cache.py(), "_pending"))?;
        let pending = pending.cast::<PySet>()?;
        for number in changed.clone().filter_map(|(before, _)| before) {
            pending.discard(number)?;
        }
        for number in changed.filter_map(|(_, now)| now) {
            pending.add(number)?;
        }
        Ok(())
    }
}

/// Whether the update is one of `SEGMENT_UPDATES` in `domain/states.py`.
fn is_allowed(source: u8, target: u8) -> bool {
    matches!(
        (source, target),
        (STARTED | FINISHED, FINISHED | DELETING) | (DELETING, DELETING | DELETED)
    )
}

fn write_update(row: &mut [u8], update: &Updated) {
    row[MUTABLE_AT..MUTABLE_AT + 4].copy_from_slice(&update.broker.to_le_bytes());
    row[MUTABLE_AT + 4..STATE_AT].copy_from_slice(&update.event_timestamp.to_le_bytes());
    row[STATE_AT] = update.state;
}

fn custom_of<'py>(py: Python<'py>, update: &Updated, value: &[u8]) -> Option<Bound<'py, PyBytes>> {
    let range = update.custom.clone()?;
    Some(PyBytes::new(py, &value[range]))
}

fn part<const N: usize>(row: &[u8], at: usize) -> PyResult<[u8; N]> {
    let part = row.get(at..).and_then(<[u8]>::first_chunk);
    part.copied()
        .ok_or_else(|| PyIndexError::new_err("a row is too short"))
}

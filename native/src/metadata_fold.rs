//! The fold of a metadata partition's records into the caches of user partitions.
//!
//! It works on the objects of `tiersidecar/domain/metadata_cache.py`, under Python's lock, and leaves them as Python's own fold
//! would.  What a batch does to one row, or to the end of one epoch, is gathered and written once.  Before anything rarer,
//! Python's own methods are called, and before an event that the rules may forbid the fold stops.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::LEAST_WITHOUT_LOCK;
use crate::metadata::{Batch, Event};
use crate::metadata_partition::{Fold, Place};

/// Records that were read, to be folded.
#[pyclass]
pub struct MetadataBatch {
    offsets: Vec<i64>,
    values: Vec<Option<PyBackedBytes>>,
    read: Batch,
    places: Vec<Place>,
    /// By the number of their keys: a fold that goes on after a stop looks at those alone that it meets.
    holders: Vec<Holder>,
    turn: u32,
}

/// Read the values of `records`, objects with offset and value.
#[pyfunction]
pub fn read_metadata(py: Python<'_>, records: &Bound<'_, PyList>) -> PyResult<MetadataBatch> {
    let (mut offsets, mut values) = (
        Vec::with_capacity(records.len()),
        Vec::with_capacity(records.len()),
    );
    let mut size = 0;
    for record in records.iter() {
        offsets.push(record.getattr(intern!(py, "offset"))?.extract::<i64>()?);
        let value = record.getattr(intern!(py, "value"))?;
        let value = value.cast_into::<PyBytes>().ok().map(PyBackedBytes::from);
        size += value.as_ref().map_or(0, |value| value.len());
        values.push(value);
    }
    let read = || Batch::read(values.iter().map(|value| value.as_deref().unwrap_or(&[])));
    let read = if size < LEAST_WITHOUT_LOCK {
        read()
    } else {
        py.detach(read)
    };
    let places = vec![Place::default(); read.uuids.len()];
    let holders = vec![Holder::default(); read.keys.len()];
    Ok(MetadataBatch {
        offsets,
        values,
        read,
        places,
        holders,
        turn: 0,
    })
}

/// A user partition of the batch; it counts if it is of the present `turn`.
#[derive(Clone, Copy, Default)]
struct Holder {
    turn: u32,
    /// Number of its fold; None: it is not kept.
    fold: Option<usize>,
}

#[pymethods]
impl MetadataBatch {
    /// Fold the records from number `start` on into the caches of `holders`.  Give (number of the first record that Python has
    /// to read, or their count; how many were applied, and skipped).
    fn fold<'py>(
        &mut self,
        py: Python<'py>,
        holders: &Bound<'py, PyDict>,
        start: usize,
    ) -> PyResult<(usize, usize, usize)> {
        self.turn += 1;
        let mut folds = Vec::new();
        let mut outcome = self.fold_into(py, &mut folds, holders, start);
        for fold in &mut folds {
            let ended = fold.end(&self.places);
            outcome = outcome.and_then(|taken| ended.map(|()| taken));
        }
        outcome
    }
}

impl MetadataBatch {
    fn fold_into<'py>(
        &mut self,
        py: Python<'py>,
        folds: &mut Vec<Fold<'py>>,
        holders: &Bound<'py, PyDict>,
        start: usize,
    ) -> PyResult<(usize, usize, usize)> {
        let (mut applied, mut skipped) = (0, 0);
        for at in start..self.offsets.len() {
            let event = &self.read.events[at];
            let partition = match event {
                Event::Unreadable => return Ok((at, applied, skipped)),
                Event::OfNoPartition => {
                    skipped += 1;
                    continue;
                }
                Event::Odd { partition }
                | Event::Added { partition, .. }
                | Event::Updated { partition, .. } => *partition,
            };
            let holder = &mut self.holders[partition];
            if holder.turn != self.turn {
                let key = PyBytes::new(py, &self.read.keys[partition]);
                let held = holders.get_item(key)?;
                *holder = Holder {
                    turn: self.turn,
                    fold: held.is_some().then_some(folds.len()),
                };
                if let Some(held) = held {
                    folds.push(Fold::begin(py, held, self.turn)?);
                }
            }
            let offset = self.offsets[at];
            let fold = match holder.fold {
                Some(fold) if offset > folds[fold].applied_to => &mut folds[fold],
                _ => {
                    skipped += 1;
                    continue;
                }
            };
            let value = self.values[at].as_deref().unwrap_or(&[]);
            let is_taken = match event {
                Event::Added {
                    segment, fields, ..
                } => {
                    let place = fold.find(&mut self.places, *segment, &self.read.uuids)?;
                    let epochs = &self.read.epochs[fields.epochs.clone()];
                    fold.add(place, &self.read.uuids[*segment], fields, epochs, value)?
                }
                Event::Updated {
                    segment, fields, ..
                } => {
                    let place = fold.find(&mut self.places, *segment, &self.read.uuids)?;
                    fold.update(place, &self.read.uuids[*segment], fields, value)?
                }
                _ => false,
            };
            if !is_taken {
                return Ok((at, applied, skipped));
            }
            fold.applied_to = offset;
            fold.has_applied = true;
            applied += 1;
        }
        Ok((self.offsets.len(), applied, skipped))
    }
}

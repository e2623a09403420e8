//! Leader epochs of a metadata cache while events are folded into it: `EpochSegments` of `metadata_cache_rows.py`, and the epoch
//! maps of rows.

use pyo3::exceptions::PyOverflowError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

/// The segments of one leader epoch.  Those that follow at the end are gathered; all else is done by the methods of Python's
/// own object, after it was given what is gathered.
pub struct Epochs<'py> {
    segments: Bound<'py, PyAny>,
    /// False after Python changed it.
    is_known: bool,
    last: Option<(i64, i64)>,
    highest: Option<i64>,
    has_runs: bool,
    starts: Vec<u8>,
    ends: Vec<u8>,
    rows: Vec<u8>,
}

impl<'py> Epochs<'py> {
    fn of(segments: Bound<'py, PyAny>) -> Self {
        Self {
            segments,
            is_known: false,
            last: None,
            highest: None,
            has_runs: false,
            starts: Vec::new(),
            ends: Vec::new(),
            rows: Vec::new(),
        }
    }

    fn know(&mut self, py: Python<'py>) -> PyResult<()> {
        if self.is_known {
            return Ok(());
        }
        let (starts, ends) = (
            self.segments.getattr(intern!(py, "starts"))?,
            self.segments.getattr(intern!(py, "ends"))?,
        );
        self.last = match starts.len()?.checked_sub(1) {
            None => None,
            Some(at) => Some((
                starts.get_item(at)?.extract()?,
                ends.get_item(at)?.extract()?,
            )),
        };
        self.highest = self
            .segments
            .getattr(intern!(py, "highest_offset"))?
            .extract()?;
        self.has_runs = !self.segments.getattr(intern!(py, "_runs"))?.is_none();
        self.is_known = true;
        Ok(())
    }

    /// `EpochSegments.finish`.
    pub fn finish(&mut self, py: Python<'py>, row: u32, start: i64, end: i64) -> PyResult<()> {
        self.know(py)?;
        let follows = self.last.is_none_or(|last| start > last.0 && end > last.1);
        if end < start || !follows || self.has_runs {
            self.for_python(py)?
                .call_method1(intern!(py, "finish"), (row, start, end))?;
            return Ok(());
        }
        self.last = Some((start, end));
        self.highest = self.highest.max(Some(end));
        self.starts.extend_from_slice(&start.to_ne_bytes());
        self.ends.extend_from_slice(&end.to_ne_bytes());
        self.rows.extend_from_slice(&row.to_ne_bytes());
        Ok(())
    }

    /// `EpochSegments.withdraw`.
    pub fn withdraw(&mut self, py: Python<'py>, row: u32, start: i64) -> PyResult<bool> {
        self.for_python(py)?
            .call_method1(intern!(py, "withdraw"), (row, start))?
            .is_truthy()
    }

    /// Python's object, for a change by Python.
    pub fn for_python(&mut self, py: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        self.write(py)?;
        self.is_known = false;
        Ok(&self.segments)
    }

    fn write(&mut self, py: Python<'py>) -> PyResult<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        for (name, gathered) in [
            (intern!(py, "starts"), &mut self.starts),
            (intern!(py, "ends"), &mut self.ends),
            (intern!(py, "rows"), &mut self.rows),
        ] {
            let column = self.segments.getattr(name)?;
            column.call_method1(intern!(py, "frombytes"), (PyBytes::new(py, gathered),))?;
            gathered.clear();
        }
        self.segments
            .setattr(intern!(py, "highest_offset"), self.highest)
    }
}

/// One epoch of a map; offsets are relative to a segment's start, and `last` is None up to its end.
struct Slice {
    at: usize,
    first: i64,
    last: Option<i64>,
}

/// The epoch maps of a cache, as far as they are needed.
pub struct Maps<'py> {
    cache: Bound<'py, PyAny>,
    pub epochs: Vec<Epochs<'py>>,
    known: Vec<(u32, Vec<Slice>)>,
    latest: (Vec<(i32, i64)>, u32),
}

impl<'py> Maps<'py> {
    pub fn of(cache: &Bound<'py, PyAny>) -> Self {
        Self {
            cache: cache.clone(),
            epochs: Vec::new(),
            known: Vec::new(),
            latest: (Vec::new(), 0),
        }
    }

    /// The number of the map with these epochs, made if there is none.
    pub fn number_of(&mut self, py: Python<'py>, epochs: &[(i32, i64)]) -> PyResult<u32> {
        if self.latest.0 == epochs {
            return Ok(self.latest.1);
        }
        let key = PyTuple::new(py, epochs)?;
        let numbers = self.cache.getattr(intern!(py, "_maps_by_epochs"))?;
        let number = match numbers.cast::<PyDict>()?.get_item(&key)? {
            Some(number) => number,
            None => self.cache.call_method1(intern!(py, "_intern"), (key,))?,
        };
        let number = number.extract()?;
        self.latest = (epochs.to_vec(), number);
        Ok(number)
    }

    /// The spans of a segment with this map: place in `epochs`, start and end.  None: they are beyond what Python's arrays hold.
    pub fn spans(
        &mut self,
        py: Python<'py>,
        map: u32,
        start: i64,
        end: i64,
    ) -> PyResult<Option<Vec<(usize, i64, i64)>>> {
        let at = match self.known.iter().position(|known| known.0 == map) {
            Some(at) => at,
            None => {
                let Some(slices) = self.slices(py, map)? else {
                    return Ok(None);
                };
                self.known.push((map, slices));
                self.known.len() - 1
            }
        };
        let spans = self.known[at].1.iter().map(|slice| {
            let last = slice.last.map_or(Some(end), |last| start.checked_add(last));
            Some((slice.at, start.checked_add(slice.first)?, last?))
        });
        Ok(spans.collect())
    }

    fn slices(&mut self, py: Python<'py>, map: u32) -> PyResult<Option<Vec<Slice>>> {
        let maps = self.cache.getattr(intern!(py, "_maps"))?;
        let mut slices = Vec::new();
        for slice in maps.get_item(map)?.cast::<PyTuple>()? {
            let first = slice.get_item(1)?.extract::<i64>();
            let last = slice.get_item(2)?.extract::<Option<i64>>();
            let (first, last) = match (first, last) {
                (Ok(first), Ok(last)) => (first, last),
                (Err(error), _) | (_, Err(error))
                    if error.is_instance_of::<PyOverflowError>(py) =>
                {
                    return Ok(None);
                }
                (Err(error), _) | (_, Err(error)) => return Err(error),
            };
            let at = self.place_of(slice.get_item(3)?);
            slices.push(Slice { at, first, last });
        }
        Ok(Some(slices))
    }

    fn place_of(&mut self, segments: Bound<'py, PyAny>) -> usize {
        let known = self.epochs.iter();
        known
            .map(|epochs| &epochs.segments)
            .position(|one| one.is(&segments))
            .unwrap_or_else(|| {
                self.epochs.push(Epochs::of(segments));
                self.epochs.len() - 1
            })
    }

    /// Give Python's objects all that is gathered.
    pub fn write(&mut self, py: Python<'py>) -> PyResult<()> {
        self.epochs
            .iter_mut()
            .try_for_each(|epochs| epochs.write(py))
    }
}

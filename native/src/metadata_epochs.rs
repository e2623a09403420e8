//! Leader epochs of a metadata cache while events are folded into it: `EpochSegments` of `metadata_cache_rows.py`, and the epoch
//! maps of rows.

use std::ops::Range;

use pyo3::exceptions::PyOverflowError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::metadata::Numbers;
use crate::metadata_partition::USUAL_SEGMENTS;

/// So many are looked through before a table is made of them.
const FEW_EPOCHS: usize = 16;

/// Start, end and row of a segment.
type Span = (i64, i64, u32);

/// The segments of one leader epoch.  Those that follow at the end are gathered; all else is done by the methods of Python's
/// own object, after it was given what is gathered.
pub struct Epochs<'py> {
    epoch: i64,
    segments: Bound<'py, PyAny>,
    /// None after Python may have changed it.
    end: Option<End<'py>>,
    gathered: Vec<Span>,
}

/// What it has at its end; `columns` are those of starts, ends and rows.
struct End<'py> {
    columns: [Bound<'py, PyAny>; 3],
    last: Option<(i64, i64)>,
    highest: Option<i64>,
    /// It has runs, or a highest offset below 64 bits, left by epochs out of order: Python finishes the next segment.
    is_for_python: bool,
}

impl<'py> End<'py> {
    fn of(segments: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = segments.py();
        let columns = [
            segments.getattr(intern!(py, "starts"))?,
            segments.getattr(intern!(py, "ends"))?,
            segments.getattr(intern!(py, "rows"))?,
        ];
        let last = match columns[0].len()?.checked_sub(1) {
            None => None,
            Some(at) => Some((
                columns[0].get_item(at)?.extract()?,
                columns[1].get_item(at)?.extract()?,
            )),
        };
        let has_runs = !segments.getattr(intern!(py, "_runs"))?.is_none();
        let highest = segments.getattr(intern!(py, "highest_offset"))?;
        let (highest, is_beyond) = match highest.extract::<Option<i64>>() {
            Ok(highest) => (highest, false),
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => (None, true),
            Err(error) => return Err(error),
        };
        Ok(Self {
            columns,
            last,
            highest,
            is_for_python: has_runs || is_beyond,
        })
    }

    /// Whether `EpochSegments.finish` would append this span, and do nothing else.
    fn is_followed_by(&self, start: i64, end: i64) -> bool {
        let follows = self.last.is_none_or(|last| start > last.0 && end > last.1);
        follows && end >= start && !self.is_for_python
    }
}

impl<'py> Epochs<'py> {
    /// `EpochSegments.finish`.
    pub fn finish(&mut self, row: u32, start: i64, end: i64) -> PyResult<()> {
        let known = match &mut self.end {
            Some(known) => known,
            none => none.insert(End::of(&self.segments)?),
        };
        if known.is_followed_by(start, end) {
            known.last = Some((start, end));
            known.highest = known.highest.max(Some(end));
            self.gathered.push((start, end, row));
            return Ok(());
        }
        let name = intern!(self.segments.py(), "finish");
        self.for_python()?.call_method1(name, (row, start, end))?;
        Ok(())
    }

    /// `EpochSegments.withdraw`.
    pub fn withdraw(&mut self, row: u32, start: i64) -> PyResult<bool> {
        let name = intern!(self.segments.py(), "withdraw");
        self.for_python()?
            .call_method1(name, (row, start))?
            .is_truthy()
    }

    /// Python's object, for a change by Python.
    pub fn for_python(&mut self) -> PyResult<&Bound<'py, PyAny>> {
        self.write()?;
        self.end = None;
        Ok(&self.segments)
    }

    fn write(&mut self) -> PyResult<()> {
        let (Some(end), false) = (&self.end, self.gathered.is_empty()) else {
            return Ok(());
        };
        let spans = &self.gathered;
        end.append(0, spans, |span| span.0.to_ne_bytes())?;
        end.append(1, spans, |span| span.1.to_ne_bytes())?;
        end.append(2, spans, |span| span.2.to_ne_bytes())?;
        self.gathered.clear();
        let name = intern!(self.segments.py(), "highest_offset");
        self.segments.setattr(name, end.highest)
    }
}

impl End<'_> {
    fn append<const N: usize>(
        &self,
        column: usize,
        spans: &[Span],
        bytes_of: impl Fn(&Span) -> [u8; N],
    ) -> PyResult<()> {
        let column = &self.columns[column];
        let py = column.py();
        let items = PyBytes::new_with(py, spans.len() * N, |items| {
            for (item, span) in items.chunks_exact_mut(N).zip(spans) {
                item.copy_from_slice(&bytes_of(span));
            }
            Ok(())
        })?;
        column.call_method1(intern!(py, "frombytes"), (items,))?;
        Ok(())
    }
}

/// One epoch of a map; `place` is that of its segments.  Offsets are relative to a segment's start, and where there is no next
/// epoch, the slice goes up to its end.
struct Slice {
    epoch: i64,
    place: usize,
    first: i64,
    next: Option<i64>,
}

/// The epoch maps of a cache, as far as they are needed.
pub struct Maps<'py> {
    cache: Bound<'py, PyAny>,
    maps: Bound<'py, PyList>,
    epochs: Vec<Epochs<'py>>,
    /// Places in `epochs`, where those are more than a few: of the first ones, up to the last look-up.
    places: Numbers<i64>,
    slices: Vec<Slice>,
    /// By their number; None: beyond 64 bits.
    known: Vec<(u32, Option<Range<usize>>)>,
    latest: (Vec<(i32, i64)>, u32),
}

impl<'py> Maps<'py> {
    pub fn of(cache: &Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(Self {
            cache: cache.clone(),
            maps: cache.getattr(intern!(cache.py(), "_maps"))?.cast_into()?,
            epochs: Vec::with_capacity(2),
            places: Numbers::default(),
            slices: Vec::with_capacity(2),
            known: Vec::with_capacity(2),
            latest: (Vec::with_capacity(1), 0),
        })
    }

    /// The number of the map with these epochs, made if there is none.
    pub fn number_of(&mut self, epochs: &[(i32, i64)]) -> PyResult<u32> {
        if self.latest.0 != epochs {
            let number = match self.newest_if(epochs)? {
                Some(number) => number,
                None => self.find_or_make(epochs)?,
            };
            self.latest.0.clear();
            self.latest.0.extend_from_slice(epochs);
            self.latest.1 = number;
        }
        Ok(self.latest.1)
    }

    /// The newest map, if it is the one: mostly so, and its slices will be needed as well.
    fn newest_if(&mut self, epochs: &[(i32, i64)]) -> PyResult<Option<u32>> {
        let Some(newest) = self.maps.len().checked_sub(1) else {
            return Ok(None);
        };
        if self.maps.get_item(newest)?.len()? != epochs.len() {
            return Ok(None);
        }
        let newest = u32::try_from(newest)?;
        let Some(slices) = self.slices_of(newest)? else {
            return Ok(None);
        };
        let slices = self.slices[slices].iter();
        let is_same = slices
            .map(|slice| (slice.epoch, slice.first))
            .eq(epochs.iter().map(|&(epoch, first)| (epoch.into(), first)));
        Ok(is_same.then_some(newest))
    }

    fn find_or_make(&self, epochs: &[(i32, i64)]) -> PyResult<u32> {
        let py = self.cache.py();
        let key = PyTuple::new(py, epochs)?;
        let numbers = self.cache.getattr(intern!(py, "_maps_by_epochs"))?;
        let number = match numbers.cast::<PyDict>()?.get_item(&key)? {
            Some(number) => number,
            None => self.cache.call_method1(intern!(py, "_intern"), (key,))?,
        };
        number.extract()
    }

    /// Places in `slices` for [`Self::span`].  None: a segment's span is beyond what Python's arrays hold.
    pub fn spans(&mut self, map: u32, start: i64) -> PyResult<Option<Range<usize>>> {
        let Some(range) = self.slices_of(map)? else {
            return Ok(None);
        };
        let fits = |offset: i64| {
            let offset = start.checked_add(offset);
            offset.is_some_and(|offset| offset > i64::MIN)
        };
        let fit = self.slices[range.clone()]
            .iter()
            .all(|slice| fits(slice.first) && slice.next.is_none_or(fits));
        Ok(fit.then_some(range))
    }

    /// The epoch of a slice, and what it holds of a segment: start and end.
    pub fn span(&mut self, slice: usize, start: i64, end: i64) -> (&mut Epochs<'py>, i64, i64) {
        let slice = &self.slices[slice];
        let end = slice.next.map_or(end, |next| start + next - 1);
        (&mut self.epochs[slice.place], start + slice.first, end)
    }

    fn slices_of(&mut self, map: u32) -> PyResult<Option<Range<usize>>> {
        if let Some((_, range)) = self.known.iter().rev().find(|known| known.0 == map) {
            return Ok(range.clone());
        }
        let begin = self.slices.len();
        let range = match self.read_slices(map) {
            Ok(()) => Some(begin..self.slices.len()),
            Err(error) if error.is_instance_of::<PyOverflowError>(self.maps.py()) => None,
            Err(error) => return Err(error),
        };
        self.known.push((map, range.clone()));
        Ok(range)
    }

    fn read_slices(&mut self, map: u32) -> PyResult<()> {
        let map = self.maps.get_item(map as usize)?;
        let map = map.cast::<PyTuple>()?;
        for (at, part) in map.iter().enumerate() {
            let part = part.cast::<PyTuple>()?;
            let epoch = part.get_item(0)?;
            let next = if at + 1 < map.len() {
                Some(map.get_item(at + 1)?.get_item(1)?.extract()?)
            } else {
                None
            };
            let slice = Slice {
                epoch: epoch.extract()?,
                place: self.place_of(epoch)?,
                first: part.get_item(1)?.extract()?,
                next,
            };
            self.slices.push(slice);
        }
        Ok(())
    }

    fn place_of(&mut self, epoch: Bound<'py, PyAny>) -> PyResult<usize> {
        let number = epoch.extract()?;
        if let Some(place) = self.find_place(number) {
            return Ok(place);
        }
        let epochs = self.cache.getattr(intern!(epoch.py(), "_epochs"))?;
        self.epochs.push(Epochs {
            epoch: number,
            segments: epochs.get_item(epoch)?,
            end: None,
            gathered: Vec::with_capacity(USUAL_SEGMENTS),
        });
        Ok(self.epochs.len() - 1)
    }

    fn find_place(&mut self, epoch: i64) -> Option<usize> {
        if self.epochs.len() <= FEW_EPOCHS {
            return self.epochs.iter().position(|one| one.epoch == epoch);
        }
        for place in self.places.len()..self.epochs.len() {
            self.places.insert(self.epochs[place].epoch, place);
        }
        self.places.get(&epoch).copied()
    }

    /// Give Python's objects all that is gathered.
    pub fn write(&mut self) -> PyResult<()> {
        self.epochs.iter_mut().try_for_each(Epochs::write)
    }
}

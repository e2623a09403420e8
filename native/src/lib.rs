//! The walks of `tiersidecar.formats.kafka`, the passes of `tiersidecar.formats.compaction`, and reading in turns, in native code.
//!
//! Python stays the reference: each function takes batches that Python's own loop would take in the same way, and stops before
//! the first that it would not, or that it does not know for certain.  Python goes on from there, and names every fault.

mod borrowed;
pub mod cleaning;
mod compaction;
mod header;
pub mod key_filter;
pub mod metadata;
mod metadata_epochs;
mod metadata_fold;
mod metadata_partition;
pub mod offset_map;
mod reading;
pub mod records;
pub mod walks;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use borrowed::slice_of;
use walks::{Cut, Scanned, Spans, Taken};

/// With fewer bytes to walk over, giving Python's lock away and taking it again costs more than the walk.
const LEAST_WITHOUT_LOCK: usize = 32 * 1024;

type CutResult = (usize, isize, i64, i64, usize, i64, usize);

/// Give (stop, batch count, last offset, max timestamp, [(start, stop) of each batch of a transaction]).
#[pyfunction]
fn scan(
    py: Python<'_>,
    buffer: PyBuffer<u8>,
    start: usize,
    leader_epoch: i32,
    last_offset: i64,
    max_timestamp: i64,
) -> PyResult<(usize, u64, i64, i64, Spans)> {
    let bytes = slice_of(&buffer)?;
    let known = Scanned {
        leader_epoch,
        last_offset,
        max_timestamp,
        batch_count: 0,
    };
    let (stop, seen, spans) = unlocked(py, bytes, start, || walks::scan(bytes, start, known));
    Ok((
        stop,
        seen.batch_count,
        seen.last_offset,
        seen.max_timestamp,
        spans,
    ))
}

/// Give the CRC32C of the file up to the end of the buffer, where `file_crc` is that up to its beginning; and what `scan` gives.
#[pyfunction]
fn sum_and_scan(
    py: Python<'_>,
    buffer: PyBuffer<u8>,
    start: usize,
    file_crc: u32,
    leader_epoch: i32,
    last_offset: i64,
    max_timestamp: i64,
) -> PyResult<(u32, usize, u64, i64, i64, Spans)> {
    let bytes = slice_of(&buffer)?;
    let known = Scanned {
        leader_epoch,
        last_offset,
        max_timestamp,
        batch_count: 0,
    };
    let start = start.min(bytes.len());
    let (sum, stop, seen, spans) = unlocked(py, bytes, 0, || {
        walks::sum_and_scan(bytes, start, file_crc, known)
    });
    Ok((
        sum,
        stop,
        seen.batch_count,
        seen.last_offset,
        seen.max_timestamp,
        spans,
    ))
}

/// Give (stop, next offset, headers of the batches that counted).
#[pyfunction]
fn digest(
    py: Python<'_>,
    buffer: PyBuffer<u8>,
    start: usize,
    next_offset: i64,
    stop_offset: i64,
) -> PyResult<(usize, i64, Vec<u8>)> {
    let bytes = slice_of(&buffer)?;
    Ok(unlocked(py, bytes, start, || {
        walks::digest(bytes, start, next_offset, stop_offset)
    }))
}

/// Give (stop, first or -1, its base offset, next offset, last, least offset due there, skipped bytes).
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "plain numbers pass to and from Python fastest"
)]
fn cut(
    py: Python<'_>,
    buffer: PyBuffer<u8>,
    start: usize,
    start_offset: i64,
    stop_offset: i64,
    least_offset: i64,
    greatest_offset: i64,
    leader_epoch: i64,
    epoch_stop: i64,
    left_bytes: usize,
    takes_any_size: bool,
) -> PyResult<CutResult> {
    let bytes = slice_of(&buffer)?;
    let wanted = Cut {
        start_offset,
        stop_offset,
        least_offset,
        greatest_offset,
        leader_epoch,
        epoch_stop,
        left_bytes,
        takes_any_size,
    };
    let Taken {
        stop,
        first,
        last,
        next_offset,
        skipped_bytes,
    } = unlocked(py, bytes, start, || walks::cut(bytes, start, wanted));
    let (first, base_offset) = first.map_or((-1, 0), |(at, base)| (at as isize, base));
    Ok((
        stop,
        first,
        base_offset,
        next_offset,
        last.0,
        last.1,
        skipped_bytes,
    ))
}

/// Whether the environment says TIERSIDECAR_NATIVE=off: the packages that parse bytes look at no environment themselves.
#[pyfunction]
fn is_off() -> bool {
    std::env::var_os("TIERSIDECAR_NATIVE").is_some_and(|value| value == "off")
}

#[pymodule]
fn tiersidecar_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    for function in [
        wrap_pyfunction!(scan, module)?,
        wrap_pyfunction!(sum_and_scan, module)?,
        wrap_pyfunction!(digest, module)?,
        wrap_pyfunction!(cut, module)?,
        wrap_pyfunction!(compaction::fill_map, module)?,
        wrap_pyfunction!(compaction::fill_map_from_records, module)?,
        wrap_pyfunction!(compaction::clean_run, module)?,
        wrap_pyfunction!(compaction::clean_records, module)?,
        wrap_pyfunction!(compaction::collect_keys, module)?,
        wrap_pyfunction!(compaction::collect_keys_from_records, module)?,
        wrap_pyfunction!(compaction::fill_filter, module)?,
        wrap_pyfunction!(compaction::filter_has_any, module)?,
        wrap_pyfunction!(metadata_fold::read_metadata, module)?,
        wrap_pyfunction!(reading::read_in_turns, module)?,
        wrap_pyfunction!(is_off, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}

fn unlocked<T: Send>(
    py: Python<'_>,
    bytes: &[u8],
    start: usize,
    walk: impl FnOnce() -> T + Send,
) -> T {
    if bytes.len().saturating_sub(start) < LEAST_WITHOUT_LOCK {
        walk()
    } else {
        py.detach(walk)
    }
}

//! Reading a file in short turns, with rests between them in which nobody needs Python's lock (docs/design/0012).

use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::thread::sleep;
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use crate::borrowed::{file_of, mut_slice_of};

/// How a reader that is in no hurry goes on: so many bytes, a rest, so many bytes.
#[derive(Clone, Copy)]
struct Turns {
    bytes: usize,
    rest: Duration,
    rests_first: bool,
}

/// Fill `buffer` from byte `position` of the file on, in turns of `turn_bytes` with rests of `rest_us` between them, and one
/// before the first if `rests_first`.  Give how many bytes came: fewer only at the end of the file.
#[pyfunction]
pub fn read_in_turns(
    py: Python<'_>,
    fileno: i32,
    position: u64,
    mut buffer: PyBuffer<u8>,
    turn_bytes: usize,
    rest_us: u64,
    rests_first: bool,
) -> PyResult<usize> {
    let file = file_of(py, fileno)?;
    let bytes = mut_slice_of(&mut buffer)?;
    let turns = Turns {
        bytes: turn_bytes.max(1),
        rest: Duration::from_micros(rest_us),
        rests_first,
    };
    py.detach(|| fill(file, position, bytes, turns))
        .map_err(os_error)
}

/// The error as Python's own functions raise it: with its number, and the system's words for it.
fn os_error(error: Errno) -> PyErr {
    let code = error.raw_os_error();
    let text = std::io::Error::from_raw_os_error(code).to_string();
    let words = text.split(" (os error").next().unwrap_or_default();
    PyOSError::new_err((code, words.to_owned()))
}

fn fill(
    file: BorrowedFd<'_>,
    position: u64,
    buffer: &mut [u8],
    turns: Turns,
) -> Result<usize, Errno> {
    let (mut done, mut rests, mut is_cached) = (0, turns.rests_first, true);
    for turn in buffer.chunks_mut(turns.bytes) {
        if rests {
            sleep(turns.rest);
        }
        rests = true;
        let at = position + done as u64;
        let mut count = if is_cached {
            read_cached(file, at, turn)
        } else {
            0
        };
        if count < turn.len() {
            is_cached = false;
            let (from, to) = (at + count as u64, at + 2 * turns.bytes as u64);
            // Only a hint, which some file systems do not take.
            let _ = fadvise(file, from, NonZeroU64::new(to - from), Advice::WillNeed);
            count += read_whole(file, from, &mut turn[count..])?;
        }
        done += count;
        if count < turn.len() {
            break;
        }
    }
    Ok(done)
}

/// Read what the page cache has of `buffer`, from its beginning on, without waiting: asking for pages that are there already
/// (`WillNeed`) costs half as much as copying them.  0 also where a file system cannot say.
fn read_cached(file: BorrowedFd<'_>, position: u64, buffer: &mut [u8]) -> usize {
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut [IoSliceMut::new(&mut buffer[done..])];
        match preadv2(file, rest, position + done as u64, ReadWriteFlags::NOWAIT) {
            Ok(count) if count > 0 => done += count,
            _ => break,
        }
    }
    done
}

fn read_whole(file: BorrowedFd<'_>, position: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        match pread(file, &mut buffer[done..], position + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

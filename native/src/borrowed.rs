//! A Python buffer as a slice, and an open file of Python's.

use std::os::fd::{BorrowedFd, RawFd};

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

/// The items of `buffer`, which may be used without Python's lock.
///
/// The export is held as long as the slice lives: nothing resizes or frees the memory meanwhile.  PyO3 gives no such slice,
/// because other threads may write to it.  Ours do not: the thread that fills a buffer is the one that walks over it, before it
/// fills it again (docs/design/0014); what came otherwise would be wrong bytes, found by their checksum.
#[allow(unsafe_code)]
pub fn slice_of<T: Element>(buffer: &PyBuffer<T>) -> PyResult<&[T]> {
    require_contiguous(buffer)?;
    if buffer.item_count() == 0 {
        return Ok(&[]);
    }
    // SAFETY: contiguous items by the check above, of this type and aligned as PyO3 has checked, alive and in place while the
    // export is, and not null since not empty.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<T>(), buffer.item_count()) })
}

/// The items of `buffer`, to be written to by the thread that has it as its own: nothing else looks at it meanwhile.
///
/// The offset map and the bits of a new filter are lent in this way.  One thread fills each, one step after the other
/// (docs/design/0014).
#[allow(unsafe_code)]
pub fn mut_slice_of<T: Element>(buffer: &mut PyBuffer<T>) -> PyResult<&mut [T]> {
    require_contiguous(buffer)?;
    if buffer.readonly() {
        return Err(PyBufferError::new_err("the buffer is read-only"));
    }
    if buffer.item_count() == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as above; and writable by the check, and borrowed once, by `&mut`, from an export of its own.
    Ok(
        unsafe {
            std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<T>(), buffer.item_count())
        },
    )
}

/// The open file that Python has under this number, for the length of a call.
///
/// Its owner closes it once no call that was given it runs any more: a cancelled one is waited for (docs/design/0014).
#[allow(unsafe_code)]
pub fn file_of(_call: Python<'_>, fileno: RawFd) -> PyResult<BorrowedFd<'_>> {
    if fileno < 0 {
        return Err(PyValueError::new_err("the file is closed"));
    }
    // SAFETY: not -1 by the check above, and open as long as the call lasts.  A number that is not open would be an error of
    // the system (EBADF), as in Python.
    Ok(unsafe { BorrowedFd::borrow_raw(fileno) })
}

fn require_contiguous<T: Element>(buffer: &PyBuffer<T>) -> PyResult<()> {
    if buffer.is_c_contiguous() {
        return Ok(());
    }
    Err(PyBufferError::new_err(
        "the buffer's bytes do not follow one another",
    ))
}

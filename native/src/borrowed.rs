//! A Python buffer as a slice of bytes.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// The bytes of `buffer`, which may be used without Python's lock.
///
/// The export is held as long as the slice lives: nothing resizes or frees the memory meanwhile.  PyO3 gives no such slice,
/// because other threads may write to it.  Ours do not: the thread that fills a buffer is the one that walks over it, before it
/// fills it again (docs/design/0014); what came otherwise would be wrong bytes, found by their checksum.
#[allow(unsafe_code)]
pub fn bytes_of(buffer: &PyBuffer<u8>) -> PyResult<&[u8]> {
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err(
            "the buffer's bytes do not follow one another",
        ));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: contiguous bytes by the check above, alive and in place while the export is, and not null since not empty.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) })
}

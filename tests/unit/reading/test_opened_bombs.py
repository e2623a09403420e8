"""Batches that open to a GiB cost a reader no more memory than there is for opened batches (rule 8)."""

from __future__ import annotations

import pytest

from tests.support.memory_use import measured_elsewhere
from tests.support.opened_bombs import CODECS, SHAPES

MOST_BYTES = 256 * 1024 * 1024
REFUSALS = {"NoMemoryLeftError", "TooLargeToOpenError"}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("codec", CODECS)
def test_20_lookups_and_reads_at_once_of_batches_that_open_to_a_gib(codec: str) -> None:
    """One lookup of a batch of 9 KB took 803 MiB, six took 2.6 GB.  Each is answered rightly or refused; a lookup by time,
    which needs no record whole, is refused only where the codec itself needs too much at once."""
    found = measured_elsewhere("tests.support.opened_bombs", codec, timeout_s=600)
    assert len(found) == len(SHAPES)
    for name, use in found.items():
        assert use.peak_bytes <= MOST_BYTES, name
        lookups, lines = (set(told.split(", ")) for told in use.outcome.split(" | "))
        assert (lookups | lines) - {"right"} <= REFUSALS
        if codec not in {"snappy in one block", "zstd with a window of 128 MiB"}:
            assert lookups == {"right"}, name

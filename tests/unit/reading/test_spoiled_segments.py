"""What whoever may write to the bucket puts there costs a reader neither memory nor time (rule 8)."""

from __future__ import annotations

import pytest

from tests.support.memory_use import measured_elsewhere
from tests.support.spoiled_segments import SPOILED

MOST_BYTES = 32 * 1024 * 1024
MOST_S = 1.0

pytestmark = pytest.mark.slow


def test_no_spoiled_object_takes_more_than_32_mib_or_a_second() -> None:
    """An 822-byte manifest took 970 MiB and 18 s: each number in a manifest was believed.  Time is the process's own."""
    found = measured_elsewhere("tests.support.spoiled_segments")
    assert len(found) == len(SPOILED) >= 50
    too_much = {name: use for name, use in found.items() if use.peak_bytes > MOST_BYTES or use.elapsed_s > MOST_S}
    assert not too_much
    assert not {name: use.outcome for name, use in found.items() if "characters" in use.outcome}

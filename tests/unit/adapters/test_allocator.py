"""Freed memory is reused, whichever thread freed it: told by page faults, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_FILL = """
import resource, threading
from tiersidecar.adapters.descriptors import reuse_freed_memory
assert reuse_freed_memory()
def fill():
    for _ in range(20):
        bytearray(4 << 20)
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
threads = [threading.Thread(target=fill) for _ in range(4)]
for thread in threads:
    thread.start()
    thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_what_was_freed_is_filled_again_without_page_faults() -> None:
    """Else 80 chunks of 1,024 pages each would be faulted in."""
    ran = subprocess.run([sys.executable, "-c", _FILL], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 4 * 1024

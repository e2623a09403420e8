"""What the process asks of kernel and C library: descriptors, reuse of freed memory, idle I/O (U14)."""

from __future__ import annotations

import subprocess
import sys

from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.process_limits import enter_idle_io_class, io_class

_FILL = """
import resource, threading
from tiersidecar.adapters.process_limits import reuse_freed_memory
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


def test_the_limit_of_descriptors_is_raised_to_what_the_system_allows() -> None:
    script = (
        "import resource\n"
        "from tiersidecar.adapters.process_limits import take_descriptors\n"
        "hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "assert take_descriptors() == hard, 'raised'\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)\n"
        "assert take_descriptors() == hard, 'and again'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_process_that_is_aborted_leaves_no_core() -> None:
    script = (
        "import os, resource, signal\n"
        "from tiersidecar.adapters.process_limits import leave_no_core\n"
        "resource.setrlimit(resource.RLIMIT_CORE, resource.getrlimit(resource.RLIMIT_CORE)[1:] * 2)\n"
        "leave_no_core()\n"
        "child = os.fork() or os.kill(os.getpid(), signal.SIGABRT)\n"
        "status = os.waitpid(child, 0)[1]\n"
        "assert os.WTERMSIG(status) == signal.SIGABRT\n"
        "assert not os.WCOREDUMP(status)\n"
        "assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_what_was_freed_is_filled_again_without_page_faults() -> None:
    """Else 80 chunks of 1,024 pages each would be faulted in."""
    ran = subprocess.run([sys.executable, "-c", _FILL], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 4 * 1024


async def test_threads_of_a_pool_are_idle_and_no_others() -> None:
    async with (
        ThreadBlocking(max_threads=2, initializer=enter_idle_io_class) as idle,
        ThreadBlocking(max_threads=1) as normal,
    ):
        assert await idle.run(io_class) == 3
        assert await normal.run(io_class) != 3
    assert io_class() != 3

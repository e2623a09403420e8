"""A gateway takes two descriptors for each client, and is often started with 1,024."""

from __future__ import annotations

import subprocess
import sys


def test_the_limit_of_descriptors_is_raised_to_what_the_system_allows() -> None:
    script = (
        "import resource\n"
        "from tiersidecar.adapters.descriptors import take_descriptors\n"
        "hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "assert take_descriptors() == hard, 'raised'\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)\n"
        "assert take_descriptors() == hard, 'and again'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

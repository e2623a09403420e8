"""How many files and sockets the process may have open."""

from __future__ import annotations

import resource

_ENOUGH = 1 << 20
"""Some systems allow a billion, for which whoever walks over all of them would wait."""


def take_descriptors() -> int:
    """Raise the soft limit to what the system allows; gives what it is then.

    Shells and containers start programs with 1,024, for those that use ``select``; each client of the gateway takes two.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted

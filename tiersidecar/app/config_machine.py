"""Find what of this machine, and of addresses seen from it, does not fit a configuration (``check-config --connect``)."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from tiersidecar.app.config.config import Config
from tiersidecar.app.config.values import Address
from tiersidecar.app.identity import resolve_host
from tiersidecar.decide.config_check import Finding, Listener, check_disk, check_user, error, ok, warning

_CONNECT_S = 3.0


def most_descriptors() -> int:
    """Return how many files a process of this user may have open, which the daemon takes at its start."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if hard == resource.RLIM_INFINITY else hard


def check_places(config: Config) -> Iterator[Finding]:
    """Yield what is to say of log dirs, disks and ``state.dir``; blocks."""
    by_disk: dict[int, list[str]] = {}
    for log_dir in config.log_dirs:
        try:
            by_disk.setdefault(Path(log_dir).stat().st_dev, []).append(log_dir)
            path = Path(log_dir) / "meta.properties"
            yield check_user(os.geteuid(), path.stat().st_uid, str(path))
        except OSError:
            continue  # the finding about log.dirs says so
    for log_dirs in by_disk.values():
        figures = os.statvfs(log_dirs[0])
        size, free = figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize
        yield check_disk(", ".join(log_dirs), size, free, config.disk_reserve)
    state_dir = Path(config.state_dir)
    exists = next(one for one in (state_dir, *state_dir.parents) if one.exists())
    if os.access(exists, os.W_OK | os.X_OK):
        yield ok("state.dir", f"{state_dir} can be written")
    else:
        yield error(
            "state.dir", f"uid {os.geteuid()} may not write {exists}", "make it, and give it to the sidecar's user"
        )


def brokers_listeners(setting: str | None) -> Iterator[Listener]:
    """Yield what the broker listens on, by its setting ``listeners``: ``NAME://host:port,...``"""
    for one in (setting or "").split(","):
        name, _, place = one.strip().partition("://")
        host, _, port = place.rpartition(":")
        if port.isdecimal():
            yield Listener(f"the broker's listener {name}", host.strip("[]"), int(port))


async def check_reach(what: str, host: str, port: int) -> Finding:
    """Try an address that clients get: a gateway may not be started yet, an unknown name is wrong in any case."""
    if not await resolve_host(host):
        return error(
            "gateway", f"{what}: {host} cannot be resolved here", "set an address that clients, and this machine, know"
        )
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as failure:
        reason = str(failure) or f"no answer in {_CONNECT_S:g} s"
        says = f"{what}: nothing can be reached at {Address(host, port)} ({reason})"
        return warning("gateway", says, "start the gateway there, or let this machine through the firewall")
    writer.close()
    return ok("gateway", f"{what}: {Address(host, port)} answers")

"""Check a configuration against the store, the broker and the machine (``check-config --connect``).

Facts in, findings out: each says what is wrong and what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple

_ANY_HOST = frozenset({"", "0.0.0.0", "::"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_MOST_SKEW_S = 5
_BESIDES_CLIENTS = 1024
"""Descriptors for the store, Kafka, segments and HTTP."""


class Level(StrEnum):
    """``ERROR``: it does not work.  ``WARNING``: it may not, or not for long.  ``OK``: it was checked, and fits."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One checked fact.  ``do`` is what to do, empty where nothing is wrong."""

    check: str
    level: Level
    says: str
    do: str = ""


class Right(NamedTuple):
    """An ``AclOperation`` as authorized operations have it: one bit each (KIP-430)."""

    name: str
    bit: int


READ, WRITE, DELETE = Right("Read", 1 << 3), Right("Write", 1 << 4), Right("Delete", 1 << 6)
DESCRIBE, DESCRIBE_CONFIGS = Right("Describe", 1 << 8), Right("DescribeConfigs", 1 << 10)


class Listener(NamedTuple):
    """A port that this machine listens on, and its purpose."""

    name: str
    host: str
    port: int


def ok(check: str, says: str) -> Finding:
    """Return a finding of level OK."""
    return Finding(check=check, level=Level.OK, says=says)


def warning(check: str, says: str, do: str) -> Finding:
    """Return a finding of level WARNING."""
    return Finding(check=check, level=Level.WARNING, says=says, do=do)


def error(check: str, says: str, do: str) -> Finding:
    """Return a finding of level ERROR."""
    return Finding(check=check, level=Level.ERROR, says=says, do=do)


def check_ports(listeners: Sequence[Listener]) -> Iterator[Finding]:
    """Yield each pair that wants the same port of the same address; port 0 is picked by the system."""
    doubled = False
    for listener, other in combinations(listeners, 2):
        if listener.port == other.port != 0 and _is_same_host(listener.host, other.host):
            doubled = True
            says = f"{listener.name} and {other.name} both listen on port {listener.port} of {listener.host or 'any address'}"
            yield error("ports", says, "give one of them another port")
    if not doubled:
        yield ok("ports", f"{len(listeners)} listeners, no port twice")


def _is_same_host(one: str, other: str) -> bool:
    if one in _ANY_HOST or other in _ANY_HOST:
        return True
    return one == other or {one, other} <= _LOOPBACK


def check_log_dirs(ours: Sequence[str], brokers: str | None) -> Finding:
    """Compare ``log.dirs`` with the broker's own setting; None where it did not say."""
    if brokers is None:
        says = "the broker does not say what its log.dirs are"
        return warning(
            "log.dirs", says, "give DescribeConfigs on the cluster to this command's user, or compare them by hand"
        )
    known = [one.strip().rstrip("/") for one in brokers.split(",") if one.strip()]
    wanted = [one.rstrip("/") for one in ours]
    if missing := sorted(set(known) - set(wanted)):
        says = f"the broker also has {', '.join(missing)}: nothing in there is copied"
        return error("log.dirs", says, "name all of the broker's log.dirs")
    if other := sorted(set(wanted) - set(known)):
        says = f"the broker calls its log dirs {', '.join(known)}, this configuration {', '.join(other)}"
        return warning("log.dirs", says, "be sure that both are the same directories, mounted once, at two paths")
    return ok("log.dirs", f"{len(wanted)}, as the broker's")


def check_owner(topic: str, cluster_id: str, owner: str | None) -> Finding | None:
    """Compare the owner of the topic's remote data, by the store, with this cluster; None if it is the same, or unknown."""
    if owner in (None, cluster_id):
        return None
    says = f"the store says that the remote data of {topic} belong to cluster {owner}, and this is {cluster_id}"
    return error("owner", says, "take another key.prefix or bucket, or read `tiersidecar adopt --help`")


def check_rights(resource: str, granted: int | None, needed: Iterable[Right]) -> Finding:
    """Compare our rights on a resource with those needed; ``granted`` of None: the broker does not say."""
    if granted is None:
        return warning(
            "rights", f"the broker does not say what we may do with {resource}", "see docs/operations/acls.md"
        )
    if missing := missing_rights(granted, needed):
        says = f"we may not {', '.join(missing)} on {resource}"
        return error("rights", says, "docs/operations/acls.md has the commands that give it")
    return ok("rights", f"on {resource}: all that is needed")


def missing_rights(granted: int | None, needed: Iterable[Right]) -> list[str]:
    """Return the names of the rights that we do not have; none where the broker does not say."""
    return [] if granted is None else [right.name for right in needed if not granted & right.bit]


def check_gateway(listener: str, brokers: Collection[int], mapped: Mapping[int, str]) -> Iterator[Finding]:
    """Yield whether each broker has an address for clients of the gateway."""
    unmapped = sorted(set(brokers) - set(mapped))
    if unmapped:
        names = ", ".join(map(str, unmapped))
        says = f"listener {listener} maps no address to broker {names}: its clients get node-{unmapped[0]}.not-mapped.invalid"
        yield error("gateway", says, "set advertised.pattern, or name every broker in advertised.nodes")
    addresses: dict[str, int] = {}
    for node_id, address in sorted(mapped.items()):
        if (other := addresses.setdefault(address, node_id)) != node_id:
            says = f"listener {listener} gives clients {address} for brokers {other} and {node_id}"
            yield error("gateway", says, "each broker needs a gateway of its own")
    if not unmapped and len(addresses) == len(mapped):
        yield ok("gateway", f"listener {listener} maps {len(mapped)} brokers")


def check_disk(log_dirs: str, size_bytes: int, free_bytes: int, reserve_percent: int) -> Finding:
    """Compare the free space with ``disk.reserve``."""
    free_percent = 100 * free_bytes // max(size_bytes, 1)
    if free_percent < reserve_percent:
        says = f"{log_dirs}: {free_percent} % is free, disk.reserve is {reserve_percent} %: pins go from the start"
        return warning("disk", says, "make room, or lower disk.reserve")
    return ok("disk", f"{log_dirs}: {free_percent} % is free, disk.reserve is {reserve_percent} %")


def check_user(our_uid: int, file_uid: int, path: str) -> Finding:
    """Compare our user with that of the broker's files: other users may not link them (``fs.protected_hardlinks``)."""
    if our_uid == file_uid:
        return ok("user", f"uid {our_uid}, as the broker's files")
    says = f"this is uid {our_uid}, and {path} is of uid {file_uid}: the broker's files cannot be linked"
    return error("user", says, "run the sidecar, and this command, as the broker's user")


def check_descriptors(limit: int, max_connections: int) -> Finding:
    """Compare the limit of open files with what the gateway's clients take, two each, and everything else."""
    needed = 2 * max_connections + _BESIDES_CLIENTS
    if limit < needed:
        says = f"{limit} files may be open, {max_connections} clients of the gateway and the rest may need {needed}"
        return warning("files", says, "raise LimitNOFILE (ulimit -n), or lower the gateway's max.connections")
    return ok("files", f"{limit} may be open, {needed} are needed at most")


def check_clock(name: str, ahead_s: float) -> Finding:
    """Check how far another clock is ahead of ours, negative where it is behind."""
    if abs(ahead_s) <= _MOST_SKEW_S:
        return ok("clock", f"that of {name} is ours, within {_MOST_SKEW_S} s")
    says = f"the clock of {name} is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} ours"
    return error("clock", says, "let NTP set both: retention, trash and signatures go by the time")


def check_replicas(topic: str, wanted: int, brokers: int) -> Finding | None:
    """Return an error if a missing topic cannot be created; None where it can."""
    if wanted <= brokers:
        return None
    says = f"{topic} is not there, and cannot be made with {wanted} replicas on {brokers} brokers"
    return error(
        "topics", says, "lower remote.log.metadata.topic.replication.factor and .min.isr, or start more brokers"
    )

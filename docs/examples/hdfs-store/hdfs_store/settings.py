"""The options of ``store.type: hdfs``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tiersidecar.ports.store import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsSettings:
    """``namenodes`` are addresses of WebHDFS, those of one cluster: the first that is active is used.  ``directory`` is an
    absolute path without a slash at its end, and must exist.

    ``delegation_token`` is sent instead of ``user``.  ``checksums``: what was sent is summed up as HDFS does,
    and compared before the object is visible.
    ``request_timeout_s`` bounds one request, and how long an upload may make no progress.
    """

    namenodes: tuple[str, ...]
    directory: str
    user: str | None = None
    delegation_token: str | None = field(default=None, repr=False)
    checksums: bool = False
    replication: int | None = None
    request_timeout_s: float = 60.0
    max_attempts: int = 5
    ca_pem: str | None = None


def settings_of(options: Options) -> HdfsSettings:
    """Return what ``options`` say, in which :func:`faults_of` has found no fault."""
    given: dict[str, Any] = {_OPTIONS[name].field: value for name, value in options.items()}
    given["namenodes"] = tuple(url.rstrip("/") for url in given["namenodes"])
    given["directory"] = given["directory"].rstrip("/")
    return HdfsSettings(**given)


def faults_of(options: Options) -> Iterable[tuple[str, str]]:
    """Yield what is wrong with ``options``: the option, and a sentence."""
    for name in options.keys() - _OPTIONS.keys():
        yield name, f"unknown option; there are {', '.join(_OPTIONS)}"
    for name in ("namenodes", "directory"):
        if name not in options:
            yield name, f"missing: expected {_OPTIONS[name].expected}"
    for name, option in _OPTIONS.items():
        if name in options and not option.is_right(options[name]):
            is_secret = name == "delegation.token"
            yield name, f"expected {option.expected}" + ("" if is_secret else f", got {options[name]!r}")
    if "user" in options and "delegation.token" in options:
        yield "user", "a delegation token names its user: leave one of the two out"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    field: str
    expected: str
    is_right: Callable[[object], bool]


def _are_addresses(value: object) -> bool:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(one, str) for one in value):
        return False
    schemes = {_scheme_of(one) for one in value}
    return len(schemes) == 1 and schemes <= {"http", "https"}


def _scheme_of(url: str) -> str:
    """Empty where it is no address of a server, and of nothing else."""
    try:
        parts = urlsplit(url)
        is_server = bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        return ""
    return parts.scheme if is_server and not (parts.query or parts.fragment or parts.username) else ""


def _is_directory(value: object) -> bool:
    if not isinstance(value, str) or not value.startswith("/") or ":" in value:
        return False
    parts = value.rstrip("/").split("/")[1:]
    return bool(parts) and not {"", ".", ".."} & set(parts)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


_OPTIONS: Mapping[str, _Option] = {
    "namenodes": _Option(
        field="namenodes",
        expected="a list of addresses such as http://namenode:9870, all http or all https",
        is_right=_are_addresses,
    ),
    "directory": _Option(
        field="directory", expected="an absolute path below /, without '.', '..' and ':'", is_right=_is_directory
    ),
    "user": _Option(field="user", expected="a user's name", is_right=_is_text),
    "delegation.token": _Option(field="delegation_token", expected="a token as a text", is_right=_is_text),
    "checksums": _Option(field="checksums", expected="true or false", is_right=lambda value: isinstance(value, bool)),
    "replication": _Option(field="replication", expected="a count of replicas", is_right=_is_count),
    "request.timeout.s": _Option(field="request_timeout_s", expected="seconds above 0", is_right=_is_time),
    "max.attempts": _Option(field="max_attempts", expected="a count of at least 1", is_right=_is_count),
    "ca.pem": _Option(field="ca_pem", expected="certificates in PEM", is_right=_is_text),
}

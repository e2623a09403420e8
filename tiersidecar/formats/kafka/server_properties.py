"""A node's ``server.properties``, as Java reads it, and the places of the node's data by it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tiersidecar.domain.errors import CorruptDataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_KEY = re.compile(r"(?:\\.|[^\\ \t\f=:])*", re.DOTALL)
_ESCAPE = re.compile(r"\\(u.{0,4}|.)", re.DOTALL)
_CODE = re.compile(r"u[0-9a-fA-F]{4}")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlaces:
    """A node of a KRaft cluster.  ``metadata_log_dir`` is where a controller keeps the cluster's metadata."""

    node_id: int
    is_broker: bool
    is_controller: bool
    log_dirs: tuple[str, ...]
    metadata_log_dir: str


def read_node_places(data: bytes, *, where: str) -> NodePlaces:
    """Return the places that the file names.

    Raises:
        CorruptDataError: a property is missing, or cannot be used.
    """
    found = {name: value.strip() for name, value in read_properties(data, where=where).items()}
    roles = {role.strip() for role in found.get("process.roles", "").split(",")} - {""}
    if not roles or not roles <= {"broker", "controller"}:
        raise CorruptDataError(where=where, position=0, reason="process.roles names neither broker nor controller")
    node_id = found.get("node.id", "")
    if not node_id.isdecimal():
        raise CorruptDataError(where=where, position=0, reason=f"node.id is {node_id!r}, no number")
    listed = found.get("log.dirs") or found.get("log.dir") or ""
    log_dirs = tuple(path.strip() for path in listed.split(",") if path.strip())
    if not log_dirs:
        raise CorruptDataError(where=where, position=0, reason="log.dirs is missing")
    return NodePlaces(
        node_id=int(node_id),
        is_broker="broker" in roles,
        is_controller="controller" in roles,
        log_dirs=log_dirs,
        metadata_log_dir=found.get("metadata.log.dir") or log_dirs[0],
    )


def read_properties(data: bytes, *, where: str) -> dict[str, str]:
    """Return the properties that ``java.util.Properties`` reads, as ISO-8859-1; the last of several values of a key counts.

    Lines end at ``\\n``, ``\\r`` or both.  A line that ends in an odd number of backslashes goes on in the next; a comment
    does not.

    Raises:
        CorruptDataError: an escape ``\\u`` without four hexadecimal digits, with which no node starts, or a byte order
            mark, which Java takes for a part of the first key.
    """
    if data.startswith(_BYTE_ORDER_MARK):
        raise CorruptDataError(where=where, position=0, reason="it begins with a byte order mark: remove it")
    found: dict[str, str] = {}
    for number, line in _logical_lines(data.decode("iso-8859-1")):
        key, value = _split(line)
        try:
            found[_unescaped(key)] = _unescaped(value)
        except ValueError as error:
            raise CorruptDataError(where=where, position=0, reason=f"line {number}: {error}") from error
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line that is neither empty nor a comment, with its number, joined with those in which it goes on."""
    joined, first = "", 0
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.lstrip(_BLANKS)
        if not joined:  # nor where nothing but a backslash was before
            if not line or line[0] in "#!":
                continue
            first = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1]
            continue
        yield first, joined + line
        joined = ""
    if joined:
        yield first, joined


def _split(line: str) -> tuple[str, str]:
    """Split at the first blank, ``=`` or ``:`` that is not escaped; one ``=`` or ``:`` may have blanks around it."""
    match = _KEY.match(line)
    end = match.end() if match is not None else 0
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return line[:end], rest


def _unescaped(text: str) -> str:
    opened = _ESCAPE.sub(lambda match: _opened(match[1]), text)
    try:
        return opened.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise ValueError("an escape \\u is half a character: its other half is missing") from error


def _opened(escape: str) -> str:
    if escape[0] != "u":
        return _CONTROLS.get(escape, escape)
    if not _CODE.fullmatch(escape):
        raise ValueError(f"\\{escape} is no \\u with four hexadecimal digits")
    return chr(int(escape[1:], 16))

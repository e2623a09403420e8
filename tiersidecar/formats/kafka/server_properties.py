"""What a node's ``server.properties`` says of where it keeps its data.  Java's format, as far as such files use it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tiersidecar.domain.errors import CorruptDataError

_ESCAPE = re.compile(r"\\(.)")
_LINE = re.compile(r"\s*(?P<key>(?:\\.|[^\s=:\\])+)\s*[=:\s]?\s*(?P<value>.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlaces:
    """A node of a KRaft cluster.  ``metadata_log_dir`` is where a controller keeps the cluster's metadata."""

    node_id: int
    is_broker: bool
    is_controller: bool
    log_dirs: tuple[str, ...]
    metadata_log_dir: str


def read_node_places(text: str, *, where: str) -> NodePlaces:
    """Return what the file says.

    Raises:
        CorruptDataError: a property is missing, or cannot be used.
    """
    found = _properties(text)
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


def _properties(text: str) -> Mapping[str, str]:
    """A line that ends in a backslash goes on in the next; the last of several values of a key counts."""
    joined = re.sub(r"\\\n[ \t]*", "", text.replace("\r\n", "\n"))
    found: dict[str, str] = {}
    for line in joined.split("\n"):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        match = _LINE.fullmatch(line)
        if match is not None:
            found[_ESCAPE.sub(r"\1", match["key"])] = _ESCAPE.sub(r"\1", match["value"])
    return found

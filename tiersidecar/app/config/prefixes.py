"""The plugin prefixes of a broker's server.properties, accepted as they stand there (S-196).

``rsm.config.chunk.size`` is ``chunk.size`` of section store, ``rsm.config.storage.s3.region`` its ``s3.region``, and
``rlmm.config.remote.log.metadata.topic.num.partitions`` is the top-level key without the prefix.
"""

from __future__ import annotations

import re
from typing import Any

from tiersidecar.app.config.document import Document, Fault, KeyPath, format_path

_BACKENDS = {
    "io.aiven.kafka.tieredstorage.storage.s3.S3Storage": "s3",
    "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage": "filesystem",
    "io.aiven.kafka.tieredstorage.storage.azure.AzureBlobStorage": "azure",
}
_KEY_PAIR = re.compile(r"encryption\.key\.pairs\.(.+)\.((?:public|private)\.key\.file)")


def without_plugin_prefixes(document: Document) -> Document:
    """``document`` with such keys moved to where they belong; a key that is set there already becomes a fault."""
    for key in [key for key in document.data if key.startswith(("rsm.config.", "rlmm.config."))]:
        value, line = document.data.pop(key), document.lines[(key,)]
        target, value = _target(key, value)
        if target is not None:
            _put(document, target, value, line)
    return document


def _target(key: str, value: Any) -> tuple[KeyPath | None, Any]:
    if key.startswith("rlmm.config."):
        return (key.removeprefix("rlmm.config."),), value
    name = key.removeprefix("rsm.config.")
    if name == "storage.backend.class":
        return ("store", "type"), _BACKENDS.get(str(value), value)
    if name == "encryption.key.pairs":
        return None, value  # the list of ids: each id has keys of its own
    pair = _KEY_PAIR.fullmatch(name)
    if pair is not None:
        return ("store", "encryption.key.pairs", pair.group(1), pair.group(2)), value
    return ("store", name.removeprefix("storage.")), value


def _put(document: Document, path: KeyPath, value: Any, line: int) -> None:
    section: Any = document.data
    for depth, part in enumerate(path[:-1], start=1):
        section = section.setdefault(part, {})
        document.lines.setdefault(path[:depth], line)
        if not isinstance(section, dict):
            return
    if path[-1] in section:
        first = document.line_of(path)
        document.faults.append(Fault(line, format_path(path), f"is set twice, first on line {first}"))
        return
    section[path[-1]] = value
    document.lines[path] = line

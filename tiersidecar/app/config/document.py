"""A YAML file as plain data, with the line of every key.

The node graph is read, not the constructed mapping, so that duplicate keys are seen and every fault can name its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tiersidecar.domain.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""From the root: keys of sections as texts, places in lists as numbers from 0."""

_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null"))


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with the configuration.  ``line`` counts from 1; 0 where there is none."""

    line: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"


@dataclass(slots=True)
class Document:
    """``data`` holds texts, numbers, booleans, None, lists and dicts.  ``lines`` maps a key path to its line, from 1."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def line_of(self, path: KeyPath) -> int:
        """Return the line of ``path``, or of the nearest section around it that the file has; 0 without any."""
        for stop in range(len(path), 0, -1):
            if path[:stop] in self.lines:
                return self.lines[path[:stop]]
        return 0


def format_path(path: KeyPath) -> str:
    """Format as ``topics[1].retention.ms``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if part and part.isprintable() else repr(part)
            text += f".{key}" if text else key
    return text


def read_document(path: Path) -> Document:
    """Read and parse a file.

    Raises:
        ConfigError: it cannot be read, is not UTF-8 or not YAML, is empty, or is not one section of keys.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise _unusable(path, f"cannot be read: {(error.strerror or type(error).__name__).lower()}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _unusable(path, f"line {line}: not UTF-8 text") from None
    return parse_document(text, path)


def parse_document(text: str, path: Path) -> Document:
    """Parse ``text`` as :func:`read_document` does; ``path`` is for messages."""
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        # Never str(error): it quotes the line, which may hold a secret.
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise _unusable(path, f"{line}not valid YAML: {error.problem or error.context}") from None
    except YAMLError as error:
        raise _unusable(path, f"not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise _unusable(path, "is nested too deeply") from None
    if root is None:
        raise _unusable(path, "is empty; broker, log.dirs and store are required at least")
    if not isinstance(root, MappingNode):
        raise _unusable(path, "expected keys and values (key: value lines) at the top level")
    document = Document()
    document.data = _Reader(document).mapping(root, ())
    return document


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(source=str(path), faults=(reason,))


class _Reader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._scalars = YAML(typ="safe", pure=True).constructor
        self._open: set[int] = set()

    def mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, key_node, value_node in self._entries(node, path):
            here = (*path, key)
            line = key_node.start_mark.line + 1
            if key in values:
                first = self._document.lines[here]
                self._document.faults.append(Fault(line, format_path(here), f"is set twice, first on line {first}"))
                continue
            self._document.lines[here] = line
            values[key] = self._value(value_node, here)
        return values

    def _entries(self, node: MappingNode, path: KeyPath) -> Iterator[tuple[str, Node, Node]]:
        for key_node, value_node in node.value:
            if isinstance(key_node, ScalarNode):
                yield str(key_node.value), key_node, value_node
            else:
                line = key_node.start_mark.line + 1
                self._document.faults.append(Fault(line, format_path(path), "a key must be a text"))

    def _value(self, node: Node, path: KeyPath) -> Any:
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if id(node) in self._open:
            line = self._document.line_of(path)
            self._document.faults.append(Fault(line, format_path(path), "an anchor cannot hold itself"))
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self.mapping(node, path)
            return self._sequence(node, path) if isinstance(node, SequenceNode) else None
        finally:
            self._open.discard(id(node))

    def _sequence(self, node: SequenceNode, path: KeyPath) -> list[Any]:
        values = []
        for index, item in enumerate(node.value):
            here = (*path, index)
            self._document.lines[here] = item.start_mark.line + 1
            values.append(self._value(item, here))
        return values

    def _scalar(self, node: ScalarNode) -> Any:
        if str(node.tag) in _PLAIN_TAGS:
            try:
                return self._scalars.construct_object(node)
            except (ValueError, KeyError):
                pass  # tagged as what it is not, or a number of thousands of digits: its key's type will refuse the text
        return str(node.value)

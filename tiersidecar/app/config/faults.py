"""Faults in people's words: key, line, what was expected, and what may have been meant."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tiersidecar.adapters.stores.installed import installed_kinds
from tiersidecar.app.config.document import Document, Fault, KeyPath, format_path
from tiersidecar.app.config.keys import KEYS_OF_KAFKA, all_key_paths, keys_of
from tiersidecar.app.config.section import CrossFaultsError, Section
from tiersidecar.app.config.store import BUILT_IN, INSTALLED
from tiersidecar.app.config.values import shown

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a section (key: value lines)",
    "model_type": "a section (key: value lines)",
    "model_attributes_type": "a section (key: value lines)",
}
_NUMBERED = {
    "greater_than_equal": ("must be at least {ge}", "ge"),
    "less_than_equal": ("must be at most {le}", "le"),
}


def document_faults(document: Document) -> list[Fault]:
    """What reading the file alone has shown: duplicate keys and the like."""
    return list(document.faults)


def validation_faults(error: ValidationError, document: Document, model: type[Section]) -> list[Fault]:
    """Every error of pydantic's as a :class:`Fault`."""
    faults: list[Fault] = []
    for details in error.errors(include_url=False):
        path = _path_in(document, details["loc"])
        cross = details.get("ctx", {}).get("error")
        if isinstance(cross, CrossFaultsError):
            faults += [_fault(document, (*path, *below), message) for below, message in cross.faults]
        elif details["type"] == "extra_forbidden":
            faults.append(_fault(document, path, _unknown_key(path, document, model)))
        else:
            faults.append(_fault(document, path, _sentence(details, path)))
    return faults


def _fault(document: Document, path: KeyPath, message: str) -> Fault:
    return Fault(document.line_of(path), format_path(path), message)


def _path_in(document: Document, loc: KeyPath) -> KeyPath:
    """``loc`` without what pydantic adds to it: tags of unions, and the names of validators."""
    value: Any = document.data
    path: list[str | int] = []
    for position, part in enumerate(loc):
        if _holds(value, part):
            value = value[part]
        elif not _is_absent_key(value, part) or position + 1 < len(loc):
            continue
        path.append(part)
    return tuple(path)


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(part, int):
        return isinstance(value, list) and part < len(value)
    return isinstance(value, dict) and part in value


def _is_absent_key(value: Any, part: str | int) -> bool:
    return isinstance(value, dict) and isinstance(part, str) and part not in (value.get("type"), INSTALLED)


def _sentence(details: ErrorDetails, path: KeyPath) -> str:
    kind, value, context = details["type"], details.get("input"), details.get("ctx", {})
    if kind == "missing":
        return "is required"
    if kind in {"union_tag_not_found", "union_tag_invalid"}:
        return _wrong_type_of_store(kind, value, context)
    if kind in {"literal_error", "enum"}:
        return f"expected {_alternatives(str(context['expected']))}, got {shown(value)}"
    if kind in _EXPECTED:
        hint = "; put it into quotes" if kind == "string_type" and isinstance(value, int | float | bool) else ""
        got = "a text" if "section" in _EXPECTED[kind] and isinstance(value, str) else shown(value)
        return f"expected {_EXPECTED[kind]}, got {got}{hint}"
    if kind in _NUMBERED:
        return f"{_NUMBERED[kind][0].format(**context)}, got {shown(value)}"
    if kind in {"too_short", "string_too_short"}:
        return "must not be empty"
    if kind == "string_pattern_mismatch":
        return f"{shown(value)} does not have the form {context['pattern']}"
    return details["msg"]


def _wrong_type_of_store(kind: str, value: object, context: dict[str, Any]) -> str:
    if kind == "union_tag_not_found":
        return f"type is required: {_kinds()}" if isinstance(value, dict) else f"expected a section, got {shown(value)}"
    return f"type: expected {_kinds()}, got {shown(context['tag'])}"


def _kinds() -> str:
    return " or ".join((*BUILT_IN, *sorted(installed_kinds() - set(BUILT_IN))))


def _alternatives(expected: str) -> str:
    """pydantic's ``'a', 'b' or 'c'`` without quotes."""
    return expected.replace("'", "").replace(", ", " or ") if " or " not in expected else expected.replace("'", "")


def _unknown_key(path: KeyPath, document: Document, model: type[Section]) -> str:
    key = str(path[-1])
    if key in KEYS_OF_KAFKA:
        return f"is not a key of the sidecar: {KEYS_OF_KAFKA[key]}"
    here = keys_of(model, path[:-1], document.data)
    close = difflib.get_close_matches(key, here, n=1, cutoff=0.75)
    if close:
        return f"unknown key; did you mean {format_path((*path[:-1], close[0]))}?"
    elsewhere = [known for known in all_key_paths(model) if known[-1] == key or format_path(known) == key]
    if any(known[:-1] == path[:-1] for known in elsewhere):
        return "is a key of another type of store"
    if elsewhere:
        return f"unknown key here; it belongs to {_section_name(elsewhere[0])}"
    return "unknown key"


def _section_name(path: KeyPath) -> str:
    section = format_path(path[:-1]).replace("[0]", "[]")
    return f"section {section}" if section else "the top level"
